"""The bytes of a CSV file, or of a part of one, as Arrow is to see them: UTF-8, whole lines.

Where a part begins and ends is decided by one rule, `line_start`, asked by both of the parts that
meet at a cut, so that each line belongs to exactly one of them wherever the cut is.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable
from typing import BinaryIO, Final

import pyarrow as pa

from coordlog.errors import SourceError

__all__ = ["CsvBytes", "compression_of", "header_end", "line_start", "refuse_archive"]

_SCAN_BYTES: Final = 64 * 1024
_BOM: Final = codecs.BOM_UTF8
_CODECS: Final = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bz2",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".lz4": "lz4",
}
_REFUSED: Final = (".zip", ".xz", ".7z", ".tar", ".tgz", ".rar", ".br", ".snappy", ".sz", ".Z")


def compression_of(path: str) -> str | None:
    """Arrow's name of the codec that the file's name tells, or None."""
    return next((codec for end, codec in _CODECS.items() if path.endswith(end)), None)


def refuse_archive(path: str) -> None:
    """Raise SourceError where the file's name tells of a form that cannot be read."""
    for end in _REFUSED:
        if path.endswith(end):
            raise SourceError(
                path,
                f"{end} files are not read",
                f"unpack it, or pack it in one of {', '.join(sorted(_CODECS))}",
            )


def line_start(file: BinaryIO, cut: int, size_bytes: int) -> int:
    """The first place, not before `cut`, where a line begins; `size_bytes` where none does.

    A line ends with LF, CR LF or CR. `cut` may be anywhere, inside a character or between CR and
    LF.
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
        ends = [place for place in (chunk.find(b"\n"), chunk.find(b"\r")) if place >= 0]
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


class CsvBytes(io.RawIOBase):
    """Reads the given ranges of a file one after the other, and hands them on in UTF-8.

    Where nothing in them ends a line, one line end is added: Arrow does not see a header that
    nothing follows. Arrow calls `read` from a thread of its own; nothing else may be called until
    its reader is closed.
    """

    def __init__(
        self, path: str, file: BinaryIO, ranges: list[tuple[int, int]] | None, encoding: str | None
    ) -> None:
        """`ranges` of None is all of the file, decompressed by its name.

        `encoding` of None hands bytes on as they are.
        """
        self.bytes_read = 0
        self._path = path
        self._encoding = encoding
        self._decoder = None if encoding is None else codecs.getincrementaldecoder(encoding)()
        self._ranges = list(ranges or [])
        self._has_line_end = False
        self._is_at_end = False
        self._ready = b""
        codec = compression_of(path) if ranges is None else None
        self._file = file
        self._inner = (
            file
            if codec is None
            else pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
        )
        self._next: Callable[[int], bytes] = self._read_all if ranges is None else self._read_ranges

    def readable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Exactly `size` bytes, fewer only at the end.

        After a short first block, a header alone, Arrow would have nothing to begin with.
        """
        wanted = size if size >= 0 else _SCAN_BYTES
        while len(self._ready) < wanted and not self._is_at_end:
            self._ready += self._read_on(wanted - len(self._ready))
        given, self._ready = self._ready[:wanted], self._ready[wanted:]
        return given

    def _read_on(self, size: int) -> bytes:
        try:
            chunk = self._next(size)
        except OSError as error:
            raise SourceError(
                self._path,
                f"it cannot be read on after {self.bytes_read} bytes: {error}",
                "see that the file is whole, and of the form that its name tells",
            ) from error
        self.bytes_read += len(chunk)
        self._is_at_end = not chunk
        text = self._in_utf8(chunk)
        self._has_line_end = self._has_line_end or b"\n" in text or b"\r" in text
        return text + b"\n" if self._is_at_end and not self._has_line_end else text

    def close(self) -> None:
        """Close the file too."""
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

    def _in_utf8(self, chunk: bytes) -> bytes:
        if self._decoder is None:
            return chunk
        try:
            return self._decoder.decode(chunk, final=not chunk).encode()
        except UnicodeError as error:
            raise SourceError(
                self._path,
                f"it is not {self._encoding}, near byte {self.bytes_read}: {error}",
                "give the encoding that it has with `encoding=`",
            ) from error
