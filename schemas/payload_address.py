"""Payloads that stand outside the log: what a record holds in their place, their address.

A payload above a limit is kept in the payload store, and the record holds where, how long it is and what it is. The
address is bytes like any payload, so that whoever passes payloads on (the fold, the kernel, audits) need not know the
difference; only who looks inside does::

    coordlog-payload:1:5242880:3-9f0c2ab41d5e6f70/2c26b46b68ffc68ff99b453c1d304134...

Length, then the path below the job's folder in the store: the epoch and the driver that kept it, and the SHA-256 of the
content. A payload that happens to begin like an address is told from one by a mark before it (`inline`).
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
"""The attribute of `EPOCH_STARTED` that names the store."""

LIMIT_ATTRIBUTE: Final = "payload_limit_bytes"
"""And this one the size above which a payload went there."""

ADDRESS_MARK: Final = b"coordlog-payload:"
"""What an address begins with."""
INLINE_MARK: Final = ADDRESS_MARK + b"0:"
"""What stands before a payload that begins like an address and is none."""
_OWNER: Final = r"[0-9]{1,10}-[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_ADDRESS: Final = re.compile(
    rf"coordlog-payload:1:(?P<length>[0-9]{{1,18}}):(?P<owner>{_OWNER})/(?P<sha256>[0-9a-f]{{64}})".encode()
)
_ADDRESS_LIKE: Final = re.compile(_ADDRESS.pattern.replace(b":1:", b":[0-9]+:", 1))
"""Of a later version too, as long as it is made alike."""
_PATH: Final = re.compile(rf"(?P<owner>{_OWNER})/(?P<sha256>[0-9a-f]{{64}})")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PayloadAddress:
    """Where a payload is kept, and how it is known when it is read again."""

    owner: str
    """The epoch that kept it, as `owner_of` names it: no two drivers ever write the same name."""
    sha256: str
    """Of the content; 64 hexadecimal digits."""
    length: int
    """Of the content, bytes."""

    @property
    def path(self) -> str:
        """Below the job's folder in the store; never leaves it."""
        return f"{self.owner}/{self.sha256}"

    @classmethod
    def of(cls, data: bytes, owner: str) -> PayloadAddress:
        """The address that `data` has, kept by `owner`."""
        return cls(owner=owner, sha256=hashlib.sha256(data).hexdigest(), length=len(data))

    def encode(self) -> bytes:
        """What stands in a record in place of the payload."""
        return ADDRESS_MARK + f"1:{self.length}:{self.path}".encode()


def owner_of(epoch: int, driver_id: str) -> str:
    """The folder of what one driver and its attempts keep.

    Raises:
        ValueError: The driver's id is none that could be a folder's name.
    """
    owner = f"{epoch}-{driver_id}"
    if not re.fullmatch(_OWNER, owner):
        raise ValueError(f"{owner!r} is no name for a folder")
    return owner


def is_path(path: str) -> bool:
    """Whether a path below a job's folder is that of a payload."""
    return _PATH.fullmatch(path) is not None


def inline(data: bytes) -> bytes:
    """What stands in a record for a payload that it holds itself: the payload, with a mark where one is needed."""
    return INLINE_MARK + data if data.startswith(ADDRESS_MARK) else data


def address_in(data: bytes | None) -> PayloadAddress | None:
    """The address that stands here; None where it is the payload itself.

    Raises:
        ValueError: It begins like an address and is none: damaged, or of a newer version.
    """
    if data is None or not data.startswith(ADDRESS_MARK) or data.startswith(INLINE_MARK):
        return None
    found = _ADDRESS.fullmatch(data)
    if found is None:
        raise ValueError(
            f"{data[:120]!r} is no address of a stored payload that this version reads"
        )
    return _address(found)


def is_stored(data: bytes) -> bool:
    """Whether an address stands here, or what begins like one: no payload."""
    return data.startswith(ADDRESS_MARK) and not data.startswith(INLINE_MARK)


def plain(data: bytes) -> bytes:
    """The payload that a record itself holds, without its mark; an address is left as it is."""
    return data.removeprefix(INLINE_MARK)


def opened(data: bytes, fetch: Callable[[PayloadAddress], bytes]) -> bytes:
    """The payload that stands here, or that `fetch` gives for the address that does.

    Raises:
        ValueError: It begins like an address and is none. What `fetch` raises.
    """
    address = address_in(data)
    return plain(data) if address is None else fetch(address)


def content_length(data: bytes | None) -> int:
    """How long the payload is that stands here, wherever it is kept; 0 for none."""
    try:
        address = address_in(data)
    except ValueError:
        return len(data or b"")
    return len(plain(data or b"")) if address is None else address.length


def addresses_among(data: bytes) -> Iterator[PayloadAddress]:
    """All that may be addresses in any bytes: for cleaning, to which one too many does no harm."""
    for found in _ADDRESS_LIKE.finditer(data):
        yield _address(found)


def content_digest_input(data: bytes) -> bytes:
    """What tells a payload's content from another's: the content, or of a stored one its checksum.

    The same content kept by two drivers has two addresses.
    """
    address = address_in(data)
    return data if address is None else address.sha256.encode()


def _address(found: re.Match[bytes]) -> PayloadAddress:
    return PayloadAddress(
        owner=found["owner"].decode(),
        sha256=found["sha256"].decode(),
        length=int(found["length"]),
    )
