"""A transform is a function of a batch; what it must not return is said plainly."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pytest

from coordlog.causes import MISFIT, final_of
from coordlog.errors import TransformMisfitError
from coordlog.spark_integration.transform import (
    TransformOperator,
    pandas_transform,
    transform_spec,
)

BATCH = pa.record_batch({"i": pa.array([1, None, 3], pa.int64()), "s": ["a", "b", None]})


def only_first(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 1)


def row_by_row(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for i in range(batch.num_rows):
        yield batch.slice(i, 1)


def doubled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(i=frame["i"] * 2)


def test_a_function_gives_one_batch_or_several_or_none() -> None:
    assert list(TransformOperator(only_first).process(BATCH)) == [BATCH.slice(0, 1)]
    assert len(list(TransformOperator(row_by_row).process(BATCH))) == 3
    assert list(TransformOperator(lambda _: ()).process(BATCH)) == []


@pytest.mark.parametrize(
    "wrong",
    [None, 3, "text", {"i": 1}, pa.table({"i": [1]}), pd.DataFrame(), [BATCH, None]],
    ids=["None", "int", "str", "dict", "Table", "DataFrame", "a list with None"],
)
def test_a_return_of_another_type_is_an_error_that_names_function_and_type(wrong: object) -> None:
    def make(_batch: pa.RecordBatch) -> object:
        return wrong

    with pytest.raises(TransformMisfitError) as caught:
        list(TransformOperator(make).process(BATCH))

    assert "make" in str(caught.value)
    kind = type(None if isinstance(wrong, list) else wrong).__qualname__
    assert kind in str(caught.value)
    assert "a pyarrow.RecordBatch or an iterable of them" in str(caught.value)
    assert final_of(caught.value) == MISFIT, "another try returns the same"


def test_what_a_function_raises_goes_on_as_it_is() -> None:
    def fail(_batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        list(TransformOperator(fail).process(BATCH))


def test_a_pandas_function_keeps_integers_with_nulls_as_they_are() -> None:
    (made,) = TransformOperator(pandas_transform(doubled)).process(BATCH)

    assert made.schema == BATCH.schema
    assert made.to_pydict() == {"i": [2, None, 6], "s": ["a", "b", None]}


def test_a_pandas_function_may_drop_rows_and_give_several_frames() -> None:
    def drop(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["s"] == "b"]

    def halves(frame: pd.DataFrame) -> list[pd.DataFrame]:
        return [frame.iloc[:1], frame.iloc[1:]]

    (dropped,) = TransformOperator(pandas_transform(drop)).process(BATCH)
    assert dropped.to_pydict() == {"i": [None], "s": ["b"]}
    made = list(TransformOperator(pandas_transform(halves)).process(BATCH))
    assert [one.num_rows for one in made] == [1, 2]


def test_a_schema_types_what_pandas_leaves_without_a_type() -> None:
    def empty_column(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"n": [None] * len(frame)})

    schema = pa.schema({"n": pa.string()})
    (typed,) = TransformOperator(pandas_transform(empty_column, schema=schema)).process(BATCH)

    assert typed.schema == schema


def test_a_pandas_function_that_returns_another_type_is_named() -> None:
    def series(frame: pd.DataFrame) -> object:
        return frame["i"]

    with pytest.raises(TransformMisfitError, match=r"series returned a pandas\.\S*Series"):
        list(TransformOperator(pandas_transform(series)).process(BATCH))  # type: ignore[arg-type]


def test_a_transform_travels_to_the_tasks_and_keeps_no_state_across_splits() -> None:
    spec = transform_spec(pandas_transform(doubled), operator_id="double")
    operator = pickle.loads(pickle.dumps(spec.create_operator))()

    assert (spec.operator_id, spec.keeps_state_across_splits) == ("double", False)
    assert [one.num_rows for one in operator.process(BATCH)] == [3]
