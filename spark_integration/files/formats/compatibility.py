"""Batches cast to one schema, exactly (`exact_cast`), and schemas widened for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from coordlog.spark_integration.casts.exact_cast import (
    InexactError,
    are_same_kind,
    exact_cast,
    is_list,
    nulls,
    without_dictionary,
)

__all__ = ["MisfitError", "fitted", "widened"]


class MisfitError(Exception):
    """A batch is incompatible with a schema; the message names each differing column, with both types."""


def fitted(batch: pa.RecordBatch, schema: pa.Schema, *, fills_missing: bool) -> pa.RecordBatch:
    """`batch` with the columns of `schema`, in its order; pandas varies a type with a column's nulls.

    Args:
        batch: Rows, whose columns may be in another order.
        schema: Schema of the result.
        fills_missing: A column that the batch lacks becomes null; a new column without a type, of
            nulls alone, is left out.

    Raises:
        MisfitError: A column is missing, new, of another kind, or holds a value that its type in
            `schema` cannot hold.
    """
    counts, settled = Counter(batch.schema.names), frozenset(schema.names)
    differences = _doubled(counts)
    new = [column for column in batch.schema if column.name not in settled]
    for column in new:
        if not (fills_missing and pa.types.is_null(column.type)):
            differences.append(f"column {column.name!r} of {column.type} is new")
    columns: list[pa.Array] = []
    for column in schema:
        if column.name not in counts:
            if fills_missing:
                columns.append(nulls(batch.num_rows, column.type))
            else:
                differences.append(f"column {column.name!r} of {column.type} is missing")
            continue
        if counts[column.name] > 1:
            continue
        try:
            columns.append(_cast(batch.column(column.name), column))
        except MisfitError as error:
            differences.append(str(error))
    if differences:
        raise MisfitError("; ".join(differences))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def widened(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The narrowest schema that holds the values of both, by Arrow's permissive promotion.

    int32 and int64 become int64, integers and floats double, null any type, a dictionary beside plain
    values the type of its values; moments keep the zone of `schema`; new columns of `other` come last.

    Raises:
        MisfitError: Two types have no wider one, or two columns differ in upper and lower case alone.
    """
    fields: list[pa.Field] = []
    counts, settled = Counter(other.names), frozenset(schema.names)
    differences = _doubled(counts)
    for column in schema:
        if column.name not in counts or differences:
            fields.append(column)
            continue
        wider = other.field(column.name)
        kinds = [column.type, wider.type]
        if not all(map(pa.types.is_dictionary, kinds)):
            kinds = [without_dictionary(kind) for kind in kinds]
        kinds[1] = _in_zones_of(*kinds)
        both = [pa.schema([column.with_type(kind)]) for kind in kinds]
        try:
            if are_same_kind(wider.type, column.type) or pa.types.is_null(column.type):
                both_hold = pa.unify_schemas(both, promote_options="permissive").field(0)
                # Arrow also unites structs of different fields, and could cast rows of neither.
                for kind in (column.type, wider.type):
                    exact_cast(pa.array([], kind), both_hold.type)
                fields.append(both_hold)
                continue
        except (pa.ArrowTypeError, pa.ArrowInvalid, InexactError):
            pass
        differences.append(
            f"column {column.name!r} is {wider.type} and in the files "
            f"{column.type}, and no type holds both"
        )
    new = [
        column
        for column in other
        if column.name not in settled and not pa.types.is_null(column.type)
    ]
    differences += _of_other_case(fields, new)
    if differences:
        raise MisfitError("; ".join(differences))
    fields += new
    return pa.schema([pa.field(column.name, column.type) for column in fields])


def _in_zones_of(files: pa.DataType, kind: pa.DataType) -> pa.DataType:
    """`kind` with the zones of `files`: a time with a zone is a point in time, whichever zone it is shown in."""
    types = pa.types
    if types.is_timestamp(files) and types.is_timestamp(kind) and files.tz and kind.tz:
        return pa.timestamp(kind.unit, files.tz)
    if types.is_struct(files) and types.is_struct(kind):
        known = {part.name: part.type for part in files}
        parts = [(part, known.get(part.name, part.type)) for part in kind]
        return pa.struct([part.with_type(_in_zones_of(type_, part.type)) for part, type_ in parts])
    if types.is_map(files) and types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_in_zones_of(files.key_type, key.type)),
            item.with_type(_in_zones_of(files.item_type, item.type)),
            keys_sorted=kind.keys_sorted,
        )
    if is_list(files) and is_list(kind):
        value = kind.value_field.with_type(_in_zones_of(files.value_type, kind.value_type))
        if types.is_large_list(kind):
            return pa.large_list(value)
        return pa.list_(value, getattr(kind, "list_size", -1))
    return kind


def _cast(values: pa.Array, column: pa.Field) -> pa.Array:
    try:
        return exact_cast(values, column.type)
    except InexactError as error:
        place = "" if error.row is None else f"row {error.row + 1} of the batch, {error}"
        reason = place or (f"{error.path}: {error.reason}" if error.path else error.reason)
        raise MisfitError(
            f"column {column.name!r} is {values.type} and in the files {column.type} ({reason})"
        ) from error


def _of_other_case(fields: Sequence[pa.Field], new: Sequence[pa.Field]) -> list[str]:
    """New columns that Spark and other readers take for another one: they refuse the files, or read one of the two."""
    names = {column.name.lower(): column.name for column in fields}
    differences: list[str] = []
    for column in new:
        other = names.setdefault(column.name.lower(), column.name)
        if other != column.name:
            differences.append(
                f"column {column.name!r} is new and differs from {other!r} in upper and lower case alone, which "
                "readers such as Spark do not distinguish"
            )
    return differences


def _doubled(counts: Counter[str]) -> list[str]:
    return [
        f"column {name!r} is in it {count} times" for name, count in counts.items() if count > 1
    ]
