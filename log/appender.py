"""Appends of a driver: take over the log, append turns, and repeat an append until it counts or its time is over.

`append_protocol` decides the next action. This module performs it, waits between tries, and raises once the time
is over. It has no thread and no clock of its own: all of it runs on the caller's thread, the log thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from coordlog.errors import (
    ClosedError,
    FencedError,
    LogUnavailableError,
    OffsetGapError,
    OutOfRangeError,
    RecordError,
)
from coordlog.limits import (
    APPEND_BACKOFF_MAX_S,
    APPEND_BACKOFF_S,
    APPEND_TIMEOUT_S,
    LOG_TIMEOUT_S,
    READ_STALL_S,
    SUSPENDED_S,
    WRITER_CLOSE_TIMEOUT_S,
)
from coordlog.log import append_protocol as protocol
from coordlog.log.append_protocol import Place
from coordlog.log.interface import Log, LogWriter, StoredRecord, UnstoredRecord
from coordlog.schemas.validity import Counting, Verdict, beginning_at, count

__all__ = ["Appender", "Patience", "Place", "take_over"]

_logging = logging.getLogger(__name__)


def _ignore_waiting(_waited_s: float, _last_error: str) -> None:
    """Default of `on_waiting`: no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time limits of appends and reads, and the clock that measures them."""

    log_timeout_s: float = LOG_TIMEOUT_S
    """Longest time of an append or a take-over. A try in progress is not interrupted: it may take one
    `append_timeout_s`, or a time limit of the log, longer."""
    append_timeout_s: float = APPEND_TIMEOUT_S
    read_stall_s: float = READ_STALL_S
    backoff_s: float = APPEND_BACKOFF_S
    """Pause before the second try; doubles each time."""
    backoff_max_s: float = APPEND_BACKOFF_MAX_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    on_waiting: Callable[[float, str], None] = _ignore_waiting
    """Called before each wait, with the seconds since the append began and the last error."""


def take_over(
    log: Log,
    *,
    job_id: str,
    place: Place,
    make_epoch_started: Callable[[int], UnstoredRecord],
    reading: Callable[[StoredRecord], None],
    patience: Patience | None = None,
) -> Appender:
    """Append an `EPOCH_STARTED` alone and read up to it; return the appender of the new epoch.

    The caller must first read the log up to its high watermark and make all its checks, because the
    `EPOCH_STARTED` records the driver in the history for good.

    Args:
        log: The job's log.
        job_id: Id of the job, for messages.
        place: End of the records that the caller has read, and their validity.
        make_epoch_started: Called once, with the epoch; returns the record. The value of the record must be
            unique to this driver (it holds the `driver_id`): it distinguishes the record from that of
            another driver for the same epoch.
        reading: Called once with each record from `place` up to and including the new `EPOCH_STARTED`, in
            order, void records too. An exception of it ends the take-over.
        patience: Time limits; by default those of `coordlog.limits`, and the machine's clock.

    Raises:
        FencedError: Another driver was first. At most this driver's `EPOCH_STARTED` was appended, and it is void.
        LogUnavailableError: The take-over has not succeeded within `log_timeout_s`. The record may still
            reach the log, and then begins its epoch.
        OffsetGapError: The log has lost records since they were read.
        AppendRefusedError: The log refuses the record.
    """
    epoch = place.counting.epoch + 1
    state = protocol.take_over_begun(place, make_epoch_started(epoch))
    appender = Appender(log, job_id, state, patience or Patience(), reading)
    appender.perform("taking over")
    _logging.info("took over job=%s epoch=%d offset=%d", job_id, epoch, appender.end_offset)
    return appender


class Appender:
    """Appends the turns of one driver, in order, until it is closed or has raised.

    Created by `take_over`, and used on one thread. After an error the driver must end: each further
    append raises `ClosedError`.
    """

    def __init__(
        self,
        log: Log,
        job_id: str,
        state: protocol.DriverState,
        patience: Patience,
        reading: Callable[[StoredRecord], None],
    ) -> None:
        self._log = log
        self._job_id = job_id
        self._state = state
        self._patience = patience
        self._reading: Callable[[StoredRecord], None] | None = reading
        self._writer: LogWriter | None = None
        self._is_closed = False

    @property
    def epoch(self) -> int:
        """Epoch of this driver."""
        return self._state.epoch

    @property
    def log_timeout_s(self) -> float:
        """Longest time of an append, in seconds."""
        return self._patience.log_timeout_s

    @property
    def counting(self) -> Counting:
        """Validity after the last known record: decides whether the next record counts."""
        return self._state.place.counting

    @property
    def end_offset(self) -> int:
        """End of the known part of the log: the offset after the last known record."""
        return self._state.place.end_offset

    def append(
        self, records: Sequence[UnstoredRecord], *, timeout_s: float | None = None
    ) -> tuple[int, ...]:
        """Append whole turns; return once they count and no later record can change that: effects may be released then.

        Args:
            records: One or more records of this epoch, with sequences from `counting.next_sequence` on.
            timeout_s: Longest time of this append, in seconds, instead of `log_timeout_s`; None for that.

        Returns:
            Offset of each record, of the copy that counts. Ascending, possibly with gaps.

        Raises:
            FencedError: Another epoch is in force. Some of these turns may count, but no effect of them may
                be released.
            LogUnavailableError: The append has not succeeded within `log_timeout_s`. The turns may count, now
                or later.
            OffsetGapError: The log has lost records.
            AppendRefusedError: The log refuses a record. Some of these turns may count.
            ClosedError: The appender was closed, or has raised.
        """
        if self._is_closed:
            raise ClosedError(f"the appender of job {self._job_id}, epoch {self.epoch},")
        self._state = protocol.append_begun(self._state, records)
        self.perform("appending", timeout_s=timeout_s)
        return self._state.counted_at

    def check_epoch(self) -> None:
        """Read new records, and check that this epoch is still in force; no effect if the log does not answer.

        For a driver that has appended nothing for a while (clause K2: only the newest driver acts).

        Raises:
            FencedError: Another epoch is in force.
            TopicError: The log was replaced by another one of the same name.
            LogUnavailableError, OffsetGapError, ClosedError: As `append`.
        """
        if self._is_closed:
            raise ClosedError(f"the appender of job {self._job_id}, epoch {self.epoch},")
        try:
            has_more = self._log.high_watermark() != self.end_offset
        except LogUnavailableError:
            return
        except BaseException:
            self.close()
            raise
        if has_more:
            self._state = protocol.check_begun(self._state)
            self.perform("checking the epoch in force")

    def close(self) -> None:
        """Close the appender and its writer. May be called twice."""
        self._is_closed = True
        self._discard_writer()

    def perform(self, doing: str, *, timeout_s: float | None = None) -> None:
        """Perform the actions of the protocol until none is left. An exception closes the appender.

        For `take_over`, `append` and `check_epoch`; `doing` names their purpose for messages.
        """
        patience = self._patience
        if timeout_s is not None:
            patience = replace(patience, log_timeout_s=timeout_s)
        try:
            self._act(_Waiting(patience, str(self._log.identity.name), doing))
        except BaseException:
            self.close()
            raise
        self._reading = None

    def _act(self, waiting: _Waiting) -> None:
        may_append = True
        while True:
            action = protocol.next_action(self._state)
            match action:
                case protocol.Rest():
                    return
                case protocol.Fenced(in_force):
                    raise self._fenced(in_force)
                case protocol.Lost(expected_offset, offset):
                    raise OffsetGapError(self._log.identity.name, expected_offset, offset)
                case protocol.Append(records):
                    if not may_append:
                        waiting.wait()
                    may_append = False
                    self._append(records, waiting)
                case protocol.ReadHighWatermark() | protocol.Read():
                    try:
                        self._read(action, waiting)
                    except LogUnavailableError as error:
                        waiting.failed(error)
                        waiting.wait()
                        may_append = True
                case _:
                    assert_never(action)

    def _append(self, records: tuple[UnstoredRecord, ...], waiting: _Waiting) -> None:
        # A new writer after a try of unknown outcome, and after an acknowledged one that did not count.
        writer = self._writer or self._log.writer()
        self._writer = writer
        try:
            offsets = writer.append(
                records, timeout_s=waiting.at_most(self._patience.append_timeout_s)
            )
        except LogUnavailableError as error:
            waiting.failed(error)
            _logging.warning(
                "append of unknown outcome job=%s epoch=%d offset=%d: %s",
                self._job_id,
                self.epoch,
                self.end_offset,
                error,
            )
            self._discard_writer()
            self._state = protocol.outcome_unknown(self._state)
        else:
            self._state = protocol.acknowledged(self._state, offsets)

    def _read(self, action: protocol.ReadHighWatermark | protocol.Read, waiting: _Waiting) -> None:
        stall_s = waiting.at_most(self._patience.read_stall_s)
        if isinstance(action, protocol.ReadHighWatermark):
            self._state = protocol.high_watermark(self._state, self._log.high_watermark())
            return
        try:
            for record in self._log.read(action.from_offset, action.to_offset, stall_s=stall_s):
                self._state = protocol.record_read(self._state, record)
                if self._reading is not None:
                    self._reading(record)
        except OutOfRangeError as error:
            self._state = protocol.high_watermark(self._state, error.high_watermark)
            if isinstance(protocol.next_action(self._state), protocol.Lost):
                return
            fenced = self._fenced_by_prune()
            if fenced is None:
                raise
            raise fenced from error
        self._state = protocol.reading_ended(self._state)
        if isinstance(protocol.next_action(self._state), protocol.Append):
            self._discard_writer()

    def _fenced_by_prune(self) -> FencedError | None:
        """FencedError if a prune by a newer driver has removed the next records, or None if retention has.

        A pruned log begins with a valid `SNAPSHOT`, and a newer epoch is in force there (clause K2: only the newest
        driver acts).
        """
        start, end = self._log.start_offset(), self._log.high_watermark()
        stored = self._log.read(start, end)
        newest = next(stored, None)
        try:
            beginning = None if newest is None else beginning_at(newest)
        except RecordError:
            return None
        if newest is None or beginning is None:
            return None
        counting, _ = count(beginning.counting, newest.header)
        for record in stored:
            counting, verdict = count(counting, record.header)
            newest = record if verdict is Verdict.EPOCH else newest
        is_newer = counting.epoch > self.epoch or (
            self._reading is not None
            and counting.epoch == self.epoch  # of another driver: this one is taking over
        )
        return self._fenced(newest, counting.epoch) if is_newer else None

    def _discard_writer(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close(timeout_s=WRITER_CLOSE_TIMEOUT_S)

    def _fenced(self, in_force: StoredRecord, epoch_in_force: int | None = None) -> FencedError:
        try:
            record = in_force.record()
            driver = record.driver_id
        except RecordError:
            driver = f"(of another version, at offset {in_force.offset})"
        if epoch_in_force is None:
            epoch_in_force = self._state.place.counting.epoch
        return FencedError(self._job_id, self.epoch, epoch_in_force, driver)


class _Waiting:
    """Elapsed time of one append, and the pauses between its tries.

    A try that takes far longer than its own limit was suspended, with its process or its machine. The log is not to
    blame for that time, and a quarter of the bound is counted at most: so the append is tried again, and finds out
    whether this driver is fenced, and an endless row of such tries still ends.
    """

    def __init__(self, patience: Patience, log_name: str, doing: str) -> None:
        self._patience = patience
        self._log_name, self._doing = log_name, doing
        self._began = patience.clock()
        self._backoff_s = patience.backoff_s
        self._try_began, self._try_ends = self._began, float("inf")
        self.last_error = ""

    def at_most(self, limit_s: float) -> float:
        """`limit_s`, or the remaining time if that is shorter, but never less than the first pause."""
        now = self._patience.clock()
        remaining_s = self._patience.log_timeout_s - (now - self._began)
        limit_s = min(limit_s, max(remaining_s, self._patience.backoff_s))
        self._try_began, self._try_ends = now, now + limit_s
        return limit_s

    def failed(self, error: LogUnavailableError) -> None:
        """Keep the cause of a try's failure: its advice, the same command again, is for the end of all tries."""
        self.last_error = error.last_error or str(error)
        now = self._patience.clock()
        if now > self._try_ends + SUSPENDED_S:
            counted_s = min(self._try_ends - self._try_began, self._patience.log_timeout_s / 4)
            self._began += now - self._try_began - counted_s
        self._try_began, self._try_ends = now, float("inf")

    def wait(self) -> None:
        """Pause before another try.

        Raises:
            LogUnavailableError: No time remains.
        """
        waited_s = self._patience.clock() - self._began
        remaining_s = self._patience.log_timeout_s - waited_s
        if remaining_s <= 0:
            raise LogUnavailableError(self._log_name, self._doing, waited_s, self.last_error)
        self._patience.on_waiting(waited_s, self.last_error)
        self._patience.sleep(min(self._backoff_s, remaining_s))
        self._backoff_s = min(2 * self._backoff_s, self._patience.backoff_max_s)
