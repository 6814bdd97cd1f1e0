"""The column of a source for fields of a file that the other columns lack.

A settled schema marks this column. So whether a split is read with it follows from the split's own schema, whatever
the options of the source are when a job goes on.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = [
    "file_schema",
    "is_rescued",
    "unmarked",
    "with_rescued",
    "without_rescued",
]

_MARK: Final = b"coordlog.rescued"


def with_rescued(schema: pa.Schema, name: str) -> pa.Schema:
    """The schema with a column for all other fields as its last one, marked as such."""
    return schema.append(pa.field(name, pa.string(), metadata={_MARK: b""}))


def is_rescued(field: pa.Field) -> bool:
    """Whether the field is the column for all other fields."""
    return _MARK in (field.metadata or {})


def without_rescued(schema: pa.Schema) -> pa.Schema:
    """The columns that files have: the same schema if it has no column for all other fields."""
    return schema.remove(len(schema) - 1) if _has_rescued(schema) else schema


def unmarked(schema: pa.Schema) -> pa.Schema:
    """The schema as other code sees it: the column for all other fields is one of strings."""
    if not _has_rescued(schema):
        return schema
    return without_rescued(schema).append(schema.field(-1).remove_metadata())


def file_schema(names: list[str], schema: pa.Schema) -> pa.Schema:
    """Schema in which a file with the columns `names` is read.

    Further columns are of strings if `schema` has a column for them, and if the others are those of `schema`, in the
    same order. Otherwise it is that of all columns but this one, which the names then may differ from.
    """
    known = without_rescued(schema)
    further = [name for name in names if name not in known.names]
    rest = [name for name in names if name in known.names]
    if known is schema or rest != known.names or len(set(further)) < len(further):
        return known
    return pa.schema(
        known.field(name) if name in known.names else pa.field(name, pa.string()) for name in names
    )


def _has_rescued(schema: pa.Schema) -> bool:
    return len(schema) > 0 and is_rescued(schema.field(-1))
