"""A task's side of its connection, against a real endpoint and without Spark."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import broadcast

from coordlog.errors import AttemptError, FencedAttemptError, TooLargeError
from coordlog.messages import Accepted, AlreadyFinished, Fail, Fenced
from coordlog.schemas.builtin_types import OperatorState
from coordlog.spark_integration.driver import endpoint as endpoint_module
from coordlog.spark_integration.task import driver_connection
from coordlog.spark_integration.task.driver_connection import DriverConnection
from coordlog.spark_integration.wire.driver_proof import require_proof
from coordlog.spark_integration.wire.messages import (
    FRAME_BYTES,
    FRAME_MESSAGES_MAX,
    FromTask,
    decode_up,
    encode,
)
from coordlog.spark_integration.wire.token import Token
from fakes.endpoint_parts import (
    TOKEN,
    acked,
    delivered,
    own_threads,
    register,
    running,
    sent,
    wait_for,
)

pytestmark = pytest.mark.timeout(120)


@contextmanager
def opened(
    address: str, *, token: Token = TOKEN, lease_s: float = 30.0, heartbeat_s: float = 2.0
) -> Generator[DriverConnection, None, None]:
    connection = DriverConnection(
        endpoint=address, token=token, lease_s=lease_s, heartbeat_s=heartbeat_s
    )
    try:
        connection.open()
        yield connection
    finally:
        connection.close()


def test_what_is_said_arrives_in_order_both_ways_and_no_thread_is_left() -> None:
    before = own_threads()
    with running() as (endpoint, heard):
        during = own_threads()
        with opened(endpoint.address) as task:
            task.send(register())
            number = heard.connection_of(0)
            for n in range(200):
                endpoint.send(number, delivered(n))
                task.send(sent(n))
            got = [task.inbox.get(timeout=20) for _ in range(200)]
            wait_for(lambda: len(heard.messages(number)) == 200, "all have arrived")
            assert task.why_over() is None
        assert own_threads() == during
        assert heard.messages(number) == [sent(n) for n in range(200)]
        assert got == [delivered(n) for n in range(200)]
    assert own_threads() == before


def test_a_message_to_a_driver_that_reads_is_sent_without_the_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never_writes(task: DriverConnection, channel: ClientConnection) -> None:
        task._is_writer_idle = True
        await channel.wait_closed()

    monkeypatch.setattr(DriverConnection, "_write", never_writes)
    with running() as (endpoint, heard):
        task = DriverConnection(endpoint=endpoint.address, token=TOKEN)
        task.open()
        task.send(register())
        number = heard.connection_of(0)
        for n in range(20):
            task.send(sent(n))
        wait_for(lambda: len(heard.messages(number)) == 20, "all have arrived")
        endpoint.close(number)
        wait_for(task.why_over, "it is closed")
        task.close()


def test_a_message_to_a_task_is_taken_without_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_reads(task: DriverConnection, channel: driver_connection._Channel) -> str:
        channel.take = task._take_at_once
        task._is_reader_idle = True
        await channel.wait_closed()
        return "closed"

    monkeypatch.setattr(DriverConnection, "_read", never_reads)
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        number = heard.connection_of(0)
        for n in range(20):
            endpoint.send(number, delivered(n))
            assert task.inbox.get(timeout=20) == delivered(n)


def test_a_driver_that_sends_what_is_no_message_ends_the_attempt() -> None:
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        number = heard.connection_of(0)
        endpoint.send(number, delivered(1))
        assert task.inbox.get(timeout=20) == delivered(1)
        channel = endpoint._connections[number].channel
        assert endpoint._loop is not None
        endpoint._loop.call_soon_threadsafe(broadcast, (channel,), b"nonsense")
        reason = wait_for(task.why_over, "the attempt is over")
        assert reason is not None
        assert reason.startswith("its driver sent an invalid message")
        assert task.inbox.is_empty()


@contextmanager
def standing_still(task: DriverConnection) -> Generator[None, None, None]:
    """The task's loop stands still within the block: it gets all frames from there at one time."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait(20)

    assert task._loop is not None
    task._loop.call_soon_threadsafe(stand)
    assert stands.wait(20)
    yield
    goes_on.set()


