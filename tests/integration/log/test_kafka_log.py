"""What only a real broker can show: settings of topics, kills, two drivers at once."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import KafkaTimeoutError, UnknownTopicOrPartitionError
from kafka.net.manager import KafkaConnectionManager
from kafka.structs import TopicPartition

from coordlog.errors import (
    AppendRefusedError,
    FencedError,
    LogUnavailableError,
    OffsetGapError,
    OptionError,
    OutOfRangeError,
    TopicError,
)
from coordlog.log.appender import Patience
from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog, list_jobs
from coordlog.log.kafka.admin_compat import settings_of
from coordlog.log.kafka.writer import PRODUCER_OPTIONS, _discard
from histories.log_records import Driver, counted, plain, start_driver, turns
from servers.topic_settings import change_settings

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

_numbers = itertools.count()

SINCE_3_6 = pytest.mark.newer_broker("3.6")  # an older one has no such setting

GOOD = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "flush.messages": "1",
}


@pytest.fixture(scope="module")
def own_broker() -> Iterator[EmbeddedBroker]:
    """A broker of this module, that its tests may kill."""
    with embedded_broker() as broker:
        yield broker


@pytest.fixture
def admin(own_broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=own_broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"kafka-log-{os.getpid()}-{next(_numbers)}.log"


@pytest.fixture
def log_of(own_broker: EmbeddedBroker) -> Iterator[Callable[..., KafkaLog]]:
    logs: list[KafkaLog] = []

    def make(topic: str, *, fsync: bool = True, retention_ms: int = -1) -> KafkaLog:
        log = KafkaLog(topic, own_broker.bootstrap_servers, fsync=fsync, retention_ms=retention_ms)
        logs.append(log)
        return log

    yield make
    for log in logs:
        log.close()


def create(
    admin: KafkaAdminClient,
    topic: str,
    settings: dict[str, str] | None = None,
    *,
    partitions: int = 1,
) -> None:
    """A topic as somebody else might have made it, with these settings instead of the good ones."""
    configs = GOOD | (settings or {})
    admin.create_topics(
        {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}},
        wait_for_metadata=True,  # pyright: ignore[reportCallIssue]  # its stubs are older
    )


def test_a_topic_is_created_with_settings_that_lose_nothing(
    log_of: Callable[..., KafkaLog], topic: str
) -> None:
    identity = log_of(topic).create()
    assert log_of(topic).open() == identity
    assert log_of(topic).create() == identity  # it is there: nothing is done


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1000000"),
        ("message.timestamp.type", "LogAppendTime"),
        pytest.param("message.timestamp.after.max.ms", "3600000", marks=SINCE_3_6),
        pytest.param("message.timestamp.before.max.ms", "3600000", marks=SINCE_3_6),
        ("compression.type", "lz4"),
        ("max.message.bytes", "500000"),
        ("flush.messages", "100"),
    ],
)
def test_a_setting_that_would_lose_history_is_refused_by_name(
    admin: KafkaAdminClient,
    log_of: Callable[..., KafkaLog],
    topic: str,
    setting: str,
    value: str,
) -> None:
    create(admin, topic, {setting: value})
    for open_it in (log_of(topic).open, log_of(topic).create, log_of(topic).high_watermark):
        with pytest.raises(TopicError) as caught:
            open_it()
        assert f"{setting} is {value}" in str(caught.value)
        assert f"--entity-name {topic} --add-config {setting}={GOOD[setting]}" in str(caught.value)


def test_records_of_a_codec_that_the_client_lacks_are_named(
    admin: KafkaAdminClient,
    log_of: Callable[..., KafkaLog],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create(admin, topic, {"compression.type": "zstd"})
    producer = KafkaProducer(bootstrap_servers=log_of(topic).bootstrap_servers)
    producer.send(topic, b"v" * 2_000).get(timeout=10)
    producer.close()
    monkeypatch.setattr("kafka.codec.zstd", None)  # as if its package were not installed

    log = log_of(topic)
    log.open_to_read()
    with pytest.raises(TopicError, match=r"codec that the client lacks.*pip install 'kafka-python"):
        list(log.read(0, 1))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("max.message.bytes", "300"), ("retention.bytes", "1000000"), ("cleanup.policy", "compact")],
)
def test_a_log_opened_for_reading_ignores_its_settings_and_changes_nothing(
    admin: KafkaAdminClient,
    log_of: Callable[..., KafkaLog],
    topic: str,
    setting: str,
    value: str,
) -> None:
    good = log_of(topic)
    identity = good.create()
    writer = good.writer()
    writer.append(turns([1], 0, 0), timeout_s=10.0)
    writer.close(timeout_s=2.0)
    change_settings(admin, topic, {setting: value})

    log = log_of(topic)
    assert log.open_to_read() == identity
    assert (log.start_offset(), log.high_watermark()) == (0, 1)
    assert [one.offset for one in log.read(0, 1)] == [0]
    for change in (log.writer, partial(log.delete_below, 1)):
        with pytest.raises(TopicError, match=f"{setting} is {value}"):
            change()
    assert log.start_offset() == 0

    change_settings(admin, topic, {setting: GOOD[setting]})
    writer = log.writer()
    assert writer.append(turns([1], 0, 1), timeout_s=10.0) == [1]
    writer.close(timeout_s=2.0)


def test_what_can_hold_no_history_is_not_read_either(
    admin: KafkaAdminClient, log_of: Callable[..., KafkaLog], topic: str
) -> None:
    with pytest.raises(TopicError, match="there is no such topic"):
        log_of(topic).open_to_read()
    create(admin, topic, partitions=2)
    with pytest.raises(TopicError, match="it has 2 partitions"):
        log_of(topic).open_to_read()


def test_all_settings_that_are_wrong_are_named_at_once(
    admin: KafkaAdminClient, log_of: Callable[..., KafkaLog], topic: str
) -> None:
    create(admin, topic, {"retention.ms": "1000", "flush.messages": "7"})
    with pytest.raises(TopicError, match=r"retention\.ms is 1000.*flush\.messages is 7"):
        log_of(topic).open()


def test_what_the_user_gives_up_is_accepted(
    admin: KafkaAdminClient, log_of: Callable[..., KafkaLog], topic: str
) -> None:
    create(admin, topic, {"retention.ms": "604800000", "flush.messages": "100"})
    log_of(topic, fsync=False, retention_ms=604800000).open()
    with pytest.raises(TopicError, match=r"retention\.ms"):
        log_of(topic, fsync=False, retention_ms=604800001).open()
    with pytest.raises(TopicError, match=r"flush\.messages"):
        log_of(topic, retention_ms=604800000).open()


def test_a_topic_of_two_partitions_is_refused(
    admin: KafkaAdminClient, log_of: Callable[..., KafkaLog], topic: str
) -> None:
    create(admin, topic, partitions=2)
    with pytest.raises(TopicError, match="it has 2 partitions"):
        log_of(topic).open()


def test_a_topic_that_is_missing_is_refused_and_not_made(
    log_of: Callable[..., KafkaLog], topic: str
) -> None:
    with pytest.raises(TopicError, match="there is no such topic"):
        log_of(topic).high_watermark()
    writer = log_of(topic).writer()
    with pytest.raises(LogUnavailableError):
        writer.append(turns([1], 0, 0), timeout_s=1.0)
    writer.close(timeout_s=2.0)
    with pytest.raises(TopicError):
        log_of(topic).open()


@pytest.mark.parametrize("kind", ["MetadataRequest", "DescribeConfigsRequest"])
def test_a_broker_that_learns_late_of_a_new_topic_is_asked_again(
    log_of: Callable[..., KafkaLog], monkeypatch: pytest.MonkeyPatch, topic: str, kind: str
) -> None:
    """On a cluster, the next question may go to a broker without the topic: for it, one that never was."""
    clients: Any = KafkaAdminClient  # its stubs are older
    send, wait = KafkaConnectionManager.send, clients.wait_for_topics
    is_made: list[bool] = []
    late: list[object] = []

    def waited(admin: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401, no types
        wait(admin, *arguments, **options)
        is_made.append(True)

    def asked(manager: Any, request: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401, as above
        if is_made and type(request).__name__ == kind and len(late) < 3 and topic in str(request):
            late.append(request)
            if kind == "MetadataRequest":
                request.topics[0].name = f"not-{topic}"
            else:
                request.resources = [(2, f"not-{topic}", None)]
        return send(manager, request, *arguments, **options)

    monkeypatch.setattr(clients, "wait_for_topics", waited)
    monkeypatch.setattr(KafkaConnectionManager, "send", asked)
    log = log_of(topic)
    log.create()
    assert len(late) == 3
    assert log.high_watermark() == 0


def test_the_client_loses_the_error_of_settings_that_are_refused(
    admin: KafkaAdminClient, topic: str
) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    assert not admin.describe_configs([resource])["topic"][topic]
    with pytest.raises(UnknownTopicOrPartitionError):
        settings_of(admin, topic)


def test_a_topic_that_is_deleted_is_missing_at_once(
    log_of: Callable[..., KafkaLog], caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    log = log_of(topic)
    log.create()
    log.delete()
    caplog.clear()
    with (
        caplog.at_level(logging.INFO, "coordlog.log.kafka"),
        pytest.raises(TopicError, match="there is no such topic"),
    ):
        log.open()
    assert "retrying" not in caplog.text, "the topic counts as just seen"


def test_more_replicas_than_brokers_are_refused(own_broker: EmbeddedBroker, topic: str) -> None:
    log = KafkaLog(topic, own_broker.bootstrap_servers, replication=3)
    with contextlib.closing(log), pytest.raises(TopicError, match="with 3 replicas"):
        log.create()


def test_the_jobs_of_a_broker_are_the_topics_that_are_named_like_one(
    own_broker: EmbeddedBroker, admin: KafkaAdminClient
) -> None:
    name = f"job-{os.getpid()}"
    create(admin, f"{name}.other")
    create(admin, f"{name.upper()}.log")
    log = KafkaLog.for_job(name, own_broker.bootstrap_servers)
    log.create()
    assert log.topic == f"{name}.log"
    assert [job for job in list_jobs(own_broker.bootstrap_servers) if name in job.lower()] == [name]
    log.delete()
    assert name not in list_jobs(own_broker.bootstrap_servers)
    log.delete()  # none is there: nothing is done
    log.close()


def test_a_job_id_that_is_none_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(OptionError, match="job_id"):
        KafkaLog.for_job("Bad Name", "127.0.0.1:1")


def test_records_of_a_foreign_producer_are_read_and_are_void(
    own_broker: EmbeddedBroker, log_of: Callable[..., KafkaLog], topic: str
) -> None:
    log = log_of(topic)
    log.create()
    driver = start_driver(log, "a", patience=Patience())
    producer = KafkaProducer(bootstrap_servers=own_broker.bootstrap_servers)
    producer.send(topic, b"hello", partition=0).get(20)
    producer.send(topic, None, key=b"tombstone", partition=0).get(20)
    producer.close()
    assert driver.appender.append(turns([1], 0, 0)) == (3,)
    found = list(log.read(0, 4))
    assert [(one.value, one.header_bytes) for one in found[1:3]] == [(b"hello", None), (None, None)]
    assert counted(log) == ["E0", "a0"]
    driver.appender.close()


def test_a_foreign_transaction_leaves_a_hole_that_is_read_over(
    own_broker: EmbeddedBroker, log_of: Callable[..., KafkaLog], topic: str
) -> None:
    log = log_of(topic)
    log.create()
    driver = start_driver(log, "a", patience=Patience())
    producer = KafkaProducer(
        bootstrap_servers=own_broker.bootstrap_servers, transactional_id=f"tx-{topic}"
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"in a transaction", partition=0)
    producer.flush()
    producer.commit_transaction()
    producer.close()
    # 1 is the record, 2 the mark that ends the transaction and that nobody is given.
    _wait_for(lambda: log.high_watermark() == 3)
    assert [record.offset for record in log.read(0, 3)] == [0, 1]
    assert driver.appender.append(turns([1], 0, 0)) == (3,)
    assert counted(log) == ["E0", "a0"]
    driver.appender.close()


@pytest.mark.fault("X3")
def test_what_stands_behind_a_transaction_that_hangs_is_read_all_the_same(
    own_broker: EmbeddedBroker, log_of: Callable[..., KafkaLog], topic: str
) -> None:
    log = log_of(topic)
    log.create()
    driver = start_driver(log, "a", patience=Patience())
    producer = KafkaProducer(
        bootstrap_servers=own_broker.bootstrap_servers, transactional_id=f"hangs-{topic}"
    )
    producer.init_transactions()
    producer.begin_transaction()
    assert producer.send(topic, b"never decided", partition=0).get(20).offset == 1
    assert driver.appender.append(turns([2], 0, 0)) == (2, 3)
    driver.appender.close()

    newer = start_driver(log_of(topic), "b", patience=Patience())

    assert [one.offset for one in log.read(0, log.high_watermark())] == [0, 1, 2, 3, 4]
    assert counted(log) == ["E0", "a0", "a1", "E1"]
    newer.appender.close()
    producer.abort_transaction()
    producer.close()


@pytest.mark.fault("X2")
def test_below_the_start_that_was_removed_nothing_can_be_read(
    admin: KafkaAdminClient, log_of: Callable[..., KafkaLog], topic: str
) -> None:
    log = log_of(topic)
    log.create()
    driver = start_driver(log, "a", patience=Patience())
    driver.appender.append(turns([1] * 5, 0, 0))
    admin.delete_records({TopicPartition(topic, 0): 3})
    assert (log.start_offset(), log.high_watermark()) == (3, 6)
    with pytest.raises(OutOfRangeError) as caught:
        log.read(2, 6)
    assert caught.value.start_offset == 3
    assert [record.offset for record in log.read(3, 6)] == [3, 4, 5]
    driver.appender.close()


@pytest.mark.fault("X1")
def test_two_drivers_on_one_topic_the_newer_one_holds_it(
    log_of: Callable[..., KafkaLog], topic: str
) -> None:
    log_of(topic).create()
    old = start_driver(log_of(topic), "a", patience=Patience())
    appended = threading.Event()
    ended: list[BaseException] = []

    def go_on() -> None:
        sequence = 0
        try:
            while True:
                old.appender.append(turns([2, 1], 0, sequence))
                sequence += 3
                appended.set()
        except FencedError as error:
            ended.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    assert appended.wait(30)
    new = start_driver(log_of(topic), "b", patience=Patience())
    first = new.appender.counting.next_sequence
    new.appender.append(turns([1], 1, first, "b"))
    thread.join(30)
    (error,) = ended
    assert isinstance(error, FencedError)
    assert (error.epoch_in_force, error.driver_in_force) == (1, "b")
    expected = [f"a{i}" for i in range(first)]
    assert counted(log_of(topic)) == ["E0", *expected, "E1", f"b{first}"]
    new.appender.close()


def driver_of_a_former_topic(log_of: Callable[..., KafkaLog], topic: str) -> Driver:
    """A driver that has appended five records to a topic of the name, which was made again since then."""
    log_of(topic).create()
    driver = start_driver(log_of(topic), "a", patience=Patience(log_timeout_s=10.0))
    driver.appender.append(turns([1] * 5, 0, 0))
    log_of(topic).delete()
    log_of(topic).create()
    return driver


@pytest.mark.newer_broker("without ZooKeeper")
@pytest.mark.fault("X7")
def test_a_topic_that_was_made_anew_under_a_driver_ends_it(
    log_of: Callable[..., KafkaLog], topic: str
) -> None:
    driver = driver_of_a_former_topic(log_of, topic)
    with pytest.raises(OffsetGapError):
        driver.appender.append(turns([1], 0, 5))


@pytest.mark.newer_broker("without ZooKeeper")
@pytest.mark.fault("X7")
@pytest.mark.clause("E9")
@pytest.mark.parametrize("doing", ["append", "check_epoch"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_driver_ends_on_a_topic_that_was_made_anew_and_is_longer(
    log_of: Callable[..., KafkaLog], topic: str, epochs: int, doing: str
) -> None:
    """By records alone it seems in force: the new log's last epoch began below the old one's end."""
    old = driver_of_a_former_topic(log_of, topic)
    drivers = [start_driver(log_of(topic), name, patience=Patience()) for name in "bc"[:epochs]]
    new = drivers[-1]
    new.appender.append(turns([1] * 9, epochs - 1, 0))

    append = partial(old.appender.append, turns([1], 0, 5))
    with pytest.raises(TopicError, match="deleted and made again"):
        (append if doing == "append" else old.appender.check_epoch)()

    new.appender.append(turns([1], epochs - 1, 9))
    assert len(counted(log_of(topic))) == epochs + 10
    for driver in drivers:
        driver.appender.close()


@pytest.mark.newer_broker("without ZooKeeper")
@pytest.mark.fault("X7")
@pytest.mark.clause("K2")
def test_an_idle_driver_ends_on_a_topic_that_was_made_anew_and_is_as_long(
    log_of: Callable[..., KafkaLog], topic: str
) -> None:
    """By offsets, epoch and sequence it seems in force."""
    old = driver_of_a_former_topic(log_of, topic)
    new = start_driver(log_of(topic), "b", patience=Patience())
    new.appender.append(turns([1] * 5, 0, 0))
    assert new.appender.end_offset == old.appender.end_offset

    with pytest.raises(TopicError, match="deleted and made again"):
        old.appender.check_epoch()
    new.appender.close()


@pytest.mark.clause("E9")
@pytest.mark.parametrize("doing", ["writer", "delete_below"])
def test_a_topic_that_was_made_anew_is_not_changed_by_who_read_the_old_one(
    log_of: Callable[..., KafkaLog], topic: str, doing: str
) -> None:
    log_of(topic).create()
    reader = log_of(topic)
    reader.open_to_read()
    log_of(topic).delete()
    log_of(topic).create()
    start_driver(log_of(topic), "b", patience=Patience()).appender.close()
    change = reader.writer if doing == "writer" else partial(reader.delete_below, 1)
    with pytest.raises(TopicError, match="deleted and made again"):
        change()
    assert counted(log_of(topic)) == ["E0"]


@pytest.mark.clause("K6")
def test_records_too_large_for_the_broker_are_refused_and_others_stored(
    topic: str, admin: KafkaAdminClient, log_of: Callable[..., KafkaLog]
) -> None:
    """The client splits a batch that is too large as a whole, and its `flush` gives up meanwhile."""
    log = log_of(topic)
    log.create()
    large = plain("x" * 1000, 0, 8)
    change_settings(admin, topic, {"max.message.bytes": "600"})
    _wait_for(lambda: _is_refused(log, large))

    first = log.high_watermark()
    small = [plain("x" * 100, 0, n) for n in range(8)]
    writer = log.writer()
    assert list(writer.append(small, timeout_s=30)) == list(range(first, first + 8))
    began = time.monotonic()
    with pytest.raises(AppendRefusedError, match="MessageSizeTooLargeError"):
        writer.append([*small, large], timeout_s=30)
    assert time.monotonic() - began < 25, "told by the broker, not by the clock"
    writer.close(timeout_s=5)


def _is_refused(log: KafkaLog, record: UnstoredRecord) -> bool:
    writer = log.writer()
    try:
        writer.append([record], timeout_s=30)
    except AppendRefusedError:
        return True
    finally:
        writer.close(timeout_s=5)
    return False


@pytest.mark.newer_broker("without ZooKeeper")
@pytest.mark.fault("X9")
@pytest.mark.kill
def test_a_broker_that_is_killed_during_appends_loses_nothing_acknowledged(
    own_broker: EmbeddedBroker, log_of: Callable[..., KafkaLog], topic: str
) -> None:
    log = log_of(topic)
    log.create()
    patience = Patience(log_timeout_s=120.0, append_timeout_s=3.0)
    driver = start_driver(log, "a", patience=patience)
    confirmed: dict[str, int] = {}
    stop = threading.Event()
    failed: list[BaseException] = []

    def go_on() -> None:
        sequence = 0
        try:
            while not stop.is_set():
                records = turns([3, 1, 2] * 20, 0, sequence)
                for record, offset in zip(records, driver.appender.append(records), strict=True):
                    confirmed[record.value.decode()] = offset
                sequence += len(records)
        except BaseException as error:  # noqa: BLE001, looked at below
            failed.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()

    def has_gone_on(had: int) -> bool:
        return len(confirmed) > had + 1000 or bool(failed)

    for _ in range(2):
        _wait_for(partial(has_gone_on, len(confirmed)))
        own_broker.kill()
        own_broker.restart()
    _wait_for(partial(has_gone_on, len(confirmed)))
    stop.set()
    thread.join(60)
    assert failed == []
    assert counted(log) == ["E0", *(f"a{i}" for i in range(len(confirmed)))]
    by_offset = {record.offset: record.value for record in log.read(0, log.high_watermark())}
    assert all(by_offset[offset] == name.encode() for name, offset in confirmed.items())
    driver.appender.close()


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, "it does not go on"
        time.sleep(0.01)


def _stands_still(pid: int) -> bool:
    """Every thread of it: a signal reaches them one after the other."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(
        one.read_text("ascii", "replace").rpartition(")")[2].split()[0] == "T" for one in stats
    )


