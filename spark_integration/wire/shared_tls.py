"""TLS sockets that one thread reads while another one writes."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["SharedTLSSocket"]

R = TypeVar("R")


class SharedTLSSocket(ssl.SSLSocket):
    """A client's TLS socket for `websockets.sync`. Two threads: the one reads, the other writes.

    OpenSSL allows one thread at a time in a connection, and Python's own class does not see to it: a request that is
    written while the server's session ticket is being read may wait for ever, unsent. Here a lock does, which no
    thread holds while it waits for the network.

    Set as `ssl.SSLContext.sslsocket_class`.
    """

    _turn: threading.Condition
    _waiting_count: int
    """Calls that wait for the network."""
    _wait_s: float | None
    _is_open: bool

    def __new__(cls, *args: Any, **options: Any) -> Self:  # noqa: ANN401, the library's own
        """See `ssl.SSLSocket`, which has no constructor that runs."""
        created = super().__new__(cls, *args, **options)
        created._turn, created._waiting_count = threading.Condition(), 0
        created._wait_s, created._is_open = None, False
        return created

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002, the library's own
        """See `ssl.SSLSocket`. From its end on, no call of OpenSSL waits."""
        super().do_handshake(block)
        self._is_open = True
        super().settimeout(0.0)

    def settimeout(self, value: float | None) -> None:
        """See `socket.socket`."""
        self._wait_s = value
        if not self._is_open:
            super().settimeout(value)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """See `ssl.SSLSocket`."""
        return self._in_turn(lambda: super(SharedTLSSocket, self).recv(buflen, flags))

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        """See `ssl.SSLSocket`; `sendall` calls it."""
        return self._in_turn(lambda: super(SharedTLSSocket, self).send(data, flags))

    def shutdown(self, how: int) -> None:
        """See `ssl.SSLSocket`."""
        with self._turn:
            super().shutdown(how)

    def close(self) -> None:
        """See `ssl.SSLSocket`; a thread that waits for the network ends its call before."""
        with contextlib.suppress(OSError):  # it is not connected any more
            socket.socket.shutdown(self, socket.SHUT_RDWR)
        with self._turn:
            # A selector would forget a descriptor that is closed, and wait for ever.
            self._turn.wait_for(lambda: self._waiting_count == 0)
            super().close()

    def _in_turn(self, action: Callable[[], R]) -> R:
        while True:
            with self._turn:
                try:
                    return action()
                except ssl.SSLWantReadError:
                    event = selectors.EVENT_READ
                except ssl.SSLWantWriteError:
                    event = selectors.EVENT_WRITE
                self._waiting_count += 1
            try:
                self._wait(event)
            finally:
                with self._turn:
                    self._waiting_count -= 1
                    self._turn.notify_all()

    def _wait(self, event: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self, event)
            if not selector.select(self._wait_s):
                raise TimeoutError("timed out")
