"""Files of a web server: their `info`, and how they are read from their start.

A web server has no listing: an index of it is a page for people, and nothing shows what it leaves out.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from coordlog.errors import SourceUnavailableError
from coordlog.limits import WEB_SILENCE_S
from coordlog.spark_integration.files.urls import WEB

__all__ = ["WholeBody", "headers_for_ranges", "info_of", "web_info", "web_options"]


def web_options() -> Mapping[str, Any]:
    """Options of fsspec for a web server: by default an answer is cut after 300 s, however much of it is left."""
    from aiohttp import ClientTimeout  # noqa: PLC0415, an extra

    return {"timeout": ClientTimeout(total=None, sock_connect=30.0, sock_read=WEB_SILENCE_S)}


# `Any` here and below: fsspec has no types.
def info_of(file_system: Any, name: str) -> Mapping[str, Any]:  # noqa: ANN401
    """`info` of a file.

    Raises:
        OSError: There is none of that name, or the file system refuses.
        SourceUnavailableError: A web server sends a page in place of a file, such as of a login or of a folder.
    """
    info: Mapping[str, Any] = file_system.info(name)
    if name.startswith(WEB) and info.get("mimetype") == "text/html":
        # Without a query, which may hold a secret.
        there = urlsplit(str(info.get("url", name)))._replace(query="", fragment="").geturl()
        raise SourceUnavailableError(
            name,
            f"the page at {there} is HTML, not the file",
            "look at it in a browser: perhaps it asks for a login, or is the index of a folder, which is not read",
        ) from ConnectionError(there)  # not a fault of the file's
    return info


def web_info(file_system: Any, name: str) -> Mapping[str, Any]:  # noqa: ANN401
    """`info_of` a file of a web server.

    Raises:
        Exception: The answer, which fsspec hides behind a FileNotFoundError: the server may be busy.
        SourceUnavailableError: As `info_of`.
    """
    try:
        return info_of(file_system, name)
    except FileNotFoundError as error:
        raise error.__cause__ or error from None


def headers_for_ranges(file_system: Any) -> dict[str, str]:  # noqa: ANN401
    """Headers of requests for ranges of a web server, which has none of a file that it compresses on its way."""
    own = getattr(file_system, "kwargs", {}).get("headers", {})
    return {**own, "Accept-Encoding": "identity"}


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
