"""A wait with an end for a call that has none of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["NotAnsweredError", "answered"]

R = TypeVar("R")


class NotAnsweredError(TimeoutError):
    """A call has not come back in time; its caller says what that means."""


def answered(work: Callable[[], R], timeout_s: float) -> R:
    """What `work` gives or raises, run on a thread of its own; a call that hangs is left behind there.

    For what asks a file system or a client without a bound: a mount whose server is gone hangs in the system call.
    What such a call does late must do no harm.

    Raises:
        NotAnsweredError: It has not come back within `timeout_s`.
    """
    future: Future[R] = Future()

    def run() -> None:
        try:
            made = work()
        except BaseException as error:  # noqa: BLE001, raised where it is waited for
            future.set_exception(error)
        else:
            future.set_result(made)

    threading.Thread(target=run, name="coordlog-call", daemon=True).start()
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.done():
            raise  # its own
        raise NotAnsweredError(f"it has not answered within {timeout_s:g} s") from None
