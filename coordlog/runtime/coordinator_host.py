"""Coordinators of a driver, and the kernel's calls into their code.

Everything here runs on the mailbox, inside a turn. Each action of the code becomes an action of that turn at once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import Any, Protocol, assert_never

from coordlog.api.coordinator import (
    Ack,
    CommittableOf,
    CoordinatorProvider,
    EventFuture,
    EventSourcedCoordinator,
    LostEvents,
    OperatorCoordinator,
    SubtaskGateway,
)
from coordlog.causes import encodable, final_of, text_of
from coordlog.errors import (
    AttemptNotRunningError,
    ClosedError,
    GatewayFullError,
    NoSinkError,
    PayloadTypeError,
    RecordError,
    RequestRefusedError,
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
    RequestOutcome,
    Respond,
    SendEvent,
)
from coordlog.kernel.outputs import (
    Call,
    CallAborted,
    CallAttemptFailed,
    CallAttemptReady,
    CallCheckpoint,
    CallComplete,
    CallCreate,
    CallEvent,
    CallFuture,
    CallHandler,
    CallRequest,
    CallReset,
    CallStart,
    CallSubtaskReset,
)
from coordlog.limits import (
    COVERS_CHARS_MAX,
    HELD_EVENTS_PER_GATEWAY_MAX,
    PAYLOAD_BYTES_MAX,
    RECORD_BYTES_MAX,
)
from coordlog.log.local.fork_guard import ForkGuard
from coordlog.payloads.offload import DriverPayloads
from coordlog.projections.job.branches import is_on_the_way
from coordlog.projections.job.grants import covering, granted_to
from coordlog.projections.job.state import JobState, UpEvent, sorted_values
from coordlog.runtime.timers import check_delay
from coordlog.schemas.payload import Payload, PayloadType, PayloadTypes
from coordlog.schemas.payload_address import inline

__all__ = ["CallFailure", "CoordinatorHost", "TurnPort"]


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

    def close_coordinator(self, coordinator: OperatorCoordinator) -> None:
        """Call `close` on a worker."""
        ...


class CallFailure(Exception):  # noqa: N818, it is a carrier between two layers of the mailbox, never seen outside
    """Error of a callback, with the callback's name."""

    def __init__(
        self,
        operator_id: str,
        callback: str | None,
        subtask: int | None,
        cause: BaseException,
        event: UpEvent | None = None,
        final: str = "",
    ) -> None:
        super().__init__(operator_id, callback, subtask, cause)
        self.operator_id = operator_id
        self.callback = callback
        """Name of the callback that raised, or None if the coordinator called `fail_job`."""
        self.subtask, self.cause = subtask, cause
        self.event = event
        """Event whose handling raised, if any."""
        self.final = final
        """Reason why a retry cannot help; empty if it may."""


class _Future:
    """See `EventFuture`."""

    def __init__(self, host: CoordinatorHost, event_id: int) -> None:
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

    def __init__(self, slot: _Slot, subtask: int, attempt_number: int) -> None:
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

    def __init__(self, slot: _Slot, checkpoint_id: int) -> None:
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


@dataclass(slots=True, eq=False)
class _Slot:
    """A coordinator object with its handlers and gateways. A new object gets a new slot (clause A1: after a reset)."""

    host: CoordinatorHost
    provider: CoordinatorProvider
    generation: int
    coordinator: OperatorCoordinator | None = None
    is_closed: bool = False
    futures: dict[int, _Future] = field(default_factory=dict)
    results: dict[int, _Result] = field(default_factory=dict)
    handlers: dict[tuple[int, int], Callable[..., None]] = field(default_factory=dict)
    gateways: dict[int, SubtaskGateway] = field(default_factory=dict)
    """Gateways of the ready attempts, by subtask."""

    def check(self, what: str) -> None:
        if self.is_closed:
            raise ClosedError(f"the coordinator of operator {self.provider.operator_id!r}")
        self.host.check_inside(what)

    def encode(self, value: Payload) -> tuple[PayloadType, bytes]:
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

    def __init__(self, slot: _Slot) -> None:
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
        return self._slot.host.turn.state.projections.get(self.operator_id)

    def current_parallelism(self) -> int:
        self._slot.check("context.current_parallelism")
        return self._slot.host.turn.state.parallelism

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


