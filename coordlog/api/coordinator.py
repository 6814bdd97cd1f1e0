"""The coordinator's side of the contract: what an author writes, and what its code may call (clauses A to H, J).

All callbacks but `close` run on one thread, the mailbox, in log order, each in the turn of the record that it answers.
Whatever they do through the context, gateways and results is held until that turn is in the log.
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
    "Look",
    "LostEvents",
    "OperatorCoordinator",
    "Sink",
    "SubtaskGateway",
]

S = TypeVar("S")

Look = Callable[[Any, Payload], Payload]
"""Answers a request from a projection's state; raises RequestRefusedError where it has no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """An attempt's word that it has processed an event."""

    event_id: int
    subtask: int
    attempt_number: int


class EventFuture(Protocol):
    """What becomes of one event; resolved on the mailbox, in the turn that decides it (clauses C5, C9)."""

    @property
    def event_id(self) -> int:
        """The event's id in the log."""
        ...

    def done(self) -> bool:
        """Whether the event is acked or failed."""
        ...

    def result(self) -> Ack:
        """The ack. Raises AttemptNotRunningError where the event failed, UnresolvedError before it is decided."""
        ...

    def add_done_callback(self, handler: Callable[[EventFuture], None]) -> None:
        """Call `handler` on the mailbox once decided; at once where it is. What it raises falls under A3."""
        ...


class SubtaskGateway(Protocol):
    """The way to one execution attempt, and to no other, for life (clause B1). Mailbox only."""

    @property
    def subtask(self) -> int:
        """The subtask's index."""
        ...

    @property
    def attempt_number(self) -> int:
        """The one attempt that this leads to."""
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
        """The checkpoint that asks."""
        ...

    def complete(self, state: bytes) -> None:
        """This moment is the cut: what was sent before belongs to the checkpoint, what is sent after waits.

        After the checkpoint's abort this does nothing (clause F6).
        """
        ...

    def fail(self, cause: BaseException | str) -> None:
        """Abort the checkpoint; the job goes on."""
        ...


class Sink(Protocol):
    """Where committables become visible. Its methods run on workers, and may be called twice at once (clause H3).

    Two more are called where a sink has them, by the driver before anything is appended; each raises SinkError:
    `refuse_earlier_output(job_id)` where a job that begins has written there before, under a log that is gone; and
    `claim(job_id, log, former=())` where another log writes there. A sink without them takes such a job for a new one.
    """

    def settle(self, intent: Payload) -> Payload | None:
        """Look what of `intent` is done outside, do what is missing, and return the outcome; safe to do again.

        Raises:
            SinkError: It cannot be done; it is tried again within the restart policy.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittableOf:
    """One committable with where it comes from."""

    subtask: int
    attempt_number: int
    split_id: str | None
    """The finished split whose rows it holds, in batch."""
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEvents:
    """What a local failover to checkpoint n loses (clause D5), each list in log order."""

    to_coordinator: Sequence[Payload]
    """What the lost attempt had sent after its barrier of n."""
    to_subtask: Sequence[Payload]
    """What it had been sent after the cut of n, held events included."""


class CoordinatorContext(Protocol):
    """What a coordinator may call. Mailbox only, `fail_job` apart; after the coordinator's close every call raises."""

    @property
    def operator_id(self) -> str:
        """The operator that this coordinator serves."""
        ...

    @property
    def job_id(self) -> str:
        """The job."""
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
        """The projection as of now, this turn's own records included; None where none is declared."""
        ...

    def current_parallelism(self) -> int:
        """How many subtasks the operator has."""
        ...

    def now_us(self) -> int:
        """The turn's time, microseconds since 1970, UTC: the same on a replay."""
        ...

    def random(self) -> Random:
        """Chance seeded by the turn's place in the log: the same on a replay."""
        ...

    def record(self, fact: Payload) -> None:
        """Append a fact."""
        ...

    def fail_job(self, cause: BaseException | str, *, is_final: bool = False) -> None:
        """Fail the job globally. Any thread; only the first call until the next reset counts (clause A4).

        Args:
            cause: Why; it is in the history.
            is_final: Trying again would find the same: the job ends as failed at once, and the
                restart policy is not asked. The next start goes on as after any failure.
        """
        ...

    def call_async(
        self,
        work: Callable[[], Payload],
        handler: Callable[[Payload | None, str | None], None],
    ) -> None:
        """Run `work` on a worker once this turn is in the log; `handler(result, error)` in the turn of its result."""
        ...

    def schedule(self, delay_s: float, handler: Callable[[], None]) -> None:
        """Run `handler` in a turn of its own, `delay_s` seconds after this turn is in the log."""
        ...

    def committables(self, checkpoint_id: int) -> Sequence[CommittableOf]:
        """The committables that a checkpoint allows and no intent covers yet, by subtask; -1: a batch job's end."""
        ...

    def commit(
        self,
        checkpoint_id: int,
        intent: Payload,
        *,
        committables: Sequence[CommittableOf] | None = None,
    ) -> None:
        """Append `COMMIT_INTENT`; once released the operator's sink settles it; its outcome is appended.

        The job does not finish before every committable is covered by an intent, and fails if neither a call nor a
        timer of this coordinator is open that could still give one.

        Args:
            checkpoint_id: The checkpoint that allows it; -1 at a batch job's end.
            intent: The effect on the outside, as the sink is to settle it.
            committables: Those that the intent covers, as `committables(checkpoint_id)` returned them; the others stay
                granted and can be committed later. None: all that `committables(checkpoint_id)` returns now.

        Raises:
            NoSinkError: The operator has no sink, so that nothing would settle the intent.
            UsageError: One of `committables` is not granted, or an intent covers it already.
        """
        ...

    def lost_events(self, subtask: int) -> LostEvents:
        """What the failover being told loses. Inside `subtask_reset` only.

        Without the assignments and requests of a source with coordlog's own projection, which takes them back itself.
        An attempt with more events than the job remembers has no local failover (clause D5).
        """
        ...


