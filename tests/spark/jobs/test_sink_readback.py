"""What Spark reads of the files that the Parquet sink has published."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from coordlog.api.coordinator import CommittableOf
from coordlog.spark_integration.files.names import escaped
from coordlog.spark_integration.files.sink.sink import ParquetSink
from fakes.chain_fakes import FakeContext

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def publish(sink: ParquetSink, *batches: pa.RecordBatch) -> None:
    """As a job of one subtask does."""
    sink.prepare("ingest")
    writer = sink.spec().create_operator()
    writer.open(FakeContext(job_id="ingest"), None)
    for batch in batches:
        list(writer.process(batch))
    committables = [
        CommittableOf(subtask=0, attempt_number=0, split_id=None, content=one)
        for one in writer.final_snapshot().committables
    ]
    sink.settle(sink.make_intent(1, committables))


def test_a_character_is_escaped_as_spark_does_it(spark: SparkSession) -> None:
    text = "".join(map(chr, range(1, 0x250))) + "日本\U0001f600"
    jvm: Any = spark._jvm
    spark_does = jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName(text)

    assert escaped(text) == spark_does


@pytest.mark.tier("test")
def test_spark_reads_partitions_back_with_their_values(spark: SparkSession, tmp_path: Path) -> None:
    words = ["plain", "../up", "a=b/c", "50%", "ä:{[]}^", ".hidden", " x ", None]
    numbers = [1, -2, 0, 7, None, 2**40, 3, 4]
    days = [dt.date(2013, 1, i + 1) for i in range(7)] + [None]
    batch = pa.record_batch({"i": list(range(8)), "w": words, "n": numbers, "d": days})
    sink = ParquetSink(tmp_path / "out", partition_by=["w", "n", "d"])
    publish(sink, batch)

    read = spark.read.parquet(sink.destination)
    assert read.schema.simpleString() == "struct<i:bigint,w:string,n:bigint,d:date>"
    rows = {(row.i, row.w, row.n, row.d) for row in read.collect()}
    assert rows == set(zip(range(8), words, numbers, days, strict=True))
    assert read.where("w = 'a=b/c' and n = 0").count() == 1


def test_spark_reads_widened_files_with_the_widest_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(tmp_path / "out", widen=True)
    publish(
        sink,
        pa.record_batch({"i": pa.array([1], pa.int32()), "f": pa.array([0.5], pa.float32())}),
        pa.record_batch({"i": [2**40], "f": [0.1], "s": ["new"]}),
    )
    expected = {(1, 0.5, None), (2**40, 0.1, "new")}

    read = spark.read.schema("i bigint, f double, s string").parquet(sink.destination)
    assert {cast("tuple[object, ...]", tuple(row)) for row in read.collect()} == expected
