"""What stands in a record in place of a large payload, and how it is told from one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordlog.errors import PayloadLostError
from coordlog.projections.job.event_skips import digest_of
from coordlog.schemas.payload import open_inline
from coordlog.schemas.payload_address import (
    PayloadAddress,
    address_in,
    addresses_among,
    inline,
    is_path,
    owner_of,
    plain,
)

SHA = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
"""Of `hello`, by sha256sum."""
HELLO = b"coordlog-payload:1:5:3-9f0c2ab41d5e6f70/" + SHA.encode()


def test_an_address_has_length_owner_and_checksum_of_the_content() -> None:
    address = PayloadAddress.of(b"hello", owner_of(3, "9f0c2ab41d5e6f70"))

    assert address.encode() == HELLO
    assert address.path == f"3-9f0c2ab41d5e6f70/{SHA}"
    assert address_in(HELLO) == address


@pytest.mark.parametrize(
    "data",
    [
        b"coordlog-payload:",
        b"coordlog-payload:2:5:3-a/" + SHA.encode(),
        HELLO[:-1],
        HELLO + b"0",
        HELLO + b"\n",
        b"coordlog-payload:1:-5:3-a/" + SHA.encode(),
        b"coordlog-payload:1:5:../" + SHA.encode(),
        b"coordlog-payload:1:5:3-../../etc/" + SHA.encode(),
        b"coordlog-payload:1:5:/etc/" + SHA.encode(),
        b"coordlog-payload:1:5:3-a/../" + SHA.encode(),
        b"coordlog-payload:1:5:3-a/" + SHA.upper().encode(),
        b"coordlog-payload:1:5:3-\xc3\xa9/" + SHA.encode(),
    ],
)
def test_an_invalid_address_is_refused_and_not_taken_for_the_payload(
    data: bytes,
) -> None:
    with pytest.raises(ValueError, match="no address of a stored payload"):
        address_in(data)


@pytest.mark.parametrize("driver_id", ["", "..", "a/b", "a b", "-a", "a" * 65, "é", "a\n"])
def test_a_driver_id_that_could_leave_the_folder_names_none(driver_id: str) -> None:
    with pytest.raises(ValueError, match="no name for a folder"):
        owner_of(1, driver_id)


@given(st.binary(), st.sampled_from([b"", b"coordlog-payload:", b"coordlog-payload:0:", HELLO]))
def test_a_payload_that_happens_to_look_like_an_address_is_itself_again(
    tail: bytes, head: bytes
) -> None:
    data = head + tail
    stands = inline(data)

    assert address_in(stands) is None
    assert plain(stands) == data
    assert open_inline(stands) == data


def test_a_payload_that_does_not_is_held_as_it_is() -> None:
    assert inline(b"x" * 100) == b"x" * 100
    assert address_in(None) is None


def test_a_reader_without_a_store_refuses_by_name() -> None:
    with pytest.raises(PayloadLostError) as refused:
        open_inline(HELLO)

    assert str(refused.value) == (
        f"the stored payload 3-9f0c2ab41d5e6f70/{SHA} of 5 bytes, looked for in no payload store: "
        "this reader has none; name the job's with --payload-store, or payload_store"
    )


def test_every_address_among_other_bytes_is_found() -> None:
    other = PayloadAddress.of(b"x", owner_of(0, "driver-0")).encode()

    found = list(addresses_among(b"\x00\xff" + HELLO + b"\x02" + other + b"coordlog-payload:1:"))

    assert [one.encode() for one in found] == [HELLO, other]


def test_an_address_of_a_later_version_is_one_for_cleaning() -> None:
    """What it addresses is not left over."""
    (found,) = addresses_among(b"\x00" + HELLO.replace(b":1:", b":7:", 1) + b"\x02")

    assert found == address_in(HELLO)


def test_an_event_that_another_driver_sends_again_is_known_by_its_content() -> None:
    one = PayloadAddress.of(b"hello", owner_of(0, "a")).encode()
    other = PayloadAddress.of(b"hello", owner_of(1, "b")).encode()

    assert (
        digest_of(one)
        == digest_of(other)
        != digest_of(PayloadAddress.of(b"bye", owner_of(0, "a")).encode())
    )


def test_paths_of_payloads_are_told_from_others() -> None:
    assert is_path(f"3-a/{SHA}")
    assert not is_path(f"3-a/.{SHA[:16]}-0123456789abcdef.part")
    assert not is_path(f"3-a/b/{SHA}")
    assert not is_path(f"../{SHA}")
