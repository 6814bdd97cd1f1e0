"""Values for an Avro schema, from JSON that a user has typed."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final, cast

from coordlog.projections.tables.payload_json import Json
from coordlog.schemas.codec import Plain

__all__ = ["from_json"]

_HEX: Final = re.compile("0x([0-9a-fA-F]{2})*")


def from_json(schema: Any, value: Json) -> dict[str, Plain]:  # noqa: ANN401, the JSON of a schema
    """Fields of a record: bytes from `0x` and digits, times from ISO 8601, defaults for fields left out.

    Raises:
        ValueError: A field is unknown, missing or of another type; the message has its path.
    """
    fields = _Reading().value(schema, value, "it")
    assert isinstance(fields, dict), "a payload is a record"
    return cast("dict[str, Plain]", fields)


class _Reading:
    """Reads one value; remembers the named types on the way.

    Args:
        named: Named types so far.
        is_default: Whether it reads a default of a schema: bytes are a text there, and times are numbers.
    """

    def __init__(self, named: dict[str, Any] | None = None, *, is_default: bool = False) -> None:
        self._named: dict[str, Any] = {} if named is None else named
        self._is_default = is_default

    def value(self, schema: Any, value: Json, path: str) -> object:  # noqa: ANN401, the JSON of a schema
        if isinstance(schema, list):
            return self._union(schema, value, path)
        if isinstance(schema, str):
            known = self._named.get(schema)
            return (
                self.value(known, value, path)
                if known is not None
                else self._plain(schema, value, path)
            )
        if "name" in schema and schema["type"] in ("record", "enum", "fixed"):
            self._named[schema["name"]] = schema
        kind = schema["type"]
        if "logicalType" in schema and not self._is_default:
            return _logical(schema["logicalType"], value, path)
        match kind:
            case "record":
                return self._record(schema, value, path)
            case "array":
                if not isinstance(value, list):
                    raise _wrong(path, "a list", value)
                return [
                    self.value(schema["items"], item, f"{path}[{n}]")
                    for n, item in enumerate(value)
                ]
            case "map":
                if not isinstance(value, dict):
                    raise _wrong(path, "an object", value)
                return {
                    key: self.value(schema["values"], item, f"{path}.{key}")
                    for key, item in value.items()
                }
            case "enum":
                if value not in schema["symbols"]:
                    raise _wrong(path, f"one of {', '.join(schema['symbols'])}", value)
                return value
            case "fixed":
                return self._plain("bytes", value, path)
            case _:
                return self.value(kind, value, path)

    def _plain(self, kind: str, value: Json, path: str) -> object:
        if kind == "bytes" and self._is_default:
            return str(value).encode("latin-1")
        return _plain(kind, value, path)

    def _record(self, schema: Mapping[str, Any], value: Json, path: str) -> object:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        fields = {field["name"]: field for field in schema["fields"]}
        unknown = sorted(value.keys() - fields.keys())
        if unknown:
            known = ", ".join(fields) or "none"
            raise ValueError(f"{path} has no field {unknown[0]!r}; its fields are: {known}")
        read: dict[str, object] = {}
        for name, field in fields.items():
            inner = name if path == "it" else f"{path}.{name}"
            if name in value:
                read[name] = self.value(field["type"], value[name], inner)
            elif "default" in field:
                read[name] = _Reading(self._named, is_default=True).value(
                    field["type"], field["default"], inner
                )
            else:
                raise ValueError(f"the field {inner!r} is missing, and has no default")
        return read

    def _union(self, schemas: list[Any], value: Json, path: str) -> object:
        problems: list[str] = []
        for schema in schemas:
            try:
                return self.value(schema, value, path)
            except ValueError as error:
                problems.append(str(error))
        is_optional = "null" in schemas and value is not None
        raise ValueError(" or ".join(problems[is_optional:]))


def _plain(kind: str, value: Json, path: str) -> object:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match kind:
        case "null" if value is None:
            return None
        case "boolean" if isinstance(value, bool):
            return value
        case "int" | "long" if isinstance(value, int) and is_number:
            return value
        case "float" | "double" if is_number:
            return float(cast("float", value))
        case "string" if isinstance(value, str):
            return value
        case "bytes" if isinstance(value, str) and _HEX.fullmatch(value):
            return bytes.fromhex(value[2:])
        case _:
            expected = "0x and hexadecimal digits" if kind == "bytes" else f"a {kind}"
            raise _wrong(path, expected, value)


def _logical(kind: str, value: Json, path: str) -> object:
    if not isinstance(value, str):
        raise _wrong(path, f"a text with a {kind}", value)
    try:
        match kind:
            case "date":
                return dt.date.fromisoformat(value)
            case "time-millis" | "time-micros":
                return dt.time.fromisoformat(value)
            case "uuid":
                return str(uuid.UUID(value))
            case "decimal":
                return decimal.Decimal(value)
            case _:
                at = dt.datetime.fromisoformat(value)
                return at if at.tzinfo else at.replace(tzinfo=dt.UTC)
    except (ValueError, decimal.InvalidOperation) as error:
        raise _wrong(path, f"a {kind}", value) from error


def _wrong(path: str, expected: str, value: Json) -> ValueError:
    return ValueError(f"{path} is {value!r}; it must be {expected}")