@pytest.mark.fault("X8")
@pytest.mark.kill
def test_a_hanging_broker_is_reported_in_time_and_leaves_no_thread(
    own_broker: EmbeddedBroker, topic: str
) -> None:
    """A stopped process still accepts connections: nothing is refused, and nothing answers."""
    log = KafkaLog(topic, own_broker.bootstrap_servers, connect_timeout_s=1.0)
    log.create()
    writer = log.writer()
    records = turns([1], 0, 0)
    assert list(writer.append(records, timeout_s=20.0)) == [0]
    os.kill(own_broker.pid, signal.SIGSTOP)
    try:
        _wait_for(lambda: _stands_still(own_broker.pid))
        for ask in (
            log.high_watermark,
            lambda: writer.append(records, timeout_s=1.0),
            lambda: KafkaLog(topic, own_broker.bootstrap_servers, connect_timeout_s=1.0).open(),
        ):
            began = time.monotonic()
            with pytest.raises(LogUnavailableError):
                ask()
            assert time.monotonic() - began < 5.0  # 1 s is allowed; the machine may be loaded
        began = time.monotonic()
        writer.close(timeout_s=0.5)
        assert time.monotonic() - began < 3.0
    finally:
        os.kill(own_broker.pid, signal.SIGCONT)
    _wait_for(lambda: _answers(log))
    log.close()
    _wait_for(
        lambda: not [one for one in threading.enumerate() if one.name.startswith("coordlog-kafka")]
    )
    assert "kafka-python-producer" not in " ".join(one.name for one in threading.enumerate())


