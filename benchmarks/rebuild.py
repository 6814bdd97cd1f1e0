"""A log read, decoded and folded, beside a plain consumer that only decodes the records."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Final

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from coordlog.log.appender import take_over
from coordlog.log.kafka import KafkaLog
from coordlog.log.kafka.reader import CONSUMER_OPTIONS
from coordlog.log.port import StoredRecord
from coordlog.log.protocol import Place
from coordlog.log.reader import read_counted
from coordlog.schemas.codec import ENVELOPE_SCHEMA, Avro, decode_record
from coordlog.schemas.counting import NOTHING_COUNTED, Counted

from .records import JOB, encoded, epoch_started
from .results import Row

__all__ = ["Fold", "decode_only", "measure_rebuild"]

Fold = Callable[[Iterator[Counted[StoredRecord]]], object]
"""Takes the turns that count, in order, and decodes and folds them."""

_GROUP: Final = 1_000
_ROUNDS: Final = 3


def decode_only(turns: Iterator[Counted[StoredRecord]]) -> int:
    """The fold that decodes and keeps nothing."""
    count = 0
    for turn in turns:
        for record in turn.entries:
            decode_record(record.offset, record.value, record.header_bytes)
            count += 1
    return count


def measure_rebuild(bootstrap_servers: str, count: int, fold: Fold) -> Row:
    """Records/s of `fold` over a log of `count` records, beside consuming and decoding alone."""
    log = KafkaLog.for_job(f"{JOB}-{uuid.uuid4().hex[:8]}", bootstrap_servers, fsync=False)
    log.create()
    try:
        appender = take_over(
            log,
            job_id=JOB,
            place=Place(end_offset=0, counting=NOTHING_COUNTED),
            make_epoch_started=epoch_started,
            reading=lambda _record: None,
        )
        for first in range(0, count, _GROUP):
            appender.append(encoded(0, first, min(_GROUP, count - first)))
        end_offset = appender.end_offset
        appender.close()
        ours, raw = [], []
        for _ in range(_ROUNDS):
            raw.append(end_offset / _raw(bootstrap_servers, log.topic, end_offset))
            ours.append(end_offset / _ours(log, end_offset, fold))
    finally:
        log.delete()
        log.close()
    return Row(
        name=f"rebuild ({getattr(fold, '__name__', 'fold')})",
        unit="records/s",
        ours=tuple(ours),
        raw=tuple(raw),
        raw_is="a plain consumer that decodes each value from Avro",
        better="higher",
        target=0.6,
    )


def _ours(log: KafkaLog, end_offset: int, fold: Fold) -> float:
    began = time.perf_counter()
    fold(read_counted(log, 0, end_offset))
    return time.perf_counter() - began


def _raw(bootstrap_servers: str, topic: str, end_offset: int) -> float:
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
