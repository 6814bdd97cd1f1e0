"""A thread that handles items in order, behind a queue with a bound: a caller that offers an item never waits."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["BoundedWorker"]

_log = logging.getLogger(__name__)

_IDLE_S: Final = 0.5
_ITEMS_AT_ONCE: Final = 200

T = TypeVar("T")


class BoundedWorker(Generic[T]):
    """`offer` on any thread; `end` once. The first error of `handle` is logged, none is raised.

    Args:
        name: Name of the thread, and of the worker in messages.
        handle: Called with the items that wait, in their order, on the worker's thread.
        items_max: Number of items that may wait; further ones are dropped.
    """

    def __init__(self, name: str, handle: Callable[[list[T]], None], items_max: int) -> None:
        self._name, self._handle, self._items_max = name, handle, items_max
        self._items: deque[T] = deque()
        self._condition = threading.Condition()
        self._is_ending = False
        self._has_failed = False
        self.dropped = 0
        """Number of dropped items. Read on any thread."""
        self._thread = threading.Thread(target=self._run, name=f"coordlog-{name}", daemon=True)
        self._thread.start()

    def offer(self, item: T) -> bool:
        """Queue an item, or drop it if the queue is full; returns whether it is queued. Never waits for `handle`."""
        with self._condition:
            if len(self._items) >= self._items_max or self._is_ending:
                self.dropped += 1
                is_first = self.dropped == 1
            else:
                self._items.append(item)
                self._condition.notify()
                return True
        if is_first:
            _log.warning("%s drops items: %d wait already", self._name, self._items_max)
        return False

    def end(self, timeout_s: float) -> None:
        """Handle what waits, for at most `timeout_s`, and end the thread."""
        until_s = time.monotonic() + timeout_s
        with self._condition:
            self._is_ending = True
            self._condition.notify()
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if self._thread.is_alive():
            with self._condition:
                left = len(self._items)
                self._items.clear()
            _log.warning("%s has not ended within %g s: %d items lost", self._name, timeout_s, left)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._items:
                    if self._is_ending:
                        return
                    self._condition.wait(_IDLE_S)
                count = min(len(self._items), _ITEMS_AT_ONCE)
                items = [self._items.popleft() for _ in range(count)]
            try:
                self._handle(items)
            except Exception:  # noqa: BLE001, a report may fail, and the job must not
                if not self._has_failed:
                    self._has_failed = True
                    _log.warning(
                        "%s failed; further errors are not logged", self._name, exc_info=True
                    )
