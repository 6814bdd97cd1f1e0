"""A watch of files whose listings have splits and no facts: for tests without an age limit."""

from __future__ import annotations

from collections.abc import Sequence

from coordlog.schemas.source_types import Split, SplitsDiscovered
from coordlog.spark_integration.files.source.discovery import FileWatch

__all__ = ["PlainWatch"]


class PlainWatch(FileWatch):
    """The watch, with the type of such a listing."""

    def look(
        self, known: Sequence[Split], skipped: frozenset[str] = frozenset()
    ) -> SplitsDiscovered:
        """New files."""
        found = super().look(known, skipped)
        assert isinstance(found, SplitsDiscovered), "facts are of an age limit"
        return found
