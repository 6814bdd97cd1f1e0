"""The one rule for values in another type: a cast is exact, or refused.

Each source and each sink casts here. Exact: same kind and same value. Kinds are numbers, texts, bytes, booleans, dates,
times of day, durations, timestamps with a zone (moments), timestamps without one (wall clocks), and structs, lists and
maps of these. Between kinds nothing is cast: `"007"` is no number, and noon without a zone is no moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from coordlog.spark_integration.casts.exact_numbers import cast_number, floats_of_texts, is_number

__all__ = [
    "InexactError",
    "are_same_kind",
    "exact_cast",
    "exact_caster",
    "exact_from_json",
    "exact_from_text",
    "is_list",
    "nulls",
    "refuse_nulls",
    "without_dictionary",
]

_SHOWN_CHARS: Final = 200
_Leaf = Callable[[pa.Array, pa.DataType], pa.Array]


class InexactError(ValueError):
    """A column has no exact cast to a type. The message names both types, and the first value at fault.

    Attributes:
        path: Place within the column, as `.field` and `[]`; empty for the column itself.
        row: Index of the first row that does not fit; None if no row can.
        value: That row's value; None without a row.
        source: Type of the values.
        target: Type that they do not fit.
        reason: Cause, in a few words.
    """

    def __init__(
        self,
        path: str,
        row: int | None,
        value: object,
        source: str,
        target: str,
        reason: str,
    ) -> None:
        super().__init__(path, row, value, source, target, reason)
        self.path, self.row, self.value = path, row, value
        self.source, self.target, self.reason = source, target, reason

    def __str__(self) -> str:
        shown = "" if self.row is None else f"the value {repr(self.value)[:_SHOWN_CHARS]} "
        place = f"{self.path}: " if self.path else ""
        return f"{place}{shown}of {self.source} is no {self.target} ({self.reason})"


def exact_cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    """`values` in `target`, each of them the same.

    Raises:
        InexactError: One has no equal there.
    """
    return _located(_cast_leaf, values, target)


def exact_caster(source: pa.DataType, target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """`exact_cast` for many arrays of `source`: the cast that the two types need is looked up once."""
    if source == target:
        return lambda values: values
    is_plain = not any(map(_has_parts, (source, target))) and are_same_kind(source, target)
    is_numeric = is_plain and is_number(source) and is_number(target)
    if not is_numeric and not (is_plain and _is_safe_in_arrow(source, target)):
        return lambda values: exact_cast(values, target)

    def cast(values: pa.Array) -> pa.Array:
        try:
            return cast_number(values, target) if is_numeric else values.cast(target)
        except (pa.ArrowException, ValueError, OverflowError):
            return exact_cast(values, target)  # which names the row

    return cast


def _has_parts(kind: pa.DataType) -> bool:
    return (
        pa.types.is_nested(kind)
        or pa.types.is_dictionary(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )


def exact_from_text(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Texts of a CSV file as values of `target`, as Arrow's reader has them. Blanks around are no part of a text.

    Raises:
        InexactError: One is no such value.
    """
    try:
        return _cast(_read_leaf, values, target)
    except _Misfit:
        trimmed = pc.call_function("utf8_trim", [values], pc.TrimOptions(" \t"))
        return _located(_read_leaf, trimmed, target)


def exact_from_json(values: pa.Array, target: pa.DataType) -> pa.Array:
    """What Arrow's reader of JSON has made, in `target`. Times are ISO 8601; a moment has an offset, and only a moment.

    Raises:
        InexactError: A value is no such value.
    """
    return _located(_read_leaf, values, target)


def refuse_nulls(values: pa.Array, field: pa.Field) -> pa.Array:
    """`values`, in a column that `field` describes.

    Raises:
        InexactError: One is null, and the column must have none.
    """
    if not field.nullable and values.null_count:
        is_null = pc.call_function("is_null", [values])
        row = pc.index(is_null, pa.scalar(value=True)).as_py()
        target = f"{field.type} not null"
        raise InexactError("", row, None, str(values.type), target, "it must not be null")
    return values


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """So many nulls, also of a struct with fields that must not be null."""
    if not pa.types.is_struct(kind):
        return pa.nulls(count, kind)
    pieces = [(field, nulls(count, field.type)) for field in kind]
    children = [piece if field.nullable else _filled(piece) for field, piece in pieces]
    is_null = pa.repeat(pa.scalar(value=True), count)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=is_null)


