"""Numbers in another type of number, and texts as floats: the same value, or none."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["WHOLE_LIMITS", "are_whole_exact", "cast_number", "floats_of_texts", "is_number"]

WHOLE_LIMITS: Final = {pa.float16(): 2.0**11, pa.float32(): 2.0**24, pa.float64(): 2.0**53}
"""Limit of each type: whole numbers below it are exact, those from it on perhaps not."""
_WHOLE: Final = r"^[ \t]*[+-]?[0-9]+[ \t]*$"
_HAS_DIGIT: Final = "[0-9]"


def is_number(kind: pa.DataType) -> bool:
    """Whether `kind` is an integer, a float or a decimal."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def cast_number(values: pa.Array, target: pa.DataType) -> pa.Array:
    """`values` as numbers of `target`, each of the same value: 2.0 is 2, and NaN is no integer.

    Raises:
        pa.ArrowInvalid: A value has no equal in `target`.
    """
    from_float, to_float = pa.types.is_floating(values.type), pa.types.is_floating(target)
    if pa.types.is_decimal(values.type) != pa.types.is_decimal(target):
        return _between_decimals(values, target)
    if not to_float and not from_float:
        if _fits_as_it_is(values, target):
            validity, data = values.buffers()
            return pa.Array.from_buffers(
                target, len(values), [validity, data], values.null_count, values.offset
            )
        # Of decimals Arrow refuses lost digits, on either side of the point.
        return values.cast(target)
    if from_float and to_float:
        cast = values.cast(target, safe=False)
        is_wider = target.bit_width > values.type.bit_width
        if not is_wider and not _are_same_floats(values, cast):
            raise pa.ArrowInvalid("a value would be rounded")
        return cast
    if from_float:
        # Of float16 Arrow would compare the bits.
        return (values if values.type != pa.float16() else values.cast(pa.float64())).cast(target)
    return _floats_of_integers(values, target)


def are_whole_exact(floats: pa.Array, target: pa.DataType) -> bool:
    """Whether all are in the range in which each whole number is a `target`.

    Of floats that were read from texts, those of whole numbers are then exact.
    """
    plain = _plain_floats(floats)
    limit = WHOLE_LIMITS[target]
    # The quick way, without an allocation. A NaN, or bits in the place of a null, end below.
    if plain is not None and plain.max() < limit and -limit < plain.min():
        return True
    return not _has_large(floats, target)[0]


