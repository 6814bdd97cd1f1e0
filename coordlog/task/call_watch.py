"""Watch of an attempt's main thread: a call that does not return in time is reported, and fails the attempt.

A main thread may also hang outside any call, and the watching thread may have died. So the attempt's heartbeats stop
too, after a longer time, and its lease runs out at the driver.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

from coordlog.errors import FencedAttemptError
from coordlog.limits import ATTEMPT_SEND_TIMEOUT_S
from coordlog.task.attempt import AttemptRunner

__all__ = ["MainThread", "watched_calls"]

_FRAMES: Final = 12
"""Number of innermost frames that are shown of a call that does not return."""


class MainThread:
    """Activity of an attempt's main thread, as the condition of its heartbeats. Used by one other thread.

    The time limit is above that of a call, so that the call is reported first, and above that of a message to be sent.

    Args:
        progress: Number that rises with each action of the main thread: `AttemptRunner.progress`.
        call_timeout_s: Time limit of one call of the chain.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        progress: Callable[[], int],
        call_timeout_s: float,
        *,
        send_timeout_s: float = ATTEMPT_SEND_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._clock = progress, clock
        self._bound_s = call_timeout_s + send_timeout_s
        self._seen, self._since_s = progress(), clock()

    def is_moving(self) -> bool:
        """Whether the main thread has made progress within the time limit. To be called regularly."""
        progress, now_s = self._progress(), self._clock()
        if progress != self._seen:
            self._seen, self._since_s = progress, now_s
        return now_s - self._since_s <= self._bound_s


@contextmanager
def watched_calls(runner: AttemptRunner, limit_s: float) -> Generator[None, None, None]:
    """Within the block, report each call of the chain that does not return in time to the driver.

    The calls are made on the thread that runs the block. It cannot be interrupted from here.
    """
    ended, caller = threading.Event(), threading.get_ident()

    def watch() -> None:
        last_number, since_s = -1, 0.0
        while not ended.wait(min(1.0, limit_s / 4)):
            calling, now_s = runner.calling, time.monotonic()
            if calling is None or calling[1] != last_number:
                last_number, since_s = -1 if calling is None else calling[1], now_s
            elif now_s - since_s > limit_s:
                frame = sys._current_frames().get(caller)  # noqa: SLF001, the only way
                stack = "".join(traceback.format_stack(frame)[-_FRAMES:])
                with suppress(FencedAttemptError):
                    runner.report_hanging_call(calling[0], now_s - since_s, stack)
                return

    thread = threading.Thread(target=watch, name="coordlog-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
