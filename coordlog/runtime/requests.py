"""Requests of clients to a driver's coordinators: each is answered once, at the latest at the driver's end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from coordlog.errors import (
    CoordinatorRestartingError,
    CoordlogError,
    NoSuchOperatorError,
    NotRequestHandlerError,
    PayloadTypeError,
    RequestFailedError,
    RequestRefusedError,
    RequestUnansweredError,
    TooLargeError,
)
from coordlog.kernel.inputs import Asker, RequestArrived, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.limits import PAYLOAD_BYTES_MAX, REQUEST_TIMEOUT_S, REQUESTS_OPEN_MAX
from coordlog.schemas.payload import Payload, PayloadTypes

__all__ = ["Answer", "Requests", "answer_of", "encoded_request", "raise_unanswered"]

OnAnswer = Callable[[AnswerRequest], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a coordinator to a request; it is in the log."""

    response: Payload
    sequence: int
    """Sequence of its `RESPONSE` in the log."""


class Requests:
    """Open requests of one driver. Any thread; `begin` once, `end` always.

    Args:
        types: Payload types of the job.
    """

    def __init__(self, types: PayloadTypes) -> None:
        self.types = types
        """Payload types of the job."""
        self._lock = threading.Lock()
        self._open: dict[int, OnAnswer | None] = {}
        """Requests without an answer; None for those whose callers have gone, which still wait in the driver."""
        self._next_id = 0
        self._deliver: Callable[[RequestArrived], None] | None = None
        self._is_over = False

    def begin(self, deliver: Callable[[RequestArrived], None]) -> None:
        """Pass requests to `deliver` from now on, on the caller's thread; before, they are refused at once."""
        self._deliver = deliver

    def end(self) -> None:
        """End with the driver: refuse the open requests, and all later ones."""
        with self._lock:
            self._is_over = True
            open_requests, self._open = sorted(self._open.items()), {}
        for request_id, on_answer in open_requests:
            if on_answer is None:
                continue
            on_answer(
                AnswerRequest(
                    request_id=request_id,
                    outcome=RequestOutcome.OVER,
                    reason="the driver ended before its answer was in the log",
                )
            )

    def ask(
        self,
        operator_id: str,
        payload_type: str,
        payload: bytes,
        on_answer: OnAnswer,
        *,
        asked_by: Asker | None = None,
    ) -> int:
        """Send a request; `on_answer` is called once, on any thread, perhaps before this returns.

        Returns:
            Number of the request, for `forget`.
        """
        deliver = self._deliver
        problem = self._problem(payload_type, payload)
        refusal: tuple[RequestOutcome, str] | None = None
        with self._lock:
            request_id = self._next_id
            self._next_id += 1
            if self._is_over:
                refusal = RequestOutcome.OVER, "the driver has ended"
            elif deliver is None:
                refusal = RequestOutcome.RESTARTING, "the job is being restored"
            elif problem is not None:
                refusal = RequestOutcome.UNREADABLE, problem
            elif len(self._open) >= REQUESTS_OPEN_MAX:
                refusal = (
                    RequestOutcome.OVER,
                    f"{REQUESTS_OPEN_MAX} other requests wait for their answers",
                )
            else:
                self._open[request_id] = on_answer
        if refusal is not None:
            outcome, reason = refusal
            on_answer(AnswerRequest(request_id=request_id, outcome=outcome, reason=reason))
        elif deliver is not None:
            deliver(
                RequestArrived(
                    request_id=request_id,
                    operator_id=operator_id,
                    payload_type=payload_type,
                    payload=payload,
                    asked_by=asked_by,
                )
            )
        return request_id

    def _problem(self, payload_type: str, payload: bytes) -> str | None:
        """Reason to refuse the bytes of a client, which are untrusted, or None."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            return f"it has {len(payload)} bytes; the limit is {PAYLOAD_BYTES_MAX}"
        try:
            self.types.decode(payload_type, payload)
        except Exception as error:  # noqa: BLE001, untrusted bytes may make the decoder raise any error
            return f"{type(error).__name__}: {error}"
        return None

    @property
    def open_count(self) -> int:
        """Number of requests whose callers wait for an answer."""
        with self._lock:
            return sum(on_answer is not None for on_answer in self._open.values())

    def forget(self, request_id: int) -> None:
        """Drop the answer of a request whose caller no longer waits; the request counts until the driver answers."""
        with self._lock:
            if request_id in self._open:
                self._open[request_id] = None

    def answered(self, effect: AnswerRequest) -> None:
        """Pass on an answer, which the log has."""
        with self._lock:
            on_answer = self._open.pop(effect.request_id, None)
        if on_answer is not None:
            on_answer(effect)

    def request(
        self,
        operator_id: str,
        request: Payload,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        asked_by: Asker | None = None,
    ) -> Answer:
        """Send a request and wait for its answer. Never on the mailbox.

        Raises:
            RequestError: There is no answer; the subclass is the reason.
            PayloadTypeError: The request's type is not registered with the job.
            TooLargeError: The request is above its limit.
        """
        payload_type, payload = encoded_request(self.types, request)
        future: Future[AnswerRequest] = Future()
        request_id = self.ask(
            operator_id, payload_type, payload, future.set_result, asked_by=asked_by
        )
        try:
            effect = future.result(timeout_s)
        except FutureTimeoutError:
            reason = f"none came within {timeout_s:g} s"
            raise RequestUnansweredError(operator_id, reason) from None
        finally:
            self.forget(request_id)
        return answer_of(effect, self.types, operator_id, payload_type)


def encoded_request(types: PayloadTypes, request: Payload) -> tuple[str, bytes]:
    """Payload type and bytes of a request.

    Raises:
        PayloadTypeError: Its type is not among `types`, or it is incompatible with its schema.
        TooLargeError: The request is above its limit.
    """
    declared = types.of(request)
    encoded = declared.encode(request)
    if len(encoded) > PAYLOAD_BYTES_MAX:
        raise TooLargeError(f"a {declared.key}", len(encoded), PAYLOAD_BYTES_MAX)
    return declared.key, encoded


def answer_of(
    effect: AnswerRequest, types: PayloadTypes, operator_id: str, payload_type: str
) -> Answer:
    """The decoded answer.

    Raises:
        RequestError: There is no answer.
        PayloadTypeError: The driver cannot read the request, or the answer's type is not among `types`.
    """
    raise_unanswered(effect, operator_id, payload_type)
    assert effect.sequence is not None, "an answer is in the log"
    response = types.decode(effect.payload_type, effect.payload)
    return Answer(response=response, sequence=effect.sequence)


def raise_unanswered(effect: AnswerRequest, operator_id: str, payload_type: str) -> None:
    """Return if the request is answered.

    Raises:
        RequestError, PayloadTypeError: It is not, as in `answer_of`.
    """
    if effect.outcome is not RequestOutcome.ANSWERED:
        raise _error_of(effect, operator_id, payload_type)


def _error_of(effect: AnswerRequest, operator_id: str, payload_type: str) -> CoordlogError:
    reason = effect.reason or ""
    match effect.outcome:
        case RequestOutcome.NO_SUCH_OPERATOR:
            return NoSuchOperatorError(operator_id, reason)
        case RequestOutcome.NOT_A_HANDLER:
            return NotRequestHandlerError(operator_id, reason)
        case RequestOutcome.REFUSED:
            return RequestRefusedError(reason)
        case RequestOutcome.FAILED:
            return RequestFailedError(operator_id, reason)
        case RequestOutcome.RESTARTING:
            return CoordinatorRestartingError(operator_id, reason)
        case RequestOutcome.UNREADABLE:
            return PayloadTypeError(payload_type, f"the driver cannot read the request: {reason}")
        case RequestOutcome.ANSWERED | RequestOutcome.OVER:
            return RequestUnansweredError(operator_id, reason)
