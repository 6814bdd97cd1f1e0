"""The jobs that readers have open: a fold for each, renewed with the records appended since the last answer."""

from __future__ import annotations

import copy
import gzip
import json
import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from coordlog.cli.log_access import FileLogs, Logs
from coordlog.errors import OutOfRangeError, TopicError
from coordlog.log.interface import Log
from coordlog.projections.tables.audit import AuditReader
from coordlog.report.document import DocumentFold
from coordlog.report.lanes import SizeOf
from coordlog.schemas.validity import beginning_of

__all__ = ["Answer", "LiveJobs"]

_JOBS_MAX: Final = 8
"""Number of jobs with a fold in memory; beyond it the least recently read job is dropped."""
_RECORDS_MAX: Final = 500_000
"""Number of records of one job that are kept in memory."""
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


class _LiveJob:
    """One job: its log, its fold, and the last answer. Any thread; one at a time."""

    def __init__(self, logs: Logs, job: str, size_of: SizeOf) -> None:
        self._logs, self._job, self._size_of = logs, job, size_of
        self._lock = threading.Lock()
        self._log: Log | None = None
        self._reader: AuditReader | None = None
        self._fold = DocumentFold(size_of=size_of)
        self._next = self._start = 0
        self._checked_s = 0.0
        self._answer: Answer | None = None

    def answer(self) -> Answer:
        """Facts and records of now.

        Raises:
            TopicError, LogUnavailableError, RecordError: As reading the log.
        """
        with self._lock:
            try:
                self._read()
            except OutOfRangeError:  # pruned meanwhile: begin again
                self._reset()
                self._read()
            except Exception:
                self._reset()
                raise
            if self._answer is None or self._is_due(self._answer):
                self._answer = self._made()
            return self._answer

    def close(self) -> None:
        """Free the log."""
        with self._lock:
            self._reset()

    def _is_due(self, last: Answer) -> bool:
        age_s = time.monotonic() - last.made_s
        if last.end == self._next and (last.is_over or age_s < _VERDICT_S):
            return False
        return age_s > _REST * last.took_s

    def _reset(self) -> None:
        if self._log is not None and not isinstance(self._logs, FileLogs):
            self._log.close()
        self._log = self._reader = self._answer = None
        self._fold = DocumentFold(size_of=self._size_of)
        self._next = self._start = 0

    def _read(self) -> None:
        log = self._opened()
        if self._reader is None:
            self._next = self._start = log.start_offset()
        end = log.high_watermark()
        if end < self._next:
            raise OutOfRangeError(log.identity.name, self._next, self._start, end)
        if end - self._start > _RECORDS_MAX:
            raise TopicError(
                log.identity.name,
                f"the log has {end - self._start:,} records, more than {_RECORDS_MAX:,}",
                f"`coordlog report {self._job}` writes its page to a file",
            )
        for stored in log.read(self._next, end):
            if self._reader is None:
                self._reader = AuditReader(beginning_of(stored))
            for entry in self._reader.feed(stored):
                self._fold.apply(entry)
            self._next = stored.offset + 1
        self._next = max(self._next, end)

    def _opened(self) -> Log:
        now_s = time.monotonic()
        if self._log is not None and now_s - self._checked_s < _CHECK_S:
            return self._log
        log = self._logs.open(self._job)
        if self._log is not None:
            identity, start = self._log.identity, self._start
            if log.identity != identity or log.start_offset() != start:
                self._reset()  # another log of this name, or a pruned one
            elif log is not self._log:
                self._log.close()
        self._log, self._checked_s = log, now_s
        return log

    def _made(self) -> Answer:
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
    """The jobs that are read, bounded in number. Any thread.

    Args:
        size_of: As in `coordlog.report.document.document`.
    """

    def __init__(self, size_of: SizeOf) -> None:
        self._size_of = size_of
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, _LiveJob] = OrderedDict()

    def answer(self, place: Logs, job: str) -> Answer:
        """As `_LiveJob.answer`. A job that cannot be read displaces no other one."""
        with self._lock:
            live = self._jobs.get(job)
        if live is None:
            live = _LiveJob(place, job, self._size_of)
        answer = live.answer()
        gone: list[_LiveJob] = []
        with self._lock:
            if self._jobs.setdefault(job, live) is not live:
                gone.append(live)
            self._jobs.move_to_end(job)
            while len(self._jobs) > _JOBS_MAX:
                gone.append(self._jobs.popitem(last=False)[1])
        for other in gone:
            other.close()
        return answer
