"""`format("coordlog")` for writing: batch writes and streams, committed by the driver that their processes ask."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordlog.errors import OptionError
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit_records
from coordlog.schemas.record import Kind
from coordlog.spark_integration import (
    DatabaseTable,
    FileSource,
    ParquetSink,
    coordinated,
    coordinated_writes,
)
from coordlog.spark_integration.batches.exactly_once import sinks_of
from coordlog.spark_integration.batches.service import BatchService
from fakes.driver_files import token_of

from .test_exactly_once import lines_in, make_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LIMIT_S = 120


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def service(spark: SparkSession, tmp_path: Path, log: MemoryLog) -> Iterator[BatchService]:
    sinks = sinks_of({"sink": ParquetSink(tmp_path / "out")})
    with BatchService(job_id="frames", log=log, sinks=sinks) as made:
        made.start(spark)
        yield made


def values(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("cast(id as string) as value")


def write(frame: DataFrame, options: dict[str, str]) -> None:
    frame.write.format("coordlog").mode("append").options(**options).save()


def kinds(log: MemoryLog) -> list[Kind]:
    found = audit_records(log.read(0, log.high_watermark()))
    return [one.record.kind for one in found if one.record is not None]


def stream(
    spark: SparkSession, folder: Path, options: dict[str, str], checkpoint: str = "checkpoint"
) -> str:
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    writer = lines.load(str(folder / "in")).writeStream.format("coordlog").options(**options)
    query = (
        writer.option("checkpointLocation", str(folder / checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(LIMIT_S), f"the query has not ended after {LIMIT_S} s"
    finally:
        query.stop()
    return str(query.id)


def staged_in(folder: Path) -> list[Path]:
    return [one for one in (folder / "out" / ".coordlog" / "staging").rglob("*") if one.is_file()]


def test_a_batch_write_is_committed_as_a_whole_and_a_named_one_once(
    spark: SparkSession, service: BatchService, tmp_path: Path, log: MemoryLog
) -> None:
    options = service.options()
    write(values(spark.range(0, 10, 1, 3)), options)
    named = {**options, "write_id": "2026-01-02"}
    write(values(spark.range(10, 20, 1, 2)), named)
    write(values(spark.range(10, 20, 1, 2)), named)
    assert lines_in(tmp_path / "out") == Counter(str(n) for n in range(20))
    assert kinds(log).count(Kind.COMMIT_INTENT) == kinds(log).count(Kind.COMMIT_OUTCOME) == 2
    assert staged_in(tmp_path) == [], "what the third had staged is gone"
    with pytest.raises(Exception, match="committed rows stay"):
        values(spark.range(1)).write.format("coordlog").mode("overwrite").options(**options).save()
    with pytest.raises(Exception, match="write_id is 'of January'"):
        write(values(spark.range(3)), {**options, "write_id": "of January"})
    assert lines_in(tmp_path / "out") == Counter(str(n) for n in range(20))


@pytest.mark.tier("test")
def test_a_stream_is_committed_by_batch_and_a_replayed_batch_is_skipped(
    spark: SparkSession, service: BatchService, tmp_path: Path, log: MemoryLog
) -> None:
    """Spark forgets that it has done the last batch: the file that says so is taken from the checkpoint."""
    lines = make_input(tmp_path, 2)
    query_id = stream(spark, tmp_path, service.options())
    assert lines_in(tmp_path / "out") == lines
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    assert stream(spark, tmp_path, service.options()) == query_id
    assert lines_in(tmp_path / "out") == lines
    assert kinds(log).count(Kind.COMMIT_INTENT) == 2
    assert staged_in(tmp_path) == []
    with pytest.raises(Exception, match=f"instead_of='{query_id}'"):
        stream(spark, tmp_path, service.options(), "another")
    assert lines_in(tmp_path / "out") == lines


def test_writes_by_their_short_names_are_the_same(
    spark: SparkSession, tmp_path: Path, log: MemoryLog
) -> None:
    lines = make_input(tmp_path, 2)
    with coordinated_writes(spark, "frames", ParquetSink(tmp_path / "out"), log=log) as writes:
        for _ in range(2):
            writes.write(values(spark.range(20)), write_id="2026-01-02")
        frame = spark.readStream.format("text").load(str(tmp_path / "in"))
        query = (
            writes.write_stream(frame)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(LIMIT_S)
        finally:
            query.stop()
    assert lines_in(tmp_path / "out") == lines + Counter(str(n) for n in range(20))
    assert kinds(log).count(Kind.COMMIT_OUTCOME) == 2


def test_a_stream_that_starts_before_the_first_write_has_the_format(
    spark: SparkSession, tmp_path: Path, log: MemoryLog
) -> None:
    """Spark gives a stream a copy of its session, made at the stream's start."""
    lines = make_input(tmp_path, 2)
    with coordinated_writes(spark, "frames", ParquetSink(tmp_path / "out"), log=log) as writes:
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        query = (
            frame.load(str(tmp_path / "in"))
            .writeStream.foreachBatch(lambda batch, n: writes.write(batch, write_id=f"batch-{n}"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(LIMIT_S)
        finally:
            query.stop()
    assert lines_in(tmp_path / "out") == lines


@pytest.mark.timeout(200)
def test_threads_that_did_not_make_the_session_write_by_the_format(
    spark: SparkSession, tmp_path: Path, log: MemoryLog
) -> None:
    """Spark looks for a format in the active session of a thread, which these have not."""
    with (
        coordinated_writes(spark, "frames", ParquetSink(tmp_path / "out"), log=log) as writes,
        ThreadPoolExecutor(2) as pool,
    ):
        frames = [values(spark.range(n, n + 10)) for n in (0, 10)]
        list(pool.map(writes.write, frames))
    assert lines_in(tmp_path / "out") == Counter(str(n) for n in range(20))


def test_no_option_and_no_setting_holds_the_token(
    spark: SparkSession, service: BatchService
) -> None:
    token = token_of("frames")
    shown: list[Any] = [service.options(), spark.sparkContext.getConf().getAll(), dict(os.environ)]
    assert token.text() not in repr(shown)


def test_what_is_staged_for_another_driver_is_refused(
    spark: SparkSession, service: BatchService, tmp_path: Path
) -> None:
    """Such as one before: its files may have been swept since."""
    with pytest.raises(Exception, match="staged for driver before, and this is driver"):
        write(values(spark.range(3)), {**service.options(), "driver": "before"})
    assert lines_in(tmp_path / "out") == Counter()


def test_only_sinks_of_files_and_whole_options_are_taken(
    spark: SparkSession, tmp_path: Path, service: BatchService
) -> None:
    service.options()  # gives the session the format
    with pytest.raises(Exception, match=r"job, endpoint, driver, sink"):
        write(values(spark.range(1)), {})
    sinks = sinks_of({"table": DatabaseTable.sqlite(tmp_path / "x.db", "t")})
    with pytest.raises(OptionError, match="write to other sinks with `exactly_once`"):
        BatchService(job_id="other", log=MemoryLog(), sinks=sinks).options("table")


def test_a_session_reads_and_writes_by_the_one_format(
    spark: SparkSession, tmp_path: Path, service: BatchService
) -> None:
    """Were there a class for each, the one that was registered last would hide the other."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("value\nx\ny\n", encoding="utf-8")
    options = service.options()
    source = FileSource(tmp_path / "in", format="csv")
    with coordinated(spark, "read-too", source, log=MemoryLog()) as reads:
        frame = spark.read.format("coordlog").options(**reads.options()).load()
        write(frame, options)
        assert spark.read.parquet(str(tmp_path / "out")).count() == 2
