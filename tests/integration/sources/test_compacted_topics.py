"""A Kafka source reads a compacted topic, in which the marker of a transaction is a batch without a record."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.record import MemoryRecords

from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from data.kafka_topics import WAIT_S, ReadOut, Topics, listed, opened, read, topics_at

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CLEANER = {"log.cleaner.backoff.ms": "200"}
COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_ms": "500",
    "min_cleanable_dirty_ratio": "0.0",
    "delete_retention_ms": "100",
}


def aborted_by_the_next(topics: Topics, topic: str) -> None:
    """A producer is gone in its transaction; the next of its id aborts it, with an epoch of its own in the marker."""
    for is_first in (True, False):
        producer = KafkaProducer(bootstrap_servers=topics.servers, transactional_id=f"{topic}-tx")
        try:
            producer.init_transactions()
            if is_first:
                producer.begin_transaction()
                producer.send(topic, value=b"aborted", key=b"a", partition=0).get(timeout=WAIT_S)
        finally:
            producer.close(timeout=0)


def has_empty_marker(folder: Path, topic: str) -> bool:
    for file in folder.rglob(f"{topic}-0/*.log"):
        records = MemoryRecords(file.read_bytes())
        while (batch := records.next_batch()) is not None:
            if batch.is_control_batch and batch.records_count == 0:
                return True
    return False


def compact_until_a_marker_is_empty(
    broker: EmbeddedBroker, topics: Topics, topic: str, key: bytes
) -> None:
    """Each record begins a segment, so that the one before can be compacted."""
    until = time.monotonic() + WAIT_S
    while not has_empty_marker(broker.folder, topic):
        assert time.monotonic() < until
        topics.fill(topic, 0, ["latest"], key=key)
        time.sleep(0.6)


def test_a_marker_that_compaction_has_emptied_is_passed_over() -> None:
    with embedded_broker(settings=CLEANER) as broker, topics_at(broker.bootstrap_servers) as topics:
        topic = topics.create(**COMPACTED)
        topics.fill(topic, 0, ["before"], key=b"before")
        aborted_by_the_next(topics, topic)
        compact_until_a_marker_is_empty(broker, topics, topic, b"k")
        source = topics.source(topic, decode="utf8")

        with closing(opened(source, listed(source).splits)) as reader:
            reader.notify_no_more_splits()
            out = read(reader, ReadOut(), limit_s=20.0)

        assert out.values[0] == "before"
        assert set(out.values[1:]) == {"latest"}
