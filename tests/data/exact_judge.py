"""An independent judge of casts: which value is exact in which type, by Python's own numbers and times.

It shares no code with `exact_cast` and asks no cast of pyarrow's. A cell is a value as Python has it: numbers as int,
float or Decimal, timestamps, times and durations as a count of their unit.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Final

import pyarrow as pa

__all__ = [
    "CELLS",
    "JSON_TOKENS",
    "REFUSED",
    "TEXTS",
    "array_of",
    "cells_of",
    "judge",
    "judge_text",
    "judge_token",
]

Cell = object
REFUSED: Final = "refused"

_PACKED: Final = {pa.float16(): "<e", pa.float32(): "<f", pa.float64(): "<d"}
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_CONTEXT: Final = Context(prec=80)

_INTEGERS: Final = (
    0,
    1,
    -1,
    127,
    128,
    -129,
    255,
    256,
    2047,
    2049,
    65504,
    70000,
    2**24 + 1,
    2**31 - 1,
    2**31,
)
_BIG: Final = (2**53, 2**53 + 1, -(2**53) - 1, 2**60, 2**62 + 2**10, 2**63 - 1, -(2**63))
_FLOATS: Final = (
    0.0,
    1.0,
    -2.5,
    0.1,
    2.0**-24,
    65504.0,
    70000.0,
    1e30,
    2.0**53,
    2.0**63,
    2.0**64,
    1e300,
    5e-324,
)
_ODD: Final = (math.inf, -math.inf, math.nan)

CELLS: Final[Mapping[pa.DataType, Sequence[Cell]]] = {
    pa.int8(): (0, -128, 127),
    pa.int16(): (0, -32768, 2049),
    pa.int32(): (0, 2**24 + 1, -(2**31)),
    pa.int64(): (*_INTEGERS, *_BIG),
    pa.uint8(): (0, 255),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, 2**63, 2**64 - 1, 2**53 + 1),
    pa.float16(): (0.0, 1.5, 2.0**-24, 65504.0, *_ODD),
    pa.float32(): (0.0, 1.5, float(2**24), 2.0**-149, 2.0**127, *_ODD),
    pa.float64(): (*_FLOATS, *_ODD),
    pa.decimal128(5, 2): (Decimal("0.00"), Decimal("1.50"), Decimal("-999.99"), Decimal("12.00")),
    pa.decimal128(38, 0): (Decimal(2**53 + 1), Decimal(10**30), Decimal(-5)),
    pa.decimal256(60, 20): (Decimal("0.1"), Decimal("1e30"), Decimal("0.5"), Decimal(7)),
    pa.bool_(): (True, False),
    pa.string(): ("", "a", "007", "1.5", "true", "2024-01-01"),
    pa.large_string(): ("", "ß", "1"),
    pa.dictionary(pa.int8(), pa.string()): ("x", "y"),
    pa.binary(): (b"", b"ab", b"\xff"),
    pa.large_binary(): (b"", b"abc"),
    pa.binary(2): (b"ab", b"\x00\xff"),
    pa.date32(): (0, -1, 19_000),
    pa.date64(): (0, 86_400_000, -86_400_000),
    pa.time32("s"): (0, 86_399),
    pa.time32("ms"): (0, 1, 1000),
    pa.time64("us"): (0, 1, 1_000_000),
    pa.time64("ns"): (0, 1, 1000, 86_399_000_000_000),
    pa.duration("s"): (0, -1, 2**62),
    pa.duration("ns"): (0, 1, 10**9),
    pa.timestamp("s"): (0, -1, 2**40),
    pa.timestamp("us"): (0, 1, 10**6, -(10**12)),
    pa.timestamp("ns"): (0, 1, 1000, 10**9),
    pa.timestamp("s", "UTC"): (0, 1_719_828_000, 2**40),
    pa.timestamp("us", "Europe/Berlin"): (0, 1, 1_719_828_000_000_000),
    pa.timestamp("ns", "UTC"): (0, 1, 10**9),
    pa.null(): (None,),
}


def judge(cell: Cell, source: pa.DataType, target: pa.DataType) -> Cell:
    """The cell of `target` that is the same, or REFUSED."""
    if cell is None:
        return None
    if _kind(source) != _kind(target):
        return REFUSED
    match _kind(target):
        case "number":
            return _number(cell, target)
        case "binary":
            assert isinstance(cell, bytes)
            is_fixed = pa.types.is_fixed_size_binary(target)
            return cell if not is_fixed or len(cell) == target.byte_width else REFUSED
        case "text" | "bool":
            return cell
        case _:
            assert isinstance(cell, int)
            return _count(cell / _per_second(source), target)


def _kind(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_dictionary(kind) or types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_timestamp(kind):
        return "wall clock" if kind.tz is None else "moment"
    for name in ("boolean", "date", "time", "duration"):
        if getattr(types, f"is_{name}")(kind):
            return "bool" if name == "boolean" else name
    return "null" if types.is_null(kind) else "binary"


def _per_second(kind: pa.DataType) -> Fraction:
    if pa.types.is_date32(kind):
        return Fraction(1, 86_400)
    return Fraction(1000) if pa.types.is_date64(kind) else Fraction(_PER_SECOND[kind.unit])


def _count(seconds: Fraction, target: pa.DataType) -> Cell:
    count = seconds * _per_second(target)
    bits = 31 if pa.types.is_date32(target) or pa.types.is_time32(target) else 63
    return int(count) if count.denominator == 1 and -(2**bits) <= count < 2**bits else REFUSED


def _number(cell: Cell, target: pa.DataType) -> Cell:
    assert isinstance(cell, int | float | Decimal)
    is_finite = isinstance(cell, int) or math.isfinite(cell)
    if pa.types.is_floating(target):
        if not is_finite:
            return float(cell)
        nearest = _nearest(Fraction(cell), target)
        return nearest if nearest is not None and Fraction(nearest) == Fraction(cell) else REFUSED
    if not is_finite:
        return REFUSED
    exact = Fraction(cell)
    if pa.types.is_decimal(target):
        digits = exact * 10**target.scale
        return _scaled(digits, target) if digits.denominator == 1 else REFUSED
    bits = target.bit_width
    low, high = (
        (-(2 ** (bits - 1)), 2 ** (bits - 1))
        if pa.types.is_signed_integer(target)
        else (0, 2**bits)
    )
    return int(exact) if exact.denominator == 1 and low <= exact < high else REFUSED


def _scaled(digits: Fraction, target: pa.DataType) -> Cell:
    if abs(digits) >= 10**target.precision:
        return REFUSED
    return Decimal(int(digits)).scaleb(-target.scale, _CONTEXT)


def _nearest(exact: Fraction, target: pa.DataType) -> float | None:
    try:
        packed = struct.pack(_PACKED[target], float(exact))
    except OverflowError:
        return None
    nearest: float = struct.unpack(_PACKED[target], packed)[0]
    return nearest if math.isfinite(nearest) else None


# --- texts ------------------------------------------------------------------------------------------------
TEXTS: Final = (
    "0", "7", "-7", "255", "70000", "9007199254740992", "9007199254740993", "12345678901234567890",
    "18446744073709551615", "99999999999999999999999999999999999999",
    "1.5", "0.1", "0.10000000000000001", "0.30000000000000004", "12345678901234567.89",
    "9007199254740993.0", "007", "1.255", "999.99", "16777217",
    "1e2", "1e23", "1e300", "1e39", "1e-7", "1e400", "1e-400",
    "0.1000000000000000055511151231257827021181583404541015625",
    "true", "false", "x", "ß",
    "2024-07-01", "2024-07-01 12:00:00", "2024-07-01T12:00:00.5", "2024-07-01T12:00:00.000001",
    "2024-07-01T12:00:00Z", "2024-07-01T12:00:00+02:00", "2024-07-01T12:00:00.25-05:30",
)  # fmt: skip
"""Of a CSV file, and in quotes of JSON."""
JSON_TOKENS: Final = (
    *(one for one in TEXTS if re.fullmatch(r"-?(0|[1-9][0-9]*)([.][0-9]+)?(e-?[0-9]+)?", one)),
    "true",
    "null",
    *(f'"{one}"' for one in TEXTS if one[:4] == "2024" or one in ("x", "ß", "7")),
)


def judge_text(text: str, target: pa.DataType) -> Cell:
    """The cell of `target` that a text of CSV names, or REFUSED."""
    if pa.types.is_string(target):
        return text
    if pa.types.is_boolean(target):
        return {"true": True, "false": False, "1": True, "0": False}.get(text, REFUSED)
    if pa.types.is_date(target) or pa.types.is_timestamp(target):
        return _time_of(text, target)
    if pa.types.is_integer(target):
        return _number(int(text), target) if re.fullmatch(r"-?[0-9]+", text) else REFUSED
    try:
        number = Decimal(text)
    except InvalidOperation:
        return REFUSED
    if pa.types.is_decimal(target):
        return _number(number, target)
    nearest = _nearest(Fraction(number), target) if number.adjusted() < 400 else None
    if nearest is None:
        return REFUSED
    is_whole = re.fullmatch(r"-?[0-9]+", text) is not None
    return nearest if not is_whole or Fraction(nearest) == int(text) else REFUSED


def judge_token(token: str, target: pa.DataType) -> Cell:
    """The cell of `target` that a value of JSON is, or REFUSED."""
    if token == "null":
        return None
    if token == "true":
        return True if pa.types.is_boolean(target) else REFUSED
    is_text = token.startswith('"')
    takes_text = (
        pa.types.is_string(target) or pa.types.is_date(target) or pa.types.is_timestamp(target)
    )
    if pa.types.is_decimal(target) and is_text and re.fullmatch(r'"[0-9.]+"', token):
        return judge_text(token.strip('"'), target)  # the usual way to keep a decimal in JSON
    if is_text != takes_text or pa.types.is_boolean(target):
        return REFUSED
    return judge_text(token.strip('"'), target)


def _time_of(text: str, target: pa.DataType) -> Cell:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return REFUSED
    if len(text) < len("2024-07-01"):
        return REFUSED
    is_day = len(text) == len("2024-07-01")
    if pa.types.is_date(target):
        return _count(_seconds(moment), target) if is_day else REFUSED
    if (moment.tzinfo is None) != (target.tz is None):
        return REFUSED
    return _count(_seconds(moment), target)


def _seconds(moment: dt.datetime) -> Fraction:
    zero = dt.datetime(1970, 1, 1, tzinfo=None if moment.tzinfo is None else dt.UTC)
    since = moment - zero
    return Fraction(since.days * 86_400 + since.seconds) + Fraction(since.microseconds, 10**6)


# --- arrays, without a cast --------------------------------------------------------------------------------
def array_of(cells: Sequence[Cell], kind: pa.DataType) -> pa.Array:
    """The cells as an array."""
    return pa.array(cells, kind)


def cells_of(values: pa.Array | pa.ChunkedArray) -> list[Cell]:
    """The cells of an array: times as counts, NaN as a word, for it is equal to nothing."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_temporal(whole.type):
        whole = whole.view(pa.int32() if whole.type.bit_width == 32 else pa.int64())
    return [plain(one) for one in whole.to_pylist()]


def plain(cell: Cell) -> Cell:
    """As `cells_of` has it."""
    return "nan" if isinstance(cell, float) and math.isnan(cell) else cell
