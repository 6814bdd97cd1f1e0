"""Transforms: a function of a batch as a link of a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import cast

import pandas as pd
import pyarrow as pa

from coordlog.api.chain import OperatorSpec
from coordlog.api.operator import Operator
from coordlog.errors import UsageError
from coordlog.option_types import check_types

__all__ = [
    "PandasFunction",
    "TransformFunction",
    "TransformOperator",
    "pandas_transform",
    "transform_spec",
]

TransformFunction = Callable[[pa.RecordBatch], pa.RecordBatch | Iterable[pa.RecordBatch]]
PandasFunction = Callable[[pd.DataFrame], pd.DataFrame | Iterable[pd.DataFrame]]


class TransformOperator(Operator):
    """Calls a function for each batch; keeps nothing from one to the next.

    What the function raises goes on as it is: it fails this attempt, with the operator and the
    callback named.
    """

    def __init__(self, function: TransformFunction) -> None:
        self._function = function

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What the function makes of `batch`.

        Raises:
            UsageError: The function returned something else than record batches.
        """
        made = self._function(batch)
        if isinstance(made, pa.RecordBatch):
            yield made
            return
        expected = "a pyarrow.RecordBatch or an iterable of them"
        if not isinstance(made, Iterable) or isinstance(
            made, (pa.Table, pd.DataFrame, str, bytes, dict)
        ):
            raise _wrong_type(self._function, "returned", made, expected)
        for one in made:
            if not isinstance(one, pa.RecordBatch):
                raise _wrong_type(self._function, "gave", one, expected)
            yield one


def transform_spec(function: TransformFunction, *, operator_id: str = "transform") -> OperatorSpec:
    """`function` as a link of a chain.

    It travels to the tasks, so it must pickle (by value in notebooks).
    """
    return OperatorSpec(
        operator_id=operator_id,
        create_operator=partial(TransformOperator, function),
        keeps_state_across_splits=False,
    )


def pandas_transform(
    function: PandasFunction, *, schema: pa.Schema | None = None
) -> TransformFunction:
    """A transform from a function of a pandas DataFrame to one, or to several.

    Columns are given in pandas' Arrow types, so that integers with nulls stay integers and times
    stay exact. The index of what comes back is dropped.

    Args:
        function: Is called with the rows of one batch.
        schema: Of what comes back. Without it, as pandas' types have it, which for columns of plain
            Python objects follows their values: a column that is empty in one batch has no type
            then.

    Raises:
        OptionError: An argument has a wrong type.
        OptionsError: Both have.
    """
    check_types(pandas_transform, locals())
    return partial(_apply_pandas, function, schema)


def _apply_pandas(
    function: PandasFunction, schema: pa.Schema | None, batch: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    made = function(batch.to_pandas(types_mapper=pd.ArrowDtype))
    frames = [made] if isinstance(made, pd.DataFrame) else made
    expected = "a pandas.DataFrame or an iterable of them"
    if not isinstance(frames, Iterable) or isinstance(frames, (pd.Series, str, bytes, dict)):
        raise _wrong_type(function, "returned", made, expected)
    for one in frames:
        if not isinstance(one, pd.DataFrame):
            raise _wrong_type(function, "gave", one, expected)
        made_batch = pa.RecordBatch.from_pandas(one, schema=schema, preserve_index=False)
        yield cast("pa.RecordBatch", made_batch.replace_schema_metadata(None))


def _wrong_type(
    function: Callable[..., object], verb: str, value: object, expected: str
) -> UsageError:
    name = getattr(function, "__qualname__", repr(function))
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return UsageError(f"transform {name} {verb} a {kind}; it must return {expected}")
