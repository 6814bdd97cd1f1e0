"""Rows of Parquet splits as Arrow batches of the source's schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from coordlog.errors import SourceError
from coordlog.spark_integration.casts.exact_cast import InexactError, exact_caster, refuse_nulls
from coordlog.spark_integration.files.formats.bad_rows import BadRow
from coordlog.spark_integration.files.formats.parquet_moments import ParquetInput
from coordlog.spark_integration.files.listing import InputFiles, ListedFile, SeenFile
from coordlog.spark_integration.files.missing import read_error
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.schema_difference import schemas_differ

_Cast = Callable[[pa.Array], pa.Array]

__all__ = ["ParquetRows", "parquet_row_groups", "settle_parquet_schema"]

_NEXT_STEP = (
    "check that it is a whole Parquet file; write one under another name and rename it when it is"
)
_ENCRYPTED: Final = "decrypt"
"""Word of Arrow's errors of encrypted files."""
_NO_RANGES: Final = "range requests"
"""Words of fsspec's error of a web server that sends files only from their start."""


class ParquetRows:
    """Rows of one split in batches. Whole row groups below `skip_rows` are not read.

    Call `close` at the end, also after an error.
    """

    def __init__(
        self,
        files: InputFiles,
        split: FileSplit,
        schema: pa.Schema,
        *,
        skip_rows: int,
        batch_rows: int,
        is_given: bool,
    ) -> None:
        """Open the split's file, at the row group that holds the first wanted row.

        Args:
            files: Opens the file.
            split: The file and its row groups to read.
            schema: Columns of the rows.
            skip_rows: Number of the split's first rows that are not wanted.
            batch_rows: Largest number of rows in a batch.
            is_given: True: the user has passed `schema`; its columns are selected and cast. False: the
                first files have determined `schema`, and this file must have the same one.

        Raises:
            SourceError: The file cannot be read, or has another schema.
        """
        self._path, self._schema = split.path, schema
        self._parquet = _open(files, split)
        try:
            file_schema = _check_settled(
                split.path, "settled before", self._parquet, schema, is_given=is_given
            )
            self._casts = _casts_of(split.path, file_schema, schema)
        except SourceError:
            self._parquet.close()
            raise
        metadata = self._parquet.metadata
        end = metadata.num_row_groups if split.end < 0 else split.end
        self.bytes_read = sum(_group_bytes(metadata, split.size_bytes)[split.start : end])
        first = split.start
        while first < end and metadata.row_group(first).num_rows <= skip_rows:
            skip_rows -= metadata.row_group(first).num_rows
            first += 1
        self.skip_rows = skip_rows
        self.bad_rows: Sequence[BadRow] = ()
        """Number of unwanted rows at the start of the next batches; the caller drops them."""
        self._row = self._parquet.first_row(first)
        self._batches: Iterator[pa.RecordBatch] = self._parquet.batches(
            file_schema, schema.names, batch_rows, range(first, end)
        )

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None after the last."""
        try:
            batch = next(self._batches, None)
        except SourceError:
            raise
        except Exception as error:  # whatever its file system raises
            raise _unreadable(
                self._path, f"it cannot be read on after row {self._row - 1}", error
            ) from error
        if batch is None:
            return None
        row, self._row = self._row, self._row + batch.num_rows
        return _conform(self._path, batch, self._schema, self._casts, row)

    def close(self) -> None:
        """Close the file."""
        self._batches = iter(())
        self._parquet.close()


def settle_parquet_schema(
    files: InputFiles, listed: Sequence[ListedFile], settled: pa.Schema | None, *, is_given: bool
) -> pa.Schema:
    """Schema for all files: `settled`, or that of the first file if `settled` is None.

    Reads the footer of every file: each must have the columns of that schema.

    Args:
        files: Opens the files.
        listed: At least one file.
        settled: Schema from the user or from an earlier listing, or None before either.
        is_given: True: `settled` is from the user. False: all files must have the same schema.

    Raises:
        SourceError: A file is not Parquet, lacks a column, or has a column whose type cannot be cast.
    """
    origin = f"that of {listed[0].path}" if settled is None else "settled before"
    for file in listed:
        parquet = _open(files, file)
        try:
            plain = None
            if settled is not None:
                plain = pa.schema(pa.field(column.name, column.type) for column in settled)
            file_schema = _check_settled(file.path, origin, parquet, plain, is_given=is_given)
        finally:
            parquet.close()
        settled = file_schema if settled is None else settled
        _conform(
            file.path, _no_rows(file_schema), settled, _casts_of(file.path, file_schema, settled), 1
        )
    assert settled is not None, "a listing has at least one file"
    return settled


def parquet_row_groups(
    files: InputFiles, file: ListedFile, split_bytes: int
) -> Sequence[tuple[int, int]]:
    """Ranges of row groups, each of about `split_bytes`, as (first, last + 1); at least one range."""
    parquet = _open(files, file)
    try:
        sizes = _group_bytes(parquet.metadata, file.size_bytes)
    finally:
        parquet.close()
    runs: list[tuple[int, int]] = []
    start, run_bytes = 0, 0
    for i, size in enumerate(sizes):
        if i > start and run_bytes + size > split_bytes:
            runs.append((start, i))
            start, run_bytes = i, 0
        run_bytes += size
    runs.append((start, len(sizes)))
    return runs


def _open(files: InputFiles, seen: SeenFile) -> ParquetInput:
    path, opened = seen.path, files.open(seen, seeks=True)
    try:
        return ParquetInput(path, opened)
    except Exception as error:  # whatever its file system raises
        opened.close()
        size = "" if seen.size_bytes < 0 else f" ({seen.size_bytes} bytes)"
        raise _unreadable(path, f"it cannot be read as Parquet{size}", error) from error


def _unreadable(path: str, problem: str, error: Exception) -> SourceError:
    """The error for a file; its next step depends on the cause."""
    next_step = _NEXT_STEP
    if _ENCRYPTED in str(error):
        next_step = "decrypt it: encrypted Parquet is not read"
    elif _NO_RANGES in str(error):
        next_step = (
            "it may be whole, but Parquet is read from its end: use a web server that sends ranges "
            "(`Accept-Ranges: bytes`), or copy it to a folder or a bucket"
        )
    elif isinstance(error, pa.ArrowNotImplementedError):
        problem += ", and may be whole: Arrow's reader has no way for what is in it"
        next_step = (
            "if rows are of many KiB, set a smaller `batch_rows=`; else write the file anew, with other "
            "types or encodings, or without that column"
        )
    return read_error(path, problem, next_step, error)


def _group_bytes(metadata: pq.FileMetaData, file_bytes: int) -> Sequence[int]:
    """Approximate bytes of each row group in the file: `file_bytes` in proportion to uncompressed sizes.

    The footer also has the compressed size of each column. It is not read, because Arrow would end the
    process if the footer is damaged or a column is encrypted.
    """
    groups = range(metadata.num_row_groups)
    unpacked = [max(0, metadata.row_group(i).total_byte_size) for i in groups]
    whole = sum(unpacked)
    if file_bytes < 0 or not whole:
        return unpacked
    return [file_bytes * size // whole for size in unpacked]


def _check_settled(
    path: str, origin: str, parquet: ParquetInput, settled: pa.Schema | None, *, is_given: bool
) -> pa.Schema:
    """The file's schema. It must equal `settled`, if there is one, unless the user has passed that schema."""
    # Nullability is not compared.
    file_schema = parquet.schema(settled, is_given=is_given)
    if settled is not None and not is_given and file_schema != settled:
        raise schemas_differ(path, origin, file_schema, settled)
    return file_schema


