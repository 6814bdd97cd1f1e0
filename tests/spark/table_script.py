"""Batches into Delta and Iceberg tables, in a JVM with their jars: a program, as the first session decides on jars.

`python table_script.py FOLDER KIND`, `delta` or `iceberg`: drivers stand still in the middle of batches, others take
over; ends with 0 if the table has each row once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from batch_cases import StreamCase
from batch_fakes import Stop
from coordlog.errors import JobMovedError, SinkError
from coordlog.log.broker.jars import JarSet, resolve
from coordlog.log.interface import LogIdentity
from coordlog.log.memory import MemoryLog
from coordlog.schemas.record import Kind
from coordlog.spark_integration import local_session
from coordlog.spark_integration.batches.exactly_once import ExactlyOnce
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.batches.sinks import Batch, BatchSink
from coordlog.spark_integration.batches.tables.claims import CommitFiles
from coordlog.spark_integration.batches.tables.delta import DELTA_SETTINGS, DeltaTable
from coordlog.spark_integration.batches.tables.iceberg import (
    IcebergTable,
    iceberg_settings,
)


def check(
    spark: SparkSession,
    make_sink: Callable[[], BatchSink],
    places: tuple[str, ...],
    read: Callable[[], list[int]],
) -> None:
    case = StreamCase(spark, make_sink)
    for batch_id, place in enumerate(places):
        start = 10 * batch_id

        def look(upto: int = start + 10) -> None:
            found = read()
            assert found == list(range(upto)), found

        case.dies_at(place, batch_id, spark.range(start, start + 10, 1, 2), look)
    last, end = case.driver(), len(places)
    case.give(last, end, spark.range(0))
    case.give(last, end + 1, spark.range(10 * end, 10 * end + 1))
    last.close()
    assert read() == list(range(10 * end + 1))


def check_two_logs(
    spark: SparkSession, make_sink: Callable[[], BatchSink], read: Callable[[], list[int]]
) -> None:
    """A driver of another log of this job id, as at another broker, is refused while a batch is staged, and after."""
    live, other, before = StreamCase(spark, make_sink), StreamCase(spark, make_sink), read()
    start = max(before) + 1
    other.log = MemoryLog("another.log")
    stop, errors = Stop("before part sink"), list[BaseException]()
    driver = live.driver(stop)

    def refuse_other() -> None:
        second = other.driver()
        with pytest.raises(SinkError, match=r"job 'case' writes there with another log, .*another"):
            other.give(second, 0, spark.range(1000, 1001))
        second.close()
        assert other.log.high_watermark() == 0, "nothing was appended"

    def work() -> None:
        try:
            live.give(driver, 0, spark.range(start, start + 3))
        except BaseException as error:  # noqa: BLE001, shown below
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert stop.reached.wait(120), errors
    refuse_other()
    stop.gone_on.set()
    thread.join(120)
    driver.close()
    assert errors == [], errors
    refuse_other()
    assert read() == [*before, *range(start, start + 3)], read()


def check_adopted(
    spark: SparkSession,
    make_sink: Callable[[], DeltaTable | IcebergTable],
    read: Callable[[], list[int]],
) -> None:
    """A driver of before an adoption publishes nothing more; of logs that claim a table at once one gets it."""

    def claimed(log: LogIdentity, *former: tuple[str, str]) -> DeltaTable | IcebergTable:
        sink = make_sink()
        sink.prepare("moved", spark)
        sink.claim("moved", log, former)
        return sink

    here, there, before_rows = log_of("here"), log_of("there"), read()
    batch = Batch(
        job_id="moved",
        driver_id="d",
        key=BatchKey(query_id="q", batch_id=0),
        sink="sink",
    )
    before = claimed(here)
    claimed(here)
    part = before.stage(spark.range(3000, 3001), batch)
    claimed(there, ("here", "1"))
    with pytest.raises(JobMovedError, match="since this driver began"):
        before.settle(part, batch)
    with pytest.raises(SinkError, match="with another log"):
        claimed(here)
    assert read() == before_rows, read()

    ends, together = list[str](), threading.Barrier(4)

    def claim(cluster: str) -> None:
        sink = make_sink()
        sink.prepare("racing", spark)
        together.wait()
        try:
            sink.claim("racing", log_of(cluster), ())
            ends.append("got it")
        except SinkError as error:
            ends.append("refused" if "with another log" in str(error) else str(error))

    threads = [threading.Thread(target=claim, args=(f"cluster-{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(ends) == ["got it", "refused", "refused", "refused"], ends


def check_commit_files(spark: SparkSession, path: str) -> None:
    """The files of claims that are not on a local disk: what is written stays."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    folder = jvm.org.apache.hadoop.fs.Path(log.dataPath(), "_coordlog/elsewhere")
    files = CommitFiles(jvm, log, folder)
    assert files.read("case.0") is None
    for content in (b'{"a": 1}', b'{"a": 2}'):
        files.write_once("case.0", content)
    assert files.read("case.0") == b'{"a": 1}'


