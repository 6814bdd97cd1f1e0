"""Connections of readers: one that sends no request, or takes nothing of an answer, is cut off."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BoundedConnection"]

_PATIENCE_S: Final = 20.0
"""Seconds for which a connection may make no progress, once or twice: each holds one of the places."""


class BoundedConnection(H11Protocol):
    """uvicorn's connection, with a bound on each wait for its reader. On the event loop."""

    _check: asyncio.TimerHandle | None = None
    _left = 0
    """Bytes of answers that the reader had not taken at the last check."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the checks."""
        super().connection_made(transport)
        self._check = self.loop.call_later(_PATIENCE_S, self._checked)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the checks."""
        super().connection_lost(exc)
        if self._check is not None:
            self._check.cancel()

    def _checked(self) -> None:
        left = self.transport.get_write_buffer_size()
        is_idle = self.cycle is None  # no request so far; uvicorn bounds the wait for the next one
        if is_idle or (left and left >= self._left > 0):
            self.transport.abort()
            return
        self._left = left
        self._check = self.loop.call_later(_PATIENCE_S, self._checked)
