"""The operator of a transform whose source leaves out bad rows: rows at which it raises are left out too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from coordlog.api.operator import OperatorContext
from coordlog.errors import CoordlogError, RowFailuresError
from coordlog.limits import REASON_CHARS_MAX
from coordlog.spark_integration.files.formats.bad_rows import are_rejects, split_of, unplaced
from coordlog.spark_integration.row_transforms import RowTransform
from coordlog.spark_integration.transform import TransformOperator, name_of

__all__ = ["RejectsOf", "RowTransformOperator"]

_log = logging.getLogger(__name__)

RejectsOf = Callable[[pa.RecordBatch, Sequence[str]], pa.RecordBatch]
"""Batch for the source's followers, of rows of the source and the reason of each."""

_OF_NO_ROW = (MemoryError, ImportError, NameError, NotImplementedError, CoordlogError)


class RowTransformOperator(TransformOperator):
    """Calls a function for each batch, and for parts of a batch at which it raises.

    Args:
        transform: Function, and the errors that are faults of a row.
        rejects_of: Factory of batches for the source's followers; None: the rows are counted alone.
    """

    def __init__(self, transform: RowTransform, rejects_of: RejectsOf | None) -> None:
        super().__init__(transform.function)
        self._transform, self._rejects_of = transform, rejects_of
        self._name = ""
        self._in_a_row = 0
        """Failed rows since the last good one."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Continue the counts in `state`."""
        super().open(context, state)
        self._name = context.operator_id

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Output of the rows at which the function does not raise; then the others, as rejects.

        Raises:
            RowFailuresError: The function raises at too many rows one after the other.
            TransformMisfitError: The function returned something else than record batches.
        """
        if are_rejects(batch):
            yield batch
            return
        rows = unplaced(batch)
        bad: dict[int, str] = {}
        parts = [(0, rows.num_rows)]
        while parts:
            start, end = parts.pop()
            try:
                # All of it: rows that were passed on before an error would be passed on again.
                output = list(super().process(rows.slice(start, end - start)))
            except self._transform.errors as error:
                if isinstance(error, _OF_NO_ROW):
                    raise
                if end - start == rows.num_rows:
                    self._check_without_rows(rows, error)
                if end - start > 1:
                    middle = (start + end) // 2
                    parts += [(middle, end), (start, middle)]
                else:
                    bad[start] = self._reason(error)
            else:
                self._in_a_row = 0
                yield from output
        if bad:
            yield from self._left_out(batch, bad)

    def _check_without_rows(self, rows: pa.RecordBatch, error: Exception) -> None:
        """Raise the error if the function raises without rows too: it is a fault of no row then."""
        try:
            list(super().process(rows.slice(0, 0)))
        except self._transform.errors as same:
            error.add_note(
                f"transform {name_of(self._transform.function)} raises {type(same).__name__} for a batch without rows "
                "too, so that no row is at fault; a `row_transform` must accept such a batch"
            )
            raise error from None

    def _reason(self, error: Exception) -> str:
        self._in_a_row += 1
        reason = f"{self._name}: {type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        if self._in_a_row > self._transform.failures_in_a_row_max:
            raise RowFailuresError(
                name_of(self._transform.function), self._in_a_row, reason
            ) from error
        return reason

    def _left_out(self, batch: pa.RecordBatch, reasons: dict[int, str]) -> Iterator[pa.RecordBatch]:
        split_id = split_of(batch)
        self._counts[split_id] = self._counts.get(split_id, 0) + len(reasons)
        if self._rejects_of is not None:
            rows = batch.take(pa.array(list(reasons), pa.int64()))
            yield self._rejects_of(rows, list(reasons.values()))

    def left_out(self, split_id: str) -> int:
        """As `Operator.left_out`."""
        count = super().left_out(split_id)
        if count and self._rejects_of is None:
            _log.warning("%s: %s left out %d rows at which it raises", split_id, self._name, count)
        return count
