"""Brokers that run on this machine: kills, taken ports, races, and whose death ends what."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.structs import TopicPartition

from coordlog.errors import EnvironmentSetupError, OptionError
from coordlog.log.broker import limits as broker_limits
from coordlog.log.broker import process
from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.broker.process import StartOptions, is_free
from coordlog.log.broker.shared import (
    StopOutcome,
    ensure_shared_broker,
    shared_status,
    start_shared,
    stop_shared,
)
from coordlog.log.broker.state import (
    BrokerState,
    answers,
    read_state,
)
from coordlog.log.local.environment_errors import (
    BrokerBusyError,
    BrokerError,
    BrokerStartError,
)
from coordlog.log.local.processes import (
    Process,
    client_count,
    find_process,
    is_alive,
    listener,
    this_process,
    wait_until_gone,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PATIENCE_S: Final = 60.0
"""For what comes within milliseconds on a quiet machine."""

ANSWERS: Final = (
    b"",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x00\x00\x00\x04\x00\x00\x00\x01",
    b"\x00\x00\x00\x0c\x00\x00\x00\x01\x7f\xff\xff\xff\x00\x00\x00\x01",
    b"\x00\x00\x00\x08\x00\x00\x00\x01\xff\xff\xff\xff",
)
"""Responses of servers that are no brokers: none, HTTP, cut short, with a count that is too large or negative."""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.02)


def write(bootstrap_servers: str, topic: str, values: list[bytes]) -> None:
    """Append to a topic; returns when all is acknowledged."""
    with closing(KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")) as producer:
        for sent in [producer.send(topic, value) for value in values]:
            sent.get(PATIENCE_S)


def create(bootstrap_servers: str, topic: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])


def read(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    """So many values from the start of a topic."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
    found: list[bytes] = []
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0)])
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=200).values():
                found += [record.value for record in records]
    return found


def python(source: str) -> subprocess.Popen[str]:
    """Another Python process that runs this source, with pipes for what it reads and prints."""
    return subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def state_of(broker: EmbeddedBroker) -> BrokerState:
    state = read_state(broker.folder)
    assert state is not None
    return state


# One of one's own


def test_what_is_written_is_read(broker: EmbeddedBroker) -> None:
    create(broker.bootstrap_servers, "written")
    write(broker.bootstrap_servers, "written", [b"a", b"b", b"c"])

    assert read(broker.bootstrap_servers, "written", 3) == [b"a", b"b", b"c"]


def test_it_listens_on_the_loopback_interface_only(broker: EmbeddedBroker) -> None:
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(broker.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]

    assert len(listening) == 2  # for clients and for the controller
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_clients_are_counted_while_they_are_connected(broker: EmbeddedBroker) -> None:
    java = state_of(broker).java
    before = client_count(java, broker.port)
    assert before is not None
    with socket.create_connection(("127.0.0.1", broker.port)):
        until(lambda: client_count(java, broker.port) == before + 1, "one client more")
    until(lambda: client_count(java, broker.port) == before, "the client is gone")


def test_only_the_servers_end_of_a_living_connection_counts() -> None:
    """Neither a listening socket, nor the client's end, nor a connection of another server."""
    us = this_process()
    with python("input()") as other:
        stranger = find_process(other.pid)
        assert stranger is not None
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_server(("127.0.0.1", 0)) as another,
            socket.create_connection(server.getsockname()) as client,
            server.accept()[0],
        ):
            port = server.getsockname()[1]
            assert client_count(us, port) == 1
            assert client_count(us, client.getsockname()[1]) == 1, (
                "as if the client were the server"
            )
            assert client_count(us, another.getsockname()[1]) == 0
            assert client_count(stranger, port) == 0
            assert listener(port) == f"process {os.getpid()} ({psutil.Process().name()})"
            assert listener(client.getsockname()[1]) == "another process"
        other.kill()
    assert wait_until_gone(stranger, PATIENCE_S)
    assert client_count(stranger, port) is None


def test_a_server_that_is_no_broker_does_not_answer() -> None:
    answer = [b""]

    def serve(server: socket.socket) -> None:
        for _ in ANSWERS:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer[0])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        for answer[0] in ANSWERS:
            assert not answers(server.getsockname()[1], "c")
        thread.join(PATIENCE_S)


