"""Every epoch over a job's log: whose, where, how it began and how it ended.

A fold of the records that count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from coordlog.projections.job.stops import is_driver_stopped
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record

__all__ = ["EpochEnd", "EpochFold", "EpochRow", "epochs"]


class EpochEnd(enum.Enum):
    """How an epoch ended, as far as the log says."""

    OPEN = "open"
    """No newer one has begun: its driver lives, or was lost."""
    REPLACED = "replaced"
    """A newer one began before the job had ended."""
    FINISHED = "finished"
    """The job finished in it."""
    FAILED = "failed"
    """The job failed in it."""
    STOPPED = "stopped"
    """Its driver was stopped in order, before the job had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """One epoch."""

    epoch: int
    job_id: str
    """Another one than later where the history was begun by another job, or adopted."""
    driver_id: str
    host: str | None
    pid: int | None
    mode: str | None
    """`streaming` or `batch`; None of a command's epoch."""
    parallelism: int | None
    coordlog_version: str | None
    started_us: int
    """Microseconds since 1970, UTC."""
    last_us: int
    """Of its last record."""
    end: EpochEnd = EpochEnd.OPEN
    restored_by: str | None = None
    """`start`, `rollback`, `resume` or `again`; None where it came to none of them."""
    restored_from: int | None = None
    """The checkpoint of a rollback; -1 is the start."""
    record_count: int = 1
    """That count, its `EPOCH_STARTED` included."""
    attempts_started: int = 0
    checkpoints_completed: int = 0
    failovers_global: int = 0
    """How often the job went back to a checkpoint after its driver had begun."""


def epochs(records: Iterable[Record]) -> tuple[EpochRow, ...]:
    """The epochs over a job's log, in their order.

    Args:
        records: All that counts, in log order, from the log's first record on.
    """
    fold = EpochFold()
    for record in records:
        fold.apply(record)
    return fold.rows()


class EpochFold:
    """The fold behind `epochs`.

    `apply` takes each record that counts, in log order; `rows` may be asked any time.
    """

    def __init__(self) -> None:
        self._over: list[EpochRow] = []
        self._now: EpochRow | None = None

    def rows(self) -> tuple[EpochRow, ...]:
        """All epochs so far, in their order."""
        return (*self._over, *(() if self._now is None else (self._now,)))

    def apply(self, record: Record) -> None:
        """One more record."""
        now = self._now
        if record.kind is Kind.EPOCH_STARTED:
            if now is not None:
                is_open = now.end is EpochEnd.OPEN
                self._over.append(replace(now, end=EpochEnd.REPLACED) if is_open else now)
            self._now = _begun(record)
        elif now is None:  # a log that begins with a snapshot: what its epoch said is gone
            self._now = _begun(record)
        else:
            self._now = _after(now, record)


def _after(now: EpochRow, record: Record) -> EpochRow:
    now = replace(now, record_count=now.record_count + 1, last_us=record.timestamp_us)
    match record.kind:
        case Kind.COORDINATORS_STARTED:
            return replace(now, end=EpochEnd.OPEN, restored_by=record.attributes.get("restore"))
        case Kind.RESET_TO_CHECKPOINT:
            if record.attributes.get("restore") != "rollback" or now.restored_by is not None:
                return replace(now, failovers_global=now.failovers_global + 1)
            number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
            return replace(now, restored_by="rollback", restored_from=number)
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
    says = record.attributes
    return EpochRow(
        epoch=record.epoch,
        job_id=record.job_id,
        driver_id=record.driver_id,
        host=says.get("host"),
        pid=_number(says.get("pid")),
        mode=says.get("mode"),
        parallelism=_number(says.get("parallelism")),
        coordlog_version=says.get("coordlog_version"),
        started_us=record.timestamp_us,
        last_us=record.timestamp_us,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
