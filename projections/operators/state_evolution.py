"""Compatibility of a state's earlier schema with the present one: added fields have defaults.

Both schemas are derived from types of states. Two differences are allowed: an added field with a default, and a removed
field. Any other difference would give a field a value of another type than it declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["check_readable"]


def check_readable(earlier: Any, now: Any, optional: Mapping[str, frozenset[str]]) -> None:  # noqa: ANN401, JSON
    """Check that states of an earlier schema can be read with the present schema of their type.

    Args:
        earlier: Schema of the encoded state.
        now: Present schema.
        optional: Fields with a default, by record name of the present schema.

    Raises:
        ValueError: The schemas are incompatible; the message has the place.
    """
    _Comparison(earlier, now, optional).check(earlier, now, "")


class _Comparison:
    """Comparison of two schemas, with the named types that each defines."""

    def __init__(self, earlier: Any, now: Any, optional: Mapping[str, frozenset[str]]) -> None:  # noqa: ANN401
        self._optional = optional
        self._earlier: dict[str, Any] = {}
        self._now: dict[str, Any] = {}
        _collect(earlier, self._earlier)
        _collect(now, self._now)
        self._compared: set[str] = set()

    def check(self, earlier: Any, now: Any, where: str) -> None:  # noqa: ANN401, JSON
        """Raise ValueError at a difference that is not allowed."""
        earlier = self._earlier.get(earlier, earlier) if isinstance(earlier, str) else earlier
        now = self._now.get(now, now) if isinstance(now, str) else now
        if isinstance(earlier, list) and isinstance(now, list) and len(earlier) == len(now):
            for first, second in zip(earlier, now, strict=True):
                self.check(first, second, where)
            return
        if isinstance(earlier, dict) and isinstance(now, dict) and earlier["type"] == now["type"]:
            if now["type"] == "record":
                self._check_record(earlier, now, where)
            else:
                self.check(earlier["items"], now["items"], where)
            return
        if earlier != now:
            raise ValueError(
                f"{where or 'the state'} was {_type_name(earlier)}, and is {_type_name(now)} now"
            )

    def _check_record(self, earlier: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
        name = str(now["name"])
        if earlier["name"] != name:
            raise ValueError(f"{where or 'the state'} was a {earlier['name']}, and is a {name} now")
        if name in self._compared:
            return
        self._compared.add(name)
        before = {field["name"]: field["type"] for field in earlier["fields"]}
        for field in now["fields"]:
            place = field["name"] if name == "Encoded" else f"{name}.{field['name']}"
            if field["name"] in before:
                self.check(before[field["name"]], field["type"], place)
            elif field["name"] not in self._optional.get(name, frozenset()):
                raise ValueError(f"{place} is new, and has no default")


def _collect(schema: Any, named: dict[str, Any]) -> None:  # noqa: ANN401, JSON
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            named[schema["name"]] = schema
            for field in schema["fields"]:
                _collect(field["type"], named)
        elif schema["type"] == "array":
            _collect(schema["items"], named)


def _type_name(schema: Any) -> str:  # noqa: ANN401, JSON
    kind = schema.get("type") if isinstance(schema, dict) else schema
    return f"{kind!r}" if not isinstance(kind, list) else " or ".join(map(_type_name, kind))
