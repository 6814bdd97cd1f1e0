"""The jobs that readers have open: a fold for each, renewed with the records appended since the last answer."""

from __future__ import annotations

import copy
import gzip
import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from coordlog.amounts import in_bytes
from coordlog.cli.living import DriverFold
from coordlog.cli.log_access import FileLogs, Logs, argument_of
from coordlog.errors import CoordlogError, LogUnavailableError, OutOfRangeError, TopicError
from coordlog.log.interface import Log
from coordlog.projections.tables.audit import AuditReader
from coordlog.report.document import DocumentFold
from coordlog.report.lanes import SizeOf
from coordlog.schemas.validity import beginning_of

__all__ = ["MEMORY_MB", "Answer", "LiveJobs"]

MEMORY_MB: Final = 1024
"""Default bound on the views of all jobs: about 600,000 records."""
_JOBS_MAX: Final = 16
"""Number of jobs whose views are kept: each has a client of its broker."""
_RECORD_BYTES: Final = 1_500
"""Bytes of a view for each record besides its content: the 104,539 of a history of 1,000 subtasks took 1,200 each."""
_STEP: Final = 1_000
"""Records after which the size of a view is compared with the bound again."""
_LOOKED_AT_S: Final = 30.0
"""Seconds for which a view counts as looked at: an open page asks for it every two seconds."""
_WAIT_S: Final = 10.0
"""Seconds for which a reader waits while the log is read for another one."""
_CHECK_S: Final = 3.0
"""Seconds between two checks that the log is still the same."""
_REST: Final = 4
"""Shortest pause between two documents, as a multiple of the time that the last one took."""
_VERDICT_S: Final = 5.0
"""Seconds after which a document without new records is made again: its job may have become slow or stuck."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Facts and records of a job at one time."""

    version: str
    """Differs from that of any other answer about a log of this name."""
    end: int
    """End of the log."""
    body: bytes
    """JSON in gzip."""
    is_over: bool
    """Whether the verdict stays the same without another record."""
    took_s: float
    made_s: float


MakeRoom = Callable[["_LiveJob"], None]


class _LiveJob:
    """The view of one job: its log, its fold, and the last answer. Any thread; one at a time.

    Args:
        logs: Place of the log.
        job: Id of the job.
        size_of: As in `LiveJobs`.
        make_room: Called after each growth; raises if the view has become too large.
        making: Held while a document is made: each takes its fold a second time into memory.
    """

    def __init__(
        self, logs: Logs, job: str, size_of: SizeOf, make_room: MakeRoom, making: threading.Lock
    ) -> None:
        self._logs, self._job, self._size_of = logs, job, size_of
        self._make_room, self._making = make_room, making
        self.users = 0
        """Number of requests for it; guarded by the lock of `LiveJobs`."""
        self.looked_s = time.monotonic()
        """Time of the last request; guarded likewise."""
        self._content_bytes = self._end = 0
        self._lock = threading.Lock()
        self._log: Log | None = None
        self._reader: AuditReader | None = None
        self._driver: DriverFold | None = None
        self._fold = DocumentFold(size_of=size_of)
        self._next = self._start = 0
        self._checked_s = 0.0
        self._answer: Answer | None = None

    @property
    def is_read(self) -> bool:
        """Whether it takes memory, and has a client of its broker."""
        return self._log is not None

    @property
    def name(self) -> str:
        """Name of the log."""
        return f"{self._job}.log"

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, by estimate."""
        answer = self._answer
        body = 0 if answer is None else len(answer.body)
        return (self._next - self._start) * _RECORD_BYTES + self._content_bytes + body

    def answer(self) -> Answer:
        """Facts and records of now; those of before, while they are renewed for another request.

        Raises:
            TopicError, LogUnavailableError, RecordError: As reading the log; or the view does not fit.
        """
        last = self._answer
        if not self._lock.acquire(timeout=_WAIT_S if last is None else 0):
            if last is not None:
                return last
            raise TopicError(
                self.name,
                f"{self._next - self._start:,} of {self._end - self._start:,} records are read",
                "the page follows once all of them are",
            )
        try:
            return self._renewed()
        finally:
            self._lock.release()

    def _renewed(self) -> Answer:
        try:
            try:
                self._read()
            except OutOfRangeError:  # pruned meanwhile: begin again
                self._reset()
                self._read()
            if self._answer is None or self._is_due(self._answer):
                answers = self._driver_answers()
                with self._making:
                    self._answer = self._made(driver_answers=answers)
                self._make_room(self)
        except LogUnavailableError:
            self._checked_s = 0.0  # the view goes on if it is the same log that returns
            raise
        except Exception:
            self._reset()
            raise
        return self._answer

    def drop(self) -> bool:
        """Free the memory, unless a request uses it; whether that is done."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._reset()
        finally:
            self._lock.release()
        return True

    def _is_due(self, last: Answer) -> bool:
        age_s = time.monotonic() - last.made_s
        if last.end == self._next and (last.is_over or age_s < _VERDICT_S):
            return False
        return age_s > _REST * last.took_s

    def _reset(self) -> None:
        if self._log is not None and not isinstance(self._logs, FileLogs):
            self._log.close()
        self._log = self._reader = self._driver = self._answer = None
        self._fold = DocumentFold(size_of=self._size_of)
        self._next = self._start = self._end = self._content_bytes = 0

    def _read(self) -> None:
        log = self._opened()
        if self._reader is None:
            self._next = self._start = log.start_offset()
        end = self._end = log.high_watermark()
        if self._driver is None:
            self._driver = DriverFold(self._job, log.identity)
        driver = self._driver
        if end < self._next:
            raise OutOfRangeError(log.identity.name, self._next, self._start, end)
        for stored in log.read(self._next, end):
            if self._reader is None:
                self._reader = AuditReader(beginning_of(stored))
            for entry in self._reader.feed(stored):
                self._fold.apply(entry)
                driver.apply(entry)
            self._next = stored.offset + 1
            self._content_bytes += len(stored.value or b"")
            if self._next % _STEP == 0:
                self._make_room(self)
        self._next = max(self._next, end)

    def _opened(self) -> Log:
        now_s = time.monotonic()
        if self._log is not None and now_s - self._checked_s < _CHECK_S:
            return self._log
        log = self._logs.open(self._job)
        if self._log is not None:
            identity, start = self._log.identity, self._start
            try:
                is_same = log.identity == identity and log.start_offset() == start
            except CoordlogError:
                if log is not self._log:
                    log.close()
                raise
            if not is_same:
                self._reset()  # another log of this name, or a pruned one
            elif log is not self._log:
                self._log.close()
        self._log, self._checked_s = log, now_s
        return log

    def _driver_answers(self) -> bool | None:
        """Whether the driver answers; None if it is not known, or does not matter."""
        if self._driver is None or self._fold.is_over or isinstance(self._logs, FileLogs):
            return None
        with suppress(CoordlogError):  # the user's token is none
            return self._driver.answers()
        return None

    def _made(self, *, driver_answers: bool | None) -> Answer:
        began_s = time.monotonic()
        fold = copy.deepcopy(self._fold)  # making a document ends a fold
        if self._reader is not None:
            for entry in self._reader.rest():
                fold.apply(entry)
        now_us, is_file = time.time_ns() // 1000, isinstance(self._logs, FileLogs)
        report = fold.document(
            job=self._job,
            where=self._logs.where,
            made_us=now_us,
            made_by=metadata.version("coordlog"),
            moment_us=None if is_file else now_us,
            argument=argument_of(self._logs, self._job),
            driver_answers=driver_answers,
        )
        text = json.dumps(
            {"facts": report.facts, "records": report.records},
            separators=(",", ":"),
            allow_nan=False,
        )
        body = gzip.compress(text.encode(), 4, mtime=0)
        now_s = time.monotonic()
        return Answer(
            version=uuid.uuid4().hex,
            end=self._next,
            body=body,
            is_over=is_file or fold.is_over,
            took_s=now_s - began_s,
            made_s=now_s,
        )


