"""Counts rows and computes a checksum of each column: of the CSV input, and of the output.

The two share only the checksum. That of the input uses Python's module `csv` and nothing of
coordlog; that of the output reads the Parquet files with pyarrow, as any reader would.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

__all__ = ["ColumnTally", "Tally", "differences", "tally_csv", "tally_parquet"]

ROW: Final = "(whole rows)"
"""Name of the checksum of whole rows."""

_CHUNK_ROWS: Final = 4096
_MODULUS: Final = 2**64
_NULL: Final = "\x00"
_BETWEEN: Final = "\x1f"


@dataclass(frozen=True, slots=True)
class ColumnTally:
    """Tally of a column; independent of the order of the rows."""

    checksum: int
    """Sum of the values' 64-bit BLAKE2b, modulo 2**64; a null adds that of a NUL character."""
    nulls: int


@dataclass(frozen=True, slots=True)
class Tally:
    """Tally of a table; independent of the order of the rows."""

    rows: int
    columns: Mapping[str, ColumnTally]


def tally_csv(source: TextIO, *, null: str) -> Tally:
    """Tally of a CSV file with a header.

    Args:
        source: The file, opened with `newline=""`.
        null: The text of a null.
    """
    reader = csv.reader(source)
    counting = _Counting(next(reader))
    while rows := list(itertools.islice(reader, _CHUNK_ROWS)):
        columns = zip(*rows, strict=True)
        counting.add([[None if cell == null else cell for cell in column] for column in columns])
    return counting.tally()


def tally_parquet(folder: Path) -> Tally:
    """Tally of the Parquet files in a folder, without hidden names."""
    dataset = ds.dataset(folder, format="parquet", ignore_prefixes=[".", "_"])
    counting = _Counting(dataset.schema.names)
    for batch in dataset.to_batches(batch_size=_CHUNK_ROWS):
        counting.add([_canonical(column).to_pylist() for column in batch.columns])
    return counting.tally()


def differences(expected: Tally, actual: Tally) -> list[str]:
    """Differences of two tables, a line each; empty if there are none."""
    lines = []
    if expected.rows != actual.rows:
        lines.append(f"rows: {expected.rows:,} expected, {actual.rows:,} found")
    for name in sorted({*expected.columns, *actual.columns}):
        wanted, column = expected.columns.get(name), actual.columns.get(name)
        if wanted is None or column is None:
            lines.append(f"column {name}: {'not expected' if wanted is None else 'missing'}")
        elif wanted != column:
            lines.append(
                f"column {name}: checksum {wanted.checksum:016x} and {wanted.nulls:,} nulls "
                f"expected, {column.checksum:016x} and {column.nulls:,} found"
            )
    return lines


class _Counting:
    """Adds up a table, some rows at a time; each distinct value of a column is hashed once."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        # Whole rows are joined in the order of the names, because files may have any order of columns.
        self._order = sorted(range(len(names)), key=lambda index: names[index])
        self._counts: list[Counter[str | None]] = [Counter() for _ in names]
        self._rows, self._row_sum = 0, 0

    def add(self, columns: Sequence[Sequence[str | None]]) -> None:
        """Add some rows, as columns."""
        for counts, values in zip(self._counts, columns, strict=True):
            counts.update(values)
        texts = [
            [_NULL if value is None else value for value in columns[index]] for index in self._order
        ]
        for row in zip(*texts, strict=True):
            self._row_sum += _hash(_BETWEEN.join(row))
            self._rows += 1

    def tally(self) -> Tally:
        """The tally of all added rows."""
        columns = {
            name: _column(counts) for name, counts in zip(self._names, self._counts, strict=True)
        }
        columns[ROW] = ColumnTally(checksum=self._row_sum % _MODULUS, nulls=0)
        return Tally(rows=self._rows, columns=columns)


def _column(counts: Mapping[str | None, int]) -> ColumnTally:
    total = sum(_hash(_NULL if value is None else value) * n for value, n in counts.items())
    return ColumnTally(checksum=total % _MODULUS, nulls=counts.get(None, 0))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _canonical(column: pa.Array) -> pa.Array:
    """The column as the text that the CSV file had: whole numbers, times in UTC."""
    if pa.types.is_timestamp(column.type):
        return pc.strftime(column.cast(pa.timestamp("s", "UTC")), "%Y-%m-%dT%H:%M:%SZ")  # pyright: ignore[reportAttributeAccessIssue]
    if pa.types.is_floating(column.type):
        column = column.cast(pa.int64())
    return column.cast(pa.string())
