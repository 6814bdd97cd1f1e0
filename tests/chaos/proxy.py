"""A TCP proxy between clients and a broker, that can be slow, cut, or half-open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["Proxy"]

_PIECE_BYTES = 64 * 1024
_LOOK_S = 0.02
_END_S = 5.0


class Proxy:
    """Listens on the loopback interface; a context. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.target_port = 0
        """Where the broker listens; to be set before the first client comes."""
        self.delay_s = 0.0
        """Each piece is held for so long, either way."""
        self.left_to_end = 0
        """So many of the next connections end at their first bytes, as at a broker that is killed or is starting."""
        self._is_half_open = False
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="chaos-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._do(self._loop.stop)
        self._thread.join(10)
        self._socket.close()

    def cut(self) -> None:
        """Reset every connection that there is; the next ones go through."""
        self._do(self._abort_all)

    def half_open(self) -> None:
        """From now on nothing passes, and nobody is told: what is sent goes nowhere."""
        self._is_half_open = True

    def heal(self) -> None:
        """As at first; connections that were half-open are over."""
        self.delay_s = 0.0
        if self._is_half_open:
            self._is_half_open = False
            self.cut()

    def _do(self, act: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(act)

    def _abort_all(self) -> None:
        for pair in list(self._pairs):
            for writer in pair:
                writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._connected, sock=self._socket)
        )
        try:
            self._loop.run_forever()
        finally:
            server.close()
            self._is_half_open = False
            self._abort_all()
            if left := asyncio.all_tasks(self._loop):
                self._loop.run_until_complete(asyncio.wait(left, timeout=_END_S))
            self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.left_to_end > 0:
            self.left_to_end -= 1
            await reader.read(1)
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, there[1])
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))
        finally:
            self._pairs.discard(pair)
            for one in pair:
                one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._wait_until_whole()
                writer.write(piece)
                await writer.drain()
        # One end is gone: so is the other, unless nothing passes, not even that.
        await self._wait_until_whole()
        writer.transport.abort()

    async def _wait_until_whole(self) -> None:
        while self._is_half_open:  # noqa: ASYNC110, set by other threads
            await asyncio.sleep(_LOOK_S)
