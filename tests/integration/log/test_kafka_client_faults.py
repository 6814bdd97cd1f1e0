"""Faults of kafka-python that coordlog works around, each shown on the client without the remedy.

If a test fails here, a release has corrected the fault: the remedy can go, once the lowest supported version has
the correction too. `test_kafka_log.py` has the faults that need a real broker.
"""

from __future__ import annotations

import asyncio
import logging
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import errors
from kafka.admin import KafkaAdminClient
from kafka.net import manager as client_manager
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.sasl import SaslAuthenticateRequest

from coordlog.log.kafka import Security
from coordlog.log.kafka import errors as remedies
from coordlog.log.kafka.admin_compat import cluster_of
from coordlog.log.kafka.client import _NO_LEADER, Connection, Questions, _ClosedSocket, made
from coordlog.log.kafka.writer import _offset
from servers.old_broker import broker_of_version

pytestmark = pytest.mark.slow

PASSWORD = "s3cret-Passw0rd"


class _Net:
    """The event loop of a client, as far as one socket needs it."""

    async def wait_write(self, sock: socket.socket, **_options: object) -> None:
        select.select([], [sock], [], 10)

    async def wait_read(self, sock: socket.socket, **_options: object) -> None:
        select.select([sock], [], [], 10)

    def unregister_event(self, *_arguments: object) -> None: ...


class _Protocol:
    _sensors = None

    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, _error: object) -> None: ...


@pytest.fixture
def wrong_server() -> Iterator[str]:
    """Address of a server that answers a TLS handshake with other bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1024)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("kind", [KafkaNetSocket, _ClosedSocket])
def test_the_client_leaves_the_socket_of_a_failed_connection_open(
    kind: type[KafkaNetSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_closed = kind is _ClosedSocket
    sockets: list[socket.socket] = []
    create = KafkaNetSocket.socket

    def noted(self: KafkaNetSocket, *args: Any) -> socket.socket:  # noqa: ANN401, the library's own
        sockets.append(create(self, *args))
        return sockets[-1]

    monkeypatch.setattr(KafkaNetSocket, "socket", noted)
    scheme = kind.SCHEMES[0] if is_closed else None
    net_socket: Any = KafkaNetSocket(None if scheme is None else f"{scheme}://")
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    with pytest.raises((errors.KafkaConnectionError, OSError)):
        asyncio.run(net_socket.connect(_Net(), address))
    assert [sock.fileno() == -1 for sock in sockets] == [is_closed]
    sockets[0].close()


@pytest.mark.parametrize(
    ("kind", "kept"), [(KafkaTCPTransport, b""), (remedies._PlainTransport, b"refused")]
)
def test_the_client_drops_bytes_that_arrive_with_a_connections_end(
    kind: type[KafkaTCPTransport], kept: bytes
) -> None:
    ours, brokers = socket.socketpair()
    ours.settimeout(0)
    transport: Any = kind(_Net(), ours, host="broker")
    protocol = _Protocol()
    transport.set_protocol(protocol)
    transport._read = True
    brokers.sendall(b"refused")
    brokers.close()
    asyncio.run(transport._read_from_sock())
    assert protocol.received == kept


class _LaterNet(_Net):
    """An event loop that runs nothing by itself."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def call_soon(self, task: object) -> None:
        self.tasks.append(task)

    def cancel(self, _task: object) -> None: ...


@pytest.mark.parametrize(
    ("kind", "sent"), [(KafkaTCPTransport, b""), (remedies._PlainTransport, b"request")]
)
def test_the_client_sends_a_request_in_a_later_pass_of_its_loop(
    kind: type[KafkaTCPTransport], sent: bytes
) -> None:
    net = _LaterNet()
    ours, brokers = socket.socketpair()
    with ours, brokers:
        ours.settimeout(0)
        transport: Any = kind(net, ours, host="broker")
        transport.write(b"request")
        assert bool(net.tasks) is not bool(sent)
        for task in net.tasks:
            asyncio.run(task())
        assert brokers.recv(100) == b"request"


def test_a_request_that_the_socket_takes_in_parts_is_sent_whole() -> None:
    net, requests = _LaterNet(), [bytes([1]) * 5_000_000, b"next"]
    ours, brokers = socket.socketpair()
    with ours, brokers:
        ours.settimeout(0)
        transport: Any = remedies._PlainTransport(net, ours, host="broker")
        for request in requests:
            transport.write(request)
        received = bytearray()
        reading = threading.Thread(target=lambda: received.extend(_all_of(brokers)))
        reading.start()
        (task,) = net.tasks
        asyncio.run(task())
        ours.shutdown(socket.SHUT_WR)
        reading.join(20)
        assert received == b"".join(requests)


@pytest.mark.parametrize(
    ("kind", "is_closed"), [(KafkaTCPTransport, False), (remedies._PlainTransport, True)]
)
def test_the_client_leaves_a_socket_open_that_has_bytes_to_send(
    kind: type[KafkaTCPTransport], *, is_closed: bool
) -> None:
    ours, brokers = socket.socketpair()
    with ours, brokers:
        ours.settimeout(0)
        transport: Any = kind(_LaterNet(), ours, host="broker")
        transport.set_protocol(_Protocol())
        transport.write(bytes(5_000_000))  # more than the socket takes
        transport.close()
        # A client that is closed runs its loop no more.
        assert (ours.fileno() == -1) is is_closed


def test_a_broken_connection_is_found_by_the_clients_own_sending() -> None:
    net = _LaterNet()
    lost: list[Exception] = []
    ours, brokers = socket.socketpair()
    ours.settimeout(0)
    transport: Any = remedies._PlainTransport(net, ours, host="broker")
    protocol: Any = _Protocol()
    protocol.connection_lost = lost.append
    transport.set_protocol(protocol)
    brokers.close()
    transport.write(b"request")
    (task,) = net.tasks
    asyncio.run(task())
    assert [type(error) for error in lost] == [errors.KafkaConnectionError]
    with pytest.raises(RuntimeError, match="closed"):
        transport.write(b"request")


