"""A producer of rows that fills its arrays or data frames again: the rows that it has emitted stay as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog import ParquetSink
from coordlog.api.chain import Chain, OperatorSpec
from coordlog.api.operator import Operator
from coordlog.spark_integration.transform import TransformOperator
from coordlog.task.own_rows import own_rows
from coordlog.testing import HandDrivenJob
from coordlog.testing.real_attempt import RealAttempt, silent_source


class FillsAnArray(Operator):
    """Ten times its rows, in one array that each batch fills again."""

    def __init__(self) -> None:
        self._array = np.empty(100)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        values = self._array[: batch.num_rows]
        np.multiply(batch.column(0).to_numpy(), 10.0, out=values)
        yield pa.record_batch({"x": pa.array(values)})


class KeepsAFrame(Operator):
    """Running totals in a data frame, which is emitted after each batch."""

    def __init__(self) -> None:
        self._totals = pd.DataFrame({"x": [0.0]})

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self._totals["x"] += sum(batch.column(0).to_pylist())
        yield pa.RecordBatch.from_pandas(self._totals, preserve_index=False)


class PassesOn(Operator):
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        return [batch]


def published(make: Callable[[], Operator], folder: Path, *batches: pa.RecordBatch) -> list[float]:
    sink = ParquetSink(folder)
    operators = [OperatorSpec(operator_id="middle", create_operator=make), sink.spec()]
    job = HandDrivenJob(Chain(source=silent_source(), operators=operators))
    sink.prepare(job.runtime.state.job_id)
    attempt = RealAttempt(job, 0)
    for batch in batches:
        attempt.read(batch)
    attempt.end()
    attempt.take()
    job.stage_ends()
    (file,) = folder.glob("*.parquet")
    values: list[float] = pq.read_table(file).column(0).to_pylist()
    return values


@pytest.mark.parametrize(
    ("make", "expected"), [(FillsAnArray, [10, 20, 30]), (KeepsAFrame, [1, 3, 6])]
)
def test_emitted_rows_stay_though_their_operator_fills_its_memory_again(
    make: Callable[[], Operator], expected: list[float], tmp_path: Path
) -> None:
    batches = [pa.record_batch({"x": [number]}) for number in (1.0, 2.0, 3.0)]

    assert published(make, tmp_path / "out", *batches) == expected


def test_rows_of_a_reader_that_reuses_a_buffer_stay(tmp_path: Path) -> None:
    array = np.array([1.0])
    batch = pa.record_batch({"x": pa.array(array)})
    sink = ParquetSink(tmp_path / "out")
    operators = [OperatorSpec(operator_id="middle", create_operator=PassesOn), sink.spec()]
    job = HandDrivenJob(Chain(source=silent_source(), operators=operators))
    sink.prepare(job.runtime.state.job_id)
    attempt = RealAttempt(job, 0)

    for number in (1.0, 2.0):
        array[0] = number
        attempt.read(batch)
    attempt.end()
    attempt.take()
    job.stage_ends()

    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(file).column(0).to_pylist() == [1.0, 2.0]


def test_a_transform_may_fill_one_array_for_all_of_its_batches() -> None:
    array = np.empty(1)

    def each_row(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        for value in batch.column(0).to_pylist():
            array[0] = value
            yield pa.record_batch({"x": pa.array(array)})

    batch = pa.record_batch({"x": [1.0, 2.0, 3.0]})
    emitted = list(TransformOperator(each_row).process(batch))

    assert [batch.column(0).to_pylist() for batch in emitted] == [[1.0], [2.0], [3.0]]


def test_memory_that_nobody_can_change_is_not_copied() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("x", pa.int64())])) as stream:
        stream.write(pa.record_batch({"x": [1, 2]}))
    batch = pa.ipc.open_stream(sink.getvalue()).read_next_batch()

    assert own_rows(batch) is batch


def test_a_copy_has_the_schema_and_rows_of_the_batch() -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False, metadata={"k": "v"}),
            pa.field("b", pa.list_(pa.struct([("c", pa.string())]))),
            pa.field("d", pa.dictionary(pa.int8(), pa.string())),
            pa.field("e", pa.null()),
        ],
        metadata={"of": "the batch"},
    )
    rows = [[1, 2, 3], [[{"c": "x"}], None, []], ["p", None, "p"], [None] * 3]
    batch = pa.record_batch(
        [pa.array(values, field.type) for values, field in zip(rows, schema, strict=True)], schema
    ).slice(1)

    copy = own_rows(batch)

    assert copy.equals(batch, check_metadata=True)
    assert copy.column(0).buffers()[1].address != batch.column(0).buffers()[1].address
