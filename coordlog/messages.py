"""Messages between an execution attempt and its driver, in order, on one connection.

Adapters transport them: WebSocket and Avro on Spark, a queue in memory. The kernel receives a message up unchanged,
and its effects wait until it is in the log; a message down is sent only after the log has released it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from coordlog.schemas.builtin_types import AttemptSnapshot, OperatorState, SplitFinished

__all__ = [
    "Accepted",
    "AckCheckpoint",
    "AckEvent",
    "AlreadyFinished",
    "AttemptMessage",
    "CheckpointAborted",
    "CheckpointCompleted",
    "Complete",
    "DeliverEvent",
    "DownMessage",
    "EndOfSplit",
    "Fail",
    "Fenced",
    "FinishSplit",
    "InjectBarrier",
    "Marker",
    "Refused",
    "Register",
    "SendEvent",
    "SkipSplit",
    "UpMessage",
    "joined_acks",
]


# --- both ways -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A mark in the order of events: the attempt returns it once it has handled all events before it.

    So every ack of an earlier event reaches the driver before the mark (C4: ack timeouts).
    """

    number: int
    """Number that the driver counts."""


# --- up: from an attempt --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """First message: registers a Spark task as an attempt."""

    driver_id: str
    """Id of the driver whose closure the task runs; another driver refuses it."""
    subtask: int
    stage_run: int
    task_attempt_id: int
    """Spark's id of the task; later tasks of one stage run have larger ids."""
    spark_attempt_number: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEvent:
    """An operator event to a coordinator."""

    operator_id: str
    event_id: int
    """Number that the attempt counts, from 0."""
    last_barrier: int
    payload_type: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AckEvent:
    """The operator has processed an event, or several."""

    operator_id: str
    event_id: int
    last_barrier: int
    also: tuple[int, ...] = ()
    """Ids of further events, in the order in which they were processed, behind the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AckCheckpoint:
    """The chain has passed the barrier, and its snapshot is durable or in this message."""

    checkpoint_id: int
    last_barrier: int
    snapshot: AttemptSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfSplit:
    """A split whose rows are in the committables of a later one."""

    split_id: str
    rows: int
    bytes_read: int
    rejected: int = 0
    """Rows of the split that were left out as bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishSplit:
    """A split has been read to its end; in batch, with the committables that hold all its rows."""

    operator_id: str
    last_barrier: int
    finished: SplitFinished
    rejected: int = 0
    """Rows of the split that were left out as bad."""
    before: tuple[EndOfSplit, ...] = ()
    """In batch: small splits read before it, whose rows the same committables hold; in the order of reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipSplit:
    """The reader has abandoned a split: it is unreadable, or skipped (J2: skip poison)."""

    operator_id: str
    last_barrier: int
    split_id: str
    rows: int
    """Number of its rows that stay, from the first on: 0, or those that the chain has received."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The subtask has finished; its last states and committables."""

    last_barrier: int
    snapshot: AttemptSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """A call of the chain raised (M3: callback exceptions); last message."""

    operator_id: str
    callback: str
    reason: str
    """End of the traceback."""
    split_id: str | None = None
    """Id of the split that was being read, or None."""
    event_id: int | None = None
    """Id of the event that was being handled, or None."""
    final: str = ""
    """Reason why a restart cannot help; empty if it may."""


AttemptMessage = SendEvent | AckEvent | AckCheckpoint | FinishSplit | SkipSplit | Complete | Fail
"""Messages of a registered attempt that the kernel handles: see `kernel.from_attempts`."""

UpMessage = Register | AttemptMessage | Marker

T = TypeVar("T")


def joined_acks(
    messages: Iterable[tuple[UpMessage, T]], sealed: Callable[[AckEvent], T]
) -> Iterator[T]:
    """Messages that an attempt sends at one time. The acks of each operator are one, behind the events sent after them.

    So an ack follows the events that its handler has sent (D2: order on a connection). No ack is moved behind any
    other message: a marker, or the ack of a barrier.

    Args:
        messages: Messages, each with its form for the connection, in order.
        sealed: Returns this form of an ack; that of an ack in `messages` is not used.
    """
    acks: dict[tuple[str, int], list[int]] = {}
    for message, form in messages:
        if isinstance(message, AckEvent):
            known = acks.setdefault((message.operator_id, message.last_barrier), [])
            known += (message.event_id, *message.also)
            continue
        if acks and not isinstance(message, SendEvent):
            yield from map(sealed, _acks(acks))
            acks = {}
        yield form
    yield from map(sealed, _acks(acks))


def _acks(event_ids: Mapping[tuple[str, int], Sequence[int]]) -> Iterator[AckEvent]:
    for (operator_id, last_barrier), (first, *also) in event_ids.items():
        yield AckEvent(
            operator_id=operator_id, event_id=first, last_barrier=last_barrier, also=tuple(also)
        )


# --- down: from a driver --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Answer to `Register`: the task is an attempt now."""

    driver_id: str
    epoch: int
    attempt_number: int
    restored_checkpoint: int
    parallelism: int
    is_batch: bool
    states: tuple[OperatorState, ...]
    """States of the restored checkpoint, one for each operator that had a state."""
    skipped_splits: tuple[str, ...] = ()
    """Ids of skipped splits that may be in the source's state: the reader must drop them (J2: skip poison)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyFinished:
    """Answer to `Register`: the subtask has finished; the task succeeds at once."""

    attempt_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Answer to `Register`: no attempt for this task; it fails, and Spark may start another."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverEvent:
    """An operator event from a coordinator."""

    operator_id: str
    event_id: int
    payload_type: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectBarrier:
    """A checkpoint's barrier, in order with the events."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCompleted:
    """A checkpoint has completed."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAborted:
    """A checkpoint will not complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The attempt is over: the task ends at once and publishes nothing (M4: fenced tasks stop). Last message."""

    reason: str
    is_finished: bool = False
    """Whether the job has finished or the subtask's completion is in the log: the task ends without an error."""


DownMessage = (
    Accepted
    | AlreadyFinished
    | Refused
    | DeliverEvent
    | InjectBarrier
    | CheckpointCompleted
    | CheckpointAborted
    | Marker
    | Fenced
)
