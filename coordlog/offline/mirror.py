"""Copies that a mirroring tool makes of a log: their offsets are not those of the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from coordlog.errors import RecordError
from coordlog.log.interface import Log, LogIdentity, LogWriter, StoredRecord
from coordlog.schemas.validity import beginning_at

__all__ = ["from_its_beginning"]


def from_its_beginning(source: Log) -> Log:
    """The copy from the record on with which its history begins, behind records of others; any other log as it is.

    A log of a job begins with a `SNAPSHOT` only above offset 0: so the offsets of a copy are one higher here if it has
    the `SNAPSHOT` at offset 0. A whole history begins at offset 0: so the offsets of a copy are lower here if records
    of others were removed before its first epoch.

    Raises:
        LogError: The log cannot be read.
    """
    start = source.start_offset()
    records = source.read(start, source.high_watermark())
    first = next((stored for stored in records if stored.header is not None), None)
    if first is None or first.header is None:
        return source
    if start > 0 and first.header.is_epoch_started and first.header.epoch == 0:
        return _Shifted(source, first.offset, -first.offset)
    if first.offset == start > 0:
        return source
    with suppress(RecordError):
        if beginning_at(first) is not None:
            return _Shifted(source, first.offset, int(first.offset == 0))
    return source


class _Shifted:
    """See `Log`."""

    def __init__(self, source: Log, begins_at: int, shift: int) -> None:
        self._source = source
        self._shift = shift
        self._start = begins_at + shift

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