@pytest.mark.clause("D2")
def test_a_message_in_two_frames_is_not_overtaken() -> None:
    first = encode(delivered(1))
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        number = heard.connection_of(0)
        channel = endpoint._connections[number].channel

        async def send() -> None:
            await channel.send([first[:5], first[5:]])
            for n in (2, 3):
                broadcast((channel,), encode(delivered(n)))

        assert endpoint._loop is not None
        with standing_still(task):
            asyncio.run_coroutine_threadsafe(send(), endpoint._loop).result(20)
        assert [task.inbox.get(timeout=20) for _ in range(3)] == [delivered(n) for n in (1, 2, 3)]
        endpoint.send(number, delivered(4))
        assert task.inbox.get(timeout=20) == delivered(4)


def test_nothing_behind_what_is_no_message_is_taken() -> None:
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        channel = endpoint._connections[heard.connection_of(0)].channel

        async def send() -> None:
            for frame in (b"nonsense", encode(delivered(1))):
                broadcast((channel,), frame)

        assert endpoint._loop is not None
        with standing_still(task):
            asyncio.run_coroutine_threadsafe(send(), endpoint._loop).result(20)
        reason = wait_for(task.why_over, "the attempt is over")
        assert reason is not None
        assert reason.startswith("its driver sent an invalid message")
        assert task.inbox.is_empty()


@contextmanager
def frames_of(monkeypatch: pytest.MonkeyPatch) -> Generator[list[list[object]], None, None]:
    """Messages of each frame that the endpoint receives; events wait for further messages, however long."""
    frames: list[list[object]] = []

    def noted(data: bytes) -> Iterator[tuple[FromTask, int]]:
        frames.append([message for message, _ in decode_up(data)])
        return decode_up(data)

    with monkeypatch.context() as patched:
        patched.setattr(endpoint_module, "decode_up", noted)
        patched.setattr(driver_connection, "_TOGETHER_S", 60.0)
        yield frames


def test_an_event_and_the_ack_behind_it_are_in_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    with frames_of(monkeypatch) as frames, running() as (endpoint, heard):
        with opened(endpoint.address) as task:
            task.send(register())
            number = heard.connection_of(0)
            task.send(sent(1))
            task._let_loop_pass()  # it would send what it had been woken for
            task.send(sent(2))
            task.send(acked(7))
            wait_for(lambda: len(heard.messages(number)) == 3, "all have arrived")
        assert frames == [[register()], [sent(1), sent(2), acked(7)]]


def test_acks_are_one_message_while_further_events_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with frames_of(monkeypatch) as frames, running() as (endpoint, heard):
        with opened(endpoint.address) as task:
            task.send(register())
            number = heard.connection_of(0)
            endpoint.send(number, delivered(9))
            wait_for(lambda: not task.inbox.is_empty(), "a further event waits")
            for n in (7, 8):
                task.send(sent(n))
                task.send(acked(n))
                task._let_loop_pass()  # it would send what it had been woken for
            task.inbox.get()
            task.send(acked(9))
            wait_for(lambda: len(heard.messages(number)) == 3, "all have arrived")
        assert frames == [[register()], [sent(7), sent(8), replace(acked(7), also=(8, 9))]]


def test_a_flush_does_not_wait_for_what_may_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    with frames_of(monkeypatch) as frames, running() as (endpoint, heard):
        with opened(endpoint.address) as task:
            task.send(register())
            number = heard.connection_of(0)
            task.send(sent(1))
            task.flush()
            wait_for(lambda: heard.messages(number), "it has arrived")
        assert frames == [[register()], [sent(1)]]


