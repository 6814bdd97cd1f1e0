"""Connections that have not shown the token yet: bounded in number, bytes and seconds, so that its holders are heard.

They are counted from the accept on, before TLS and before the first byte. One too many costs the oldest one of the
address that has most of them, so that a flood from elsewhere harms no honest client.
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
"""Bytes of one connection that the other side has not read."""
_PAUSE_S: Final = 0.5
"""Time without an accept once the process has no descriptors left."""


@dataclass(slots=True, eq=False)
class _Stranger:
    """One accepted connection."""

    connection: socket.socket
    host: str
    since_s: float
    is_cut: bool = False

    def cut(self) -> None:
        """End it: the event loop sees its end, and closes it."""
        self.is_cut = True
        with contextlib.suppress(OSError):  # the other side has gone
            self.connection.shutdown(socket.SHUT_RDWR)


class Strangers:
    """The connections of an endpoint that are to show the token. Its loop only.

    Args:
        on_refused: Called with the peer and the reason for each one that is cut.
        count_max: Connections at once.
        timeout_s: Time within which the token, or a challenge and its answer, has to be there.
        clock: Seconds that never go back.
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
        """A connection was accepted."""
        self._forget_closed()
        live = [one for one in self._strangers.values() if not one.is_cut]
        if len(live) >= self._count_max:
            hosts = Counter(one.host for one in live)
            most, _ = hosts.most_common(1)[0]
            oldest = next(one for one in live if one.host == most)
            reason = f"{len(live)} connections without the token are open; the oldest goes"
            self._cut(oldest, reason)
        host = str(address[0]) if address else ""
        stranger = _Stranger(connection=connection, host=host, since_s=self._clock())
        self._strangers.pop(address, None)
        self._strangers[address] = stranger

    def admitted(self, address: object) -> None:
        """It has shown the token: its bounds are those of an attempt or a client."""
        self._strangers.pop(address, None)

    def watch(self) -> None:
        """End those that have taken too long. Called every few seconds."""
        self._forget_closed()
        now_s = self._clock()
        for one in list(self._strangers.values()):
            if not one.is_cut and now_s - one.since_s > self._timeout_s:
                self._cut(one, f"no token within {self._timeout_s:g} s")

    @property
    def is_crowded(self) -> bool:
        """Whether so many are being closed that no further one should be accepted for now."""
        if len(self._strangers) >= 2 * self._count_max:
            self._forget_closed()
        return len(self._strangers) >= 2 * self._count_max

    def _cut(self, stranger: _Stranger, reason: str) -> None:
        stranger.cut()
        self._on_refused(stranger.host, reason)

    def _forget_closed(self) -> None:
        closed = [key for key, one in self._strangers.items() if one.connection.fileno() == -1]
        for key in closed:
            del self._strangers[key]


class Listener(socket.socket):
    """A listening socket whose accepted connections are strangers at first, each with TCP_NODELAY.

    The event loop accepts many at a time, and if descriptors run out it logs a traceback for each try: this one makes a
    pause.
    """

    strangers: Strangers | None = None
    """Set before the first accept."""
    _paused_until_s = 0.0

    @classmethod
    def of(cls, listening: socket.socket) -> Listener:
        """The same socket; `listening` is used no more."""
        family, kind, proto = listening.family, listening.type, listening.proto
        return cls(family, kind, proto, fileno=listening.detach())

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket`. Raises BlockingIOError during a pause."""
        strangers = self.strangers
        assert strangers is not None, "set before the first accept"
        if strangers.is_crowded or time.monotonic() < self._paused_until_s:
            raise BlockingIOError(errno.EAGAIN, "no connection is accepted for now")
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                self._paused_until_s = time.monotonic() + _PAUSE_S
            raise
        # asyncio leaves it to the protocol number, which a socket of `create_server` has not.
        with contextlib.suppress(OSError):  # the other side has gone
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        strangers.came(connection, address)
        return connection, address


class GuardedConnection(ServerConnection):
    """A connection that takes few bytes until it has shown the token."""

    on_refused: Callable[[ServerConnection, str], None] | None = None

    def __init__(self, protocol: ServerProtocol, server: Server, **options: Any) -> None:  # noqa: ANN401, the library's own
        super().__init__(protocol, server, **options)
        self.is_admitted = False
        """Whether it has shown the token."""
        self._stranger_bytes = 0

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
            # A message waits until the one before has left, but the answer to a ping waits for nothing.
            if self.on_refused is not None and not self.transport.is_closing():
                self.on_refused(self, f"it sends, and does not read {unread} bytes")
            self.transport.abort()
            return
        super().data_received(data)
