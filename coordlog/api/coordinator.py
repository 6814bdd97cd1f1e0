"""The coordinator's side of the contract: an author's callbacks, and calls that they may make (clauses A to H, J).

All callbacks but `close` run on one thread, the mailbox, in log order, each in the turn of the record that it handles.
All effects through the context, gateways and results are held until that turn is in the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from coordlog.errors import RequestRefusedError
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.schemas.payload import Payload

__all__ = [
    "Ack",
    "CheckpointResult",
    "CommittableOf",
    "CoordinatorContext",
    "CoordinatorProvider",
    "EventFuture",
    "EventSourcedCoordinator",
    "LostEvents",
    "OperatorCoordinator",
    "Query",
    "Sink",
    "SubtaskGateway",
    "provide",
]

S = TypeVar("S")

Query = Callable[[Any, Payload], Payload]
"""Answers a request from a projection's state; raises RequestRefusedError if it has no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Acknowledgement of an attempt that it has processed an event."""

    event_id: int
    subtask: int
    attempt_number: int


class EventFuture(Protocol):
    """Outcome of one event; resolved on the mailbox, in the turn that decides it (clauses C5, C9: acked or failed)."""

    @property
    def event_id(self) -> int:
        """The event's id in the log."""
        ...

    def done(self) -> bool:
        """Whether the event is acked or failed."""
        ...

    def result(self) -> Ack:
        """The ack. Raises AttemptNotRunningError if the event failed, UnresolvedError before it is decided."""
        ...

    def add_done_callback(self, handler: Callable[[EventFuture], None]) -> None:
        """Call `handler` on the mailbox once the event is decided; at once if it is decided already.

        An exception of `handler` fails the job globally (clause A3: callbacks that raise).
        """
        ...


class SubtaskGateway(Protocol):
    """The way to one execution attempt, always the same one (clause B1: one attempt per gateway). Mailbox only."""

    @property
    def subtask(self) -> int:
        """The subtask's index."""
        ...

    @property
    def attempt_number(self) -> int:
        """Number of the attempt that this gateway leads to."""
        ...

    def send_event(self, event: Payload) -> EventFuture:
        """Append `event`, encoded now, and deliver it once that is in the log and no checkpoint holds the gateway.

        Raises:
            ClosedError: After the coordinator was closed.
            PayloadTypeError: The event's type is not registered with the job.
            TooLargeError: The encoded event is above its limit.
            GatewayFullError: A checkpoint holds the gateway, and it holds its limit of events.
            WrongThreadError: Called outside the mailbox.
        """
        ...


class CheckpointResult(Protocol):
    """A coordinator's part of one checkpoint, to be completed once (clauses F2, F5). Mailbox only."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that this result belongs to."""
        ...

    def complete(self, state: bytes) -> None:
        """Set the cut to this moment: events sent before it belong to the checkpoint, events sent after it wait.

        After the checkpoint's abort this does nothing (clause F6: late completions ignored).
        """
        ...

    def fail(self, cause: BaseException | str) -> None:
        """Abort the checkpoint; the job continues."""
        ...


