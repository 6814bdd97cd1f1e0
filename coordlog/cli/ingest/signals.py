"""Ctrl-C and SIGTERM: the first one stops in order, the second at once."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, Self

__all__ = ["StopSignals", "StoppedError"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StoppedError(SystemExit):
    """A stop signal arrived while no work in progress had to be ended first."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(128 + signal_number)
        self.signal_number = signal_number


class StopSignals:
    """Handlers of the stop signals for the duration of a block. Main thread only.

    The first signal raises `StoppedError`; during `deferred`, at the end of that block. After
    `keep` it calls `noted` instead, and the caller reads `received`. The second signal calls
    `at_once` with its number, then ends the process with the children of its session. Spark
    replaces these handlers by its own; `take` installs them again.
    """

    def __init__(
        self, at_once: Callable[[int], None], *, noted: Callable[[], None] = lambda: None
    ) -> None:
        self._at_once, self._noted = at_once, noted
        self._is_deferred = False
        self._former = {number: signal.getsignal(number) for number in _SIGNALS}
        self.received: int | None = None
        """Number of the first signal, or None so far."""

    def __enter__(self) -> Self:
        """Install the handlers."""
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the former handlers."""
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def take(self) -> None:
        """Install the handlers, in place of Spark's if it has replaced them."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A block that must not be interrupted; a signal during the block is raised at its end."""
        self._is_deferred = True
        signals: list[int] = []
        try:
            with _noticed(signals):
                yield
        except Exception as error:
            # While Spark starts, its handler replaces this one, and may fail.
            self.received = self.received or next(iter(signals), None)
            if self.received is None:
                raise
            # A signal to the whole process group also ends the starting JVM.
            raise StoppedError(self.received) from error
        self._is_deferred = False
        if self.received is not None:
            raise StoppedError(self.received)

    def keep(self) -> None:
        """From here on the first signal raises no error: the caller reads `received`."""
        self._is_deferred = True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            self._at_once(number)
            _kill_children()
            os._exit(128 + number)
        self.received = number
        if not self._is_deferred:
            raise StoppedError(number)
        self._noted()


@contextmanager
def _noticed(signals: list[int]) -> Iterator[None]:
    """Add the stop signals that arrived during the block, whatever their handler, to `signals` at its end."""
    reads, writes = socket.socketpair()
    with reads, writes:
        for end in (reads, writes):
            end.settimeout(0)
        former = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(former)
            with suppress(BlockingIOError):
                signals += (number for number in reads.recv(100) if number in _SIGNALS)


def _kill_children() -> None:
    """Kill the children in this process's session: a starting JVM does not notice the end of its parent.

    The shared broker has a session of its own.
    """
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for pid in map(int, children.read_text(encoding="ascii").split()):
                if os.getsid(pid) == os.getsid(0):
                    os.kill(pid, signal.SIGKILL)
