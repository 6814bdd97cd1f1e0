"""Whether a driver of a job lives: asked before a command takes its place, or what it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coordlog.errors import CommandError, DriverAliveError, PayloadLostError, RecordError
from coordlog.log.interface import Log, LogIdentity
from coordlog.projections.job.stops import is_driver_stopped
from coordlog.projections.snapshot.codec import SnapshotUnusableError, state_of
from coordlog.projections.tables.audit import audit_records
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.driver.liveness import NamedDriver, refuse_unless_gone

__all__ = ["DriverFold", "driver_in", "driver_lives", "refuse_live_driver"]


def driver_in(log: Log, job: str) -> NamedDriver | None:
    """The driver of the epoch in force by the headers and the epochs alone, whatever else of the log can be read.

    None if no epoch has begun, or if the one in force is another log's: of a copy that no driver has
    opened, none drives it.

    Raises:
        CommandError: What counts in the log cannot be told.
    """
    fold = DriverFold(job, log.identity)
    try:
        for one in audit_records(log.read(log.start_offset(), log.high_watermark())):
            if one.counts and one.record is not None:
                fold.apply(one.record)
    except (RecordError, SnapshotUnusableError, PayloadLostError) as error:
        raise CommandError(
            job,
            f"whether a driver of it lives cannot be told: {error}",
            "if it is surely gone, --take-over",
        ) from error
    return fold.driver


_COMMAND: Final = "command"
"""Attribute of an `EPOCH_STARTED` with which a command has begun an epoch."""


class DriverFold:
    """The fold behind `driver_in`: `apply` takes each record that counts, in log order."""

    def __init__(self, job: str, identity: LogIdentity) -> None:
        self._job, self._identity = job, identity
        self.driver: NamedDriver | None = None
        self.is_opened = False
        """Whether a driver of the job has opened this log; of a pruned log it is taken for granted."""

    def apply(self, record: Record) -> None:
        """One more record."""
        before = self.driver
        self.driver = _after(self.driver, record, self._job, self._identity)
        if self.driver is not None and self.driver is not before:
            is_command = record.kind is Kind.EPOCH_STARTED and _COMMAND in record.attributes
            self.is_opened |= not is_command


def _after(
    before: NamedDriver | None, record: Record, job: str, here: LogIdentity
) -> NamedDriver | None:
    if record.kind is Kind.EPOCH_STARTED:
        says = record.attributes
        there = (says.get("cluster_id", here.cluster_id), says.get("topic_id", here.topic_id))
        if record.job_id != job or there != (here.cluster_id, here.topic_id):
            return None
        return NamedDriver(
            job_id=job,
            epoch=record.epoch,
            driver_id=record.driver_id,
            endpoint=says.get("endpoint", ""),
            host=says.get("host", ""),
            # A command's epoch begins none of the job's own: a job that was stopped is stopped behind it.
            is_stopped=_COMMAND in says and before is not None and before.is_stopped,
        )
    if record.kind is Kind.SNAPSHOT and before is None:  # a pruned log begins with it
        return _of_snapshot(record, job, here)
    if record.kind in (Kind.JOB_FINISHED, Kind.JOB_FAILED) and before is not None:
        return replace(before, is_over=True)
    if is_driver_stopped(record) and before is not None:
        return replace(before, is_stopped=True)
    return before


def _of_snapshot(record: Record, job: str, here: LogIdentity) -> NamedDriver | None:
    state = state_of(record)
    says = state.launch
    there = (says.get("cluster_id", here.cluster_id), says.get("topic_id", here.topic_id))
    is_here = state.job_id == job and there == (here.cluster_id, here.topic_id)
    return NamedDriver.of(state) if is_here else None


def driver_lives(driver: NamedDriver, *, is_take_over: bool) -> bool:
    """Whether the driver answers, and proves itself; False if it is proved to be gone, or the user says so.

    Raises:
        DriverUnknownError: It may live.
    """
    if is_take_over:
        return False
    try:
        refuse_unless_gone(driver)
    except DriverAliveError:
        return True
    return False


def refuse_live_driver(driver: NamedDriver, *, is_take_over: bool) -> None:
    """Go on only if no driver of the job lives.

    Raises:
        DriverAliveError: One does; the message says where.
        DriverUnknownError: One may.
    """
    if not is_take_over:
        refuse_unless_gone(driver)
