"""What an execution attempt and its driver say to each other, in order, on one connection.

These are the messages as both sides' logic sees them; how they travel is an adapter's matter (WebSocket and Avro on
Spark, a queue in memory). What an attempt says is acted on only once it is in the log; what a driver says has been
released by the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordlog.schemas.builtin_types import AttemptSnapshot, OperatorState, SplitFinished

__all__ = [
    "Accepted",
    "AckCheckpoint",
    "AckEvent",
    "AlreadyFinished",
    "CheckpointAborted",
    "CheckpointCompleted",
    "Complete",
    "DeliverEvent",
    "DownMessage",
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
]


# --- both ways -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A mark in the order of events: the attempt returns it once it has handled all that came before it.

    So every ack of an event before it reaches the driver before the mark does (clause C4).
    """

    number: int
    """The driver's own count."""


# --- up: what an attempt says ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """First message: a Spark task asks to become an attempt."""

    driver_id: str
    """The driver whose closure it runs; another driver refuses it."""
    subtask: int
    stage_run: int
    task_attempt_id: int
    """Spark's; newer attempts of one stage run have larger ones."""
    spark_attempt_number: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEvent:
    """An operator event to a coordinator."""

    operator_id: str
    event_id: int
    """The attempt's own count, 0 first."""
    last_barrier: int
    payload_type: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AckEvent:
    """The operator has processed an event."""

    operator_id: str
    event_id: int
    last_barrier: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AckCheckpoint:
    """The chain has passed the barrier and its snapshot is durable or in here."""

    checkpoint_id: int
    last_barrier: int
    snapshot: AttemptSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishSplit:
    """A split has been read to its end; in batch with the committables that hold all its rows."""

    operator_id: str
    last_barrier: int
    finished: SplitFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipSplit:
    """The reader has let go of a split: it cannot read it, or was told that it is skipped (clause J2)."""

    operator_id: str
    last_barrier: int
    split_id: str
    rows: int
    """Its rows that stay, from the first on: none, or those that the chain has been given."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The subtask has finished; its last states and committables."""

    last_barrier: int
    snapshot: AttemptSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """A call of the chain raised (clause M3); last message."""

    operator_id: str
    callback: str
    reason: str
    """The traceback's end."""
    split_id: str | None = None
    """The split that was being read."""
    event_id: int | None = None
    """The event that was being handled."""
    final: str = ""
    """Why trying again cannot help; empty where it may."""


UpMessage = (
    Register
    | SendEvent
    | AckEvent
    | AckCheckpoint
    | FinishSplit
    | SkipSplit
    | Complete
    | Fail
    | Marker
)


# --- down: what a driver says ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Answer to `Register`: the task is an attempt now."""

    driver_id: str
    epoch: int
    attempt_number: int
    restored_checkpoint: int
    parallelism: int
    is_batch: bool
    states: Sequence[OperatorState]
    """The restored checkpoint's, one per operator that had one."""
    skipped_splits: Sequence[str] = ()
    """Splits that may be in the source's state and are not to be read on (clause J2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyFinished:
    """Answer to `Register`: the subtask has finished; the task ends well at once."""

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
    """A checkpoint's barrier, in its place among the events."""

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
    """The attempt is over; the task ends at once and publishes nothing (clause M4). Last message."""

    reason: str
    is_finished: bool = False
    """The job ended well, or the subtask's completion is in the log: the task ends without an error."""


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
