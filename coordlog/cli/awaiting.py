"""Waits of a command for records that a driver appends after its request; each has a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from coordlog.cli.console import print_line
from coordlog.cli.following import Follower, FollowOptions
from coordlog.cli.log_access import Logs
from coordlog.errors import RequestUnansweredError
from coordlog.log.interface import StoredRecord
from coordlog.schemas.record import Record

__all__ = ["Waited", "wait_for_records"]

_PATIENCE_S: Final = 30.0
_PROGRESS_S: Final = 5.0

Waited = Callable[[Record], bool]
"""Receives each record that counts, in log order; returns whether the wait is over."""


def wait_for_records(
    logs: Logs, job: str, until: Waited, *, after: int, timeout_s: float, waits_for: str
) -> None:
    """Pass every record that counts with a sequence above `after` to `until`, till it returns True.

    Args:
        logs: The logs at the place of the job's log.
        job: The job.
        until: Receives the records.
        after: Sequence after which the records are passed on.
        timeout_s: Limit of the wait, seconds.
        waits_for: The event, as in `the driver's end`, for messages.

    Raises:
        RequestUnansweredError: The event has not come within the limit.
    """

    def is_early(stored: StoredRecord) -> bool:
        return stored.header is not None and stored.header.sequence <= after

    began_s = shown_s = time.monotonic()
    is_past = False
    follower = Follower(logs, job, FollowOptions(patience_s=_PATIENCE_S, notify=_to_stderr))
    try:
        history = follower.history
        for entry in follower.entries(history.place_before(is_early)):
            now_s = time.monotonic()
            if entry is None:
                if now_s - began_s > timeout_s:
                    reason = f"{waits_for} has not come within {timeout_s:g} s; it may still come"
                    raise RequestUnansweredError("", reason)
                if now_s - shown_s > _PROGRESS_S:
                    shown_s = now_s
                    _to_stderr(f"waiting for {waits_for}: {now_s - began_s:.0f} of {timeout_s:g} s")
                continue
            record = entry.record
            if not entry.counts or record is None:
                continue
            if is_past and until(record):
                return
            # An `EPOCH_STARTED` has no sequence.
            is_past = is_past or (record.sequence or 0) >= after
    finally:
        follower.close()


def _to_stderr(line: str) -> None:
    print_line(line, err=True)
