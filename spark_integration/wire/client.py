"""Requests from other processes to a driver's coordinators: the endpoint's side and the client's (J1: requests)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Self

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from coordlog.errors import RequestUnansweredError
from coordlog.kernel.inputs import RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.limits import MESSAGE_BYTES_MAX, REQUEST_TIMEOUT_S, TAKE_OVER_PROBE_S
from coordlog.runtime.requests import Answer, Requests, answer_of, encoded_request
from coordlog.schemas.payload import Payload, PayloadTypes
from coordlog.spark_integration.wire.certificate import (
    Certificate,
    is_encrypted,
)
from coordlog.spark_integration.wire.driver_proof import require_proof
from coordlog.spark_integration.wire.messages import (
    REQUEST_PATH,
    SOCKET_LOGGER,
    VERSION_HEADER,
    WIRE_VERSION,
    AskCoordinator,
    CoordinatorAnswer,
    WireMessage,
    decode,
    encode,
)
from coordlog.spark_integration.wire.token import Token

__all__ = ["CoordinatorClient", "answered"]

_CLOSE_S = 0.1


async def answered(
    requests: Requests,
    ask: AskCoordinator,
    channel: ServerConnection,
    post: Callable[[Callable[[], None]], None],
) -> CoordinatorAnswer | None:
    """The answer to a client's request; None if the client has disconnected.

    Args:
        requests: Requests of the driver.
        ask: The client's request.
        channel: The client's connection.
        post: Runs an action on this loop; callable from any thread.
    """
    future: asyncio.Future[AnswerRequest] = asyncio.get_running_loop().create_future()

    def on_answer(effect: AnswerRequest) -> None:
        post(lambda: None if future.done() else future.set_result(effect))

    request_id = requests.ask(ask.operator_id, ask.payload_type, ask.payload, on_answer)
    closing = asyncio.create_task(channel.wait_closed())
    try:
        await asyncio.wait(
            (future, closing), timeout=REQUEST_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        requests.forget(request_id)
        closing.cancel()
    if future.done():
        effect = future.result()
        return CoordinatorAnswer(
            outcome=effect.outcome.value,
            sequence=effect.sequence,
            payload_type=effect.payload_type,
            payload=effect.payload,
            reason=effect.reason,
        )
    if closing.done():
        return None
    reason = f"none came within {REQUEST_TIMEOUT_S:g} s"
    return CoordinatorAnswer(outcome=RequestOutcome.OVER.value, reason=reason)


class CoordinatorClient:
    """Sends requests to the coordinators of a job in another process, over one connection. One thread.

    Connects at the first request, and again after an error. Call `close` always, last. The token is
    only sent to an endpoint that has proved itself: by its certificate, or, without TLS, by a
    challenge, which does not show the token.

    Args:
        endpoint: Address of the driver's endpoint.
        token: Token of the driver.
        certificate: Certificate of the driver, if the endpoint is encrypted.
        response_types: Types of possible answers.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        token: Token,
        response_types: Iterable[type[Payload]],
        certificate: Certificate | None = None,
    ) -> None:
        self._endpoint, self._token = endpoint, token
        self._tls = None
        if is_encrypted(endpoint) and certificate is not None:
            self._tls = certificate.context()
        self._response_types = tuple(response_types)
        self._channel: ClientConnection | None = None
        self._opened = contextlib.ExitStack()

    def ask(
        self, operator_id: str, request: Payload, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Answer:
        """Send a request; returns once its answer is in the log.

        Raises:
            RequestError: There is no answer; the subclass is the reason.
            PayloadTypeError: The request's type is none of the job's, or the answer's none of `response_types`.
            TooLargeError: The request exceeds its limit.
        """
        deadline = time.monotonic() + timeout_s
        types = PayloadTypes((type(request), *self._response_types))
        payload_type, payload = encoded_request(types, request)
        ask = AskCoordinator(operator_id=operator_id, payload_type=payload_type, payload=payload)
        try:
            answer = self._exchange(ask, deadline, timeout_s)
        except InvalidStatus as refused:
            self.close()
            body = (refused.response.body or b"").decode(errors="replace").strip()
            reason = f"{self._endpoint} refuses it ({refused.response.status_code}): {body}"
            raise RequestUnansweredError(operator_id, reason) from refused
        except (OSError, WebSocketException, ValueError) as error:
            self.close()
            reason = f"{self._endpoint}: {str(error) or type(error).__name__}"
            raise RequestUnansweredError(operator_id, reason) from error
        if not isinstance(answer, CoordinatorAnswer):
            self.close()
            reason = f"{self._endpoint} answers with {type(answer).__name__}"
            raise RequestUnansweredError(operator_id, reason)
        effect = AnswerRequest(
            request_id=0,
            outcome=RequestOutcome(answer.outcome),
            sequence=answer.sequence,
            payload_type=answer.payload_type,
            payload=answer.payload,
            reason=answer.reason,
        )
        return answer_of(effect, types, operator_id, payload_type)

    def _exchange(self, ask: AskCoordinator, deadline: float, timeout_s: float) -> WireMessage:
        if self._channel is None:
            self._require_proof(min(timeout_s, TAKE_OVER_PROBE_S))
            headers = {VERSION_HEADER: str(WIRE_VERSION), "Authorization": self._token.header()}
            connecting = connect(
                self._endpoint + REQUEST_PATH,
                additional_headers=headers,
                ssl=self._tls,
                proxy=None,
                compression=None,
                open_timeout=timeout_s,
                ping_interval=None,
                close_timeout=_CLOSE_S,
                max_size=MESSAGE_BYTES_MAX,
                logger=SOCKET_LOGGER,
            )
            self._channel = self._opened.enter_context(connecting)
        self._channel.send(encode(ask))
        data = self._channel.recv(timeout=max(0.0, deadline - time.monotonic()))
        return decode(data if isinstance(data, bytes) else data.encode())

    def _require_proof(self, timeout_s: float) -> None:
        if self._tls is None:
            require_proof(self._endpoint, self._token, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._channel = None
        self._opened.close()

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close."""
        self.close()
