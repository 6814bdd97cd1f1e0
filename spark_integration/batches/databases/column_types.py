"""Columns of a database's table, and rows in their types, so that the database changes no value.

PostgreSQL rounds a numeric, drops the zone of a moment that goes into a `timestamp`, and takes a wall clock for one of
the session's zone; SQLite converts texts that look like numbers to numbers, and decimals to rounded doubles. None of
this raises an error. So each column is first cast, by the rule of `exact_cast`, to the type of its table column.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from coordlog.errors import SinkError
from coordlog.spark_integration.casts.exact_cast import (
    InexactError,
    exact_cast,
    exact_from_text,
    is_list,
)
from coordlog.spark_integration.casts.exact_numbers import is_number

__all__ = ["column_types", "exact_rows", "refuse_one_twice", "table_types"]

_COLUMNS: Final = """
WITH RECURSIVE columns (name, type, modifier, suffix, depth) AS (
    SELECT attname::text, atttypid, atttypmod, ''::text, 0 FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT name, CASE WHEN typtype = 'd' THEN typbasetype ELSE typelem END,
        CASE WHEN typtype = 'd' THEN typtypmod ELSE -1 END,
        suffix || CASE WHEN typtype = 'd' THEN '' ELSE '[]' END, depth + 1
    FROM columns JOIN pg_type AS outside ON outside.oid = type
    WHERE typtype = 'd' OR (typcategory = 'A' AND EXISTS (
        SELECT FROM pg_type AS element WHERE element.oid = outside.typelem AND element.typtype = 'd'))
)
SELECT DISTINCT ON (name) name, format_type(type, modifier) || suffix FROM columns ORDER BY name, depth DESC
"""
"""Columns of a table of PostgreSQL. A domain has a type of its own for the catalog, and rounds like its base type."""
_NUMERIC: Final = re.compile(r"numeric\((\d+),(-?\d+)\)")
_DIGITS: Final = 76
"""Most digits of a number of Arrow."""
_LIMITED: Final = re.compile(r"character(?: varying)?\((\d+)\)")
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
    "oid": pa.uint32(),
}
_CHANGED: Final = re.compile(
    r'money|name|"char"|interval\W.*|time(\(\d\))? with time zone|numeric\(\d+,-\d+\)'
)
"""Types into which PostgreSQL rounds or cuts values, or adds the zone of the session."""
_OF_NUMBERS: Final = frozenset({"numeric", "json", "jsonb"})
"""Types of PostgreSQL that keep each number, though they have no type in Arrow."""
_LIKE_A_NUMBER: Final = r"^[\s\v]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[\s\v]*$"
_NUMBERS: Final = frozenset({"INT", "NUM", "REAL"})
"""Affinities of SQLite that convert texts to numbers."""
_AFFINITIES: Final = {
    "INT": ("INT",),
    "TEXT": ("CHAR", "CLOB", "TEXT"),
    "": ("BLOB",),
    "REAL": ("REAL", "FLOA", "DOUB"),
}
"""Parts of declared types, by affinity; the first that matches counts."""
_NAME: Final = re.compile(r'^((?:"(?:[^"]|"")*"\.)?)(.*)$', re.DOTALL)
"""Schema of a name, quoted, with its dot; and the rest."""
_ROW_NUMBERS: Final = ("rowid", "oid", "_rowid_")
"""Names of a column that SQLite's tables have without a declaration."""


def column_types(
    connection: object,
    cursor: Any,  # noqa: ANN401, each module has its own
    where: str,
    table: str,
    names: Sequence[str],
) -> Mapping[str, str]:
    """Type of each of these columns of a table, as of `table_types`; `names` may differ from SQLite's in case.

    Raises:
        SinkError: PostgreSQL has shortened a name.
    """
    types = table_types(connection, cursor, table)
    if isinstance(connection, sqlite3.Connection):
        return {name: types[name.lower()] for name in names}
    for name in names:
        if name not in types:
            raise SinkError(
                where,
                f"the frame's column {name!r} is longer than the names of PostgreSQL, which has cut it",
                "give it the name that the column has in the table",
            )
    return {name: types[name] for name in names}


def table_types(
    connection: object,
    cursor: Any,  # noqa: ANN401, each module has its own
    table: str,
) -> Mapping[str, str]:
    """Type of each column in the words of its database; for SQLite the affinity, by the name in lower case.

    Args:
        connection: Connection of `sqlite3`, or of a module for PostgreSQL.
        cursor: Cursor of that connection.
        table: Name, quoted, with its schema. A staging table has the types of the target's columns.
    """
    if isinstance(connection, sqlite3.Connection):
        schema, plain = _NAME.findall(table)[0]
        cursor.execute(f"PRAGMA {schema}table_list({plain})")
        is_strict = any(bool(row[5]) for row in cursor.fetchall())
        columns = {
            str(row[1]).lower(): _affinity(str(row[2]), is_strict=is_strict)
            for row in _columns_of(cursor, table)
        }
        return {**dict.fromkeys(_ROW_NUMBERS, "INT"), **columns}
    cursor.execute(_COLUMNS, (table,))
    return {str(row[0]): str(row[1]) for row in cursor.fetchall()}


