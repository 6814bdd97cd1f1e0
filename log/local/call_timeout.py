"""A timeout for a call that has none of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["NotAnsweredError", "answered"]

R = TypeVar("R")


class NotAnsweredError(TimeoutError):
    """A call has not returned in time; its caller decides the consequence."""


def answered(work: Callable[[], R], timeout_s: float) -> R:
    """Result or exception of `work`, run on a thread of its own; a call that hangs is abandoned there.

    For calls of a file system or a client without a bound: a mount whose server is gone hangs in the system call.
    Late effects of such a call must do no harm.

    Raises:
        NotAnsweredError: The call has not returned within `timeout_s`.
    """
    future: Future[R] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001, raised in the waiting thread
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="coordlog-call", daemon=True).start()
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.done():
            raise  # its own
        raise NotAnsweredError(f"it has not answered within {timeout_s:g} s") from None
