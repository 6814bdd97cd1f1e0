"""The driver's endpoint, over real sockets on the loopback address."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import threading
import time
import warnings
from collections.abc import Sequence
from typing import cast

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from coordlog.errors import EnvironmentSetupError
from coordlog.limits import TAKE_OVER_PROBE_S
from coordlog.messages import (
    AlreadyFinished,
    CheckpointAborted,
    CheckpointCompleted,
    Fenced,
    InjectBarrier,
    Refused,
)
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.task.attempt_connection import AttemptConnection
from coordlog.spark_integration.wire.driver_proof import DriverHeard, hear_driver
from coordlog.spark_integration.wire.messages import (
    DRIVER_PATH,
    VERSION_HEADER,
    WIRE_VERSION,
    ClientHello,
    DriverHello,
    Heartbeat,
    decode,
    encode,
)
from coordlog.spark_integration.wire.token import Token
from fakes.endpoint_parts import (
    TOKEN,
    acked,
    connected,
    delivered,
    hear,
    own_threads,
    register,
    running,
    say,
    sent,
    two_attempts,
    wait_for,
)

pytestmark = pytest.mark.timeout(120)


def server_side(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged, but for the lines of the tests' own client."""
    return "\n".join(one.getMessage() for one in caplog.records if one.name != "websockets.client")


# --- who is let in --------------------------------------------------------------------------------
@pytest.mark.parametrize("token", [None, Token(bytes(32))], ids=["none", "wrong"])
def test_without_the_token_nobody_is_let_in(
    token: Token | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with running() as (endpoint, heard):
        with pytest.raises(InvalidStatus) as refused, connected(endpoint.address, token=token):
            pass
        assert heard.arrivals == []
    assert refused.value.response.status_code == 401
    assert "wrong token" in caplog.text
    for secret in (TOKEN, Token(bytes(32))):
        assert secret.text() not in server_side(caplog)


def test_who_tries_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    tries, told = 150, 50 + 2  # and the 64th, the 128th
    with running() as (endpoint, heard):
        for _ in range(tries):
            with (
                contextlib.suppress(InvalidStatus),
                connected(endpoint.address, token=Token(bytes(32))),
            ):
                raise AssertionError("let in")
        assert heard.arrivals == []
    refused = [one for one in caplog.records if "wrong token" in one.getMessage()]
    assert len(refused) == told
    assert "(128 refused so far)" in refused[-1].getMessage()


def test_the_right_token_is_in_no_log_line_either(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register())
        heard.connection_of(0)
    assert "connected: subtask=0" in caplog.text
    assert TOKEN.text() not in server_side(caplog)


def test_another_version_is_refused_by_its_number() -> None:
    with (
        running() as (endpoint, _),
        pytest.raises(InvalidStatus) as refused,
        connected(endpoint.address, version="7"),
    ):
        pass
    assert refused.value.response.status_code == 426
    body = (refused.value.response.body or b"").decode()
    assert "wire version 1, the client '7'" in body


def test_there_are_two_paths_and_no_others() -> None:
    with (
        running() as (endpoint, _),
        pytest.raises(InvalidStatus) as refused,
        connected(endpoint.address, path="/status"),
    ):
        pass
    assert refused.value.response.status_code == 404


def test_who_does_not_register_first_is_cut_off() -> None:
    with running() as (endpoint, heard):
        for first in (acked(0), Heartbeat(), ClientHello(nonce=bytes(32))):
            with connected(endpoint.address) as channel:
                say(channel, first)
                with pytest.raises(ConnectionClosed):
                    hear(channel)
        assert heard.arrivals == []
        assert heard.lost == []


@pytest.mark.parametrize("wrong", [b"\xff\xff", b"", "a text"], ids=["bytes", "empty", "text"])
def test_what_is_no_message_ends_its_connection_with_the_reason(wrong: bytes | str) -> None:
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register())
        number = heard.connection_of(0)
        channel.send(wrong)
        assert "it sent an invalid message" in heard.reason_of(number)


def test_a_second_registration_on_a_connection_ends_it() -> None:
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register(), register(task_attempt_id=1))
        number = heard.connection_of(0)
        assert "registers once" in heard.reason_of(number)
        assert heard.messages(number) == []


