"""A driver's way to append: take over, append, send again until it counts, or end.

`protocol` decides; this module does what it says, waits, and gives up when the time is over. It has
no thread and no clock of its own: all of it runs on the caller's thread, the log thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    WRITER_CLOSE_TIMEOUT_S,
)
from coordlog.log import append_protocol as protocol
from coordlog.log.append_protocol import Place
from coordlog.log.interface import Log, LogWriter, StoredRecord, UnstoredRecord
from coordlog.schemas.record import Kind
from coordlog.schemas.validity import Counting, Verdict, count

__all__ = ["Appender", "Patience", "Place", "take_over"]

_logging = logging.getLogger(__name__)


def _nobody_waits(_waited_s: float, _last_error: str) -> None:
    """The `on_waiting` of those who do not care."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for a log, and by which clock."""

    log_timeout_s: float = LOG_TIMEOUT_S
    """After so long without success an append or a take-over gives up. A try that is under way is
    not cut off, so that it may take one `append_timeout_s`, or one of the log's own bounds,
    longer."""
    append_timeout_s: float = APPEND_TIMEOUT_S
    read_stall_s: float = READ_STALL_S
    backoff_s: float = APPEND_BACKOFF_S
    """Before the second try; doubles each time."""
    backoff_max_s: float = APPEND_BACKOFF_MAX_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    on_waiting: Callable[[float, str], None] = _nobody_waits
    """Called before each wait, with the seconds since the append began and the last error, for who
    watches."""


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

    The caller has read the log up to its high watermark, and has checked all that it must: after
    this the history has its name in it.

    Args:
        log: The job's.
        job_id: For messages.
        place: How far the caller has read, and what it came to.
        make_epoch_started: Called once, with the epoch. Its record's value must be one that no
            other driver makes (it holds the `driver_id`): that is how this driver's record is told
            from another's of the same epoch.
        reading: Called with each record from `place` to the new `EPOCH_STARTED`, both ends
            included, counted or not, once each, in order. What it raises ends the take-over.
        patience: Default: the limits, and the machine's clock.

    Raises:
        FencedError: Another driver was first; nothing but one `EPOCH_STARTED`, which is void, was
            appended.
        LogUnavailableError: Not within `log_timeout_s`. The record may still arrive: the epoch may
            be used up.
        OffsetGapError: The log has lost records since they were read.
        AppendRefusedError: The log does not take the record.
    """
    epoch = place.counting.epoch + 1
    state = protocol.take_over_begun(place, make_epoch_started(epoch))
    appender = Appender(log, job_id, state, patience or Patience(), reading)
    appender.settle("taking over")
    _logging.info("took over job=%s epoch=%d offset=%d", job_id, epoch, appender.end_offset)
    return appender


class Appender:
    """Appends the turns of one driver, in order, until it is closed or has raised.

    Made by `take_over`, used on one thread. After an error every further append raises
    `ClosedError`: the driver must end.
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
        """This driver's."""
        return self._state.epoch

    @property
    def log_timeout_s(self) -> float:
        """How long an append may take."""
        return self._patience.log_timeout_s

    @property
    def counting(self) -> Counting:
        """What the next record must look like to count."""
        return self._state.place.counting

    @property
    def end_offset(self) -> int:
        """The offset up to which the log is known, exclusive."""
        return self._state.place.end_offset

    def append(self, records: Sequence[UnstoredRecord]) -> tuple[int, ...]:
        """Append whole turns; return once they count for ever: their effects may be released.

        Args:
            records: One or more, of this epoch, their sequences going on from
                `counting.next_sequence`.

        Returns:
            For each record the offset at which it counts. Ascending, not always dense.

        Raises:
            FencedError: Another epoch is in force. Some of these turns may count, none may be
                released.
            LogUnavailableError: Not within `log_timeout_s`. They may count, now or later.
            OffsetGapError: The log has lost records.
            AppendRefusedError: The log does not take one of them. Some of these turns may count.
            ClosedError: It was closed, or has raised.
        """
        if self._is_closed:
            raise ClosedError(f"the appender of job {self._job_id}, epoch {self.epoch},")
        self._state = protocol.append_begun(self._state, records)
        self.settle("appending")
        return self._state.counted_at

    def look(self) -> None:
        """See whether another epoch is in force, by what stands in the log; one that does not answer is let be.

        For a driver that has had nothing to append for a while (clause K2).

        Raises:
            FencedError: It is.
            LogUnavailableError, OffsetGapError, ClosedError: As `append`.
        """
        if self._is_closed:
            raise ClosedError(f"the appender of job {self._job_id}, epoch {self.epoch},")
        try:
            has_more = self._log.high_watermark() != self.end_offset
        except LogUnavailableError:
            return
        if has_more:
            self._state = protocol.look_begun(self._state)
            self.settle("looking for another driver")

    def close(self) -> None:
        """End; nothing is in flight between two appends. May be called twice."""
        self._is_closed = True
        self._discard_writer()

    def settle(self, doing: str) -> None:
        """Act until the goal in hand is reached; whatever ends this early closes the appender.

        For `take_over` and `append`, which set the goal.
        """
        try:
            self._act(doing)
        except BaseException:
            self.close()
            raise
        self._reading = None

    def _act(self, doing: str) -> None:
        waiting = _Waiting(self._patience, str(self._log.identity.name), doing)
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
                        waiting.last_error = str(error)
                        waiting.wait()
                        may_append = True
                case _:
                    assert_never(action)

    def _append(self, records: tuple[UnstoredRecord, ...], waiting: _Waiting) -> None:
        # A try whose outcome was unknown took its writer with it, and so does an acknowledged one
        # that did not count.
        writer = self._writer or self._log.writer()
        self._writer = writer
        try:
            offsets = writer.append(
                records, timeout_s=waiting.at_most(self._patience.append_timeout_s)
            )
        except LogUnavailableError as error:
            waiting.last_error = str(error)
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
        if isinstance(action, protocol.ReadHighWatermark):
            self._state = protocol.high_watermark(self._state, self._log.high_watermark())
            return
        try:
            for record in self._log.read(
                action.from_offset,
                action.to_offset,
                stall_s=waiting.at_most(self._patience.read_stall_s),
            ):
                self._state = protocol.record_read(self._state, record)
                if self._reading is not None:
                    self._reading(record)
        except OutOfRangeError as error:
            self._state = protocol.high_watermark(self._state, error.high_watermark)
            if isinstance(protocol.next_action(self._state), protocol.Lost):
                return
            in_force = self._in_force_above()
            if in_force is None:
                raise
            raise in_force from error
        self._state = protocol.reading_ended(self._state)
        if isinstance(protocol.next_action(self._state), protocol.Append):
            self._discard_writer()

    def _in_force_above(self) -> FencedError | None:
        """Who is in force, of a log whose records up to here are gone: a newer driver has had it pruned (clause K2).

        A pruned log begins with a `SNAPSHOT`, which counts. None if it does not, or if no newer epoch
        is in force: then retention has cut the log short.
        """
        start, end = self._log.start_offset(), self._log.high_watermark()
        newest: StoredRecord | None = None
        counting: Counting | None = None
        for record in self._log.read(start, end):
            header = record.header
            if counting is not None:
                counting, verdict = count(counting, header)
                newest = record if verdict is Verdict.EPOCH else newest
            elif header is None or not _is_snapshot(record):
                return None
            else:
                after = header.sequence + 1
                newest, counting = record, Counting(header.epoch, after, after)
        if newest is None or counting is None:
            return None
        is_newer = counting.epoch > self.epoch or (
            self._reading is not None and counting.epoch == self.epoch  # another one took it over
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


def _is_snapshot(record: StoredRecord) -> bool:
    try:
        return record.record().kind is Kind.SNAPSHOT
    except RecordError:
        return False


class _Waiting:
    """The time that one append has used up, and its pauses."""

    def __init__(self, patience: Patience, log_name: str, doing: str) -> None:
        self._patience = patience
        self._log_name, self._doing = log_name, doing
        self._began = patience.clock()
        self._backoff_s = patience.backoff_s
        self.last_error = ""

    def at_most(self, limit_s: float) -> float:
        """`limit_s`, or what is left of the time."""
        left_s = self._patience.log_timeout_s - (self._patience.clock() - self._began)
        return min(limit_s, max(left_s, self._patience.backoff_s))

    def wait(self) -> None:
        """Pause before another try.

        Raises:
            LogUnavailableError: The time is up.
        """
        waited_s = self._patience.clock() - self._began
        left_s = self._patience.log_timeout_s - waited_s
        if left_s <= 0:
            raise LogUnavailableError(self._log_name, self._doing, waited_s, self.last_error)
        self._patience.on_waiting(waited_s, self.last_error)
        self._patience.sleep(min(self._backoff_s, left_s))
        self._backoff_s = min(2 * self._backoff_s, self._patience.backoff_max_s)
