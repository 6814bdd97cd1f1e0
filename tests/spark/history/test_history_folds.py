"""The folds in Spark's own workers, without a broker: on every version of Spark that is supported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit_records
from coordlog.schemas.codec import decode_record
from coordlog.schemas.header import decode_header
from coordlog.spark_integration.history_frames.bulk_validity import REASONS
from coordlog.spark_integration.history_frames.folds import STREAM_INPUT
from coordlog.spark_integration.history_frames.frames import told_in_batch, told_in_stream
from driven_history import recorded_history

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = f"topic STRING, {STREAM_INPUT}"


@pytest.fixture(scope="module")
def rows() -> list[tuple[Any, ...]]:
    """A job's log, as Spark's Kafka source and `from_avro` give it."""
    found: list[tuple[Any, ...]] = []
    for offset, one in enumerate(recorded_history()):
        record = decode_record(offset, one.value, one.header)
        writer = (record.epoch, record.driver_id)
        said = (*writer, record.kind.value, record.payload_type, record.payload)
        raw = (offset, one.key, one.value, one.header, one.timestamp_us)
        found.append(("flights.log", *raw, *said))
    return found


def in_python() -> list[tuple[int, str | None]]:
    log = MemoryLog("flights.log")
    log.store(*recorded_history())
    return [(one.offset, one.why_not) for one in audit_records(log.records)]


def test_a_filter_or_limit_on_records_does_not_change_their_validity(
    spark: SparkSession, rows: list[tuple[Any, ...]]
) -> None:
    raw = spark.createDataFrame(rows, SCHEMA).coalesce(1)
    told = told_in_batch(raw).select("offset", "code", "kind")
    whole = [(row.offset, REASONS[row.code]) for row in told.collect()]
    assert whole == in_python()
    some = told.where("kind = 'EVENT_ACKED' AND offset > 20").collect()
    assert [(row.offset, REASONS[row.code]) for row in some] == [
        (row.offset, whole[row.offset][1]) for row in some
    ]
    cut = next(
        offset
        for offset, one in enumerate(recorded_history(), 1)
        if (header := decode_header(one.header)) is not None and header.turn_remaining > 0
    )
    limited = told.limit(cut).collect()
    assert [(row.offset, REASONS[row.code]) for row in limited] == whole[:cut]


def test_a_stream_tells_the_same_over_its_batches_and_a_restart(
    spark: SparkSession, rows: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    third = len(rows) // 3
    parts = [rows[:third], rows[third : 2 * third], rows[2 * third :]]
    for run in (parts[:2], parts[2:]):
        for part in run:
            frame = session.createDataFrame(part, SCHEMA).coalesce(1)
            frame.write.mode("append").parquet(str(tmp_path / "in"))
        stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        query = (
            told_in_stream(stream.parquet(str(tmp_path / "in")))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(120)
    told = session.read.parquet(str(tmp_path / "out")).orderBy("offset")
    found = [(row.offset, REASONS[row.code]) for row in told.collect()]
    assert found == in_python()
    assert told.where("payload_json LIKE '%committables%'").count() > 0
