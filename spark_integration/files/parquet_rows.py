"""Rows of Parquet splits as Arrow batches of the source's schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from coordlog.errors import SourceError

from .listing import InputFiles, ListedFile, SeenFile
from .payloads import FileSplit
from .schema_difference import schemas_differ

__all__ = ["ParquetRows", "parquet_row_groups", "settle_parquet_schema"]

_NEXT_STEP = (
    "see that it is a whole Parquet file; write one under another name and rename it when it is"
)


class ParquetRows:
    """The rows of one split from row `skip_rows` on, batch by batch.

    Call `close` when done, whatever happened.
    """

    def __init__(
        self,
        files: InputFiles,
        split: FileSplit,
        schema: pa.Schema,
        *,
        skip_rows: int,
        batch_rows: int,
    ) -> None:
        """Open the split's file, at the row group that holds the first row which is wanted.

        Raises:
            SourceError: The file cannot be read.
        """
        self._path, self._schema = split.path, schema
        self._parquet = _open(files, split)
        metadata = self._parquet.metadata
        end = metadata.num_row_groups if split.end < 0 else split.end
        self.bytes_read = sum(_group_bytes(metadata, i) for i in range(split.start, end))
        first = split.start
        while first < end and metadata.row_group(first).num_rows <= skip_rows:
            skip_rows -= metadata.row_group(first).num_rows
            first += 1
        self.skip_rows = skip_rows
        """Rows of what `next` gives that are still to be passed over."""
        groups = range(first, end)
        self._batches: Iterator[pa.RecordBatch] = (
            self._parquet.iter_batches(batch_rows, row_groups=groups, use_threads=False)
            if groups
            else iter(())
        )

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None after the last."""
        try:
            batch = next(self._batches, None)
        except Exception as error:  # whatever its file system raises
            raise SourceError(self._path, f"it cannot be read on: {error}", _NEXT_STEP) from error
        return None if batch is None else _conform(self._path, batch, self._schema)

    def close(self) -> None:
        """Let go of the file."""
        self._batches = iter(())
        self._parquet.close(force=True)


def settle_parquet_schema(
    files: InputFiles, listed: Sequence[ListedFile], given: pa.Schema | None
) -> pa.Schema:
    """`given`, or the first file's; every file's footer is read and must have those columns.

    Raises:
        SourceError: A file is not Parquet, lacks a column, or has it with another type that cannot
            be cast to.
    """
    settled = given
    for one in listed:
        parquet = _open(files, one)
        try:
            # Whether a column may hold nulls is not part of what must agree.
            found = pa.schema(pa.field(each.name, each.type) for each in parquet.schema_arrow)
        finally:
            parquet.close(force=True)
        if settled is None:
            settled = found
        if given is None and found != settled:
            raise schemas_differ(one.path, f"that of {listed[0].path}", found, settled)
        _conform(one.path, _no_rows(found), settled)
    assert settled is not None, "a listing has at least one file"
    return settled


def parquet_row_groups(
    files: InputFiles, one: ListedFile, split_bytes: int
) -> Sequence[tuple[int, int]]:
    """Runs of row groups of about `split_bytes` each, as (first, last + 1); at least one."""
    parquet = _open(files, one)
    try:
        metadata = parquet.metadata
        sizes = [_group_bytes(metadata, i) for i in range(metadata.num_row_groups)]
    finally:
        parquet.close(force=True)
    runs: list[tuple[int, int]] = []
    start, held = 0, 0
    for i, size in enumerate(sizes):
        if i > start and held + size > split_bytes:
            runs.append((start, i))
            start, held = i, 0
        held += size
    runs.append((start, len(sizes)))
    return runs


def _open(files: InputFiles, seen: SeenFile) -> pq.ParquetFile:
    path, opened = seen.path, files.open(seen, seeks=True)
    try:
        return pq.ParquetFile(opened, pre_buffer=False)
    except Exception as error:  # whatever its file system raises
        opened.close()
        size = "" if seen.size_bytes < 0 else f" ({seen.size_bytes} bytes)"
        raise SourceError(
            path, f"it cannot be read as Parquet{size}: {error}", _NEXT_STEP
        ) from error


def _group_bytes(metadata: pq.FileMetaData, group: int) -> int:
    row_group = metadata.row_group(group)
    return sum(row_group.column(i).total_compressed_size for i in range(row_group.num_columns))


def _conform(path: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for column in schema:
        index = batch.schema.get_field_index(column.name)
        if index < 0:
            raise SourceError(
                path,
                f"it has no column {column.name!r}; its columns are {batch.schema.names}",
                "give a schema of columns that all files have (`schema=`)",
            )
        values = batch.column(index)
        try:
            columns.append(values if values.type == column.type else values.cast(column.type))
        except (pa.ArrowException, ValueError) as error:
            raise SourceError(
                path,
                f"column {column.name!r} is of type {values.type}, not {column.type}: {error}",
                "give the column a type that holds the values of all files (`schema=`)",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)
