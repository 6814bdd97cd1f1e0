"""Rows of a batch by the values of their partition columns."""

from __future__ import annotations

import pyarrow as pa

from coordlog.errors import DestinationMisfitError
from coordlog.spark_integration.files.names import partition_folder

__all__ = ["by_partition"]


def by_partition(
    where: str, batch: pa.RecordBatch, columns: tuple[str, ...], *, keeps_columns: bool = False
) -> list[tuple[str, pa.RecordBatch]]:
    """The folder of each partition in `batch`, in order of appearance, with its rows in their order.

    Args:
        where: The destination, for errors.
        batch: Rows, with the partition columns.
        columns: The partition columns. Empty: one partition, without a folder.
        keeps_columns: Whether the result has these columns too; then the empty string has a folder of its own.

    Raises:
        DestinationMisfitError: A value has no text: it is not UTF-8, or a date beyond Python's; or it makes a name that
            is too long.
    """
    if not columns:
        return [("", batch)]
    keys = [_plain(batch.column(column)) for column in columns]
    rest = batch if keeps_columns else batch.drop_columns(list(columns))
    names = [f"key {i}" for i in range(len(keys))]
    rows = pa.array(range(batch.num_rows), pa.int64())
    groups = (
        pa.table([*keys, rows], names=[*names, "row"])
        .group_by(names, use_threads=False)  # threads would shuffle the rows
        .aggregate([("row", "list")])
    )
    partitions: list[tuple[str, pa.RecordBatch]] = []
    for i in range(groups.num_rows):
        values = _values_of(where, columns, [groups.column(name)[i] for name in names])
        picked = rest if groups.num_rows == 1 else rest.take(groups.column("row_list")[i].values)
        folder = partition_folder(where, columns, values, distinguishes_empty=keeps_columns)
        partitions.append((folder, picked))
    return _merged(partitions)


def _values_of(
    where: str, columns: tuple[str, ...], scalars: list[pa.Scalar]
) -> tuple[object, ...]:
    values: list[object] = []
    for column, scalar in zip(columns, scalars, strict=True):
        try:
            values.append(scalar.as_py())
        except (UnicodeError, OverflowError) as error:
            raise DestinationMisfitError(
                where,
                f"a value of partition column {column!r}, of {scalar.type}, has no text: {error}",
                "fix such values in the transform, or partition by another column",
            ) from error
    return tuple(values)


def _merged(partitions: list[tuple[str, pa.RecordBatch]]) -> list[tuple[str, pa.RecordBatch]]:
    """The partitions, with those of one folder joined: null and the empty string share a folder."""
    merged: dict[str, list[pa.RecordBatch]] = {}
    for folder, rows in partitions:
        merged.setdefault(folder, []).append(rows)
    return [
        (folder, pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces))
        for folder, pieces in merged.items()
    ]


def _plain(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
