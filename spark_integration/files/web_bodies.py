"""Files of a web server that are read from their start."""

from __future__ import annotations

import io
from typing import BinaryIO

__all__ = ["WholeBody"]


class WholeBody(io.RawIOBase):
    """Reads an answer of a web server, and raises ConnectionError if it has not the size that the server has told.

    Without a length of its own an answer ends with its connection, and a compressed one anywhere: nothing else shows
    that it was cut, or is another one.
    """

    def __init__(self, body: BinaryIO, size_bytes: int) -> None:
        self._body, self._size_bytes = body, size_bytes
        self._count = 0

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; no bytes at the end."""
        chunk = self._body.read(size)
        self._count += len(chunk)
        if size and not chunk and self._count < self._size_bytes:
            raise ConnectionError(
                f"the answer ends after {self._count} bytes of {self._size_bytes}"
            )
        if self._count > self._size_bytes:
            raise ConnectionError(f"the answer has more than the {self._size_bytes} bytes of it")
        return chunk

    def close(self) -> None:
        """Close the answer too."""
        self._body.close()
        super().close()
