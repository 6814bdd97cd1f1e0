"""Every checkpoint of a job: when it was triggered and cut, and what became of it.

A fold of the records that count.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from coordlog.schemas.builtin_types import CheckpointTriggered
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.payload_address import content_length
from coordlog.schemas.record import Kind, Record

__all__ = ["CheckpointAck", "CheckpointFold", "CheckpointRow", "CheckpointStatus", "checkpoints"]

T = TypeVar("T")


class CheckpointStatus(enum.Enum):
    """What became of a checkpoint."""

    PENDING = "pending"
    COMPLETED = "completed"
    ABORTED = "aborted"
    ABANDONED = "abandoned"
    """It had completed, and the job went back to an older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAck:
    """One attempt's part of a checkpoint."""

    subtask: int
    attempt_number: int
    barrier_us: int | None
    """When its barrier was sent; microseconds since 1970, UTC."""
    acked_us: int
    snapshot_bytes: int
    """What it handed over: states and committables, as they are encoded, wherever they are kept."""


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
    missing_coordinators: tuple[str, ...] = ()
    """The operators whose cut it waits for, or waited for when it was aborted; in the chain's order."""
    missing_subtasks: tuple[int, ...] = ()
    """The subtasks whose ack it waits for, or waited for when it was aborted; ascending."""
    coordinator_bytes: int = 0
    """What the coordinators handed over at their cuts."""
    acked: tuple[CheckpointAck, ...] = ()
    """The acks that have come, late ones included, in log order."""

    @property
    def state_bytes(self) -> int:
        """All that was handed over."""
        return self.coordinator_bytes + sum(one.snapshot_bytes for one in self.acked)

    @property
    def missing(self) -> str:
        """Who is missing, for people; empty where nobody is."""
        parts = []
        if self.missing_coordinators:
            parts.append(f"cuts of {', '.join(self.missing_coordinators)}")
        if self.missing_subtasks:
            parts.append(f"acks of subtasks {', '.join(map(str, self.missing_subtasks))}")
        return " and ".join(parts)

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
    coordinator_bytes: int = 0
    acked: list[CheckpointAck] = field(default_factory=list)
    barriers: dict[tuple[int | None, int | None], int] = field(default_factory=dict)
    """When each was sent, by subtask and attempt number."""
    reason: str | None = None
    coordinators: list[str] = field(default_factory=list)
    """Without a cut so far."""
    subtasks: list[int] = field(default_factory=list)
    """Neither acked nor completed so far."""


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
        self._coordinators: tuple[str, ...] = ()

    def rows(self) -> tuple[CheckpointRow, ...]:
        """All checkpoints so far, by id."""
        return tuple(_row(key, self._checkpoints[key]) for key in sorted(self._checkpoints))

    def apply(self, record: Record) -> None:
        """One more record."""
        number = record.checkpoint_id
        if record.kind is Kind.EPOCH_STARTED:
            self._coordinators = _coordinators_of(record)
        elif record.kind is Kind.SUBTASK_COMPLETED:
            self._subtask_completed(record.subtask)
        if number is None:
            return
        if record.kind is Kind.CHECKPOINT_TRIGGERED:
            self._checkpoints[number] = _Checkpoint(
                triggered=record,
                coordinators=list(self._coordinators),
                subtasks=_subtasks_of(record),
            )
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
                known.coordinator_bytes += content_length(record.payload)
                _remove(known.coordinators, record.operator_id)
            case Kind.BARRIER_INJECTED:
                known.barriers[record.subtask, record.attempt_number] = record.timestamp_us
            case Kind.CHECKPOINT_ACKED:
                known.acked.append(_ack(record, known.barriers))
                if known.status is CheckpointStatus.PENDING:
                    _remove(known.subtasks, record.subtask)
            case Kind.CHECKPOINT_COMPLETED:
                known.status, known.ended_us = CheckpointStatus.COMPLETED, record.timestamp_us
                known.coordinators.clear()
                known.subtasks.clear()
            case Kind.CHECKPOINT_ABORTED:
                known.status, known.ended_us = CheckpointStatus.ABORTED, record.timestamp_us
                known.reason = record.reason
            case _:
                pass

    def _subtask_completed(self, subtask: int | None) -> None:
        """It counts as its ack, of every checkpoint that is pending."""
        for known in self._checkpoints.values():
            if known.status is CheckpointStatus.PENDING:
                _remove(known.subtasks, subtask)

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
        acks=len(one.acked),
        reason=one.reason,
        coordinator_bytes=one.coordinator_bytes,
        acked=tuple(one.acked),
        missing_coordinators=tuple(one.coordinators),
        missing_subtasks=tuple(one.subtasks),
    )


def _ack(record: Record, barriers: Mapping[tuple[int | None, int | None], int]) -> CheckpointAck:
    assert record.subtask is not None
    assert record.attempt_number is not None
    return CheckpointAck(
        subtask=record.subtask,
        attempt_number=record.attempt_number,
        barrier_us=barriers.get((record.subtask, record.attempt_number)),
        acked_us=record.timestamp_us,
        snapshot_bytes=content_length(record.payload),
    )


def _coordinators_of(record: Record) -> tuple[str, ...]:
    """The operators that have a coordinator, as the job's fingerprint names them."""
    operators = json.loads(record.attributes.get("operators", "[]"))
    return tuple(one["id"] for one in operators if one.get("coordinated"))


def _subtasks_of(record: Record) -> list[int]:
    """The subtasks whose attempts a checkpoint waits for."""
    declared = payload_type_of(CheckpointTriggered)
    if record.payload is None or record.payload_type != declared.key:
        return []
    value = declared.decode(record.payload)
    assert isinstance(value, CheckpointTriggered)
    return sorted(one.subtask for one in value.attempts)


def _remove(names: list[T], name: T | None) -> None:
    if name in names:
        names.remove(name)
