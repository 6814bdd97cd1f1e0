"""Topics into Parquet on real Spark, over kills and a restart: each offset once, by an independent count."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from kafka import KafkaConsumer
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import Job, KafkaSource, ParquetSink
from coordlog.spark_integration.job_options import Callbacks
from data.kafka_topics import Topics, topics_at
from examples.demo_parts.follow import Follower, open_log
from examples.demo_parts.processes import IngestProcess
from jobs.ingest_case import LIMIT_S
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [pytest.mark.any_spark, pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

PARTITIONS, ROWS = 3, 1_500
WAIT_S = 120.0

SLOW = """
import time


def slowly(batch):
    time.sleep(batch.num_rows * 0.002)
    return batch
"""


@pytest.fixture
def topics(broker: EmbeddedBroker) -> Iterator[Topics]:
    with topics_at(broker.bootstrap_servers) as one:
        yield one


def in_topic(servers: str, topic: str) -> Counter[tuple[int, int, bytes | None]]:
    """What plain kafka-python finds, each partition from its beginning to its end."""
    found: Counter[tuple[int, int, bytes | None]] = Counter()
    consumer: Any = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    try:
        partitions = [TopicPartition(topic, one) for one in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        end = time.monotonic() + WAIT_S
        while any((consumer.position(one) or 0) < ends[one] for one in partitions):
            assert time.monotonic() < end
            for records in consumer.poll(timeout_ms=200).values():
                found.update((one.partition, one.offset, one.value) for one in records)
    finally:
        consumer.close()
    return found


def in_files(folder: Path) -> Counter[tuple[int, int, bytes | None]]:
    if not list(folder.glob("*.parquet")):
        return Counter()
    table = ds.dataset(folder, format="parquet", ignore_prefixes=[".", "_"]).to_table(
        columns=["partition", "offset", "value"]
    )
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.kill
@pytest.mark.timeout(600)
def test_a_bounded_ingestion_survives_the_death_of_a_worker_and_the_driver(
    topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(PARTITIONS)
    for partition in range(PARTITIONS):
        topics.fill(topic, partition, [f"{partition}-{one}" for one in range(ROWS)])
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    job_id = f"kafka-{secrets.token_hex(4)}"
    arguments = [f"kafka://{topics.servers}/{topic}", str(tmp_path / "out"), "--job-id", job_id]
    arguments += ["--bootstrap-servers", topics.servers, "--parallelism", "2"]
    arguments += ["--checkpoint-interval", "0.5", "--batch-rows", "50"]
    arguments += ["--transform", f"{tmp_path}/slow.py:slowly"]
    runs: list[IngestProcess] = []

    def run() -> IngestProcess:
        runs.append(
            IngestProcess(
                arguments,
                tag=job_id,
                environment={"COORDLOG_HOME": str(tmp_path / "home")},
                show=lambda line: print(f"{job_id} | {line}"),
            )
        )
        return runs[-1]

    def completed(count: int) -> Callable[[Record], bool]:
        seen: list[Record] = []

        def is_it(record: Record) -> bool:
            if record.kind is Kind.CHECKPOINT_COMPLETED:
                seen.append(record)
            return len(seen) >= count

        return is_it

    log = None
    try:
        first = run()
        log = open_log(job_id, topics.servers)
        follower = Follower(log)
        follower.wait_for(completed(1), is_over=lambda: first.has_ended, limit_s=LIMIT_S)
        victim = next(one for one in follower.records if one.kind is Kind.ATTEMPT_STARTED)
        first.kill_worker(int(victim.attributes["pid"]))
        follower.wait_for(
            lambda record: record.kind is Kind.ATTEMPT_FAILED,
            is_over=lambda: first.has_ended,
            limit_s=LIMIT_S,
        )
        follower.wait_for(completed(1), is_over=lambda: first.has_ended, limit_s=LIMIT_S)
        first.kill()
        # What comes after the listing is no part of a bounded ingestion.
        expected = in_topic(topics.servers, topic)
        topics.fill(topic, 0, ["late"])
        assert not in_files(tmp_path / "out") - expected
        last = run()
        assert last.wait(LIMIT_S) == 0, last.lines
        found = audit(log.read(0, log.high_watermark()))
    finally:
        for one in runs:
            one.clear()
        if log is not None:
            log.close()

    assert sum(expected.values()) == PARTITIONS * ROWS
    assert in_files(tmp_path / "out") == expected
    assert {one.split_id: one.rows for one in found.splits} == {
        f"{topic}/{one}@0..{ROWS}": ROWS for one in range(PARTITIONS)
    }
    assert any("restored by rollback" in line for line in last.lines)


@pytest.mark.tier("test")
def test_an_unbounded_job_finds_a_partition_stops_and_continues_there(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, [f"0-{one}" for one in range(100)])
    log, out = MemoryLog("job"), tmp_path / "out"
    seen: list[Record] = []

    def job(parallelism: int) -> Job:
        return Job(
            job_id="job",
            log=log,
            source=KafkaSource(
                topic,
                bootstrap_servers=topics.servers,
                bounded=False,
                discovery_interval_s=0.3,
                batch_rows=10,
            ),
            sink=ParquetSink(out),
            parallelism=parallelism,
            checkpoint_interval_s=0.3,
            callbacks=Callbacks(on_released=seen.extend),
        )

    def wait_until_published(running: Job) -> None:
        expected = in_topic(topics.servers, topic)
        end = time.monotonic() + WAIT_S
        while in_files(out) != expected:
            assert running.wait(0.1) is None
            assert time.monotonic() < end, Counter(in_files(out)) - expected

    first = job(1)
    first.start(spark)
    try:
        wait_until_published(first)
        topics.admin.create_partitions({topic: 3})
        topics.fill(topic, 1, [f"1-{one}" for one in range(50)])
        topics.fill(topic, 0, [f"0-{one}" for one in range(100, 120)])
        wait_until_published(first)
    finally:
        first.stop(with_checkpoint=True)
    stopped = first.wait(WAIT_S)
    topics.fill(topic, 0, ["while it was stopped"])
    topics.fill(topic, 2, ["while it was stopped"])

    second = job(2)
    second.start(spark)
    try:
        wait_until_published(second)
        topics.fill(topic, 1, ["and on"])
        wait_until_published(second)
    finally:
        second.stop(with_checkpoint=True)
    again = second.wait(WAIT_S)

    assert stopped is not None
    assert again is not None
    assert (stopped.status, again.status) == (JobStatus.STOPPED, JobStatus.STOPPED)
    assert sum(in_files(out).values()) == 173
    assert in_files(out) == in_topic(topics.servers, topic)
    shared = [one for one in seen if one.kind is Kind.EVENT_TO_SUBTASK and one.subtask == 1]
    ended = [one for one in seen if one.kind is Kind.SPLIT_FINISHED]
    assert (len(shared), len(ended)) == (1, 1), "a new subtask gets a share of what has no end"
    failed = [one for one in seen if one.kind in (Kind.ATTEMPT_FAILED, Kind.GLOBAL_FAILURE)]
    assert {one.reason for one in failed} <= {"its driver is gone"}
