"""Parquet files whose timestamps may be of the old type INT96, which Spark writes by default.

Such a timestamp has no flag for a zone. Spark writes and reads a point in time, and so does this module. A given schema
may have a wall clock instead: that of UTC.

Arrow reads INT96 in nanoseconds, where years before 1677 and after 2262 become others, or in microseconds, where
further digits are cut. So it reads in both units, and a value with further digits is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from coordlog.errors import SourceError
from coordlog.spark_integration.files.formats.parquet_calendar import old_calendar

__all__ = ["ParquetInput"]

_INT96: Final = "INT96"
_MOMENT: Final = pa.timestamp("us", tz="UTC")


class ParquetInput:
    """An open Parquet file. Call `close` at the end."""

    def __init__(self, path: str, opened: Any) -> None:  # noqa: ANN401, a file of any file system
        self._path = path
        self._plain = pq.ParquetFile(opened, pre_buffer=False)
        self.metadata = self._plain.metadata
        columns = self._plain.schema
        has_int96 = any(columns.column(i).physical_type == _INT96 for i in range(len(columns)))
        self._micros: pq.ParquetFile | None = None
        if has_int96:
            self._micros = pq.ParquetFile(
                opened,
                pre_buffer=False,
                metadata=self.metadata,
                coerce_int96_timestamp_unit="us",
            )
        self._old_calendar = old_calendar(self.metadata.metadata, has_int96=has_int96)

    def close(self) -> None:
        """Close the file."""
        self._plain.close(force=True)

    def schema(self, wanted: pa.Schema | None, *, is_given: bool) -> pa.Schema:
        """Columns of the file; their nullability is left out.

        Args:
            wanted: Schema that the rows are to have; None if it is not settled yet.
            is_given: Whether the user has passed `wanted`.
        """
        plain = pa.schema(pa.field(c.name, c.type) for c in self._plain.schema_arrow)
        if self._micros is None or (not is_given and plain == wanted):  # of an older version
            return plain
        micros = self._micros.schema_arrow
        return pa.schema(
            pa.field(
                column.name,
                _moments(
                    column.type,
                    micros.field(i).type,
                    _type_of(wanted, column.name) if is_given else None,
                ),
            )
            for i, column in enumerate(plain)
        )

    def batches(
        self, schema: pa.Schema, columns: Sequence[str], batch_rows: int, groups: range
    ) -> Iterator[pa.RecordBatch]:
        """Rows of some row groups. `schema`: the result of `schema`. `columns`: each of them once in the file.

        Raises:
            SourceError: A timestamp has digits beyond microseconds, or is no timestamp of its type; or a value is a day
                of another calendar; or Arrow has another number of rows than the file.
        """
        first = row = self.first_row(groups.start)
        for plain, moments in self._read(columns, batch_rows, groups):
            batch = plain if moments is None else self._exact(plain, moments, schema, row)
            self._check_calendar(batch, row)
            yield batch
            row += batch.num_rows
        self._check_count(row - first, groups)

    def first_row(self, group: int) -> int:
        """Number of the first row of a row group, 1 first."""
        return 1 + sum(int(self.metadata.row_group(i).num_rows) for i in range(group))

    def _check_count(self, count: int, groups: range) -> None:
        """Arrow leaves out rows of some nested columns without an error."""
        first, end = self.first_row(groups.start), self.first_row(groups.stop)
        if count != end - first:
            raise SourceError(
                self._path,
                f"the number of rows from row {first} on is {end - first}, and Arrow reads {count}",
                "write the file anew, with other options of its pages, or without its nested columns",
            )

    def _check_calendar(self, batch: pa.RecordBatch, row: int) -> None:
        calendar = self._old_calendar
        if calendar is None:
            return
        old = [] if self._micros is None else self._old_of(batch.schema.names, self._micros)
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            early = calendar.early_row(values, has_int96=name in old)
            if early is not None:
                raise SourceError(
                    self._path,
                    f"row {row + early}, column {name!r}: the value is before 1582-10-15, or a time before 1900, and "
                    "Spark wrote the file in the calendar of Spark 2: it is another day here",
                    "write the file anew with Spark 3 or later, with "
                    "spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED and int96RebaseModeInWrite=CORRECTED",
                )

    def _read(
        self, columns: Sequence[str], batch_rows: int, groups: range
    ) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
        """Batches as Arrow reads them, with their columns of INT96 in microseconds; None without such columns."""
        if not groups:
            return
        plain = self._plain.iter_batches(
            batch_rows, row_groups=groups, columns=columns, use_threads=False
        )
        if self._micros is None or not (old := self._old_of(columns, self._micros)):
            yield from ((batch, None) for batch in plain)
            return
        micros = self._micros.iter_batches(
            batch_rows, row_groups=groups, columns=old, use_threads=False
        )
        held = next(micros, None)
        if held is None:  # no rows
            return
        for batch in plain:
            while held.num_rows < batch.num_rows:  # the batches differ if 2 GiB of texts end one
                held = pa.concat_batches([held, next(micros)])
            yield batch, held.slice(0, batch.num_rows)
            held = held.slice(batch.num_rows)

    def _old_of(self, columns: Sequence[str], micros: pq.ParquetFile) -> list[str]:
        """Those of the columns that have timestamps of type INT96, at any depth."""
        plain, other = self._plain.schema_arrow, micros.schema_arrow
        return [name for name in columns if plain.field(name).type != other.field(name).type]

    def _exact(
        self, batch: pa.RecordBatch, moments: pa.RecordBatch, schema: pa.Schema, row: int
    ) -> pa.RecordBatch:
        """The batch with its columns of INT96 in the types of `schema`. `row`: number of its first row."""
        columns: list[pa.Array] = []
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if name not in moments.schema.names:
                columns.append(values)
                continue
            micros = moments.column(name)
            if _is_finer(values, micros):
                first = next(
                    i
                    for i in range(len(values))
                    if _is_finer(values.slice(i, 1), micros.slice(i, 1))
                )
                raise self._refusal(
                    f"row {row + first}, column {name!r}: a timestamp of type INT96 has digits beyond microseconds"
                )
            try:
                columns.append(micros.cast(schema.field(name).type))
            except pa.ArrowInvalid as error:
                raise self._refusal(
                    f"column {name!r}: a timestamp of type INT96 after row {row - 1} is not in the range of "
                    f"{schema.field(name).type} ({error})"
                ) from error
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _refusal(self, problem: str) -> SourceError:
        return SourceError(
            self._path, problem, "write the column anew with timestamps of microseconds"
        )


def _moments(plain: pa.DataType, micros: pa.DataType, wanted: pa.DataType | None) -> pa.DataType:
    """`plain` with moments for INT96, in which alone it differs from `micros`; with wall clocks where `wanted` has."""
    if plain == micros:
        return plain
    if pa.types.is_timestamp(plain):
        is_clock = wanted is not None and pa.types.is_timestamp(wanted) and wanted.tz is None
        return micros if is_clock else _MOMENT
    parts = [
        plain.field(i).with_type(
            _moments(plain.field(i).type, micros.field(i).type, _part_of(wanted, plain, i))
        )
        for i in range(plain.num_fields)
    ]
    if pa.types.is_struct(plain):
        return pa.struct(parts)
    if pa.types.is_map(plain):
        entries = parts[0].type
        return pa.map_(entries.field(0), entries.field(1))
    if pa.types.is_fixed_size_list(plain):
        return pa.list_(parts[0], plain.list_size)
    return pa.large_list(parts[0]) if pa.types.is_large_list(plain) else pa.list_(parts[0])


def _type_of(schema: pa.Schema | pa.StructType | None, name: str) -> pa.DataType | None:
    """Type of the one column or field of this name; None without one."""
    numbers = [] if schema is None else schema.get_all_field_indices(name)
    return None if schema is None or len(numbers) != 1 else schema.field(numbers[0]).type


def _part_of(wanted: pa.DataType | None, plain: pa.DataType, number: int) -> pa.DataType | None:
    """Type of a part of `plain` within `wanted`, if that is of the same kind; of a struct, the field of its name."""
    if wanted is None or not pa.types.is_nested(wanted):
        return None
    if pa.types.is_struct(wanted) or pa.types.is_struct(plain):
        are_structs = pa.types.is_struct(wanted) and pa.types.is_struct(plain)
        return _type_of(wanted, plain.field(number).name) if are_structs else None
    is_alike = pa.types.is_map(wanted) == pa.types.is_map(plain)
    return wanted.field(number).type if is_alike else None


def _is_finer(plain: pa.Array, micros: pa.Array) -> bool:
    """Whether a timestamp has digits that `micros` has not. Both have wrapped in nanoseconds in the same way."""
    if plain.type == micros.type:
        return False
    if pa.types.is_struct(plain.type):
        return any(_is_finer(*pair) for pair in zip(plain.flatten(), micros.flatten(), strict=True))
    if pa.types.is_map(plain.type):
        plain, micros = (part.cast(pa.list_(part.type.field(0))) for part in (plain, micros))
    if pa.types.is_nested(plain.type):
        return _is_finer(plain.flatten(), micros.flatten())
    return not bool(micros.cast(plain.type, safe=False).equals(plain))
