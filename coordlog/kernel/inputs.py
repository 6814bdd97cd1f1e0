"""Inputs from outside, each of which begins a turn, and actions of a coordinator's code within a turn."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

from coordlog.messages import AttemptMessage, Register
from coordlog.projections.job.state import UpEvent

__all__ = [
    "Action",
    "AdvanceCheckpoints",
    "Asker",
    "AttemptLost",
    "AttemptRegistered",
    "CheckpointDue",
    "CheckpointReleased",
    "CheckpointTimedOut",
    "CommitSettled",
    "CompleteCheckpoint",
    "Conclude",
    "DriverStops",
    "FailCheckpoint",
    "FailGlobally",
    "FinishJob",
    "FromAttempt",
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
    "StaleAttempt",
    "Start",
    "StopAsked",
    "TakeSnapshot",
    "TellRestored",
    "WorkDone",
]

_NAME_CHARS: Final = 200
"""Longest name of a client that is recorded, in characters."""


# --- clients ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A client as it names itself, for the history. It has the driver's token; nothing else proves these names."""

    user: str
    """Name of its user in the operating system."""
    host: str
    """Name of its machine."""
    pid: int
    """Number of its process there."""
    command: str = ""
    """Name of the command, as in `stop`; empty for a program."""

    def attributes(self) -> dict[str, str]:
        """Attributes of its `REQUEST`; `host`, `pid` and `command` mean the same in `EPOCH_STARTED`."""
        command = {"command": self.command[:_NAME_CHARS]} if self.command else {}
        user, host = self.user[:_NAME_CHARS], self.host[:_NAME_CHARS]
        return {"user": user, "host": host, "pid": str(self.pid), **command}

    def __str__(self) -> str:
        command = f", coordlog {self.command[:_NAME_CHARS]}" if self.command else ""
        user, host = self.user[:_NAME_CHARS], self.host[:_NAME_CHARS]
        return f"{user} on {host} (process {self.pid}{command})"


# --- an epoch ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first turn of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Go on from the folded state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopen:
    """Open a finished job again: every subtask is unfinished, commits stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Go back to a checkpoint, -1 included: a global failover, or a new driver."""

    checkpoint_id: int
    is_failover: bool
    """Whether the reset is within an epoch, and counted by the restart policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redeliver:
    """Deliver the next event of the restored cut's channel state again (D3: exactly once)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRestored:
    """Notify the coordinators of the restored checkpoint's completion again (E6: restore order)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleAttempt:
    """At a resume: an attempt of the former driver is over."""

    subtask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceCheckpoints:
    """Go on with pending checkpoints, one of which may have waited for a subtask that has completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """A new driver of a batch job whose subtasks have all completed continues with its commits, without a reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishJob:
    """End the job: no work is left, or no coordinator will do it."""

    left: str = ""
    """Description of the open work by which the job fails; empty if the job has finished."""
    final: str = ""
    """Reason why a restart cannot help; empty if it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """A request to stop the driver: only recorded."""

    by: str
    with_checkpoint: bool
    is_at_once: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStops:
    """The driver stops after this turn: only recorded."""

    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterType:
    """Register a payload type before a turn that may hold no other record."""

    payload_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """Record the encoded state: a turn of one record, from which a later fold may start."""

    payload_type: str
    payload: bytes
    asked_by: Asker | None = None
    """Client that has requested it, if one did and names itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailGlobally:
    """Fail the job globally: a callback raised, a coordinator called `fail_job`, or Spark aborted the stage."""

    reason: str
    operator_id: str | None = None
    subtask: int | None = None
    event: UpEvent | None = None
    """Event whose handling raised, if any."""
    final: str = ""
    """Reason why a restart cannot help: the job fails at once. Empty if the restart policy decides."""


# --- from attempts ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRegistered:
    """A Spark task of this driver registers as an attempt."""

    connection_id: int
    message: Register
    is_current_run: bool = True
    """Whether its stage run is the newest; a task of an older run is refused."""


class FromAttempt(NamedTuple):
    """A message of a registered attempt; the attempt may be over by now. A tuple: there is one for each event."""

    subtask: int
    attempt_number: int
    message: AttemptMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """An attempt is over: its connection was lost, a call raised, or a lease or an ack timed out."""

    subtask: int
    attempt_number: int
    reason: str
    operator_id: str | None = None
    split_id: str | None = None
    event_id: int | None = None
    is_with_another: bool = False
    """Whether another attempt ended just before by the same cause, which its record has already: an attempt on the same
    machine, or one that was late for the same checkpoint."""
    final: str = ""
    """Reason why a restart cannot help: the job fails at once. Empty if the restart policy decides."""


# --- timers, workers, the log ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDue:
    """A checkpoint is due, by its interval or on request."""

    refused_connections: int = 0
    """Number of connections that the endpoint has refused since the last checkpoint was triggered; only recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTimedOut:
    """A checkpoint was not complete within its timeout."""

    checkpoint_id: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReleased:
    """A checkpoint's completion is in the log: notify the coordinators (H1: notify after release)."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettled:
    """A sink has settled an intent, or failed to."""

    sequence: int
    payload_type: str | None
    payload: bytes | None
    error: str | None
    final: str = ""
    """Reason why a retry cannot help: the job fails at once. Empty if the number of tries decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """A `call_async` has a result, or a timer of a coordinator has fired."""

    operator_id: str
    generation: int
    """Generation of the coordinator; a result for an older generation is only recorded."""
    turn_sequence: int
    """First sequence of the turn that started the work."""
    call_number: int
    is_timer: bool
    payload_type: str | None = None
    payload: bytes | None = None
    error: str | None = None
    is_orphan: bool = False
    """Whether the coordinator that started the work is closed."""


