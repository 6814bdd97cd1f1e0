"""Topics as DataFrames: ranges that end, partitions that are added, and offsets each once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit_records
from coordlog.projections.tables.reads import reads as reads_of
from coordlog.spark_integration.dataframes import coordinated
from data.kafka_topics import Topics, topics_at
from jobs.kafka_session import shared_session
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

WAIT_S = 120.0


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


@pytest.fixture
def topics(broker: EmbeddedBroker) -> Iterator[Topics]:
    with topics_at(broker.bootstrap_servers) as one:
        yield one


def values(frame: DataFrame) -> Counter[str]:
    return Counter(row[0] for row in frame.select("value").collect())


def messages(first: int, count: int) -> list[str]:
    return [str(n) for n in range(first, first + count)]


def test_a_batch_reads_what_there_is_in_ranges(session: SparkSession, topics: Topics) -> None:
    topic = topics.create(2)
    topics.fill(topic, 0, messages(0, 250))
    topics.fill(topic, 1, messages(250, 30))
    log = MemoryLog("topics")
    source = topics.source(topic, decode="utf8", split_offsets=100)
    with coordinated(session, "topics", source, log=log, partitions=3) as reads:
        assert values(reads.read()) == Counter(messages(0, 280))

    (read,) = reads_of(audit_records(log.read(0, log.high_watermark())))
    ranges = [one.split_id.partition("/")[2] for one in read.splits]
    assert sorted(ranges) == ["0@0..100", "0@100..200", "0@200..250", "1@0..30"]


def test_a_stream_finds_what_comes_and_partitions_that_are_added(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, messages(0, 50))
    log, batches = MemoryLog("topics"), dict[int, Counter[str]]()
    source = topics.source(
        topic, decode="utf8", bounded=False, discovery_interval_s=0.2, split_offsets=20
    )
    with coordinated(session, "topics", source, log=log, partitions=2, splits_per_batch=2) as reads:
        query = (
            reads.read_stream()
            .writeStream.foreachBatch(lambda frame, n: batches.update({n: values(frame)}))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        try:
            wait_for(batches, 50)
            topics.admin.create_partitions({topic: 2})
            topics.fill(topic, 1, messages(100, 10))
            topics.fill(topic, 0, messages(50, 10))
            wait_for(batches, 70)
        finally:
            query.stop()
        assert query.exception() is None

    assert sum(batches.values(), Counter()) == Counter([*messages(0, 60), *messages(100, 10)])
    assert sum(batches[0].values()) == 40, "a batch is bounded by its splits"


def wait_for(batches: dict[int, Counter[str]], count: int) -> None:
    total: Callable[[], int] = lambda: sum(sum(one.values()) for one in list(batches.values()))  # noqa: E731
    until = time.monotonic() + WAIT_S
    while total() < count:
        assert time.monotonic() < until, f"{total()} of {count} have come"
        time.sleep(0.05)


def test_bad_records_of_a_range_are_published_once(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, [f'{{"a": {n}}}' if n % 3 else f"bad {n}" for n in range(90)])
    log, rejects = MemoryLog("topics"), tmp_path / "rejects"
    source = topics.source(
        topic, decode="json", value_schema="a bigint", split_offsets=40, bad_rows=rejects
    )
    with coordinated(session, "topics", source, log=log, partitions=2) as reads:
        for _ in range(2):
            rows = reads.read().select("value.a").collect()
            assert sorted(row[0] for row in rows) == [n for n in range(90) if n % 3]

    shown = session.read.parquet(str(rejects))
    assert shown.columns == ["topic", "partition", "offset", "reason", "row"]
    found = sorted((row.topic, row.partition, row.offset, row.row) for row in shown.collect())
    assert found == [(topic, 0, n, f"bad {n}") for n in range(0, 90, 3)]
    first, second = reads_of(audit_records(log.read(0, log.high_watermark())))
    for read in (first, second):
        counts = sorted((one.split_id.rpartition("@")[2], one.rejected) for one in read.splits)
        assert counts == [("0..40", 14), ("40..80", 13), ("80..90", 3)]