def log_of(cluster: str) -> LogIdentity:
    return LogIdentity(cluster_id=cluster, topic_id="1", name=f"log at {cluster}", topic="log")


def ids(spark: SparkSession, table: str) -> list[int]:
    return [row[0] for row in spark.sql(f"SELECT id FROM {table} ORDER BY id").collect()]


SMALL_DELTA_LOG: Final = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}
"""Delta reads its log with 50 tasks otherwise, after each commit."""


def delta(folder: Path) -> None:
    settings = {**DELTA_SETTINGS, **SMALL_DELTA_LOG}
    spark = local_session(2, jars=resolve(JarSet.DELTA), settings=settings)
    path = str(folder / "delta")
    places = ("looked", "written")
    check(spark, lambda: DeltaTable(path), places, lambda: ids(spark, f"delta.`{path}`"))
    assert spark.sql(f"DESCRIBE HISTORY delta.`{path}`").count() == len(places) + 2
    check_two_logs(spark, lambda: DeltaTable(path), lambda: ids(spark, f"delta.`{path}`"))
    check_adopted(spark, lambda: DeltaTable(path), lambda: ids(spark, f"delta.`{path}`"))
    check_commit_files(spark, path)
    os.chdir(folder)
    relative = StreamCase(spark, lambda: DeltaTable("relative"))
    for batch_id in range(2):
        driver = relative.driver()
        relative.give(driver, batch_id, spark.range(batch_id, batch_id + 1))
        driver.close()
    assert ids(spark, f"delta.`{folder / 'relative'}`") == [0, 1]


def iceberg(folder: Path) -> None:
    settings = iceberg_settings("ice", str(folder / "ice"))
    spark = local_session(2, jars=resolve(JarSet.ICEBERG), settings=settings)
    spark.sql("CREATE TABLE ice.db.orders (id BIGINT) USING iceberg")
    with pytest.raises(SinkError, match=r"write\.wap\.enabled"):
        IcebergTable("ice.db.orders").prepare("case", spark)
    spark.sql("ALTER TABLE ice.db.orders SET TBLPROPERTIES ('write.wap.enabled'='true')")
    check(
        spark,
        lambda: IcebergTable("ice.db.orders"),
        ("staged", "published"),
        lambda: ids(spark, "ice.db.orders"),
    )
    lost = StreamCase(spark, lambda: IcebergTable("ice.db.orders"))
    for start in (
        100,
        110,
    ):  # the second batch is given again after its log was lost, and is published
        with_log = lost.driver()
        lost.give(with_log, start, spark.range(start, start + 5, 1, 2))
        with_log.close()
    lost.log = MemoryLog()
    again = lost.driver()
    lost.give(again, 110, spark.range(110, 115, 1, 2))
    lost.give(again, 111, spark.range(120, 125, 1, 2))
    again.close()
    found = [one for one in ids(spark, "ice.db.orders") if one >= 100]
    assert found == [*range(100, 105), *range(110, 115), *range(120, 125)], found
    cut = StreamCase(spark, lambda: IcebergTable("ice.db.orders"))  # a log that has lost its end
    whole = cut.driver()
    for batch_id in range(2):
        cut.give(whole, batch_id, spark.range(300 + batch_id, 301 + batch_id))
    whole.close()
    stored = list(cut.log.read(0, cut.log.high_watermark()))
    outcomes = [one.offset for one in stored if one.record().kind is Kind.COMMIT_OUTCOME]
    del cut.log._partition.records[outcomes[0] :]
    again = cut.driver()
    for batch_id in range(1, 3):
        cut.give(again, batch_id, spark.range(300 + batch_id, 301 + batch_id))
    again.close()
    found = [one for one in ids(spark, "ice.db.orders") if one >= 300]
    assert found == [300, 301, 302], found
    one, other = IcebergTable("ice.db.orders"), IcebergTable("ice.db.orders")
    both = ExactlyOnce(
        lambda frame, _batch_id: {"one": frame, "other": frame.selectExpr("id + 10 AS id")},
        service=lambda: BatchService(
            job_id="both", log=MemoryLog(), sinks={"one": one, "other": other}
        ),
    )
    lost.give(both, 0, spark.range(200, 203))
    both.close()
    found = [one for one in ids(spark, "ice.db.orders") if one >= 200]
    assert found == [200, 201, 202, 210, 211, 212, 300, 301, 302], found
    check_two_logs(
        spark, lambda: IcebergTable("ice.db.orders"), lambda: ids(spark, "ice.db.orders")
    )
    check_adopted(spark, lambda: IcebergTable("ice.db.orders"), lambda: ids(spark, "ice.db.orders"))


if __name__ == "__main__":
    {"delta": delta, "iceberg": iceberg}[sys.argv[2]](Path(sys.argv[1]))
