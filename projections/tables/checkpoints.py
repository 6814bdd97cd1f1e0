"""Every checkpoint of a job: when it was triggered and cut, and how it ended.

A fold of the records that count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.state import JobState, sorted_values
from coordlog.schemas.builtin_types import CheckpointTriggered
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.payload_address import content_length
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record

__all__ = [
    "CheckpointAck",
    "CheckpointFold",
    "CheckpointRow",
    "CheckpointStatus",
    "checkpoints",
    "coordinators_of",
    "subtasks_of",
]

T = TypeVar("T")


class CheckpointStatus(enum.Enum):
    """How a checkpoint ended."""

    PENDING = "pending"
    COMPLETED = "completed"
    ABORTED = "aborted"
    ABANDONED = "abandoned"
    """Completed, and no ancestor of the branch that the job is on: the job went back to an older checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAck:
    """One attempt's part of a checkpoint."""

    subtask: int
    attempt_number: int
    barrier_us: int | None
    """Time of sending the barrier; microseconds since 1970, UTC."""
    acked_us: int
    snapshot_bytes: int
    """Encoded size of its states and committables, in the log or the payload store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One checkpoint."""

    checkpoint_id: int
    epoch: int
    status: CheckpointStatus
    triggered_us: int
    """Microseconds since 1970, UTC."""
    cut_us: int | None
    """Time of the last coordinator's cut."""
    ended_us: int | None
    """Time of its completion or abortion."""
    acks: int
    reason: str | None
    missing_coordinators: tuple[str, ...] = ()
    """Operators without a cut so far, or at its abortion; in the order of the chain."""
    missing_subtasks: tuple[int, ...] = ()
    """Subtasks without an ack so far, or at its abortion; ascending."""
    coordinator_bytes: int = 0
    """Size of the coordinators' snapshots at their cuts."""
    acked: tuple[CheckpointAck, ...] = ()
    """Received acks, late ones included, in log order."""

    @property
    def state_bytes(self) -> int:
        """Size of all snapshots of the checkpoint."""
        return self.coordinator_bytes + sum(ack.snapshot_bytes for ack in self.acked)

    @property
    def missing(self) -> str:
        """Missing cuts and acks, for people; empty if none is missing."""
        parts = []
        if self.missing_coordinators:
            parts.append(f"cuts of {', '.join(self.missing_coordinators)}")
        if self.missing_subtasks:
            parts.append(f"acks of subtasks {', '.join(map(str, self.missing_subtasks))}")
        return " and ".join(parts)

    @property
    def milliseconds(self) -> float | None:
        """Time from trigger to end, or None if the checkpoint is pending."""
        return None if self.ended_us is None else (self.ended_us - self.triggered_us) / 1000


