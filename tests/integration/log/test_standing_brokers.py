"""One broker of a cluster is down, or accepts connections and answers nothing, while the others answer."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog, Security
from coordlog.log.kafka import reader as reader_module
from coordlog.log.kafka.client import Connection, Questions, made

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def connection_to(servers: str) -> Connection:
    return Connection(
        topic="a.log", bootstrap_servers=servers, security=Security(), connect_timeout_s=5.0
    )


def test_a_broker_that_stands_still_does_not_take_the_whole_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client asks one broker of a cluster, and waits for it alone: the next client may ask another."""
    is_over = threading.Event()
    admins: list[object] = []

    class Admin:
        def __init__(self) -> None:
            admins.append(self)

        def close(self) -> None: ...

    def question(admin: object) -> str:
        if admin is admins[0]:
            is_over.wait(30.0)
        return "offsets"

    monkeypatch.setattr(Questions, "_make", lambda *_arguments: Admin())

    assert (
        Questions(connection_to("127.0.0.1:9,127.0.0.1:10")).ask("asking for its offsets", question)
        == "offsets"
    )
    is_over.set()
    assert len(admins) == 2


@pytest.mark.parametrize(("running", "is_warned"), [(1, False), (2, True), (3, False)])
def test_a_log_made_while_a_broker_is_down_is_said_to_need_the_others(
    caplog: pytest.LogCaptureFixture, running: int, *, is_warned: bool
) -> None:
    created: list[dict[str, Any]] = []
    admin = SimpleNamespace(
        describe_topics=lambda _names: [{"error_code": 3}],
        create_topics=lambda topics: created.append(topics["a.log"]),
        wait_for_topics=lambda _names, timeout_ms: None,  # noqa: ARG005, named by its caller
        _get_cluster_metadata=None,
        _manager=SimpleNamespace(
            run=lambda *_arguments: {"brokers": [None] * running}, broker_version=(4, 0)
        ),
    )

    KafkaLog("a.log", "127.0.0.1:9")._create(admin)

    assert created[0]["replication_factor"] == running
    assert ("an append needs both" in caplog.text) is is_warned


def test_a_topic_that_an_earlier_try_has_made_counts_as_just_seen() -> None:
    """The try was given up before its answer came, and not each broker knows the topic yet."""
    log = KafkaLog("a.log", "127.0.0.1:9,127.0.0.1:10")
    log._create(SimpleNamespace(describe_topics=lambda _names: [{"error_code": 0}]))

    assert log._questions.has_just_seen_topic


@pytest.mark.parametrize(
    ("servers", "expected"),
    [("127.0.0.1:9", [10.0]), ("127.0.0.1:9,127.0.0.1:10", [0.5, 0.5, 1.0, 2.0, 6.0])],
)
def test_tries_for_several_brokers_grow_and_end_with_the_limit(
    servers: str, expected: list[float]
) -> None:
    elapsed_s, tries = 0.0, []
    while elapsed_s < 10.0:
        tries.append(connection_to(servers).time_of_try(10.0, elapsed_s))
        elapsed_s += tries[-1]

    assert tries == expected


def test_a_read_connects_again_if_a_broker_stands_still(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = f"{broker.bootstrap_servers},{broker.bootstrap_servers}"
    log = KafkaLog(f"still-{time.time_ns()}.log", servers)
    log.create()
    writer = log.writer()
    writer.append([UnstoredRecord(b"k", b"v", b"h", time.time_ns() // 1000)], timeout_s=30.0)
    writer.close(timeout_s=5.0)
    is_over = threading.Event()
    connected: list[object] = []

    def made_late(make: Any, options: dict[str, object]) -> object:  # noqa: ANN401
        connected.append(make)
        if len(connected) == 1:
            is_over.wait(30.0)
            raise OSError("too late")
        return made(make, options)

    monkeypatch.setattr(reader_module, "made", made_late)
    (record,) = log.read(0, 1, stall_s=10.0)
    is_over.set()

    assert record.value == b"v"
    assert len(connected) == 2
    log.close()