def test_a_server_that_answers_byte_by_byte_is_given_up_within_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordlog.log.broker.limits.PROBE_TIMEOUT_S", 0.3)
    is_over = threading.Event()

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall((10_000).to_bytes(4, "big"))
            while not is_over.wait(0.05):
                connection.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        began_s = time.monotonic()
        assert not answers(server.getsockname()[1], "c")
        assert time.monotonic() - began_s < PATIENCE_S / 2
        is_over.set()
        thread.join(PATIENCE_S)


def test_another_cluster_on_the_port_is_not_taken_for_ours(broker: EmbeddedBroker) -> None:
    state = state_of(broker)

    assert answers(state.port, state.cluster_id)
    assert not answers(state.port, "another")
    assert not answers(1, state.cluster_id)


@pytest.mark.kill
def test_kill_and_restart_keep_the_data_and_the_port() -> None:
    with embedded_broker() as broker:
        create(broker.bootstrap_servers, "kept")
        write(broker.bootstrap_servers, "kept", [b"a"])
        address, pid, folder = broker.bootstrap_servers, broker.pid, broker.folder
        broker.kill()
        assert not broker.is_running
        assert is_free(broker.port)
        broker.restart()
        write(broker.bootstrap_servers, "kept", [b"b"])

        assert broker.bootstrap_servers == address
        assert broker.pid != pid
        assert read(broker.bootstrap_servers, "kept", 2) == [b"a", b"b"]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        state = state_of(broker)
    assert not is_alive(state.java)
    assert not is_alive(state.guard)
    assert not folder.exists()


@pytest.mark.tier("faults")
def test_a_data_folder_is_kept_and_used_by_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_limits, "STOP_LIMIT_S", 0.2)  # how long the second one waits
    folder = tmp_path / "a folder, with a comma"
    with embedded_broker(data_dir=folder) as broker:
        create(broker.bootstrap_servers, "kept")
        write(broker.bootstrap_servers, "kept", [b"a"])
        with (
            pytest.raises(BrokerBusyError, match=f"process {os.getpid()} uses {folder}"),
            embedded_broker(data_dir=folder),
        ):
            pass
    monkeypatch.undo()
    with embedded_broker(data_dir=folder) as broker:
        assert read(broker.bootstrap_servers, "kept", 1) == [b"a"]


def test_a_port_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(
                BrokerError, match=f"port {port} of 127.0.0.1 is taken by process {os.getpid()} "
            ),
            embedded_broker(port=port),
        ):
            pass


def test_a_start_that_fails_shows_the_end_of_the_log_and_leaves_no_process(tmp_path: Path) -> None:
    with (
        pytest.raises(BrokerStartError) as caught,
        embedded_broker(data_dir=tmp_path, settings={"num.io.threads": "none"}),
    ):
        pass

    assert "none" in str(caught.value)
    assert "num.io.threads" in str(caught.value)
    assert Path(caught.value.log_path).is_file()


def test_a_start_is_bounded_and_what_was_begun_is_ended(tmp_path: Path) -> None:
    with (
        pytest.raises(BrokerStartError, match="did not answer within 0 s"),
        embedded_broker(data_dir=tmp_path, start_limit_s=0.01),
    ):
        pass

    state = read_state(tmp_path)
    assert state is not None
    assert not is_alive(state.java)
    assert not is_alive(state.guard)


