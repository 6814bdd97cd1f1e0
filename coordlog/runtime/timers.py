"""Timers on a clock that is a parameter: a simulation runs them on simulated time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "Timers"]


class Clock(Protocol):
    """Clock of the runtime."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC: for records."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back: for timers."""
        ...


class Timers:
    """Callbacks to be called later. The owner calls `fire` no later than at `next_s`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._count = 0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> int:
        """Call `callback` once, after `delay_s`. Returns the timer's number, for `cancel`."""
        self._count += 1
        self._callbacks[self._count] = callback
        heapq.heappush(self._heap, (self._clock.monotonic_s() + delay_s, self._count))
        return self._count

    def cancel(self, number: int) -> None:
        """Forget a timer; does nothing if it has fired."""
        self._callbacks.pop(number, None)

    def next_s(self) -> float | None:
        """Time of the next timer on the monotonic clock, or None."""
        while self._heap and self._heap[0][1] not in self._callbacks:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def fire(self) -> None:
        """Call the callbacks that are due, by time, then by the order of `call_later`."""
        now_s = self._clock.monotonic_s()
        while self._heap and self._heap[0][0] <= now_s:
            callback = self._callbacks.pop(heapq.heappop(self._heap)[1], None)
            if callback is not None:
                callback()
