"""Reader of compressed files with several members: compressed contents that follow one another."""

from __future__ import annotations

import bz2
import io
import lzma
from typing import BinaryIO, Final, Protocol

__all__ = ["Members"]

_READ_BYTES: Final = 64 * 1024
_XZ_MAGIC: Final = b"\xfd7zXZ\x00"
_XZ_PADDING: Final = 4
"""The number of zero bytes between and after the streams of an .xz file is a multiple of this."""


class _Member(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class Members(io.RawIOBase):
    """The content of all members of an xz or a bz2 file, one after the other.

    Each byte of the file must belong to a member, or to padding that the format allows. Other readers
    drop data without an error: `lzma.open` ignores unreadable bytes after a whole member, and Arrow
    stops at an empty bz2 member.
    `close` does not close `file`. `read` raises EOFError, OSError or LZMAError.
    """

    def __init__(self, file: BinaryIO, codec: str) -> None:
        assert codec in ("xz", "bz2"), "Arrow reads the others"
        self._file, self._codec = file, codec
        self._format = lzma.FORMAT_XZ
        self._ahead = b""
        """Compressed bytes that were read from the file and not yet decompressed."""
        self._member: _Member | None = None
        self._count = 0
        """Number of members begun."""

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Between one byte and `size` bytes of content; no bytes at the end of the file."""
        wanted = size if size > 0 else _READ_BYTES
        while self._member is not None or self._begin():
            member = self._member
            assert member is not None, "it has just been begun"
            chunk = self._more() if member.needs_input else b""
            if member.needs_input and not chunk:
                raise EOFError("it ends before its packed content does")
            content = member.decompress(chunk, wanted)
            if member.eof:
                self._ahead, self._member = member.unused_data, None
            if content:
                return content
        return b""

    def _more(self) -> bytes:
        chunk, self._ahead = self._ahead or self._file.read(_READ_BYTES), b""
        return chunk

    def _begin(self) -> bool:
        """Begin the next member, after the padding. Returns False at the end of the file."""
        padding = 0
        while True:
            self._ahead = self._more()
            if self._count and self._codec == "xz":
                rest = self._ahead.lstrip(b"\0")
                padding += len(self._ahead) - len(rest)
                if self._ahead and not rest:
                    self._ahead = b""
                    continue
                self._ahead = rest
            break
        if padding % _XZ_PADDING:
            raise lzma.LZMAError(
                f"{padding} bytes of padding follow packed content, no multiple of 4"
            )
        if not self._ahead:
            if not self._count:
                raise EOFError("it holds nothing packed")
            return False
        if self._count == 0 and not self._ahead.startswith(_XZ_MAGIC[: len(self._ahead)]):
            self._format = lzma.FORMAT_AUTO  # perhaps .lzma, the older format of `xz`
        self._count += 1
        self._member = (
            lzma.LZMADecompressor(self._format) if self._codec == "xz" else bz2.BZ2Decompressor()
        )
        return True