def floats_of_texts(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Texts as the nearest floats; a text without fraction and exponent must be exact.

    `0.1` and `12345678901234567.89` are doubles; `9007199254740993`, of which a double keeps ...992,
    is none; nor is a number beyond the largest of the type.

    Raises:
        pa.ArrowInvalid: A text is no number, or none of `target`.
    """
    floats = texts.cast(target)
    if are_whole_exact(floats, target):
        return floats
    values = floats.cast(pa.float64())
    _, is_large = _has_large(values, target)
    texts, values = texts.filter(is_large), values.filter(is_large)
    if _are_same_integers(texts, values):
        return floats
    is_inf = pc.call_function("is_inf", [values])
    beyond = texts.filter(pc.call_function("and", [is_inf, _matches(texts, _HAS_DIGIT)]))
    if len(beyond):
        raise pa.ArrowInvalid(f"{beyond[0]} is beyond the largest {target}")
    is_whole = _matches(texts, _WHOLE)
    texts, values = texts.filter(is_whole), values.filter(is_whole)
    if _are_same_integers(texts, values):
        return floats
    for text, number in zip(texts.to_pylist(), values.to_pylist(), strict=True):
        if Decimal(text.strip()) != number:
            raise pa.ArrowInvalid(f"{text} would be rounded to {number!r}")
    return floats


def _are_same_integers(texts: pa.Array, values: pa.Array) -> bool:
    """Whether all are integers of 64 bits, and equal. False does not say that they are not equal."""
    try:
        return bool(texts.cast(pa.int64()).equals(values.cast(pa.int64())))
    except pa.ArrowInvalid:
        return False  # A number is larger, or has another form.


def _plain_floats(floats: pa.Array) -> npt.NDArray[np.floating[Any]] | None:
    """The values as they are in memory, with any bits in the place of a null; None if there are none."""
    data = floats.buffers()[1]
    if not len(floats) or data is None:
        return None
    size = floats.type.bit_width // 8
    return np.frombuffer(data, f"f{size}", len(floats), floats.offset * size)


def _are_same_floats(values: pa.Array, cast: pa.Array) -> bool:
    """Whether a cast to fewer bits has changed no value; NaN is NaN."""
    plain, narrow = _plain_floats(values), _plain_floats(cast)
    if plain is None or narrow is None:
        return True  # It has no value.
    differ = plain != narrow
    if differ.any():
        differ &= ~np.isnan(plain)
    if values.null_count and differ.any():  # There may be any bits in the place of a null.
        differ &= values.is_valid().to_numpy(zero_copy_only=False)
    return not differ.any()


def _fits_as_it_is(values: pa.Array, target: pa.DataType) -> bool:
    """Whether the bytes of these decimals are those of decimals of `target`: same scale, no more digits.

    Arrow's cast looks at each value, which takes five times as long. False does not say that they do not fit.
    """
    source, types = values.type, pa.types
    if not (types.is_decimal128(source) and types.is_decimal128(target)):
        return False
    if source.scale != target.scale:
        return False
    data = values.buffers()[1]
    if target.precision >= source.precision or not len(values) or data is None:
        return True
    halves = np.frombuffer(data, "<i8", 2 * len(values), 16 * values.offset)
    low, high = halves[::2], halves[1::2]
    limit = 10 ** int(target.precision)
    beyond = limit >> 64
    if beyond:  # All with upper halves below that of the limit are below the limit.
        return bool(-beyond <= int(high.min()) and int(high.max()) < beyond)
    if not np.array_equal(high, low >> 63):
        return False  # A value takes more than 64 bits.
    return bool(-limit < int(low.min()) and int(low.max()) < limit)


def _has_large(floats: pa.Array, target: pa.DataType) -> tuple[bool, pa.Array]:
    limit = pa.scalar(WHOLE_LIMITS[target], floats.type)
    is_large = pc.call_function("greater_equal", [pc.call_function("abs", [floats]), limit])
    return bool(pc.call_function("any", [is_large]).as_py()), is_large


def _matches(texts: pa.Array, pattern: str) -> pa.Array:
    options = pc.MatchSubstringOptions(pattern)
    return pc.call_function("match_substring_regex", [texts], options)


def _floats_of_integers(values: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        if target != pa.float16():  # of which Arrow lets 70000 be inf
            return values.cast(target)
    except pa.ArrowInvalid:
        pass  # it refuses 2**60 too, which a double holds
    cast = values.cast(target, safe=False)
    if not _are_equal(values, cast.cast(pa.float64()).cast(values.type)):
        raise pa.ArrowInvalid("a value would be rounded")
    return cast


def _are_equal(values: pa.Array, others: pa.Array) -> bool:
    differ = pc.call_function("not_equal", [values, others])
    return not pc.call_function("any", [differ]).as_py()


def _between_decimals(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Decimals to and from other numbers: by way of int64 if all are whole, or else value by value.

    Arrow's own casts go by way of rounded doubles.
    """
    try:
        if pa.types.is_decimal(target):
            wide = pa.decimal256(76, max(target.scale, 0))
            return cast_number(values, pa.int64()).cast(wide).cast(target)
        return cast_number(values.cast(pa.int64()), target)
    except pa.ArrowInvalid:
        return pa.array([_as(cell.as_py(), target) for cell in values], target)


def _as(value: Decimal | float | None, target: pa.DataType) -> Decimal | float | None:
    if value is None:
        return None
    if pa.types.is_decimal(target):
        exact = Decimal(value)
        if not exact.is_finite():
            raise pa.ArrowInvalid(f"{value} is no decimal")
        return exact
    assert isinstance(value, Decimal), "the other type is a decimal"
    if pa.types.is_integer(target):
        if value != value.to_integral_value():
            raise pa.ArrowInvalid(f"{value} has a fraction")
        return int(value)
    number: float = pa.scalar(float(value)).cast(target, safe=False).as_py()
    if not math.isfinite(number) or Decimal(number) != value:
        raise pa.ArrowInvalid(f"{value} would be rounded to {number!r}")
    return number
