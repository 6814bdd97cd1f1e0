"""Pace of Python's cycle collector while drivers run in this process.

The collector visits the young objects after each 700 further ones, and older ones at times. A driver keeps some 20
objects of each event until its turn is released, and frees them without the collector's help: nearly all of its visits
are in vain, and were a third of a driver's CPU time.
"""

from __future__ import annotations

import gc
import threading
from typing import Final

from coordlog.limits import COLLECTOR_MIDDLE, COLLECTOR_YOUNG

__all__ = ["begin_slower_collector", "end_slower_collector"]


class _Pace:
    """The thresholds of before the first of the drivers that run now, and their number. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drivers = 0
        self._before = self._set = (0, 0, 0)

    def begin(self) -> None:
        with self._lock:
            self._drivers += 1
            if self._drivers > 1:
                return
            young, middle, old = self._before = gc.get_threshold()
            # A threshold of 0 switches the collector off; it stays off.
            young = young and max(young, COLLECTOR_YOUNG)
            self._set = (young, max(middle, COLLECTOR_MIDDLE), old)
            gc.set_threshold(*self._set)

    def end(self) -> None:
        with self._lock:
            self._drivers -= 1
            # Other thresholds are those of the program, which has set them meanwhile.
            if self._drivers == 0 and gc.get_threshold() == self._set:
                gc.set_threshold(*self._before)


_PACE: Final = _Pace()


def begin_slower_collector() -> None:
    """Let the collector run less often, until as many calls of `end_slower_collector`. Any thread.

    Higher thresholds of the program stay, and a collector that is switched off stays off.
    """
    _PACE.begin()


def end_slower_collector() -> None:
    """End what one `begin_slower_collector` has begun. Any thread."""
    _PACE.end()
