"""Fields of JSON lines that the schema lacks, as they are written.

Arrow has parsed the lines before, so each is one object, and it is enough here to find where its values end. No value
is parsed: numbers keep their digits, and depth has no limit.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator
from typing import Final

import pyarrow as pa

__all__ = ["rescued_fields"]

_STRING: Final = r'"(?:[^"\\]++|\\.)*+"'
_BEFORE: Final = r"[ \t\r\n,{]*+"
_COLON: Final = r"[ \t\r\n]*+:[ \t\r\n]*+"
_SCALAR: Final = rf'(?:{_STRING}|[^\s,{{}}\[\]"]++)'
_MEMBER: Final = re.compile(rf"{_BEFORE}({_STRING}){_COLON}({_SCALAR})?")
"""A name, and its value unless that is an object or a list."""
_BRACKETS: Final = re.compile(rf"{_STRING}|[{{}}\[\]]")
_NOT_FINITE: Final = re.compile(rf'(?:[^"NI]++|{_STRING})*+[NI]')
"""A value with NaN or Infinity, which Arrow accepts as numbers."""


def rescued_fields(text: str, names: Collection[str]) -> pa.Array:
    """The fields besides `names` of each object, as the text of an object; null if it has none.

    Args:
        text: Lines that are objects, empty lines apart.
        names: Names of the columns.

    Raises:
        ValueError: An object has such a field more than once, or one that is no JSON.
    """
    known, columns = frozenset(names), _columns(tuple(names))
    lines = (line for line in text.split("\n") if line.strip())
    return pa.array(
        [_rescued(line, known, columns, row) for row, line in enumerate(lines)], type=pa.string()
    )


@functools.lru_cache(maxsize=64)
def _columns(names: tuple[str, ...]) -> re.Pattern[str]:
    """As many columns as there are with a name that is written plainly, and no object or list."""
    # In an escape, text and name differ.
    plain = [name for name in names if json.dumps(name, ensure_ascii=False) == f'"{name}"']
    written = "|".join(map(re.escape, plain)) or "(?!)"
    return re.compile(rf'(?:{_BEFORE}"(?:{written})"{_COLON}{_SCALAR})*+')


def _rescued(line: str, names: Collection[str], columns: re.Pattern[str], row: int) -> str | None:
    members: dict[str, str] = {}
    for written, value in _members(line, columns):
        name = json.loads(written) if "\\" in written else written[1:-1]
        if name in names:
            continue
        if name in members:
            raise ValueError(f"it has the field {name!r} more than once in row {row}")
        if _NOT_FINITE.match(value):
            raise ValueError(
                f"field {name!r}: NaN and Infinity are no JSON, so the value cannot be kept in row {row}"
            )
        members[name] = f"{written}:{value}"
    return "{" + ",".join(members.values()) + "}" if members else None


def _members(line: str, columns: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each field of an object, as they are written, without most of `columns`."""
    at = 0
    while True:
        if (passed := columns.match(line, at)) is not None:
            at = passed.end()
        if (member := _MEMBER.match(line, at)) is None:
            return
        name, value = member.groups()
        at = member.end()
        if value is None:
            end = _end_of_nested(line, at)
            value, at = line[at:end], end
        yield name, value


def _end_of_nested(line: str, start: int) -> int:
    """The place after the object or list that begins at `start`."""
    depth = 0
    for mark in _BRACKETS.finditer(line, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(mark.group(), 0)
        if not depth:
            return mark.end()
    raise AssertionError("Arrow has parsed the line")
