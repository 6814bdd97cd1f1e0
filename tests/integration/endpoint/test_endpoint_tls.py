"""An endpoint with TLS: tasks and clients that were handed its certificate, and everybody else."""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import InvalidHandshake
from websockets.sync.client import connect

from coordlog.errors import (
    AttemptError,
    EnvironmentSetupError,
    OptionError,
    RequestUnansweredError,
    SourceError,
)
from coordlog.messages import Fail
from coordlog.runtime.requests import Requests
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.reads import QueryReads, ReadsSeen
from coordlog.spark_integration import request_coordinator
from coordlog.spark_integration.dataframes.ticket import ServiceClient, Ticket
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.task.driver_connection import DriverConnection
from coordlog.spark_integration.wire.certificate import (
    CERTIFICATE_VARIABLE,
    Certificate,
    new_certificate,
)
from coordlog.spark_integration.wire.driver_proof import DriverHeard, hear_driver
from coordlog.spark_integration.wire.token import Token
from fakes.driver_files import write_file
from fakes.endpoint_parts import (
    TOKEN,
    Heard,
    connected,
    delivered,
    own_threads,
    register,
    running,
    sent,
    wait_for,
)
from fakes.request_fakes import HowMany, SoMany
from jobs.reads_job import no_reader

pytestmark = pytest.mark.timeout(120)

CERTIFICATE, SERVER = new_certificate()
ANOTHER, _ = new_certificate()


@contextmanager
def encrypted(**options: object) -> Generator[tuple[Endpoint, Heard], None, None]:
    with running(tls=SERVER, **options) as found:
        yield found


def opened(
    address: str, *, certificate: Certificate | None = CERTIFICATE, token: Token = TOKEN
) -> DriverConnection:
    return DriverConnection(endpoint=address, token=token, certificate=certificate)


