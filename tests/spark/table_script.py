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

import pytest
from pyspark.sql import SparkSession

from batch_cases import StreamCase
from batch_fakes import Stop
from coordlog.errors import SinkError
from coordlog.log.broker.jars import JarSet, resolve
from coordlog.log.memory import MemoryLog
from coordlog.schemas.record import Kind
from coordlog.spark_integration import local_session
from coordlog.spark_integration.batches.delta import DELTA_SETTINGS, DeltaTable
from coordlog.spark_integration.batches.exactly_once import ExactlyOnce
from coordlog.spark_integration.batches.iceberg import (
    IcebergTable,
    iceberg_settings,
)
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.batches.sinks import BatchSink


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
    """A driver of another log of this job id, as at another broker, removes nothing that a live batch has staged."""
    live, other, before = StreamCase(spark, make_sink), StreamCase(spark, make_sink), read()
    other.log = MemoryLog("another.log")
    stop, errors = Stop("before part sink"), list[BaseException]()
    driver = live.driver(stop)

    def give_to_other(batch_id: int) -> None:
        second = other.driver()
        other.give(second, batch_id, spark.range(1000 + batch_id, 1001 + batch_id))
        second.close()

    def work() -> None:
        try:
            live.give(driver, 0, spark.range(2000, 2003))
        except BaseException as error:  # noqa: BLE001, shown below
            errors.append(error)

    give_to_other(0)  # so that its next start sweeps
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert stop.reached.wait(120), errors
    give_to_other(1)
    stop.gone_on.set()
    thread.join(120)
    driver.close()
    assert errors == [], errors
    assert read() == [*before, 1000, 1001, 2000, 2001, 2002], read()


def ids(spark: SparkSession, table: str) -> list[int]:
    return [row[0] for row in spark.sql(f"SELECT id FROM {table} ORDER BY id").collect()]


def delta(folder: Path) -> None:
    spark = local_session(2, jars=resolve(JarSet.DELTA), settings=DELTA_SETTINGS)
    path = str(folder / "delta")
    places = ("looked", "written")
    check(spark, lambda: DeltaTable(path), places, lambda: ids(spark, f"delta.`{path}`"))
    assert spark.sql(f"DESCRIBE HISTORY delta.`{path}`").count() == len(places) + 2
    check_two_logs(spark, lambda: DeltaTable(path), lambda: ids(spark, f"delta.`{path}`"))
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
            job="both", log=MemoryLog(), sinks={"one": one, "other": other}
        ),
    )
    lost.give(both, 0, spark.range(200, 203))
    both.close()
    found = [one for one in ids(spark, "ice.db.orders") if one >= 200]
    assert found == [200, 201, 202, 210, 211, 212, 300, 301, 302], found
    check_two_logs(
        spark, lambda: IcebergTable("ice.db.orders"), lambda: ids(spark, "ice.db.orders")
    )


if __name__ == "__main__":
    {"delta": delta, "iceberg": iceberg}[sys.argv[2]](Path(sys.argv[1]))
