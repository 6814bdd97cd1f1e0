"""Types of a sample's values, so that all of them are exact in theirs."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import repeat
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordlog.limits import CSV_SAMPLE_FILES_MAX
from coordlog.spark_integration.casts.exact_cast import (
    InexactError,
    exact_cast,
    exact_from_text,
)
from coordlog.spark_integration.files.formats.json.values import (
    inexact_numbers,
    number_texts,
    read_objects,
    readable,
)
from coordlog.spark_integration.files.listing import ListedFile

__all__ = ["BIG_INTEGERS", "WIDE", "evenly", "infer_json", "type_of_texts"]

WIDE: Final = pa.decimal128(19, 0)
"""Mark for int64 with a value that no double has, until the types of all files are known."""
BIG_INTEGERS: Final = pa.decimal128(38, 0)
"""Type of whole numbers in JSON, some of which are beyond int64."""
_CODE: Final = r"^-?0[0-9xX]|^\+[0-9]+$"
"""Texts that Arrow takes for numbers, though the number does not give them back: `007`, `+4917012345`."""
_DEPTH_MAX: Final = 100
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKET: Final = re.compile(r"[][{}]")


def type_of_texts(texts: pa.Array, inferred: pa.DataType) -> pa.DataType | None:
    """The type of a column of a CSV file, of which Arrow would have some texts as `inferred`.

    Strings, if the numbers would be rounded, or lose zeros in front; `WIDE` for integers that do not
    go together with floats; None if not all are such numbers.
    """
    assert inferred in (pa.int64(), pa.float64()), "the caller has looked"
    try:
        numbers = exact_from_text(texts, inferred)
    except InexactError:
        is_rounded = inferred == pa.float64() and _are_floats(texts)
        return pa.string() if is_rounded else None
    if _has_code(texts):
        return pa.string()
    return inferred if inferred == pa.float64() else _of_integers(numbers)


def _are_floats(texts: pa.Array) -> bool:
    try:
        _trimmed(texts).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _trimmed(texts: pa.Array) -> pa.Array:
    return pc.call_function("utf8_trim", [texts], pc.TrimOptions(" \t"))


def _has_code(texts: pa.Array) -> bool:
    """Whether a text matches `_CODE`, blanks in front apart."""
    if texts.null_count:
        texts = texts.drop_null()
    # Regular expressions are slow: only texts that begin like a code are matched.
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return False
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, 4 * texts.offset)
    chars = np.frombuffer(data, np.uint8)
    rows = np.flatnonzero(np.diff(ends) > 1)
    first, second = chars[ends[rows]], chars[ends[rows] + 1]
    is_doubtful = (first == ord("0")) & (second != ord("."))
    is_doubtful |= (first == ord("-")) & (second == ord("0"))
    is_doubtful |= first == ord("+")
    is_doubtful |= (first == ord(" ")) | (first == ord("\t"))
    texts = texts.take(pa.array(rows[is_doubtful]))
    options = pc.MatchSubstringOptions(_CODE)
    is_code = pc.call_function("match_substring_regex", [_trimmed(texts)], options)
    return bool(pc.call_function("any", [is_code]).as_py())


def infer_json(text: str) -> pa.Schema:
    """The fields of the objects in `text`, with `WIDE` for int64 that does not go together with floats.

    Raises:
        ValueError: A line is no object, or a field has numbers that no one type holds; as Arrow's
            own errors are.
    """
    lines = text.split("\n")
    if sum(max(map(str.count, lines, repeat(bracket))) for bracket in "{[") > _DEPTH_MAX:
        for line in lines:
            _check_depth(line)
    table = read_objects(text, None, "infer")
    inferred = table.schema
    as_texts = readable(inferred)
    if as_texts != inferred:
        # Arrow takes offsets off times, and makes lists that are not whole of nulls alone.
        table = read_objects(text, as_texts, "ignore")
    rounded = {path for path, _ in inexact_numbers(text, table, inferred)}
    if rounded:
        inferred = _with_big_integers(text, inferred, rounded)
    return pa.schema(
        pa.field(field.name, _refined(column.combine_chunks(), field.type))
        for column, field in zip(table.columns, inferred, strict=True)
    )


def _check_depth(line: str) -> None:
    """Refuse what is nested deeper than a schema may be: Arrow's inference has no bound, and ends the process."""
    if line.count("{") + line.count("[") <= _DEPTH_MAX:
        return
    depth = 0
    for bracket in _BRACKET.findall(_TEXT.sub("", line)):
        depth += 1 if bracket in "{[" else -1
        if depth > _DEPTH_MAX:
            raise ValueError(f"it is nested more than {_DEPTH_MAX} deep")


def _refined(values: pa.Array, inferred: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(inferred):
        zoned = pa.timestamp(inferred.unit, "UTC")
        return next((kind for kind in (inferred, zoned) if _are(values, kind)), pa.string())
    if inferred == pa.int64():
        return _of_integers(values)
    if pa.types.is_struct(inferred):
        pieces = zip(values.flatten(), inferred, strict=True)
        return pa.struct([(field.name, _refined(piece, field.type)) for piece, field in pieces])
    if pa.types.is_list(inferred):
        return pa.list_(_refined(values.flatten(), inferred.value_type))
    return inferred


def _with_big_integers(text: str, inferred: pa.Schema, rounded: Collection[str]) -> pa.Schema:
    texts = number_texts(text.split("\n"), inferred)
    for (path, _), numbers in texts.items():
        if path in rounded and not _are(pa.array(numbers, pa.string()), BIG_INTEGERS):
            raise ValueError(
                f"field {path!r}: its numbers, {numbers[0]} the first, would be rounded in double, and "
                f"are not all whole numbers of at most {BIG_INTEGERS.precision} digits"
            )

    def replaced(path: str, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct(
                [(field.name, replaced(f"{path}.{field.name}", field.type)) for field in kind]
            )
        if pa.types.is_list(kind):
            return pa.list_(replaced(f"{path}[]", kind.value_type))
        return BIG_INTEGERS if path in rounded else kind

    return pa.schema(pa.field(field.name, replaced(field.name, field.type)) for field in inferred)


def _of_integers(values: pa.Array) -> pa.DataType:
    try:
        exact_cast(values, pa.float64())
    except InexactError:
        return WIDE
    return pa.int64()


def _are(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        exact_from_text(texts, kind)
    except InexactError:
        return False
    return True


def evenly(listed: Sequence[ListedFile]) -> Sequence[ListedFile]:
    """At most the limit of files: the first, the last, and evenly between."""
    last = len(listed) - 1
    if last < CSV_SAMPLE_FILES_MAX:
        return listed
    steps = CSV_SAMPLE_FILES_MAX - 1
    return [listed[last * i // steps] for i in range(CSV_SAMPLE_FILES_MAX)]
