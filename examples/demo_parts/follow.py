"""Follows a job's history in its topic while the job runs, to wait for a record instead of a time."""

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
    """The awaited record has not come."""


def open_log(job_id: str, servers: str) -> KafkaLog:
    """The log of a job, which need not exist yet; for reading only."""
    return KafkaLog.for_job(job_id, servers, fsync=False, retention_ms=0)


def nth_of_kind(kind: Kind, n: int) -> Callable[[Record], bool]:
    """A predicate that is true at the n-th record of a kind, from 1; each call begins a new count."""
    seen = 0

    def is_it(record: Record) -> bool:
        nonlocal seen
        seen += record.kind is kind
        return record.kind is kind and seen == n

    return is_it


class Follower:
    """The records of a log that count, in order, as they are appended; it stores its position."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next_offset = 0
        self._counting = NOTHING_COUNTED
        self._turn: list[StoredRecord] = []
        self.records: list[Record] = []
        """All records so far."""

    def wait_for(
        self, is_it: Callable[[Record], bool], *, is_over: Callable[[], bool], limit_s: float
    ) -> tuple[int, Record]:
        """Offset and record of the first new record for which `is_it` is true.

        Args:
            is_it: Called once for each new record, in log order.
            is_over: Whether the writer has ended, so that no record will follow.
            limit_s: Time limit, seconds.

        Raises:
            NotSeenError: The record did not come within `limit_s`, or before the writer's end.
        """
        deadline = time.monotonic() + limit_s
        while True:
            is_last_pass = is_over()
            for offset, record in self._new():
                if is_it(record):
                    return offset, record
            if is_last_pass:
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
            return  # the topic has not been created yet
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
            turn, self._turn = self._turn, []
            for counted in turn:
                record = counted.record()
                self.records.append(record)
                yield counted.offset, record
        self._next_offset = max(self._next_offset, end)
