"""Checks of a text encoding before a file is read."""

from __future__ import annotations

import codecs

from coordlog.errors import OptionError

__all__ = ["check_encoding", "has_whole_line_ends", "is_utf8"]

_BYTES = 256


def check_encoding(encoding: str) -> None:
    """Raise OptionError if Python does not know the encoding."""
    try:
        b"some".decode(encoding, "replace")  # Python looks no encoding up for empty bytes
    except LookupError as error:
        raise OptionError("encoding", encoding, "one that Python knows") from error


def is_utf8(encoding: str) -> bool:
    """Whether Arrow can read the bytes as they are."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def has_whole_line_ends(encoding: str) -> bool:
    """Whether each byte that looks like a line end is one, and no other is, whatever comes before it.

    So a file can be cut at any line end. Of others than UTF-8 this holds if each byte is one character by itself:
    an encoding with a state (`hz`, in which `~` makes a line end vanish, `utf-7`, `iso2022_jp`) has none after a cut.
    """
    if is_utf8(encoding):
        return True
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    before = decoder.getstate()
    for byte in range(_BYTES):
        text = decoder.decode(bytes([byte]))
        if len(text) != 1 or decoder.getstate() != before:
            return False
        if any((text == end) != (byte == ord(end)) for end in "\n\r"):
            return False
    return True
