"""Records to bytes and back (clauses E9, K3)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordlog.errors import RecordError
from coordlog.schemas.codec import (
    ENVELOPE_FINGERPRINT,
    ENVELOPE_SCHEMA,
    Avro,
    Plain,
    avro_fingerprint,
    decode_record,
    encode_record,
    header_of,
    payload_fingerprint,
)
from coordlog.schemas.envelope import record_in
from coordlog.schemas.header import decode_header, encode_header
from coordlog.schemas.record import Kind, Record, record_key

GOLDEN = Path(__file__).parents[2] / "golden"

FULL = Record(
    epoch=3,
    driver_id="d",
    sequence=41,
    turn_remaining=2,
    kind=Kind.EVENT_TO_COORDINATOR,
    timestamp_us=1_700_000_000_000_001,
    job_id="ingest",
    operator_id="source",
    subtask=3,
    attempt_number=0,
    checkpoint_id=-1,
    event_id=7,
    last_barrier=-1,
    cause=12,
    payload_type="t@1",
    payload=b"\x00\xff",
    reason="ünïcode",
    attributes={"a": "1", "b": ""},
)
EMPTY = Record(
    epoch=0, driver_id="", sequence=None, kind=Kind.EPOCH_STARTED, timestamp_us=0, job_id="ingest"
)


@pytest.mark.parametrize("record", [FULL, EMPTY], ids=["every field", "no field"])
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    again = decode_record(5, encode_record(record), encode_header(header_of(record)))

    assert replace(again, attributes=dict(again.attributes)) == replace(
        record, attributes=dict(record.attributes)
    )


@pytest.mark.clause("E9")
def test_the_records_of_each_released_format_are_read() -> None:
    """A file that no longer passes is never changed: the code must go on reading it."""
    golden = json.loads((GOLDEN / "records-v1.json").read_text(encoding="utf-8"))
    value, header = bytes.fromhex(golden["value"]), bytes.fromhex(golden["header"])

    again = decode_record(0, value, header)
    assert replace(again, attributes=dict(again.attributes)) == FULL
    assert encode_record(FULL) == value


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ints = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
records = st.builds(
    Record,
    epoch=ints,
    driver_id=texts,
    sequence=st.none() | longs,
    turn_remaining=ints,
    kind=st.sampled_from(Kind),
    timestamp_us=longs,
    job_id=texts,
    operator_id=st.none() | texts,
    subtask=st.none() | ints,
    attempt_number=st.none() | ints,
    checkpoint_id=st.none() | longs,
    event_id=st.none() | longs,
    last_barrier=st.none() | longs,
    cause=st.none() | longs,
    payload_type=st.none() | texts,
    payload=st.none() | st.binary(max_size=300),
    reason=st.none() | texts,
    attributes=st.dictionaries(texts, texts, max_size=80),
)


def library() -> Avro:
    """The envelope by its schema, with times as integers."""
    schema = json.loads(ENVELOPE_SCHEMA)
    for field in schema["fields"]:
        if isinstance(field["type"], dict):
            field["type"].pop("logicalType", None)
    return Avro(json.dumps(schema))


LIBRARY = library()


def plain(record: Record) -> dict[str, Any]:
    """The record as the library takes it."""
    value = dict(vars(record), kind=record.kind.value, timestamp=record.timestamp_us)
    del value["timestamp_us"]
    return value


@given(records)
def test_a_record_has_the_bytes_that_a_library_writes_by_the_schema(record: Record) -> None:
    data = encode_record(record)

    assert data == LIBRARY.encode(plain(record))
    assert plain(record_in(data)) == LIBRARY.decode(data)


@given(records, st.data())
def test_damaged_bytes_are_refused_or_read_as_a_library_reads_them(
    record: Record, chance: st.DataObject
) -> None:
    data = bytearray(encode_record(record))
    place = chance.draw(st.integers(0, len(data) - 1))
    end = chance.draw(st.integers(place, min(len(data), place + 2)))
    data[place:end] = chance.draw(st.binary(max_size=12))
    try:
        read = plain(record_in(bytes(data)))
    except ValueError:
        return

    assert read == LIBRARY.decode(bytes(data))


def test_a_map_of_several_blocks_and_with_sizes_of_blocks_is_read() -> None:
    """Other writers of Avro make such: a block with a negative count has its size."""
    end = encode_record(replace(EMPTY, attributes={}))[:-1]

    assert record_in(end + b"\x02\x02a\x021\x01\x08\x02b\x022\x00").attributes == {
        "a": "1",
        "b": "2",
    }


@pytest.mark.parametrize("length", [b"\x01", b"\xff" * 9 + b"\x7f", b"\xff" * 5_000_000], ids=len)
def test_a_length_that_is_negative_or_endless_is_refused_at_once(length: bytes) -> None:
    with pytest.raises(ValueError, match=r"a length is -|more than 64 bits"):
        record_in(b"\x00" + length)


@pytest.mark.parametrize(
    "changes",
    [{"sequence": 2**63}, {"payload": "text"}, {"reason": b"bytes"}, {"attributes": {"a": 1}}],
    ids=str,
)
def test_a_field_of_another_type_or_size_is_not_written(changes: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError, OverflowError)):
        encode_record(replace(FULL, **changes))


def test_every_kind_is_in_the_schema() -> None:
    for kind in Kind:
        record = replace(FULL, kind=kind)
        assert (
            decode_record(0, encode_record(record), encode_header(header_of(record))).kind is kind
        )


def test_a_record_needs_few_bytes() -> None:
    # `ingest` and its length are 7, each of the 17 other fields is 1.
    assert len(encode_record(EMPTY)) == 24


@pytest.mark.clause("E9")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "it has no value"),
        (b"", "its value is damaged"),
        (encode_record(FULL)[:-1], "its value is damaged"),
        (encode_record(FULL) + b"\x00", "its value is damaged: 1 bytes are left over"),
        (encode_record(replace(FULL, sequence=40)), "its value and its header differ"),
        (encode_record(replace(FULL, epoch=2)), "its value and its header differ"),
        (encode_record(replace(FULL, turn_remaining=0)), "its value and its header differ"),
    ],
    ids=["none", "empty", "cut off", "too long", "sequence", "epoch", "turn"],
)
def test_a_damaged_record_is_refused_by_its_offset(value: bytes | None, said: str) -> None:
    with pytest.raises(RecordError, match=said) as raised:
        decode_record(17, value, encode_header(header_of(FULL)))

    assert raised.value.offset == 17


@pytest.mark.clause("E9")
def test_an_envelope_of_another_version_is_refused_with_both_fingerprints() -> None:
    header = header_of(FULL)._replace(fingerprint=0xABC)

    with pytest.raises(RecordError) as raised:
        decode_record(17, encode_record(FULL), encode_header(header))

    assert f"has schema {0xABC:016x}" in raised.value.problem
    assert f"reads {ENVELOPE_FINGERPRINT:016x}" in raised.value.problem


def test_a_header_says_what_its_record_says() -> None:
    header = decode_header(encode_header(header_of(FULL, snapshot_offset=9)))

    assert header is not None
    assert (header.epoch, header.sequence, header.turn_remaining) == (3, 41, 2)
    assert (header.is_epoch_started, header.snapshot_offset) == (False, 9)
    assert header_of(EMPTY).sequence == -1
    assert header_of(EMPTY).is_epoch_started


def test_encoding_is_strict() -> None:
    avro = Avro('{"type":"record","name":"r","fields":[{"name":"n","type":"long"}]}')
    assert avro.decode(avro.encode({"n": 1})) == {"n": 1}
    wrong: list[dict[str, Plain]] = [{}, {"n": 1, "m": 2}, {"n": "text"}]
    for value in wrong:
        with pytest.raises((ValueError, TypeError)):
            avro.encode(value)


def test_a_fingerprint_depends_on_what_is_encoded_and_not_on_prose() -> None:
    one = '{"type":"record","name":"r","fields":[{"name":"n","type":"long"}]}'
    prose = '{"name":"r","type":"record","doc":"d","fields":[{"type":"long","name":"n","doc":"x"}]}'
    other = '{"type":"record","name":"r","fields":[{"name":"n","type":"int"}]}'

    assert avro_fingerprint(one) == avro_fingerprint(prose) != avro_fingerprint(other)


def test_a_payloads_fingerprint_depends_on_logical_types_and_their_places() -> None:
    plain = {"type": "long"}
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    tenths, hundredths = (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}
        for scale in (1, 2)
    )
    inner = {"type": "record", "name": "i", "fields": [{"name": "t", "type": millis}]}
    inner_micros = {"type": "record", "name": "i", "fields": [{"name": "t", "type": micros}]}
    kinds: list[object] = [plain, millis, micros, tenths, hundredths, inner, inner_micros]
    kinds += [{"type": "array", "items": kind} for kind in (plain, millis, micros)]
    kinds += [{"type": "map", "values": kind} for kind in (plain, millis, micros)]
    kinds += [["null", kind] for kind in (plain, millis, micros)]
    schemas = [
        json.dumps(
            {
                "type": "record",
                "name": "r",
                "fields": [{"name": "a", "type": a}, {"name": "b", "type": b}],
            }
        )
        for kind in kinds
        for a, b in ((kind, plain), (plain, kind))
    ]

    assert len({payload_fingerprint(schema) for schema in schemas}) == len(set(schemas))


@pytest.mark.parametrize(
    ("record", "key"),
    [(FULL, "ingest/3/0"), (replace(FULL, attempt_number=None), "ingest/epoch/3")],
)
def test_the_key_is_the_attempt_or_the_drivers_epoch(record: Record, key: str) -> None:
    assert record_key(record) == key
