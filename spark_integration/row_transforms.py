"""Declares that a transform works row by row, so that rows at which it raises may be left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, overload

import pyarrow as pa

from coordlog.errors import OptionError
from coordlog.limits import ROW_FAILURES_MAX
from coordlog.option_types import check_all, check_range, check_types

__all__ = ["RowTransform", "row_transform"]

Function = Callable[[pa.RecordBatch], pa.RecordBatch | Iterable[pa.RecordBatch]]

_ERRORS: Final[tuple[type[Exception], ...]] = (
    ValueError,  # with Arrow's own of values, and those of Unicode and JSON
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
)
"""Errors by which a function refuses a value. Others, such as an OSError, may be no fault of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTransform:
    """A transform that works row by row; made by `row_transform`. Called as the function itself."""

    function: Function
    errors: tuple[type[Exception], ...] = _ERRORS
    failures_in_a_row_max: int = ROW_FAILURES_MAX

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch | Iterable[pa.RecordBatch]:
        """Result of the function."""
        return self.function(batch)


@overload
def row_transform(
    function: Function,
    *,
    errors: tuple[type[Exception], ...] = ...,
    failures_in_a_row_max: int = ...,
) -> RowTransform: ...


@overload
def row_transform(
    function: None = None,
    *,
    errors: tuple[type[Exception], ...] = ...,
    failures_in_a_row_max: int = ...,
) -> Callable[[Function], RowTransform]: ...


def row_transform(
    function: Function | None = None,
    *,
    errors: tuple[type[Exception], ...] = _ERRORS,
    failures_in_a_row_max: int = ROW_FAILURES_MAX,
) -> RowTransform | Callable[[Function], RowTransform]:
    """A transform of which the source's `bad_rows` leaves out the rows at which it raises; also a decorator.

    The function must work row by row: its output for a batch is that for the parts of the batch, one after the
    other. So it keeps no state, and does not depend on the place of a row or on other rows; a sum over the batch,
    or a filter of duplicates, does. If it raises, it is called again with the halves of the batch, until the rows at
    which it raises are alone. It must accept a batch without rows: if it raises at that too, no row is at fault.

    Args:
        function: Function of a batch, as `Job` takes it.
        errors: Errors that are faults of a row. Those of memory, of imports and of coordlog never are.
        failures_in_a_row_max: Greatest number of rows one after the other at which it raises; one more fails the
            attempt.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several options are wrong.
    """
    check_types(row_transform, locals())
    check_all(
        partial(_check_errors, errors),
        partial(check_range, "failures_in_a_row_max", failures_in_a_row_max, 1, 1_000_000_000),
    )
    make = partial(RowTransform, errors=errors, failures_in_a_row_max=failures_in_a_row_max)
    if function is None:
        return lambda decorated: make(function=decorated)
    return make(function=function)


def _check_errors(errors: tuple[object, ...]) -> None:
    if not errors or not all(
        isinstance(error, type) and issubclass(error, Exception) for error in errors
    ):
        raise OptionError("errors", errors, "a tuple of classes of exceptions")
