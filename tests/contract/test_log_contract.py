"""What every log must do: one suite, run in memory, on a broker of its own and on a container's."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from typing import cast

import pytest

from coordlog.errors import AppendRefusedError, LogUnavailableError, OutOfRangeError
from coordlog.log.appender import Patience
from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.interface import Log, StoredRecord, UnstoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.log.memory import MemoryLog
from histories.log_records import counted, plain, start_driver, turns
from servers.containers import kafka_container

TIMEOUT_S = 20.0
"""Generous: what is measured here is behaviour, on a machine that may be loaded."""

_numbers = itertools.count()


class Home(ABC):
    """A place where logs live."""

    @abstractmethod
    def new(self) -> Log:
        """A new, empty log."""

    @abstractmethod
    def again(self, log: Log) -> Log:
        """The same log for another user."""

    @abstractmethod
    def recreate(self, log: Log) -> Log:
        """Delete it and make another of the same name."""


class MemoryHome(Home):
    """In this process."""

    def new(self) -> Log:
        """As in `Home`."""
        return MemoryLog()

    def again(self, log: Log) -> Log:
        """As in `Home`."""
        return cast("MemoryLog", log).seen_by("another")

    def recreate(self, log: Log) -> Log:
        """As in `Home`."""
        cast("MemoryLog", log).recreate()
        return log


class KafkaHome(Home):
    """Topics of a broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._logs: list[KafkaLog] = []

    def of(self, topic: str) -> KafkaLog:
        """The log of that topic."""
        log = KafkaLog(topic, self._bootstrap_servers, connect_timeout_s=TIMEOUT_S)
        self._logs.append(log)
        return log

    def new(self) -> Log:
        """As in `Home`."""
        log = self.of(f"contract-{os.getpid()}-{next(_numbers)}.log")
        log.create()
        return log

    def again(self, log: Log) -> Log:
        """As in `Home`."""
        return self.of(cast("KafkaLog", log).topic)

    def recreate(self, log: Log) -> Log:
        """As in `Home`."""
        topic = cast("KafkaLog", log).topic
        cast("KafkaLog", log).delete()
        another = self.of(topic)
        another.create()
        return another

    def close(self) -> None:
        """Free all logs that were made here."""
        for log in self._logs:
            log.close()


@pytest.fixture(scope="module")
def own_broker() -> Iterator[EmbeddedBroker]:
    """A broker of this module, that its tests may kill."""
    with embedded_broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    with kafka_container() as bootstrap_servers:
        yield bootstrap_servers


KAFKA = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(
    params=[
        "memory",
        pytest.param("embedded", marks=KAFKA),
        pytest.param("container", marks=[*KAFKA, pytest.mark.docker]),
    ]
)
def home(request: pytest.FixtureRequest) -> Iterator[Home]:
    if request.param == "memory":
        yield MemoryHome()
        return
    if request.param == "embedded":
        broker = cast("EmbeddedBroker", request.getfixturevalue("own_broker"))
        kafka = KafkaHome(broker.bootstrap_servers)
    else:
        kafka = KafkaHome(cast("str", request.getfixturevalue("container")))
    with contextlib.closing(kafka):
        yield kafka


@pytest.fixture
def log(home: Home) -> Log:
    return home.new()


@contextlib.contextmanager
def appending(log: Log) -> Generator[Appending]:
    """A writer that is closed at the end."""
    one = Appending(log)
    try:
        yield one
    finally:
        one.writer.close(timeout_s=TIMEOUT_S)


class Appending:
    """Appends whole groups with one writer."""

    def __init__(self, log: Log) -> None:
        self.writer = log.writer()

    def __call__(self, *records: UnstoredRecord) -> list[int]:
        """The records' offsets."""
        return list(self.writer.append(records, timeout_s=TIMEOUT_S))


def group(name: str, size: int) -> list[UnstoredRecord]:
    return [plain(f"{name}{i}", 0, i) for i in range(size)]


def values(records: Iterator[StoredRecord]) -> list[str]:
    return [(record.value or b"").decode() for record in records]


def test_a_new_log_is_empty(log: Log) -> None:
    assert (log.start_offset(), log.high_watermark()) == (0, 0)
    assert list(log.read(0, 0)) == []


def test_an_append_returns_the_offset_of_every_record(log: Log) -> None:
    with appending(log) as append:
        assert append(*group("a", 3)) == [0, 1, 2]
        assert append(*group("b", 1)) == [3]
    assert log.high_watermark() == 4


def test_a_large_group_keeps_its_order(log: Log) -> None:
    with appending(log) as append:
        offsets = append(*group("a", 3000))
    assert offsets == list(range(3000))
    assert values(log.read(0, 3000)) == [f"a{i}" for i in range(3000)]


