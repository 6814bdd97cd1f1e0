"""State of each job that has a log: the verdict on it, its progress, its driver."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from coordlog.cli.living import DriverFold
from coordlog.cli.log_access import Logs
from coordlog.cli.reading import opened
from coordlog.errors import CoordlogError
from coordlog.history import History
from coordlog.limits import JOBS_RECORDS_READ
from coordlog.projections.inspection.verdict import VerdictState
from coordlog.projections.inspection.verdict_fold import VerdictFold
from coordlog.projections.snapshot.codec import state_before
from coordlog.projections.tables.audit import Applying
from coordlog.projections.tables.progress import Progress, ProgressFold
from coordlog.schemas.record import NO_CHECKPOINT
from coordlog.spark_integration.driver.liveness import Liveness, NamedDriver, driver_liveness

__all__ = ["COPY", "JobRow", "job_rows"]

_READ_AT_ONCE: Final = 8
"""Number of logs that are read, and of drivers that are checked, at the same time."""

COPY: Final = "copy"
"""Status of a log that is a copy of another one, and that no driver has opened."""
UNREADABLE: Final = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """Row of `coordlog jobs`; its fields are named as in `Progress`, and as the table's columns."""

    job_id: str
    status: str
    """Value of a `VerdictState`, `COPY` or `UNREADABLE`."""
    since_us: int | None = None
    """Begin of this status; microseconds since 1970, UTC."""
    reason: str | None = None
    """Reason of the status in words."""
    epoch: int | None = None
    """Epoch in force."""
    driver: str | None = None
    """Value of a `Liveness` of the driver, or None if the job has none or is over."""
    driver_host: str | None = None
    driver_pid: int | None = None
    driver_reason: str | None = None
    """Evidence for `driver`."""
    last_record_us: int | None = None
    """Time of the last record; microseconds since 1970, UTC."""
    last_checkpoint: int | None = None
    """Last completed checkpoint, or None before the first."""
    last_checkpoint_us: int | None = None
    """Time of its completion, if the records that were read have it."""
    counted_from: int = 0
    """Offset from which the following are counted: 0, or that of a snapshot."""
    is_pruned: bool = False
    """Whether the log was pruned."""
    splits_finished: int = 0
    splits_known: int = 0
    rows: int = 0
    """Rows of the finished splits."""
    rows_published: int = 0
    failures: int = 0
    last_failure: str | None = None


def job_rows(logs: Logs, jobs: Iterable[str], *, is_whole: bool = False) -> tuple[JobRow, ...]:
    """Rows of the jobs, in their order.

    Args:
        logs: The logs.
        jobs: Ids of jobs.
        is_whole: Whether to read each log from its beginning, however long it is.
    """
    with ThreadPoolExecutor(_READ_AT_ONCE) as executor:
        return tuple(executor.map(partial(_row, logs, is_whole=is_whole), jobs))


def _row(logs: Logs, job: str, *, is_whole: bool) -> JobRow:
    try:
        with opened(logs, job) as log:
            reading = _Reading(job, History(log), is_whole=is_whole)
    except CoordlogError as error:
        return JobRow(job_id=job, status=UNREADABLE, reason=str(error))
    return reading.row()


class _Reading:
    """A job, read from its log."""

    def __init__(self, job: str, history: History, *, is_whole: bool) -> None:
        self._job = job
        self._drivers = DriverFold(job, history.log.identity)
        self._verdicts, self._progress = VerdictFold(), ProgressFold()
        from_here = history.end - JOBS_RECORDS_READ
        self._place = history.start
        if from_here > history.start and not is_whole:
            self._place = history.place_before(lambda stored: stored.offset <= from_here)
        self._is_pruned = history.start > 0
        for entry in history.records_from(self._place):
            self._drivers.apply(entry)
            if entry.beginning is not None:
                self._progress.begin(entry.beginning)
                if entry.beginning.snapshot is not None:
                    self._verdicts.begin(state_before(entry.beginning))
            if entry.counts and entry.record is not None:
                with Applying(entry.offset, entry.record):
                    self._progress.apply(entry.record)
                    self._verdicts.apply(entry.record)

    def row(self) -> JobRow:
        """The job's row; checks whether its driver lives."""
        progress = self._progress.progress
        if progress.epoch == -1:
            return JobRow(job_id=self._job, status=VerdictState.NEW.value)
        row = self._counted(progress)
        driver = self._drivers.driver if self._drivers.is_opened else None
        now_us = time.time_ns() // 1000
        verdict = self._verdicts.verdict(now_us)
        if driver is None and not verdict.state.is_over:
            return replace(row, status=COPY)
        if driver is not None and not verdict.state.is_over:
            row = _with_driver(row, driver)
            answers = {Liveness.LIVES.value: True, Liveness.GONE.value: False}
            verdict = self._verdicts.verdict(now_us, driver_answers=answers.get(row.driver or ""))
        return replace(
            row, status=verdict.state.value, since_us=verdict.since_us, reason=verdict.reason
        )

    def _counted(self, progress: Progress) -> JobRow:
        has_checkpoint = progress.last_checkpoint != NO_CHECKPOINT
        return JobRow(
            job_id=self._job,
            status="",
            epoch=progress.epoch,
            last_record_us=progress.last_us,
            last_checkpoint=progress.last_checkpoint if has_checkpoint else None,
            last_checkpoint_us=progress.last_checkpoint_us if has_checkpoint else None,
            counted_from=self._place,
            is_pruned=self._is_pruned,
            splits_finished=progress.splits_finished,
            splits_known=progress.splits_known,
            rows=progress.rows,
            rows_published=progress.rows_published,
            failures=progress.failures,
            last_failure=progress.last_failure,
        )


def _with_driver(row: JobRow, driver: NamedDriver) -> JobRow:
    row = replace(row, driver_host=driver.host or None, driver_pid=driver.pid)
    try:
        result = driver_liveness(driver)
    except CoordlogError as error:  # the user's token is none
        return replace(row, driver=Liveness.UNKNOWN.value, driver_reason=str(error))
    return replace(row, driver=result.liveness.value, driver_reason=result.why)