class Sink(Protocol):
    """Destination that makes committables visible. Its methods run on workers, and two calls may overlap (clause H3).

    The driver calls three more methods, if a sink has them, before anything is appended. Each raises SinkError:
    `refuse_earlier_output(job_id)` if a job that begins has written there before, under a log that is gone;
    `refuse_lost_output(job_id)` if a job has committed there and the destination is new; and
    `claim(job_id, log, former=())` if another log writes there. A sink without them treats such a job as a new one.
    """

    def settle(self, intent: Payload) -> Payload | None:
        """Do the parts of `intent` that are not done yet, and return the outcome. Must be safe to repeat.

        Raises:
            SinkError: It cannot be done; the driver tries again within the restart policy.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittableOf:
    """One committable with its origin."""

    subtask: int
    attempt_number: int
    split_id: str | None
    """The finished split whose rows it holds, in batch."""
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEvents:
    """Events that a local failover to checkpoint n loses (clause D5: lost events named), in log order."""

    to_coordinator: Sequence[Payload]
    """Events that the lost attempt sent after its barrier of n."""
    to_subtask: Sequence[Payload]
    """Events that the coordinator sent to the attempt after the cut of n, held events included."""


class CoordinatorContext(Protocol):
    """Calls that a coordinator may make. Mailbox only, except `fail_job`; after the coordinator's close all raise."""

    @property
    def operator_id(self) -> str:
        """The operator that this coordinator serves."""
        ...

    @property
    def job_id(self) -> str:
        """The job."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch of the driver: each takeover has a higher one."""
        ...

    @property
    def is_batch(self) -> bool:
        """Whether the job runs without checkpoints."""
        ...

    @property
    def is_redelivery(self) -> bool:
        """Whether the event being handled is delivered again by a restore (clause D3)."""
        ...

    @property
    def state(self) -> Any:  # noqa: ANN401, the author's own type: `EventSourcedCoordinator.state` has it
        """The projection as of now, this turn's own records included; None if the provider declares none."""
        ...

    def current_parallelism(self) -> int:
        """Number of subtasks of the operator."""
        ...

    @property
    def finished_subtasks(self) -> frozenset[int]:
        """Subtasks that have completed: unless a reset begins them again, they get no further attempt.

        They may have completed before the operator was added to the job: then they have sent nothing.
        """
        ...

    @property
    def gateways(self) -> Mapping[int, SubtaskGateway]:
        """Gateways of the newest attempts by subtask, in the order in which they became ready; read-only.

        A gateway is listed from its `execution_attempt_ready` until its attempt has failed. A new coordinator object
        begins without gateways (clause B2: ready before anything else).
        """
        ...

    def now_us(self) -> int:
        """The turn's time, microseconds since 1970, UTC: the same on a replay."""
        ...

    def random(self) -> Random:
        """Random numbers seeded by the turn's offset in the log: the same on a replay."""
        ...

    def record(self, fact: Payload) -> None:
        """Append a fact."""
        ...

    def fail_job(self, cause: BaseException | str, *, is_final: bool = False) -> None:
        """Fail the job globally. Any thread; only the first call until the next reset counts (clause A4).

        Args:
            cause: Reason, recorded in the history.
            is_final: Whether another try would fail in the same way: the job then ends as failed at once, without
                the restart policy. The next start continues as after any failure.
        """
        ...

    def call_async(
        self,
        work: Callable[[], Payload],
        handler: Callable[[Payload | None, str | None], None],
    ) -> None:
        """Run `work` on a worker once this turn is in the log; `handler(result, error)` in the turn of its result.

        Each coordinator object has `WORKER_COUNT` workers, 4: further calls wait until one returns.
        """
        ...

    def schedule(self, delay_s: float, handler: Callable[[], None]) -> None:
        """Run `handler` in a turn of its own, `delay_s` seconds (a finite number) after this turn is in the log."""
        ...

    @property
    def is_settling(self) -> bool:
        """Whether an intent of this operator has no outcome yet."""
        ...

    def committables(self, checkpoint_id: int) -> Sequence[CommittableOf]:
        """Committables that a checkpoint grants and no intent covers yet, by subtask; -1: a batch job's end."""
        ...

    def commit(
        self,
        checkpoint_id: int,
        intent: Payload,
        *,
        committables: Sequence[CommittableOf] | None = None,
    ) -> None:
        """Append `COMMIT_INTENT`. Once the record is released the sink settles the intent; its outcome is appended.

        The job does not finish before every committable is covered by an intent. It fails if committables are left and
        no call or timer of this coordinator is open that could still commit them.

        Args:
            checkpoint_id: The checkpoint that grants the committables; -1 at a batch job's end.
            intent: The effect on the outside, for the sink to settle.
            committables: Committables that the intent covers, as `committables(checkpoint_id)` returned them; the
                others stay granted and can be committed later. None: all that `committables(checkpoint_id)` returns.

        Raises:
            NoSinkError: The operator has no sink that could settle the intent.
            UsageError: A member of `committables` is not granted, or an intent covers it already.
        """
        ...

    def lost_events(self, subtask: int) -> LostEvents:
        """Events that the current failover of `subtask` loses. Inside `subtask_reset` only.

        Assignments and requests of a source with coordlog's own projection are left out: the projection undoes them.
        An attempt with more events than the job remembers has no local failover (clause D5: lost events named).
        """
        ...


