"""Objects in the hands of a coordinator: its context, gateways, results of checkpoints, and futures.

All of them are used on the mailbox, inside a call, but `fail_job`. Each action becomes an action of the turn at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any, Protocol

from coordlog.api.coordinator import (
    Ack,
    CheckpointResult,
    CommittableOf,
    CoordinatorContext,
    CoordinatorProvider,
    EventFuture,
    LostEvents,
    OperatorCoordinator,
    SubtaskGateway,
)
from coordlog.causes import encodable, text_of
from coordlog.errors import (
    AttemptNotRunningError,
    ClosedError,
    GatewayFullError,
    NoSinkError,
    TooLargeError,
    UnresolvedError,
    UsageError,
    WrongThreadError,
)
from coordlog.kernel.inputs import (
    Action,
    CompleteCheckpoint,
    FailCheckpoint,
    GiveCommit,
    RecordFact,
    SendEvent,
)
from coordlog.kernel.outputs import CallFuture, CallSubtaskReset
from coordlog.limits import COVERS_CHARS_MAX, PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from coordlog.payloads.offload import DriverPayloads
from coordlog.projections.job.branches import is_on_the_way
from coordlog.projections.job.grants import covering, granted_to
from coordlog.projections.job.state import JobState, sorted_values
from coordlog.runtime.timers import check_delay
from coordlog.schemas.payload import Payload, PayloadType, PayloadTypes
from coordlog.schemas.payload_address import inline

__all__ = ["HostPort", "Slot", "TurnPort"]


class TurnPort(Protocol):
    """The turn, as far as the host needs it."""

    @property
    def state(self) -> JobState:
        """The present job state."""
        ...

    @property
    def now_us(self) -> int:
        """Time of the turn, microseconds since 1970, UTC."""
        ...

    @property
    def turn_sequence(self) -> int:
        """Sequence of the first record of the turn."""
        ...

    def act(self, action: Action) -> None:
        """Carry out an action within the turn."""
        ...

    def next_call_number(self) -> int:
        """Next number of a call or timer in the turn; 0 first."""
        ...

    def start_work(
        self, operator_id: str, generation: int, call_number: int, work: Callable[[], Payload]
    ) -> None:
        """Run `work` on a worker after release."""
        ...

    def start_timer(
        self, operator_id: str, generation: int, call_number: int, delay_s: float
    ) -> None:
        """Start a timer that fires once, `delay_s` after release."""
        ...

    def fail_job(
        self, operator_id: str, reason: str, *, generation: int | None = None, final: str = ""
    ) -> None:
        """Fail the job globally; any thread."""
        ...

    def close_coordinator(self, coordinator: OperatorCoordinator | None, generation: int) -> None:
        """Call `close` on a worker, unless the object was never made, and begin no further call of it."""
        ...


class HostPort(Protocol):
    """The host, as far as the objects in the hands of coordinators need it."""

    turn: TurnPort
    types: PayloadTypes
    payloads: DriverPayloads
    held_events_max: int
    is_redelivery: bool
    """Whether the event that is handled now has been handled before."""
    resetting: CallSubtaskReset | None
    """The running call of `subtask_reset`, if any."""

    def check_inside(self, what: str) -> None:
        """Raise WrongThreadError unless a callback runs on this thread."""
        ...


class _Future:
    """See `EventFuture`."""

    def __init__(self, host: HostPort, event_id: int) -> None:
        self._host, self._event_id = host, event_id
        self._ack: Ack | None = None
        self._error: AttemptNotRunningError | None = None
        self._handlers: list[Callable[[EventFuture], None]] = []

    @property
    def event_id(self) -> int:
        return self._event_id

    def done(self) -> bool:
        return self._ack is not None or self._error is not None

    def result(self) -> Ack:
        if self._error is not None:
            raise self._error
        if self._ack is None:
            raise UnresolvedError(f"event {self._event_id}")
        return self._ack

    def add_done_callback(self, handler: Callable[[EventFuture], None]) -> None:
        self._host.check_inside("add_done_callback")
        if self.done():
            handler(self)
        else:
            self._handlers.append(handler)

    def resolve(self, ack: Ack | None, error: AttemptNotRunningError | None) -> None:
        self._ack, self._error = ack, error
        handlers, self._handlers = self._handlers, []
        for handler in handlers:
            handler(self)


class _Gateway:
    """See `SubtaskGateway`."""

    def __init__(self, slot: Slot, subtask: int, attempt_number: int) -> None:
        self._slot, self._subtask, self._attempt_number = slot, subtask, attempt_number

    @property
    def subtask(self) -> int:
        return self._subtask

    @property
    def attempt_number(self) -> int:
        return self._attempt_number

    def send_event(self, event: Payload) -> EventFuture:
        slot = self._slot
        slot.check("gateway.send_event")
        declared, encoded = slot.encode(event)
        gateway = slot.host.turn.state.gateways.get((slot.provider.operator_id, self._subtask))
        if gateway is not None and gateway.closed_by:
            held = len(gateway.held)
            limit = slot.host.held_events_max
            if held >= limit:
                raise GatewayFullError(self._subtask, gateway.closed_by[0], held, limit)
        future = _Future(slot.host, slot.host.turn.state.next_event_id)
        slot.futures[future.event_id] = future
        slot.host.turn.act(
            SendEvent(
                operator_id=slot.provider.operator_id,
                subtask=self._subtask,
                attempt_number=self._attempt_number,
                payload_type=declared.key,
                payload=encoded,
                is_loss_tolerant=declared.loss_tolerant,
            )
        )
        return future


class _Result:
    """See `CheckpointResult`."""

    def __init__(self, slot: Slot, checkpoint_id: int) -> None:
        self._slot, self._checkpoint_id, self._is_done = slot, checkpoint_id, False

    @property
    def checkpoint_id(self) -> int:
        return self._checkpoint_id

    def complete(self, state: bytes) -> None:
        self._slot.check("result.complete")
        if not isinstance(state, bytes):
            self.fail(f"its result is {type(state).__name__}, not bytes")
            return
        if self._is_done:
            return
        self._slot.check_is_restored(state)
        sealed = self._slot.host.payloads.seal(
            "the result of a checkpoint", None, state, inline_max=RECORD_BYTES_MAX
        )
        self._is_done = True
        self._slot.host.turn.act(
            CompleteCheckpoint(
                operator_id=self._slot.provider.operator_id,
                checkpoint_id=self._checkpoint_id,
                state=sealed,
            )
        )

    def fail(self, cause: BaseException | str) -> None:
        self._slot.check("result.fail")
        if self._is_done:
            return
        self._is_done = True
        self._slot.host.turn.act(
            FailCheckpoint(
                operator_id=self._slot.provider.operator_id,
                checkpoint_id=self._checkpoint_id,
                reason=str(cause),
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Shown:
    """State of a projection as a callback has read it."""

    next_sequence: int
    state: object
    copy: object


@dataclass(slots=True, eq=False)
class Slot:
    """A coordinator object with its handlers and gateways. A new object gets a new slot (clause A1: after a reset)."""

    host: HostPort
    provider: CoordinatorProvider
    generation: int
    coordinator: OperatorCoordinator | None = None
    is_closed: bool = False
    futures: dict[int, _Future] = field(default_factory=dict)
    results: dict[int, _Result] = field(default_factory=dict)
    handlers: dict[tuple[int, int], Callable[..., None]] = field(default_factory=dict)
    gateways: dict[int, SubtaskGateway] = field(default_factory=dict)
    """Gateways of the ready attempts, by subtask."""
    shown: _Shown | None = None
    """State that the running call has read last, if the code could change it in place."""

    def read_state(self) -> object:
        """The projection's state, for the coordinator's code: a copy, if the code could change it in place."""
        projection, now = self.provider.projection, self.host.turn.state
        if self.shown is not None and self.shown.next_sequence == now.next_sequence:
            return self.shown.copy
        state = now.projections.get(self.provider.operator_id)
        if projection is None:
            return state
        copy = projection.apart(state)
        if copy is not state:
            self.shown = _Shown(now.next_sequence, state, copy)
        return copy

    def check_state(self) -> None:
        """Raise UsageError if the coordinator has changed its state in place: no record would have the change."""
        shown, projection = self.shown, self.provider.projection
        codec = None if projection is None else projection.own_codec
        if shown is None or codec is None or shown.copy == shown.state:
            return
        if shown.next_sequence != self.host.turn.state.next_sequence:
            return  # `apply` may have changed the original in place
        try:
            is_changed = codec.encode(shown.copy) != codec.encode(shown.state)
        except (TypeError, ValueError):
            is_changed = True
        if is_changed:
            raise UsageError(
                f"the coordinator of operator {self.provider.operator_id!r} has changed its state in place, and no "
                "record has the change: record a fact, and change the state in the projection's `apply`"
            )

    def check_is_restored(self, state: bytes) -> None:
        """Raise UsageError if the coordinator completes a checkpoint with a state that it would not read."""
        assert self.coordinator is not None, "it has got the checkpoint's result"
        own = type(self.coordinator).reset_to_checkpoint
        if state and own is OperatorCoordinator.reset_to_checkpoint:
            raise UsageError(
                f"{type(self.coordinator).__name__} completes a checkpoint with a state and has no "
                "`reset_to_checkpoint`, which gets it after a failure: restore the state there"
            )

    def context(self) -> CoordinatorContext:
        """Context of the coordinator object."""
        return _Context(self)

    def add_gateway(self, subtask: int, attempt_number: int) -> SubtaskGateway:
        """Gateway of an attempt that is ready."""
        self.gateways[subtask] = _Gateway(self, subtask, attempt_number)
        return self.gateways[subtask]

    def add_result(self, checkpoint_id: int) -> CheckpointResult:
        """Result of a checkpoint that begins."""
        result = _Result(self, checkpoint_id)
        self.results = {checkpoint_id: result, **self.results}
        return result

    def resolve(self, call: CallFuture) -> None:
        """Resolve the future of an event, if it is still known, and call its handlers."""
        future = self.futures.pop(call.event_id, None)
        if future is None:
            return
        if call.reason is None:
            ack = Ack(
                event_id=call.event_id,
                subtask=call.subtask,
                attempt_number=call.attempt_number,
            )
            future.resolve(ack, None)
        else:
            error = AttemptNotRunningError(call.subtask, call.attempt_number, call.reason)
            future.resolve(None, error)

    def check(self, what: str) -> None:
        """Raise ClosedError or WrongThreadError unless the coordinator's code may act now."""
        if self.is_closed:
            raise ClosedError(f"the coordinator of operator {self.provider.operator_id!r}")
        self.host.check_inside(what)

    def encode(self, value: Payload) -> tuple[PayloadType, bytes]:
        """Type and bytes of a payload; a large one is in the payload store, and the bytes are its address."""
        self.check_state()
        declared = self.host.types.of(value)
        encoded = declared.encode(value)
        return declared, self.host.payloads.seal(f"a {declared.key}", declared.key, encoded)

    def encode_answer(self, value: Payload) -> tuple[PayloadType, bytes]:
        """Encode as `encode`, for a client, which has no payload store."""
        declared = self.host.types.of(value)
        encoded = declared.encode(value)
        if len(encoded) > PAYLOAD_BYTES_MAX:
            raise TooLargeError(f"a {declared.key}", len(encoded), PAYLOAD_BYTES_MAX)
        return declared, inline(encoded)