def test_the_client_does_not_close_while_a_batch_has_no_answer(
    own_broker: EmbeddedBroker, log_of: Callable[..., KafkaLog], topic: str
) -> None:
    """If this fails, a release has corrected the fault: see `_discard`, and `test_kafka_client_faults.py`."""
    log_of(topic).create()
    producer: Any = KafkaProducer(
        bootstrap_servers=own_broker.bootstrap_servers, **PRODUCER_OPTIONS
    )
    producer.send(topic, value=b"first", partition=0).get(timeout=20)
    os.kill(own_broker.pid, signal.SIGSTOP)
    try:
        producer.send(topic, value=b"second", partition=0)
        with pytest.raises(KafkaTimeoutError):
            producer.close(timeout=0.5)
        assert producer._sender.is_alive()
        assert not producer._closed
        _discard(producer)
        assert producer._closed
    finally:
        os.kill(own_broker.pid, signal.SIGCONT)
    producer._sender.join(20)
    assert not producer._sender.is_alive()


def _answers(log: KafkaLog) -> bool:
    try:
        return log.high_watermark() > 0
    except LogUnavailableError:
        return False


def test_a_broker_that_never_was_is_said_to_be_missing_within_the_bound() -> None:
    log = KafkaLog("nowhere.log", "127.0.0.1:1", connect_timeout_s=0.5)
    for ask in (log.open, log.create, log.delete, log.high_watermark):
        began = time.monotonic()
        with pytest.raises(LogUnavailableError, match=r"127\.0\.0\.1:1"):
            ask()
        assert time.monotonic() - began < 5.0
    began = time.monotonic()
    writer = log.writer()
    with pytest.raises(LogUnavailableError):
        writer.append(
            [UnstoredRecord(key=b"k", value=b"v", header=b"", timestamp_us=0)], timeout_s=0.5
        )
    writer.close(timeout_s=1.0)
    assert time.monotonic() - began < 5.0
    log.close()
