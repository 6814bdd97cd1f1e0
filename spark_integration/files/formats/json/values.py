"""Objects of JSON as Arrow columns: each number and each time is the one that the text has, or refused.

Arrow's reader is exact but for large whole numbers in float fields, which it rounds, and times, whose offsets it takes
off. So times are read as texts and cast by the one rule of `exact_cast`; and if a float is beyond the range in which
each whole number is exact, the texts of the block's long numbers are checked.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final, Literal

import pyarrow as pa
import pyarrow.json as pa_json

from coordlog.spark_integration.casts.exact_cast import (
    InexactError,
    exact_cast,
    exact_from_json,
    exact_from_text,
    refuse_nulls,
)
from coordlog.spark_integration.casts.exact_numbers import WHOLE_LIMITS, are_whole_exact
from coordlog.spark_integration.files.formats.json.rescued import rescued_fields
from coordlog.spark_integration.files.rescued import unmarked, without_rescued

__all__ = [
    "check_json_types",
    "inexact_numbers",
    "number_texts",
    "parse_json",
    "read_objects",
    "readable",
]

Unexpected = Literal["error", "ignore", "infer"]

_DIGITS_MAX: Final = 76
"""Digits of Arrow's widest decimal."""
_NO_OBJECT: Final = "a line must be one JSON object"
_ENDS: Final = itemgetter(0, -1)


class _Number(str):
    """The text of a number."""

    __slots__ = ()


def parse_json(
    text: str, schema: pa.Schema | None, unexpected: Literal["error", "ignore"] = "error"
) -> pa.Table:
    """The objects in whole lines, one a line, empty lines apart.

    Args:
        text: At least one line that is not empty.
        schema: All columns; None: as the values have it.
        unexpected: What is done with a field that the schema has not, and has no column for.

    Raises:
        ValueError: A line is no object, or more than one, or has a value that is none of its type;
            as Arrow's own errors are.
    """
    if schema is None:
        return read_objects(text, None, "infer")
    if (known := without_rescued(schema)) is not schema:
        return _with_rescued(text, known, unmarked(schema))
    table = read_objects(text, readable(schema), unexpected)
    for (path, kind), error in inexact_numbers(text, table, schema).items():
        raise ValueError(
            f"field {path!r}: the number {error.value} is no {kind} ({error.reason})"
        ) from error
    columns = [
        _column(column.combine_chunks(), field)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _with_rescued(text: str, known: pa.Schema, schema: pa.Schema) -> pa.Table:
    """The objects, with the fields that are not of `known` in the last column of `schema`."""
    try:
        table = parse_json(text, known, "error")
    except (pa.ArrowException, ValueError):
        table = parse_json(text, known, "ignore")
        rescued = rescued_fields(text, known.names)
    else:
        rescued = pa.nulls(table.num_rows, pa.string())
    return pa.Table.from_arrays([*table.columns, rescued], schema=schema)


def read_objects(text: str, schema: pa.Schema | None, unexpected: Unexpected) -> pa.Table:
    """The objects, as Arrow's reader parses them.

    Raises:
        ValueError: As `parse_json`.
    """
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    # If a block begins with a null, Arrow's reader ends the process; one that comes later is a row of nulls.
    if not set(map(_ENDS, lines)) <= {("{", "}")}:
        raise ValueError(_NO_OBJECT)
    table = _read(text, schema, unexpected)
    if len(lines) != table.num_rows:
        raise ValueError(_NO_OBJECT)  # Arrow takes several
    return table


def _read(text: str, schema: pa.Schema | None, unexpected: Unexpected) -> pa.Table:
    data = text.encode()
    return pa_json.read_json(
        pa.BufferReader(data),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=unexpected
        ),
    )


def inexact_numbers(
    text: str, table: pa.Table, schema: pa.Schema
) -> Mapping[tuple[str, pa.DataType], InexactError]:
    """The first inexact number of each float field, by path and type; empty if all numbers are exact.

    Args:
        text: Lines that are objects.
        table: The objects, as Arrow's reader parsed them.
        schema: The columns of `table`, in the wanted types.
    """
    doubtful = _doubtful(table, schema)
    if not doubtful.names or _are_exact_integers(text, doubtful):
        return {}
    kinds = _float_kinds(pa.struct(list(doubtful)))
    lines = [line for line in text.split("\n") if _large_number(kinds).search(line)]
    faults: dict[tuple[str, pa.DataType], InexactError] = {}
    for (path, kind), texts in number_texts(lines, doubtful).items():
        try:
            exact_from_text(pa.array(texts, pa.string()), kind)
        except InexactError as error:
            faults[path, kind] = error
    return faults


def number_texts(
    lines: Sequence[str], schema: pa.Schema
) -> Mapping[tuple[str, pa.DataType], Sequence[str]]:
    """Numbers of each float field as they are written, by its path and type.

    Raises:
        ValueError: A line is nested too deep.
    """
    texts: dict[tuple[str, pa.DataType], list[str]] = {}
    for line in lines:
        if line.strip():
            try:
                value = json.loads(line, parse_float=_Number, parse_int=_Number)
            except RecursionError as error:
                raise ValueError(
                    "it is nested too deep to see whether its numbers are exact"
                ) from error
            _gather("", value, pa.struct(list(schema)), texts)
    return texts


