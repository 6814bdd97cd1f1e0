"""Connections that have not shown the token: bounded in number, bytes and seconds, and the holders of it are heard."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from coordlog.limits import MESSAGE_BYTES_MAX, STRANGER_BYTES_MAX
from coordlog.spark_integration.task.driver_connection import DriverConnection
from coordlog.spark_integration.wire.certificate import new_certificate
from coordlog.spark_integration.wire.driver_proof import DriverHeard, hear_driver
from coordlog.spark_integration.wire.messages import WIRE_VERSION
from coordlog.spark_integration.wire.strangers import GuardedConnection, Listener, Strangers
from fakes.endpoint_parts import TOKEN, acked, connected, register, running, say, wait_for

pytestmark = [pytest.mark.timeout(120), pytest.mark.tier("faults")]

REQUEST = (
    b"GET /attempt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)


@contextlib.contextmanager
def bare(address: str, count: int) -> Generator[list[socket.socket], None, None]:
    """So many connections that say nothing."""
    url = urlsplit(address)
    with contextlib.ExitStack() as stack:
        place = (url.hostname, url.port)
        yield [
            stack.enter_context(contextlib.closing(socket.create_connection(place, 10)))
            for _ in range(count)
        ]


def is_ended(connection: socket.socket) -> bool:
    """Whether the driver has ended it; waits for that, within the connection's timeout."""
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def is_heard(address: str) -> bool:
    heard = hear_driver(address, job_id="ingest", driver_id="d1", tokens=[TOKEN])
    return heard is DriverHeard.DRIVER


def test_the_oldest_bare_connections_are_closed_and_token_holders_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused: list[int] = []
    with (
        running(strangers_max=8, on_refused=refused.append) as (endpoint, heard),
        connected(endpoint.address) as attempt,
    ):
        say(attempt, register())
        number = heard.connection_of(0)
        with bare(endpoint.address, 300) as strangers:
            assert all(is_ended(one) for one in strangers[:292])
            assert is_heard(endpoint.address)
            say(attempt, acked(0))
            wait_for(lambda: heard.messages(number) == [acked(0)], "the attempt is heard")

    assert refused[-1] >= 292
    lines = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(lines) <= 60
    assert "connections without the token are open" in lines[0].getMessage()
    assert not [one for one in lines if one.exc_info]


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
def test_of_many_tasks_that_come_at_once_all_are_let_in(*, is_encrypted: bool) -> None:
    """More than may be without the token at a time: those that are dropped come again."""
    count = 40
    certificate, tls = new_certificate() if is_encrypted else (None, None)
    together = threading.Barrier(count)

    def come(address: str, subtask: int) -> None:
        task = DriverConnection(endpoint=address, token=TOKEN, certificate=certificate)
        with contextlib.closing(task):
            together.wait(20)
            task.open()
            task.send(register(subtask))

    with (
        running(strangers_max=10, tls=tls) as (endpoint, heard),
        ThreadPoolExecutor(count) as threads,
    ):
        tasks = [threads.submit(come, endpoint.address, subtask) for subtask in range(count)]
        assert [one.result() for one in tasks] == [None] * count
        wait_for(lambda: len(heard.arrivals) == count, "each registers")


def test_tasks_of_all_subtasks_may_come_at_once_and_none_is_dropped() -> None:
    refused: list[int] = []
    with (
        running(strangers_max=2, subtasks=40, on_refused=refused.append) as (endpoint, _),
        bare(endpoint.address, 42),
    ):
        assert is_heard(endpoint.address)

    assert refused == [1], "the connection behind the 42"


def test_connections_that_do_not_speak_tls_are_strangers_too() -> None:
    _, tls = new_certificate()
    refused: list[int] = []
    with (
        running(strangers_max=8, on_refused=refused.append, tls=tls) as (endpoint, _),
        bare(endpoint.address, 30) as strangers,
    ):
        assert all(is_ended(one) for one in strangers[:22])
        assert is_heard(endpoint.address)
    assert refused[-1] >= 22


def test_a_request_without_end_costs_the_driver_few_bytes() -> None:
    refused: list[int] = []
    with (
        running(on_refused=refused.append) as (endpoint, _),
        bare(endpoint.address, 1) as (stranger,),
    ):
        stranger.sendall(REQUEST + b"".join(b"h%d: %s\r\n" % (n, b"x" * 999) for n in range(15)))
        stranger.settimeout(0.2)
        assert not is_ended(stranger), "it is below the limit so far"
        stranger.settimeout(20)
        with contextlib.suppress(ConnectionError):
            stranger.sendall(b"y" * STRANGER_BYTES_MAX)
        assert is_ended(stranger)
        wait_for(lambda: refused, "it is counted")
    assert refused == [1]


@pytest.mark.parametrize(
    "headers",
    [
        b"Coordlog-Wire: %d\r\nCoordlog-Wire: %d\r\n" % (WIRE_VERSION, WIRE_VERSION),
        b"Coordlog-Wire: %d\r\nAuthorization: a\r\nAuthorization: b\r\n" % WIRE_VERSION,
        b"Coordlog-Wire: %d\r\nAuthorization: Bearer \xff\r\n" % WIRE_VERSION,
    ],
    ids=["version", "token", "byte"],
)
def test_a_doubled_header_is_refused_counted_and_makes_no_traceback(
    headers: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[int] = []
    with (
        running(on_refused=refused.append) as (endpoint, _),
        bare(endpoint.address, 3) as strangers,
    ):
        for one in strangers:
            one.sendall(REQUEST + headers + b"\r\n")
            assert one.recv(1000).split()[1] in (b"401", b"426")
    assert refused == [1, 2, 3]
    assert not [one for one in caplog.records if one.exc_info]


def test_a_path_that_is_no_url_is_refused_and_makes_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused: list[int] = []
    with (
        running(on_refused=refused.append) as (endpoint, _),
        bare(endpoint.address, 1) as strangers,
    ):
        strangers[0].sendall(REQUEST.replace(b"/attempt", b"//[x/attempt") + b"\r\n")
        assert strangers[0].recv(1000).split()[1] == b"404"
    assert refused == [1]
    assert not [one for one in caplog.records if one.exc_info]


def test_each_side_of_a_connection_sends_small_messages_at_once() -> None:
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register())
        number = heard.connection_of(0)
        accepted = endpoint._connections[number].channel.transport.get_extra_info("socket")
        for side in (accepted, channel.socket):
            assert side.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# --- the rules, without a network -----------------------------------------------------------------
