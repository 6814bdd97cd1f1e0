"""Pruning by a running driver: it removes the records that are older than the history that its job keeps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from coordlog.errors import CoordlogError, PayloadLostError, RecordError, SourceError
from coordlog.export import archive_below, archive_in
from coordlog.history import History
from coordlog.limits import HISTORY_CHECK_S, HISTORY_CHECKS
from coordlog.log.interface import PrunableLog
from coordlog.projections.snapshot.codec import SnapshotUnusableError, state_of
from coordlog.runtime.timers import Clock

__all__ = ["HistoryPruner", "KeptHistory"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptHistory:
    """History that a driver keeps in its log."""

    age: timedelta
    """Age up to which records stay; older ones may be removed."""
    archive: Path | None = None
    """Folder for files of removed records, or None: they are not archived."""

    @property
    def check_s(self) -> float:
        """Seconds from one check for removable records to the next."""
        return min(HISTORY_CHECK_S, self.age.total_seconds() / HISTORY_CHECKS)


@dataclass(frozen=True, slots=True)
class _Place:
    """A snapshot in the log."""

    old_at_s: float
    """Monotonic time from which it is as old as the kept history."""
    previous: int
    """Offset of the snapshot before it, or -1."""


class HistoryPruner:
    """Prunes one log. One thread calls `run`, or `prune` repeatedly.

    A log is cut below its newest snapshot that is as old as the kept history. Every retained checkpoint, savepoint and
    open intent is in that snapshot, or in the log behind it. Only snapshots are candidates that this driver has
    released or restored, and those before them: each names the one before, so all of them count.

    Ages grow with monotonic time, so that a clock that jumps ahead removes nothing early. The clock is compared with a
    snapshot's time once, when the snapshot is first seen; one that is newer than the last check is no older than that.

    Args:
        log: Log of the job.
        job_id: The job.
        kept: History to keep.
        newest: Returns the offset of the newest released snapshot, or -1. Any thread.
        clock: Clock of this machine.
    """

    def __init__(
        self,
        log: PrunableLog,
        job_id: str,
        kept: KeptHistory,
        newest: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._job_log, self._job_id, self._kept, self._newest = log, job_id, kept, newest
        self._clock = clock
        self._checked: tuple[int, float] | None = None
        """Newest snapshot at the last check, and its monotonic time."""
        self._places: dict[int, _Place] = {}
        """Snapshots that are too young so far, by offset."""

    def run(self, wait: Callable[[float], bool]) -> None:
        """Prune the log again and again, until `wait`, called with seconds, returns True. Failures are only logged."""
        while True:
            try:
                self.prune()
            except Exception as error:  # noqa: BLE001, without a next try the log would grow unnoticed
                is_known = isinstance(error, (CoordlogError, OSError))
                _log.warning(
                    "job=%s its log is not pruned, and the next try is in %.0f s: %s",
                    self._job_id,
                    self._kept.check_s,
                    error if is_known else f"{type(error).__name__}: {error}",
                    exc_info=not is_known,
                )
            if wait(self._kept.check_s):
                return

    def prune(self) -> int | None:
        """Remove the records below the newest snapshot that is old enough. Returns its offset, or None if none is.

        Raises:
            SourceError, OSError: The archive cannot be written or read back, or exists with other content; nothing was
                removed.
            LogError: The log cannot be read or pruned.
        """
        history = History(self._job_log)
        newest, now_s = self._newest(), self._clock.monotonic_s()
        offset = self._old_enough(history, newest, now_s)
        self._checked = (newest, now_s)
        if offset is None:
            return None
        if self._kept.archive is not None:
            self._archive(self._kept.archive, history.start, offset)
        self._job_log.delete_below(offset)
        self._places = {place: known for place, known in self._places.items() if place > offset}
        _log.info("job=%s its log is pruned: it begins at offset=%d", self._job_id, offset)
        return offset

    def _old_enough(self, history: History, newest: int, now_s: float) -> int | None:
        """Offset of the newest usable snapshot, above the log's start, that is as old as the kept history, or None."""
        offset = newest
        while offset > history.start:
            place = self._places.get(offset)
            if place is None:
                stored = next(history.stored(offset, offset + 1), None)
                if stored is None or stored.header is None:
                    return None
                age_s = self._age_s(offset, stored.timestamp_ms * 1000, now_s)
                old_at_s = now_s - age_s + self._kept.age.total_seconds()
                place = self._places[offset] = _Place(old_at_s, stored.header.snapshot_offset)
            if place.old_at_s <= now_s and _can_begin(history, offset):
                return offset
            if place.previous >= offset:
                return None
            offset = place.previous
        return None

    def _age_s(self, offset: int, timestamp_us: int, now_s: float) -> float:
        """Age of a snapshot that is seen for the first time."""
        age_s = max(0.0, (self._clock.now_us() - timestamp_us) / 1e6)
        if self._checked is not None and offset > self._checked[0]:
            return min(age_s, now_s - self._checked[1])
        return age_s

    def _archive(self, folder: Path, start: int, offset: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = archive_in(folder, self._job_id, start, offset)
        try:
            archive_below(self._job_log, self._job_id, offset, path)
        except FileExistsError as error:
            raise SourceError(
                str(path),
                "it exists with other records than the log's: perhaps those of an earlier log of this job",
                "move it away, or name another folder for the archive",
            ) from error


def _can_begin(history: History, offset: int) -> bool:
    """Whether every reader can begin at `offset`: with a snapshot that is in the log, of a version that is known."""
    try:
        beginning = history.snapshot_at(offset)
        if beginning is None or beginning.snapshot is None:
            return False
        state_of(beginning.snapshot)
    except (RecordError, SnapshotUnusableError, PayloadLostError):
        return False
    return True
