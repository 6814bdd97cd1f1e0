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
    _was_waiting = True
    """Whether a request was awaited at the last check."""

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
        is_waiting = self._is_waiting()
        if (is_waiting and self._was_waiting) or left >= self._left > 0:
            self.transport.abort()
            return
        self._left, self._was_waiting = left, is_waiting
        self._check = self.loop.call_later(_PATIENCE_S, self._checked)

    def _is_waiting(self) -> bool:
        """Whether no request has come, or a part of one; uvicorn itself bounds the wait for a next one's begin."""
        if self.cycle is None:  # pyright: ignore[reportUnnecessaryComparison]
            return True
        return self.cycle.response_complete and self.timeout_keep_alive_task is None
