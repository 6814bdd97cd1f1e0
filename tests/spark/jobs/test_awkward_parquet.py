"""Parquet files that Spark has written, of one schema and of one that grew, beside the rows that Spark reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coordlog.errors import SourceError
from coordlog.spark_integration.files.source.source import FileSource
from fakes.chain_fakes import contents, read_all

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = (
    "select * from values "
    "(1, 'ä', 1.5D, date'2026-01-31', array(1, 2), named_struct('x', 1), 12345678901234567890bd), "
    "(2, null, null, null, null, null, null) as t(i, s, d, day, l, o, id)"
)


def rows_of(source: FileSource) -> list[tuple[object, ...]]:
    return read_all(source.spec().create_reader(), contents(source.discover())).rows


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip"])
def test_parquet_files_of_spark_have_the_rows_that_spark_reads(
    spark: SparkSession, tmp_path: Path, codec: str
) -> None:
    path = str(tmp_path / "in")
    spark.sql(ROWS).coalesce(1).write.option("compression", codec).parquet(path)
    twin = [
        tuple(row.asDict(recursive=True).values()) for row in spark.read.parquet(path).collect()
    ]

    assert rows_of(FileSource(path, format="parquet")) == twin


def test_a_folder_extended_by_a_column_is_refused_by_a_files_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "in")
    spark.sql("select 1 as i").coalesce(1).write.parquet(path)
    spark.sql("select 2 as i, 'x' as new").coalesce(1).write.mode("append").parquet(path)

    with pytest.raises(
        SourceError, match=r"part-.*\.parquet: its schema is not that of the source"
    ):
        FileSource(path, format="parquet").discover()
