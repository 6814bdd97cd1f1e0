"""Payloads without their classes, decoded by the schemas registered in the log; as JSON or on one line."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import enum
import json
import math
import re
import uuid
from collections.abc import Mapping
from typing import Final

from coordlog.schemas.codec import Avro
from coordlog.schemas.payload_address import ADDRESS_MARK, address_in, content_length, plain
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.untrusted_schema import foreign_avro

__all__ = [
    "Fields",
    "Json",
    "PayloadReader",
    "bytes_text",
    "hex_text",
    "on_one_line",
    "printable",
    "stored_text",
    "to_json",
    "undecoded",
]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""A value for `json.dumps`, without NaN and infinities."""

Fields = Mapping[str, object]
"""A decoded payload: Avro's generic form, with Python's types for logical ones."""

_HEX_BYTES: Final = 12
_SPACES: Final = re.compile(r"[ \t\r\n]+")


class PayloadReader:
    """Decodes the payloads of one log.

    The caller passes every record that counts to `read`, in log order.
    """

    __slots__ = ("_types",)

    def __init__(self) -> None:
        self._types: dict[str, Avro] = {}

    def learn(self, record: Record) -> None:
        """Remember the schema of a `TYPE_REGISTERED`; any other record has no effect."""
        if record.kind is Kind.TYPE_REGISTERED and record.payload_type and record.payload:
            self._learn(record.payload_type, record.payload)

    def begin(self, schemas: Mapping[str, str]) -> None:
        """Remember the schemas registered before the first record of `read`: JSON by type key."""
        for key in sorted(schemas):
            with contextlib.suppress(ValueError):  # shown as bytes
                self._types[key] = foreign_avro(schemas[key])

    def schemas(self) -> Mapping[str, str]:
        """All remembered schemas: JSON by type key."""
        return {key: self._types[key].schema_json for key in sorted(self._types)}

    def schema_json(self, payload_type: str) -> str | None:
        """The schema registered for a type, or None if there is none."""
        avro = self._types.get(payload_type)
        return None if avro is None else avro.schema_json

    def read(self, record: Record) -> Fields | None:
        """The payload of a record that counts, or None if it has none or it cannot be decoded."""
        self.learn(record)
        return self.peek(record)

    def peek(self, record: Record) -> Fields | None:
        """As `read`, for a record that does not count: its schema is not remembered."""
        if record.payload is None:
            return None
        if record.kind is Kind.TYPE_REGISTERED:
            return _schema(record.payload)
        return self._decoded(record.payload_type, record.payload)

    def shown(
        self, payload_type: str | None, payload: bytes, *, is_registration: bool, counts: bool
    ) -> Fields:
        """A record's payload for `to_json`; a registered type is remembered if the record counts.

        A payload in the payload store is `{"payload_stored": ADDRESS}`, and one that cannot be
        decoded `{"payload_hex": DIGITS}`.

        Args:
            payload_type: Payload type of the record.
            payload: Payload of the record.
            is_registration: Whether the record is a `TYPE_REGISTERED`.
            counts: Whether the record counts.
        """
        if is_registration:
            if counts and payload_type:
                self._learn(payload_type, payload)
            fields = _schema(payload)
        else:
            fields = self._decoded(payload_type, payload)
        return undecoded(payload) if fields is None else fields

    def _learn(self, payload_type: str, payload: bytes) -> None:
        try:
            self._types[payload_type] = foreign_avro(payload.decode())
        except ValueError:
            self._types.pop(payload_type, None)  # shown as bytes from here on

    def _decoded(self, payload_type: str | None, payload: bytes) -> Fields | None:
        avro = self._types.get(payload_type or "")
        if avro is None:
            return None
        try:
            if payload.startswith(ADDRESS_MARK):
                return None if address_in(payload) is not None else avro.decode(plain(payload))
            return avro.decode(payload)
        except (ValueError, ArithmeticError):
            return None


def to_json(value: object) -> Json:
    """The value as JSON.

    Bytes become `0x` and hexadecimal digits, the address of a stored payload its text, times ISO 8601,
    numbers that are not finite text.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return stored_text(bytes(value)) or f"0x{bytes(value).hex()}"
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, enum.Enum):
        return to_json(value.value)
    return repr(value)


def hex_text(data: bytes) -> str:
    """The beginning of `data` in hexadecimal digits, and the length if that is not all."""
    if len(data) <= _HEX_BYTES:
        return f"0x{data.hex()}"
    return f"0x{data[:_HEX_BYTES].hex()}… ({len(data)} bytes)"


def short_text(data: bytes) -> str:
    """As `hex_text`; for a stored payload its length and the words "in the payload store"."""
    if stored_text(data) is None:
        return hex_text(data)
    return f"({content_length(data)} bytes in the payload store)"


def bytes_text(data: bytes) -> str:
    """Bytes without a schema, for people: their text if they are printable UTF-8, as JSON is; else as `short_text`."""
    try:
        text = _SPACES.sub(" ", plain(data).decode())
    except ValueError:
        return short_text(data)
    return text if text.isprintable() and text and stored_text(data) is None else short_text(data)


def stored_text(data: bytes) -> str | None:
    """The address in `data`, unchanged, or None if `data` is not the address of a stored payload."""
    try:
        return None if address_in(data) is None else data.decode()
    except ValueError:
        return None


def undecoded(payload: bytes) -> dict[str, Json]:
    """A payload that cannot be decoded here: its address in the payload store, or its bytes."""
    stored = stored_text(payload)
    return {"payload_hex": payload.hex()} if stored is None else {"payload_stored": stored}


def on_one_line(value: object, chars_max: int) -> str:
    """The value in at most `chars_max` characters, for people."""
    text = _shown(value)
    if isinstance(value, Mapping):
        text = text[1:-1]
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return short_text(bytes(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return printable(str(to_json(value)), kept="")


def printable(text: str, *, kept: str = "\n") -> str:
    """The text with a space for each character that terminals obey or hide; texts of records are untrusted.

    Args:
        text: Any text.
        kept: Characters that stay although they are not printable.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in kept else " " for one in text)


def _schema(payload: bytes) -> Fields | None:
    try:
        foreign_avro(payload.decode())
    except ValueError:
        return None
    schema = json.loads(payload)
    return schema if isinstance(schema, dict) else None
