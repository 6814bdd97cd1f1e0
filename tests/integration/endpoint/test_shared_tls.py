"""A client's TLS socket with a thread that reads and another that writes, against a real server of TLS."""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import pytest

from coordlog.spark_integration.wire.certificate import new_certificate
from coordlog.spark_integration.wire.shared_tls import SharedTLSSocket

pytestmark = pytest.mark.timeout(120)

CERTIFICATE, SERVER = new_certificate()
WAIT_S = 20
MESSAGE = bytes(range(250)) * 4
MESSAGE_COUNT = 400


@contextmanager
def served(
    serve: Callable[[ssl.SSLSocket], object],
) -> Generator[tuple[ssl.SSLSocket, ThreadPoolExecutor], None, None]:
    """A client whose server does `serve`, and threads for the client's calls."""
    client_side, server_side = socket.socketpair()
    server_side.settimeout(WAIT_S)
    client_side.settimeout(WAIT_S)

    def run() -> None:
        with server_side, SERVER.wrap_socket(server_side, server_side=True) as server:
            serve(server)

    with ThreadPoolExecutor() as threads:
        serving = threads.submit(run)
        with client_side, CERTIFICATE.context().wrap_socket(client_side) as client:
            yield client, threads
        serving.result(WAIT_S)


def received(from_: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = from_.recv(65536)
        assert part, f"the end after {len(data)} of {size} bytes"
        data += part
    return data


def echo(server: ssl.SSLSocket) -> None:
    for _ in range(MESSAGE_COUNT):
        server.sendall(received(server, len(MESSAGE)))


def begun(action: Callable[[], bytes], threads: ThreadPoolExecutor) -> Future[bytes]:
    """`action`, which a thread of its own has begun."""
    is_begun = threading.Event()

    def run() -> bytes:
        is_begun.set()
        return action()

    future = threads.submit(run)
    assert is_begun.wait(WAIT_S)
    return future


def test_one_thread_reads_while_another_writes() -> None:
    """Python's own class fails here in each try: damaged records, or a write that is never sent."""
    with served(echo) as (client, threads):
        assert isinstance(client, SharedTLSSocket)
        reading = begun(lambda: received(client, MESSAGE_COUNT * len(MESSAGE)), threads)
        for _ in range(MESSAGE_COUNT):
            client.sendall(MESSAGE)
        assert reading.result(WAIT_S) == MESSAGE * MESSAGE_COUNT


def test_a_thread_that_waits_for_data_keeps_no_write_waiting() -> None:
    """The server's first bytes are those of its session tickets, which are no data."""
    with served(lambda server: server.sendall(received(server, 1))) as (client, threads):
        reading = begun(lambda: client.recv(1), threads)
        client.sendall(b"x")
        assert reading.result(WAIT_S) == b"x"


def test_a_write_larger_than_the_buffers_waits_for_the_other_side() -> None:
    data = MESSAGE * 4_000
    got: list[bytes] = []
    with served(lambda server: got.append(received(server, len(data)))) as (client, _):
        client.sendall(data)
    assert got == [data]


def test_a_wait_ends_with_its_time_limit() -> None:
    with served(lambda server: server.recv(1)) as (client, _):
        client.settimeout(0.01)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_a_wait_ends_with_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is closed once its selector has it, and would forget it."""
    has_it, closings = threading.Event(), list[Future[None]]()

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            has_it.set()
            while not closings:
                time.sleep(0.001)
            # It ends before this wait only if it leaves the selector without its socket.
            wait(closings, timeout=0.3)
            return super().select(timeout)

    with served(lambda server: server.recv(1)) as (client, threads):
        monkeypatch.setattr(selectors, "DefaultSelector", Selector)
        client.settimeout(None)
        reading = threads.submit(client.recv, 1)
        assert has_it.wait(WAIT_S)
        closings.append(threads.submit(client.close))
        assert reading.result(WAIT_S) == b""
        closings[0].result(WAIT_S)