def refuse_one_twice(
    connection: object,
    cursor: Any,  # noqa: ANN401, each module has its own
    where: str,
    table: str,
    names: Sequence[str],
) -> None:
    """Refuse columns of a frame that are one column of a table of SQLite, which would take the last value.

    PostgreSQL itself refuses them. SQLite's names have no case, and an `INTEGER PRIMARY KEY` is the row's number.

    Raises:
        SinkError: With two of the names.
    """
    if not isinstance(connection, sqlite3.Connection):
        return
    rows = _columns_of(cursor, table)
    keys = [row for row in rows if row[5]]
    declared = {str(row[1]).lower() for row in rows}
    numbers = {name for name in _ROW_NUMBERS if name not in declared}
    if len(keys) == 1 and str(keys[0][2]).upper() == "INTEGER":
        numbers.add(str(keys[0][1]).lower())
    first: dict[str, str] = {}
    for name in names:
        lower = name.lower()
        column = _ROW_NUMBERS[0] if lower in numbers else lower
        if column in first:
            raise SinkError(
                where,
                f"the frame's columns {first[column]!r} and {name!r} are one column of the table",
                "write one of them",
            )
        first[column] = name


def _columns_of(cursor: Any, table: str) -> Sequence[Sequence[object]]:  # noqa: ANN401, as above
    """Columns of a table of SQLite, as of its `table_info`."""
    schema, plain = _NAME.findall(table)[0]
    cursor.execute(f"PRAGMA {schema}table_info({plain})")
    return list(cursor.fetchall())


def _affinity(declared: str, *, is_strict: bool) -> str:
    """Affinity of a column of SQLite, by its rules for declared types; empty for BLOB, and for a strict table's ANY."""
    name = declared.upper()
    if is_strict and name == "ANY":
        return ""
    for affinity, parts in _AFFINITIES.items():
        if any(part in name for part in parts):
            return affinity
    return "NUM" if name else ""


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
            exact = _in_sqlite(whole, kind) if is_sqlite else _in_postgresql(whole, kind)
            _refuse_beyond(exact, kind)
            columns.append(exact)
        except InexactError as error:
            place = "" if error.row is None else f"row {error.row + 1} of a task's batch, "
            raise SinkError(
                where,
                f"{place}column {name!r} is {whole.type} and in the table {kind or 'BLOB'}: {error}",
                "cast the column in the frame to the table's type, or change the table",
            ) from error
    return pa.table(columns, names=list(types))


def _in_postgresql(values: pa.Array, kind: str) -> pa.Array:
    element = kind.rstrip("[]")
    if _CHANGED.fullmatch(element):
        raise InexactError(
            "",
            None,
            None,
            str(values.type),
            kind,
            "PostgreSQL would change values without an error",
        )
    target = _arrow_type(element)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    _refuse_other_shape(values, kind, is_array=element != kind)
    if target is None:
        _refuse_other_kind(values, kind, element)
        return values
    cast = exact_cast(values, target if element == kind else _array_type(values.type, target))
    if (length := _LIMITED.fullmatch(element)) is not None:
        _refuse_long(values, cast, kind, int(length[1]))
    return cast


def _refuse_other_shape(values: pa.Array, kind: str, *, is_array: bool) -> None:
    """Refuse lists for a column without arrays, and lists in lists that are null or empty.

    PostgreSQL reads the text of a list: `{}` is an empty object of JSON, and of `{{},{}}` and `{NULL}` it keeps one
    dimension.
    """
    if not pa.types.is_nested(values.type):
        return
    if not (is_array and is_list(values.type)):
        raise _inexact(values, kind, "they are of different kinds")
    inner = values.flatten()
    while is_list(inner.type):
        sizes = pc.call_function("list_value_length", [inner])
        if inner.null_count or pc.index(sizes, pa.scalar(0, sizes.type)).as_py() >= 0:
            raise _inexact(values, kind, "PostgreSQL has no null and no empty list in a list")
        inner = inner.flatten()


def _refuse_other_kind(values: pa.Array, kind: str, element: str) -> None:
    """Refuse what is no text for a column of a type that is not known here: it would be read as a text.

    So 5 would be five seconds of an `interval`, and -1 the largest `xid`.
    """
    inner = values
    while is_list(inner.type):
        inner = inner.flatten()
    types, source = pa.types, inner.type
    is_text = types.is_string(source) or types.is_large_string(source) or types.is_null(source)
    is_same = (
        is_number(source)
        if element in _OF_NUMBERS
        else types.is_duration(source) and element == "interval"
    )
    if not (is_text or is_same):
        raise _inexact(values, kind, "PostgreSQL would read it as a text")