def test_a_record_is_given_back_as_it_was_appended(log: Log) -> None:
    one = plain("x", 4, 7, 2)
    with appending(log) as append:
        append(one)
    (stored,) = log.read(0, 1)
    assert stored == StoredRecord(
        offset=0,
        key=one.key,
        value=one.value,
        header_bytes=one.header,
        timestamp_ms=one.timestamp_us // 1000,
    )
    assert stored.header is not None
    assert stored.header.sequence == 7


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [(0, 5, "a0 a1 a2 a3 a4"), (0, 2, "a0 a1"), (3, 5, "a3 a4"), (2, 3, "a2"), (5, 5, "")],
)
def test_a_range_is_read_from_its_first_offset_up_to_its_end(
    log: Log, first: int, end: int, expected: str
) -> None:
    with appending(log) as append:
        append(*group("a", 5))
    assert values(log.read(first, end)) == expected.split()


def test_a_reading_may_be_left_early_and_begun_again(log: Log) -> None:
    with appending(log) as append:
        append(*group("a", 5))
    reading = log.read(0, 5)
    assert next(reading).offset == 0
    del reading
    assert values(log.read(1, 5)) == ["a1", "a2", "a3", "a4"]


@pytest.mark.parametrize(("first", "end"), [(0, 4), (4, 4), (2, 4)])
def test_a_range_beyond_the_high_watermark_is_out_of_range(log: Log, first: int, end: int) -> None:
    with appending(log) as append:
        append(*group("a", 3))
    with pytest.raises(OutOfRangeError) as caught:
        log.read(first, end)
    assert (caught.value.start_offset, caught.value.high_watermark) == (0, 3)


def test_two_writers_see_each_other_in_their_offsets(home: Home, log: Log) -> None:
    other = home.again(log)
    with appending(log) as append, appending(other) as append_too:
        assert append(*group("a", 2)) == [0, 1]
        assert append_too(*group("b", 2)) == [2, 3]
        assert append(*group("a", 1)) == [4]
    assert values(other.read(0, 5)) == ["a0", "a1", "b0", "b1", "a0"]
    assert log.high_watermark() == other.high_watermark() == 5


