"""Columns of a frame whose values a Spark table stores unchanged.

Spark's own rule for an append (`spark.sql.storeAssignmentPolicy`) cuts 1.99 to 1 for an integer, rounds decimals and
converts wall clocks to moments by the zone of the session, without an error. Spark writes the rows, so that values
cannot be checked here: types are compared, and a column is accepted if no value of its type could change.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import types

from coordlog.errors import SinkError

__all__ = ["check_frame", "is_always_exact"]

_INTEGERS: Final[dict[type[types.DataType], int]] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}
_DIGITS: Final[dict[type[types.DataType], int]] = {
    types.ByteType: 3,
    types.ShortType: 5,
    types.IntegerType: 10,
    types.LongType: 19,
}
_FLOAT_BITS: Final[dict[type[types.DataType], int]] = {types.FloatType: 24, types.DoubleType: 53}
"""Bits of the integers that a float represents exactly."""


def check_frame(where: str, frame: types.StructType, table: types.StructType) -> None:
    """Refuse a frame if values of one of its columns could change in the table.

    Args:
        where: The destination, for errors.
        frame: Columns of the rows.
        table: Columns of the table; Spark itself refuses names that differ.

    Raises:
        SinkError: There is such a column; each is named with both types.
    """
    # Spark ignores case, unless `spark.sql.caseSensitive` is set: then two names may differ by it.
    known = {field.name.lower(): field.dataType for field in table.fields}
    known.update({field.name: field.dataType for field in table.fields})
    differences = [
        f"column {field.name!r} is {field.dataType.simpleString()} and in the table "
        f"{known[name].simpleString()}"
        for field in frame.fields
        if (name := field.name if field.name in known else field.name.lower()) in known
        and not is_always_exact(field.dataType, known[name])
    ]
    if differences:
        raise SinkError(
            where,
            f"a batch is incompatible with the table: {'; '.join(differences)}",
            "cast the columns in the frame to the table's types",
        )


def is_always_exact(source: types.DataType, target: types.DataType) -> bool:
    """Whether each value of `source` is the same in `target`."""
    if isinstance(source, types.NullType) or (type(source) is type(target) and source == target):
        return True
    match source, target:
        case types.StructType(), types.StructType():
            inner = {field.name: field.dataType for field in target.fields}
            return len(inner) == len(source.fields) and all(
                field.name in inner and is_always_exact(field.dataType, inner[field.name])
                for field in source.fields
            )
        case types.ArrayType(), types.ArrayType():
            return is_always_exact(source.elementType, target.elementType)
        case types.MapType(), types.MapType():
            return is_always_exact(source.keyType, target.keyType) and is_always_exact(
                source.valueType, target.valueType
            )
        case types.DecimalType(), types.DecimalType():
            whole = target.precision - target.scale >= source.precision - source.scale
            return whole and target.scale >= source.scale
        case types.FloatType(), types.DoubleType():
            return True
        case types.StringType(), types.StringType():
            return True
        case _:
            return _holds_integers(source, target)


def _holds_integers(source: types.DataType, target: types.DataType) -> bool:
    bits = _INTEGERS.get(type(source))
    if bits is None:
        return False
    if isinstance(target, types.DecimalType):
        return target.precision - target.scale >= _DIGITS[type(source)]
    kept = {**_INTEGERS, **_FLOAT_BITS}.get(type(target), 0)
    return bool(bits <= kept)