class OperatorCoordinator(ABC):
    """Object on the driver that serves one operator. Its provider creates one per epoch and per global reset."""

    def __init__(self, context: CoordinatorContext) -> None:
        self.context = context

    def start(self) -> None:
        """Begin; after a possible `reset_to_checkpoint`. At a resume the state is restored already."""

    def close(self) -> None:
        """Free all resources. Runs on a worker, once, for at most `CLOSE_TIMEOUT_S`."""

    @abstractmethod
    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Any) -> None:  # noqa: ANN401, see below
        """An event of a live attempt, or one delivered again by a restore.

        `event` is of one of the provider's event types: annotate it with that type, or a union of them.
        """

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """An attempt has registered; `gateway` leads to it."""

    def execution_attempt_failed(self, subtask: int, attempt_number: int, reason: str) -> None:
        """An attempt has ended; its messages are not handled any more."""

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """The subtask's next attempt begins from `checkpoint_id`, or without state if that is -1."""

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        """Complete `result` with the state, now or in a later callback."""
        result.complete(b"")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint has completed; repeated after a restore. -1 at a batch job's end."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint of which this object got `checkpoint_coordinator` will not complete."""

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Before `start`, at every global failover and rollback; (-1, None) if no checkpoint has completed."""

    def handle_coordination_request(self, request: Payload) -> Payload:
        """Return the response to a client's request. To refuse it, raise RequestRefusedError before any effect."""
        raise RequestRefusedError(f"{type(self).__name__} answers no requests")


class EventSourcedCoordinator(OperatorCoordinator, Generic[S]):
    """A coordinator without hidden state: it reads `self.state`, a projection of the log, and acts through its context.

    Its provider declares the projection. Its part of a checkpoint is its cut: no bytes, and `checkpoint_coordinator`
    is never called. A rollback puts the state back to the cut and a resume folds it again, so that
    `reset_to_checkpoint` has nothing to restore. At `SUBTASK_RESET` the projection undoes the events that a local
    failover to n loses: those that the lost attempt sent have a `last_barrier` of n or more, those that were sent to
    the attempt follow this coordinator's cut of n (clause D5: lost events named). The object may keep the newest
    gateways, and no other state that matters.
    """

    @property
    def state(self) -> S:
        """The projection as of now, this turn's records included. Never change it: no record has the change."""
        state: S = self.context.state
        return state


class CoordinatorProvider(ABC):
    """Factory of an operator's coordinators, with the types of the payloads that they and their attempts exchange."""

    operator_id: str
    """Explicit, stable over the life of the job; never derived from a class or module."""

    version: ClassVar[int] = 1
    """Version of the operator's state; a restore refuses a changed one."""

    payload_types: tuple[type[Payload], ...] = ()
    """Every event, fact, request, response, intent and outcome of this operator."""

    projection: OperatorProjection[Any] | None = None
    """The state of an event-sourced coordinator; None for a coordinator that keeps its own state."""

    sink: Sink | None = None
    """Sink that settles this operator's intents, or None."""

    queries: Mapping[type[Payload], Query] = MappingProxyType({})
    """Read-only requests by type, each with a pure function of the projection's state. The driver answers them once the
    log has that state, without a call of the coordinator, and does not record them."""

    releases_input: bool = False
    """Whether its intents have an effect on the input of committed rows, and write no output."""

    destination: str | None = None
    """Destination of the commits as recorded in the log, without credentials; None if destinations are not compared."""

    @abstractmethod
    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        """A new object; called once per epoch and once more per global reset."""


def provide(
    create: Callable[[CoordinatorContext], OperatorCoordinator],
    *,
    operator_id: str,
    payload_types: Sequence[type[Payload]],
    projection: OperatorProjection[Any] | None = None,
    sink: Sink | None = None,
) -> CoordinatorProvider:
    """A provider that calls `create` for each new coordinator; its attributes have the values of the other arguments.

    The other attributes of `CoordinatorProvider`, such as `version` and `queries`, need a class.
    """
    return _Provided(create, operator_id, tuple(payload_types), projection, sink)


class _Provided(CoordinatorProvider):
    def __init__(
        self,
        create: Callable[[CoordinatorContext], OperatorCoordinator],
        operator_id: str,
        payload_types: tuple[type[Payload], ...],
        projection: OperatorProjection[Any] | None,
        sink: Sink | None,
    ) -> None:
        self._create, self.operator_id, self.payload_types = create, operator_id, payload_types
        self.projection, self.sink = projection, sink

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        return self._create(context)
