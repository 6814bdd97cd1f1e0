"""Follows a job's history in its topic while the job runs, to decide by it and not by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from coordlog import KafkaLog, Kind, Record
from coordlog.errors import TopicError
from coordlog.log.interface import Log, StoredRecord
from coordlog.schemas.validity import NOTHING_COUNTED, Verdict, count

__all__ = ["Follower", "NotSeenError", "nth_of_kind", "open_log"]

_POLL_S: Final = 0.05


class NotSeenError(Exception):
    """What was waited for has not come."""


def open_log(job_id: str, servers: str) -> KafkaLog:
    """The log of a job, which may not be there yet; to be read only."""
    return KafkaLog.for_job(job_id, servers, fsync=False, retention_ms=0)


def nth_of_kind(kind: Kind, n: int) -> Callable[[Record], bool]:
    """True at the n-th record of a kind, 1 first; each call makes a new count."""
    seen = 0

    def is_it(record: Record) -> bool:
        nonlocal seen
        seen += record.kind is kind
        return record.kind is kind and seen == n

    return is_it


class Follower:
    """The records of a log that count, in order, as they come; it remembers how far it has read."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next_offset = 0
        self._counting = NOTHING_COUNTED
        self._turn: list[StoredRecord] = []
        self.records: list[Record] = []
        """All that has counted so far."""

    def wait_for(
        self, is_it: Callable[[Record], bool], *, is_over: Callable[[], bool], limit_s: float
    ) -> tuple[int, Record]:
        """The offset and the record at which `is_it` is true; it is asked once for each record.

        Args:
            is_it: Asked in log order, from where this has read to.
            is_over: Whether nothing more will come: who writes is gone.
            limit_s: How long to wait.

        Raises:
            NotSeenError: It did not come within `limit_s`, or who writes is gone.
        """
        deadline = time.monotonic() + limit_s
        while True:
            last_look = is_over()
            for offset, record in self._new():
                if is_it(record):
                    return offset, record
            if last_look:
                raise NotSeenError("the process has ended before")
            if time.monotonic() > deadline:
                raise NotSeenError(f"not within {limit_s:g} s")
            time.sleep(_POLL_S)

    def catch_up(self) -> None:
        """Read to the end."""
        for _ in self._new():
            pass

    def _new(self) -> Iterator[tuple[int, Record]]:
        try:
            end = self._log.high_watermark()
        except TopicError:
            return  # it has not been created yet
        for stored in self._log.read(self._next_offset, end):
            self._next_offset = stored.offset + 1
            self._counting, verdict = count(self._counting, stored.header)
            if verdict.is_void:
                continue
            if verdict is Verdict.EPOCH:
                self._turn.clear()
            self._turn.append(stored)
            if verdict is Verdict.FITS:
                continue
            whole, self._turn = self._turn, []
            for one in whole:
                record = one.record()
                self.records.append(record)
                yield one.offset, record
        self._next_offset = max(self._next_offset, end)
