"""What comes in at the endpoint: messages that are none, and clients that do what no client does."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

from coordlog.limits import MESSAGE_BYTES_MAX
from coordlog.messages import (
    AckCheckpoint,
    Complete,
    Fail,
    FinishSplit,
    SendEvent,
    SkipSplit,
)
from coordlog.schemas.builtin_types import (
    AttemptSnapshot,
    Committable,
    OperatorState,
    SplitFinished,
)
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.wire.messages import (
    AskCoordinator,
    ClientHello,
    Heartbeat,
    WireMessage,
    decode,
    decode_down,
    decode_up,
    encode,
)
from coordlog.spark_integration.wire.token import Token
from fakes.endpoint_parts import (
    Heard,
    acked,
    connected,
    delivered,
    hear,
    register,
    running,
    say,
    sent,
    wait_for,
)

from .damage import damaged

__all__ = ["HostileClients", "HostileMessages", "hostile_clients"]

_SNAPSHOT: Final = AttemptSnapshot(
    states=[OperatorState(operator_id="source", state=b"state" * 9)],
    committables=[Committable(operator_id="sink", content=b"content" * 9)],
)
_FINISHED: Final = SplitFinished(
    split_id="a.csv", rows=3, bytes_read=9, committables=_SNAPSHOT.committables
)
_MESSAGES: Final[tuple[WireMessage, ...]] = (
    register(),
    sent(1, b"payload" * 5),
    acked(1),
    delivered(1, b"payload" * 5),
    SendEvent(operator_id="", event_id=0, last_barrier=-1, payload_type="", payload=b""),
    AckCheckpoint(checkpoint_id=1, last_barrier=1, snapshot=_SNAPSHOT),
    Complete(last_barrier=1, snapshot=_SNAPSHOT),
    FinishSplit(operator_id="source", last_barrier=1, finished=_FINISHED),
    SkipSplit(operator_id="source", last_barrier=1, split_id="a", rows=1, reason="bad"),
    Fail(operator_id="source", callback="poll", reason="it broke", split_id="a"),
    Heartbeat(),
    ClientHello(nonce=bytes(32)),
    AskCoordinator(operator_id="source", payload_type="a@1", payload=b"ask"),
)


class HostileMessages:
    """Bytes in the place of a message: each is one, or a ValueError."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._good = [encode(one) for one in _MESSAGES]
        self.refused = self.taken = 0

    def case(self) -> None:
        """One; raises what nobody may see."""
        data = damaged(self._chance, self._chance.choice(self._good))
        for read in (_only, decode_up, decode_down):
            try:
                messages = [message for message, _ in read(data)]
            except ValueError:
                self.refused += 1
            else:
                # What was taken is messages, and can be said again.
                assert [decode(encode(message)) for message in messages] == messages
                self.taken += 1


def _only(data: bytes) -> list[tuple[WireMessage, int]]:
    return [(decode(data), len(data))]


@contextmanager
def hostile_clients(chance: random.Random) -> Generator[HostileClients]:
    """An endpoint, an attempt that does nothing wrong, and those who do."""
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register(0))
        yield HostileClients(chance, endpoint, heard, channel)


class HostileClients:
    """Each case is a connection that does something wrong, and goes."""

    def __init__(
        self, chance: random.Random, endpoint: Endpoint, heard: Heard, honest: ClientConnection
    ) -> None:
        self._chance, self._endpoint, self._heard, self._honest = chance, endpoint, heard, honest
        self._own = heard.connection_of(0)
        self._said = 0
        host, _, port = endpoint.address.removeprefix("ws://").rpartition(":")
        self._at = (host, int(port))
        self._ways: tuple[Callable[[], None], ...] = (
            self._noise,
            self._half_a_handshake,
            self._long_headers,
            self._wrong_token,
            self._nowhere,
            self._not_a_message,
            self._hello_then_noise,
            self._hello_then_noise,
            self._broken_frames,
            self._huge_frame,
            self._asks_nonsense,
        )

    def case(self) -> None:
        """One; the honest attempt is heard, and hears, after each."""
        way = self._chance.choice(self._ways)
        with contextlib.suppress(OSError, WebSocketException, EOFError):
            way()
        self._honest_still_works()

    def _honest_still_works(self) -> None:
        self._said += 1
        say(self._honest, sent(self._said))
        self._endpoint.send(self._own, delivered(self._said))
        self._endpoint.released(self._own, 1)
        assert hear(self._honest) == delivered(self._said)
        assert self._own not in {number for number, _ in self._heard.lost}
        # What is kept here is not the endpoint's growth.
        self._heard.arrivals.clear()
        self._heard.lost.clear()

    def settle(self) -> None:
        """Wait until the endpoint holds no other connection than the honest one."""
        wait_for(lambda: len(self._endpoint._connections) == 1, "every other connection is gone")

    # --- those without the token ----------------------------------------------------------------------
    def _raw(self) -> socket.socket:
        return socket.create_connection(self._at, 5.0)

    def _noise(self) -> None:
        with self._raw() as one:
            one.sendall(self._chance.randbytes(self._chance.randint(1, 4000)))

    def _half_a_handshake(self) -> None:
        text = (
            b"GET /attempt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        )
        with self._raw() as one:
            one.sendall(damaged(self._chance, text))

    def _long_headers(self) -> None:
        with self._raw() as one:
            one.sendall(b"GET /attempt HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n")

    def _wrong_token(self) -> None:
        token = Token(self._chance.randbytes(32))
        with connected(self._endpoint.address, token=token):
            raise AssertionError("let in")

    def _nowhere(self) -> None:
        path = "/" + self._chance.choice(("", "etc/passwd", "attempt/..", "%00", "a" * 2000))
        with connected(self._endpoint.address, path=path):
            raise AssertionError("there is something")

    # --- those with it --------------------------------------------------------------------------------
    def _not_a_message(self) -> None:
        path = self._chance.choice(("/attempt", "/driver", "/request"))
        with connected(self._endpoint.address, path=path) as channel:
            channel.send(self._chance.randbytes(self._chance.randint(0, 300)))

    def _hello_then_noise(self) -> None:
        with connected(self._endpoint.address) as channel:
            say(channel, register(1, task_attempt_id=self._chance.randrange(2**40)))
            for _ in range(self._chance.randint(1, 5)):
                good = encode(self._chance.choice(_MESSAGES))
                channel.send(self._chance.choice((damaged(self._chance, good), "a text")))

    def _broken_frames(self) -> None:
        with connected(self._endpoint.address) as channel:
            say(channel, register(1))
            channel.socket.sendall(self._chance.randbytes(50))

    def _huge_frame(self) -> None:
        with connected(self._endpoint.address) as channel:
            say(channel, register(1))
            size = self._chance.choice((MESSAGE_BYTES_MAX + 1, 2**40, 2**63 - 1))
            channel.socket.sendall(b"\x82\xff" + struct.pack(">Q", size) + bytes(4) + bytes(2000))

    def _asks_nonsense(self) -> None:
        with connected(self._endpoint.address, path="/request") as channel:
            ask = AskCoordinator(operator_id="nobody", payload_type="x@1", payload=b"")
            channel.send(damaged(self._chance, encode(ask)))
