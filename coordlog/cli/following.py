"""Follows a job's log: its records as they are appended, over a broker that goes away and comes back."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from coordlog.cli.log_access import Logs
from coordlog.errors import LogUnavailableError, OutOfRangeError, TopicError
from coordlog.history import History
from coordlog.log.interface import Log, StoredRecord
from coordlog.projections.tables.audit import AuditReader, AuditRecord
from coordlog.schemas.validity import beginning_of

__all__ = ["FollowOptions", "Follower", "LogGoneError", "is_reader_gone"]

_POLL_S: Final = 0.3
_CHECK_S: Final = 3.0
"""Seconds between two checks that the log is still the same, and where it begins."""
_RETRY_S: Final = 1.0


class LogGoneError(TopicError):
    """The log was deleted while it was followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Options of a follower."""

    patience_s: float
    """Seconds for which a log that does not answer is tried again."""
    notify: Callable[[str], None]
    """Called with each message about the log itself, in words."""
    poll_s: float = _POLL_S
    check_s: float = _CHECK_S
    wait: Callable[[float], None] = time.sleep


class Follower:
    """Reader of a log from a place on, then of its new records. For one thread; always `close` it, last.

    Args:
        logs: The logs at the place of the job's log.
        job_id: The job.
        options: Options.

    Raises:
        TopicError, LogError: The log cannot be opened.
    """

    def __init__(self, logs: Logs, job_id: str, options: FollowOptions) -> None:
        self._logs, self._job_id, self._options = logs, job_id, options
        self._log: Log = logs.open(job_id)
        self.identity = self._log.identity
        """Identity of the log that is followed."""
        self.history = History(self._log)
        """The log as it was when the following began."""
        self._start = self.history.start
        self._checked_s = time.monotonic()

    def close(self) -> None:
        """Free the log."""
        self._log.close()

    def entries(self, place: int) -> Iterator[AuditRecord | None]:
        """Every record from `place` on, with its verdict, without end; None each time there is nothing new.

        Args:
            place: Result of `History.place_before`.

        Raises:
            LogGoneError: The log was deleted, or deleted and created again.
            LogUnavailableError: It has not answered for the time of the options.
            RecordError: As `beginning_of`.
        """
        position = place
        while True:
            try:
                yield from self._judged(position)
            except OutOfRangeError as error:
                if error.start_offset <= position:
                    self._check_identity()
                    raise
                self._options.notify(
                    f"the records at offsets {position} to {error.start_offset - 1} were pruned before they were "
                    f"read; it goes on at offset {error.start_offset}"
                )
                position = self._start = error.start_offset

    def _judged(self, position: int) -> Iterator[AuditRecord | None]:
        reader: AuditReader | None = None
        for stored in self._stored(position):
            if stored is None:
                yield None
                continue
            if reader is None:
                reader = AuditReader(beginning_of(stored))
            yield from reader.feed(stored)

    def _stored(self, position: int) -> Iterator[StoredRecord | None]:
        silent_since_s: float | None = None
        while True:
            try:
                self._check_if_due()
                end = self._log.high_watermark()
                if end < position:
                    self._check_identity()
                for stored in self._log.read(position, max(end, position)):
                    position = stored.offset + 1
                    yield stored
                position = max(end, position)
            except LogUnavailableError as error:
                silent_since_s = self._unavailable(silent_since_s, error)
                yield None
                self._options.wait(_RETRY_S)
                continue
            except LogGoneError:
                raise
            except TopicError as error:
                self._check_identity()
                raise self._gone(error) from error
            if silent_since_s is not None:
                silent_since_s = None
                self._options.notify("the log answers again")
                self._check_identity()
            yield None
            self._options.wait(self._options.poll_s)

    def _unavailable(self, since_s: float | None, error: LogUnavailableError) -> float:
        """Report the first failure in a row; raise once it has lasted too long."""
        now_s = time.monotonic()
        if since_s is None:
            patience = f"tried again for {self._options.patience_s:g} s"
            self._options.notify(f"the log does not answer, {patience}: {error}")
            return now_s
        if now_s - since_s > self._options.patience_s:
            raise error
        return since_s

    def _check_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s - self._checked_s < self._options.check_s:
            return
        self._check_identity()
        start = self._log.start_offset()
        if start > self._start:
            self._options.notify(f"the log was pruned: it begins at offset {start} now")
            self._start = start
        self._checked_s = time.monotonic()

    def _check_identity(self) -> None:
        """Raise LogGoneError if the topic of this name is another one by now, or is gone."""
        try:
            log = self._logs.open(self._job_id)
        except TopicError as error:
            raise self._gone(error) from error
        if log.identity == self.identity:
            if log is not self._log:
                self._log.close()
            self._log = log
            return
        log.close()
        raise LogGoneError(
            self.identity.name,
            f"the log of job {self._job_id} was deleted, and another one has been created under its name",
            "start this command again to follow the new one",
        )

    def _gone(self, error: TopicError) -> LogGoneError:
        return LogGoneError(
            self.identity.name,
            f"the log of job {self._job_id} was deleted ({error})",
            "an export of it, if there is one, can be read with `coordlog history FILE`",
        )


def is_reader_gone() -> bool:
    """Whether the program at the other end of the standard output, if it is a pipe, has ended."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    if not hasattr(select, "poll") or os.isatty(descriptor):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