class Clock:
    """Seconds that pass only when they are told to."""

    seconds = 100.0

    def __call__(self) -> float:
        """Now."""
        return self.seconds


def strangers_of(
    *, count_max: int = 2
) -> tuple[Strangers, Clock, list[tuple[str, str]], contextlib.ExitStack]:
    refused: list[tuple[str, str]] = []
    clock = Clock()
    strangers = Strangers(
        lambda peer, why: refused.append((peer, why)),
        count_max=count_max,
        timeout_s=20,
        clock=clock,
    )
    return strangers, clock, refused, contextlib.ExitStack()


def pair(stack: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(0.05)
    return stack.enter_context(ours), stack.enter_context(theirs)


def test_a_flood_from_one_address_costs_that_address_its_connections() -> None:
    strangers, _, refused, stack = strangers_of(count_max=3)
    with stack:
        honest, of_honest = pair(stack)
        strangers.came(honest, ("10.0.0.1", 1))
        ends = []
        for port in range(6):
            ours, theirs = pair(stack)
            strangers.came(ours, ("10.0.0.9", port))
            ends.append(theirs)

        assert [is_ended(one) for one in ends] == [True] * 4 + [False] * 2
        assert not is_ended(of_honest)
    assert {peer for peer, _ in refused} == {"10.0.0.9"}
    assert refused[0][1] == "3 connections without the token are open; the oldest goes"


def test_a_slow_stranger_is_disconnected_and_a_slow_token_holder_is_not() -> None:
    strangers, clock, refused, stack = strangers_of()
    with stack:
        slow, of_slow = pair(stack)
        admitted, of_admitted = pair(stack)
        strangers.came(slow, ("10.0.0.1", 1))
        strangers.came(admitted, ("10.0.0.1", 2))
        strangers.admitted(("10.0.0.1", 2))
        strangers.watch()
        assert not is_ended(of_slow)

        clock.seconds += 21
        strangers.watch()

        assert is_ended(of_slow)
        assert not is_ended(of_admitted)
    assert refused == [("10.0.0.1", "no token within 20 s")]


def test_without_descriptors_the_listener_makes_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    strangers, *_ = strangers_of()
    with Listener.of(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.strangers = strangers

        def accept(_listener: socket.socket) -> tuple[socket.socket, Any]:
            raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(socket.socket, "accept", accept)
        with pytest.raises(OSError, match="too many open files"):
            listener.accept()
        for _ in range(100):
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_a_client_that_pings_and_never_reads_costs_few_bytes() -> None:
    """The library queues an answer to each ping, read or not."""
    frame = b"\x89\xfd" + bytes(4) + b"x" * 125
    with running() as (endpoint, _):
        with socket.create_connection(endpoint.listens, timeout=20) as client:
            shown = f"Coordlog-Wire: {WIRE_VERSION}\r\nAuthorization: {TOKEN.header()}\r\n\r\n"
            client.sendall(REQUEST + shown.encode())
            assert client.recv(12) == b"HTTP/1.1 101"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            many = frame * (8 * MESSAGE_BYTES_MAX // len(frame))
            with pytest.raises(OSError, match=r"reset|pipe"):
                client.sendall(many)
        assert is_heard(endpoint.address)


@pytest.mark.parametrize("path", ["/attempt", "/request", "/driver"])
@pytest.mark.parametrize("method", ["recv", "process_event"])
def test_frames_on_which_the_library_fails_end_their_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str, method: str
) -> None:
    """With the token, before and after a registration: closed at once, with the reason."""
    real = getattr(GuardedConnection, method)

    def failing(self: GuardedConnection, *args: Any) -> Any:  # noqa: ANN401, the library's own
        if any(isinstance(frame, Frame) and frame.opcode is Opcode.PONG for frame in args):
            raise AssertionError("scripted")
        return real(self, *args)

    async def receiving(self: GuardedConnection) -> Any:  # noqa: ANN401, as above
        data = await real(self)
        if data == b"scripted":
            raise AssertionError("scripted")
        return data

    monkeypatch.setattr(GuardedConnection, method, receiving if method == "recv" else failing)
    with running() as (endpoint, heard), connected(endpoint.address) as honest:
        say(honest, register())
        number = heard.connection_of(0)
        for registers in (True, False) if path == "/attempt" else (False,):
            with connected(endpoint.address, path=path) as channel:
                lost = None
                if registers:
                    say(channel, register(1))
                    lost = heard.connection_of(1)
                if method == "recv":
                    channel.send(b"scripted")
                else:
                    channel.pong(b"x")
                with pytest.raises(ConnectionClosed):
                    channel.recv(timeout=20)
                if lost is not None and method == "recv":
                    assert "AssertionError('scripted')" in heard.reason_of(lost)
        say(honest, acked(0))
        wait_for(lambda: heard.messages(number) == [acked(0)], "the other attempt is heard")

    lines = [one for one in caplog.records if "scripted" in one.getMessage()]
    assert 1 <= len(lines) <= 2
    assert not [one for one in caplog.records if one.exc_info]
