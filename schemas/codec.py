"""Codec of records: the envelope in Avro, by the checked-in schema."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from typing import Any, Final, cast

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from coordlog.errors import RecordError
from coordlog.schemas.envelope import envelope_bytes, record_in
from coordlog.schemas.header import Header, decode_header
from coordlog.schemas.record import Kind, Record

__all__ = [
    "ENVELOPE_FINGERPRINT",
    "ENVELOPE_SCHEMA",
    "Avro",
    "Plain",
    "avro_fingerprint",
    "decode_record",
    "encode_record",
    "header_of",
    "payload_fingerprint",
]

Plain = None | bool | int | float | str | bytes | list["Plain"] | dict[str, "Plain"]
"""A value of Avro's generic form."""


@lru_cache(maxsize=1_024)
def avro_fingerprint(schema_json: str) -> int:
    """CRC-64-AVRO of a schema's canonical form, as an unsigned integer. The first time it takes a millisecond."""
    return _crc(to_parsing_canonical_form(json.loads(schema_json)))


@lru_cache(maxsize=1_024)
def payload_fingerprint(schema_json: str) -> int:
    """Fingerprint of a payload type's schema: as `avro_fingerprint`, and it depends on the logical types too.

    The canonical form leaves them out: milliseconds, microseconds and plain numbers are equal in it.
    """
    schema = json.loads(schema_json)
    return _crc("\n".join([to_parsing_canonical_form(schema), *_logical_types(schema, "")]))


def _crc(form: str) -> int:
    return int.from_bytes(bytes.fromhex(fingerprint(form, "CRC-64-AVRO")), "little")


def _logical_types(schema: Any, place: str) -> Iterator[str]:  # noqa: ANN401, parsed JSON
    """Each logical type with its place in the schema and its parameters."""
    if isinstance(schema, list):
        for number, option in enumerate(schema):
            yield from _logical_types(option, f"{place}|{number}")
    elif isinstance(schema, dict):
        if "logicalType" in schema:
            parameters = [schema[name] for name in ("precision", "scale") if name in schema]
            yield " ".join(map(str, (place, schema["logicalType"], *parameters)))
        for field in schema.get("fields", ()):
            yield from _logical_types(field["type"], f"{place}.{field['name']}")
        for name in ("type", "items", "values"):
            yield from _logical_types(schema.get(name), f"{place}/{name}")


class Avro:
    """A parsed schema. Strict: unknown or missing fields are errors at encoding, extra bytes at decoding."""

    __slots__ = ("_schema", "schema_json")

    def __init__(self, schema_json: str) -> None:
        self.schema_json = schema_json
        self._schema = fastavro.parse_schema(json.loads(schema_json))

    def encode(self, value: dict[str, Plain]) -> bytes:
        """The value's bytes, with no marker before them."""
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, value, strict=True)
        return out.getvalue()

    def decode(self, data: bytes) -> dict[str, Plain]:
        """The value in `data`.

        Raises:
            ValueError: The bytes are no such value, too few or too many.
        """
        source = io.BytesIO(data)
        try:
            value = fastavro.schemaless_reader(source, self._schema, None)
        except (EOFError, IndexError, UnicodeDecodeError, KeyError, OverflowError) as error:
            raise ValueError(f"not a value of its schema: {error!r}") from error
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes are left over")
        return cast("dict[str, Plain]", value)


ENVELOPE_SCHEMA: Final = (
    resources.files("coordlog.schemas") / "avro" / "record-v1.avsc"
).read_text(encoding="utf-8")
"""The envelope's Avro schema, as JSON text."""

ENVELOPE_FINGERPRINT: Final = avro_fingerprint(ENVELOPE_SCHEMA)
"""CRC-64-AVRO of the envelope's schema."""


def encode_record(record: Record) -> bytes:
    """The record's value in the log."""
    return envelope_bytes(record)


def header_of(record: Record, *, snapshot_offset: int = -1) -> Header:
    """The header that goes with a record."""
    # By place, as a tuple takes half the time so.
    return Header(
        record.epoch,
        -1 if record.sequence is None else record.sequence,
        record.turn_remaining,
        record.kind is Kind.EPOCH_STARTED,
        ENVELOPE_FINGERPRINT,
        snapshot_offset,
    )


def decode_record(
    offset: int,
    value: bytes | None,
    header_bytes: bytes | None,
    *,
    header: Header | None = None,
) -> Record:
    """The record at `offset`; to be called only for a valid record. `header` is the decoded `header_bytes`.

    Raises:
        RecordError: The envelope is of another version, damaged, or differs from its header.
    """
    if header is None:
        header = decode_header(header_bytes)
    if header is None or value is None:
        raise RecordError(offset, "", "it has no value, or no header of this log's format")
    if header.fingerprint != ENVELOPE_FINGERPRINT:
        raise RecordError(
            offset,
            "",
            f"its envelope has schema {header.fingerprint:016x}, this version reads "
            f"{ENVELOPE_FINGERPRINT:016x}: read it with the version of coordlog that wrote it",
        )
    try:
        record = record_in(value)
    except ValueError as error:
        raise RecordError(offset, "", f"its value is damaged: {error}") from error
    if (header.epoch, header.sequence, header.turn_remaining) != (
        record.epoch,
        -1 if record.sequence is None else record.sequence,
        record.turn_remaining,
    ):
        raise RecordError(offset, record.kind.value, "its value and its header differ")
    return record
