"""A start that is cut off, by a signal or an error: the end of its driver is recorded if its epoch has begun.

Without that record the epoch has no end in the history: it is shown as open, and its driver as one that has died.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coordlog.causes import text_of
from coordlog.errors import CoordlogError
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import DriverStops
from coordlog.kernel.step import step
from coordlog.limits import CLOSE_TIMEOUT_S, STOP_RECORD_S
from coordlog.log.appender import Appender, Patience
from coordlog.log.interface import Log
from coordlog.restore.rebuild import Rebuild
from coordlog.runtime.turns import to_unstored

__all__ = ["TakeOver", "cause_of_end", "record_end", "wait_for_event"]

_log = logging.getLogger(__name__)

_WAIT_S: Final = 0.5

_STATUS_BASE: Final = 128
"""Exit status of a process that a signal has ended, less the signal's number."""


class _CutError(CoordlogError):
    """A take-over ended because its caller was interrupted; no caller sees it."""

    def __str__(self) -> str:
        return "the take-over was interrupted"


def cause_of_end(error: BaseException) -> str:
    """Cause of a driver's end for the history: the name of the signal, or of the error."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT.name
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        number = error.code - _STATUS_BASE
        if number in signal.valid_signals():
            return signal.Signals(number).name
    return type(error).__name__


def record_end(
    log: Log, appender: Appender, config: KernelConfig, rebuilt: Rebuild, by: str
) -> None:
    """Record the end of a driver that has run no turn. Takes little more than `STOP_RECORD_S` at most.

    An error here is only logged: the caller has an error of its own, which may be the reason of this one. So it is if
    the fold has refused a record of the log, behind which no record can be placed.

    Args:
        log: The job's log.
        appender: Appender of the driver's epoch.
        config: Settings of the kernel.
        rebuilt: State of the job, at least up to the take-over.
        by: Cause, as of `cause_of_end`.
    """
    try:
        rebuilt.catch_up(log, appender.end_offset)
        records = step(config, rebuilt.state, DriverStops(by=by), time.time_ns() // 1000).records
        last, newest = len(records) - 1, rebuilt.newest_snapshot.offset
        turn = [replace(record, turn_remaining=last - n) for n, record in enumerate(records)]
        unstored = [to_unstored(record, snapshot_offset=newest) for record in turn]
        appender.append(unstored, timeout_s=STOP_RECORD_S)
    except Exception as error:  # noqa: BLE001, whatever it is, it must not take the place of the caller's
        _log.warning("job=%s its end is not recorded: %s", rebuilt.state.job_id, text_of(error))


def wait_for_event(event: threading.Event, timeout_s: float = math.inf) -> bool:
    """Whether the event is set within the time. On the main thread a signal's handler runs within a moment.

    One long wait could begin just after the signal, and would delay its handler to the end of the wait.
    """
    until_s = time.monotonic() + timeout_s
    while (rest_s := until_s - time.monotonic()) > 0:
        if event.wait(min(_WAIT_S, rest_s)):
            return True
    return event.is_set()


class TakeOver:
    """A take-over on a thread of its own. Call `run` once, and `cut` if `run` was interrupted.

    On the caller's thread a signal could cut it off between the append and the return: the epoch would have begun,
    without an appender that could record its end.

    Args:
        take_over: Takes over with that patience, and returns the appender.
        patience: Time limits of the take-over.
    """

    def __init__(self, take_over: Callable[[Patience], Appender], patience: Patience) -> None:
        self._take_over = take_over
        self._sleep = patience.sleep
        self._patience = replace(patience, sleep=self._sleep_unless_cut)
        self._appender: Appender | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._is_cut = self._is_abandoned = False

    def run(self) -> Appender:
        """Take over, and return the appender of the new epoch. Raises as the take-over."""
        thread = threading.Thread(target=self._work, name="coordlog-taking-over", daemon=True)
        thread.start()
        wait_for_event(self._ended)
        thread.join(CLOSE_TIMEOUT_S)
        if self._error is not None:
            raise self._error
        assert self._appender is not None, "it has ended without an error"
        return self._appender

    def cut(self) -> Appender | None:
        """End an interrupted take-over, within `STOP_RECORD_S`; returns its appender if its epoch has begun.

        A take-over that ends later closes its appender itself.
        """
        self._is_cut = True
        if not self._ended.wait(STOP_RECORD_S):
            self._is_abandoned = True
        return self._appender

    def _sleep_unless_cut(self, seconds: float) -> None:
        self._sleep(seconds)
        if self._is_cut and not self._ended.is_set():
            raise _CutError

    def _work(self) -> None:
        try:
            self._appender = self._take_over(self._patience)
        except BaseException as error:  # noqa: BLE001, raised by `run`, which waits for this
            self._error = error
        finally:
            self._ended.set()
        if self._is_abandoned and self._appender is not None:
            self._appender.close()