def _refuse_long(values: pa.Array, texts: pa.Array, kind: str, most: int) -> None:
    """Refuse texts above a limit: PostgreSQL does, too, unless it can cut them by blanks at their end."""
    is_plain = not pa.types.is_list(texts.type)
    while pa.types.is_list(texts.type):
        texts = texts.flatten()
    is_long = pc.call_function(
        "greater", [pc.call_function("utf8_length", [texts]), pa.scalar(most, pa.int32())]
    )
    row = pc.index(is_long, pa.scalar(value=True)).as_py()
    if row >= 0:
        index, value = (row, values[row].as_py()) if is_plain else (None, None)
        reason = f"a text has more than {most} characters"
        raise InexactError("", index, value, str(values.type), kind, reason)


def _array_type(source: pa.DataType, element: pa.DataType) -> pa.DataType:
    """Lists of `element`, nested as those of `source`, one at least."""
    is_nested = pa.types.is_list(source) and pa.types.is_list(source.value_type)
    return pa.list_(_array_type(source.value_type, element) if is_nested else element)


def _arrow_type(kind: str) -> pa.DataType | None:
    """Arrow type of a column of PostgreSQL; None for a column that PostgreSQL reads from text exactly or refuses."""
    if kind.startswith("character"):
        return pa.string()
    if (number := _NUMERIC.fullmatch(kind)) is not None:
        precision, scale = int(number[1]), int(number[2])
        # Of a scale above the precision PostgreSQL itself refuses the numbers that are too large.
        digits = max(precision, scale)
        if (
            digits > _DIGITS
        ):  # of Arrow's widest numbers the half is left for fractions, and Spark has no more
            digits, scale = _DIGITS, min(scale, _DIGITS // 2)
        return pa.decimal256(digits, scale)
    if (time := _TIME.fullmatch(kind)) is None:
        return _TYPES.get(kind)
    digits = 6 if time[2] is None else int(time[2])
    unit = "us" if digits == 6 else "ms" if digits >= 3 else "s"  # noqa: PLR2004, of a second
    if time[1] == "timestamp":
        return pa.timestamp(unit, "UTC" if time[3] == "with" else None)
    return pa.time64("us") if unit == "us" else pa.time32(unit)


def _in_sqlite(values: pa.Array, affinity: str) -> pa.Array:
    """Values for SQLite, which stores 64-bit integers, doubles, texts and bytes; decimals and times are texts there."""
    types, kind = pa.types, values.type
    if types.is_dictionary(kind):
        return _in_sqlite(values.dictionary_decode(), affinity)
    if types.is_nested(kind) or types.is_duration(kind):
        raise _inexact(values, affinity, "SQLite has no such type")
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
        return _doubles_of(values, affinity)
    if is_text and affinity in _NUMBERS:
        is_like = pc.call_function(
            "match_substring_regex", [values], pc.MatchSubstringOptions(_LIKE_A_NUMBER)
        )
        _refuse(values, is_like, affinity, "SQLite makes a number of it")
    if types.is_timestamp(kind) and kind.tz is not None:
        # The zone is the session's: in another session the same moment would be another text.
        return values.cast(pa.timestamp(kind.unit, "UTC"))
    return values


def _doubles_of(values: pa.Array, affinity: str) -> pa.Array:
    """Decimals as doubles, which must show the same decimal digits: SQLite has no other fractions."""
    doubles = exact_from_text(values.cast(pa.string()), pa.float64())
    pairs = zip(doubles.to_pylist(), values.to_pylist(), strict=True)
    is_other = [double is not None and Decimal(repr(double)) != exact for double, exact in pairs]
    _refuse(values, pa.array(is_other, pa.bool_()), affinity, "a double does not keep its digits")
    return doubles


def _refuse_beyond(values: pa.Array, kind: str) -> None:
    """Refuse dates and timestamps outside of Python's years: rows are inserted as values of Python."""
    inner = values
    while is_list(inner.type):
        inner = inner.flatten()
    if not (pa.types.is_date(inner.type) or pa.types.is_timestamp(inner.type)):
        return
    for extreme in pc.call_function("min_max", [inner]).values():
        try:
            extreme.as_py()
        except (OverflowError, ValueError) as error:
            row = pc.index(values, extreme).as_py() if inner is values else None
            shown = extreme.cast(pa.string()).as_py()
            reason = f"{shown}: its year, in the column's zone, is not within 1 to 9999"
            raise InexactError("", row, shown, str(values.type), kind or "BLOB", reason) from error


def _refuse(values: pa.Array, is_refused: pa.Array, affinity: str, reason: str) -> None:
    row = pc.index(is_refused, pa.scalar(value=True)).as_py()
    if row >= 0:
        raise _inexact(values, affinity, reason, row)


def _inexact(values: pa.Array, affinity: str, reason: str, row: int | None = None) -> InexactError:
    value = None if row is None else values[row].as_py()
    return InexactError("", row, value, str(values.type), affinity or "BLOB", reason)