def test_a_message_above_the_limit_ends_its_connection_alone() -> None:
    with (
        running() as (endpoint, heard),
        connected(endpoint.address) as one,
        connected(endpoint.address) as other,
    ):
        say(one, register(0))
        say(other, register(1))
        first, second = heard.connection_of(0), heard.connection_of(1)
        with contextlib.suppress(ConnectionClosed):
            one.send(bytes(5 * 1024 * 1024))
        assert "exceeds limit" in heard.reason_of(first)
        say(other, acked(1))
        wait_for(lambda: heard.messages(second) == [acked(1)], "the other one is heard")


# --- order ----------------------------------------------------------------------------------------
def test_a_message_to_an_attempt_that_reads_is_sent_without_the_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never_writes(_endpoint: Endpoint, connection: AttemptConnection) -> None:
        connection.is_writer_idle = True
        await connection.written.wait()

    monkeypatch.setattr(Endpoint, "_write", never_writes)
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register())
        number = heard.connection_of(0)
        for n in range(20):
            endpoint.send(number, delivered(n))
            assert hear(channel) == delivered(n)


@pytest.mark.clause("C2")
@pytest.mark.clause("D1")
def test_order_is_kept_both_ways() -> None:
    count = 300
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register())
        number = heard.connection_of(0)
        for n in range(count):
            endpoint.send(number, delivered(n) if n % 2 else InjectBarrier(checkpoint_id=n))
        say(channel, *[sent(n) for n in range(count)])

        down = [hear(channel) for _ in range(count)]
        wait_for(lambda: len(heard.messages(number)) == count, "all have arrived")

    assert down == [delivered(n) if n % 2 else InjectBarrier(checkpoint_id=n) for n in range(count)]
    assert heard.messages(number) == [sent(n) for n in range(count)]
    assert heard.threads == {"coordlog-endpoint"}


def test_messages_about_one_checkpoint_are_told_apart_by_all_attempts() -> None:
    """A barrier and a completion are encoded once for all attempts."""
    expected = [
        kind(checkpoint_id=n)
        for n in (1, 2)
        for kind in (InjectBarrier, CheckpointCompleted, CheckpointAborted)
    ]
    with two_attempts() as attempts:
        for message in expected:
            attempts.endpoint.send(attempts.first, message)
            attempts.endpoint.send(attempts.second, message)
        for channel in (attempts.one, attempts.other):
            assert [hear(channel) for _ in expected] == expected


@pytest.mark.clause("D2")
def test_the_unreleased_bytes_of_all_attempts_are_bounded_together() -> None:
    with two_attempts(unreleased_bytes_in_all=50_000) as two:
        say(two.one, *[sent(n, bytes(10_000)) for n in range(10)])
        wait_for(lambda: len(two.heard.messages(two.first)) == 5, "it is held at the bound of all")
        say(two.other, sent(0, bytes(1_000)), sent(1))
        wait_for(
            lambda: len(two.heard.messages(two.second)) == 1, "the other is read up to a message"
        )

        # The first one ends, and what it has sent still waits.
        two.one.close()
        two.heard.reason_of(two.first)
        say(two.other, sent(2))
        assert len(two.heard.messages(two.second)) == 1

        two.endpoint.released(two.first, 1 + len(two.heard.messages(two.first)))
        wait_for(lambda: len(two.heard.messages(two.second)) == 3, "there is room again")
        assert two.endpoint._ended == {}


def test_what_many_threads_send_to_one_attempt_keeps_each_ones_order() -> None:
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register())
        number = heard.connection_of(0)

        def send(first: int) -> None:
            for n in range(first, first + 200):
                endpoint.send(number, InjectBarrier(checkpoint_id=n))

        threads = [threading.Thread(target=send, args=(k * 1000,)) for k in range(4)]
        for one in threads:
            one.start()
        got = [hear(channel) for _ in range(800)]
        for one in threads:
            one.join()

    ids = [one.checkpoint_id for one in got if isinstance(one, InjectBarrier)]
    for k in range(4):
        assert [n for n in ids if n // 1000 == k] == list(range(k * 1000, k * 1000 + 200))


def test_close_comes_after_what_was_sent_and_nothing_after_close() -> None:
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register())
        number = heard.connection_of(0)
        for n in range(50):
            endpoint.send(number, delivered(n))
        endpoint.send(number, Fenced(reason="over"))
        endpoint.close(number)
        endpoint.send(number, Refused(reason="never seen"))

        assert [hear(channel) for _ in range(51)] == [
            *(delivered(n) for n in range(50)),
            Fenced(reason="over"),
        ]
        with pytest.raises(ConnectionClosed):
            hear(channel)
        assert heard.reason_of(number) == "the driver has closed it"


