"""What arrives. Each input from outside begins a turn; an action is what a coordinator's code does within one."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from coordlog.projections.job.state import UpEvent
from coordlog.schemas.builtin_types import AttemptSnapshot, SplitFinished

__all__ = [
    "Action",
    "AdvanceCheckpoints",
    "AttemptLost",
    "AttemptRegistered",
    "CheckpointAckArrived",
    "CheckpointDue",
    "CheckpointReleased",
    "CheckpointTimedOut",
    "CommitSettled",
    "CompleteCheckpoint",
    "CompletionArrived",
    "Conclude",
    "DriverStops",
    "EventAckArrived",
    "EventArrived",
    "FailCheckpoint",
    "FailGlobally",
    "FinishJob",
    "GiveCommit",
    "Input",
    "RecordFact",
    "Redeliver",
    "RegisterType",
    "Reopen",
    "RequestArrived",
    "RequestOutcome",
    "Respond",
    "Resume",
    "Rollback",
    "SendEvent",
    "SplitFinishedArrived",
    "SplitSkippedArrived",
    "StaleAttempt",
    "Start",
    "StopAsked",
    "TakeSnapshot",
    "TellRestored",
    "WorkDone",
]


# --- an epoch ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first turn of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Go on from the folded state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopen:
    """Open a job again that has finished: every subtask is unfinished, what is committed stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Go back to a checkpoint, -1 included: a global failover, or a new driver."""

    checkpoint_id: int
    is_failover: bool
    """Within an epoch; counted by the restart policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redeliver:
    """Deliver the next event of the restored cut's channel state again (clause D3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRestored:
    """Tell the coordinators complete(n) once more (clause E6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleAttempt:
    """At a resume: an attempt of the dead driver is over."""

    subtask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceCheckpoints:
    """A subtask has completed, and what a pending checkpoint waited for may be there with that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """At a new driver of a batch job whose subtasks have all completed: go on with its commits, without a reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishJob:
    """Nothing is left to do, or nothing will do it: the job ends."""

    left: str = ""
    """What is left, in words: the job fails by it. Empty: the job has finished."""
    final: str = ""
    """Why a restart cannot help; empty if it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The driver is told to stop: recorded, and nothing else."""

    by: str
    with_checkpoint: bool
    is_at_once: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStops:
    """The driver does nothing any more after this turn: recorded, and nothing else."""

    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterType:
    """A payload type is to be in the log before a turn that has no room for it."""

    payload_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """The state as it is now, encoded: a turn of its own, whose one record is a place to start a fold from."""

    payload_type: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FailGlobally:
    """A callback raised, `fail_job`, or a stage that Spark aborted."""

    reason: str
    operator_id: str | None = None
    subtask: int | None = None
    event: UpEvent | None = None
    """The event whose handling raised."""
    final: str = ""
    """Why trying again cannot help: the job fails at once. Empty: the restart policy decides."""


# --- from attempts ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRegistered:
    """A Spark task of this driver asks to become an attempt."""

    connection_id: int
    subtask: int
    stage_run: int
    task_attempt_id: int
    spark_attempt_number: int
    host: str
    pid: int
    is_current_run: bool = True
    """Whether its stage run is the newest; one of an older run is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """An attempt is over: connection lost, a call that raised, a lease or an ack that ran out."""

    subtask: int
    attempt_number: int
    reason: str
    operator_id: str | None = None
    split_id: str | None = None
    event_id: int | None = None
    is_with_another: bool = False
    """Another attempt of its machine has just been lost, to the same cause: the restart policy has counted that."""
    final: str = ""
    """Why trying again cannot help: the job fails at once. Empty: the restart policy decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventArrived:
    """An event from an attempt."""

    subtask: int
    attempt_number: int
    operator_id: str
    event_id: int
    last_barrier: int
    payload_type: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EventAckArrived:
    """An attempt has processed an event."""

    subtask: int
    attempt_number: int
    operator_id: str
    event_id: int
    last_barrier: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAckArrived:
    """An attempt has passed a barrier."""

    subtask: int
    attempt_number: int
    checkpoint_id: int
    snapshot: AttemptSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFinishedArrived:
    """An attempt has ended a split."""

    subtask: int
    attempt_number: int
    operator_id: str
    last_barrier: int
    finished: SplitFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSkippedArrived:
    """An attempt's reader has let go of a split: it cannot read it, or has been told to skip it."""

    subtask: int
    attempt_number: int
    operator_id: str
    last_barrier: int
    split_id: str
    rows: int
    """Its rows that stay, from the first on."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionArrived:
    """An attempt has finished its subtask."""

    subtask: int
    attempt_number: int
    last_barrier: int
    snapshot: AttemptSnapshot


# --- timers, workers, the log ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDue:
    """It is time for a checkpoint, or somebody asked for one."""

    refused_connections: int = 0
    """That the endpoint has let in nowhere since the last checkpoint was triggered; for the record only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTimedOut:
    """A checkpoint was not whole in time."""

    checkpoint_id: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReleased:
    """A checkpoint's completion is in the log: tell the coordinators (clause H1)."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettled:
    """A sink has settled an intent, or could not."""

    sequence: int
    payload_type: str | None
    payload: bytes | None
    error: str | None
    final: str = ""
    """Why trying again cannot help: the job fails at once. Empty: the restart policy decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """A `call_async` has a result, or a timer of a coordinator has fired."""

    operator_id: str
    generation: int
    """Of coordinators; an older one's result is recorded only."""
    turn_sequence: int
    """The first sequence of the turn that asked for it."""
    call_number: int
    is_timer: bool
    payload_type: str | None = None
    payload: bytes | None = None
    error: str | None = None
    is_orphan: bool = False
    """The coordinator that asked is closed."""


# --- from clients ----------------------------------------------------------------------------------------------------
class RequestOutcome(enum.Enum):
    """What became of a client's request (clause J1)."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """By the coordinator, before it did anything."""
    FAILED = "failed"
    """Its handler raised, which fails the job globally (clause A3)."""
    NOT_A_HANDLER = "not a handler"
    NO_SUCH_OPERATOR = "no such operator"
    RESTARTING = "restarting"
    """The coordinator is about to be made anew; nothing was done."""
    UNREADABLE = "unreadable"
    """Its payload is of no type of the job, damaged or too large; nothing was done."""
    OVER = "over"
    """Its job, its driver or its time is over; whether it was handled, the log tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestArrived:
    """A client asks a coordinator."""

    request_id: int
    """Of this driver's clients; it stands in no record."""
    operator_id: str
    payload_type: str
    payload: bytes


Input = (
    Start
    | Resume
    | Reopen
    | Rollback
    | Redeliver
    | TellRestored
    | StaleAttempt
    | AdvanceCheckpoints
    | Conclude
    | FinishJob
    | StopAsked
    | DriverStops
    | RegisterType
    | TakeSnapshot
    | FailGlobally
    | AttemptRegistered
    | AttemptLost
    | EventArrived
    | EventAckArrived
    | CheckpointAckArrived
    | SplitFinishedArrived
    | SplitSkippedArrived
    | CompletionArrived
    | RequestArrived
    | CheckpointDue
    | CheckpointTimedOut
    | CheckpointReleased
    | CommitSettled
    | WorkDone
)


# --- what a coordinator's code does inside a turn --------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class SendEvent:
    """`gateway.send_event`."""

    operator_id: str
    subtask: int
    attempt_number: int
    payload_type: str
    payload: bytes
    is_loss_tolerant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCheckpoint:
    """`result.complete(state)`: the cut. `state` is None where it is the fold here."""

    operator_id: str
    checkpoint_id: int
    state: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailCheckpoint:
    """`result.fail(cause)`."""

    operator_id: str
    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFact:
    """`context.record(fact)`."""

    operator_id: str
    payload_type: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveCommit:
    """`context.commit(checkpoint_id, intent, committables=…)`."""

    operator_id: str
    checkpoint_id: int
    payload_type: str
    payload: bytes
    covers: str | None = None
    """Places of the committables that the intent covers, as `projections.grants` has them; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Respond:
    """What `handle_coordination_request` returned, or why it did not."""

    request_id: int
    operator_id: str
    cause: int
    """The sequence of the `REQUEST`."""
    outcome: RequestOutcome
    payload_type: str | None = None
    payload: bytes | None = None
    reason: str | None = None


Action = SendEvent | CompleteCheckpoint | FailCheckpoint | RecordFact | GiveCommit | Respond