def test_a_frame_has_a_limited_number_of_messages_and_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = b"x" * (FRAME_BYTES * 2 // 3)
    with frames_of(monkeypatch) as frames, running() as (endpoint, heard):
        with opened(endpoint.address) as task:
            task.send(register())
            number = heard.connection_of(0)
            for n in range(FRAME_MESSAGES_MAX + 1):
                task.send(sent(n))
            for n in range(2):
                task.send(sent(n, large))
            task.flush()
            wait_for(
                lambda: len(heard.messages(number)) == FRAME_MESSAGES_MAX + 3, "all have arrived"
            )
        assert [len(frame) for frame in frames] == [1, FRAME_MESSAGES_MAX, 2, 1]


@pytest.mark.clause("E7")
def test_the_states_of_many_former_subtasks_reach_one() -> None:
    states = tuple(
        OperatorState(operator_id=f"operator-{n % 3}", state=bytes([n]) * 700_000)
        for n in range(20)
    )
    accepted = Accepted(
        driver_id="d1",
        epoch=2,
        attempt_number=0,
        restored_checkpoint=3,
        parallelism=1,
        is_batch=False,
        states=states,
        skipped_splits=tuple(f"folder/{n:06d}.csv" + "x" * 400 for n in range(4_000)),
    )
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        number = heard.connection_of(0)

        endpoint.send(number, accepted)
        endpoint.send(number, delivered(0))

        assert task.inbox.get(timeout=20) == accepted
        assert task.inbox.get(timeout=20) == delivered(0)


def test_a_message_that_no_task_would_take_cuts_its_connection_and_says_so() -> None:
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        number = heard.connection_of(0)

        endpoint.send(number, delivered(0, bytes(5_000_000)))

        assert "5000" in heard.reason_of(number)
        assert "at most 4194304" in heard.reason_of(number)


def test_close_sends_what_was_sent_before_it() -> None:
    last = Fail(operator_id="source", callback="poll", reason="x" * 4000)
    with running() as (endpoint, heard):
        with opened(endpoint.address) as task:
            task.send(register())
            for n in range(500):
                task.send(sent(n, bytes(1000)))
            task.send(last)
        number = heard.connection_of(0)
        assert heard.reason_of(number) == "its task has closed it"
        assert len(heard.messages(number)) == 501
        assert heard.messages(number)[-1] == last


KILLED = """
import os, signal, sys
from coordlog.spark_integration.task.driver_connection import DriverConnection
from coordlog.spark_integration.wire.driver_proof import require_proof
from fakes.endpoint_parts import TOKEN, register, sent

task = DriverConnection(endpoint=sys.argv[1], token=TOKEN)
task.open()
task.send(register())
for n in range(200):
    task.send(sent(n, bytes(20_000)))
task.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.kill
def test_what_was_flushed_arrives_although_the_process_is_killed_at_once() -> None:
    with running() as (endpoint, heard):
        path = os.pathsep.join(sys.path)
        subprocess.run(
            [sys.executable, "-c", KILLED, endpoint.address],
            env={**os.environ, "PYTHONPATH": path},
            timeout=60,
            check=False,
        )
        number = heard.connection_of(0)
        assert "its process has ended" in heard.reason_of(number)
        assert heard.messages(number) == [sent(n, bytes(20_000)) for n in range(200)]


KILLED_WHILE_IT_WAITS = """
import os, signal, sys
from coordlog.errors import FencedAttemptError
from coordlog.spark_integration.task import driver_connection
from fakes.endpoint_parts import TOKEN, register, sent

driver_connection.ATTEMPT_SEND_TIMEOUT_S = 1.0
task = driver_connection.DriverConnection(endpoint=sys.argv[1], token=TOKEN)
task.open()
task.send(register())
flushed = 0
try:
    while True:
        task.send(sent(flushed, bytes(10_000)))
        task.flush()
        flushed += 1
except FencedAttemptError:
    print(flushed, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.kill
def test_what_was_flushed_to_a_driver_that_reads_nothing_arrives() -> None:
    with running(unreleased_messages_max=5) as (endpoint, heard):
        path = os.pathsep.join(sys.path)
        killed = subprocess.run(
            [sys.executable, "-c", KILLED_WHILE_IT_WAITS, endpoint.address],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        flushed, number = int(killed.stdout), heard.connection_of(0)
        while not heard.lost:
            endpoint.released(number, 1)
            time.sleep(0.001)
        assert len(heard.messages(number)) >= flushed > 5


def test_a_flush_on_a_connection_that_is_gone_ends_the_attempt() -> None:
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        endpoint.close(heard.connection_of(0))
        wait_for(lambda: task.why_over() is not None, "the task notices")
        with pytest.raises(FencedAttemptError, match="closed the connection"):
            task.flush()


def test_a_wrong_token_is_told_and_not_shown() -> None:
    wrong = Token(bytes(32))
    with (
        running() as (endpoint, _),
        pytest.raises(
            AttemptError, match="no driver with this token answers there; the token was not sent"
        ) as refused,
        opened(endpoint.address, token=wrong),
    ):
        pass
    assert wrong.text() not in str(refused.value)
    assert own_threads() == []


def test_a_driver_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"ws://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(AttemptError, match=f"cannot be reached at {address}"), opened(address):
        pass


def test_somebody_else_at_the_address_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_connection, "CONNECT_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(AttemptError, match="cannot be reached"), opened(address):
            pass
    assert own_threads() == []


def test_a_process_that_took_the_port_of_a_driver_never_sees_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_connection, "CONNECT_TIMEOUT_S", 0.5)
    seen: list[bytes] = []

    def listen(listener: socket.socket) -> None:
        while True:
            try:
                channel, _ = listener.accept()
            except OSError:
                return
            with channel:
                seen.append(channel.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen, args=(listener,))
        thread.start()
        address = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with pytest.raises(AttemptError, match="the token was not sent"), opened(address):
                pass
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert seen
    assert not [one for one in seen if TOKEN.text().encode() in one or b"Authorization" in one]


def test_a_task_whose_connection_is_dropped_before_the_proof_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drops = [ConnectionResetError("one stranger too many")] * 2

    def prove(endpoint: str, token: Token, *, timeout_s: float) -> None:
        if drops:
            raise drops.pop()
        require_proof(endpoint, token, timeout_s=timeout_s)

    monkeypatch.setattr(driver_connection, "require_proof", prove)
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        assert heard.connection_of(0)
    assert not drops


@pytest.mark.clause("B8")
@pytest.mark.clause("M4")
def test_a_lost_connection_ends_the_attempt() -> None:
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        number = heard.connection_of(0)
        endpoint.close(number)
        assert wait_for(task.why_over, "it notices") == "its driver has closed the connection"
        with pytest.raises(FencedAttemptError, match="its driver has closed the connection"):
            task.send(acked(1))
        with pytest.raises(queue.Empty):
            task.inbox.get(timeout=0.01)


@pytest.mark.clause("M4")
def test_a_fenced_attempt_is_over_before_it_reads_the_message() -> None:
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        endpoint.send(heard.connection_of(0), Fenced(reason="a newer attempt registered"))
        assert wait_for(task.why_over, "it notices") == "a newer attempt registered"


def test_a_finished_attempt_is_not_over_if_its_connection_is_gone() -> None:
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        number = heard.connection_of(0)
        endpoint.send(number, Fenced(reason="done", is_finished=True))
        endpoint.close(number)
        heard.reason_of(number)
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            assert task.why_over() is None
            time.sleep(0.005)
        assert task.inbox.get(timeout=10) == Fenced(reason="done", is_finished=True)


@pytest.mark.clause("M4")
def test_a_driver_that_is_silent_for_the_lease_is_taken_for_dead() -> None:
    # The endpoint's own lease is long, and it says nothing for most of it.
    with running(heartbeat_s=30) as (endpoint, _), opened(endpoint.address, lease_s=0.5) as task:
        task.send(register())
        assert task.why_over() is None
        reason = wait_for(task.why_over, "the lease runs out") or ""
        assert reason.startswith("its driver sent nothing for ")
        assert reason.endswith(" s; the lease is 0.5 s")
        assert task.why_over() == reason


def test_heartbeats_keep_both_sides_alive_while_nothing_else_is_said() -> None:
    with (
        running(heartbeat_s=0.05, lease_s=0.6) as (endpoint, heard),
        opened(endpoint.address, lease_s=0.6, heartbeat_s=0.05) as task,
    ):
        task.send(register())
        number = heard.connection_of(0)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert task.why_over() is None
            time.sleep(0.01)
        assert heard.lost == []
        endpoint.send(number, AlreadyFinished(attempt_number=3))
        assert task.inbox.get(timeout=10) == AlreadyFinished(attempt_number=3)


@pytest.mark.clause("C4")
def test_an_attempt_whose_main_thread_stands_still_loses_its_lease() -> None:
    """The connection's own thread lives, and the driver's heartbeats arrive."""
    with (
        running(lease_s=1.0, heartbeat_s=0.1) as (endpoint, heard),
        opened(endpoint.address, lease_s=30.0, heartbeat_s=0.1) as task,
    ):
        task.send(register())
        number = heard.connection_of(0)
        task.is_moving = lambda: False

        assert "its lease is 1 s" in heard.reason_of(number)


def test_a_process_that_stood_still_reads_what_waits_before_it_judges() -> None:
    with (
        running(heartbeat_s=0.05, lease_s=30) as (endpoint, heard),
        opened(endpoint.address, lease_s=0.6) as task,
    ):
        task.send(register())
        heard.connection_of(0)
        # What a native call that keeps the interpreter does to the loop's thread.
        loop = task._loop  # pyright: ignore[reportPrivateUsage]
        assert loop is not None
        loop.call_soon_threadsafe(time.sleep, 1.2)
        time.sleep(1.0)
        assert task.why_over() is None


def test_a_full_inbox_holds_the_driver_back_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_connection, "ATTEMPT_QUEUE_MESSAGES_MAX", 10)
    with (
        running(heartbeat_s=0.05) as (endpoint, heard),
        opened(endpoint.address, lease_s=0.5, heartbeat_s=0.05) as task,
    ):
        task.send(register())
        number = heard.connection_of(0)
        for n in range(2000):
            endpoint.send(number, delivered(n, bytes(5000)))
        wait_for(task.inbox.is_full, "the inbox fills")
        # Longer than the lease: what is not read says nothing about the driver.
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            assert task.why_over() is None
            time.sleep(0.02)
        got = [task.inbox.get(timeout=20) for _ in range(2000)]
        assert got == [delivered(n, bytes(5000)) for n in range(2000)]
        assert heard.lost == []


@pytest.mark.clause("D2")
def test_a_sender_waits_while_the_driver_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_connection, "ATTEMPT_QUEUE_MESSAGES_MAX", 10)
    with (
        running(unreleased_messages_max=5, lease_s=0.6, heartbeat_s=0.05) as (endpoint, heard),
        opened(endpoint.address, lease_s=0.6, heartbeat_s=0.05) as task,
    ):
        task.send(register())
        number = heard.connection_of(0)
        done = threading.Event()

        def send() -> None:
            for n in range(100):
                task.send(sent(n, bytes(200_000)))
            done.set()

        sender = threading.Thread(target=send)
        sender.start()
        wait_for(lambda: len(heard.messages(number)) == 4, "the driver reads no more")
        assert not done.wait(1.5)
        assert task.why_over() is None, "its driver lives, and says so"
        while not done.is_set() or len(heard.messages(number)) < 100:
            endpoint.released(number, 1)
            time.sleep(0.001)
        sender.join(20)
        assert heard.messages(number) == [sent(n, bytes(200_000)) for n in range(100)]
        assert heard.lost == []


