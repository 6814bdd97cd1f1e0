"""The age limit of a watched source: which files are too old to be discovered, and which known ones are forgotten.

The limit is a time of modification that only rises. A file is forgotten only if it was modified before the limit that
is in the log, and a file that was modified before the limit is never discovered: so no file is read twice because its
name was forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from coordlog.coordinators.enumerator import pages_of_ids
from coordlog.projections.splits.table import PlacedSplits
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import KnownSplitsForgotten, Split
from coordlog.spark_integration.files.listing import ListedFile, modified_us
from coordlog.spark_integration.files.payloads import AgeLimit, FilesLeftOut
from coordlog.spark_integration.files.source.known_files import KnownFiles

__all__ = ["FileAges", "left_out_fact"]

_NAMED: Final = 10
"""Number of files that a record of left-out files names."""
_STEPS: Final = 20
"""The limit in the log rises in steps of this part of the age: each step is a record."""


class FileAges:
    """Compares the files of each listing with the limit. For one thread at a time.

    Its caller begins each listing, offers each of its files to `takes`, returns the facts of `end`, and calls `report`
    unless the listing fails. It sets `limit_us` once the log has an `AgeLimit`.

    Args:
        age_us: Greatest age of a file that is discovered, microseconds; None: the limit in the log stays as it is.
        limit_us: Limit in the log, microseconds since 1970, UTC; None: there is none yet.
        now_us: The driver's time, microseconds since 1970, UTC; None: that of the machine.
    """

    def __init__(
        self,
        age_us: int | None,
        limit_us: int | None,
        now_us: Callable[[], int] | None = None,
    ) -> None:
        self._age_us, self._now_us = age_us, now_us or _machine_us
        self.limit_us = limit_us
        self._clock_us: int | None = None
        """Clock of the last whole listing."""
        self._newest_us: int | None = None
        self._known = KnownFiles()
        self._young: set[str] = set()
        self._old: set[int] = set()
        """Hashes of the files that this driver has found to be too old: each is reported once."""
        self._unreported: set[int] = set()
        """Those that the last listing has added, until its facts are on their way to the log."""
        self._left_out: list[str] = []
        self._left_out_count = 0
        self._may_be_read = limit_us is not None

    @property
    def _from_us(self) -> int:
        """Time before which a modified file is not discovered: it may be above the limit in the log, never below."""
        limit_us = -1 if self.limit_us is None else self.limit_us
        if self._clock_us is None or self._age_us is None:
            return limit_us
        return max(limit_us, self._clock_us - self._age_us)

    def begin(self, known: KnownFiles) -> None:
        """Begin a listing."""
        self._known, self._newest_us = known, None
        self._young.clear()
        self._old -= self._unreported  # the listing before has failed
        self._unreported.clear()
        self._left_out, self._left_out_count = [], 0

    def takes(self, file: ListedFile) -> bool:
        """Whether the file may be discovered, or is known. A file without a time may always be."""
        time_us = modified_us(file)
        if time_us is None:
            return True
        self._newest_us = time_us if self._newest_us is None else max(self._newest_us, time_us)
        if file.path in self._known:
            was_us = self._known.modified_us(file.path)
            limit_us = self.limit_us
            if was_us is not None and limit_us is not None and was_us < limit_us <= time_us:
                self._young.add(file.path)  # it would be found again if it were forgotten
            return True
        if time_us >= self._from_us:
            return True
        if (hashed := hash(file.path)) not in self._old:
            self._old.add(hashed)
            self._unreported.add(hashed)
            self._left_out_count += 1
            if len(self._left_out) < _NAMED:
                self._left_out.append(file.path)
        return False

    def end(self, known: Sequence[Split]) -> list[Payload]:
        """End a listing of all files.

        Args:
            known: Splits in the log.

        Returns:
            Facts to record, in this order: splits to forget, a higher limit, files that were left out.
        """
        facts: list[Payload] = []
        forgotten = [name for path in self._too_old(known) for name in self._known.split_ids(path)]
        facts += [
            KnownSplitsForgotten(split_ids=page, why="older than `max_file_age`")
            for page in pages_of_ids(forgotten)
        ]
        if self._newest_us is not None and self._age_us is not None:
            # The driver's clock bounds files of the future; the newest file bounds a clock that is ahead.
            self._clock_us = min(self._newest_us, self._now_us())
            limit_us = self._clock_us - self._age_us
            step_us = self._age_us // _STEPS
            if limit_us >= 0 and (self.limit_us is None or limit_us >= self.limit_us + step_us):
                facts.append(AgeLimit(modified_from_us=limit_us, clock_us=self._clock_us))
        return facts + self.end_of_some()

    def report(self, *, is_whole: bool) -> None:
        """Note that the facts of the listing are returned; `is_whole`: it was one of all files."""
        self._unreported.clear()
        if is_whole:
            self._may_be_read = False

    def end_of_some(self) -> list[Payload]:
        """End a comparison of some files only; returns the fact of those that were left out, if any."""
        if not self._left_out_count:
            return []
        count, may_be_read = self._left_out_count, self._may_be_read
        return [left_out_fact(self._from_us, self._left_out, count, may_be_read=may_be_read)]

    def _too_old(self, known: Sequence[Split]) -> Iterator[str]:
        """Known files that the log's limit excludes, and of which a completed checkpoint has every row."""
        if self.limit_us is None or self._age_us is None:
            return
        for path in self._known.modified_before(self.limit_us):
            if path not in self._young and self._is_committed(path, known):
                self._old.add(hash(path))
                yield path

    def _is_committed(self, path: str, known: Sequence[Split]) -> bool:
        if not isinstance(known, PlacedSplits):
            return True
        return self._known.is_whole(path) and all(
            map(known.is_committed, self._known.split_ids(path))
        )


def _machine_us() -> int:
    return time.time_ns() // 1_000


def left_out_fact(
    from_us: int, paths: Sequence[str], count: int, *, may_be_read: bool
) -> FilesLeftOut:
    """The fact that files were left out for their age."""
    return FilesLeftOut(
        modified_from_us=from_us,
        file_count=count,
        paths=list(paths[:_NAMED]),
        may_be_read=may_be_read,
    )
