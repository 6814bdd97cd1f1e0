"""A job's state as JSON, and the differences between two states."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Final

from coordlog.projections.job.state import JobState
from coordlog.projections.tables.payload_json import Json, hex_text

__all__ = ["Difference", "differences", "state_json"]

_LEFT_OUT: Final = frozenset({"projections", "projection", "schemas", "types"})
"""Values of the job's own classes, and the schemas, which `history --kind TYPE_REGISTERED` shows."""


def state_json(state: JobState) -> dict[str, Json]:
    """The whole state: maps in the order of their keys, bytes as their beginning and length."""
    value = _json(state)
    assert isinstance(value, dict), "a state has fields"
    return value


def _json(value: object) -> Json:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return hex_text(value)
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return {_key(key): _json(value[key]) for key in sorted(value)}
    names: tuple[str, ...] | None = getattr(type(value), "_fields", None)
    if names is not None:
        return {name: _json(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if dataclasses.is_dataclass(value):
        kept = [field.name for field in dataclasses.fields(value) if field.name not in _LEFT_OUT]
        return {name: _json(getattr(value, name)) for name in kept}
    return str(value)


def _key(key: object) -> str:
    return "/".join(map(str, key)) if isinstance(key, tuple) else str(key)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place at which two values differ."""

    path: str
    """Names and keys from the root to the place, separated by dots."""
    is_in_first: bool
    is_in_second: bool
    first: Json
    second: Json


def differences(first: Json, second: Json, path: str = "") -> Iterator[Difference]:
    """Differences of the second from the first, by place; a value that only one has is not divided."""
    if isinstance(first, dict) and isinstance(second, dict):
        for name in [*first, *(name for name in second if name not in first)]:
            below = f"{path}.{name}" if path else name
            if name in first and name in second:
                yield from differences(first[name], second[name], below)
            else:
                yield Difference(
                    path=below,
                    is_in_first=name in first,
                    is_in_second=name in second,
                    first=first.get(name),
                    second=second.get(name),
                )
    elif first != second:
        yield Difference(path=path, is_in_first=True, is_in_second=True, first=first, second=second)