def _casts_of(path: str, file_schema: pa.Schema, schema: pa.Schema) -> Sequence[_Cast]:
    """A cast for each column of `schema`; `file_schema` must have each of these columns exactly once."""
    casts: list[_Cast] = []
    for column in schema:
        indices = file_schema.get_all_field_indices(column.name)
        if len(indices) != 1:
            raise SourceError(
                path,
                f"it has {len(indices) or 'no'} column{'s' if indices else ''} {column.name!r}; its "
                f"columns are {file_schema.names}",
                "set a schema of columns that all files have (`schema=`)",
            )
        casts.append(exact_caster(file_schema.field(indices[0]).type, column.type))
    return casts


def _conform(
    path: str, batch: pa.RecordBatch, schema: pa.Schema, casts: Sequence[_Cast], row: int
) -> pa.RecordBatch:
    """The columns of `schema`, cast without loss. `row`: number of the batch's first row in its file, from 1."""
    columns: list[pa.Array] = []
    for name, cast in zip(schema.names, casts, strict=True):
        values = batch.column(name)
        try:
            columns.append(refuse_nulls(cast(values), schema.field(name)))
        except InexactError as error:
            place = "" if error.row is None else f"row {row + error.row}, "
            target = schema.field(name)
            raise SourceError(
                path,
                f"{place}column {name!r} is of type {values.type}, not "
                f"{target.type}{'' if target.nullable else ' not null'}: {error}",
                "set a type for the column that holds the values of all files (`schema=`), and cast it "
                "in a transform",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([], column.type) for column in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
