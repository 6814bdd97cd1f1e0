"""A client's TLS socket with a thread that reads and another that writes, against a real server of TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
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
    serve: Callable[[ssl.SSLSocket], None],
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


def test_a_wait_ends_with_its_time_limit_and_with_the_socket() -> None:
    is_over = threading.Event()

    def wait(_server: ssl.SSLSocket) -> None:
        is_over.wait(WAIT_S)

    with served(wait) as (client, threads):
        client.settimeout(0.01)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(None)
        reading = begun(lambda: client.recv(1), threads)
        client.close()
        # The end of the data, or a socket that is closed already.
        assert reading.exception(WAIT_S) is None or isinstance(
            reading.exception(), OSError | ValueError
        )
        is_over.set()
