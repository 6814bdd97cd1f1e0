"""Spark's own archives on the path of its Python workers: their content does not change during a worker's life.

Before each task, and before each step of a Python data source, a worker of Spark invalidates Python's caches of the
search path. That path contains `pyspark.zip` and, without any module, the jar of Spark's core: the names in both, some
thousands, are read again for each folder that was searched, about 0.13 s of CPU time in all.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Final
from zipimport import zipimporter

__all__ = ["keep_archives"]

_SPARKS_OWN: Final = re.compile(
    r"(?:^|[/\\])(?:pyspark\.zip|py4j-[^/\\]+-src\.zip|spark-core_[^/\\]+\.jar)$"
)


class _Kept(zipimporter):
    """A `zipimporter` that reads its archive once."""

    def invalidate_caches(self) -> None:
        """Do nothing: Spark does not change its archives while workers run."""


def keep_archives() -> None:
    """Make this process read Spark's archives once. Other archives, such as `--py-files`, are not affected.

    For Spark's Python processes, before other code of this package; a further call includes archives that were
    added since. Any thread.
    """
    for name, finder in list(sys.path_importer_cache.items()):
        if type(finder) is zipimporter and _SPARKS_OWN.search(finder.archive):
            with suppress(ImportError):  # deleted from the disk: its cached names still suffice
                sys.path_importer_cache[name] = _Kept(name)
