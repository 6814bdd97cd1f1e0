"""Connections that have not shown the token yet: limited in number, bytes and time, so that its holders get through.

They are counted from the accept on, before TLS and before the first byte. If there are too many, the oldest connection
of the address with the most is ended, so that a flood from another address harms no honest client.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from websockets.asyncio.server import Server, ServerConnection
from websockets.server import ServerProtocol

from coordlog.limits import CONNECT_TIMEOUT_S, MESSAGE_BYTES_MAX, STRANGER_BYTES_MAX, STRANGERS_MAX

__all__ = ["GuardedConnection", "Listener", "Strangers"]

_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_UNREAD_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX
"""Limit of the bytes of a connection that the other side has not read."""
_PAUSE_S: Final = 0.5
"""Pause without an accept after the process has run out of descriptors."""


@dataclass(slots=True, eq=False)
class _Stranger:
    """An accepted connection without the token."""

    connection: socket.socket
    host: str
    since_s: float
    is_cut: bool = False

    def cut(self) -> None:
        """End the connection; the event loop then closes it."""
        self.is_cut = True
        with contextlib.suppress(OSError):  # the other side has gone
            self.connection.shutdown(socket.SHUT_RDWR)


class Strangers:
    """The connections of an endpoint that have not shown the token. The endpoint's loop only.

    Args:
        on_refused: Called with the peer and the reason for each connection that is cut.
        count_max: Limit of connections at once.
        timeout_s: Time within which the token, or a challenge and its answer, must arrive.
        clock: Monotonic clock, seconds.
    """

    def __init__(
        self,
        on_refused: Callable[[str, str], None],
        *,
        count_max: int = STRANGERS_MAX,
        timeout_s: float = CONNECT_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_refused, self._count_max = on_refused, count_max
        self._timeout_s, self._clock = timeout_s, clock
        self._strangers: dict[object, _Stranger] = {}
        """By peer address, in the order of their accepts."""

    def came(self, connection: socket.socket, address: Any) -> None:  # noqa: ANN401, as sockets have it
        """Add an accepted connection."""
        self._forget_closed()
        live = [stranger for stranger in self._strangers.values() if not stranger.is_cut]
        if len(live) >= self._count_max:
            hosts = Counter(stranger.host for stranger in live)
            fullest_host, _ = hosts.most_common(1)[0]
            oldest = next(stranger for stranger in live if stranger.host == fullest_host)
            reason = f"{len(live)} connections without the token are open; the oldest goes"
            self._cut(oldest, reason)
        host = str(address[0]) if address else ""
        stranger = _Stranger(connection=connection, host=host, since_s=self._clock())
        self._strangers.pop(address, None)
        self._strangers[address] = stranger

    def admitted(self, address: object) -> None:
        """Remove a connection that has shown the token: the limits of an attempt or a client hold from now on."""
        self._strangers.pop(address, None)

    def watch(self) -> None:
        """End the connections without a token within the timeout. Called every few seconds."""
        self._forget_closed()
        now_s = self._clock()
        for stranger in list(self._strangers.values()):
            if not stranger.is_cut and now_s - stranger.since_s > self._timeout_s:
                self._cut(stranger, f"no token within {self._timeout_s:g} s")

    def end(self) -> None:
        """End all connections: the endpoint ends."""
        self._forget_closed()
        for stranger in self._strangers.values():
            stranger.cut()

    @property
    def is_crowded(self) -> bool:
        """Whether so many connections are being closed that no further one should be accepted for now."""
        if len(self._strangers) >= 2 * self._count_max:
            self._forget_closed()
        return len(self._strangers) >= 2 * self._count_max

    def _cut(self, stranger: _Stranger, reason: str) -> None:
        stranger.cut()
        self._on_refused(stranger.host, reason)

    def _forget_closed(self) -> None:
        closed = [
            address
            for address, stranger in self._strangers.items()
            if stranger.connection.fileno() == -1
        ]
        for address in closed:
            del self._strangers[address]


class Listener(socket.socket):
    """A listening socket whose accepted connections are strangers at first, each with TCP_NODELAY.

    The event loop accepts many connections at a time, and logs a traceback for each try if descriptors run out; this
    socket pauses then.
    """

    strangers: Strangers | None = None
    """Set before the first accept."""
    is_ending = False
    """Whether no further connection is accepted, because the endpoint ends."""
    _paused_until_s = 0.0

    @classmethod
    def of(cls, listening: socket.socket) -> Listener:
        """The same socket as a `Listener`; `listening` is detached and cannot be used any more."""
        family, kind, proto = listening.family, listening.type, listening.proto
        return cls(family, kind, proto, fileno=listening.detach())

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket`. Raises BlockingIOError during a pause, and at the end."""
        strangers = self.strangers
        assert strangers is not None, "set before the first accept"
        if self.is_ending or strangers.is_crowded or time.monotonic() < self._paused_until_s:
            raise BlockingIOError(errno.EAGAIN, "no connection is accepted for now")
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                self._paused_until_s = time.monotonic() + _PAUSE_S
            raise
        # asyncio sets it only by the protocol number, which a socket of `create_server` lacks.
        with contextlib.suppress(OSError):  # the other side has gone
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        strangers.came(connection, address)
        return connection, address


class GuardedConnection(ServerConnection):
    """A connection that accepts few bytes until the client has shown the token."""

    on_refused: Callable[[ServerConnection, str], None] | None = None

    def __init__(self, protocol: ServerProtocol, server: Server, **options: Any) -> None:  # noqa: ANN401, the library's own
        super().__init__(protocol, server, **options)
        self.is_admitted = False
        """Whether the client has shown the token."""
        self._stranger_bytes = 0

    def abort(self) -> None:
        """End the connection at once. During the TLS handshake it has no transport: `Strangers.end` ends its socket."""
        if hasattr(self, "transport"):
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if not self.is_admitted:
            self._stranger_bytes += len(data)
            if self._stranger_bytes > STRANGER_BYTES_MAX:
                if self.on_refused is not None and not self.transport.is_closing():
                    self.on_refused(self, f"more than {STRANGER_BYTES_MAX} bytes without the token")
                self.transport.abort()
                return
        unread = self.transport.get_write_buffer_size()
        if unread > _UNREAD_BYTES_MAX:
            # A message waits until the previous one was sent, but the answer to a ping does not wait.
            if self.on_refused is not None and not self.transport.is_closing():
                self.on_refused(self, f"it sends, and does not read {unread} bytes")
            self.transport.abort()
            return
        super().data_received(data)