class OperatorCoordinator(ABC):
    """The object on the driver that serves one operator. Made by its provider, once per epoch and per global reset."""

    def start(self) -> None:
        """Begin; after a possible `reset_to_checkpoint`. At a resume the state is there already."""

    def close(self) -> None:
        """Free what is held. Runs on a worker, once; nobody waits for it."""

    @abstractmethod
    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """An event of a live attempt, or one delivered again by a restore."""

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """An attempt has registered; `gateway` leads to it."""

    def execution_attempt_failed(self, subtask: int, attempt_number: int, reason: str) -> None:
        """An attempt is over; nothing that it sends is handled any more."""

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """The subtask's next attempt begins from `checkpoint_id`, or from nothing at -1."""

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        """Complete `result` with the state, now or in a later callback."""
        result.complete(b"")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint has completed, or is told again after a restore. -1 at a batch job's end."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint that this object was asked for will not complete."""

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Before `start`, at every global failover and rollback; (-1, None) where nothing has completed."""

    def handle_coordination_request(self, request: Payload) -> Payload:
        """Answer a client's request, at once; to refuse it, raise RequestRefusedError before anything is done."""
        raise RequestRefusedError(f"{type(self).__name__} answers no requests")


class EventSourcedCoordinator(OperatorCoordinator, Generic[S]):
    """A coordinator without hidden state: it reads `self.state`, a projection of the log, and acts through its context.

    Its provider declares the projection. Its part of a checkpoint is its cut: no bytes, and `checkpoint_coordinator`
    is never called. A rollback puts the state back to the cut and a resume folds it again, so that
    `reset_to_checkpoint` has nothing to restore. What a local failover to n loses the projection undoes, at
    `SUBTASK_RESET`: what the lost attempt had sent has a `last_barrier` of n or more, what it had been sent stands
    after this coordinator's cut of n (clause D5). It may keep the newest gateways, and nothing else that matters.
    """

    def __init__(self, context: CoordinatorContext) -> None:
        self.context = context

    @property
    def state(self) -> S:
        """The projection as of now, this turn's own records included."""
        state: S = self.context.state
        return state


class CoordinatorProvider(ABC):
    """Makes an operator's coordinators, and says what they and their attempts exchange."""

    operator_id: str
    """Explicit, stable over the life of the job; never derived from a class or module."""

    version: ClassVar[int] = 1
    """Of the operator's state; a change is refused by a restore."""

    payload_types: tuple[type[Payload], ...] = ()
    """Every event, fact, request, response, intent and outcome of this operator."""

    projection: OperatorProjection[Any] | None = None
    """The state of an event-sourced coordinator; None for one that keeps its own."""

    sink: Sink | None = None
    """What settles this operator's intents."""

    looks: Mapping[type[Payload], Look] = MappingProxyType({})
    """Requests that change nothing, by type: each with a pure function of the projection's state. They are answered
    once the log has that state, without a call of the coordinator, and are not recorded."""

    destination: str | None = None
    """Where it commits to, as the log is to have it: no credentials. None: one place cannot be told from another."""

    @abstractmethod
    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        """A new object; called once per epoch and once more per global reset."""
