"""Requests from other processes to a driver's coordinators: the endpoint's side and the client's (J1: requests)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Self, TypeVar

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from coordlog.errors import PayloadTypeError, RequestUnansweredError, TooLargeError
from coordlog.kernel.inputs import Asker, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.limits import (
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    REQUEST_TIMEOUT_S,
    TAKE_OVER_PROBE_S,
)
from coordlog.log.local.processes import user_name
from coordlog.log.local.time_limit import limited_time
from coordlog.runtime.requests import Answer, Requests, answer_of, encoded_request
from coordlog.schemas.codec import payload_fingerprint
from coordlog.schemas.payload import Payload, PayloadTypes
from coordlog.schemas.secret_fields import guards_of
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
    DescribeTypes,
    TypeDescription,
    TypesDescribed,
    WireMessage,
    decode,
    encode,
)
from coordlog.spark_integration.wire.token import Token

__all__ = ["CoordinatorClient", "answered", "described", "this_asker"]

A = TypeVar("A", bound=WireMessage)

_CLOSE_S = 0.1


def this_asker(command: str = "") -> Asker:
    """This process as a client."""
    return Asker(user=user_name(), host=socket.gethostname(), pid=os.getpid(), command=command)


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

    request_id = requests.ask(
        ask.operator_id, ask.payload_type, ask.payload, on_answer, asked_by=ask.asked_by
    )
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


def described(requests: Requests) -> TypesDescribed:
    """The payload types of the driver's job."""
    types = tuple(
        TypeDescription(
            key=declared.key,
            role=declared.role.value,
            schema_json=declared.schema_json,
            secret_fields=tuple(sorted(guards_of(declared.payload_class))),
        )
        for declared in requests.types
    )
    return TypesDescribed(types=types)


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
        command: Name of the command that uses it, for the history; empty for a program.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        token: Token,
        response_types: Iterable[type[Payload]],
        certificate: Certificate | None = None,
        command: str = "",
    ) -> None:
        self._asked_by = this_asker(command)
        self._endpoint, self._token = endpoint, token
        self._tls = None
        if is_encrypted(endpoint) and certificate is not None:
            self._tls = certificate.context()
        self._response_types = tuple(response_types)
        self._channel: ClientConnection | None = None
        self._schemas: dict[str, str] | None = None
        self._opened = contextlib.ExitStack()

    def ask(
        self, operator_id: str, request: Payload, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Answer:
        """Send a request; returns once its answer is in the log.

        Raises:
            RequestError: There is no answer; the subclass is the reason.
            PayloadTypeError: The request's type is none of the job's, the answer's none of `response_types`, or one of
                these has another schema in the job; then nothing is sent.
            TooLargeError: The request exceeds its limit.
        """
        until_s = time.monotonic() + timeout_s
        types = PayloadTypes((type(request), *self._response_types))
        payload_type, payload = encoded_request(types, request)
        self._refuse_other_schemas(operator_id, types, timeout_s)
        rest_s = max(0.0, until_s - time.monotonic())
        effect = self.ask_encoded(operator_id, payload_type, payload, timeout_s=rest_s)
        return answer_of(effect, types, operator_id, payload_type)

    def _refuse_other_schemas(
        self, operator_id: str, types: PayloadTypes, timeout_s: float
    ) -> None:
        """Raise PayloadTypeError if a type has another schema in the job: its bytes may be another value there."""
        if self._schemas is None:
            described = self._answered(operator_id, DescribeTypes(), TypesDescribed, timeout_s)
            self._schemas = {one.key: one.schema_json for one in described.types}
        for declared in types:
            schema_json = self._schemas.get(declared.key, declared.schema_json)
            if payload_fingerprint(schema_json) != declared.fingerprint:
                raise PayloadTypeError(
                    declared.key,
                    f"the class here has another schema than that of the job, which is {schema_json}; "
                    "declare the fields of the job's class, or another version in both",
                )

    def ask_encoded(
        self,
        operator_id: str,
        payload_type: str,
        payload: bytes,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> AnswerRequest:
        """Send the bytes of a request; returns its answer, whatever its outcome.

        Raises:
            RequestUnansweredError: There is no answer.
            TooLargeError: The request exceeds its limit; nothing is sent.
        """
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise TooLargeError(f"a {payload_type}", len(payload), PAYLOAD_BYTES_MAX)
        ask = AskCoordinator(
            operator_id=operator_id,
            payload_type=payload_type,
            payload=payload,
            asked_by=self._asked_by,
        )
        answer = self._answered(operator_id, ask, CoordinatorAnswer, timeout_s)
        return AnswerRequest(
            request_id=0,
            outcome=RequestOutcome(answer.outcome),
            sequence=answer.sequence,
            payload_type=answer.payload_type,
            payload=answer.payload,
            reason=answer.reason,
        )

    def types(self, *, timeout_s: float = REQUEST_TIMEOUT_S) -> tuple[TypeDescription, ...]:
        """The payload types of the job, sorted by key. Raises RequestUnansweredError if the driver does not answer."""
        return self._answered("", DescribeTypes(), TypesDescribed, timeout_s).types

    def _answered(
        self, operator_id: str, question: WireMessage, answer_type: type[A], timeout_s: float
    ) -> A:
        deadline = time.monotonic() + timeout_s
        try:
            answer = self._exchange(question, deadline, timeout_s)
        except InvalidStatus as refused:
            self.close()
            body = (refused.response.body or b"").decode(errors="replace").strip()
            reason = f"{self._endpoint} refuses it ({refused.response.status_code}): {body}"
            raise RequestUnansweredError(operator_id, reason) from refused
        except (OSError, WebSocketException, ValueError) as error:
            self.close()
            reason = f"{self._endpoint}: {str(error) or type(error).__name__}"
            raise RequestUnansweredError(operator_id, reason) from error
        if not isinstance(answer, answer_type):
            self.close()
            reason = f"{self._endpoint} answers with {type(answer).__name__}"
            raise RequestUnansweredError(operator_id, reason)
        return answer

    def _exchange(self, question: WireMessage, deadline: float, timeout_s: float) -> WireMessage:
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
        rest_s = deadline - time.monotonic()
        with limited_time(self._channel.socket, rest_s) as is_over:
            try:
                self._channel.send(encode(question))
            except (OSError, WebSocketException) as error:
                if is_over.is_set():
                    raise TimeoutError(
                        f"it has not read the request within {timeout_s:g} s"
                    ) from error
                raise
        data = self._channel.recv(timeout=max(0.0, deadline - time.monotonic()))
        return decode(data if isinstance(data, bytes) else data.encode())

    def _require_proof(self, timeout_s: float) -> None:
        if self._tls is None:
            require_proof(self._endpoint, self._token, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._channel = self._schemas = None
        self._opened.close()

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close."""
        self.close()