@pytest.mark.clause("B8")
def test_a_connection_that_ends_is_told_once_after_all_that_came() -> None:
    with running() as (endpoint, heard):
        with connected(endpoint.address) as channel:
            say(channel, register(), *[sent(n) for n in range(20)])
        number = heard.connection_of(0)
        assert heard.reason_of(number) == "its task has closed it"
        assert len(heard.messages(number)) == 20
    assert heard.lost == [(number, "its task has closed it")]


def test_a_connection_that_breaks_is_noticed_at_once() -> None:
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register())
        number = heard.connection_of(0)
        began_s = time.monotonic()
        channel.socket.shutdown(socket.SHUT_RDWR)
        assert "it broke" in heard.reason_of(number)
        assert time.monotonic() - began_s < 5


def test_sending_to_a_connection_that_is_gone_does_nothing() -> None:
    with running() as (endpoint, heard):
        with connected(endpoint.address) as channel:
            say(channel, register())
            number = heard.connection_of(0)
        heard.reason_of(number)
        endpoint.send(number, AlreadyFinished(attempt_number=0))
        endpoint.close(number)
        endpoint.released(number, 1)
        endpoint.send(4711, AlreadyFinished(attempt_number=0))


# --- backpressure ---------------------------------------------------------------------------------
@pytest.mark.clause("D2")
def test_an_attempt_with_too_many_unreleased_bytes_is_not_read_for_now() -> None:
    with (
        running(unreleased_messages_max=5, lease_s=0.4) as (endpoint, heard),
        connected(endpoint.address) as channel,
        connected(endpoint.address) as other,
    ):
        say(channel, register(0), *[sent(n) for n in range(20)])
        number = heard.connection_of(0)
        wait_for(lambda: len(heard.messages(number)) == 4, "five with the registration")
        say(other, register(1), acked(0))
        second = heard.connection_of(1)
        wait_for(lambda: heard.messages(second), "another attempt is read meanwhile")
        # Longer than the lease: the silence of a connection that is not read says nothing.
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            say(other, Heartbeat())
            assert len(heard.messages(number)) == 4
            time.sleep(0.02)

        endpoint.released(number, 2)
        wait_for(lambda: len(heard.messages(number)) == 6, "two more")
        for count in range(7, 21):
            endpoint.released(number, 1)
            wait_for(lambda n=count: len(heard.messages(number)) == n, "one for one")  # type: ignore[misc]
        assert heard.messages(number) == [sent(n) for n in range(20)]
        assert heard.lost == []


@pytest.mark.clause("D2")
def test_unreleased_bytes_hold_too() -> None:
    with (
        running(unreleased_bytes_max=100_000) as (endpoint, heard),
        connected(endpoint.address) as channel,
    ):
        say(channel, register())
        number = heard.connection_of(0)
        say(channel, *[sent(n, bytes(40_000)) for n in range(6)])
        wait_for(lambda: len(heard.messages(number)) == 3, "what reaches the limit is the last")
        endpoint.released(number, 2)
        wait_for(lambda: len(heard.messages(number)) == 4, "one more")
        endpoint.released(number, 10)
        wait_for(lambda: len(heard.messages(number)) == 6, "all")


def test_an_attempt_that_is_held_and_dies_is_lost_all_the_same() -> None:
    with (
        running(unreleased_messages_max=3, heartbeat_s=0.05) as (endpoint, heard),
        connected(endpoint.address) as channel,
    ):
        say(channel, register(), *[sent(n) for n in range(50)])
        number = heard.connection_of(0)
        wait_for(lambda: len(heard.messages(number)) >= 2, "it is held")
        channel.socket.shutdown(socket.SHUT_RDWR)
        assert heard.reason_of(number)


