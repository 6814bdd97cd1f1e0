"""Rows of each type that Parquet has come through sink and source as they were, by Arrow's own reader too."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.api.coordinator import CommittableOf
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from fakes.chain_fakes import FakeContext, contents, read_all

VALUES = [
    pa.array(["a", None, "b"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
    pa.array([1, None, 2]).dictionary_encode(),
    pa.array([["a"], None, [None]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    pa.array(["a", None], pa.large_string()),
    pa.array(["a", None, "longer than twelve bytes"], pa.string_view()),
    pa.array([b"a", None, b"longer than twelve bytes"], pa.binary_view()),
    pa.array([[1], None, []], pa.large_list(pa.int8())),
    pa.array([[1], None, []], pa.list_view(pa.int8())),
    pa.array([[1, 2], None, [None, 3]], pa.list_(pa.int8(), 2)),
    pa.array([[("a", [1, None])], None, []], pa.map_(pa.string(), pa.list_(pa.int64()))),
    pa.array([{"a": {"b": [None, {"c": 1}, {"c": None}]}}, {"a": None}, None, {"a": {"b": []}}]),
    pa.array([[[1], None, []], None, [], [None]], pa.list_(pa.list_(pa.int8()))),
    pa.array([b"sixteen bytes 16", None], pa.uuid()),
    pa.array([1, None], pa.time32("s")),
    pa.array([1, None], pa.time64("ns")),
    pa.array([86_400_000, None], pa.date64()),
    pa.array([1, None], pa.timestamp("ms", "Europe/Berlin")),
    pa.array([2**64 - 1, None], pa.uint64()),
    pa.array([1.5, None, float("inf")], pa.float16()),
    pa.array([Decimal("1.1"), None], pa.decimal32(5, 1)),
    pa.array([Decimal("9" * 38), None], pa.decimal128(38, 0)),
    pa.array([Decimal("9" * 76), None], pa.decimal256(76, 0)),
    pa.array([b"abc", None], pa.binary(3)),
    pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "A"]),
]


@pytest.mark.parametrize("values", VALUES, ids=lambda values: str(values.type)[:50])
def test_a_value_of_each_type_comes_back_as_it_was(values: pa.Array, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.prepare("ingest")
    writer = sink.spec().create_operator()
    writer.open(FakeContext(), None)
    list(writer.process(pa.record_batch({"a.b": range(len(values)), "": values})))
    committables = [
        CommittableOf(subtask=0, attempt_number=0, split_id=None, content=one)
        for one in writer.final_snapshot().committables
    ]
    sink.settle(sink.make_intent(1, committables))

    rows = list(enumerate(values.to_pylist()))
    table = pq.read_table(tmp_path)
    assert list(zip(table["a.b"].to_pylist(), table[""].to_pylist(), strict=True)) == rows
    source = FileSource(tmp_path, format="parquet")
    assert read_all(source.spec().create_reader(), contents(source.discover())).rows == rows
