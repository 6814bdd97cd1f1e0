"""Copies of a pruned log whose offsets begin anew, as a mirroring tool makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from coordlog.errors import RecordError
from coordlog.log.interface import Log, LogIdentity, LogWriter, StoredRecord
from coordlog.schemas.validity import beginning_at

__all__ = ["from_its_snapshot"]


def from_its_snapshot(source: Log) -> Log:
    """The copy from the `SNAPSHOT` on with which it begins, behind records of others; any other log as it is.

    A log of a job begins with a `SNAPSHOT` only above offset 0: so the offsets of a copy are one higher here if it has
    the `SNAPSHOT` at offset 0.

    Raises:
        LogError: The log cannot be read.
    """
    start = source.start_offset()
    records = source.read(start, source.high_watermark())
    first = next((stored for stored in records if stored.header is not None), None)
    if first is None or first.offset == start > 0:
        return source
    with suppress(RecordError):
        if beginning_at(first) is not None:
            return _FromSnapshot(source, first.offset)
    return source


class _FromSnapshot:
    """See `Log`."""

    def __init__(self, source: Log, begins_at: int) -> None:
        self._source = source
        self._shift = int(begins_at == 0)
        self._start = begins_at + self._shift

    @property
    def identity(self) -> LogIdentity:
        return self._source.identity

    def start_offset(self) -> int:
        return self._start

    def high_watermark(self) -> int:
        return self._source.high_watermark() + self._shift

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        shift = self._shift
        stored = self._source.read(from_offset - shift, to_offset - shift, stall_s=stall_s)
        return (record._replace(offset=record.offset + shift) for record in stored)

    def writer(self) -> LogWriter:
        return self._source.writer()

    def close(self) -> None:
        self._source.close()