def test_an_attempt_that_reads_too_slowly_fails_alone() -> None:
    with two_attempts(outgoing_messages_max=20) as two:
        # The slow one reads nothing: the buffers of both systems fill, then the queue.
        for n in range(2000):
            two.endpoint.send(two.first, delivered(n, bytes(100_000)))
            if two.heard.lost:
                break
            time.sleep(0.001)
        assert "it reads too slowly: 21 messages" in two.heard.reason_of(two.first)
        two.endpoint.send(two.second, delivered(1))
        assert hear(two.other) == delivered(1)
        assert [number for number, _ in two.heard.lost] == [two.first]


# --- leases ---------------------------------------------------------------------------------------
@pytest.mark.clause("M4")
def test_an_attempt_silent_for_its_lease_is_lost_and_another_is_not() -> None:
    with two_attempts(lease_s=0.5, heartbeat_s=0.05) as two:

        def look() -> bool:
            say(two.other, Heartbeat())
            return bool(two.heard.lost)

        wait_for(look, "the lease runs out")
        assert [number for number, _ in two.heard.lost] == [two.first]
        reason = two.heard.reason_of(two.first)
        assert reason.startswith("it sent nothing for ")
        assert reason.endswith(" s; its lease is 0.5 s")
        two.endpoint.send(two.second, delivered(1))
        assert hear(two.other) == delivered(1)


def test_an_attempt_hears_that_its_driver_lives() -> None:
    with running(heartbeat_s=0.02) as (endpoint, heard), connected(endpoint.address) as channel:
        say(channel, register())
        heard.connection_of(0)
        said = [channel.recv(timeout=10) for _ in range(3)]
        assert [decode(one) for one in said if isinstance(one, bytes)] == [Heartbeat()] * 3


# --- the end --------------------------------------------------------------------------------------
def test_stop_sends_what_was_sent_before_and_leaves_no_thread_and_no_port() -> None:
    before = own_threads()
    with running() as (endpoint, heard), connected(endpoint.address) as channel:
        address = endpoint.address
        say(channel, register())
        number = heard.connection_of(0)
        for n in range(100):
            endpoint.send(number, delivered(n))
        endpoint.send(number, Fenced(reason="done", is_finished=True))
        stopping = threading.Thread(target=endpoint.stop)
        stopping.start()
        got = [hear(channel) for _ in range(101)]
        with pytest.raises(ConnectionClosed):
            hear(channel)
        stopping.join(20)
        assert not stopping.is_alive()

        assert got[-1] == Fenced(reason="done", is_finished=True)
        assert [number for number, _ in heard.lost] == [number]
        endpoint.stop()
        endpoint.send(number, delivered(1))
    assert own_threads() == before
    with pytest.raises(OSError, match="refused"), connected(address):
        pass


@pytest.mark.slow
def test_stop_is_bounded_with_attempts_that_read_nothing_or_are_held() -> None:
    before = own_threads()
    with (
        running(unreleased_messages_max=3) as (endpoint, heard),
        connected(endpoint.address) as slow,
        connected(endpoint.address) as held,
    ):
        say(slow, register(0))
        say(held, register(1), *[sent(n) for n in range(50)])
        first, second = heard.connection_of(0), heard.connection_of(1)
        wait_for(lambda: len(heard.messages(second)) >= 2, "it is held")
        for n in range(300):
            endpoint.send(first, delivered(n, bytes(100_000)))
        began_s = time.monotonic()
        endpoint.stop()
        assert time.monotonic() - began_s < 15
        assert sorted(number for number, _ in heard.lost) == [first, second]
    assert own_threads() == before


def test_connections_accepted_while_it_ends_leave_no_socket_open() -> None:
    """One that was accepted before the server closed, and served after it, had no transport that could be closed."""
    is_over, came = threading.Event(), threading.Semaphore(0)

    def come_and_go(listens: tuple[str, int]) -> None:
        while not is_over.is_set():
            with socket.socket() as one, contextlib.suppress(OSError):
                one.connect(listens)
                came.release()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with running() as (endpoint, _):
            guests = [
                threading.Thread(target=come_and_go, args=(endpoint.listens,)) for _ in range(2)
            ]
            for guest in guests:
                guest.start()
            for _ in range(20):
                assert came.acquire(timeout=20)
        is_over.set()
        for guest in guests:
            guest.join(20)
        gc.collect()

    assert [str(one.message) for one in warned] == []


def test_an_endpoint_that_was_never_started_can_be_stopped() -> None:
    Endpoint(job_id="j", driver_id="d", token=TOKEN, arrivals=None).stop()  # type: ignore[arg-type]


