"""Consumers of a Kafka log's reads: the next read uses that of the last one, unless it failed or is old. No broker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from kafka import errors
from kafka.structs import TopicPartition

from coordlog.errors import RecordError
from coordlog.log.kafka import reader
from coordlog.log.kafka.client import Connection
from coordlog.log.kafka.security import Security

PARTITION = TopicPartition("job.log", 0)


class Fetched(NamedTuple):
    """A record as the client has it."""

    offset: int
    key: bytes
    value: bytes
    headers: Sequence[tuple[str, bytes]]
    timestamp: int


class FakeConsumer:
    """A topic of ten records."""

    def __init__(self) -> None:
        self.position_ = 0
        self.sought: list[int] = []
        self.raises: Sequence[BaseException] = []
        self.is_closed = False

    def seek(self, _partition: object, offset: int) -> None:
        self.position_ = offset
        self.sought.append(offset)

    def poll(self, *, timeout_ms: int, max_records: int) -> dict[object, list[Fetched]]:
        assert timeout_ms > 0, "it waits"
        if self.raises:
            first, *self.raises = self.raises
            raise first
        offsets = range(self.position_, min(10, self.position_ + max_records))
        self.position_ = offsets.stop
        return {PARTITION: [Fetched(n, b"", b"", [], 0) for n in offsets]}

    def close(self) -> None:
        self.is_closed = True


class Topic:
    """Reads of a topic, and the consumers that they have connected."""

    def __init__(self) -> None:
        self.consumers: list[FakeConsumer] = []
        self.idle = reader.IdleConsumer()
        self._connection = Connection(
            topic="job.log",
            bootstrap_servers="127.0.0.1:9",
            security=Security(),
            connect_timeout_s=1.0,
        )

    def connect(self) -> FakeConsumer:
        self.consumers.append(FakeConsumer())
        return self.consumers[-1]

    def read(self, first: int, end: int) -> Iterator[int]:
        stored = reader.read_range(self._connection, self.idle, first, end, 5.0, lambda: (0, 10))
        return (one.offset for one in stored)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()

    def connect(_reading: object) -> Any:  # noqa: ANN401, the client has no types
        return topic.connect()

    monkeypatch.setattr(reader._Reading, "_connect", connect)
    return topic


def closed(consumer: FakeConsumer) -> bool:
    """Consumers are closed in the background."""
    deadline = time.monotonic() + 10.0
    while not consumer.is_closed and time.monotonic() < deadline:
        time.sleep(0.001)
    return consumer.is_closed


def test_a_read_uses_the_consumer_of_the_read_before_from_its_own_offset(topic: Topic) -> None:
    assert list(topic.read(7, 10)) == [7, 8, 9]
    assert next(topic.read(2, 10)) == 2
    assert list(topic.read(3, 5)) == [3, 4]

    (consumer,) = topic.consumers
    assert consumer.sought == [7, 2, 3]
    topic.idle.free()
    assert closed(consumer)


def test_of_two_reads_at_one_time_each_has_a_consumer_and_one_stays(topic: Topic) -> None:
    first, second = topic.read(0, 10), topic.read(5, 10)

    assert [next(first), next(second), *first, *second] == [0, 5, *range(1, 10), *range(6, 10)]
    assert len(topic.consumers) == 2
    assert [closed(topic.consumers[0]), topic.consumers[1].is_closed] == [True, False]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(errors.CorruptRecordError("crc"), RecordError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_consumer_that_failed_is_closed_and_not_used_again(
    topic: Topic, raised: BaseException, expected: type[BaseException]
) -> None:
    list(topic.read(0, 1))
    topic.consumers[0].raises = [raised]
    with pytest.raises(expected):
        list(topic.read(0, 2))

    assert list(topic.read(0, 2)) == [0, 1]
    assert len(topic.consumers) == 2
    assert closed(topic.consumers[0])


def test_a_consumer_that_was_idle_for_long_is_closed_and_not_used_again(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(topic.read(0, 1))
    monkeypatch.setattr(reader, "_IDLE_S", -1.0)

    assert list(topic.read(0, 2)) == [0, 1]
    assert len(topic.consumers) == 2
    assert closed(topic.consumers[0])
