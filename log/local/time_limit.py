"""One time limit for all reads and writes of a socket: the timeout of a socket is for each of them alone."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

__all__ = ["limited_time"]


@contextlib.contextmanager
def limited_time(connection: socket.socket, limit_s: float) -> Iterator[threading.Event]:
    """Shut the connection down if the block is not over after `limit_s` seconds: its reads then end, its writes raise.

    Yields an event that is set once the time is over.
    """
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        with contextlib.suppress(OSError):  # closed meanwhile
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, limit_s), end)
    timer.name, timer.daemon = "coordlog-time-limit", True
    timer.start()
    try:
        yield is_over
    finally:
        timer.cancel()
        timer.join()
