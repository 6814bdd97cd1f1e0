"""The bytes of a text file, or of a part of it, for Arrow: UTF-8, whole lines.

One rule, `line_start`, gives the begin and the end of a part. Both parts that meet at a cut use it,
so that each line belongs to exactly one of them for every cut.
"""

from __future__ import annotations

import codecs
import io
import threading
from collections.abc import Callable
from typing import BinaryIO, Final

from coordlog.errors import SourceError
from coordlog.spark_integration.files.compression import unpacked
from coordlog.spark_integration.files.missing import read_error

__all__ = ["TextBytes", "header_end", "line_start"]

_SCAN_BYTES: Final = 64 * 1024
_BOM: Final = codecs.BOM_UTF8
_LINE_ENDS_MAX: Final = 1024 * 1024
"""Bytes of line ends at the beginning of a file that are searched for a row."""
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks, the longer first: that of UTF-32 begins with that of UTF-16."""


def line_start(file: BinaryIO, cut: int, size_bytes: int, *, by_cr: bool = True) -> int:
    """The first place, not before `cut`, where a line begins; `size_bytes` if none does.

    A line ends with LF or CR LF, and if `by_cr` is True with CR too. `cut` may be anywhere,
    inside a character or between CR and LF.
    """
    if cut <= 0:
        return 0
    at = cut - 1
    file.seek(at)
    ended_by_cr = False
    while at < size_bytes:
        chunk = file.read(min(_SCAN_BYTES, size_bytes - at))
        if not chunk:
            break
        if ended_by_cr:
            return at + 1 if chunk.startswith(b"\n") else at
        marks = (b"\n", b"\r") if by_cr else (b"\n",)
        ends = [place for place in map(chunk.find, marks) if place >= 0]
        if ends:
            end = min(ends)
            if chunk[end : end + 1] == b"\n":
                return at + end + 1
            if end + 1 < len(chunk):
                return at + end + (2 if chunk[end + 1 : end + 2] == b"\n" else 1)
            ended_by_cr = True
        at += len(chunk)
    return size_bytes


def header_end(file: BinaryIO, size_bytes: int) -> int:
    """The place after the first line that is not empty, which names the columns."""
    at = 0
    while at < size_bytes:
        end = line_start(file, at + 1, size_bytes)
        file.seek(at)
        line = file.read(min(end - at, len(_BOM) + 3))
        if at == 0:
            line = line.removeprefix(_BOM)
        if line.strip(b"\r\n"):
            return end
        at = end
    return size_bytes


class TextBytes(io.RawIOBase):
    """Reads the given ranges of a file one after the other, and hands them on in UTF-8.

    With `for_csv`, for Arrow's reader: if nothing in them ends a line, one line end is added, because
    Arrow does not see a header that nothing follows; and no block ends between CR and LF. Arrow calls
    `read` from a thread of its own; nothing else may be called until its reader is closed.
    """

    def __init__(
        self,
        path: str,
        file: BinaryIO,
        ranges: list[tuple[int, int]] | None,
        encoding: str | None,
        *,
        codec: str | None = None,
        for_csv: bool = True,
    ) -> None:
        """`ranges` of None is the whole file, unpacked by `codec` if there is one.

        `encoding` of None hands bytes on as they are.
        """
        self.bytes_read = 0
        """Bytes read so far, unpacked."""
        self._path = path
        self._encoding, self._codec = encoding, codec
        self._decoder = None if encoding is None else codecs.getincrementaldecoder(encoding)()
        self._ranges = list(ranges or [])
        self._for_csv, self._has_line_end = for_csv, not for_csv
        self._is_at_end = False
        self._ready = b""
        self._reading = threading.RLock()
        assert ranges is None or codec is None, "a packed file is read whole"
        self._file = file
        self._inner = file if codec is None else unpacked(file, codec)
        self._next: Callable[[int], bytes] = self._read_all if ranges is None else self._read_ranges

    def readable(self) -> bool:
        """True."""
        return True

    def has_text(self, block_bytes: int = _SCAN_BYTES) -> bool:
        """Whether anything but line ends, and a byte order mark, is in the file; consumes nothing.

        Only its beginning is searched: True for a file that begins with a mebibyte of line ends.
        A `read` of `block_bytes` that follows copies nothing.

        Raises:
            SourceError: The file cannot be read, or is in another encoding.
        """
        with self._reading:
            while True:
                text = self._ready.removeprefix(_BOM)
                if text.strip(b"\r\n") or len(text) >= _LINE_ENDS_MAX:
                    return True
                if self._is_at_end or self.closed:
                    return False
                self._ready += self._read_on(max(block_bytes, _SCAN_BYTES))

    def read(self, size: int = -1, /) -> bytes:
        """Exactly `size` bytes, fewer at the end; for CSV one fewer if the last would be a CR and more follows.

        After a short first block, a header alone, Arrow would have nothing to begin with. A CR that ends
        a block takes the LF that begins the next one with it, inside quotes too (apache/arrow#51368).
        """
        wanted = size if size >= 0 else _SCAN_BYTES
        with self._reading:
            self._fill(wanted)
            if self._for_csv and wanted > 1 and self._ready[wanted - 1 : wanted] == b"\r":
                self._fill(wanted + 1)  # shows whether more follows
                wanted -= len(self._ready) > wanted
            piece, self._ready = self._ready[:wanted], self._ready[wanted:]
        return piece

    def _fill(self, size: int) -> None:
        while len(self._ready) < size and not self._is_at_end and not self.closed:
            self._ready += self._read_on(size - len(self._ready))

    def _read_on(self, size: int) -> bytes:
        try:
            chunk = self._next(size)
        except Exception as error:  # whatever its file system or its codec raises
            of_what = "bytes" if self._codec is None else f"unpacked bytes ({self._codec})"
            raise read_error(
                self._path,
                f"it cannot be read on after {self.bytes_read} {of_what}",
                "check that the file is whole, and of the form that its name or `compression=` tells",
                error,
            ) from error
        self.bytes_read += len(chunk)
        self._is_at_end = not chunk
        if self.bytes_read == len(chunk):
            self._check_encoding(chunk)
        text = self._in_utf8(chunk)
        self._has_line_end = self._has_line_end or b"\n" in text or b"\r" in text
        return text + b"\n" if self._is_at_end and not self._has_line_end else text

    def close(self) -> None:
        """Close the file too; a read that Arrow still has under way ends first.

        1. Arrow's thread reads ahead, from descriptor 9.  2. Without the lock 9 is closed here.
        3. The next file is opened as 9.  4. The read takes bytes of that one, which it then lacks.
        """
        with self._reading:
            if not self.closed:
                self._inner.close()
                self._file.close()
            super().close()

    def _read_all(self, size: int) -> bytes:
        return bytes(self._inner.read(size))

    def _read_ranges(self, size: int) -> bytes:
        while self._ranges:
            start, end = self._ranges[0]
            if start < end:
                self._file.seek(start)
                chunk = self._file.read(min(size, end - start))
                if not chunk:
                    raise OSError(f"it ends at byte {start}, before byte {end}")
                self._ranges[0] = (start + len(chunk), end)
                return chunk
            del self._ranges[0]
        return b""

    def _check_encoding(self, chunk: bytes) -> None:
        """Refuse a file whose first bytes mark another encoding."""
        if self._decoder is not None:
            return
        marked = next((name for mark, name in _MARKS if chunk.startswith(mark)), None)
        if marked is not None:
            raise SourceError(
                self._path,
                f"it begins with the byte order mark of {marked}, and is read as UTF-8",
                f'set its encoding: `encoding="{marked}"`',
            ) from ValueError("another encoding")

    def _in_utf8(self, chunk: bytes) -> bytes:
        if self._decoder is None:
            return chunk
        try:
            return self._decoder.decode(chunk, final=not chunk).encode()
        except UnicodeError as error:
            raise SourceError(
                self._path,
                f"it is not {self._encoding}, near byte {self.bytes_read}: {error}",
                "set its encoding with `encoding=`",
            ) from error