def _all_of(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize("kind", [KafkaConnectionManager, remedies.WatchingManager])
def test_the_client_leaves_the_socket_of_a_failed_handshake_open(
    kind: type[KafkaConnectionManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, brokers = socket.socketpair()

    async def connected(*_args: object, **_options: object) -> socket.socket:
        return ours

    async def fails(_transport: object) -> None:
        raise ConnectionResetError("during the handshake")

    for module in (client_manager, remedies):
        monkeypatch.setattr(module, "create_connection", connected)
    monkeypatch.setattr(KafkaTCPTransport, "handshake", fails)
    net = NetworkSelector()
    manager: Any = kind(net, bootstrap_servers=["127.0.0.1:1"])
    node = manager.cluster.brokers()[0] if manager.cluster.brokers() else None
    node = node or next(iter(manager.cluster.bootstrap_brokers()))
    with ours, brokers:
        with pytest.raises(errors.KafkaConnectionError, match=r"(?i)handshake failed"):
            asyncio.run(manager._build_transport(node))
        assert (ours.fileno() == -1) is (kind is remedies.WatchingManager)
    manager.close()
    net.close()


def test_the_client_tries_a_hopeless_connection_until_its_time_is_up(
    wrong_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = Security(protocol="SSL")
    connection = Connection(
        topic="a.log", bootstrap_servers=wrong_server, security=security, connect_timeout_s=1.0
    )
    with pytest.raises(remedies.KeptOutError, match="WRONG_VERSION_NUMBER"):
        made(KafkaAdminClient, connection.options(30.0))
    monkeypatch.setattr(remedies.WatchingManager, "_note", lambda *_args: None)
    with pytest.raises(errors.KafkaTimeoutError):
        made(KafkaAdminClient, connection.options(1.0))


def test_the_client_logs_its_password(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    options |= {"bootstrap_servers": ["127.0.0.1:1"], "bootstrap_timeout_ms": 50}
    options["proxy_url"] = f"{_ClosedSocket.SCHEMES[0]}://"
    plainly: dict[str, object] = {"sasl_plain_username": "ann", "sasl_plain_password": PASSWORD}
    caplog.set_level(logging.DEBUG, "kafka")
    with pytest.raises(errors.KafkaError):
        made(KafkaAdminClient, options | plainly)
    assert PASSWORD in caplog.text
    request: Any = SaslAuthenticateRequest(auth_bytes=PASSWORD.encode())
    assert PASSWORD in str(request), "the filter of the client's requests keeps it out of the log"


def test_the_client_cannot_describe_an_older_cluster() -> None:
    with broker_of_version((3, 0)) as servers:
        admin = KafkaAdminClient(bootstrap_servers=servers)
        try:
            with pytest.raises(KeyError, match="endpoint_type"):  # sent since 3.7
                admin.describe_cluster()
            assert cluster_of(admin)["cluster_id"] == "old"
        finally:
            admin.close()


class _UnansweredFuture:
    """As the client returns it for a record without an answer, if no time is left."""

    is_done, exception, value = False, None, None

    def get(self, timeout: float) -> None:
        assert timeout == 0.0


def test_a_record_without_an_answer_is_a_timeout_on_any_client() -> None:
    """Before kafka-python 3.0.12, `get(timeout=0)` returns None instead of an error."""
    with pytest.raises(errors.KafkaTimeoutError):
        _offset(_UnansweredFuture(), end=0.0)


def test_the_range_ends_at_the_version_that_is_developed_with() -> None:
    root = Path(__file__).parents[3]
    allowed = re.search(
        r'"kafka-python>=([\d.]+),<=([\d.]+)"', (root / "pyproject.toml").read_text("utf-8")
    )
    developed = re.search(
        r"^kafka-python==([\d.]+)$", (root / "constraints.txt").read_text("utf-8"), re.MULTILINE
    )
    assert allowed is not None
    assert developed is not None
    assert allowed[2] == developed[1]


def without_assertions(program: str) -> str:
    """Output of a program that runs under `python -O`."""
    return subprocess.run(
        [sys.executable, "-O", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_the_client_reads_a_byte_of_each_answer_inside_an_assertion() -> None:
    program = (
        "import io; from kafka.protocol.schemas.fields.codecs.tagged_fields import TaggedFields; "
        "data = io.BytesIO(bytes(1)); TaggedFields.decode_empty(data); print(data.tell())"
    )
    assert without_assertions(program) == "0\n"


def test_a_client_without_assertions_is_refused_with_the_reason() -> None:
    program = (
        "from coordlog.errors import EnvironmentSetupError\n"
        "from coordlog.log.kafka import list_jobs\n"
        "try:\n"
        "    list_jobs('127.0.0.1:1', connect_timeout_s=5)\n"
        "except EnvironmentSetupError as error:\n"
        "    print(error)\n"
    )
    assert "unset PYTHONOPTIMIZE" in without_assertions(program)


def test_a_partition_without_a_leader_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a broker that stood still for a while: the client looks for a broker of number -1."""
    fault = _NO_LEADER(-1)
    assert not fault.retriable
    answers: Iterator[str | Exception] = iter([fault, "offsets"])

    class Admin:
        def close(self) -> None: ...

    def question(_admin: object) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Questions, "_make", lambda *_arguments: Admin())
    connection = Connection(
        topic="a.log", bootstrap_servers="127.0.0.1:9", security=Security(), connect_timeout_s=10.0
    )

    assert Questions(connection).ask("asking for its offsets", question) == "offsets"
