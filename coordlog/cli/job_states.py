"""Status of each job that has a log: whether it runs, its progress, and its last failure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from coordlog.cli.living import DriverFold
from coordlog.cli.log_access import Logs
from coordlog.cli.reading import opened
from coordlog.errors import CoordlogError
from coordlog.history import History
from coordlog.projections.tables.progress import JobEnd, Progress, ProgressFold
from coordlog.spark_integration.driver.liveness import Liveness, NamedDriver, driver_liveness

__all__ = ["JobRow", "JobStatus", "job_rows"]

_QUERIED_AT_ONCE: Final = 16
"""Number of drivers whose liveness is checked at the same time."""


class JobStatus(enum.Enum):
    """Status of a job, as `coordlog jobs` shows it."""

    NEW = "new"
    """Its log has no record that counts."""
    RUNNING = "running"
    """Its driver answers and proves its identity."""
    STOPPED = "stopped"
    """Its driver was stopped in order."""
    UNANSWERED = "no driver answers"
    """Its driver was not stopped in order: it was killed, hangs, or cannot be reached from here."""
    FINISHED = "finished"
    FAILED = "failed"
    COPY = "copy"
    """The log is a copy of another one, and no driver has opened it."""
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """Row of `coordlog jobs`; its fields are named as in `Progress`, and as the table's columns."""

    job_id: str
    status: JobStatus
    reason: str | None = None
    """Result of the liveness check, or the reason why the log cannot be read."""
    epoch: int | None = None
    """Epoch in force."""
    last_record_us: int | None = None
    """Time of the last record; microseconds since 1970, UTC."""
    is_pruned: bool = False
    """Whether the log was pruned: the following counts are those since then."""
    splits_finished: int = 0
    splits_known: int = 0
    rows: int = 0
    """Rows of the finished splits."""
    rows_published: int = 0
    failures: int = 0
    last_failure: str | None = None


def job_rows(logs: Logs, jobs: Iterable[str]) -> tuple[JobRow, ...]:
    """Rows of the jobs, in their order. Each log is read whole; drivers are checked in parallel."""
    read = [_read(logs, job) for job in jobs]
    with ThreadPoolExecutor(_QUERIED_AT_ONCE) as executor:
        return tuple(executor.map(_with_liveness, read))


def _read(logs: Logs, job: str) -> tuple[JobRow, NamedDriver | None]:
    try:
        with opened(logs, job) as log:
            progress, driver = ProgressFold(), DriverFold(job, log.identity)
            for entry in History(log).records():
                driver.apply(entry)
                if entry.beginning is not None:
                    progress.begin(entry.beginning)
                if entry.counts and entry.record is not None:
                    progress.apply(entry.record)
    except CoordlogError as error:
        return JobRow(job_id=job, status=JobStatus.UNREADABLE, reason=str(error)), None
    opened_by = driver.driver if driver.is_opened else None
    return _row(job, progress.progress, opened_by), opened_by


def _row(job: str, progress: Progress, driver: NamedDriver | None) -> JobRow:
    if progress.epoch == -1:
        return JobRow(job_id=job, status=JobStatus.NEW)
    return JobRow(
        job_id=job,
        status=_status(progress, driver),
        epoch=progress.epoch,
        last_record_us=progress.last_us,
        is_pruned=progress.is_pruned,
        splits_finished=progress.splits_finished,
        splits_known=progress.splits_known,
        rows=progress.rows,
        rows_published=progress.rows_published,
        failures=progress.failures,
        last_failure=progress.last_failure,
    )


def _status(progress: Progress, driver: NamedDriver | None) -> JobStatus:
    """Status by the log alone."""
    if progress.end is JobEnd.FINISHED:
        return JobStatus.FINISHED
    if progress.end is JobEnd.FAILED:
        return JobStatus.FAILED
    if driver is None:
        return JobStatus.COPY
    return JobStatus.STOPPED if driver.is_stopped else JobStatus.UNANSWERED


def _with_liveness(read: tuple[JobRow, NamedDriver | None]) -> JobRow:
    row, driver = read
    if driver is None or row.status is not JobStatus.UNANSWERED:
        return row
    try:
        result = driver_liveness(driver)
    except CoordlogError as error:
        return replace(row, reason=str(error))
    status = JobStatus.RUNNING if result.liveness is Liveness.LIVES else row.status
    return replace(row, status=status, reason=result.why)
