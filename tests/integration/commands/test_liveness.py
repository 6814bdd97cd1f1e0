"""What is known of a driver from here, and what drivers and commands make of it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from coordlog.cli.living import driver_lives
from coordlog.errors import (
    DriverAliveError,
    DriverUnknownError,
    OptionError,
    RequestUnansweredError,
)
from coordlog.log.local.processes import find_process
from coordlog.schemas.builtin_types import SnapshotTaken, SnapshotWanted
from coordlog.spark_integration.driver.driver_file import (
    end_driver_file,
    write_driver_file,
)
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.driver.liveness import (
    Liveness,
    NamedDriver,
    SeenDriver,
    driver_liveness,
    refuse_unless_gone,
)
from coordlog.spark_integration.driver.machine import Machine
from coordlog.spark_integration.driver.requests import request_coordinator
from coordlog.spark_integration.wire.token import TOKEN_VARIABLE, Token
from fakes.driver_files import ENDED_PROCESS, file_of, write_file
from fakes.endpoint_parts import TOKEN, Heard, running

NOBODY = "ws://127.0.0.1:1"
ELSEWHERE = Machine(host="another", machine_id="m", boot_id="b", namespaces="pid:[4026531836] net")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def named(endpoint: str, *, is_over: bool = False) -> NamedDriver:
    return NamedDriver(
        job_id="ingest", epoch=3, driver_id="d1", endpoint=endpoint, host="m1", is_over=is_over
    )


def liveness(endpoint: str) -> Liveness:
    return driver_liveness(named(endpoint)).liveness


def seen(endpoint: str) -> SeenDriver:
    return driver_liveness(named(endpoint))


@contextmanager
def standing_still() -> Iterator[str]:
    """A driver in a process of its own, stopped by a signal: its kernel still accepts connections."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        endpoint = Endpoint(job_id="ingest", driver_id="d1", token=TOKEN, arrivals=Heard())
        os.write(writes, endpoint.start().encode())
        threading.Event().wait(120)
        os._exit(0)
    address = os.read(reads, 200).decode()
    process = find_process(pid)
    assert process is not None
    write_file(address, TOKEN, process=process)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield address
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reads)
        os.close(writes)


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.clause("K2")
def test_a_paused_driver_is_not_gone_and_a_killed_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordlog.spark_integration.driver.liveness.TAKE_OVER_PROBE_S", 1.0)
    with standing_still() as address:
        still = seen(address)
        assert still.liveness is Liveness.UNKNOWN
        assert "has not ended, and does not answer" in still.why
        with pytest.raises(DriverUnknownError, match=r"may stand still.*--take-over"):
            refuse_unless_gone(named(address))
    assert "has ended" in seen(address).why
    assert liveness(address) is Liveness.GONE


@pytest.mark.clause("K2")
def test_a_driver_on_another_machine_is_not_gone_if_no_port_listens_here() -> None:
    """Its loopback address is this machine's own here, and process numbers count there."""
    write_file("ws://127.0.0.1:20001", Token.new(), driver_id="d0", process=ENDED_PROCESS)
    assert liveness(NOBODY) is Liveness.UNKNOWN, "a file of a driver before says nothing of it"
    assert "it ran on m1" in seen(NOBODY).why

    write_file(NOBODY, TOKEN, machine=ELSEWHERE, process=ENDED_PROCESS)
    assert liveness(NOBODY) is Liveness.UNKNOWN, "a home that machines share"
    assert "it ran on another" in seen(NOBODY).why
    assert not driver_lives(named(NOBODY), is_take_over=True)


def test_a_driver_on_another_machine_that_said_that_it_ended_is_gone() -> None:
    file = write_file(NOBODY, TOKEN, machine=ELSEWHERE)
    end_driver_file(file)

    assert liveness(NOBODY) is Liveness.GONE


def test_a_driver_that_the_log_says_is_over_is_gone_unless_it_answers() -> None:
    assert driver_liveness(named(NOBODY, is_over=True)).liveness is Liveness.GONE
    assert liveness("") is Liveness.GONE, "a command's epoch"
    with running() as (endpoint, _):
        write_file(endpoint.address, TOKEN)
        over = driver_liveness(named(endpoint.address, is_over=True))
        assert over.liveness is Liveness.LIVES


