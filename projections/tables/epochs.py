"""Every epoch of a job's log: its driver and host, how it began and how it ended.

A fold of the records that count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.state import DriverStop, JobState, Phase
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record, RestoredBy

__all__ = ["EpochEnd", "EpochFold", "EpochRow", "epochs"]


class EpochEnd(enum.Enum):
    """How an epoch ended, as recorded in the log."""

    OPEN = "open"
    """No newer epoch has begun: the driver lives, or was lost."""
    REPLACED = "replaced"
    """A newer epoch began before the job had ended."""
    FINISHED = "finished"
    """The job finished in this epoch."""
    FAILED = "failed"
    """The job failed in this epoch."""
    STOPPED = "stopped"
    """An orderly stop of the driver ended the epoch before the job had ended."""


_ENDS = {Phase.FINISHED: EpochEnd.FINISHED, Phase.FAILED: EpochEnd.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """One epoch."""

    epoch: int
    job_id: str
    """Job of the epoch; differs from later epochs if the job was forked, or its log adopted."""
    driver_id: str
    host: str | None
    pid: int | None
    mode: str | None
    """`streaming` or `batch`; None for the epoch of a command."""
    parallelism: int | None
    coordlog_version: str | None
    started_us: int | None
    """Microseconds since 1970, UTC, or None if a prune has removed its first record: its counts are partial then."""
    last_us: int
    """Time of the last record of the epoch."""
    end: EpochEnd = EpochEnd.OPEN
    restored_by: str | None = None
    """`start`, `rollback`, `resume` or `again`, or None if the epoch ended before any of them."""
    restored_from: int | None = None
    """Checkpoint of a rollback; -1 is the start."""
    record_count: int = 1
    """Number of records that count, `EPOCH_STARTED` included if it is in the log."""
    attempts_started: int = 0
    checkpoints_completed: int = 0
    failovers_global: int = 0
    """Number of resets of the whole job after the driver's start."""


def epochs(records: Iterable[Record]) -> tuple[EpochRow, ...]:
    """The epochs of a job's log, ascending.

    Args:
        records: All that counts, in log order, from the log's first record on.
    """
    fold = EpochFold()
    for record in records:
        fold.apply(record)
    return fold.rows()


class EpochFold:
    """The fold behind `epochs`.

    `apply` takes each record that counts, in log order; `rows` may be called at any time.
    """

    def __init__(self) -> None:
        self._over: list[EpochRow] = []
        self._now: EpochRow | None = None

    def begin(self, state: JobState) -> None:
        """Begin with the epoch of the state at the first record of a pruned log."""
        row = _row(state.launch, state.epoch, state.job_id, state.driver_id)
        end = EpochEnd.STOPPED if state.driver_stop is DriverStop.DONE else _ENDS.get(state.phase)
        is_open = end is None or state.launch_info.is_command  # the job had ended before a command
        self._now = replace(
            row,
            last_us=state.timestamp_us,
            record_count=0,
            end=EpochEnd.OPEN if is_open or end is None else end,
        )

    def rows(self) -> tuple[EpochRow, ...]:
        """All epochs so far, ascending."""
        return (*self._over, *(() if self._now is None else (self._now,)))

    def apply(self, record: Record) -> None:
        """Apply one record."""
        now = self._now
        if record.kind is Kind.EPOCH_STARTED:
            if now is not None:
                is_open = now.end is EpochEnd.OPEN
                self._over.append(replace(now, end=EpochEnd.REPLACED) if is_open else now)
            self._now = _begun(record)
        elif now is None:  # this version cannot read the snapshot with which the log begins
            self._now = _begun(record)
        else:
            self._now = _after(now, record)


def _after(now: EpochRow, record: Record) -> EpochRow:
    now = replace(now, record_count=now.record_count + 1, last_us=record.timestamp_us)
    match record.kind:
        case Kind.COORDINATORS_STARTED:
            return replace(now, end=EpochEnd.OPEN, restored_by=record.attributes.get("restore"))
        case Kind.RESET_TO_CHECKPOINT:
            if (
                record.attributes.get("restore") != RestoredBy.ROLLBACK
                or now.restored_by is not None
            ):
                return replace(now, failovers_global=now.failovers_global + 1)
            number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
            return replace(now, restored_by=RestoredBy.ROLLBACK, restored_from=number)
        case Kind.ATTEMPT_STARTED:
            return replace(now, attempts_started=now.attempts_started + 1)
        case Kind.CHECKPOINT_COMPLETED:
            return replace(now, checkpoints_completed=now.checkpoints_completed + 1)
        case Kind.JOB_FINISHED:
            return replace(now, end=EpochEnd.FINISHED)
        case Kind.JOB_FAILED:
            return replace(now, end=EpochEnd.FAILED)
        case Kind.FACT if is_driver_stopped(record):
            return replace(now, end=EpochEnd.STOPPED)
        case _:
            return now


def _begun(record: Record) -> EpochRow:
    row = _row(record.attributes, record.epoch, record.job_id, record.driver_id)
    is_first = record.kind is Kind.EPOCH_STARTED
    us = record.timestamp_us
    return replace(row, started_us=us if is_first else None, last_us=us)


def _row(attributes: Mapping[str, str], epoch: int, job_id: str, driver_id: str) -> EpochRow:
    """The row of an epoch with these attributes of its `EPOCH_STARTED`, without times."""
    return EpochRow(
        epoch=epoch,
        job_id=job_id,
        driver_id=driver_id,
        host=attributes.get("host"),
        pid=_number(attributes.get("pid")),
        mode=attributes.get("mode"),
        parallelism=_number(attributes.get("parallelism")),
        coordlog_version=attributes.get("coordlog_version"),
        started_us=None,
        last_us=0,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