class _Context:
    """See `CoordinatorContext`."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    @property
    def operator_id(self) -> str:
        return self._slot.provider.operator_id

    @property
    def job_id(self) -> str:
        return self._slot.host.turn.state.job_id

    @property
    def epoch(self) -> int:
        return self._slot.host.turn.state.epoch

    @property
    def is_batch(self) -> bool:
        return self._slot.host.turn.state.is_batch

    @property
    def is_redelivery(self) -> bool:
        self._slot.check("context.is_redelivery")
        return self._slot.host.is_redelivery

    @property
    def state(self) -> Any:  # noqa: ANN401, see the protocol
        self._slot.check("context.state")
        return self._slot.read_state()

    def current_parallelism(self) -> int:
        self._slot.check("context.current_parallelism")
        return self._slot.host.turn.state.parallelism

    @property
    def finished_subtasks(self) -> frozenset[int]:
        self._slot.check("context.finished_subtasks")
        subtasks = self._slot.host.turn.state.subtasks
        return frozenset(
            number for number, subtask in subtasks.items() if subtask.completion is not None
        )

    @property
    def gateways(self) -> Mapping[int, SubtaskGateway]:
        self._slot.check("context.gateways")
        return MappingProxyType(self._slot.gateways)

    def now_us(self) -> int:
        self._slot.check("context.now_us")
        return self._slot.host.turn.now_us

    def random(self) -> Random:
        self._slot.check("context.random")
        turn = self._slot.host.turn
        return Random(f"{turn.state.job_id}/{turn.state.next_sequence}")  # noqa: S311, replayable on purpose

    def record(self, fact: Payload) -> None:
        self._slot.check("context.record")
        declared, encoded = self._slot.encode(fact)
        self._slot.host.turn.act(
            RecordFact(operator_id=self.operator_id, payload_type=declared.key, payload=encoded)
        )

    def fail_job(self, cause: BaseException | str, *, is_final: bool = False) -> None:
        if self._slot.is_closed:
            raise ClosedError(f"the coordinator of operator {self.operator_id!r}")
        self._slot.host.turn.fail_job(
            self.operator_id,
            _reason_of(cause),
            generation=self._slot.generation,
            final="it would fail again" if is_final else "",
        )

    def call_async(
        self,
        work: Callable[[], Payload],
        handler: Callable[[Payload | None, str | None], None],
    ) -> None:
        self._slot.check("context.call_async")
        turn = self._slot.host.turn
        number = turn.next_call_number()
        self._slot.handlers[turn.turn_sequence, number] = handler
        turn.start_work(self.operator_id, self._slot.generation, number, work)

    def schedule(self, delay_s: float, handler: Callable[[], None]) -> None:
        self._slot.check("context.schedule")
        check_delay(delay_s)
        turn = self._slot.host.turn
        number = turn.next_call_number()
        self._slot.handlers[turn.turn_sequence, number] = lambda _result, _error: handler()
        turn.start_timer(self.operator_id, self._slot.generation, number, delay_s)

    @property
    def is_settling(self) -> bool:
        self._slot.check("context.is_settling")
        intents = sorted_values(self._slot.host.turn.state.intents)
        return any(intent.operator_id == self.operator_id for intent in intents)

    def committables(self, checkpoint_id: int) -> Sequence[CommittableOf]:
        self._slot.check("context.committables")
        # A completion subsumes older ones, of which this coordinator may not have been notified (clause H1).
        grants = self._granted(checkpoint_id)
        return sorted((grant for _, grant in grants), key=lambda grant: grant.subtask)

    def _granted(self, checkpoint_id: int) -> Iterator[tuple[tuple[int, int], CommittableOf]]:
        state = self._slot.host.turn.state
        for place, grant in granted_to(state, self.operator_id, checkpoint_id):
            yield (
                place,
                CommittableOf(
                    subtask=grant.subtask,
                    attempt_number=grant.attempt_number,
                    split_id=grant.split_id,
                    content=grant.content,
                ),
            )

    def commit(
        self,
        checkpoint_id: int,
        intent: Payload,
        *,
        committables: Sequence[CommittableOf] | None = None,
    ) -> None:
        self._slot.check("context.commit")
        if self._slot.provider.sink is None:
            raise NoSinkError(self.operator_id)
        self._check_completed(checkpoint_id)
        covers = None if committables is None else self._covers(checkpoint_id, committables)
        declared, encoded = self._slot.encode(intent)
        self._slot.host.turn.act(
            GiveCommit(
                operator_id=self.operator_id,
                checkpoint_id=checkpoint_id,
                payload_type=declared.key,
                payload=encoded,
                covers=covers,
            )
        )

    def _check_completed(self, checkpoint_id: int) -> None:
        """Refuse an intent of a checkpoint that this branch has not completed: no restore could go below it."""
        state = self._slot.host.turn.state
        last = state.last_checkpoint
        if not is_on_the_way(state, checkpoint_id, last):
            raise UsageError(
                f"operator {self.operator_id!r} commits an intent of checkpoint {checkpoint_id}, which has not "
                f"completed on this branch, whose last one is {last}: commit it once "
                "`notify_checkpoint_complete` is called, with that call's `checkpoint_id`"
            )

    def _covers(self, checkpoint_id: int, committables: Sequence[CommittableOf]) -> str:
        """Places of committables, as text; of equal ones the first places."""
        wanted = Counter(committables)
        count = len(committables)
        places = []
        for place, grant in self._granted(checkpoint_id) if count else ():
            if wanted[grant]:
                wanted[grant] -= 1
                places.append(place)
                if len(places) == count:
                    break
        if len(places) < count:
            missing = next(committable for committable in committables if wanted[committable])
            raise UsageError(
                f"an intent of operator {self.operator_id!r} names {count - len(places)} committables "
                f"that checkpoint {checkpoint_id} does not allow or that an intent covers already, "
                f"the first of subtask {missing.subtask}, attempt {missing.attempt_number}: "
                f"{missing.content[:80]!r}; take them from `context.committables({checkpoint_id})`"
            )
        covers = covering(places)
        if len(covers) > COVERS_CHARS_MAX:
            raise TooLargeError(
                f"the list of the {count} committables that an intent of operator "
                f"{self.operator_id!r} covers",
                len(covers),
                COVERS_CHARS_MAX,
                "name committables that follow each other in `context.committables`",
            )
        return covers

    def lost_events(self, subtask: int) -> LostEvents:
        self._slot.check("context.lost_events")
        call = self._slot.host.resetting
        if call is None or call.subtask != subtask:
            raise WrongThreadError("context.lost_events", "outside subtask_reset")
        types = self._slot.host.types
        return LostEvents(
            to_coordinator=[
                types.decode(event.payload_type, event.payload) for event in call.lost_up
            ],
            to_subtask=[
                types.decode(event.payload_type, event.payload) for event in call.lost_down
            ],
        )


def _reason_of(cause: BaseException | str) -> str:
    return encodable(cause if isinstance(cause, str) else text_of(cause))
