"""An endpoint on the loopback address, and attempts that do exactly what a test says."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from websockets.sync.client import ClientConnection, connect

from coordlog.messages import AckEvent, DeliverEvent, Register, SendEvent, UpMessage
from coordlog.runtime.mailbox import Mailbox
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.wire.messages import (
    WIRE_VERSION,
    Heartbeat,
    WireMessage,
    decode_down,
    encode,
)
from coordlog.spark_integration.wire.token import Token
from coordlog.testing.in_memory import InMemorySurroundings

T = TypeVar("T")

TOKEN: Final = Token(bytes(range(32)))
_UNHEARD: Final[WeakKeyDictionary[ClientConnection, deque[WireMessage]]] = WeakKeyDictionary()
"""Messages of a received frame that a test has not taken yet."""
WAIT_S: Final = 20.0
"""Longer than anything here takes on a loaded machine; no test waits so long unless it fails."""


def wait_for(look: Callable[[], T], what: str, limit_s: float = WAIT_S) -> T:
    """What `look` gives once that is true."""
    deadline = time.monotonic() + limit_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.005)


def register(subtask: int = 0, *, task_attempt_id: int = 0, driver_id: str = "d1") -> Register:
    return Register(
        driver_id=driver_id,
        subtask=subtask,
        stage_run=0,
        task_attempt_id=task_attempt_id,
        spark_attempt_number=0,
        host="localhost",
        pid=1,
    )


def sent(event_id: int, payload: bytes = b"") -> SendEvent:
    return SendEvent(
        operator_id="source",
        event_id=event_id,
        last_barrier=-1,
        payload_type="a@1",
        payload=payload,
    )


def delivered(event_id: int, payload: bytes = b"") -> DeliverEvent:
    return DeliverEvent(
        operator_id="source", event_id=event_id, payload_type="a@1", payload=payload
    )


def acked(event_id: int) -> AckEvent:
    return AckEvent(operator_id="source", event_id=event_id, last_barrier=-1)


@dataclass(slots=True)
class Heard:
    """An `Arrivals` that keeps what it is told, in order."""

    arrivals: list[tuple[int, UpMessage]] = field(default_factory=list)
    lost: list[tuple[int, str]] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def arrived(self, connection_id: int, message: UpMessage) -> None:
        """Keep it."""
        self.threads.add(threading.current_thread().name)
        self.arrivals.append((connection_id, message))

    def connection_lost(self, connection_id: int, reason: str) -> None:
        """Keep it."""
        self.threads.add(threading.current_thread().name)
        self.lost.append((connection_id, reason))

    def connection_of(self, subtask: int) -> int:
        """The newest connection of a subtask, once it has registered."""

        def look() -> int:
            found = [
                number
                for number, message in list(self.arrivals)
                if isinstance(message, Register) and message.subtask == subtask
            ]
            return found[-1] if found else 0

        return wait_for(look, f"subtask {subtask} registers")

    def messages(self, connection_id: int) -> list[UpMessage]:
        """What came of a connection after its registration."""
        return [message for number, message in list(self.arrivals) if number == connection_id][1:]

    def reason_of(self, connection_id: int) -> str:
        """Why a connection was lost, once it is."""

        def look() -> str:
            return next((reason for number, reason in self.lost if number == connection_id), "")

        return wait_for(look, f"connection {connection_id} is lost")


@contextmanager
def running(**options: Any) -> Generator[tuple[Endpoint, Heard], None, None]:  # noqa: ANN401, the endpoint's own
    """An endpoint that listens."""
    heard = Heard()
    endpoint = Endpoint(job_id="ingest", driver_id="d1", token=TOKEN, arrivals=heard, **options)
    endpoint.start()
    try:
        yield endpoint, heard
    finally:
        endpoint.stop()


@contextmanager
def connected(
    address: str,
    *,
    token: Token | None = TOKEN,
    version: str = str(WIRE_VERSION),
    path: str = "/attempt",
) -> Generator[ClientConnection, None, None]:
    """A connection that says and hears nothing by itself."""
    headers = {"Coordlog-Wire": version}
    if token is not None:
        headers["Authorization"] = token.header()
    with connect(
        address + path,
        additional_headers=headers,
        proxy=None,
        compression=None,
        ping_interval=None,
        close_timeout=1,
        max_size=None,
        max_queue=4,
    ) as channel:
        yield channel


@dataclass(frozen=True, slots=True)
class TwoAttempts:
    """An endpoint at which subtasks 0 and 1 have registered, each on a connection of its own."""

    endpoint: Endpoint
    heard: Heard
    one: ClientConnection
    other: ClientConnection
    first: int
    """Number of the connection of subtask 0."""
    second: int


@contextmanager
def two_attempts(**options: Any) -> Generator[TwoAttempts, None, None]:  # noqa: ANN401, the endpoint's own
    """An endpoint with two attempts."""
    with (
        running(**options) as (endpoint, heard),
        connected(endpoint.address) as one,
        connected(endpoint.address) as other,
    ):
        say(one, register(0))
        say(other, register(1))
        first, second = heard.connection_of(0), heard.connection_of(1)
        yield TwoAttempts(endpoint, heard, one, other, first, second)


def say(channel: ClientConnection, *messages: WireMessage) -> None:
    for message in messages:
        channel.send(encode(message))


def hear(channel: ClientConnection) -> WireMessage:
    """The next message that is no heartbeat."""
    unheard = _UNHEARD.setdefault(channel, deque())
    while not unheard:
        data = channel.recv(timeout=WAIT_S)
        assert isinstance(data, bytes)
        received = [message for message, _ in decode_down(data)]
        unheard.extend(message for message in received if not isinstance(message, Heartbeat))
    return unheard.popleft()


def own_threads() -> list[str]:
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("coordlog-"))


class EndpointSurroundings(InMemorySurroundings):
    """Tasks that are threads, and an endpoint for clients."""

    endpoint: Endpoint

    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """See `Surroundings`."""
        super().begin(driver_id, mailbox)
        self.endpoint = Endpoint(
            job_id="job",
            driver_id=driver_id,
            token=TOKEN,
            arrivals=mailbox,
            on_refused=mailbox.connections_refused,
            on_failed=mailbox.end,
            requests=mailbox.requests,
        )
        return self.endpoint.start()

    def end(self) -> None:
        """See `Surroundings`."""
        super().end()
        self.endpoint.stop()
