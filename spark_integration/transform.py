"""Transforms: a function of a batch as a link of a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from coordlog.api.chain import OperatorSpec
from coordlog.api.operator import Operator, OperatorContext, Snapshot
from coordlog.errors import TransformMisfitError
from coordlog.option_types import check_types
from coordlog.spark_integration.files.formats.bad_rows import are_rejects
from coordlog.spark_integration.files.rejected_rows import (
    decode_counts,
    encode_counts,
    merge_counts,
)
from coordlog.spark_integration.row_transforms import RowTransform
from coordlog.task.own_rows import own_rows

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "PandasFunction",
    "TransformFunction",
    "TransformOperator",
    "name_of",
    "pandas_transform",
    "transform_spec",
]

TransformFunction = Callable[[pa.RecordBatch], pa.RecordBatch | Iterable[pa.RecordBatch]]
PandasFunction = Callable[["pd.DataFrame"], "pd.DataFrame | Iterable[pd.DataFrame]"]


class TransformOperator(Operator):
    """Calls a function for each batch; keeps no rows between batches.

    An error of the function is raised unchanged: it fails this attempt, with the names of operator
    and callback. The state is the number of rows that were left out of each unfinished split: by an earlier run, if
    this one leaves out none.
    """

    emits_own_memory = True

    def __init__(self, function: TransformFunction) -> None:
        self._function = function
        self._counts: dict[str, int] = {}
        """Rows that were left out, by split."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Continue the counts in `state`."""
        self._counts = {} if state is None else decode_counts(state)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Record batches that the function returns for `batch`; rejects of the source pass through unchanged.

        Raises:
            TransformMisfitError: The function returned something else than record batches.
        """
        if are_rejects(batch):
            yield batch
            return
        result = self._function(batch)
        if isinstance(result, pa.RecordBatch):
            yield own_rows(result)
            return
        expected = "a pyarrow.RecordBatch or an iterable of them"
        if (
            not isinstance(result, Iterable)
            or isinstance(result, (pa.Table, str, bytes, dict))
            or _is_frame(result)
        ):
            raise _wrong_type(self._function, "returned", result, expected)
        for item in result:
            if not isinstance(item, pa.RecordBatch):
                raise _wrong_type(self._function, "gave", item, expected)
            yield own_rows(item)

    def left_out(self, split_id: str) -> int:
        """As `Operator.left_out`."""
        return self._counts.pop(split_id, 0)

    def discard_split(self, split_id: str) -> None:
        """Forget the split's count."""
        self._counts.pop(split_id, None)

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """Counts of unfinished splits; no state if there are none."""
        return Snapshot(state=encode_counts(self._counts) if self._counts else None)


def _is_frame(value: object) -> bool:
    """Whether it is a pandas DataFrame. Imports no pandas: that takes a third of a second."""
    return type(value).__module__.partition(".")[0] == "pandas"


def transform_spec(function: TransformFunction, *, operator_id: str = "transform") -> OperatorSpec:
    """`function` as a link of a chain.

    The function is sent to the tasks, so it must pickle (by value in notebooks).
    """
    leaving_out = None
    if isinstance(function, RowTransform):
        leaving_out = partial(_leaving_out, function)
        function = function.function
    return OperatorSpec(
        operator_id=operator_id,
        create_operator=partial(TransformOperator, function),
        passes_rejects=True,
        leaving_out=leaving_out,
        merge_states=merge_counts,
        keeps_state_across_splits=False,
        groups_splits=True,
    )


def _leaving_out(
    transform: RowTransform,
    rejects_of: Callable[[pa.RecordBatch, Sequence[str]], pa.RecordBatch] | None,
) -> Operator:
    from coordlog.spark_integration.row_transform_operator import (  # noqa: PLC0415, it extends an operator of this module
        RowTransformOperator,
    )

    return RowTransformOperator(transform, rejects_of)


def name_of(function: Callable[..., object]) -> str:
    """Name of a function, for messages."""
    return str(getattr(function, "__qualname__", repr(function)))


def pandas_transform(
    function: PandasFunction, *, schema: pa.Schema | None = None
) -> TransformFunction:
    """A transform from a function that takes a pandas DataFrame and returns one or several.

    Columns have pandas' Arrow types, so that integers with nulls stay integers and times stay exact.
    The index of a returned DataFrame is dropped.

    Args:
        function: Called with the rows of one batch.
        schema: Schema of the returned DataFrames. Without it pandas' types decide, which for columns of
            plain Python objects follow the values: such a column has no type in a batch without values.

    Raises:
        OptionError: An argument has a wrong type.
        OptionsError: Both arguments have a wrong type.
    """
    check_types(pandas_transform, locals())
    return partial(_apply_pandas, function, schema)


def _apply_pandas(
    function: PandasFunction, schema: pa.Schema | None, batch: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    import pandas as pd  # noqa: PLC0415, a third of a second, and not for all transforms

    result = function(batch.to_pandas(types_mapper=pd.ArrowDtype))
    frames = [result] if isinstance(result, pd.DataFrame) else result
    expected = "a pandas.DataFrame or an iterable of them"
    if not isinstance(frames, Iterable) or isinstance(frames, (pd.Series, str, bytes, dict)):
        raise _wrong_type(function, "returned", result, expected)
    for frame in frames:
        if not isinstance(frame, pd.DataFrame):
            raise _wrong_type(function, "gave", frame, expected)
        output = pa.RecordBatch.from_pandas(frame, schema=schema, preserve_index=False)
        yield cast("pa.RecordBatch", output.replace_schema_metadata(None))


def _wrong_type(
    function: Callable[..., object], verb: str, value: object, expected: str
) -> TransformMisfitError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return TransformMisfitError(name_of(function), f"{verb} a {kind}", expected)
