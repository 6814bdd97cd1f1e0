"""Timestamps of Parquet's type INT96, which Spark writes by default: moments, and exact in every year."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.errors import SourceError
from coordlog.spark_integration.files.formats.parquet_moments import ParquetInput
from coordlog.spark_integration.files.source.source import FileSource
from fakes.chain_fakes import contents, read_all

CLOCK = pa.timestamp("us")
MOMENT = pa.timestamp("us", tz="UTC")
ALWAYS = datetime(9999, 12, 31, 5)  # noqa: DTZ001, a usual mark of rows that are in force
FIRST = datetime(1, 1, 1, 4, 56, 2)  # noqa: DTZ001
ORDINARY = datetime(2024, 3, 10, 6, 30, 0, 123456)  # noqa: DTZ001
TIMES = [ALWAYS, None, FIRST, ORDINARY]


def written(folder: Path, columns: dict[str, pa.Array]) -> None:
    pq.write_table(pa.table(columns), folder / "a.parquet", use_deprecated_int96_timestamps=True)


def rows(source: FileSource) -> list[tuple[object, ...]]:
    return read_all(source.spec().create_reader(), contents(source.discover())).rows


def utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(tzinfo=UTC)


def test_timestamps_of_int96_are_moments_of_any_year(tmp_path: Path) -> None:
    written(tmp_path, {"id": pa.array([1, 2, 3, 4]), "t": pa.array(TIMES, CLOCK)})
    source = FileSource(tmp_path, format="parquet", batch_rows=3)

    assert source.settle_schema() == pa.schema({"id": pa.int64(), "t": MOMENT})
    assert rows(source) == [(i + 1, utc(time)) for i, time in enumerate(TIMES)]


def test_timestamps_of_int96_within_values_are_moments(tmp_path: Path) -> None:
    part = pa.StructArray.from_arrays(
        [pa.array(TIMES, CLOCK), pa.array([float("nan")] * 4)], ["t", "x"]
    )
    listed = pa.ListArray.from_arrays([0, 1, 2, 3, 4], part)
    mapped = pa.MapArray.from_arrays([0, 1, 2, 3, 4], ["a"] * 4, pa.array(TIMES, CLOCK))
    written(tmp_path, {"listed": listed, "mapped": mapped})
    source = FileSource(tmp_path, format="parquet")

    expected = pa.schema(
        {
            "listed": pa.list_(pa.struct({"t": MOMENT, "x": pa.float64()})),
            "mapped": pa.map_(pa.string(), MOMENT),
        }
    )
    assert [field.type for field in source.settle_schema()] == expected.types
    read = rows(source)
    assert [lists[0]["t"] for lists, _ in read] == [utc(time) for time in TIMES]  # type: ignore[index]
    assert [dict(maps)["a"] for _, maps in read] == [utc(time) for time in TIMES]  # type: ignore[call-overload]


@pytest.mark.parametrize(("wanted", "zone"), [("timestamp", UTC), ("timestamp_ntz", None)])
def test_a_given_schema_says_what_int96_is(tmp_path: Path, wanted: str, zone: object) -> None:
    written(tmp_path, {"t": pa.array(TIMES, CLOCK)})
    source = FileSource(tmp_path, format="parquet", schema=f"t {wanted}")

    assert rows(source) == [(time and time.replace(tzinfo=zone),) for time in TIMES]  # type: ignore[arg-type]


def test_int96_beside_wall_clocks_is_another_schema(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array(TIMES, CLOCK)}), tmp_path / "0.parquet")
    written(tmp_path, {"t": pa.array(TIMES, CLOCK)})

    with pytest.raises(
        SourceError, match=r"'t' is timestamp\[us, tz=UTC\] and not timestamp\[us\]"
    ):
        FileSource(tmp_path, format="parquet").settle_schema()


@pytest.mark.parametrize("schema", [None, "t timestamp_ntz"])
def test_int96_finer_than_microseconds_is_refused(tmp_path: Path, schema: str | None) -> None:
    finer = pa.array([0, None, 1_700_000_000_000_000_001], pa.timestamp("ns"))
    written(tmp_path, {"t": finer})

    with pytest.raises(SourceError, match=r"row 3, column 't': .* digits beyond microseconds"):
        rows(FileSource(tmp_path, format="parquet", schema=schema))


def test_a_schema_that_an_older_version_settled_stays(tmp_path: Path) -> None:
    old = pa.schema({"t": pa.timestamp("ns")})
    written(tmp_path, {"t": pa.array([ORDINARY, ALWAYS], CLOCK)})
    file = ParquetInput("a.parquet", tmp_path / "a.parquet")

    assert file.schema(old, is_given=False) == old
    batches = file.batches(old, ["t"], 1, range(1))
    assert next(batches).column("t").to_pylist() == [ORDINARY]
    with pytest.raises(SourceError, match="after row 1 is not in the range"):
        next(batches)


def test_structs_of_a_given_schema_say_what_int96_is(tmp_path: Path) -> None:
    part = pa.StructArray.from_arrays([pa.array(TIMES, CLOCK)] * 2, ["t", "u"])
    written(tmp_path, {"s": part, "l": pa.ListArray.from_arrays([0, 1, 2, 3, 4], part)})
    schema = "s struct<t:timestamp_ntz,u:timestamp>, l array<struct<t:timestamp,u:timestamp_ntz>>"

    read = rows(FileSource(tmp_path, format="parquet", schema=schema))
    assert read[3] == (
        {"t": ORDINARY, "u": utc(ORDINARY)},
        [{"t": utc(ORDINARY), "u": ORDINARY}],
    )
