"""What must be known of a text file's encoding before it is read."""

from __future__ import annotations

import codecs

from coordlog.errors import OptionError

__all__ = ["check_encoding", "has_whole_line_ends", "is_utf8"]

_BYTES = 256


def check_encoding(encoding: str) -> None:
    """Raise OptionError where Python does not know it."""
    try:
        b"some".decode(encoding, "replace")  # of nothing, Python does not even look it up
    except LookupError as error:
        raise OptionError("encoding", encoding, "one that Python knows") from error


def is_utf8(encoding: str) -> bool:
    """Whether Arrow can read the bytes as they are."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def has_whole_line_ends(encoding: str) -> bool:
    """Whether each byte that looks like a line end is one, and no other is."""
    if is_utf8(encoding):
        return True
    text = bytes(range(_BYTES)).decode(encoding, "replace")
    return (
        len(text) == _BYTES
        and [i for i, one in enumerate(text) if one == "\n"] == [0x0A]
        and [i for i, one in enumerate(text) if one == "\r"] == [0x0D]
    )
