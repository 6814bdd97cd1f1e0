"""Addresses of payloads that are stored outside the log.

A payload above a limit is stored in the payload store, and the record holds its address: path, length and checksum. An
address is bytes like any payload, so code that only forwards payloads (the fold, the kernel, audits) treats both alike;
only code that reads their content opens them::

    coordlog-payload:1:5242880:3-9f0c2ab41d5e6f70/2c26b46b68ffc68ff99b453c1d304134...

Length, then the path below the job's folder in the store: the epoch and the driver that stored it, and the SHA-256 of
the content. A payload that has the prefix of an address itself gets a mark before it (`inline`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = [
    "ADDRESS_MARK",
    "INLINE_MARK",
    "LIMIT_ATTRIBUTE",
    "STORE_ATTRIBUTE",
    "PayloadAddress",
    "address_in",
    "addresses_among",
    "content_digest_input",
    "content_length",
    "inline",
    "is_path",
    "is_stored",
    "opened",
    "owner_of",
    "plain",
]

STORE_ATTRIBUTE: Final = "payload_store"
"""Attribute of `EPOCH_STARTED` with the name of the store."""

LIMIT_ATTRIBUTE: Final = "payload_limit_bytes"
"""Attribute of `EPOCH_STARTED` with the size in bytes above which a payload is stored outside the log."""

ADDRESS_MARK: Final = b"coordlog-payload:"
"""Prefix of an address."""
INLINE_MARK: Final = ADDRESS_MARK + b"0:"
"""Mark before a payload that has the prefix of an address and is no address."""
_OWNER: Final = r"[0-9]{1,10}-[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_ADDRESS: Final = re.compile(
    rf"coordlog-payload:1:(?P<length>[0-9]{{1,18}}):(?P<owner>{_OWNER})/(?P<sha256>[0-9a-f]{{64}})".encode()
)
_ADDRESS_LIKE: Final = re.compile(_ADDRESS.pattern.replace(b":1:", b":[0-9]+:", 1))
"""Pattern of addresses of any version with the same layout."""
_PATH: Final = re.compile(rf"(?P<owner>{_OWNER})/(?P<sha256>[0-9a-f]{{64}})")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PayloadAddress:
    """Place of a stored payload, with length and checksum of its content to verify it."""

    owner: str
    """Folder of the epoch that stored it, by `owner_of`: no two drivers ever write to the same folder."""
    sha256: str
    """Hash of the content, 64 hexadecimal digits."""
    length: int
    """Length of the content in bytes."""

    @property
    def path(self) -> str:
        """Path below the job's folder in the store; never outside it."""
        return f"{self.owner}/{self.sha256}"

    @classmethod
    def of(cls, data: bytes, owner: str) -> PayloadAddress:
        """The address of `data`, stored by `owner`."""
        return cls(owner=owner, sha256=hashlib.sha256(data).hexdigest(), length=len(data))

    def encode(self) -> bytes:
        """The bytes in a record instead of the payload."""
        return ADDRESS_MARK + f"1:{self.length}:{self.path}".encode()


def owner_of(epoch: int, driver_id: str) -> str:
    """The folder for payloads of one driver and its attempts.

    Raises:
        ValueError: The driver's id cannot be part of a folder's name.
    """
    owner = f"{epoch}-{driver_id}"
    if not re.fullmatch(_OWNER, owner):
        raise ValueError(f"{owner!r} is no name for a folder")
    return owner


def is_path(path: str) -> bool:
    """Whether a path below a job's folder is that of a payload."""
    return _PATH.fullmatch(path) is not None


def inline(data: bytes) -> bytes:
    """The bytes in a record for a payload that it holds itself: the payload, with a mark if needed."""
    return INLINE_MARK + data if data.startswith(ADDRESS_MARK) else data


def address_in(data: bytes | None) -> PayloadAddress | None:
    """The address in a record's bytes, or None if they are the payload itself.

    Raises:
        ValueError: The bytes have the prefix of an address and are none: damaged, or of a newer version.
    """
    if data is None or not data.startswith(ADDRESS_MARK) or data.startswith(INLINE_MARK):
        return None
    match = _ADDRESS.fullmatch(data)
    if match is None:
        raise ValueError(
            f"{data[:120]!r} is no address of a stored payload that this version reads"
        )
    return _address(match)


def is_stored(data: bytes) -> bool:
    """Whether the bytes are an address, or have its prefix: not a payload."""
    return data.startswith(ADDRESS_MARK) and not data.startswith(INLINE_MARK)


def plain(data: bytes) -> bytes:
    """The payload that a record itself holds, without its mark; an address is returned unchanged."""
    return data.removeprefix(INLINE_MARK)


def opened(data: bytes, fetch: Callable[[PayloadAddress], bytes]) -> bytes:
    """The payload in a record's bytes, or the payload that `fetch` returns for their address.

    Raises:
        ValueError: The bytes have the prefix of an address and are none. Also all errors of `fetch`.
    """
    address = address_in(data)
    return plain(data) if address is None else fetch(address)


def content_length(data: bytes | None) -> int:
    """Length of a payload in bytes, in the record or in the payload store; 0 for none."""
    try:
        address = address_in(data)
    except ValueError:
        return len(data or b"")
    return len(plain(data or b"")) if address is None else address.length


def addresses_among(data: bytes) -> Iterator[PayloadAddress]:
    """All byte sequences that may be addresses: for cleaning, for which a false address does no harm."""
    for match in _ADDRESS_LIKE.finditer(data):
        yield _address(match)


def content_digest_input(data: bytes) -> bytes:
    """Bytes that identify a payload's content: the content, or the checksum if it is stored outside the log.

    Not the address, because the same content stored by two drivers has two addresses.
    """
    address = address_in(data)
    return data if address is None else address.sha256.encode()


def _address(match: re.Match[bytes]) -> PayloadAddress:
    return PayloadAddress(
        owner=match["owner"].decode(),
        sha256=match["sha256"].decode(),
        length=int(match["length"]),
    )
