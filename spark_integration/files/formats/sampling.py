"""Which files are looked into to settle a schema."""

from __future__ import annotations

from collections.abc import Sequence

from coordlog.limits import CSV_SAMPLE_FILES_MAX
from coordlog.spark_integration.files.listing import ListedFile

__all__ = ["evenly"]


def evenly(listed: Sequence[ListedFile]) -> Sequence[ListedFile]:
    """At most the limit of files: the first, the last, and evenly between."""
    last = len(listed) - 1
    if last < CSV_SAMPLE_FILES_MAX:
        return listed
    steps = CSV_SAMPLE_FILES_MAX - 1
    return [listed[last * i // steps] for i in range(CSV_SAMPLE_FILES_MAX)]