def are_same_kind(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a value of one may be a value of the other."""
    source, target = without_dictionary(source), without_dictionary(target)
    if source == target or pa.types.is_null(source):
        return True
    return any(
        is_kind(source) and is_kind(target)
        for is_kind in (
            is_number,
            _is_text,
            _is_binary,
            pa.types.is_date,
            pa.types.is_time,
            pa.types.is_duration,
            lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
            lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
            pa.types.is_struct,
            is_list,
            pa.types.is_map,
        )
    )


def without_dictionary(kind: pa.DataType) -> pa.DataType:
    """Type of the values, which a dictionary holds once."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


# --- errors of a cast -----------------------------------------------------------------------------------
class _Misfit(Exception):  # noqa: N818, not raised outside of this module
    """A column, or a part of it, has a value without an exact cast."""

    def __init__(
        self, source: pa.DataType, target: pa.DataType, reason: str, *, is_kind: bool = False
    ) -> None:
        super().__init__(reason)
        self.path = ""
        self.source, self.target, self.reason, self.is_kind = source, target, reason, is_kind


def _located(leaf: _Leaf, values: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return _cast(leaf, values, target)
    except _Misfit as misfit:
        row = None if misfit.is_kind else _first_misfit(leaf, values, target)
        if row is not None:
            try:
                _cast(leaf, values.slice(row, 1), target)
            except _Misfit as first:
                misfit = first
        raise InexactError(
            misfit.path,
            row,
            None if row is None else _shown(values[row]),
            str(misfit.source),
            str(misfit.target),
            misfit.reason,
        ) from misfit


def _first_misfit(leaf: _Leaf, values: pa.Array, target: pa.DataType) -> int:
    good, bad = 0, len(values)  # so many rows fit; so many do not
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _cast(leaf, values.slice(good, middle - good), target)
        except _Misfit:
            bad = middle
        else:
            good = middle
    return good


def _shown(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return f"beyond Python's own times, of {value.type}"


# --- nested types ---------------------------------------------------------------------------------------
def _cast(leaf: _Leaf, values: pa.Array, target: pa.DataType) -> pa.Array:
    source = values.type
    if source == target:
        return values
    if pa.types.is_null(source) or (pa.types.is_null(target) and values.null_count == len(values)):
        return nulls(len(values), target)
    if pa.types.is_dictionary(source):
        return _cast(leaf, values.dictionary_decode(), target)
    if pa.types.is_dictionary(target):
        plain = _cast(leaf, values, target.value_type)
        return _tried(source, target, lambda: plain.dictionary_encode().cast(target))
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        return _cast_struct(leaf, values, target)
    if pa.types.is_map(source) and pa.types.is_map(target):
        return _cast_map(leaf, values, target)
    if is_list(source) and is_list(target):
        return _cast_list(leaf, values, target)
    if pa.types.is_nested(source) or pa.types.is_nested(target):
        raise _Misfit(source, target, "they are of different kinds", is_kind=True)
    return leaf(values, target)


def _cast_struct(leaf: _Leaf, values: pa.StructArray, target: pa.StructType) -> pa.Array:
    source = values.type
    names, wanted = [field.name for field in source], [field.name for field in target]
    if sorted(names) != sorted(wanted) or len(set(names)) != len(names):
        raise _Misfit(source, target, f"it has the fields {names}, not {wanted}", is_kind=True)
    pieces = dict(zip(names, values.flatten(), strict=True))
    is_null = pc.call_function("is_null", [values])
    there = pc.call_function("invert", [is_null])
    children = []
    for field in target:
        child = _within(f".{field.name}", leaf, pieces[field.name], field)
        if not field.nullable and child.filter(there).null_count:
            raise _Misfit(source, target, f"{field.name!r} is null, and must not be")
        children.append(child if field.nullable else _filled(child))
    return pa.StructArray.from_arrays(children, fields=list(target), mask=is_null)


def _filled(values: pa.Array) -> pa.Array:
    """`values` with any value in the place of a null: one within a null struct, where Arrow writes no null either."""
    if not values.null_count:
        return values
    rows = pa.array(range(len(values)), pa.int64())
    picked = pc.call_function("if_else", [values.is_valid(), rows, len(values)])
    try:
        other = pa.array([_any_value(values.type)], values.type)
        return pa.concat_arrays([values, other]).take(picked)
    except pa.ArrowException:  # no array of this type: the file's writer refuses it
        return values


def _any_value(kind: pa.DataType) -> object:
    """Any value of the type, without a null in any part."""
    types = pa.types
    if types.is_struct(kind):
        return {field.name: _any_value(field.type) for field in kind}
    if types.is_fixed_size_list(kind):
        return [_any_value(kind.value_type)] * kind.list_size
    if types.is_nested(kind):
        return []
    if types.is_dictionary(kind):
        return _any_value(kind.value_type)
    if types.is_boolean(kind):
        return False
    if types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    return "" if _is_text(kind) else b"" if _is_binary(kind) else 0


def _cast_list(leaf: _Leaf, values: pa.Array, target: pa.DataType) -> pa.Array:
    child = _within("[]", leaf, values.flatten(), target.value_field)
    if not target.value_field.nullable and child.null_count:
        raise _Misfit(values.type, target, "an element is null, and must not be")
    sizes = pc.call_function("list_value_length", [values]).cast(pa.int64())
    filled = pc.call_function("coalesce", [sizes, pa.scalar(0, pa.int64())])
    ends = pc.call_function("cumulative_sum", [filled])
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    mask = pc.call_function("is_null", [values])
    whole = pa.LargeListArray.from_arrays(
        offsets, child, type=pa.large_list(target.value_field), mask=mask
    )
    return _tried(values.type, target, lambda: whole.cast(target))


def _cast_map(leaf: _Leaf, values: pa.MapArray, target: pa.MapType) -> pa.Array:
    source = values.type
    entries = [pa.struct([kind.key_field, kind.item_field]) for kind in (source, target)]
    listed = values.cast(pa.list_(pa.field("entries", entries[0], nullable=False)))
    named = pa.struct(
        [
            pa.field(source.key_field.name, target.key_type, nullable=False),
            pa.field(source.item_field.name, target.item_type, target.item_field.nullable),
        ]
    )
    cast = _cast_list(leaf, listed, pa.list_(pa.field("entries", named, nullable=False)))
    keys, items = cast.flatten().flatten()
    return pa.MapArray.from_arrays(
        cast.offsets, keys, items, type=target, mask=pc.call_function("is_null", [values])
    )


def _within(place: str, leaf: _Leaf, values: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return _cast(leaf, values, field.type)
    except _Misfit as misfit:
        misfit.path = place + misfit.path
        raise


# --- values ---------------------------------------------------------------------------------------------
def _cast_leaf(values: pa.Array, target: pa.DataType) -> pa.Array:
    source = values.type
    if not are_same_kind(source, target) or isinstance(target, pa.BaseExtensionType):
        raise _Misfit(source, target, _of_kinds(source, target), is_kind=True)
    if is_number(source):
        return _tried(source, target, lambda: cast_number(values, target))
    cast = _tried(source, target, lambda: values.cast(target))
    if _is_safe_in_arrow(source, target):
        return cast
    # Of dates, times of day and durations that is seen from here once more.
    if not _tried(source, target, lambda: cast.cast(source)).equals(values):
        raise _Misfit(source, target, "a value would change")
    return cast


def _read_leaf(values: pa.Array, target: pa.DataType) -> pa.Array:
    """As `_cast_leaf`, but a text may be any value that is written as one."""
    source = values.type
    if not _is_text(source) or _is_text(target) or _is_binary(target):
        if pa.types.is_floating(source) and pa.types.is_floating(target):
            return values.cast(target, safe=False)  # the reader has checked the whole numbers
        return _cast_leaf(values, target)
    if pa.types.is_floating(target):
        return _tried(source, target, lambda: floats_of_texts(values, target))
    if pa.types.is_decimal(target):
        # Arrow multiplies by the scale in the target's bits, and 38 digits wrap in 128 of them.
        wide = pa.decimal256(76, target.scale)
        return _tried(source, target, lambda: values.cast(wide).cast(target))
    if pa.types.is_time(target):
        return _tried(source, target, lambda: _times_of_day(values, target))
    return _tried(source, target, lambda: values.cast(target))


def _is_safe_in_arrow(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether Arrow's own cast of these refuses each value that would change."""
    types = pa.types
    # Of timestamps it refuses those that are finer than the target, or beyond it.
    is_safe = _is_text(source) or _is_binary(source) or types.is_timestamp(source)
    # All days of 32 bits are milliseconds of 64.
    return is_safe or (types.is_date32(source) and types.is_date64(target))


def _times_of_day(texts: pa.Array, target: pa.DataType) -> pa.Array:
    day = pa.scalar("1970-01-01T", texts.type)
    none = pa.scalar("", texts.type)
    moments = pc.call_function("binary_join_element_wise", [day, texts, none])
    moments = moments.cast(pa.timestamp("ns"))
    return moments.cast(pa.int64()).cast(pa.time64("ns")).cast(target)


def _tried(source: pa.DataType, target: pa.DataType, cast: Callable[[], pa.Array]) -> pa.Array:
    try:
        return cast()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise _Misfit(source, target, " ".join(str(error).split())[:_SHOWN_CHARS]) from error


def _of_kinds(source: pa.DataType, target: pa.DataType) -> str:
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return "one has a zone, the other has none, and nothing says which zone is meant"
    return "they are of different kinds"


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether `kind` is a list of any of Arrow's layouts."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )
