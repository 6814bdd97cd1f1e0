"""Columns as tables have them: for each Arrow type one of theirs that holds all of its values."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["storable"]


def storable(schema: pa.Schema) -> pa.Schema:
    """`schema` with types that Iceberg and Delta have: each holds all values of the original, times to the microsecond.

    Types that a format lacks altogether stay: its library names them.
    """
    return pa.schema([pa.field(column.name, _storable(column.type)) for column in schema])


def _storable(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _storable(kind.value_type)
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_uint8(kind):
        return pa.int16()
    if types.is_uint16(kind):
        return pa.int32()
    if types.is_uint32(kind):
        return pa.int64()
    if types.is_uint64(kind):
        return pa.decimal128(20, 0)
    if types.is_float16(kind):
        return pa.float32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_date(kind):
        return pa.date32()
    if types.is_struct(kind):
        return pa.struct([pa.field(part.name, _storable(part.type)) for part in kind])
    if types.is_map(kind):
        return pa.map_(_storable(kind.key_type), _storable(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_storable(kind.value_type))
    return kind