class LiveJobs:
    """The views of jobs, bounded in their number and their bytes. Any thread.

    If they are too many, the view that was looked at longest ago is dropped, and read again when it is asked for. A
    view that is being looked at stays: two pages must not drop each other's every two seconds.

    Args:
        size_of: As in `coordlog.report.document.document`.
        memory_bytes: Bound on the bytes of all views, by estimate. A document in the making takes as much again as
            its view.
    """

    def __init__(self, size_of: SizeOf, memory_bytes: int = MEMORY_MB * 1_000_000) -> None:
        self._size_of, self._memory_bytes = size_of, memory_bytes
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._jobs: OrderedDict[str, _LiveJob] = OrderedDict()
        """By name, the one that was asked for last at the end."""

    def answer(self, place: Logs, job: str, name: str) -> Answer:
        """Facts and records of a job at that place, whose page has that name.

        Raises:
            TopicError: There is no such job, or its view does not fit, or is still being read.
            LogUnavailableError, RecordError: As reading the log.
        """
        with self._lock:
            live = self._jobs.setdefault(
                name, _LiveJob(place, job, self._size_of, self._make_room, self._making)
            )
            self._jobs.move_to_end(name)
            live.users += 1
        try:
            return live.answer()
        finally:
            with self._lock:
                live.users -= 1
                live.looked_s = time.monotonic()
                if not live.users and not live.is_read:
                    del self._jobs[name]

    def close(self) -> None:
        """Free the views that no request uses."""
        with self._lock:
            for live in self._jobs.values():
                live.drop()

    def _make_room(self, growing: _LiveJob) -> None:
        """Drop views until all fit.

        Raises:
            TopicError: They do not.
        """
        if growing.size > self._memory_bytes:
            raise TopicError(
                growing.name,
                f"its page takes more than the {in_bytes(self._memory_bytes)} for all pages",
                "`coordlog report` writes it to a file, and `coordlog web --memory MB` gives more",
            )
        since_s = time.monotonic() - _LOOKED_AT_S
        with self._lock:
            for other in list(self._jobs.values()):
                if self._is_enough():
                    return
                if other is not growing and not other.users and other.looked_s < since_s:
                    other.drop()
            if self._is_enough():
                return
        raise TopicError(
            growing.name,
            f"the {in_bytes(self._memory_bytes)} and {_JOBS_MAX} places for pages are taken by others",
            f"close one of their pages, and wait {_LOOKED_AT_S:.0f} s",
        )

    def _is_enough(self) -> bool:
        read = [live for live in self._jobs.values() if live.is_read]
        return len(read) <= _JOBS_MAX and sum(live.size for live in read) <= self._memory_bytes
