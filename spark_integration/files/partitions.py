"""Rows of a batch by the values of their partition columns."""

from __future__ import annotations

import pyarrow as pa

from coordlog.spark_integration.files.names import partition_folder

__all__ = ["by_partition"]


def by_partition(
    where: str, batch: pa.RecordBatch, columns: tuple[str, ...]
) -> list[tuple[str, pa.RecordBatch]]:
    """The folder of each partition in `batch`, in order of appearance, with its rows in their order.

    Args:
        where: The destination, for errors.
        batch: Rows, with the partition columns.
        columns: These; the batches that come out lack them. None: one partition, without a folder.

    Raises:
        SinkError: A value makes a name that is too long.
    """
    if not columns:
        return [("", batch)]
    keys = [_plain(batch.column(one)) for one in columns]
    rest = batch.drop_columns(list(columns))
    names = [f"key {i}" for i in range(len(keys))]
    rows = pa.array(range(batch.num_rows), pa.int64())
    groups = (
        pa.table([*keys, rows], names=[*names, "row"])
        .group_by(names, use_threads=False)  # threads would shuffle the rows
        .aggregate([("row", "list")])
    )
    found: list[tuple[str, pa.RecordBatch]] = []
    for i in range(groups.num_rows):
        values = tuple(groups.column(name)[i].as_py() for name in names)
        picked = rest if groups.num_rows == 1 else rest.take(groups.column("row_list")[i].values)
        found.append((partition_folder(where, columns, values), picked))
    return _merged(found)


def _merged(found: list[tuple[str, pa.RecordBatch]]) -> list[tuple[str, pa.RecordBatch]]:
    """Null and the empty string have one folder."""
    merged: dict[str, list[pa.RecordBatch]] = {}
    for folder, rows in found:
        merged.setdefault(folder, []).append(rows)
    return [
        (folder, pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces))
        for folder, pieces in merged.items()
    ]


def _plain(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
