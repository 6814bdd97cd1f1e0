"""Folders such as `month=3` hold a column that is in no file: refused by name, unless it is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from coordlog.errors import OptionError, SourceError
from coordlog.schemas.source_types import SplitsDiscovered
from coordlog.spark_integration import FileSource
from coordlog.spark_integration.files.source.partition_folders import PartitionFolders

ROWS = pa.table({"id": [1, 2, 3], "month": [1, 1, 2]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As Spark's `partitionBy("month")` and `ParquetSink(partition_by=["month"])` write it."""
    partitioning = ds.partitioning(pa.schema([("month", pa.int64())]), flavor="hive")
    ds.write_dataset(ROWS, tmp_path / "in", format="parquet", partitioning=partitioning)
    return tmp_path / "in"


REFUSED = (
    r"month=1/part-0.parquet: its folder 'month=1' holds the column 'month', which the rows .* do not have"
    r".*--partition-folders ignore"
)


def test_a_column_only_in_folder_names_is_refused_before_the_start(folder: Path) -> None:
    source = FileSource(folder, format="parquet")
    coordinated = source.coordinated()
    for look in (source.check, source.discover, lambda: coordinated.settle_schema(None)):
        with pytest.raises(SourceError, match=REFUSED):
            look()


@pytest.mark.parametrize("schemas", ["one", "each"])
def test_files_of_later_listings_are_refused_too(tmp_path: Path, schemas: str) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(ROWS.select(["id"]), tmp_path / "in" / "a.parquet")
    source = FileSource(tmp_path / "in", format="parquet", schemas=schemas)  # type: ignore[arg-type]
    first = source.discover()
    (tmp_path / "in" / "month=1").mkdir()
    pq.write_table(ROWS.select(["id"]), tmp_path / "in" / "month=1" / "part-0.parquet")

    with pytest.raises(SourceError, match=REFUSED):
        source.discover_again(first.splits)


def test_they_are_read_without_it_if_that_is_meant(folder: Path) -> None:
    found = FileSource(folder, format="parquet", partition_folders="ignore").discover()
    assert isinstance(found, SplitsDiscovered)
    assert len(found.splits) == 2
    with pytest.raises(OptionError, match="partition_folders is 'read'"):
        FileSource(folder, partition_folders="read")  # type: ignore[arg-type]


def test_a_column_that_the_files_have_too_is_lost_by_nobody(folder: Path) -> None:
    for month in (1, 2):
        (path,) = (folder / f"month={month}").iterdir()
        pq.write_table(ROWS.slice(0, 1), path)

    assert len(FileSource(folder, format="parquet").discover().splits) == 2


def test_one_partition_may_be_a_source_of_its_own(folder: Path) -> None:
    assert len(FileSource(folder / "month=1", format="parquet").discover().splits) == 1
    with pytest.raises(SourceError, match=REFUSED):
        FileSource(folder / "month=*", format="parquet").discover()


def test_a_further_path_may_be_a_partition(folder: Path) -> None:
    source = FileSource(folder / "month=1", also=folder / "month=2", format="parquet")
    assert len(source.discover().splits) == 2
    (folder / "month=2" / "day=3").mkdir()
    pq.write_table(ROWS.select(["id"]), folder / "month=2" / "day=3" / "part-0.parquet")
    with pytest.raises(SourceError, match="its folder 'day=3' holds the column"):
        source.discover()


def test_json_rows_without_the_column_are_refused_whatever_the_schema_has(tmp_path: Path) -> None:
    part = tmp_path / "in" / "month=1" / "part-0.json"
    part.parent.mkdir(parents=True)
    part.write_text('{"id":1}\n')
    for bad_rows in ("fail", "skip"):
        source = FileSource(
            tmp_path / "in", format="jsonl", schema="id bigint, month bigint", bad_rows=bad_rows
        )
        for look in (source.check, source.discover):
            with pytest.raises(
                SourceError, match=r"month=1/part-0\.json: its folder 'month=1' holds"
            ):
                look()
    (tmp_path / "in" / "all.json").write_text('{"id":1,"month":3}\n')
    with pytest.raises(SourceError, match="its folder 'month=1' holds the column"):
        FileSource(tmp_path / "in", format="jsonl").discover()


def test_json_of_a_later_listing_is_refused_too(tmp_path: Path) -> None:
    part = tmp_path / "in" / "month=1" / "part-0.json"
    part.parent.mkdir(parents=True)
    part.write_text('{"id":1,"month":null}\n')
    source = FileSource(tmp_path / "in", format="jsonl", schema="id bigint, month bigint")
    first = source.discover()
    part.with_name("part-1.json").write_text('{"id":2}\n')

    with pytest.raises(SourceError, match=r"month=1/part-1\.json: its folder 'month=1' holds"):
        source.discover_again(first.splits)


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.parquet", b"PAR1 cut off", {"format": "parquet", "on_error": "skip"}),
        ("a.jsonl", b"", {"format": "jsonl"}),
        ("a.csv", b"\n", {"format": "csv"}),
    ],
)
@pytest.mark.parametrize("partition_folders", ["refuse", "ignore"])
def test_a_file_without_a_schema_in_such_a_folder_is_left_to_its_reader(
    tmp_path: Path,
    name: str,
    content: bytes,
    options: dict[str, Any],
    partition_folders: PartitionFolders,
) -> None:
    file = tmp_path / "in" / "month=1" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    whole = {"parquet": b"", "jsonl": b'{"id":1}\n', "csv": b"id\n1\n"}[options["format"]]
    beside = tmp_path / "in" / f"b{file.suffix}"
    beside.write_bytes(whole)
    if not whole:
        pq.write_table(ROWS, beside)

    source = FileSource(
        tmp_path / "in", schemas="each", partition_folders=partition_folders, **options
    )
    assert [split.split_id for split in source.discover().splits] == [str(beside), str(file)]
