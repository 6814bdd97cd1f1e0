"""Batches made to fit one schema: cast exactly (`exact_cast`), widened if that is wanted."""

from __future__ import annotations

import pyarrow as pa

from coordlog.spark_integration.casts.exact_cast import InexactError, are_same_kind, exact_cast

__all__ = ["MisfitError", "fitted", "widened"]


class MisfitError(Exception):
    """A batch does not fit; the message names each column that differs, with both types."""


def fitted(batch: pa.RecordBatch, schema: pa.Schema, *, fills_missing: bool) -> pa.RecordBatch:
    """`batch` with the columns of `schema`, in its order; pandas varies a type with a column's nulls.

    Args:
        batch: Its columns may stand in another order.
        schema: What comes out.
        fills_missing: A column that the batch lacks becomes null; one that it has more is left out
            where all its values are null and it has no type.

    Raises:
        MisfitError: A column is missing, new, of another kind, or holds a value that the type here
            cannot.
    """
    names = batch.schema.names
    differences = _doubled(names)
    new = [one for one in batch.schema if one.name not in schema.names]
    for one in new:
        if not (fills_missing and pa.types.is_null(one.type)):
            differences.append(f"column {one.name!r} of {one.type} is new")
    columns: list[pa.Array] = []
    for column in schema:
        if column.name not in names:
            if fills_missing:
                columns.append(pa.nulls(batch.num_rows, column.type))
            else:
                differences.append(f"column {column.name!r} of {column.type} is missing")
            continue
        if names.count(column.name) > 1:
            continue
        try:
            columns.append(_cast(batch.column(column.name), column))
        except MisfitError as error:
            differences.append(str(error))
    if differences:
        raise MisfitError("; ".join(differences))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def widened(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The narrowest schema that holds the values of both, as Arrow's permissive promotion has it.

    int32 and int64 become int64, integers and floats double, null anything; a column of `other`
    alone comes last.

    Raises:
        MisfitError: Two types have no wider one.
    """
    fields: list[pa.Field] = []
    differences = _doubled(other.names)
    for column in schema:
        if column.name not in other.names or differences:
            fields.append(column)
            continue
        wider = other.field(column.name)
        both = [pa.schema([column]), pa.schema([wider])]
        try:
            if are_same_kind(wider.type, column.type) or pa.types.is_null(column.type):
                fields.append(pa.unify_schemas(both, promote_options="permissive").field(0))
                continue
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            pass
        differences.append(
            f"column {column.name!r} is {wider.type} and in the files "
            f"{column.type}, and no type holds both"
        )
    if differences:
        raise MisfitError("; ".join(differences))
    fields += [
        one for one in other if one.name not in schema.names and not pa.types.is_null(one.type)
    ]
    return pa.schema([pa.field(one.name, one.type) for one in fields])


def _cast(values: pa.Array, column: pa.Field) -> pa.Array:
    try:
        return exact_cast(values, column.type)
    except InexactError as error:
        place = "" if error.row is None else f"row {error.row + 1} of the batch, {error}"
        reason = place or (f"{error.path}: {error.reason}" if error.path else error.reason)
        raise MisfitError(
            f"column {column.name!r} is {values.type} and in the files {column.type} ({reason})"
        ) from error


def _doubled(names: list[str]) -> list[str]:
    return [
        f"column {one!r} stands in it {names.count(one)} times"
        for one in dict.fromkeys(names)
        if names.count(one) > 1
    ]
