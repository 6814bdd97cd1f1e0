"""Every checkpoint of a job: when it was triggered and cut, and what became of it.

A fold of the records that count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from coordlog.schemas.record import Kind, Record

__all__ = ["CheckpointFold", "CheckpointRow", "CheckpointStatus", "checkpoints"]


class CheckpointStatus(enum.Enum):
    """What became of a checkpoint."""

    PENDING = "pending"
    COMPLETED = "completed"
    ABORTED = "aborted"
    ABANDONED = "abandoned"
    """It had completed, and the job went back to an older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One checkpoint."""

    checkpoint_id: int
    epoch: int
    status: CheckpointStatus
    triggered_us: int
    """Microseconds since 1970, UTC."""
    cut_us: int | None
    """When the last coordinator made its cut."""
    ended_us: int | None
    """When it completed or was aborted."""
    acks: int
    reason: str | None

    @property
    def milliseconds(self) -> float | None:
        """From its trigger to its end; None while it is pending."""
        return None if self.ended_us is None else (self.ended_us - self.triggered_us) / 1000


@dataclass(slots=True, kw_only=True)
class _Checkpoint:
    triggered: Record
    status: CheckpointStatus = CheckpointStatus.PENDING
    cut_us: int | None = None
    ended_us: int | None = None
    acks: int = 0
    reason: str | None = None


def checkpoints(records: Iterable[Record]) -> tuple[CheckpointRow, ...]:
    """The checkpoints of a job, by id.

    Args:
        records: All that counts, in log order, from the log's first record on.
    """
    fold = CheckpointFold()
    for record in records:
        fold.apply(record)
    return fold.rows()


class CheckpointFold:
    """The fold behind `checkpoints`.

    `apply` takes each record that counts, in log order; `rows` may be asked any time.
    """

    def __init__(self) -> None:
        self._checkpoints: dict[int, _Checkpoint] = {}

    def rows(self) -> tuple[CheckpointRow, ...]:
        """All checkpoints so far, by id."""
        return tuple(_row(key, self._checkpoints[key]) for key in sorted(self._checkpoints))

    def apply(self, record: Record) -> None:
        """One more record."""
        number = record.checkpoint_id
        if number is None:
            return
        if record.kind is Kind.CHECKPOINT_TRIGGERED:
            self._checkpoints[number] = _Checkpoint(triggered=record)
            return
        if record.kind is Kind.RESET_TO_CHECKPOINT:
            self._abandon_above(number)
            return
        known = self._checkpoints.get(number)
        if known is None:
            return
        match record.kind:
            case Kind.COORDINATOR_CHECKPOINTED:
                known.cut_us = record.timestamp_us
            case Kind.CHECKPOINT_ACKED:
                known.acks += 1
            case Kind.CHECKPOINT_COMPLETED:
                known.status, known.ended_us = CheckpointStatus.COMPLETED, record.timestamp_us
            case Kind.CHECKPOINT_ABORTED:
                known.status, known.ended_us = CheckpointStatus.ABORTED, record.timestamp_us
                known.reason = record.reason
            case _:
                pass

    def _abandon_above(self, number: int) -> None:
        for key, known in self._checkpoints.items():
            if key > number and known.status is CheckpointStatus.COMPLETED:
                known.status = CheckpointStatus.ABANDONED
                known.reason = f"the job went back to checkpoint {number}"


def _row(checkpoint_id: int, one: _Checkpoint) -> CheckpointRow:
    return CheckpointRow(
        checkpoint_id=checkpoint_id,
        epoch=one.triggered.epoch,
        status=one.status,
        triggered_us=one.triggered.timestamp_us,
        cut_us=one.cut_us,
        ended_us=one.ended_us,
        acks=one.acks,
        reason=one.reason,
    )
