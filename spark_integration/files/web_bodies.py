"""Files of a web server that are read from their start."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, BinaryIO

from coordlog.limits import WEB_SILENCE_S

__all__ = ["WholeBody", "web_options"]


def web_options() -> Mapping[str, Any]:
    """Options of fsspec for a web server: by default an answer is cut after 300 s, however much of it is left."""
    from aiohttp import ClientTimeout  # noqa: PLC0415, an extra

    return {"timeout": ClientTimeout(total=None, sock_connect=30.0, sock_read=WEB_SILENCE_S)}


class WholeBody(io.RawIOBase):
    """Body of a web server's answer. Reads raise ConnectionError if its size is not the one that was reported.

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
