"""Outputs of a step: calls of coordinators' code, in the same turn, and effects, held until the turn is in the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from coordlog.kernel.inputs import Asker, RequestOutcome
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
    "NotifyAttempt",
    "QueueCheckpoint",
    "RefuseAttempt",
    "Settle",
    "StartCheckpointTimer",
    "Step",
    "StopAckTimer",
    "StopDriver",
]


# --- calls, in order, each on the mailbox ----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class CallCreate:
    """Close the operator's coordinator, if it exists, and create a new object (A1: one object per reset)."""

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


class CallEvent(NamedTuple):
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
    """`subtask_reset`, with the result of `lost_events` during the call."""

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


class CallFuture(NamedTuple):
    """Resolve an event's future: acked if `reason` is None, else failed."""

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
    """Sequence of the `REQUEST`."""
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
    """Ids of skipped splits that may be in the source's state; the reader drops them."""


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


class DeliverEvent(NamedTuple):
    """Send an event to its attempt; the time for its ack begins here."""

    event: DownEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectBarrier:
    """Send a barrier, in order with the events."""

    subtask: int
    attempt_number: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyAttempt:
    """Notify an attempt that a checkpoint has completed or was aborted."""

    subtask: int
    attempt_number: int
    checkpoint_id: int
    is_completed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceAttempt:
    """Notify an attempt that it is over, and close its connection; its staged files may be deleted."""

    driver_id: str
    subtask: int
    attempt_number: int
    reason: str
    is_finished: bool
    """Whether it has completed its subtask: its task succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTask:
    """Kill the task, so that Spark starts another for the subtask."""

    stage_run: int
    task_attempt_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayNextAttempt:
    """The restart policy's backoff: no task becomes the subtask's next attempt before `delay_s`."""

    subtask: int
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelStage:
    """End all tasks; a rollback follows after `backoff_s`, or none if it is None."""

    reason: str
    backoff_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Settle an intent by the operator's sink, after `delay_s`."""

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
    """Start the timeout of a checkpoint that has been triggered."""

    checkpoint_id: int


class StopAckTimer(NamedTuple):
    """Stop the timer of an event that is acked or failed."""

    event_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Answer a client's request."""

    request_id: int
    outcome: RequestOutcome
    sequence: int | None = None
    """Sequence of the `RESPONSE`, or None if the request was not recorded."""
    payload_type: str | None = None
    payload: bytes | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCheckpoint:
    """Trigger a checkpoint as soon as one may start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDriver:
    """End the driver as a client has requested; the stop is recorded already."""

    by: str
    """Cause of the stop for the history."""
    with_checkpoint: bool
    savepoint: str | None
    """Name under which the stop's checkpoint is retained, or None."""
    asked_by: Asker | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob:
    """End the job."""

    is_finished: bool
    reasons: tuple[str, ...]
    where: str = ""
    """Attempt that failed last, and the split that it read; empty if no attempt failed."""
    final: str = ""
    """Reason why a restart cannot help; empty if the restart policy was used up."""
    skip_command: str = ""
    """Command that skips the split or event at which attempts kept failing; empty if there is none."""


Effect = (
    AcceptAttempt
    | AnswerFinished
    | RefuseAttempt
    | DeliverEvent
    | InjectBarrier
    | NotifyAttempt
    | FenceAttempt
    | KillTask
    | DelayNextAttempt
    | CancelStage
    | Settle
    | CompletedReleased
    | StartCheckpointTimer
    | StopAckTimer
    | AnswerRequest
    | QueueCheckpoint
    | StopDriver
    | EndJob
)


class Step(NamedTuple):
    """Result of one input or action.

    The caller must append `records` to its turn (the state includes them already), make the `calls` in order, each
    with the state at that time, and hold the `effects` until the log has acknowledged the turn.
    """

    state: JobState
    records: tuple[Record, ...]
    calls: tuple[Call, ...] = ()
    effects: tuple[Effect, ...] = ()
