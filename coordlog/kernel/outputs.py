"""What a step leads to: calls into coordinators' code, in the same turn, and effects, held until the log has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from coordlog.kernel.inputs import RequestOutcome
from coordlog.projections.job.state import DownEvent, JobState, UpEvent
from coordlog.schemas.builtin_types import OperatorState
from coordlog.schemas.record import Record

__all__ = [
    "AcceptAttempt",
    "AnswerFinished",
    "AnswerRequest",
    "Call",
    "CallAborted",
    "CallAttemptFailed",
    "CallAttemptReady",
    "CallCheckpoint",
    "CallComplete",
    "CallCreate",
    "CallEvent",
    "CallFuture",
    "CallHandler",
    "CallRequest",
    "CallReset",
    "CallStart",
    "CallSubtaskReset",
    "CancelStage",
    "CompletedReleased",
    "DelayNextAttempt",
    "DeliverEvent",
    "Effect",
    "EndJob",
    "FenceAttempt",
    "InjectBarrier",
    "KillTask",
    "RefuseAttempt",
    "Settle",
    "StartCheckpointTimer",
    "Step",
    "StopAckTimer",
    "TellAttempt",
]


# --- calls, in order, each on the mailbox ----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class CallCreate:
    """Close the operator's coordinator, if there is one, and make a new object (clause A1)."""

    operator_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReset:
    """`reset_to_checkpoint`."""

    operator_id: str
    checkpoint_id: int
    state: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStart:
    """`start`."""

    operator_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEvent:
    """`handle_event_from_operator`."""

    event: UpEvent
    is_redelivery: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAttemptReady:
    """`execution_attempt_ready`."""

    operator_id: str
    subtask: int
    attempt_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAttemptFailed:
    """`execution_attempt_failed`."""

    operator_id: str
    subtask: int
    attempt_number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSubtaskReset:
    """`subtask_reset`, with what `lost_events` answers in it."""

    operator_id: str
    subtask: int
    checkpoint_id: int
    lost_up: tuple[UpEvent, ...]
    lost_down: tuple[DownEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCheckpoint:
    """`checkpoint_coordinator`."""

    operator_id: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallComplete:
    """`notify_checkpoint_complete`."""

    operator_id: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAborted:
    """`notify_checkpoint_aborted`."""

    operator_id: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFuture:
    """Resolve an event's future: acked where `reason` is None."""

    operator_id: str
    event_id: int
    subtask: int
    attempt_number: int
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHandler:
    """The handler of a `call_async` or of a timer."""

    operator_id: str
    generation: int
    turn_sequence: int
    call_number: int
    payload_type: str | None
    payload: bytes | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """`handle_coordination_request`."""

    operator_id: str
    request_id: int
    sequence: int
    """Of the `REQUEST`."""
    payload_type: str
    payload: bytes


Call = (
    CallCreate
    | CallReset
    | CallStart
    | CallEvent
    | CallAttemptReady
    | CallAttemptFailed
    | CallSubtaskReset
    | CallCheckpoint
    | CallComplete
    | CallAborted
    | CallFuture
    | CallHandler
    | CallRequest
)


# --- effects, released in log order ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptAttempt:
    """Answer a registration: the connection's task is this attempt."""

    connection_id: int
    subtask: int
    attempt_number: int
    epoch: int
    restored_checkpoint: int
    states: tuple[OperatorState, ...]
    skipped_splits: tuple[str, ...] = ()
    """Those that may be in the source's state, and are not read on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFinished:
    """Answer a registration: the subtask has finished."""

    connection_id: int
    attempt_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseAttempt:
    """Answer a registration: no attempt for this task."""

    connection_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverEvent:
    """Send an event to its attempt; the time for its ack runs from here."""

    event: DownEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectBarrier:
    """Send a barrier, in its place among the events."""

    subtask: int
    attempt_number: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TellAttempt:
    """Tell an attempt what became of a checkpoint."""

    subtask: int
    attempt_number: int
    checkpoint_id: int
    is_completed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceAttempt:
    """Tell an attempt that it is over, and end its connection; its left-overs may be cleaned."""

    driver_id: str
    subtask: int
    attempt_number: int
    reason: str
    is_finished: bool
    """It has completed its subtask: the task ends well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTask:
    """Make Spark start another task for the subtask."""

    stage_run: int
    task_attempt_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayNextAttempt:
    """The restart policy's backoff: for so long no task becomes the subtask's next attempt."""

    subtask: int
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelStage:
    """End all tasks; a rollback follows after `backoff_s`, or nothing where it is None."""

    reason: str
    backoff_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Have the operator's sink settle an intent, after `delay_s`."""

    sequence: int
    operator_id: str
    checkpoint_id: int
    payload_type: str
    payload: bytes
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedReleased:
    """A checkpoint's completion is in the log: the input `CheckpointReleased` follows."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCheckpointTimer:
    """A checkpoint has been triggered: it must be whole in time."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAckTimer:
    """An event is acked or failed."""

    event_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Tell a client what became of its request."""

    request_id: int
    outcome: RequestOutcome
    sequence: int | None = None
    """Of the `RESPONSE`; None where nothing was recorded."""
    payload_type: str | None = None
    payload: bytes | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob:
    """The job is over."""

    is_finished: bool
    reasons: tuple[str, ...]
    where: str = ""
    """The attempt that failed last, and the split that it read; empty where it was none."""
    final: str = ""
    """Why no restart was tried; empty where the restart policy was used up."""


Effect = (
    AcceptAttempt
    | AnswerFinished
    | RefuseAttempt
    | DeliverEvent
    | InjectBarrier
    | TellAttempt
    | FenceAttempt
    | KillTask
    | DelayNextAttempt
    | CancelStage
    | Settle
    | CompletedReleased
    | StartCheckpointTimer
    | StopAckTimer
    | AnswerRequest
    | EndJob
)


class Step(NamedTuple):
    """What one input or action led to.

    The caller appends `records` to its turn (the state has them already), makes the `calls` in order, each on its own
    with the state as it then is, and holds the `effects` until the log has acknowledged the turn.
    """

    state: JobState
    records: tuple[Record, ...]
    calls: tuple[Call, ...] = ()
    effects: tuple[Effect, ...] = ()
