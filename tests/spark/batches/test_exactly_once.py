"""`exactly_once` on Spark: batches into Parquet files, the driver killed at every step, and the plain way beside it."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import window

from coordlog.errors import UsageError
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.kafka import KafkaLog
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit_records
from coordlog.schemas.record import Kind
from coordlog.spark_integration import DatabaseTable, ParquetSink, exactly_once
from jobs.batch_cases import StreamCase
from servers.brokers import broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from coordlog.spark_integration.batches.exactly_once import ExactlyOnce

__all__ = ["broker"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("batch_script.py")
LIMIT_S = 120
LINES_A_FILE = 20

PLACES = ("staged", "before part", "after link", "after part")
"""Where the driver dies, once each: before the intent, after it, between two files, before the outcome."""


def make_input(folder: Path, files: int) -> Counter[str]:
    """Files of lines, and the lines."""
    (folder / "in").mkdir(parents=True)
    lines: Counter[str] = Counter()
    for number in range(files):
        mine = [f"{number}-{n}" for n in range(LINES_A_FILE)]
        lines.update(mine)
        (folder / "in" / f"{number:03}.txt").write_text("\n".join(mine) + "\n", "utf-8")
    return lines


def lines_in(folder: Path) -> Counter[str]:
    """What the files hold that a reader sees, counted without Spark."""
    found: Counter[str] = Counter()
    for path in sorted(folder.glob("*.parquet")):
        found.update(pq.ParquetFile(path).read().column("value").to_pylist())
    return found


def run_stream(
    spark: SparkSession, folder: Path, write: ExactlyOnce, checkpoint: str | None = "checkpoint"
) -> str:
    """Run the stream over all that is there; the query's id."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    writer = lines.load(str(folder / "in")).writeStream.foreachBatch(write)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", str(folder / checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(LIMIT_S)
    finally:
        query.stop()
    return str(query.id)


@pytest.mark.tier("test")
def test_a_stream_is_written_once_and_its_query_is_known_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines, log = make_input(tmp_path, 2), MemoryLog()

    def function(batch: DataFrame, _batch_id: int) -> DataFrame:
        return batch.repartition(2)

    with exactly_once(function, job_id="s", log=log, sink=ParquetSink(tmp_path / "out")) as write:
        query_id = run_stream(spark, tmp_path, write)
        lines.update(["late"])
        (tmp_path / "in" / "late.txt").write_text("late\n", "utf-8")
        assert run_stream(spark, tmp_path, write) == query_id
        with pytest.raises(Exception, match=f"instead_of='{query_id}'"):
            run_stream(spark, tmp_path, write, "another")
        with pytest.raises(Exception, match="has no `checkpointLocation`"):
            run_stream(spark, tmp_path, write, None)
    assert lines_in(tmp_path / "out") == lines
    names = [one.name for one in (tmp_path / "out").glob("*.parquet")]
    assert all(one.startswith(f"batch-{query_id[:8]}-0000") for one in names)