def test_two_writers_at_once_lose_nothing_and_keep_their_order(home: Home, log: Log) -> None:
    found: dict[str, list[int]] = {}

    def write(name: str, one: Log) -> None:
        with appending(one) as append:
            found[name] = [
                offset
                for i in range(20)
                for offset in append(
                    plain(f"{name}{2 * i}", 0, 0), plain(f"{name}{2 * i + 1}", 0, 0)
                )
            ]

    threads = [
        threading.Thread(target=write, args=(name, one))
        for name, one in (("a", log), ("b", home.again(log)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = values(log.read(0, log.high_watermark()))
    assert sorted(found["a"] + found["b"]) == list(range(80))
    for name, offsets in found.items():
        assert offsets == sorted(offsets)
        assert [stored[offset] for offset in offsets] == [f"{name}{i}" for i in range(40)]


def test_a_record_without_a_header_of_ours_is_read_too(log: Log) -> None:
    one = plain("x", 0, 0)
    foreign = UnstoredRecord(key=b"k", value=b"v", header=b"another", timestamp_us=0)
    with appending(log) as append:
        append(one, foreign)
    first, second = log.read(0, 2)
    assert first.header is not None
    assert second.header is None
    assert second.value == b"v"


def test_a_record_that_is_too_large_is_refused_by_its_size(log: Log) -> None:
    large = UnstoredRecord(key=b"k", value=b"x" * 1_100_000, header=b"", timestamp_us=0)
    writer = log.writer()
    with pytest.raises(AppendRefusedError, match="1100001"):
        writer.append([large], timeout_s=TIMEOUT_S)
    writer.close(timeout_s=TIMEOUT_S)
    assert log.high_watermark() == 0
    with appending(log) as append:
        assert append(plain("x", 0, 0)) == [0]


def test_a_record_of_the_size_that_is_allowed_is_taken(log: Log) -> None:
    largest = UnstoredRecord(key=b"k", value=b"x" * 899_999, header=b"", timestamp_us=0)
    with appending(log) as append:
        assert append(largest, largest) == [0, 1]
    assert [len(record.value or b"") for record in log.read(0, 2)] == [899_999] * 2


def test_a_time_far_ahead_is_taken(log: Log) -> None:
    later = UnstoredRecord(key=b"k", value=b"v", header=b"", timestamp_us=4_000_000_000_000_000)
    with appending(log) as append:
        append(later)
    assert next(log.read(0, 1)).timestamp_ms == 4_000_000_000_000


def test_an_identity_stays(home: Home, log: Log) -> None:
    identity = log.identity
    with appending(log) as append:
        append(*group("a", 2))
    assert log.identity == identity
    assert home.again(log).identity == identity


def test_two_logs_have_two_identities(home: Home, log: Log) -> None:
    assert home.new().identity.topic_id != log.identity.topic_id


@pytest.mark.newer_broker("without ZooKeeper")
def test_another_topic_of_the_same_name_has_another_identity(home: Home, log: Log) -> None:
    with appending(log) as append:
        append(*group("a", 2))
    before = log.identity
    after = home.recreate(log)
    assert after.identity.name == before.name
    assert after.identity.topic_id != before.topic_id
    assert after.high_watermark() == 0


def test_closing_twice_is_allowed(log: Log) -> None:
    writer = log.writer()
    writer.append(group("a", 1), timeout_s=TIMEOUT_S)
    writer.close(timeout_s=TIMEOUT_S)
    writer.close(timeout_s=TIMEOUT_S)
    log.close()
    log.close()
    log.writer().close(timeout_s=TIMEOUT_S)  # one that never connected


def test_a_driver_takes_over_and_appends(home: Home, log: Log) -> None:
    patience = Patience()
    first = start_driver(log, "a", patience=patience)
    assert first.appender.append(turns([2, 1], 0, 0)) == (1, 2, 3)
    second = start_driver(home.again(log), "b", patience=patience)
    assert second.appender.append(turns([1], 1, 3, "b")) == (5,)
    assert counted(log) == ["E0", "a0", "a1", "a2", "E1", "b3"]
    first.appender.close()
    second.appender.close()


# --- a log that is not there ---


class Outage(ABC):
    """A log whose place can be taken away and given back."""

    log: Log

    @abstractmethod
    def begin(self) -> None:
        """Nothing answers from here on."""

    @abstractmethod
    def end(self) -> None:
        """It answers again."""


class MemoryOutage(Outage):
    """A `MemoryLog` that does not answer."""

    def __init__(self) -> None:
        self._memory = MemoryLog()
        self.log = self._memory

    def begin(self) -> None:
        """As in `Outage`."""
        self._memory.faults.is_gone = True

    def end(self) -> None:
        """As in `Outage`."""
        self._memory.faults.is_gone = False


class BrokerOutage(Outage):
    """A broker that is killed."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        topic = f"outage-{os.getpid()}-{next(_numbers)}.log"
        KafkaHome(broker.bootstrap_servers).of(topic).create()
        self.log = KafkaLog(topic, broker.bootstrap_servers, connect_timeout_s=2.0)
        assert self.log.high_watermark() == 0

    def begin(self) -> None:
        """As in `Outage`."""
        self._broker.kill()

    def end(self) -> None:
        """As in `Outage`."""
        if not self._broker.is_running:
            self._broker.restart()


@pytest.fixture(
    params=["memory", pytest.param("embedded", marks=[*KAFKA, pytest.mark.kill])],
)
def outage(request: pytest.FixtureRequest) -> Iterator[Outage]:
    if request.param == "memory":
        yield MemoryOutage()
        return
    broker = cast("EmbeddedBroker", request.getfixturevalue("own_broker"))
    one = BrokerOutage(broker)
    yield one
    one.log.close()


@pytest.mark.newer_broker("without ZooKeeper")
def test_an_unreachable_log_is_reported_within_the_bound_and_works_again(
    outage: Outage,
) -> None:
    log = outage.log
    writer = log.writer()
    assert list(writer.append(group("a", 2), timeout_s=TIMEOUT_S)) == [0, 1]
    outage.begin()
    try:
        for ask in (
            log.high_watermark,
            log.start_offset,
            lambda: list(log.read(0, 2, stall_s=1.0)),
            lambda: writer.append(group("b", 1), timeout_s=2.0),
            lambda: log.writer().append(group("c", 1), timeout_s=2.0),
        ):
            began = time.monotonic()
            with pytest.raises(LogUnavailableError):
                ask()
            assert time.monotonic() - began < 6.0  # 2 s are allowed; the machine may be loaded
        began = time.monotonic()
        writer.close(timeout_s=1.0)
        assert time.monotonic() - began < 3.0
    finally:
        outage.end()
    end = log.high_watermark()
    assert values(log.read(0, end))[:2] == ["a0", "a1"]
    with appending(log) as append:
        assert append(plain("d", 0, 0)) == [log.high_watermark() - 1]


@pytest.mark.newer_broker("without ZooKeeper")
def test_a_driver_goes_on_when_the_log_is_back(outage: Outage) -> None:
    patience = Patience(
        log_timeout_s=60.0, append_timeout_s=2.0, on_waiting=lambda _waited, _error: outage.end()
    )
    driver = start_driver(outage.log, "a", patience=patience)
    driver.appender.append(turns([1, 1], 0, 0))
    outage.begin()
    driver.appender.append(turns([2], 0, 2))
    driver.appender.append(turns([1], 0, 4))
    assert counted(outage.log) == ["E0", "a0", "a1", "a2", "a3", "a4"]
    driver.appender.close()
