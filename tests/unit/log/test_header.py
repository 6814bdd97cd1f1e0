"""The packed header's bytes."""

from __future__ import annotations

import pytest

from coordlog.schemas.header import (
    HEADER_BYTES,
    Header,
    decode_header,
    encode_header,
    header_places,
)

ONE = Header(
    epoch=3,
    sequence=258,
    turn_remaining=2,
    is_epoch_started=False,
    fingerprint=0xFEDCBA9876543210,
    snapshot_offset=5,
)
ONE_BYTES = bytes.fromhex(
    "01 00 fedcba9876543210 00000003 0000000000000102 00000002 0000000000000005"
)


def test_the_bytes_are_the_documented_ones() -> None:
    assert encode_header(ONE) == ONE_BYTES
    assert len(ONE_BYTES) == HEADER_BYTES == 34


def test_a_header_is_read_as_it_was_written() -> None:
    assert decode_header(ONE_BYTES) == ONE


def test_an_epoch_started_is_flagged_and_has_no_sequence() -> None:
    header = Header(epoch=0, sequence=-1, turn_remaining=0, is_epoch_started=True, fingerprint=0)
    data = encode_header(header)
    assert data[1] == 1
    assert decode_header(data) == header


@pytest.mark.parametrize(
    "data",
    [None, b"", ONE_BYTES[:-1], ONE_BYTES + b"\0", b"\x02" + ONE_BYTES[1:], b"\0" * 34],
    ids=["none", "empty", "short", "long", "another version", "zeros"],
)
def test_what_is_not_a_header_of_this_version_is_none(data: bytes | None) -> None:
    assert decode_header(data) is None


def test_places_are_what_decides_without_the_rest() -> None:
    epoch = Header(epoch=4, sequence=-1, turn_remaining=0, is_epoch_started=True, fingerprint=1)
    assert list(header_places([ONE_BYTES, encode_header(epoch)])) == [
        (False, 3, 258, 2),
        (True, 4, -1, 0),
    ]
    assert list(header_places([])) == []
