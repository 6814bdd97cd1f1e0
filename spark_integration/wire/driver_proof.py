"""Proof of a driver's identity without a certificate: by a challenge, which does not show the token."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from enum import Enum

from websockets.exceptions import (
    ConnectionClosed,
    InvalidMessage,
    WebSocketException,
)
from websockets.sync.client import connect

from coordlog.limits import MESSAGE_BYTES_MAX, TAKE_OVER_PROBE_S
from coordlog.spark_integration.wire.certificate import is_encrypted, unverified_context
from coordlog.spark_integration.wire.messages import (
    DRIVER_PATH,
    SOCKET_LOGGER,
    VERSION_HEADER,
    WIRE_VERSION,
    ClientHello,
    DriverHello,
    decode,
    encode,
)
from coordlog.spark_integration.wire.token import Token, new_nonce

__all__ = ["DriverHeard", "ask_driver", "hear_driver", "require_proof"]

_log = logging.getLogger(__name__)


class DriverHeard(Enum):
    """Result of a challenge to the address of a driver."""

    DRIVER = "proved"
    """The driver answered, and one of the tokens proves it."""
    UNPROVED = "unproved"
    """The answer names the driver, but none of the tokens proves it."""
    NOTHING = "nothing"
    """There was no answer, or that of another process."""


def hear_driver(
    endpoint: str,
    *,
    job_id: str | None,
    driver_id: str | None,
    tokens: Iterable[Token],
    timeout_s: float = TAKE_OVER_PROBE_S,
) -> DriverHeard:
    """Whether this driver of this job lives at `endpoint`, and proves it by one of the tokens.

    The tokens are not sent. None for job or driver accepts any that has a token; each driver has its
    own.
    """
    try:
        return ask_driver(
            endpoint, job_id=job_id, driver_id=driver_id, tokens=tokens, timeout_s=timeout_s
        )
    except (OSError, WebSocketException, ValueError) as error:
        _log.info("job=%s no driver answers at %s: %s", job_id, endpoint, error)
        return DriverHeard.NOTHING


def ask_driver(
    endpoint: str,
    *,
    job_id: str | None,
    driver_id: str | None,
    tokens: Iterable[Token],
    timeout_s: float,
) -> DriverHeard:
    """As `hear_driver`, but raises if there is no answer, so that the caller has the reason.

    Raises:
        OSError: The address is not reached; ConnectionRefusedError: no process listens there.
        WebSocketException: It is no endpoint of a driver.
        ValueError: The answer cannot be read.
    """
    deadline = time.monotonic() + timeout_s
    nonce = new_nonce()
    with connect(
        endpoint + DRIVER_PATH,
        additional_headers={VERSION_HEADER: str(WIRE_VERSION)},
        proxy=None,
        compression=None,
        open_timeout=timeout_s,
        ping_interval=None,
        close_timeout=0.1,
        max_size=MESSAGE_BYTES_MAX,
        logger=SOCKET_LOGGER,
        # No certificate is needed: the driver proves itself by the token, and the client sends no secret.
        ssl=unverified_context() if is_encrypted(endpoint) else None,
    ) as channel:
        channel.send(encode(ClientHello(nonce=nonce)))
        answer = decode(_bytes(channel.recv(timeout=max(0.0, deadline - time.monotonic()))))
    if not isinstance(answer, DriverHello):
        return DriverHeard.NOTHING
    job_id, driver_id = job_id or answer.job_id, driver_id or answer.driver_id
    if (answer.job_id, answer.driver_id) != (job_id, driver_id):
        return DriverHeard.NOTHING
    proof = answer.proof
    if any(token.is_proof(proof, nonce, job_id=job_id, driver_id=driver_id) for token in tokens):
        return DriverHeard.DRIVER
    return DriverHeard.UNPROVED


def require_proof(endpoint: str, token: Token, *, timeout_s: float) -> None:
    """Check, without TLS and before the token is sent, that the driver at `endpoint` has the token.

    Another process may have taken the port of a driver that has ended.

    Raises:
        ConnectionRefusedError: No process listens there, or another process.
        ConnectionResetError: The connection was dropped, as if there were too many strangers.
        OSError: The address is not reached.
        WebSocketException: It is no endpoint of a driver.
        ValueError: The answer cannot be read.
    """
    try:
        heard = ask_driver(
            endpoint, job_id=None, driver_id=None, tokens=(token,), timeout_s=timeout_s
        )
    except (ConnectionResetError, ConnectionClosed, InvalidMessage) as error:
        raise ConnectionResetError(
            f"no driver has proved itself there, and the token was not sent: {error}"
        ) from error
    if heard is not DriverHeard.DRIVER:
        raise ConnectionRefusedError(
            "no driver with this token answers there; the token was not sent"
        )


def _bytes(data: str | bytes) -> bytes:
    if isinstance(data, str):
        raise ValueError("a text, but messages are binary")  # noqa: TRY004, an error of received data
    return data
