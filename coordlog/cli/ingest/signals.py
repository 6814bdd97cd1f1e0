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


class StoppedError(BaseException):
    """A signal came while there was nothing to be brought to an end first."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class StopSignals:
    """The signals that ask a command to stop, while its block lasts. Main thread only.

    The first signal raises `StoppedError`; while `deferred`, at its end, and after `keep` never:
    then who is concerned looks at `received`, and `noted` is called. The second ends the process at
    once, after `at_once`, which is given its number, with the children of its session. Spark puts a
    handler of its own in the place of these; `take` puts them back.
    """

    def __init__(
        self, at_once: Callable[[int], None], *, noted: Callable[[], None] = lambda: None
    ) -> None:
        self._at_once, self._noted = at_once, noted
        self._is_deferred = False
        self._former = {one: signal.getsignal(one) for one in _SIGNALS}
        self.received: int | None = None

    def __enter__(self) -> Self:
        """Take the signals."""
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back to whom they were."""
        for one, handler in self._former.items():
            signal.signal(one, handler)

    def take(self) -> None:
        """Be who is told of the signals."""
        for one in _SIGNALS:
            signal.signal(one, self._handle)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A block that must not be cut off; a signal that came meanwhile is raised at its end."""
        self._is_deferred = True
        signals: list[int] = []
        try:
            with _noticed(signals):
                yield
        except Exception as error:
            # Spark's handler stands in the place of ours while it starts, and may fail at that.
            self.received = self.received or next(iter(signals), None)
            if self.received is None:
                raise
            # A signal to the whole process group ends the JVM that is only starting, too.
            raise StoppedError(self.received) from error
        self._is_deferred = False
        if self.received is not None:
            raise StoppedError(self.received)

    def keep(self) -> None:
        """From here on the first signal is looked at by who asks for `received`."""
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
    """Adds the signals that came during the block, whatever handles them, at its end."""
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
                signals += (one for one in reads.recv(100) if one in _SIGNALS)


def _kill_children() -> None:
    """End the children in our session: a JVM that has only begun does not notice that it is alone.

    A broker that is shared has a session of its own.
    """
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for pid in map(int, children.read_text(encoding="ascii").split()):
                if os.getsid(pid) == os.getsid(0):
                    os.kill(pid, signal.SIGKILL)
