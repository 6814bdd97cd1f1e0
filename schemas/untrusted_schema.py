"""Schemas from a log are untrusted: any process that can write to the log may have written them.

fastavro follows every schema: a schema that contains itself until the stack overflows, and an array of
items without bytes for as many items as its count. So a schema is checked before a value is read with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fastavro.schema import SchemaParseException

from coordlog.schemas.codec import Avro

__all__ = ["foreign_avro"]

_BYTES: Final[Mapping[str, int]] = {
    "null": 0,
    "boolean": 1,
    "int": 1,
    "long": 1,
    "float": 4,
    "double": 8,
    "bytes": 1,
    "string": 1,
}
"""Minimum size of a value in bytes, by primitive type."""

_VALUES_PER_BYTE: Final = 8
_VALUES_FREE: Final = 1_000
"""Limit of the parts of a value, plus `_VALUES_PER_BYTE` for each of its bytes."""

_DEPTH_MAX: Final = 64


def foreign_avro(schema_json: str) -> Avro:
    """The parsed schema, if time and space to read any value of it are bounded by the value's bytes.

    Raises:
        ValueError: It is no schema, contains itself, or allows values of many parts in few bytes.
    """
    try:
        schema = json.loads(schema_json)
        excess = _Walk().excess(schema, "", 0)
        if excess > _VALUES_FREE:
            raise ValueError(f"a value has {excess} parts and no bytes")
        return Avro(schema_json)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (SchemaParseException, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is no schema: {error!r:.200}") from error


class _Walk:
    """Upper bound of the parts of a value, less the parts that its bytes allow."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def excess(self, schema: Any, namespace: str, depth: int) -> int:  # noqa: ANN401, JSON
        """Number of parts that a value may have beyond those that its bytes allow; 0 or less is harmless."""
        if depth > _DEPTH_MAX:
            raise ValueError(f"it is nested more than {_DEPTH_MAX} deep")
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if isinstance(schema, list):  # a union: one byte, then the worst option
            return (
                max(self.excess(option, namespace, depth + 1) for option in schema) - _paid(1) + 1
            )
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, namespace, depth)
        if kind in ("fixed", "enum"):
            size = schema["size"] if kind == "fixed" else 1
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"a fixed value of {size!r} bytes")
            return self._keep(schema, namespace, 1 - _paid(size))
        if kind in ("array", "map"):
            each = self.excess(
                schema["items" if kind == "array" else "values"], namespace, depth + 1
            )
            if each - (_paid(1) if kind == "map" else 0) > 0:
                raise ValueError(f"it has an {kind} of items with almost no bytes")
            return 1 - _paid(1)
        return self.excess(kind, namespace, depth + 1)  # a primitive with a logical type, or nested

    def _record(self, schema: Mapping[str, Any], namespace: str, depth: int) -> int:
        name = _full_name(schema, namespace)
        inner = name.rpartition(".")[0]
        self._open.add(name)
        total = 1
        for field in schema["fields"]:
            total += self.excess(field["type"], inner, depth + 1)
            # The free parts must not multiply, by records that hold records.
            if total > _VALUES_FREE:
                raise ValueError(f"a value has {total} parts and no bytes")
        self._open.discard(name)
        return self._keep(schema, namespace, total)

    def _keep(self, schema: Mapping[str, Any], namespace: str, excess: int) -> int:
        self._known[_full_name(schema, namespace)] = excess
        return excess

    def _named(self, name: str, namespace: str) -> int:
        if name in _BYTES:
            return 1 - _paid(_BYTES[name])
        for full in (name, f"{namespace}.{name}"):
            if full in self._open:
                raise ValueError(f"{name} contains itself")
            if full in self._known:
                return self._known[full]
        raise ValueError(f"{name} is no type")


def _paid(size: int) -> int:
    return _VALUES_PER_BYTE * size


def _full_name(schema: Mapping[str, Any], namespace: str) -> str:
    name = str(schema["name"])
    space = schema.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"
