"""Parquet files of Spark 2's calendar: early dates and moments are refused, with their row; all others are read."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.errors import SourceError
from coordlog.spark_integration.files.source.source import FileSource
from fakes.chain_fakes import contents, read_all

SPARK = "org.apache.spark."
SCHEMA = f"{SPARK}sql.parquet.row.metadata"
VERSION = f"{SPARK}version"
LEGACY = f"{SPARK}legacyDateTime"
LEGACY_INT96 = f"{SPARK}legacyINT96"

LATE = [date(1582, 10, 15), None, date(9999, 12, 31)]
EARLY = [date(2024, 1, 1), date(1582, 10, 14), None]
LATE_TIMES = [datetime(1900, 1, 1, tzinfo=UTC), None, datetime(2024, 1, 1, tzinfo=UTC)]
EARLY_TIMES = [datetime(2024, 1, 1, tzinfo=UTC), datetime(1899, 12, 31, tzinfo=UTC), None]

MOMENTS = pa.timestamp("us", tz="UTC")
CLOCKS = pa.timestamp("us")


def read(folder: Path, column: pa.Array, *keys: str, version: str = "", int96: bool = False) -> int:
    """Number of rows of a file with these keys in its footer."""
    metadata = {**dict.fromkeys(keys, ""), **({VERSION: version} if version else {})}
    table = pa.table({"x": column}).replace_schema_metadata(metadata)
    pq.write_table(table, folder / "a.parquet", use_deprecated_int96_timestamps=int96)
    source = FileSource(folder, format="parquet", batch_rows=1)
    return len(read_all(source.spec().create_reader(), contents(source.discover())).rows)


def listed(dates: list[date | None]) -> pa.Array:
    part = pa.StructArray.from_arrays([pa.array(dates)], ["d"])
    return pa.ListArray.from_arrays(list(range(len(dates) + 1)), part)


@pytest.mark.parametrize(
    ("keys", "version"),
    [((SCHEMA, LEGACY), "4.1.1"), ((SCHEMA,), "2.4.8"), ((SCHEMA,), "")],
    ids=["legacy-mode", "spark-2", "spark-before-it-wrote-its-version"],
)
def test_an_early_date_of_the_old_calendar_is_refused(
    tmp_path: Path, keys: tuple[str, ...], version: str
) -> None:
    for early in (pa.array(EARLY), listed(EARLY), pa.array(EARLY_TIMES, MOMENTS)):
        with pytest.raises(SourceError, match=r"row 2, column 'x'.* before 1582-10-15"):
            read(tmp_path, early, *keys, version=version)
    for late in (pa.array(LATE), listed(LATE), pa.array(LATE_TIMES, MOMENTS)):
        assert read(tmp_path, late, *keys, version=version) == 3


def test_the_key_of_int96_concerns_timestamps_of_that_type_alone(tmp_path: Path) -> None:
    clocks = pa.array([time and time.replace(tzinfo=None) for time in EARLY_TIMES], CLOCKS)
    with pytest.raises(SourceError, match="row 2, column 'x'"):
        read(tmp_path, clocks, SCHEMA, LEGACY_INT96, version="4.1.1", int96=True)
    assert read(tmp_path, clocks, SCHEMA, LEGACY, LEGACY_INT96, version="4.1.1") == 3
    for others in (pa.array(EARLY), pa.array(EARLY_TIMES, MOMENTS)):
        assert read(tmp_path, others, SCHEMA, LEGACY_INT96, version="4.1.1") == 3


def test_early_values_of_the_usual_calendar_are_read(tmp_path: Path) -> None:
    for early in (pa.array(EARLY), pa.array(EARLY_TIMES, MOMENTS)):
        assert read(tmp_path, early, SCHEMA, version="3.5.1") == 3
        assert read(tmp_path, early) == 3
