"""How a driver proves itself, without a certificate: by the token, which is not shown for that."""

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
    """What has answered where a driver listens."""

    DRIVER = "proved"
    """That very driver."""
    UNPROVED = "unproved"
    """What says that it is that driver; none of the tokens proves it."""
    NOTHING = "nothing"
    """Nothing, or anything else."""


def hear_driver(
    endpoint: str,
    *,
    job_id: str | None,
    driver_id: str | None,
    tokens: Iterable[Token],
    timeout_s: float = TAKE_OVER_PROBE_S,
) -> DriverHeard:
    """Whether this very driver of this job lives at `endpoint`, and proves it by one of the tokens.

    Nothing of them is shown to it. With None for job or driver: whichever holds the token, and a
    driver has one of its own.
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
    """As `hear_driver`, for a caller that has to know why nothing answers.

    Raises:
        OSError: Nothing is reached there; ConnectionRefusedError: nobody listens.
        WebSocketException: It is no endpoint of a driver.
        ValueError: What it says cannot be read.
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
        # Whoever answers proves himself by the token, and is shown nothing: no certificate is needed.
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
    if any(one.is_proof(proof, nonce, job_id=job_id, driver_id=driver_id) for one in tokens):
        return DriverHeard.DRIVER
    return DriverHeard.UNPROVED


def require_proof(endpoint: str, token: Token, *, timeout_s: float) -> None:
    """Return if the driver at `endpoint` proves that it holds the token: without TLS, before the token is sent.

    Another process may have taken the port of a driver that has ended.

    Raises:
        ConnectionRefusedError: Nothing listens there, or another process by now.
        ConnectionResetError: The connection was dropped, as of one stranger too many.
        OSError: It is not reached.
        WebSocketException: It is no endpoint of a driver.
        ValueError: What it sends cannot be read.
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
            "no driver answers there that this token proves; the token was not sent"
        )


def _bytes(data: str | bytes) -> bytes:
    if isinstance(data, str):
        raise ValueError("a text, where messages are binary")  # noqa: TRY004, of what was received
    return data