def test_a_replanned_batch_is_refused_with_more_rows_and_skipped_if_equal(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The newest files of its checkpoint are lost, as by a crash of a disk that had not synced them."""
    lines, log = make_input(tmp_path, 2), MemoryLog()

    def lose(folder: str) -> None:
        for path in (tmp_path / "checkpoint" / folder).glob("*1*"):
            path.unlink()

    with exactly_once(job_id="s", log=log, sink=ParquetSink(tmp_path / "out")) as write:
        run_stream(spark, tmp_path, write)
        lose("commits")
        run_stream(spark, tmp_path, write)
        assert lines_in(tmp_path / "out") == lines
        lose("commits")
        lose("offsets")
        (tmp_path / "in" / "late.txt").write_text("late\n", "utf-8")
        with pytest.raises(Exception, match=r"batch 1 of query .* is committed with other rows"):
            run_stream(spark, tmp_path, write)
    assert lines_in(tmp_path / "out") == lines


def test_an_older_copy_of_the_checkpoint_loses_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Its next batch has the number of a committed one, and the rows that have arrived since."""
    make_input(tmp_path, 2)

    with exactly_once(job_id="s", log=MemoryLog(), sink=ParquetSink(tmp_path / "out")) as write:

        def arrive(name: str, checkpoint: str) -> None:
            (tmp_path / "in" / name).write_text(f"{name}\n", "utf-8")
            run_stream(spark, tmp_path, write, checkpoint)

        run_stream(spark, tmp_path, write)
        shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
        arrive("third", "checkpoint")
        arrive("fourth", "checkpoint")
        before = lines_in(tmp_path / "out")
        (tmp_path / "in" / "third").unlink()
        with pytest.raises(Exception, match=r"batch 2 of query .* is committed with other rows"):
            arrive("fifth", "copy")
        assert lines_in(tmp_path / "out") == before
        (tmp_path / "in" / "sixth").write_text("sixth\n", "utf-8")
        run_stream(spark, tmp_path, write)
    assert lines_in(tmp_path / "out") == before | Counter(["fifth", "sixth"])


def test_columns_of_any_name_are_written(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a.b", "c`d", "*", "`e`", "e", "f[0]"]
    columns = ", ".join(f'"{name}" BIGINT' for name in names)
    connection = sqlite3.connect(tmp_path / "t.db")
    connection.execute(f"CREATE TABLE t ({columns})")

    def sinks() -> Mapping[str, ParquetSink | DatabaseTable]:
        return {
            "files": ParquetSink(tmp_path / "out"),
            "table": DatabaseTable.sqlite(tmp_path / "t.db", "t"),
        }

    case = StreamCase(spark, sinks)
    with closing(connection), closing(case.driver()) as driver:
        case.give(driver, 0, spark.createDataFrame([tuple(range(len(names)))], names))
        assert connection.execute("SELECT * FROM t").fetchall() == [tuple(range(len(names)))]
    (file,) = (tmp_path / "out").glob("*.parquet")
    rows = pq.ParquetFile(file).read().to_pylist()
    assert rows == [{name: n for n, name in enumerate(names)}]


@pytest.fixture
def ids_of_state(spark: SparkSession) -> Iterator[None]:
    """The query's commits name the files of its state."""
    package = "org.apache.spark.sql.execution.streaming.state"
    settings = {
        "spark.sql.streaming.stateStore.providerClass": f"{package}.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


@pytest.mark.parametrize("dies_at", [0, 1, 5])
@pytest.mark.usefixtures("ids_of_state")
def test_a_stateful_query_writes_the_same_rows_after_any_skipped_batch(
    spark: SparkSession, tmp_path: Path, dies_at: int
) -> None:
    """It fails between the outcome and Spark's commit of a batch, whose watermark the next one needs."""
    log, batches = MemoryLog(), list[int]()

    def note(batch: DataFrame, batch_id: int) -> DataFrame:
        batches.append(batch_id)
        return batch

    def at(place: str) -> None:
        if (
            place == "outcome recorded"
            and batches[-1:] == [dies_at]
            and batches.count(dies_at) == 1
        ):
            raise RuntimeError("killed here")

    def run() -> None:
        sink = ParquetSink(tmp_path / "out")
        with exactly_once(note, job_id="s", log=log, sink=sink, at=at) as write:
            lines = spark.readStream.format("text").load(str(tmp_path / "in"))
            times = lines.selectExpr("cast(value as timestamp) as t").withWatermark(
                "t", "10 minutes"
            )
            hours = times.groupBy(window("t", "1 hour")).count()
            rows = hours.selectExpr("cast(hour(window.start) as string) || ':' || count as value")
            writer = rows.writeStream.foreachBatch(write).outputMode("append")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(LIMIT_S)
            finally:
                query.stop()

    (tmp_path / "in").mkdir()
    failures = 0
    for number, times in enumerate(["01:10 01:20", "03:00", "01:30", "05:00"]):
        text = "".join(f"2024-01-01 {time}:00\n" for time in times.split())
        (tmp_path / "in" / f"{number}.txt").write_text(text, "utf-8")
        try:
            run()
        except StreamingQueryException as error:
            assert "killed here" in str(error), error  # noqa: PT017, only the tries differ
            failures += 1
            run()
    assert failures == 1
    assert lines_in(tmp_path / "out") == Counter(["1:2", "3:1"])


def test_a_repeated_batch_is_skipped_and_an_unknown_one_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    context, query_id = spark.sparkContext, str(uuid.uuid4())
    frame = spark.range(10).selectExpr("cast(id as string) as value")
    with exactly_once(job_id="s", log=MemoryLog(), sink=ParquetSink(tmp_path / "out")) as write:
        with pytest.raises(UsageError, match="no streaming query is running batch 0"):
            write(frame, 0)
        context.setLocalProperty("sql.streaming.queryId", query_id)
        context.setLocalProperty("streaming.sql.batchId", "0")
        try:
            write(frame, 0)
            write(frame, 0)
        finally:
            context.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]
            context.setLocalProperty("streaming.sql.batchId", None)  # type: ignore[arg-type]
    assert lines_in(tmp_path / "out") == Counter(str(n) for n in range(10))


def run_script(folder: Path, servers: str, place: str, kind: str = "parquet") -> int:
    """Run the program; its exit status."""
    command = [sys.executable, str(SCRIPT), str(folder), servers, place, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    print(place, done.returncode, done.stderr[-2000:] if done.returncode > 0 else "")
    return done.returncode


@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.any_spark
@pytest.mark.clause("H3")
@pytest.mark.timeout(600)
def test_a_driver_killed_between_every_two_steps_loses_and_doubles_nothing(
    tmp_path: Path, broker: EmbeddedBroker
) -> None:
    """Each run goes on where the last one died, and dies at the next place; the plain way doubles its batch."""
    lines, servers = make_input(tmp_path, len(PLACES) + 1), broker.bootstrap_servers
    assert run_script(tmp_path, servers, "written") == -signal.SIGKILL
    for place in PLACES:
        assert run_script(tmp_path, servers, place) == -signal.SIGKILL
        assert lines_in(tmp_path / "once") <= lines, "nothing stands there twice at any time"
    assert run_script(tmp_path, servers, "-") == 0
    assert lines_in(tmp_path / "once") == lines

    control = lines_in(tmp_path / "plain")
    assert set(control) == set(lines)
    assert sum(control.values()) == sum(lines.values()) + LINES_A_FILE, "its batch is there twice"

    log = KafkaLog.for_job("stream-parquet", servers)
    kinds = [
        one.record.kind
        for one in audit_records(log.read(0, log.high_watermark()))
        if one.counts and one.record is not None
    ]
    assert kinds.count(Kind.EPOCH_STARTED) == len(PLACES) + 1
    assert kinds.count(Kind.COMMIT_INTENT) == len(PLACES) + 1
    assert kinds.count(Kind.COMMIT_OUTCOME) == len(PLACES) + 1