@functools.cache
def _large_number(kinds: frozenset[pa.DataType]) -> re.Pattern[str]:
    """A part of each number that may be none of these floats: digits of a whole one, or an exponent."""
    digits = min(len(f"{WHOLE_LIMITS[kind]:.0f}") for kind in kinds)
    # Arrow's reader refuses numbers that are too large for double.
    power = "" if kinds == frozenset([pa.float64()]) else r"|[eE]\+?[0-9]"
    return re.compile(f"[0-9]{{{digits}}}{power}")


def _doubtful(table: pa.Table, schema: pa.Schema) -> pa.Schema:
    """Columns in which a float may be a whole number that was rounded, or too large for its type."""
    return pa.schema(
        field
        for column, field in zip(table.columns, schema, strict=True)
        if _float_kinds(field.type)
        and not all(_are_leaves_exact(chunk, field.type) for chunk in column.chunks)
    )


def _are_exact_integers(text: str, schema: pa.Schema) -> bool:
    """Whether all floats are written as integers of 64 bits, and exact. False does not say that they are not."""
    floats = pa.struct(list(schema))
    integers = pa.schema(list(_floats_as(pa.int64(), floats)))
    try:
        table = _read(text, integers, "ignore")
        exact_cast(table.to_struct_array().combine_chunks(), _floats_as(None, floats))
    except (pa.ArrowException, ValueError):
        return False
    return True


def _floats_as(leaf: pa.DataType | None, kind: pa.DataType) -> pa.DataType:
    """The part of `kind` that has floats, with these as `leaf`; None: as they are."""
    if pa.types.is_struct(kind):
        fields = [field for field in kind if _float_kinds(field.type)]
        return pa.struct([(field.name, _floats_as(leaf, field.type)) for field in fields])
    if _is_list(kind):
        return pa.list_(_floats_as(leaf, kind.value_type))
    return kind if leaf is None else leaf


def _are_leaves_exact(values: pa.Array, kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return are_whole_exact(values, kind)
    if pa.types.is_struct(kind):
        return all(
            _are_leaves_exact(piece, field.type)
            for piece, field in zip(values.flatten(), kind, strict=True)
        )
    return not _is_list(kind) or _are_leaves_exact(values.flatten(), kind.value_type)


def _float_kinds(kind: pa.DataType) -> frozenset[pa.DataType]:
    """Types of all floats in `kind`."""
    if pa.types.is_struct(kind):
        return frozenset().union(*(_float_kinds(field.type) for field in kind))
    if _is_list(kind):
        return _float_kinds(kind.value_type)
    return frozenset({kind} if pa.types.is_floating(kind) else ())


def _column(values: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return refuse_nulls(exact_from_json(values, field.type), field)
    except InexactError as error:
        raise ValueError(f"field {field.name + error.path!r}: {error}") from error


def _gather(
    path: str,
    value: object,
    kind: pa.DataType,
    texts: dict[tuple[str, pa.DataType], list[str]],
) -> None:
    if pa.types.is_floating(kind):
        if isinstance(value, _Number):
            texts.setdefault((path, kind), []).append(str(value))
    elif pa.types.is_struct(kind) and isinstance(value, dict):
        for field in kind:
            inner = f"{path}.{field.name}" if path else field.name
            _gather(inner, value.get(field.name), field.type, texts)
    elif _is_list(kind) and isinstance(value, list):
        for element in value:
            _gather(f"{path}[]", element, kind.value_type, texts)


def check_json_types(schema: pa.Schema) -> None:
    """Check that JSON has values of each type.

    Raises:
        ValueError: Of one it has none.
    """
    as_read = readable(schema)
    try:
        read_objects("{}", as_read, "ignore")
    except pa.ArrowNotImplementedError as error:
        raise ValueError(f"{error}; read it as a struct, a text or a number") from error


# --- what Arrow reads -----------------------------------------------------------------------------------
def readable(schema: pa.Schema) -> pa.Schema:
    """The types that Arrow's reader takes for those of `schema`, with nothing lost: times as texts.

    Raises:
        ValueError: JSON has no such values.
    """
    return pa.schema(
        pa.field(field.name, _readable_type(field.type, field.name)) for field in schema
    )


def _readable_type(kind: pa.DataType, name: str) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return pa.string()
    if types.is_null(kind):
        return pa.string()  # of nulls alone Arrow's reader makes lists that are not whole
    if types.is_float16(kind):
        return pa.float64()
    if types.is_dictionary(kind):
        return _readable_type(kind.value_type, name)
    if types.is_decimal(kind):
        # Of a decimal's precision Arrow's reader takes no notice: 70000 would be a decimal(5, 2).
        return pa.decimal256(_DIGITS_MAX, kind.scale)
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([(field.name, _readable_type(field.type, field.name)) for field in kind])
    if _is_list(kind):
        return pa.list_(_readable_type(kind.value_type, name))
    if (
        types.is_map(kind)
        or types.is_duration(kind)
        or types.is_union(kind)
        or types.is_interval(kind)
    ):
        raise ValueError(
            f"field {name!r}: JSON has no {kind}; read it as a struct, a text or a number"
        )
    return kind


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
