"""The closing of a driver: once, on a thread of its own, as soon as the driver has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from coordlog.limits import CLOSE_TIMEOUT_S, DRIVER_CLOSE_TIMEOUT_S
from coordlog.runtime.life.cut_start import wait_for_event

__all__ = ["Closing"]

_log = logging.getLogger(__name__)


class Closing:
    """Closes a driver once it has ended, whether or not a caller waits for it. Any thread.

    A driver that has ended must hold no task and no slot, and must not answer as one that lives.
    The thread is needed for interrupts too: a second Ctrl-C ends only the wait for it. An interrupted closing would
    leave threads and the writer of the log behind.

    Args:
        job_id: Id of the job, for messages.
        wait_for_end: Returns once the driver has ended.
        close_all: Closes everything.
    """

    def __init__(
        self, job_id: str, wait_for_end: Callable[[], object], close_all: Callable[[], None]
    ) -> None:
        self._job_id, self._wait_for_end, self._close_all = job_id, wait_for_end, close_all
        self._thread = threading.Thread(target=self._work, name="coordlog-closing", daemon=True)
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Close everything as soon as the driver has ended; a further call does nothing."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()

    def wait(self) -> None:
        """Wait within `DRIVER_CLOSE_TIMEOUT_S` until all is closed. The driver has ended, and `begin` was called.

        The first call raises the error of the closing, if there is one.
        """
        # The event first: after a `join` that a signal interrupts, the thread counts as ended.
        if not wait_for_event(self._closed, DRIVER_CLOSE_TIMEOUT_S):
            _log.warning(
                "job=%s its driver has not closed within %g s: the rest of it ends with this process",
                self._job_id,
                DRIVER_CLOSE_TIMEOUT_S,
            )
            return
        self._thread.join(CLOSE_TIMEOUT_S)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        self._wait_for_end()
        try:
            self._close_all()
        except BaseException as error:  # noqa: BLE001, raised by `wait`
            self._error = error
        finally:
            self._closed.set()
