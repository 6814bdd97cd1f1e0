"""A log read, decoded and folded, beside a plain consumer that only decodes the records."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Final

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from benchmarks.results import Row
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.log.kafka.reader import CONSUMER_OPTIONS
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.schemas.codec import ENVELOPE_SCHEMA, Avro

from .made_history import benchmark_chain, make_history

__all__ = ["fill", "measure_rebuild", "read_alone"]

_GROUP: Final = 1_000
_ROUNDS: Final = 5


def measure_rebuild(bootstrap_servers: str, record_count: int) -> Row:
    """Records/s of a rebuild of a job of `record_count` records, beside consuming and decoding alone."""
    log = KafkaLog.for_job(f"bench-{uuid.uuid4().hex[:8]}", bootstrap_servers, fsync=False)
    log.create()
    chain = benchmark_chain()
    projection = projection_of(chain)
    try:
        fill(log, make_history(record_count))
        end_offset = log.high_watermark()
        ours, raw = [], []
        for _ in range(_ROUNDS):
            raw.append(end_offset / read_alone(bootstrap_servers, log.topic, end_offset))
            began = time.perf_counter()
            made = rebuild(log, chain, projection, is_whole=True)
            ours.append(made.record_count / (time.perf_counter() - began))
            assert made.end_offset == end_offset, "all of it was read"
    finally:
        log.delete()
        log.close()
    return Row(
        name="rebuild (read, decode, fold)",
        unit="records/s",
        ours=tuple(ours),
        raw=tuple(raw),
        raw_is="a plain consumer that decodes each value from Avro",
        better="higher",
        target=0.6,
    )


def fill(log: KafkaLog, records: Sequence[UnstoredRecord]) -> None:
    """Append them all."""
    writer = log.writer()
    for first in range(0, len(records), _GROUP):
        writer.append(records[first : first + _GROUP], timeout_s=30.0)
    writer.close(timeout_s=5.0)


def read_alone(bootstrap_servers: str, topic: str, end_offset: int) -> float:
    """Seconds that a plain consumer takes to read and decode that many records."""
    schema = Avro(ENVELOPE_SCHEMA)
    partition = TopicPartition(topic, 0)
    began = time.perf_counter()
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers.split(","), **CONSUMER_OPTIONS)
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        count = 0
        while count < end_offset:
            for record in consumer.poll(timeout_ms=1000).get(partition, ()):
                schema.decode(record.value)
                count += 1
    finally:
        consumer.close()
    return time.perf_counter() - began
