"""Threads for blocking work, and the time that each work has taken."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordlog.errors import UsageError

__all__ = ["LongWork", "WorkTimeoutError", "WorkerThreads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongWork:
    """A work that has not returned."""

    thread: str
    since_s: float
    """Seconds that it has taken so far."""
    stack: str
    """Present stack of its thread."""


class WorkTimeoutError(UsageError):
    """A work of a worker did not return: a listing, a commit, a `call_async`."""

    def __init__(self, work: LongWork, timeout_s: float) -> None:
        super().__init__(work, timeout_s)
        self.work, self.timeout_s = work, timeout_s

    def __str__(self) -> str:
        return (
            f"a listing, a commit or a `call_async` on {self.work.thread} has not returned within "
            f"{self.timeout_s:g} s: see that the service behind it responds, and run the job again; it "
            f"continues from its log. It is at:\n{self.work.stack}"
        )


class WorkerThreads:
    """A fixed number of threads that run works in the order of `submit`. Any thread.

    Daemons, unlike those of `concurrent.futures`: a work that never returns (a hanging file system) must not prevent
    the end of the process.

    Args:
        count: Maximum number of threads.
        name: Beginning of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._since: dict[int, float] = {}
        self._unreturned = 0
        """Number of works that are queued or running: more threads than that would be idle."""
        self._is_ended = False

    def submit(self, work: Callable[[], None]) -> bool:
        """Queue `work`, which raises nothing. Returns False if the threads are ending."""
        with self._lock:
            if self._is_ended:
                return False
            self._unreturned += 1
            self._works.put(work)
            if len(self._threads) < min(self._unreturned, self._count):
                thread = threading.Thread(
                    target=self._run, name=f"{self._name}_{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        return True

    def longest(self) -> LongWork | None:
        """Work that has been running for longest, or None."""
        with self._lock:
            running = [
                (since, thread)
                for thread in self._threads
                if (since := self._at(thread)) is not None
            ]
        if not running:
            return None
        since, thread = min(running, key=lambda entry: entry[0])
        frame = sys._current_frames().get(thread.ident or -1)  # noqa: SLF001, the only way
        return LongWork(
            thread=thread.name,
            since_s=time.monotonic() - since,
            stack="".join(traceback.format_stack(frame)) if frame is not None else "",
        )

    def end(self) -> None:
        """Begin no further work; running works are not waited for."""
        with self._lock:
            self._is_ended = True
            threads: Sequence[threading.Thread] = tuple(self._threads)
        while True:
            try:
                self._works.get_nowait()
            except queue.Empty:
                break
        for _ in threads:
            self._works.put(None)

    def _at(self, thread: threading.Thread) -> float | None:
        return self._since.get(thread.ident or -1)

    def _run(self) -> None:
        own = threading.get_ident()
        while True:
            work = self._works.get()
            with self._lock:
                if work is None or self._is_ended:
                    return
                self._since[own] = time.monotonic()
            try:
                work()
            finally:
                with self._lock:
                    self._since.pop(own, None)
                    self._unreturned -= 1
