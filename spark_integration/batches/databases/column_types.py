"""Columns of a database's table, and rows in their types, so that the database changes no value.

PostgreSQL rounds a numeric, drops the zone of a moment that goes into a `timestamp`, and takes a wall clock for one of
the session's zone; SQLite converts texts that look like numbers to numbers, and decimals to rounded doubles. None of
this raises an error. So each column is first cast, by the rule of `exact_cast`, to the type of its table column.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from coordlog.errors import SinkError
from coordlog.spark_integration.casts.exact_cast import InexactError, exact_cast, exact_from_text

__all__ = ["column_types", "exact_rows"]

_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_TIME: Final = re.compile(r"(timestamp|time)(?:\((\d)\))? (with|without) time zone")
_TYPES: Final = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
}
_LIKE_A_NUMBER: Final = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
_NUMBERS: Final = frozenset({"INT", "NUM", "REAL"})
"""Affinities of SQLite that convert texts to numbers."""


def column_types(
    connection: object,
    cursor: Any,  # noqa: ANN401, each module has its own
    table: str,
    names: Sequence[str],
) -> Mapping[str, str]:
    """Type of each column in the words of its database; for SQLite the affinity.

    Args:
        connection: Connection of `sqlite3`, or of a module for PostgreSQL.
        cursor: Cursor of that connection.
        table: A staging table, quoted, with its schema; its columns have the types of the target's.
        names: Columns of that table.
    """
    if isinstance(connection, sqlite3.Connection):
        cursor.execute(f"PRAGMA table_info({table})")
        types = {str(row[1]): str(row[2]) for row in cursor.fetchall()}
    else:
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0",
            (table,),
        )
        types = {str(row[0]): str(row[1]) for row in cursor.fetchall()}
    return {name: types[name] for name in names}


def exact_rows(
    where: str,
    rows: pa.RecordBatch | pa.Table,
    types: Mapping[str, str],
    *,
    is_sqlite: bool,
) -> pa.Table:
    """The rows with each column in a type that its database stores unchanged.

    Args:
        where: The destination, for errors.
        rows: Columns in the order of `types`.
        types: Types by column, as of `column_types`.
        is_sqlite: Whether the types are affinities of SQLite.

    Raises:
        SinkError: A value would change in the table; with its column, its row and both types.
    """
    if rows.num_columns != len(types):
        raise SinkError(
            where,
            f"rows cannot be staged: they have the columns {rows.schema.names}, not {list(types)}",
            "write the same columns in each batch of the frame",
        )
    columns: list[pa.Array] = []
    for number, (name, kind) in enumerate(types.items()):
        values = rows.column(number)
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        try:
            columns.append(_in_sqlite(whole, kind) if is_sqlite else _in_postgresql(whole, kind))
        except InexactError as error:
            place = "" if error.row is None else f"row {error.row + 1} of a task's batch, "
            raise SinkError(
                where,
                f"{place}column {name!r} is {whole.type} and in the table {kind or 'BLOB'}: {error}",
                "cast the column in the frame to the table's type, or change the table",
            ) from error
    return pa.table(columns, names=list(types))


def _in_postgresql(values: pa.Array, kind: str) -> pa.Array:
    target = _arrow_type(kind)
    return values if target is None else exact_cast(values, target)


def _arrow_type(kind: str) -> pa.DataType | None:
    """Arrow type of a column of PostgreSQL; None for a column that PostgreSQL reads from text exactly or refuses."""
    if kind.startswith("character"):
        return pa.string()
    if (number := _NUMERIC.fullmatch(kind)) is not None:
        precision, scale = int(number[1]), int(number[2])
        is_in_arrow = precision <= 76 and scale <= precision  # noqa: PLR2004, Arrow's widest
        return pa.decimal256(precision, scale) if is_in_arrow else None
    if (time := _TIME.fullmatch(kind)) is None:
        return _TYPES.get(kind)
    digits = 6 if time[2] is None else int(time[2])
    unit = "us" if digits == 6 else "ms" if digits >= 3 else "s"  # noqa: PLR2004, of a second
    if time[1] == "timestamp":
        return pa.timestamp(unit, "UTC" if time[3] == "with" else None)
    if time[3] == "with":
        return None
    return pa.time64("us") if unit == "us" else pa.time32(unit)


def _in_sqlite(values: pa.Array, affinity: str) -> pa.Array:
    """Values for SQLite, which stores 64-bit integers, doubles, texts and bytes; decimals and times are texts there."""
    types, kind = pa.types, values.type
    if types.is_dictionary(kind):
        return _in_sqlite(values.dictionary_decode(), affinity)
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        if affinity == "TEXT":
            raise _inexact(values, "TEXT", "they are of different kinds")
        if types.is_integer(kind):
            whole = exact_cast(values, pa.int64())
            return exact_cast(whole, pa.float64()) if affinity == "REAL" else whole
        if types.is_floating(kind):
            is_nan = pc.call_function("is_nan", [values])
            _refuse(values, is_nan, affinity, "SQLite makes null of it")
        return values
    if types.is_decimal(kind) and affinity in _NUMBERS:
        # SQLite converts the text to a double, which must have the same decimal digits.
        exact_from_text(values.cast(pa.string()), pa.float64())
    if is_text and affinity in _NUMBERS:
        is_like = pc.call_function(
            "match_substring_regex", [values], pc.MatchSubstringOptions(_LIKE_A_NUMBER)
        )
        _refuse(values, is_like, affinity, "SQLite makes a number of it")
    return values


def _refuse(values: pa.Array, is_refused: pa.Array, affinity: str, reason: str) -> None:
    row = pc.index(is_refused, pa.scalar(value=True)).as_py()
    if row >= 0:
        raise _inexact(values, affinity, reason, row)


def _inexact(values: pa.Array, affinity: str, reason: str, row: int | None = None) -> InexactError:
    value = None if row is None else values[row].as_py()
    return InexactError("", row, value, str(values.type), affinity or "BLOB", reason)
