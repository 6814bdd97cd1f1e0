"""Liveness of a job's driver, checked before a command takes its place or removes records that it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coordlog.errors import CommandError, DriverAliveError, RecordError
from coordlog.history import History
from coordlog.log.interface import Log, LogIdentity
from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.state import JobState
from coordlog.projections.snapshot.codec import state_before
from coordlog.projections.tables.audit import AuditRecord
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.driver.liveness import (
    Liveness,
    NamedDriver,
    driver_liveness,
    refuse_unless_gone,
)

__all__ = ["DriverFold", "driver_in", "driver_lives", "refuse_live_driver"]

_TAKE_OVER: Final = "if surely none runs, pass --take-over"


def driver_in(log: Log, job: str, *, next_step: str = _TAKE_OVER) -> NamedDriver | None:
    """The driver of the epoch in force, derived from headers and epochs alone, so that other records may be unreadable.

    None if no epoch has begun, or if the epoch in force belongs to another log: no driver has opened this copy.

    Raises:
        CommandError: The log does not show which records count; `next_step` ends its message.
    """
    fold = DriverFold(job, log.identity)
    try:
        for entry in History(log).records():
            fold.apply(entry)
    except RecordError as error:
        raise CommandError(
            job,
            f"its log does not show whether a driver of it runs: {error}",
            next_step,
        ) from error
    return fold.driver


class DriverFold:
    """The fold behind `driver_in`: `apply` takes each record, in log order."""

    def __init__(self, job: str, identity: LogIdentity) -> None:
        self._job, self._identity = job, identity
        self.driver: NamedDriver | None = None
        self.is_opened = False
        """Whether a driver of the job has opened this log; assumed for a pruned log."""

    def apply(self, entry: AuditRecord) -> None:
        """Take in the next record. Raises RecordError if the log begins with an unreadable snapshot."""
        if entry.beginning is not None and entry.beginning.snapshot is not None:
            self.driver = _of_state(state_before(entry.beginning), self._job, self._identity)
            self.is_opened = self.driver is not None
        record = entry.record
        if not entry.counts or record is None:
            return
        before = self.driver
        self.driver = _after(before, record, self._job, self._identity)
        if self.driver is not None and self.driver is not before:
            is_command = (
                record.kind is Kind.EPOCH_STARTED and LaunchInfo(record.attributes).is_command
            )
            self.is_opened |= not is_command

    def answers(self) -> bool | None:
        """Whether the driver answers; None if this log has none, or if it cannot be known.

        Raises:
            CoordlogError: The token of the user is none.
        """
        if self.driver is None or not self.is_opened:
            return None
        liveness = driver_liveness(self.driver).liveness
        return None if liveness is Liveness.UNKNOWN else liveness is Liveness.LIVES


def _after(
    before: NamedDriver | None, record: Record, job: str, identity: LogIdentity
) -> NamedDriver | None:
    if record.kind is Kind.EPOCH_STARTED:
        launch = LaunchInfo(record.attributes)
        if record.job_id != job or not launch.is_of(identity.cluster_id, identity.topic_id):
            return None
        return NamedDriver(
            job_id=job,
            epoch=record.epoch,
            driver_id=record.driver_id,
            endpoint=launch.endpoint,
            host=launch.host,
            pid=launch.pid,
            # A command starts no driver: a job that was stopped or has ended before is so after it.
            is_over=launch.is_command and before is not None and before.is_over,
            is_stopped=launch.is_command and before is not None and before.is_stopped,
        )
    if record.kind in (Kind.JOB_FINISHED, Kind.JOB_FAILED) and before is not None:
        return replace(before, is_over=True)
    if is_driver_stopped(record) and before is not None:
        return replace(before, is_stopped=True)
    return before


def _of_state(state: JobState, job: str, identity: LogIdentity) -> NamedDriver | None:
    launch = state.launch_info
    is_of_log = state.job_id == job and launch.is_of(identity.cluster_id, identity.topic_id)
    return NamedDriver.of(state) if is_of_log else None


def driver_lives(driver: NamedDriver, *, is_take_over: bool) -> bool:
    """Whether the driver answers and proves its identity; False if it is provably gone, or with `is_take_over`.

    Raises:
        DriverUnknownError: The driver may be alive.
    """
    if is_take_over:
        return False
    try:
        refuse_unless_gone(driver)
    except DriverAliveError:
        return True
    return False


def refuse_live_driver(driver: NamedDriver, *, is_take_over: bool) -> None:
    """Return only if no driver of the job is alive.

    Raises:
        DriverAliveError: The driver is alive; the message has its place.
        DriverUnknownError: The driver may be alive.
    """
    if not is_take_over:
        refuse_unless_gone(driver)