# --- from clients ----------------------------------------------------------------------------------------------------
class RequestOutcome(enum.Enum):
    """Result of a client's request (J1: requests)."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """The coordinator refused it, without a change."""
    FAILED = "failed"
    """The handler raised, which fails the job globally (A3: callback errors)."""
    NOT_A_HANDLER = "not a handler"
    NO_SUCH_OPERATOR = "no such operator"
    RESTARTING = "restarting"
    """A new coordinator is about to be created; the request was not handled."""
    UNREADABLE = "unreadable"
    """The payload is damaged, too large, or of no type of the job; the request was not handled."""
    OVER = "over"
    """The job, the driver or the request's time is over; the log shows whether the request was handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestArrived:
    """A client's request to a coordinator."""

    request_id: int
    """Number of the request among those of this driver's clients; not recorded."""
    operator_id: str
    payload_type: str
    payload: bytes
    asked_by: Asker | None = None
    """The client, or None if it does not name itself, as the driver's own program."""


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
    | FromAttempt
    | AttemptLost
    | RequestArrived
    | CheckpointDue
    | CheckpointTimedOut
    | CheckpointReleased
    | CommitSettled
    | WorkDone
)


# --- actions of a coordinator's code inside a turn -------------------------------------------------------------------
class SendEvent(NamedTuple):
    """`gateway.send_event`. A tuple: there is one for each event."""

    operator_id: str
    subtask: int
    attempt_number: int
    payload_type: str
    payload: bytes
    is_loss_tolerant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCheckpoint:
    """`result.complete(state)`: the cut. `state` is None if it is the folded state at this place."""

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
    """Places of the committables that the intent covers, encoded by `projections.job.grants`; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Respond:
    """Result of `handle_coordination_request`, or the reason why there is none."""

    request_id: int
    operator_id: str
    cause: int
    """Sequence of the `REQUEST`."""
    outcome: RequestOutcome
    payload_type: str | None = None
    payload: bytes | None = None
    reason: str | None = None


Action = SendEvent | CompleteCheckpoint | FailCheckpoint | RecordFact | GiveCommit | Respond
