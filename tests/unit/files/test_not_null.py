"""A column that must not be null, of a schema that is given: a null in it is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.errors import SourceError
from coordlog.spark_integration.casts.given_schema import arrow_schema_of
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.kafka.rows import RowFormat
from fakes.chain_fakes import contents, read_all
from fakes.kafka_fakes import FakeRecord

SCHEMA = "a bigint not null, b string"


def test_a_null_in_a_parquet_file_is_refused_with_its_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2, None], "b": ["x", None, "z"]}), tmp_path / "a.parquet")
    source = FileSource(tmp_path, format="parquet", schema=SCHEMA)

    with pytest.raises(
        SourceError, match=r"row 3, column 'a' is of type int64, not int64 not null"
    ):
        read_all(source.spec().create_reader(), contents(source.discover()))


def test_a_null_in_a_json_value_is_refused_with_its_offset() -> None:
    rows = RowFormat(decode="json", value_schema=arrow_schema_of("value_schema", SCHEMA))
    records = [FakeRecord(offset=7, value=b'{"a": 1}'), FakeRecord(offset=8, value=b'{"b": "x"}')]

    with pytest.raises(SourceError, match=r"partition t/0, offset 8: .* is no int64 not null"):
        rows.rows(("t", 0), records)


def test_a_record_without_a_value_is_a_null_of_any_schema() -> None:
    rows = RowFormat(decode="json", value_schema=arrow_schema_of("value_schema", SCHEMA))
    records = [FakeRecord(offset=7, value=None), FakeRecord(offset=8, value=b'{"a": 1}')]

    batch = rows.rows(("t", 0), records)

    batch.validate(full=True)
    assert batch.column("value").to_pylist() == [None, {"a": 1, "b": None}]