class CoordinatorHost:
    """All coordinators of a driver. Mailbox only."""

    def __init__(
        self,
        providers: Sequence[CoordinatorProvider],
        types: PayloadTypes,
        turn: TurnPort,
        *,
        held_events_max: int = HELD_EVENTS_PER_GATEWAY_MAX,
        payloads: DriverPayloads | None = None,
    ) -> None:
        self.types, self.turn = types, turn
        self.payloads = payloads or DriverPayloads()
        self.held_events_max = held_events_max
        self.is_redelivery = False
        self.resetting: CallSubtaskReset | None = None
        self._providers = {provider.operator_id: provider for provider in providers}
        self._slots: dict[str, _Slot] = {}
        self._generations = 0
        self._inside: int | None = None
        self._calling: tuple[Call, str] | None = None
        self.arriving: tuple[str, bytes, Payload] | None = None
        """Type, bytes and payload of the event that arrives now, which was read before its turn; for one call."""
        self.call_count = 0
        self._fork_guard = ForkGuard()

    @property
    def calling(self) -> str | None:
        """The running callback in words, for the watchdog's message, or None; any thread."""
        calling = self._calling
        if calling is None:
            return None
        callback, subtask = _describe(calling[0])
        about = "" if subtask is None else f" for subtask {subtask}"
        return f"{callback} of operator {calling[1]!r}{about}"

    def check_inside(self, what: str) -> None:
        """Raise WrongThreadError unless a callback runs on this thread."""
        current = threading.current_thread()
        if self._inside != current.ident:
            raise WrongThreadError(what, current.name)

    def _payload_of(self, event: UpEvent) -> Payload:
        read, self.arriving = self.arriving, None
        if read is not None and read[0] == event.payload_type and read[1] is event.payload:
            return read[2]
        return self.types.decode(event.payload_type, event.payload)

    def generation(self, operator_id: str) -> int:
        """Generation of the operator's present coordinator object, or -1 if there is none."""
        slot = self._slots.get(operator_id)
        return -1 if slot is None or slot.is_closed else slot.generation

    def open_work(self) -> dict[str, int]:
        """Number of calls and timers with an open handler, by operator; operators without any are left out."""
        return {
            operator_id: len(slot.handlers)
            for operator_id, slot in self._slots.items()
            if slot.handlers and not slot.is_closed
        }

    def forget(self, turn_sequence: int) -> None:
        """Drop the calls and timers of a turn that failed: none of them is started."""
        for slot in self._slots.values():
            for key in [handler for handler in slot.handlers if handler[0] == turn_sequence]:
                del slot.handlers[key]

    def make(self, call: Call) -> None:
        """Make one call.

        Raises:
            CallFailure: The callback raised.
        """
        operator_id = call.event.operator_id if isinstance(call, CallEvent) else call.operator_id
        self._inside = threading.get_ident()
        self.call_count += 1
        self._calling = call, operator_id
        try:
            self._make(call, operator_id)
        except (CallFailure, RecordError):
            raise  # RecordError: the fold failed, which is not the fault of a callback
        except BaseException as error:
            self._fork_guard.end_copy()
            callback, subtask = _describe(call)
            event = call.event if isinstance(call, CallEvent) else None
            final = final_of(error)
            raise CallFailure(operator_id, callback, subtask, error, event, final) from error
        finally:
            self._fork_guard.end_copy()
            self._inside, self._calling = None, None
            self.is_redelivery, self.resetting = False, None

    def close_all(self) -> None:
        """Close every coordinator, on workers (clause A2)."""
        for operator_id in sorted(self._slots):
            self._close(self._slots[operator_id])

    def _close(self, slot: _Slot) -> None:
        if slot.is_closed:
            return
        slot.is_closed = True
        if slot.coordinator is not None:
            self.turn.close_coordinator(slot.coordinator)

    def _create(self, operator_id: str) -> None:
        old = self._slots.get(operator_id)
        if old is not None:
            self._close(old)
        self._generations += 1
        slot = _Slot(self, self._providers[operator_id], self._generations)
        self._slots[operator_id] = slot
        slot.coordinator = slot.provider.create(_Context(slot))
        if isinstance(slot.coordinator, EventSourcedCoordinator) and not slot.provider.projection:
            raise UsageError(
                f"{type(slot.coordinator).__name__} is event-sourced and its provider declares no "
                f"`projection`, so that it would have no state: set {type(slot.provider).__name__}.projection"
            )

    def _make(self, call: Call, operator_id: str) -> None:
        if isinstance(call, CallCreate):
            self._create(operator_id)
            return
        slot = self._slots.get(operator_id)
        if slot is None or slot.is_closed or slot.coordinator is None:
            return
        coordinator = slot.coordinator
        match call:
            case CallReset():
                state = None if call.state is None else self.payloads.open(call.state)
                coordinator.reset_to_checkpoint(call.checkpoint_id, state)
            case CallStart():
                coordinator.start()
            case CallEvent():
                event = self._payload_of(call.event)
                self.is_redelivery = call.is_redelivery
                coordinator.handle_event_from_operator(
                    call.event.subtask, call.event.attempt_number, event
                )
            case CallRequest():
                self._request(slot, coordinator, call)
            case CallCheckpoint():
                self._checkpoint(slot, coordinator, call.checkpoint_id)
            case CallComplete():
                for number in [number for number in slot.results if number <= call.checkpoint_id]:
                    del slot.results[number]
                coordinator.notify_checkpoint_complete(call.checkpoint_id)
            case CallAborted():
                if slot.results.pop(call.checkpoint_id, None) is not None:
                    coordinator.notify_checkpoint_aborted(call.checkpoint_id)
            case _:
                self._make_for_attempt(slot, coordinator, call)

    def _checkpoint(
        self, slot: _Slot, coordinator: OperatorCoordinator, checkpoint_id: int
    ) -> None:
        if checkpoint_id not in self.turn.state.pending:
            return  # another coordinator has failed it in this same turn
        result = _Result(slot, checkpoint_id)
        slot.results = {checkpoint_id: result, **slot.results}
        if slot.provider.projection is None:
            coordinator.checkpoint_coordinator(checkpoint_id, result)
        else:
            self.turn.act(
                CompleteCheckpoint(
                    operator_id=slot.provider.operator_id,
                    checkpoint_id=checkpoint_id,
                    state=None,
                )
            )

    def _request(self, slot: _Slot, coordinator: OperatorCoordinator, call: CallRequest) -> None:
        answer = Respond(
            request_id=call.request_id,
            operator_id=call.operator_id,
            cause=call.sequence,
            outcome=RequestOutcome.ANSWERED,
        )
        default_handler = OperatorCoordinator.handle_coordination_request
        if type(coordinator).handle_coordination_request is default_handler:
            reason = f"{type(coordinator).__name__} answers no requests"
            outcome = RequestOutcome.NOT_A_HANDLER
            self.turn.act(replace(answer, outcome=outcome, reason=reason))
            return
        request = self.types.decode(call.payload_type, call.payload)
        progress_before = (self.turn.state.next_sequence, len(slot.handlers))
        try:
            response = coordinator.handle_coordination_request(request)
        except RequestRefusedError as refused:
            if progress_before != (self.turn.state.next_sequence, len(slot.handlers)):
                raise UsageError(
                    f"a request was refused after something was done for it: {refused.reason}; raise "
                    "RequestRefusedError before anything is recorded, sent or scheduled"
                ) from refused
            outcome = RequestOutcome.REFUSED
            self.turn.act(replace(answer, outcome=outcome, reason=refused.reason))
            return
        declared, encoded = slot.encode_answer(response)
        self.turn.act(replace(answer, payload_type=declared.key, payload=encoded))

    def _make_for_attempt(self, slot: _Slot, coordinator: OperatorCoordinator, call: Call) -> None:
        match call:
            case CallAttemptReady():
                # Coordinators get gateways only here: none can send before the attempt is ready (clause B6).
                gateway: SubtaskGateway = _Gateway(slot, call.subtask, call.attempt_number)
                slot.gateways[call.subtask] = gateway
                coordinator.execution_attempt_ready(call.subtask, call.attempt_number, gateway)
            case CallAttemptFailed():
                slot.gateways.pop(call.subtask, None)
                coordinator.execution_attempt_failed(call.subtask, call.attempt_number, call.reason)
            case CallSubtaskReset():
                self.resetting = call
                coordinator.subtask_reset(call.subtask, call.checkpoint_id)
            case CallFuture():
                self._resolve(slot, call)
            case CallHandler():
                handler = slot.handlers.pop((call.turn_sequence, call.call_number), None)
                if handler is not None and slot.generation == call.generation:
                    result = None
                    if call.payload_type is not None:
                        result = self.types.decode(call.payload_type, call.payload)
                    handler(result, call.error)
            case (
                CallCreate()
                | CallReset()
                | CallStart()
                | CallEvent()
                | CallRequest()
                | CallCheckpoint()
                | CallComplete()
                | CallAborted()
            ):
                raise AssertionError("made above")
            case _:
                assert_never(call)

    def _resolve(self, slot: _Slot, call: CallFuture) -> None:
        future = slot.futures.pop(call.event_id, None)
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

    def encode_result(self, value: object) -> tuple[str | None, bytes | None, str | None]:
        """Result of a `call_async` as payload type, bytes and error."""
        if not isinstance(value, Payload):
            return None, None, f"the work returned {type(value).__name__}, not a payload"
        try:
            declared = self.types.of(value)
            encoded = declared.encode(value)
            sealed = self.payloads.seal(f"a {declared.key}", declared.key, encoded)
        except (PayloadTypeError, TooLargeError) as error:
            return None, None, str(error)
        return declared.key, sealed, None


def _describe(call: Call) -> tuple[str, int | None]:
    """Name of the callback of a call, and its subtask, if any."""
    match call:
        case CallCreate():
            return "create", None
        case CallReset():
            return "reset_to_checkpoint", None
        case CallStart():
            return "start", None
        case CallEvent():
            return "handle_event_from_operator", call.event.subtask
        case CallAttemptReady():
            return "execution_attempt_ready", call.subtask
        case CallAttemptFailed():
            return "execution_attempt_failed", call.subtask
        case CallSubtaskReset():
            return "subtask_reset", call.subtask
        case CallCheckpoint():
            return "checkpoint_coordinator", None
        case CallComplete():
            return "notify_checkpoint_complete", None
        case CallAborted():
            return "notify_checkpoint_aborted", None
        case CallFuture():
            return "the handler of an event's future", call.subtask
        case CallRequest():
            return "handle_coordination_request", None
        case CallHandler():
            return "the handler of call_async or schedule", None
