"""Rows that their producer cannot change any more: the links behind it may keep them."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["own_rows"]


def own_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with columns of its own memory.

    `pa.array` and `from_pandas` copy no numbers: such a column is the memory of an array or a data frame of numpy or
    pandas, which the producer may fill again for its next batch. Writers keep rows until a row group is full. Memory
    that is marked as unchangeable is not copied.
    """
    emitted = batch.columns
    columns = [_own(column) for column in emitted]
    if all(own is column for own, column in zip(columns, emitted, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _own(column: pa.Array) -> pa.Array:
    if any(buffer is not None and buffer.is_mutable for buffer in column.buffers()):
        return pa.concat_arrays([column])  # copies a single array too
    return column