def test_an_address_that_is_not_ours_is_refused_with_advice() -> None:
    with (
        pytest.raises(EnvironmentSetupError, match=r"spark\.driver\.host"),
        running(host="192.0.2.77"),
    ):
        pass
    with running() as (endpoint, _):
        port = int(endpoint.address.rpartition(":")[2])
        with (
            pytest.raises(EnvironmentSetupError, match="cannot listen"),
            running(ports=range(port, port + 1)),
        ):
            pass


# --- the probe ------------------------------------------------------------------------------------
def hears(
    address: str,
    *,
    job_id: str = "ingest",
    driver_id: str = "d1",
    tokens: Sequence[Token] = (TOKEN,),
    timeout_s: float = TAKE_OVER_PROBE_S,
) -> DriverHeard:
    return hear_driver(
        address, job_id=job_id, driver_id=driver_id, tokens=tokens, timeout_s=timeout_s
    )


def test_a_live_driver_proves_itself_to_who_holds_the_token() -> None:
    with running() as (endpoint, heard):
        address = endpoint.address
        assert hears(address) is DriverHeard.DRIVER
        # Another job's, another driver's, and one whose token is another.
        assert hears(address, job_id="other") is DriverHeard.NOTHING
        assert hears(address, driver_id="d2") is DriverHeard.NOTHING
        assert hears(address, tokens=[Token.new()]) is DriverHeard.UNPROVED
        assert hears(address, tokens=[]) is DriverHeard.UNPROVED
        assert hears(address, tokens=[Token.new(), TOKEN]) is DriverHeard.DRIVER
        assert heard.arrivals == []
    assert hears(address) is DriverHeard.NOTHING


@pytest.mark.parametrize("address", ["memory", "", "ws://127.0.0.1:1", "http://[", "ws://nobody:x"])
def test_an_address_where_no_driver_is_counts_as_gone(address: str) -> None:
    assert hears(address, timeout_s=2) is DriverHeard.NOTHING


def test_a_listener_that_never_answers_counts_as_gone_within_the_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        began_s = time.monotonic()
        assert hears(address, timeout_s=0.5) is DriverHeard.NOTHING
        assert time.monotonic() - began_s < 5


def test_a_probe_shows_nothing_of_the_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        seen: list[bytes] = []

        def answer() -> None:
            channel, _ = listener.accept()
            with channel:
                seen.append(channel.recv(65536))
                channel.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert hears(address) is DriverHeard.NOTHING
        thread.join(10)
    assert b"/driver" in seen[0]
    assert b"Authorization" not in seen[0]
    assert TOKEN.text().encode() not in seen[0]


def test_only_a_challenge_of_the_right_length_is_answered() -> None:
    with running() as (endpoint, _), connected(endpoint.address, path="/driver", token=None) as one:
        one.send(encode(ClientHello(nonce=b"short")))
        with pytest.raises(ConnectionClosed):
            hear(one)


def stranger(address: str) -> ClientConnection:
    return connect(
        address + DRIVER_PATH,
        additional_headers={VERSION_HEADER: str(WIRE_VERSION)},
        proxy=None,
        compression=None,
        ping_interval=None,
    )


def test_who_has_no_token_may_say_no_more_than_a_challenge() -> None:
    """Else whoever reaches the port makes the driver hold what it likes."""
    with running() as (endpoint, _), stranger(endpoint.address) as channel:
        channel.send(bytes(1025))
        with pytest.raises(ConnectionClosed) as closed:
            channel.recv(10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009, "too big"


def test_the_oldest_connection_without_a_token_is_closed_if_there_are_many() -> None:
    """Else they would keep a live driver from being heard, and it would be taken for gone."""
    with running(strangers_max=16) as (endpoint, _), contextlib.ExitStack() as stack:
        first = stack.enter_context(stranger(endpoint.address))
        others = [stack.enter_context(stranger(endpoint.address)) for _ in range(16)]
        with pytest.raises(ConnectionClosed):
            first.recv(10)
        assert hears(endpoint.address) is DriverHeard.DRIVER
        others[-1].send(encode(ClientHello(nonce=bytes(32))))
        assert isinstance(decode(cast("bytes", others[-1].recv(10))), DriverHello)