@pytest.mark.kill
@pytest.mark.parametrize("victim", ["parent", "guard"])
def test_it_ends_when_its_parent_or_its_guard_is_killed(victim: str) -> None:
    source = (
        "import os, resource, sys\n"
        "from coordlog.log.broker.embedded import embedded_broker\n"
        "with embedded_broker() as broker:\n"
        # When it is killed its files are closed one after the other, the guard's pipe among the
        # first. So the guard is told long before its parent is gone.
        "    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20_000)\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n"
        "    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(most - 100)]\n"
        "    print(broker.folder, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with python(source) as parent:
        assert parent.stdout is not None
        folder = Path(parent.stdout.readline().strip())
        state = read_state(folder)
        assert state is not None
        assert is_alive(state.java)
        os.kill(parent.pid if victim == "parent" else state.guard.pid, signal.SIGKILL)

        assert wait_until_gone(state.java, PATIENCE_S)
        assert wait_until_gone(state.guard, PATIENCE_S)
        if victim == "parent":
            until(lambda: not folder.exists(), "the temporary folder is gone")
        else:
            parent.communicate("")
            assert parent.returncode == 0


@pytest.mark.kill
def test_it_ends_with_its_parent_although_somebody_else_holds_the_pipe() -> None:
    """A child that is forked without an exec has the guard's pipe too, and may live on."""
    source = (
        "import os, sys, time\n"
        "from coordlog.log.broker.embedded import embedded_broker\n"
        "with embedded_broker() as broker:\n"
        "    if (child := os.fork()) == 0:\n"
        "        os.close(1)\n"
        "        sys.stdin.read()\n"
        "        os._exit(0)\n"
        "    print(broker.folder, child, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with python(source) as parent:
        assert parent.stdout is not None
        folder, child_pid = parent.stdout.readline().split()
        state, child = read_state(Path(folder)), find_process(int(child_pid))
        assert state is not None
        assert child is not None
        parent.kill()

        assert wait_until_gone(state.java, PATIENCE_S)
        assert is_alive(child)


# The one that all jobs share


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of this test; what was started in it is stopped."""
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_BROKER_IDLE_MINUTES", raising=False)
    yield tmp_path / "home"
    stop_shared()


def running() -> BrokerState:
    state = read_state(shared_status().folder)
    assert state is not None
    assert is_alive(state.java)
    return state


def test_the_shared_broker_is_started_once_and_told_of_once(home: Path) -> None:
    lines: list[str] = []
    first = ensure_shared_broker(notify=lines.append)
    second = ensure_shared_broker(notify=lines.append)
    status = shared_status()

    assert (first.started, second.started) == (True, False)
    assert second.bootstrap_servers == first.bootstrap_servers
    assert len(lines) == 1
    assert lines[0] == (
        f"started a Kafka broker at {first.bootstrap_servers}, data in {home}/broker, "
        "stop it with `coordlog broker stop`"
    )
    assert status.running
    assert status.answering
    assert status.bootstrap_servers == first.bootstrap_servers
    assert status.pid == running().java.pid
    assert status.idle_minutes == 60.0
    assert stat.S_IMODE(first.folder.stat().st_mode) == 0o700

    assert stop_shared() is StopOutcome.STOPPED
    assert not shared_status().running
    assert stop_shared() is StopOutcome.NOT_RUNNING


@pytest.mark.tier("faults")
def test_it_is_in_a_session_of_its_own_and_no_child_of_who_started_it(home: Path) -> None:
    ensure_shared_broker()
    state = running()

    for each in (state.java, state.guard):
        assert os.getsid(each.pid) != os.getsid(0)
    stat_line = Path(f"/proc/{state.guard.pid}/stat").read_text()
    assert int(stat_line.rpartition(")")[2].split()[1]) != os.getpid()


@pytest.mark.tier("faults")
def test_two_commands_at_once_start_one(home: Path) -> None:
    source = (
        "import json\n"
        "from coordlog.log.broker.shared import ensure_shared_broker\n"
        "address = ensure_shared_broker()\n"
        "print(json.dumps([address.bootstrap_servers, address.started]))\n"
    )
    both = [python(source) for _ in range(2)]
    found = [json.loads(one.communicate(timeout=120)[0]) for one in both]

    assert sorted(started for _, started in found) == [False, True]
    assert {address for address, _ in found} == {running().bootstrap_servers}


@pytest.mark.kill
def test_after_a_kill_the_next_call_starts_it_on_the_same_data(home: Path) -> None:
    first = ensure_shared_broker()
    create(first.bootstrap_servers, "kept")
    write(first.bootstrap_servers, "kept", [b"a"])
    killed = running()
    os.kill(killed.java.pid, signal.SIGKILL)
    assert wait_until_gone(killed.java, PATIENCE_S)
    assert not shared_status().running

    second = ensure_shared_broker()

    assert second.started
    assert second.bootstrap_servers == first.bootstrap_servers
    assert read(second.bootstrap_servers, "kept", 1) == [b"a"]


@pytest.mark.tier("faults")
def test_when_its_port_is_taken_it_takes_another_and_keeps_its_data(home: Path) -> None:
    first = ensure_shared_broker()
    create(first.bootstrap_servers, "kept")
    write(first.bootstrap_servers, "kept", [b"a"])
    port = running().port
    assert stop_shared() is StopOutcome.STOPPED
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        second = ensure_shared_broker()

        assert second.bootstrap_servers != first.bootstrap_servers
        assert read(second.bootstrap_servers, "kept", 1) == [b"a"]


@pytest.mark.tier("faults")
def test_a_port_that_is_lost_for_a_moment_is_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose_ports = process._choose_ports
    with socket.create_server(("127.0.0.1", 0)) as taken:
        lost = [taken.getsockname()[1]]

        def choose(options: StartOptions) -> tuple[int, int]:
            port, other = choose_ports(options)
            return (lost.pop(), other) if lost else (port, other)

        monkeypatch.setattr(process, "_choose_ports", choose)
        monkeypatch.setattr(process, "is_free", lambda _port: True)  # as after its release
        with embedded_broker() as broker:
            assert not lost
            assert broker.port != taken.getsockname()[1]


@pytest.mark.kill
def test_a_process_that_has_its_number_is_not_taken_for_it(home: Path) -> None:
    ensure_shared_broker()
    state_file = home / "broker" / "broker.json"
    state = json.loads(state_file.read_text())
    assert stop_shared() is StopOutcome.STOPPED
    state["java"]["pid"] = os.getpid()
    state_file.write_text(json.dumps(state))

    assert not shared_status().running
    assert stop_shared() is StopOutcome.NOT_RUNNING  # and not: of this test


@pytest.mark.kill
def test_one_that_hangs_is_told_of_within_the_bound_and_stopped_by_force(home: Path) -> None:
    ensure_shared_broker()
    state = running()
    os.kill(state.java.pid, signal.SIGSTOP)

    with pytest.raises(BrokerError, match=r"does not answer within 0 s.*coordlog broker stop"):
        ensure_shared_broker(start_limit_s=0.1)
    status = shared_status()
    assert (status.running, status.answering) == (True, False)
    assert stop_shared(limit_s=0.5) is StopOutcome.KILLED
    assert not is_alive(state.java)
    assert not is_alive(state.guard)


@pytest.mark.kill
def test_it_ends_in_order_when_its_guard_is_killed(home: Path) -> None:
    """Without it nobody would see that it is idle."""
    ensure_shared_broker()
    state = running()
    os.kill(state.guard.pid, signal.SIGKILL)

    assert wait_until_gone(state.java, PATIENCE_S)
    assert ensure_shared_broker().started


@pytest.mark.tier("faults")
def test_without_a_client_it_stops_and_with_one_it_stays(home: Path) -> None:
    idle_s = 5.0  # above what a busy machine takes from the start to the connection below
    status = start_shared(idle_minutes=idle_s / 60)
    state = running()
    assert status.idle_minutes == pytest.approx(idle_s / 60)
    with socket.create_connection(("127.0.0.1", state.port)):
        connected = time.monotonic()
        # The passing of time is what is tested: with a client, more than the limit is nothing.
        until(lambda: time.monotonic() - connected > 1.5 * idle_s, "more than the limit")
        assert is_alive(state.java)
    closed = time.monotonic()

    assert wait_until_gone(state.java, PATIENCE_S)
    assert time.monotonic() - closed > idle_s / 2
    assert wait_until_gone(state.guard, PATIENCE_S)
    assert not shared_status().running


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_a_wrong_number_of_idle_minutes_is_refused_by_name(
    home: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("COORDLOG_BROKER_IDLE_MINUTES", value)

    with pytest.raises(OptionError, match=f"COORDLOG_BROKER_IDLE_MINUTES is '{value}'"):
        ensure_shared_broker()
    assert not shared_status().running


def test_without_jars_and_java_it_says_what_is_missing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home))

    with pytest.raises(EnvironmentSetupError, match="install Java 17 or newer"):
        ensure_shared_broker()


# Processes


@pytest.mark.kill
def test_an_ended_process_counts_as_gone_before_it_is_waited_for() -> None:
    with python("input()") as child:
        process = find_process(child.pid)
        assert process is not None
        assert is_alive(process)
        assert not is_alive(Process(pid=process.pid, born="another time"))
        child.kill()

        assert wait_until_gone(process, PATIENCE_S)
        assert find_process(child.pid) is None
