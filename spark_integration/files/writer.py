"""The subtask's side of the Parquet sink: hidden files, on disk before they are handed over."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from coordlog.errors import SinkError
from coordlog.schemas.payload import payload_type_of
from coordlog.subtask import Operator, OperatorContext, Snapshot

from .destination import Destination, StagedName
from .durable import make_folders, new_checksum, refusal, sink_errors, sync_folder
from .payloads import StagedFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer  # a module for type checkers alone

__all__ = ["ParquetFileWriter", "ParquetWriterOptions"]

_COMMITTABLE = payload_type_of(StagedFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetWriterOptions:
    """All that a writer needs; pickles."""

    root: Path
    compression: str
    row_group_rows: int
    row_group_bytes: int


class ParquetFileWriter(Operator):
    """Writes one file per interval: up to a barrier, the end of a split, or the end.

    An interval without rows makes no file. It keeps no state: a name is made of the attempt and a
    count, and an attempt's names are never another's. The file of an unfinished interval is removed
    by `close`, where that is still called.
    """

    def __init__(self, options: ParquetWriterOptions) -> None:
        self._options = options
        self._destination = Destination(options.root)
        self._context: OperatorContext | None = None
        self._schema: pa.Schema | None = None
        self._count = 0
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._held_bytes = 0
        self._file: _OpenFile | None = None

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """See that the destination is this job's, from this machine too."""
        self._context = context
        self._destination.check_owner(context.job_id)
        folder = self._options.root / self._name().staged
        with sink_errors(folder.parent, "it cannot be made"):
            make_folders(folder.parent)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Write `batch`; nothing goes on to a next operator."""
        if batch.num_rows:
            if self._schema is None:
                self._schema = self._destination.settle_schema(batch.schema)
            conformed = self._conform(batch, self._schema)
            self._held.append(conformed)
            self._held_rows += conformed.num_rows
            self._held_bytes += conformed.nbytes
            if (
                self._held_rows >= self._options.row_group_rows
                or self._held_bytes >= self._options.row_group_bytes
            ):
                self._write_row_group()
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """Close this interval's file."""
        return self._end_interval()

    def end_of_split(self, split_id: str) -> Snapshot:
        """Close this split's file."""
        return self._end_interval()

    def discard_split(self, split_id: str) -> None:
        """Remove this split's file."""
        file, self._file = self._file, None
        self._held, self._held_rows, self._held_bytes = [], 0, 0
        if file is not None:
            file.discard()
            self._count += 1

    def final_snapshot(self) -> Snapshot:
        """Close the last file."""
        return self._end_interval()

    def close(self) -> None:
        """Remove a file that was not handed over."""
        file, self._file, self._held = self._file, None, []
        if file is not None:
            file.discard()

    def _name(self) -> StagedName:
        context = self._context
        assert context is not None, "`open` comes first"
        return StagedName(
            job_id=context.job_id,
            driver_id=context.driver_id,
            subtask=context.subtask,
            attempt_number=context.attempt_number,
            count=self._count,
        )

    def _write_row_group(self) -> None:
        assert self._schema is not None, "rows are held only once there is a schema"
        if self._file is None:
            path = self._options.root / self._name().staged
            self._file = _OpenFile(path, self._schema, self._options.compression)
        self._file.write(pa.Table.from_batches(self._held, self._schema))
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _end_interval(self) -> Snapshot:
        if self._held:
            self._write_row_group()
        if self._file is None:
            return Snapshot()
        name = self._name()
        size_bytes, checksum = self._file.finish()
        staged = StagedFile(
            staged=name.staged,
            final=name.final,
            size_bytes=size_bytes,
            checksum=checksum,
            rows=self._file.rows,
        )
        self._file = None
        self._count += 1
        return Snapshot(committables=(_COMMITTABLE.encode(staged),))

    def _conform(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """`batch` with the types of all files here; pandas varies a type with a column's nulls."""
        if batch.schema.names != schema.names:
            raise self._misfit(f"columns {batch.schema.names}", f"columns {schema.names}")
        columns: list[pa.Array] = []
        for values, column in zip(batch.columns, schema, strict=True):
            if values.type == column.type:
                columns.append(values)
                continue
            if not _is_same_kind(values.type, column.type):
                raise self._misfit(f"column {column.name!r} of {values.type}", str(column.type))
            try:
                columns.append(values.cast(column.type))
            except pa.ArrowException as error:
                raise self._misfit(
                    f"column {column.name!r} of {values.type} ({error})", str(column.type)
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _misfit(self, got: str, expected: str) -> SinkError:
        return SinkError(
            str(self._options.root),
            f"a batch has {got}; all files here have {expected}",
            "cast it in the transform, or write to another destination; where nothing has been "
            f"published yet, removing {self._destination.schema_file} settles it anew",
        )


class _OpenFile:
    """One Parquet file that is being written.

    After an error it takes nothing more: call `discard`.
    """

    def __init__(self, path: Path, schema: pa.Schema, compression: str) -> None:
        self.rows = 0
        self._path = path
        with sink_errors(path, "it cannot be made"):
            self._bytes = _ChecksummedBytes(path.open("xb"))
        # Spark reads no timestamps finer than microseconds; losing what is finer is an error, not
        # rounding.
        self._parquet = pq.ParquetWriter(
            self._bytes, schema, compression=compression, coerce_timestamps="us"
        )

    def write(self, table: pa.Table) -> None:
        try:
            self._parquet.write_table(table, row_group_size=table.num_rows)
        except OSError as error:
            raise refusal(str(self._path), "it cannot be written", error) from error
        except pa.ArrowException as error:
            raise SinkError(
                str(self._path),
                f"rows cannot be written as Parquet: {error}",
                "cast the column in the transform",
            ) from error
        self.rows += table.num_rows

    def finish(self) -> tuple[int, str]:
        """Size and checksum, when both the content and the name are on disk."""
        with sink_errors(self._path, "it cannot be written"):
            self._parquet.close()
            self._bytes.sync_and_close()
            sync_folder(self._path.parent)
        return self._bytes.size_bytes, self._bytes.checksum.hexdigest()

    def discard(self) -> None:
        self._bytes.ignore_writes()
        with suppress(OSError, pa.ArrowException):
            self._parquet.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


class _ChecksummedBytes(io.RawIOBase):
    """Passes bytes on to a file and knows their count and checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self.size_bytes = 0
        self.checksum = new_checksum()
        self._file = file
        self._is_ignoring = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def write(self, data: ReadableBuffer, /) -> int:
        piece = memoryview(cast("bytes", data))
        if not self._is_ignoring:
            self._file.write(piece)
            self.checksum.update(piece)
        self.size_bytes += piece.nbytes
        return piece.nbytes

    def sync_and_close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def ignore_writes(self) -> None:
        """Let the Parquet library end in peace: what it still writes is given up."""
        self._is_ignoring = True
        with suppress(OSError):
            self._file.close()


def _is_same_kind(one: pa.DataType, other: pa.DataType) -> bool:
    types = pa.types
    return types.is_null(one) or any(
        is_kind(one) and is_kind(other)
        for is_kind in (
            lambda t: types.is_integer(t) or types.is_floating(t),
            lambda t: types.is_string(t) or types.is_large_string(t) or types.is_dictionary(t),
            types.is_timestamp,
            types.is_decimal,
        )
    )