def test_a_token_of_another_driver_does_not_make_a_live_driver_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job could be deleted, and its driver fenced, while it ran."""
    monkeypatch.setenv(TOKEN_VARIABLE, Token.new().text())
    with running() as (endpoint, _):
        assert liveness(endpoint.address) is Liveness.UNKNOWN
        with pytest.raises(
            DriverUnknownError, match="answers there as its driver d1, and no token that is here"
        ):
            driver_lives(named(endpoint.address), is_take_over=False)
        assert not driver_lives(named(endpoint.address), is_take_over=True)

        write_file(endpoint.address, TOKEN)
        assert liveness(endpoint.address) is Liveness.LIVES
        assert driver_lives(named(endpoint.address), is_take_over=False)
        with pytest.raises(DriverAliveError, match="is driven by a live driver"):
            refuse_unless_gone(named(endpoint.address))


def test_the_variable_proves_that_a_driver_on_another_machine_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN.text())
    with running() as (endpoint, _):
        assert liveness(endpoint.address) is Liveness.LIVES
    assert liveness(NOBODY) is Liveness.UNKNOWN, "a token proves no end"


@pytest.mark.clause("K2")
def test_a_living_process_whose_port_is_closed_is_not_gone() -> None:
    """Its endpoint may have ended alone: such a driver still appends."""
    write_file(NOBODY, TOKEN)

    assert liveness(NOBODY) is Liveness.UNKNOWN
    with pytest.raises(DriverUnknownError, match="has not ended, and does not answer"):
        refuse_unless_gone(named(NOBODY))


def test_without_a_known_process_a_refused_connection_proves_the_end() -> None:
    """A system that reports no start times of processes."""
    write_driver_file(replace(file_of(NOBODY, TOKEN), process=None))

    assert liveness(NOBODY) is Liveness.GONE
    assert not driver_lives(named(NOBODY), is_take_over=False)


def test_a_stranger_on_the_port_of_a_driver_proves_nothing() -> None:
    """Neither that it lives nor that it is gone: a machine may have forwarded the port."""
    with running() as (endpoint, _):
        write_file(endpoint.address, Token.new(), driver_id="d2")
        driver = replace(named(endpoint.address), driver_id="d2")
        assert driver_liveness(driver).liveness is Liveness.UNKNOWN


def test_an_address_that_this_machine_has_no_more_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of a VPN: another machine may have it by now, and refuses the connection."""

    def refused(*_args: object, **_options: object) -> socket.socket:
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refused)
    file = replace(file_of(NOBODY, TOKEN), process=None)
    for listens, expected in (
        (("192.0.2.7", 1), Liveness.UNKNOWN),
        (("a..b", 1), Liveness.UNKNOWN),
        (("127.0.0.1", 1), Liveness.GONE),
    ):
        write_driver_file(replace(file, listens=listens))
        assert liveness(NOBODY) is expected, listens


def test_the_file_of_another_user_proves_no_end_and_the_message_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_file(NOBODY, TOKEN, process=ENDED_PROCESS)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)

    assert liveness(NOBODY) is Liveness.UNKNOWN
    assert "jobs/ingest/d1.json in COORDLOG_HOME is another user's" in seen(NOBODY).why


@pytest.mark.parametrize("content", ["", "{"])
def test_a_file_that_was_cut_short_is_no_proof_and_no_wrong_usage(content: str) -> None:
    write_driver_file(file_of(NOBODY, TOKEN)).write_text(content)

    assert liveness(NOBODY) is Liveness.UNKNOWN


# Requests


def ask(endpoint: str, token: Token | None = None) -> None:
    request_coordinator(
        "",
        SnapshotWanted(why="x"),
        job_id="ingest",
        endpoint=endpoint,
        token=token,
        response_types=(SnapshotTaken,),
        timeout_s=2,
    )


def test_no_token_is_sent_to_the_endpoint_of_a_driver_that_has_ended() -> None:
    """Any process may listen there by now, and would be let in at the driver that lives."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as stranger, running() as (live, _):

        def listen() -> None:
            while True:
                try:
                    connection, _ = stranger.accept()
                except OSError:
                    return
                with connection:
                    seen.append(connection.recv(4000))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            old = f"ws://127.0.0.1:{stranger.getsockname()[1]}"
            end_driver_file(write_file(old, Token.new(), driver_id="d0"))
            write_file(live.address, TOKEN)
            with pytest.raises(RequestUnansweredError, match="is over: its file records its end"):
                ask(old)
            with pytest.raises(
                OptionError, match=r"its driver at .* has no file on this machine.* is over"
            ):
                ask(NOBODY)
            with pytest.raises(RequestUnansweredError, match="the token was not sent"):
                ask(old, TOKEN)
        finally:
            stranger.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert seen, "it was asked to prove itself"
    assert not [one for one in seen if TOKEN.text().encode() in one or b"Authorization" in one]


def test_of_two_files_of_one_endpoint_the_ended_drivers_is_not_used() -> None:
    """A fixed port is the next driver's too."""
    with running() as (live, _):
        write_file(live.address, TOKEN)
        write_file(live.address, Token.new(), driver_id="d0", process=ENDED_PROCESS)
        with pytest.raises(RequestUnansweredError, match="no close frame"):
            ask(live.address)  # let in, and not answered: this endpoint has no coordinators