@contextmanager
def tapped(address: str) -> Generator[tuple[str, bytearray], None, None]:
    """An address before another one, and all the bytes that pass there."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    seen = bytearray()

    def pass_on(from_: socket.socket, to: socket.socket) -> None:
        with closing(from_), closing(to):
            while data := _received(from_):
                seen.extend(data)
                to.sendall(data)

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection((host, int(port)))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=pass_on, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        scheme = address.partition(":")[0]
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", seen


def _received(from_: socket.socket) -> bytes:
    try:
        return from_.recv(65536)
    except OSError:
        return b""


def test_a_task_with_the_certificate_speaks_as_without_tls() -> None:
    before = own_threads()
    last = Fail(operator_id="source", callback="poll", reason="x" * 4000)
    with encrypted() as (endpoint, heard):
        assert endpoint.address.startswith("wss://127.0.0.1:")
        task = opened(endpoint.address)
        task.open()
        task.send(register())
        number = heard.connection_of(0)
        for n in range(200):
            endpoint.send(number, delivered(n, bytes(10_000)))
            task.send(sent(n, bytes(10_000)))
        got = [task.inbox.get(timeout=20) for _ in range(200)]
        task.send(last)
        task.close()
        assert heard.reason_of(number) == "its task has closed it"
        said = [*(sent(n, bytes(10_000)) for n in range(200)), last]
        assert heard.messages(number) == said
        assert got == [delivered(n, bytes(10_000)) for n in range(200)]
    assert own_threads() == before


def test_a_task_tells_its_token_to_nobody_whom_it_cannot_trust() -> None:
    with encrypted() as (endpoint, heard):
        task = opened(endpoint.address, certificate=ANOTHER)
        with (
            closing(task),
            pytest.raises(AttemptError, match=r"did not admit this task.*self.signed certificate"),
        ):
            task.open()
        assert heard.arrivals == []


def test_the_token_is_read_off_the_wire_without_tls_and_not_with_it() -> None:
    shown = TOKEN.text().encode()
    for is_encrypted, found in ((False, True), (True, False)):
        with (
            running(tls=SERVER if is_encrypted else None) as (endpoint, heard),
            tapped(endpoint.address) as (address, seen),
        ):
            task = opened(address, certificate=CERTIFICATE if is_encrypted else None)
            task.open()
            task.send(register())
            heard.connection_of(0)
            task.close()
        assert (shown in bytes(seen)) is found
        assert (b"Coordlog-Wire" in bytes(seen)) is found


def test_who_speaks_no_tls_gets_nothing_and_disturbs_nobody() -> None:
    with encrypted() as (endpoint, heard):
        task = opened(endpoint.address)
        with closing(task):
            task.open()
            task.send(register())
            heard.connection_of(0)
            plain = endpoint.address.replace("wss:", "ws:")
            with pytest.raises((InvalidHandshake, OSError, EOFError)), connected(plain):
                pass
            host, _, port = endpoint.address.removeprefix("wss://").rpartition(":")
            with socket.create_connection((host, int(port)), timeout=20) as raw:
                raw.sendall(b"GET /attempt HTTP/1.1\r\n\r\n")
                assert b"HTTP" not in _received(raw)
            assert task.why_over() is None
            assert len(heard.arrivals) == 1


def test_without_the_token_tls_admits_no_client_and_reveals_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = Token(bytes(32))
    with encrypted() as (endpoint, heard):
        task = opened(endpoint.address, token=wrong)
        with closing(task), pytest.raises(AttemptError, match="HTTP 401: not this driver's token"):
            task.open()
        with pytest.raises(InvalidHandshake) as refused:
            connect(
                endpoint.address + "/request", ssl=CERTIFICATE.context(), proxy=None
            ).__enter__()
        assert "ingest" not in str(vars(refused.value)["response"].body)
        assert heard.arrivals == []
    assert "wrong token" in caplog.text
    own = [one.getMessage() for one in caplog.records if one.name != "websockets.client"]
    assert TOKEN.text() not in "\n".join(own)
    assert "PRIVATE KEY" not in caplog.text


def test_a_live_driver_is_found_by_who_holds_the_token_and_no_certificate() -> None:
    hears = functools.partial(hear_driver, job_id="ingest", driver_id="d1", timeout_s=5)
    with encrypted() as (endpoint, _):
        assert hears(endpoint.address, tokens=[TOKEN]) is DriverHeard.DRIVER
        assert hears(endpoint.address, tokens=[Token.new()]) is DriverHeard.UNPROVED
        plain = endpoint.address.replace("wss:", "ws:")
        assert hears(plain, tokens=[TOKEN]) is DriverHeard.NOTHING


def test_a_client_uses_the_file_in_the_jobs_folder_or_a_named_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(CERTIFICATE_VARIABLE, raising=False)
    requests = Requests(PayloadTypes((HowMany, SoMany)))
    given: list[object] = []
    requests.begin(given.append)  # never answered: that it has come is what is looked at
    with encrypted(requests=requests) as (endpoint, _):

        def ask(certificate: Certificate | None = None, timeout_s: float = 0.5) -> None:
            request_coordinator(
                "source",
                HowMany(),
                job_id="ingest",
                endpoint=endpoint.address,
                response_types=(SoMany,),
                token=TOKEN,
                certificate=certificate,
                timeout_s=timeout_s,
            )

        with pytest.raises(OptionError, match=f"{CERTIFICATE_VARIABLE}.*certificate of job ingest"):
            ask()
        with pytest.raises(RequestUnansweredError, match=r"self.signed certificate"):
            ask(ANOTHER, timeout_s=20)
        assert given == []

        write_file(endpoint.address, TOKEN, certificate=CERTIFICATE)
        with pytest.raises(RequestUnansweredError, match="timed out"):
            ask()
        wait_for(lambda: len(given) == 1, "the request arrives")

        monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "elsewhere"))
        (tmp_path / "driver.pem").write_text(CERTIFICATE.pem, "ascii")
        monkeypatch.setenv(CERTIFICATE_VARIABLE, str(tmp_path / "driver.pem"))
        with pytest.raises(RequestUnansweredError, match="timed out"):
            ask()
        wait_for(lambda: len(given) == 2, "the request arrives")


def test_somebody_who_connects_and_never_begins_tls_keeps_nobody_waiting() -> None:
    with encrypted() as (endpoint, heard):
        host, _, port = endpoint.address.removeprefix("wss://").rpartition(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(50)]
        try:
            began_s = time.monotonic()
            task = opened(endpoint.address)
            with closing(task):
                task.open()
                task.send(register())
                heard.connection_of(0)
            assert time.monotonic() - began_s < 10
        finally:
            for one in silent:
                one.close()


# --- where it listens -----------------------------------------------------------------------------
def test_a_connection_in_the_tls_handshake_is_ended_with_the_endpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with contextlib.ExitStack() as bare:
        with encrypted() as (endpoint, heard):
            silent = bare.enter_context(socket.create_connection(endpoint.listens))
            silent.settimeout(20)
            with closing(opened(endpoint.address)) as task:
                task.open()  # accepted after `silent`
                task.send(register())
                heard.connection_of(0)
        assert silent.recv(1) == b"", "ended, not left open"
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_what_is_advertised_is_another_address_than_what_is_bound() -> None:
    with encrypted(host="0.0.0.0", advertised="127.0.0.2") as (endpoint, heard):
        assert endpoint.address.startswith("wss://127.0.0.2:")
        task = opened(endpoint.address)
        with closing(task):
            task.open()
            task.send(register())
            heard.connection_of(0)


def test_the_first_free_port_of_a_range_is_taken_and_a_full_range_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        with running(ports=range(first, first + 20)) as (endpoint, _):
            assert first < int(endpoint.address.rpartition(":")[2]) < first + 20
        with (
            pytest.raises(
                EnvironmentSetupError, match=rf"'127\.0\.0\.1', ports {first} to {first}: .*in use"
            ),
            running(ports=range(first, first + 1)),
        ):
            pass


def test_a_used_up_dataframe_asks_no_other_service_at_the_same_port_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a port of its own each service shows another certificate there."""
    monkeypatch.setattr(time, "sleep", lambda _s: pytest.fail("it asks again"))
    with encrypted() as (endpoint, _):
        used_up = Ticket(
            job_id="reads",
            endpoint=endpoint.address,
            token=Token.new(),
            certificate=ANOTHER,
            create_reader=no_reader,
            schema_json="{}",
            partitions=1,
            splits_max=0,
        )
        with (
            ServiceClient(used_up) as client,
            pytest.raises(SourceError, match="its service does not answer"),
        ):
            client.ask(QueryReads(after=-1, splits_max=0), ReadsSeen)