@dataclass(slots=True, kw_only=True)
class _Checkpoint:
    epoch: int
    triggered_us: int
    status: CheckpointStatus = CheckpointStatus.PENDING
    cut_us: int | None = None
    ended_us: int | None = None
    coordinator_bytes: int = 0
    acked: list[CheckpointAck] = field(default_factory=list)
    barriers: dict[tuple[int | None, int | None], int] = field(default_factory=dict)
    """Time of sending each barrier, by subtask and attempt number."""
    reason: str | None = None
    coordinators: list[str] = field(default_factory=list)
    """Operators without a cut so far."""
    subtasks: list[int] = field(default_factory=list)
    """Subtasks that have neither acked nor completed so far."""


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

    `apply` takes each record that counts, in log order; `rows` may be called at any time.
    """

    def __init__(self) -> None:
        self._checkpoints: dict[int, _Checkpoint] = {}
        self._coordinators: tuple[str, ...] = ()
        self._last = NO_CHECKPOINT
        """Last completed checkpoint of the branch."""
        self._parents: dict[int, int] = {}
        """Checkpoint before each completed one, on its branch."""

    def begin(self, state: JobState) -> None:
        """Begin with the pending checkpoints in the state at the first record of a pruned log."""
        self._coordinators, self._last = state.operators, state.last_checkpoint
        for pending in sorted_values(state.pending):
            self._checkpoints[pending.checkpoint_id] = _Checkpoint(
                epoch=state.epoch,
                triggered_us=pending.triggered_us,
                coordinators=list(pending.missing_coordinators(state.operators)),
                subtasks=list(pending.missing_subtasks),
            )

    def rows(self) -> tuple[CheckpointRow, ...]:
        """All checkpoints so far, by id."""
        return tuple(_row(key, self._checkpoints[key]) for key in sorted(self._checkpoints))

    def apply(self, record: Record) -> None:
        """Apply one record."""
        number = record.checkpoint_id
        if record.kind is Kind.EPOCH_STARTED:
            self._coordinators = coordinators_of(record)
        elif record.kind is Kind.SUBTASK_COMPLETED:
            self._subtask_completed(record.subtask)
        if number is None:
            return
        if record.kind is Kind.CHECKPOINT_TRIGGERED:
            self._checkpoints[number] = _Checkpoint(
                epoch=record.epoch,
                triggered_us=record.timestamp_us,
                coordinators=list(self._coordinators),
                subtasks=subtasks_of(record),
            )
            return
        if record.kind is Kind.RESET_TO_CHECKPOINT:
            self._go_back(number)
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
                self._parents[number], self._last = self._last, number
                known.coordinators.clear()
                known.subtasks.clear()
            case Kind.CHECKPOINT_ABORTED:
                known.status, known.ended_us = CheckpointStatus.ABORTED, record.timestamp_us
                known.reason = record.reason
            case _:
                pass

    def _subtask_completed(self, subtask: int | None) -> None:
        """Count the completion of a subtask as its ack of every pending checkpoint."""
        for known in self._checkpoints.values():
            if known.status is CheckpointStatus.PENDING:
                _remove(known.subtasks, subtask)

    def _go_back(self, number: int) -> None:
        """Abandon the checkpoints that are no ancestors of this one; those that are count again."""
        self._last = number
        way, ancestor = {number}, self._parents.get(number)
        while ancestor is not None and ancestor not in way:
            way.add(ancestor)
            ancestor = self._parents.get(ancestor)
        for key, known in self._checkpoints.items():
            if key in way and known.status is CheckpointStatus.ABANDONED:
                known.status, known.reason = CheckpointStatus.COMPLETED, None
            elif key not in way and known.status is CheckpointStatus.COMPLETED:
                known.status = CheckpointStatus.ABANDONED
                known.reason = f"the job went back to checkpoint {number}"


def _row(checkpoint_id: int, checkpoint: _Checkpoint) -> CheckpointRow:
    return CheckpointRow(
        checkpoint_id=checkpoint_id,
        epoch=checkpoint.epoch,
        status=checkpoint.status,
        triggered_us=checkpoint.triggered_us,
        cut_us=checkpoint.cut_us,
        ended_us=checkpoint.ended_us,
        acks=len(checkpoint.acked),
        reason=checkpoint.reason,
        coordinator_bytes=checkpoint.coordinator_bytes,
        acked=tuple(checkpoint.acked),
        missing_coordinators=tuple(checkpoint.coordinators),
        missing_subtasks=tuple(checkpoint.subtasks),
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


def coordinators_of(record: Record) -> tuple[str, ...]:
    """The operators that have a coordinator, as the job's fingerprint names them."""
    operators = LaunchInfo(record.attributes).operators
    return tuple(one.operator_id for one in operators if one.is_coordinated)


def subtasks_of(record: Record) -> list[int]:
    """The subtasks whose attempts a checkpoint waits for."""
    declared = payload_type_of(CheckpointTriggered)
    if record.payload is None or record.payload_type != declared.key:
        return []
    value = declared.decode(record.payload)
    assert isinstance(value, CheckpointTriggered)
    return sorted(attempt.subtask for attempt in value.attempts)


def _remove(names: list[T], name: T | None) -> None:
    if name in names:
        names.remove(name)
