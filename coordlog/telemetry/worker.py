"""A thread that handles items in order, behind a queue with a bound: a caller that offers an item never waits."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

__all__ = ["BoundedWorker"]

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.05
"""Pause between two checks of the queue. A wake-up for each item would cost the caller more than the item."""
_ITEMS_AT_ONCE: Final = 200

T = TypeVar("T")


class BoundedWorker(Generic[T]):
    """`offer` on one thread at a time; `end` once. The first error of `handle` is logged, none is raised.

    Args:
        name: Name of the thread, and of the worker in messages.
        handle: Called with the items that wait, in their order, on the worker's thread.
        items_max: Number of items that may wait; further ones are dropped.
    """

    def __init__(self, name: str, handle: Callable[[list[T]], None], items_max: int) -> None:
        self._name, self._handle, self._items_max = name, handle, items_max
        self._items: deque[T] = deque()
        self._is_ending = threading.Event()
        self._has_failed = False
        self.dropped = 0
        """Number of dropped items. Read on any thread."""
        self._thread = threading.Thread(target=self._run, name=f"coordlog-{name}", daemon=True)
        self._thread.start()

    def offer(self, item: T) -> bool:
        """Queue an item, or drop it if the queue is full; returns whether it is queued. Takes no lock."""
        if len(self._items) < self._items_max and not self._is_ending.is_set():
            self._items.append(item)
            return True
        self.dropped += 1
        if self.dropped == 1:
            _log.warning("%s drops items: %d wait already", self._name, len(self._items))
        return False

    def end(self, timeout_s: float) -> None:
        """Handle the items that wait, for at most `timeout_s`, and end the thread."""
        self._is_ending.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            count = len(self._items)
            self._items.clear()
            _log.warning(
                "%s has not ended within %g s: %d items lost", self._name, timeout_s, count
            )

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._is_ending.wait(_PAUSE_S)
            while items := self._take():
                self._handle_logged(items)

    def _take(self) -> list[T]:
        items: list[T] = []
        with suppress(IndexError):  # empty, perhaps cleared by `end`
            while len(items) < _ITEMS_AT_ONCE:
                items.append(self._items.popleft())
        return items

    def _handle_logged(self, items: list[T]) -> None:
        try:
            self._handle(items)
        except Exception:  # noqa: BLE001, a report may fail, and the job must not
            if not self._has_failed:
                self._has_failed = True
                _log.warning("%s failed; further errors are not logged", self._name, exc_info=True)
