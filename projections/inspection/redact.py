"""A history without its contents, for a bug report: same records, same lengths, same transitions of state.

Removed: payloads (of events, states, committables, intents), reasons, split ids, paths, hosts, addresses.
Kept: the names of the job, of operators, of payload types and their fields, versions, counts, sizes and times.
Each text becomes another text of its length, the same one at each place, so that a split is still one split.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from immutables import Map

from coordlog.errors import PayloadLostError, RecordError
from coordlog.projections.job.event_skips import digest_of, event_key_in
from coordlog.projections.job.grants import COVERS
from coordlog.projections.job.state import (
    AWAY,
    AWAY_AT,
    GRANTED_AT,
    MARK,
    WRITTEN_AT,
    JobState,
    sorted_items,
)
from coordlog.projections.snapshot.codec import (
    SNAPSHOT_TYPE,
    SnapshotUnusableError,
    redacted_snapshot,
    state_of,
)
from coordlog.projections.tables.audit import Stored
from coordlog.schemas.builtin_types import JobSnapshot
from coordlog.schemas.codec import Avro, decode_record, encode_record
from coordlog.schemas.header import decode_header
from coordlog.schemas.payload_address import address_in, is_stored, plain
from coordlog.schemas.record import ALSO_ACKED, ROWS_WITH, Kind, Record
from coordlog.schemas.untrusted_schema import foreign_avro

__all__ = ["Redacted", "Redaction"]

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_LONG: Final = 24
"""Length in bytes from which two replacements are never equal by chance."""
_TRIES: Final = 1_000
_OURS: Final = "coordlog."
"""Prefix of built-in types: their numbers are counts and places, and are kept."""
_KEPT_FIELDS: Final = frozenset(
    {
        "cluster_id",
        "driver_id",
        "event_type",
        "fingerprint",
        "former_operators",
        "job_id",
        "operator_id",
        "operators",
        "payload_type",
        "schemas",
        "topic_id",
        "types",
        "what",
    }
)
"""Fields of built-in types whose texts are names, not contents."""
_KEPT_ATTRIBUTES: Final = frozenset(
    {
        "adopted_cluster_id",
        "adopted_topic_id",
        "allow_non_restored_state",
        ALSO_ACKED,
        "checkpoint_interval_s",
        "cluster_id",
        "command",
        "coordlog_version",
        COVERS,
        "fingerprint",
        "former_logs",
        "held_by",
        "mode",
        "outcome",
        "python_version",
        "restore",
        "spark_version",
        "state",
        "states",
        "topic_id",
        "what",
    }
)
_KEPT_OF_OPERATORS: Final = frozenset({"coordinated", "id", "keeps_state", "projection", "version"})
"""Keys kept of each operator in the attribute `operators`."""
_EVENT: Final = re.compile(r"(?P<what>.*/)(?P<digest>[0-9a-f]{16})", re.DOTALL)
"""An event as named in failures: operator, type and the digest of its content."""
_STOPPED_BY: Final = frozenset({"SIGHUP", "SIGINT", "SIGTERM", "SystemExit", "stop"})
"""Values of the field `by` set by coordlog itself; others are texts of the caller."""
_TEXT_ATTRIBUTES: Final = frozenset(
    {
        "address",
        "begun_from",
        "endpoint",
        "executor",
        "host",
        "location",
        "name",
        "path",
        "payload_store",
        "user",
        "where",
    }
)
"""Attributes that are texts of users and machines, even if one looks like a number."""
_PLAIN_VALUE: Final = re.compile(r"true|false|-?\d+(\.\d+)?")


class Redacted(NamedTuple):
    """Replacement of a stored record."""

    key: bytes | None
    value: bytes | None
    header_bytes: bytes | None


class Redaction:
    """Redacts the records of one log; the caller passes all of them to `record`, in log order.

    Args:
        key: Random key, to be discarded: without it no reader can test guesses of a text.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._texts: dict[str, str] = {}
        self._used: set[str] = set()
        self._schemas: dict[str, tuple[Avro, object] | None] = {}
        self._digests: dict[str, str] = {}

    def record(self, stored: Stored) -> Redacted:
        """The redacted record, whether it counts or not; zeros of the same length if it cannot be read."""
        header = decode_header(stored.header_bytes)
        if header is None:
            return Redacted(_zeros(stored.key), _zeros(stored.value), _zeros(stored.header_bytes))
        try:
            record = decode_record(stored.offset, stored.value, stored.header_bytes, header=header)
        except RecordError:
            return Redacted(_zeros(stored.key), _zeros(stored.value), stored.header_bytes)
        return Redacted(stored.key, encode_record(self._redacted(record)), stored.header_bytes)

    def _redacted(self, record: Record) -> Record:
        if record.kind is Kind.TYPE_REGISTERED:
            if record.payload_type is not None and record.payload is not None:
                self._learn(record.payload_type, record.payload.decode(errors="replace"))
            payload = record.payload
        elif record.kind is Kind.SNAPSHOT:
            payload = self._snapshot(record)
        else:
            payload = self._payload(record.payload_type, record.payload)
            if record.kind in (Kind.EVENT_TO_SUBTASK, Kind.EVENT_TO_COORDINATOR):
                self._learn_event(record.payload, payload)
        return dataclasses.replace(
            record,
            payload=payload,
            reason=None if record.reason is None else self.text(record.reason),
            attributes=self._attributes(record.attributes),
        )

    def text(self, text: str) -> str:
        """The replacement of a text: as many bytes, the same at each call."""
        length = len(text.encode(errors="surrogatepass"))
        if length >= _LONG:
            return self._chance(text, 0, length)
        known = self._texts.get(text)
        if known is None:
            known = self._chance(text, 0, length)
            for n in range(1, _TRIES):
                if known not in self._used:
                    break
                known = self._chance(text, n, length)
            self._texts[text] = known
            self._used.add(known)
        return known

    def digest(self, digest: str) -> str:
        """The digest of an event's redacted content, for the digest of its content: the fold compares them."""
        return self._digests.setdefault(digest, self.text(digest))

    def _learn_event(self, content: bytes | None, redacted: bytes | None) -> None:
        try:
            self._digests.setdefault(digest_of(content or b""), digest_of(redacted or b""))
        except ValueError:
            return  # content with the prefix of an address that is no address

    def _event(self, name: str) -> str:
        match = _EVENT.fullmatch(name)
        return self.text(name) if match is None else match["what"] + self.digest(match["digest"])

    def content(self, data: bytes) -> bytes:
        """As many zeros; for the address of a stored payload another address of the same epoch and length."""
        try:
            address = address_in(data)
        except ValueError:
            address = None
        if address is None:
            return bytes(len(data))
        digest = hmac.new(self._key, address.path.encode(), hashlib.sha256).hexdigest()
        return dataclasses.replace(address, sha256=digest).encode()

    def _chance(self, text: str, number: int, length: int) -> str:
        seed = text.encode(errors="surrogatepass")
        data = b""
        while len(data) < length:
            block = len(data).to_bytes(8, "big") + number.to_bytes(8, "big") + seed
            data += hmac.new(self._key, block, hashlib.sha256).digest()
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in data[:length])

    def _attributes(self, attributes: Mapping[str, str]) -> dict[str, str]:
        return {name: self._attribute(name, value) for name, value in attributes.items()}

    def _attribute(self, name: str, value: str) -> str:
        if name.removeprefix(MARK).startswith("operators") or name.startswith((AWAY, AWAY_AT)):
            return self._operators(value)
        if name.startswith((WRITTEN_AT, GRANTED_AT)) and value.replace(" ", "").isdecimal():
            return value
        if name == "event":
            return self._event(value)
        if name in ("split_id", ROWS_WITH):
            return self.text(value)
        is_plain = name not in _TEXT_ATTRIBUTES and _PLAIN_VALUE.fullmatch(value)
        if name in _KEPT_ATTRIBUTES or is_plain:
            return value
        return self.text(value)

    def _operators(self, text: str) -> str:
        """The attribute `operators` of an epoch, without destinations and options."""
        try:
            redacted = [
                {
                    name: value if name in _KEPT_OF_OPERATORS else self._setting(value)
                    for name, value in operator.items()
                }
                for operator in json.loads(text)
            ]
        except (ValueError, AttributeError, TypeError):
            return self.text(text)
        return json.dumps(redacted, sort_keys=True)

    def _setting(self, value: object) -> object:
        """A destination, or options by name."""
        if isinstance(value, dict):
            return {self.text(str(name)): self._setting(option) for name, option in value.items()}
        return self.text(str(value))

    # --- payloads -----------------------------------------------------------------------------------------------------
    def _learn(self, key: str, schema_json: str) -> None:
        try:
            schema = _without_logical_types(json.loads(schema_json))
            self._schemas[key] = foreign_avro(json.dumps(schema)), schema
        except (ValueError, KeyError, TypeError, RecursionError):
            self._schemas[key] = None

    def _payload(self, key: str | None, payload: bytes | None) -> bytes | None:
        """The payload with other contents; zeros if its type is not known, or it is not of that type."""
        known = self._schemas.get(key or "")
        if payload is None:
            return None
        if known is None or is_stored(payload):
            return self.content(payload)
        avro, schema = known
        walk = _Walk(self, keeps_our_own=(key or "").startswith(_OURS))
        content = plain(payload)
        mark = payload[: len(payload) - len(content)]
        try:
            redacted = mark + avro.encode(walk.value(schema, avro.decode(content), ""))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return _zeros(payload)
        return redacted if len(redacted) == len(payload) else _zeros(payload)

    # --- snapshots ----------------------------------------------------------------------------------------------------
    def _snapshot(self, record: Record) -> bytes | None:
        """The redacted state, without states of projections; its length differs, as it is compressed."""
        try:
            state = state_of(record)
            for key, schema_json in sorted_items(state.schemas):
                if key not in self._schemas:
                    self._learn(key, schema_json)
            return redacted_snapshot(record, self.state(state))
        except PayloadLostError:
            return self._stored_snapshot(record)
        except SnapshotUnusableError:
            return _zeros(record.payload)

    def _stored_snapshot(self, record: Record) -> bytes:
        """The snapshot with its numbers, and a redacted address of its state."""
        held = SNAPSHOT_TYPE.decode(record.payload or b"")
        assert isinstance(held, JobSnapshot), "it has been decoded before"
        state, digest = self.content(held.state), bytes(len(held.state_sha256))
        return SNAPSHOT_TYPE.encode(dataclasses.replace(held, state=state, state_sha256=digest))

    def state(self, state: JobState) -> JobState:
        """The redacted state of a job: equal to the fold of its redacted records."""
        for _, gateway in sorted_items(state.gateways):
            for _, event in sorted_items(gateway.unacked):
                redacted = self._payload(event.payload_type, event.payload)
                self._learn_event(event.payload, redacted)
        redacted_state = self._fields("", state)
        assert isinstance(redacted_state, JobState), "the type of the argument"
        return redacted_state

    def _fields(self, name: str, value: Any) -> Any:  # noqa: ANN401, whatever a state holds
        if name == "launch":
            return Map(self._attributes(value))
        if value is None or name in _KEPT_FIELDS:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return self.content(value)
        if isinstance(value, Map):
            return Map({self._key_of(name, k): self._fields("", v) for k, v in value.items()})
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [field.name for field in dataclasses.fields(value)]
            redacted = {field: self._fields(field, getattr(value, field)) for field in fields}
            return dataclasses.replace(value, **self._with_payload(value, redacted))
        names_of = getattr(value, "_fields", None)
        if isinstance(value, tuple) and names_of is not None:
            named = {field: self._fields(field, getattr(value, field)) for field in names_of}
            return type(value)(**self._with_payload(value, named))
        if isinstance(value, tuple):
            return tuple(self._fields(name, item) for item in value)
        return value

    def _with_payload(self, value: Any, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
        if "payload" in fields:
            fields["payload"] = self._payload(value.payload_type, value.payload)
        return fields

    def _key_of(self, name: str, key: Any) -> Any:  # noqa: ANN401
        if name in ("begun_places", "kept_splits", "last_intents", "skipped_splits"):
            return (key[0], self.text(key[1]))
        if name == "savepoints":
            return self.text(key)
        if name == "poison":
            kind, _, name = key.partition(":")
            return f"{kind}:{self._event(name) if kind == 'event' else self.text(name)}"
        if name == "skipped_events":
            key_of_event = event_key_in(key)
            before = key.removesuffix(key_of_event)
            way, subtask, event_type, digest, operator_id = key_of_event.split("/", 4)
            return before + "/".join((way, subtask, event_type, self.digest(digest), operator_id))
        return key


class _Walk:
    """Walks through one value and its schema."""

    def __init__(self, redaction: Redaction, *, keeps_our_own: bool) -> None:
        self._text, self._content = redaction.text, redaction.content
        self._digest = redaction.digest
        self._keeps = keeps_our_own
        self._named: dict[str, Any] = {}

    def value(self, schema: Any, value: Any, name: str) -> Any:  # noqa: ANN401, Avro's generic form
        """The value with other contents, of the same length when it is encoded."""
        if isinstance(schema, str):
            known = self._named.get(schema)
            return (
                self._leaf(schema, value, name) if known is None else self.value(known, value, name)
            )
        if isinstance(schema, list):
            return self.value(_branch(schema, value, self._named), value, name)
        if "name" in schema:
            self._named[schema["name"]] = schema
        kind = schema["type"]
        if kind == "record":
            return {
                field["name"]: self.value(field["type"], value[field["name"]], field["name"])
                for field in schema["fields"]
            }
        if kind == "array":
            return [self.value(schema["items"], item, name) for item in value]
        if kind == "map":
            return {self._text(k): self.value(schema["values"], v, name) for k, v in value.items()}
        if kind == "enum":
            return value if self._keeps else _first_alike(list(schema["symbols"]), value)
        if kind == "fixed":
            return bytes(len(value))
        return self.value(kind, value, name)

    def _leaf(self, kind: str, value: Any, name: str) -> Any:  # noqa: ANN401
        if kind == "string":
            if self._keeps and name == "digest":
                return self._digest(value)
            is_name = name in _KEPT_FIELDS or (name == "by" and value in _STOPPED_BY)
            return value if self._keeps and is_name else self._text(value)
        if kind == "bytes":
            return self._content(value) if self._keeps else bytes(len(value))
        if self._keeps or kind == "null":
            return value
        if kind in ("int", "long"):
            return _as_long(value)
        return False if kind == "boolean" else 0.0


def _branch(schemas: Sequence[Any], value: Any, named: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """The branch of a union whose values include `value`. Raises ValueError if there is none."""
    for branch in schemas:
        schema = named.get(branch, branch) if isinstance(branch, str) else branch
        if _is_of(schema, value):
            return branch
    raise ValueError("a value of no branch")


def _is_of(schema: Any, value: Any) -> bool:  # noqa: ANN401
    kind = str(schema["type"] if isinstance(schema, dict) else schema)
    match value:
        case None:
            return kind == "null"
        case bool():
            return kind == "boolean"
        case int():
            return kind in ("int", "long")
        case float():
            return kind in ("float", "double")
        case str():
            return kind == "string" or (kind == "enum" and value in list(schema["symbols"]))
        case bytes():
            return kind in ("bytes", "fixed")
        case list():
            return kind == "array"
        case _:
            return kind == "map" or (
                kind == "record" and {field["name"] for field in schema["fields"]} == set(value)
            )


def _as_long(value: int) -> int:
    """A number with as many bytes in Avro's encoding."""
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    length = max(1, -(-zigzag.bit_length() // 7))
    return 0 if length == 1 else 1 << (7 * length - 8)


def _first_alike(symbols: list[str], value: str) -> str:
    """The first symbol whose index has as many bytes in Avro's encoding."""
    return symbols[min(symbols.index(value), _as_long(symbols.index(value)))]


def _zeros(data: bytes | None) -> bytes | None:
    return None if data is None else bytes(len(data))


def _without_logical_types(schema: Any) -> Any:  # noqa: ANN401, JSON
    if isinstance(schema, dict):
        return {k: _without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    return schema
