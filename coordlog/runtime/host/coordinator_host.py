"""Coordinators of a driver, and the kernel's calls into their code.

Everything here runs on the mailbox, inside a turn. Each action of the code becomes an action of that turn at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from coordlog.api.coordinator import (
    CoordinatorProvider,
    EventSourcedCoordinator,
    OperatorCoordinator,
)
from coordlog.causes import final_of
from coordlog.errors import (
    PayloadTypeError,
    RecordError,
    RequestRefusedError,
    TooLargeError,
    UsageError,
    WrongThreadError,
)
from coordlog.kernel.inputs import CompleteCheckpoint, RequestOutcome, Respond
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
from coordlog.limits import HELD_EVENTS_PER_GATEWAY_MAX
from coordlog.log.local.fork_guard import ForkGuard
from coordlog.payloads.offload import DriverPayloads
from coordlog.projections.job.state import UpEvent
from coordlog.runtime.host.context import Slot, TurnPort
from coordlog.schemas.payload import Payload, PayloadTypes

__all__ = ["CallFailure", "CoordinatorHost"]


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
        self._slots: dict[str, Slot] = {}
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
            if operator_id in self._slots:
                self._slots[operator_id].check_state()
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
            if operator_id in self._slots:
                self._slots[operator_id].shown = None

    def close_all(self) -> None:
        """Close every coordinator, on workers (clause A2)."""
        for operator_id in sorted(self._slots):
            self._close(self._slots[operator_id])

    def _close(self, slot: Slot) -> None:
        if slot.is_closed:
            return
        slot.is_closed = True
        self.turn.close_coordinator(slot.coordinator, slot.generation)

    def _create(self, operator_id: str) -> None:
        old = self._slots.get(operator_id)
        if old is not None:
            self._close(old)
        self._generations += 1
        slot = Slot(self, self._providers[operator_id], self._generations)
        self._slots[operator_id] = slot
        slot.coordinator = slot.provider.create(slot.context())
        if not isinstance(slot.coordinator, OperatorCoordinator):
            raise UsageError(
                f"`create` of {type(slot.provider).__name__} returned a {type(slot.coordinator).__name__}; it must "
                "return an OperatorCoordinator"
            )
        if old is not None and slot.coordinator is old.coordinator:
            raise UsageError(
                f"`create` of {type(slot.provider).__name__} returned the object that is closed, with what it knew "
                "before the reset: it must return a new one each time"
            )
        if isinstance(slot.coordinator, EventSourcedCoordinator) and not slot.provider.projection:
            raise UsageError(
                f"{type(slot.coordinator).__name__} is event-sourced and its provider declares no "
                f"`projection`, so that it would have no state: set {type(slot.provider).__name__}.projection"
            )
        own = type(slot.coordinator).checkpoint_coordinator
        if slot.provider.projection and own is not OperatorCoordinator.checkpoint_coordinator:
            raise UsageError(
                f"{type(slot.coordinator).__name__} has a `checkpoint_coordinator`, which is never called, because its "
                "provider declares a `projection`: keep the state in one of them"
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

    def _checkpoint(self, slot: Slot, coordinator: OperatorCoordinator, checkpoint_id: int) -> None:
        if checkpoint_id not in self.turn.state.pending:
            return  # another coordinator has failed it in this same turn
        result = slot.add_result(checkpoint_id)
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

    def _request(self, slot: Slot, coordinator: OperatorCoordinator, call: CallRequest) -> None:
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

    def _make_for_attempt(self, slot: Slot, coordinator: OperatorCoordinator, call: Call) -> None:
        match call:
            case CallAttemptReady():
                # Coordinators get gateways only here: none can send before the attempt is ready (clause B6).
                gateway = slot.add_gateway(call.subtask, call.attempt_number)
                coordinator.execution_attempt_ready(call.subtask, call.attempt_number, gateway)
            case CallAttemptFailed():
                slot.gateways.pop(call.subtask, None)
                coordinator.execution_attempt_failed(call.subtask, call.attempt_number, call.reason)
            case CallSubtaskReset():
                self.resetting = call
                coordinator.subtask_reset(call.subtask, call.checkpoint_id)
            case CallFuture():
                slot.resolve(call)
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
