"""Whole lines of a file or of a part of it, a block at a time, for JSON lines and text.

A line ends with LF; a CR before it belongs to the end. A line is of the part that holds its first
byte.
"""

from __future__ import annotations

import codecs

from coordlog.errors import SourceError
from coordlog.spark_integration.files.compression import Compression, codec_of
from coordlog.spark_integration.files.formats.text.encoding import is_utf8
from coordlog.spark_integration.files.formats.text.text_bytes import TextBytes, line_start
from coordlog.spark_integration.files.listing import InputFiles, SeenFile
from coordlog.spark_integration.files.missing import read_error

__all__ = ["LineBlocks", "line_parts", "open_lines"]


class LineBlocks:
    """The lines of a part, in blocks. Call `close` when done with it, whatever happened."""

    def __init__(
        self,
        files: InputFiles,
        seen: SeenFile,
        *,
        start: int,
        end: int,
        encoding: str,
        compression: Compression,
        block_bytes: int,
    ) -> None:
        """Open the file; `start` and `end` are those of its split.

        Raises:
            SourceError: The file cannot be read, or has changed.
        """
        self.lines_before = 0
        """Lines of this part before the last block."""
        self.is_at_end = False
        """Whether the last block was the end of the part."""
        self._path, self._encoding = seen.path, encoding
        self.block_bytes = block_bytes
        """Bytes that are read at once."""
        self._rest, self._lines = b"", 0
        self._bytes, self._begins_at = open_lines(
            files, seen, start=start, end=end, encoding=encoding, compression=compression
        )

    @property
    def stream(self) -> TextBytes:
        """The bytes of the part, for a caller that cuts them itself and calls `next` never."""
        return self._bytes

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, unpacked."""
        return self._bytes.bytes_read

    def next(self) -> str | None:
        """The next whole lines, the last of a file perhaps without an end; None after the last.

        Raises:
            SourceError: A line is longer than a block, or not of the encoding.
        """
        if self.is_at_end:
            return None
        wanted = self.block_bytes - len(self._rest)
        read = self._bytes.read(wanted)
        data, self.is_at_end = self._rest + read, len(read) < wanted
        cut = len(data) if self.is_at_end else data.rfind(b"\n") + 1
        self.lines_before = self._lines
        if not cut and data:
            raise SourceError(
                self._path,
                f"{self.line(0)} is longer than a block of {self.block_bytes} bytes",
                "check that it is a file of lines, or set a larger `block_bytes=`",
            )
        block, self._rest = data[:cut], data[cut:]
        self._lines += block.count(b"\n")
        if not self.lines_before and not self._begins_at:
            block = block.removeprefix(codecs.BOM_UTF8)
        if not block:
            return None
        try:
            return block.decode()
        except UnicodeDecodeError as error:
            place = block.count(b"\n", 0, error.start)
            raise SourceError(
                self._path,
                f"{self.line(place)} is not {self._encoding}: {error.reason} "
                f"(0x{block[error.start]:02x})",
                "set its encoding with `encoding=`",
            ) from error

    def line(self, place: int) -> str:
        """Text for messages of line `place` of the last block; the first is 0."""
        number = self.lines_before + place + 1
        if self._begins_at:
            return f"line {number} of the part that begins at byte {self._begins_at}"
        return f"line {number}"

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()


def open_lines(
    files: InputFiles,
    seen: SeenFile,
    *,
    start: int,
    end: int,
    encoding: str,
    compression: Compression,
) -> tuple[TextBytes, int]:
    """The whole lines of a part, and the byte of the file at which they begin.

    Raises:
        SourceError: The file cannot be read, or has changed.
    """
    begins_at, size = 0, seen.size_bytes
    file = files.open(seen)
    ranges: list[tuple[int, int]] | None = None
    try:
        if (start, end) != (0, size):
            begins_at = line_start(file, start, size, by_cr=False)
            last = line_start(file, end, size, by_cr=False)
            ranges = [(begins_at, max(last, begins_at))]
    except Exception as error:  # whatever its file system raises
        file.close()
        raise read_error(
            seen.path, "it cannot be read", "check that the file is whole", error
        ) from error
    text = TextBytes(
        seen.path,
        file,
        ranges,
        None if is_utf8(encoding) else encoding,
        codec=codec_of(seen.path, compression),
        for_csv=False,
    )
    return text, begins_at


def line_parts(size_bytes: int, split_bytes: int, *, may_cut: bool) -> list[tuple[int, int]]:
    """Splits of a file of lines, each as (first byte, byte after the last)."""
    if not may_cut or size_bytes <= split_bytes:
        return [(0, size_bytes)]
    return [
        (start, min(start + split_bytes, size_bytes)) for start in range(0, size_bytes, split_bytes)
    ]
