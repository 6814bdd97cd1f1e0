"""The state of each job that has a log: whether it runs, how far it is, and its last failure."""

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
from coordlog.projections.tables.audit import audit_records
from coordlog.projections.tables.progress import JobEnd, Progress, ProgressFold
from coordlog.spark_integration.driver.liveness import Liveness, NamedDriver, driver_liveness

__all__ = ["JobRow", "JobState", "job_rows"]

_ASKED_AT_ONCE: Final = 16


class JobState(enum.Enum):
    """State of a job, as `coordlog jobs` shows it."""

    NEW = "new"
    """Its log has no record that counts."""
    RUNNING = "running"
    """Its driver answers, and proves itself."""
    STOPPED = "stopped"
    """Its driver was stopped in order."""
    UNANSWERED = "no driver answers"
    """Its driver was not stopped: it was killed, stands still, or cannot be reached from here."""
    FINISHED = "finished"
    FAILED = "failed"
    COPY = "copy"
    """The log is a copy of another one, and no driver has opened it."""
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job."""

    job_id: str
    state: JobState
    why: str | None = None
    """What is known of its driver, or why the log cannot be read."""
    epoch: int | None = None
    """Epoch in force."""
    last_us: int | None = None
    """Time of the last record; microseconds since 1970, UTC."""
    is_pruned: bool = False
    """What follows counts only what has come since the log was pruned."""
    splits_finished: int = 0
    splits_known: int = 0
    rows: int = 0
    """Rows of the finished splits."""
    rows_published: int = 0
    failures: int = 0
    last_failure: str | None = None


def job_rows(logs: Logs, jobs: Iterable[str]) -> tuple[JobRow, ...]:
    """The jobs, in the order given. Each log is read whole; the drivers are asked at once."""
    read = [_read(logs, job) for job in jobs]
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as asking:
        return tuple(asking.map(_asked, read))


def _read(logs: Logs, job: str) -> tuple[JobRow, NamedDriver | None]:
    try:
        with opened(logs, job) as log:
            progress, driver = ProgressFold(), DriverFold(job, log.identity)
            for one in audit_records(log.read(log.start_offset(), log.high_watermark())):
                if one.counts and one.record is not None:
                    driver.apply(one.record)
                    progress.apply(one.record)
    except CoordlogError as error:
        return JobRow(job_id=job, state=JobState.UNREADABLE, why=str(error)), None
    opened_by = driver.driver if driver.is_opened else None
    return _row(job, progress.progress, opened_by), opened_by


def _row(job: str, progress: Progress, driver: NamedDriver | None) -> JobRow:
    if progress.epoch == -1:
        return JobRow(job_id=job, state=JobState.NEW)
    return JobRow(
        job_id=job,
        state=_state(progress, driver),
        epoch=progress.epoch,
        last_us=progress.last_us,
        is_pruned=progress.is_pruned,
        splits_finished=progress.splits_finished,
        splits_known=progress.splits_known,
        rows=progress.rows,
        rows_published=progress.rows_published,
        failures=progress.failures,
        last_failure=progress.last_failure,
    )


def _state(progress: Progress, driver: NamedDriver | None) -> JobState:
    """By the log alone."""
    if progress.end is JobEnd.FINISHED:
        return JobState.FINISHED
    if progress.end is JobEnd.FAILED:
        return JobState.FAILED
    if driver is None:
        return JobState.COPY
    return JobState.STOPPED if driver.is_stopped else JobState.UNANSWERED


def _asked(read: tuple[JobRow, NamedDriver | None]) -> JobRow:
    row, driver = read
    if driver is None or row.state is not JobState.UNANSWERED:
        return row
    try:
        seen = driver_liveness(driver)
    except CoordlogError as error:
        return replace(row, why=str(error))
    state = JobState.RUNNING if seen.liveness is Liveness.LIVES else row.state
    return replace(row, state=state, why=seen.why)
