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
    r"(?:^|[/\\])(?:pyspark\.zip|py4j-[^/\\]+-src\.zip|spark-core_[^/\\]+\.jar)(?=$|[/\\])"
)


class _Kept(zipimporter):
    """A `zipimporter` that reads its archive once."""

    def invalidate_caches(self) -> None:
        """Do nothing: Spark does not change its archives while workers run."""


def _kept(name: str) -> _Kept:
    """The finder of a path in one of Spark's archives: an entry of `sys.path_hooks`."""
    if not _SPARKS_OWN.search(name):
        raise ImportError(name)
    return _Kept(name)


def keep_archives() -> None:
    """Make this process and its forks read Spark's archives once, and others, such as `--py-files`, as Python does.

    For Spark's Python processes, before other code of this package. Any thread.
    """
    if _kept in sys.path_hooks:
        return
    sys.path_hooks.insert(0, _kept)
    for name in list(sys.path_importer_cache):
        # another path, or deleted from the disk: its cached names still suffice
        with suppress(ImportError):
            sys.path_importer_cache[name] = _kept(name)