def test_a_sender_that_waits_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_connection, "ATTEMPT_QUEUE_MESSAGES_MAX", 10)
    monkeypatch.setattr(endpoint_module, "CONNECTION_CLOSE_S", 0.5)
    with (
        running(unreleased_messages_max=5) as (endpoint, heard),
        opened(endpoint.address) as task,
    ):
        task.send(register())
        number = heard.connection_of(0)
        threading.Timer(0.3, lambda: endpoint.close(number)).start()

        def send_all() -> None:
            for n in range(400):
                task.send(sent(n, bytes(50_000)))

        with pytest.raises(FencedAttemptError):
            send_all()


def test_a_message_above_the_limit_is_refused_where_it_is_sent() -> None:
    with running() as (endpoint, heard), opened(endpoint.address) as task:
        task.send(register())
        with pytest.raises(TooLargeError, match="a SendEvent is 41943"):
            task.send(sent(0, bytes(4 * 1024 * 1024)))
        task.send(sent(1))
        number = heard.connection_of(0)
        wait_for(lambda: heard.messages(number) == [sent(1)], "the connection lives")


@pytest.mark.slow
def test_close_is_bounded_where_the_driver_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_connection, "CONNECTION_CLOSE_S", 0.5)
    monkeypatch.setattr(endpoint_module, "CONNECTION_CLOSE_S", 0.5)
    with running(unreleased_messages_max=3) as (endpoint, _):
        with opened(endpoint.address) as task:
            task.send(register())
            for n in range(300):
                task.send(sent(n, bytes(50_000)))
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 5
        assert own_threads() == ["coordlog-endpoint"]


def test_a_connection_that_was_never_opened_can_be_closed() -> None:
    DriverConnection(endpoint="ws://127.0.0.1:1", token=TOKEN).close()
