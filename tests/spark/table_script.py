"""Batches into Delta and Iceberg tables, in a JVM with their jars: a program, as the first session decides on jars.

`python table_script.py FOLDER`: drivers stand still in the middle of batches, others take over; ends with 0 if each
table has each row once, and says what it has done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batch_cases import StreamCase
from coordlog.errors import SinkError
from coordlog.log.jars import JarSet, resolve
from coordlog.spark_integration import local_session
from coordlog.spark_integration.batches.delta import DELTA_SETTINGS, DeltaTable
from coordlog.spark_integration.batches.iceberg import (
    IcebergTable,
    iceberg_settings,
)
from coordlog.spark_integration.batches.sinks import BatchSink

EXTENSIONS = "spark.sql.extensions"


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
    case.give(last, end + 1, spark.range(10 * end, 10 * end + 1))
    last.close()
    assert read() == list(range(10 * end + 1))


def main(folder: Path) -> None:
    iceberg = iceberg_settings("ice", str(folder / "ice"))
    both = f"{DELTA_SETTINGS[EXTENSIONS]},{iceberg[EXTENSIONS]}"
    jars = [*resolve(JarSet.DELTA), *resolve(JarSet.ICEBERG)]
    settings = {**DELTA_SETTINGS, **iceberg, EXTENSIONS: both}
    spark = local_session(2, jars=jars, settings=settings)
    path = str(folder / "delta")

    def ids(table: str) -> list[int]:
        return [row[0] for row in spark.sql(f"SELECT id FROM {table} ORDER BY id").collect()]

    check(
        spark,
        lambda: DeltaTable(path),
        ("staged", "looked", "written"),
        lambda: ids(f"delta.`{path}`"),
    )
    versions = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").count()
    assert versions == 5, versions
    print("delta: exact")

    spark.sql("CREATE TABLE ice.db.orders (id BIGINT) USING iceberg")
    with pytest.raises(SinkError, match=r"write\.wap\.enabled"):
        IcebergTable("ice.db.orders").prepare("case", spark)
    spark.sql("ALTER TABLE ice.db.orders SET TBLPROPERTIES ('write.wap.enabled'='true')")
    check(
        spark,
        lambda: IcebergTable("ice.db.orders"),
        ("staged", "before part sink", "published"),
        lambda: ids("ice.db.orders"),
    )
    print("iceberg: exact")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
