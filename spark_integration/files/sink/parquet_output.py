"""One Parquet file that is being written, with its length and checksum."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.parquet as pq

from coordlog.errors import DestinationMisfitError
from coordlog.spark_integration.files.store.durable import new_checksum, refusal
from coordlog.spark_integration.files.store.store import StagedOutput

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer  # a module for type checkers alone

__all__ = ["ParquetOutput", "refused_columns"]


def refused_columns(schema: pa.Schema) -> list[str]:
    """Columns of types that Parquet lacks, each with its type and the reason."""
    if _refusal_of(schema) is None:
        return []
    refusals = [(column, _refusal_of(pa.schema([column]))) for column in schema]
    return [
        f"column {column.name!r} of {column.type} ({reason})"
        for column, reason in refusals
        if reason is not None
    ]


def _refusal_of(schema: pa.Schema) -> str | None:
    for column in schema:
        if (reason := _unread_part(column)) is not None:
            return reason
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except (pa.ArrowException, OSError) as error:
        return str(error)
    return None


def _unread_part(field: pa.Field) -> str | None:
    """Reason if Arrow would write a part of a column as values that other readers take for something else."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_duration(kind):
        return "Arrow writes a number, and other readers would read it without its unit"
    if b"variant" in (field.metadata or {}):
        return "Arrow writes the bytes of Spark's variant, and readers would read them without its kind"
    parts = range(kind.num_fields) if pa.types.is_nested(kind) else ()
    return next((reason for i in parts if (reason := _unread_part(kind.field(i)))), None)


class ParquetOutput:
    """A file under its staged name. After an error it takes nothing more: call `discard`."""

    def __init__(
        self, output: StagedOutput, *, where: str, schema: pa.Schema, compression: str
    ) -> None:
        self.rows = 0
        self._where = where
        self._bytes = _ChecksummedBytes(output)
        # Spark reads no timestamps finer than microseconds; losing what is finer is an error, not
        # rounding.
        self._parquet = pq.ParquetWriter(
            self._bytes, schema, compression=compression, coerce_timestamps="us"
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the row groups that have been written."""
        return self._bytes.size_bytes

    def write(self, table: pa.Table) -> None:
        """Write `table` as a row group."""
        try:
            self._parquet.write_table(table, row_group_size=table.num_rows)
        except OSError as error:
            raise refusal(self._where, "it cannot be written", error) from error
        except pa.ArrowException as error:
            raise DestinationMisfitError(
                self._where,
                f"rows cannot be written as Parquet: {error}",
                "cast the column in the transform",
            ) from error
        self.rows += table.num_rows

    def finish(self) -> tuple[int, str]:
        """Close the file. Returns size and checksum once it is durable."""
        try:
            self._parquet.close()
        except OSError as error:
            raise refusal(self._where, "it cannot be written", error) from error
        self._bytes.output.finish()
        return self._bytes.size_bytes, self._bytes.checksum.hexdigest()

    def discard(self) -> None:
        """Remove the file. Raises nothing."""
        self._bytes.is_ignoring = True
        with suppress(OSError, pa.ArrowException):
            self._parquet.close()
        self._bytes.output.discard()


class _ChecksummedBytes(io.RawIOBase):
    """Passes bytes on, and keeps their count and checksum."""

    def __init__(self, output: StagedOutput) -> None:
        self.output = output
        self.size_bytes = 0
        self.checksum = new_checksum()
        self.is_ignoring = False
        """Drop later writes: the Parquet library still writes when it closes."""

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def write(self, data: ReadableBuffer, /) -> int:
        piece = memoryview(cast("bytes", data))
        if not self.is_ignoring:
            self.output.write(piece)
            self.checksum.update(piece)
        self.size_bytes += piece.nbytes
        return piece.nbytes
