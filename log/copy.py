"""Copies of a log's records for another log: unchanged, in groups of one append each.

A log's first record identifies its owner, and all others count by it. A driver that began an epoch on a new log before
that record is stored, in the epoch of the copy, would count the copy's records as its own. So the first record is
appended alone, and no record follows if it does not get its own offset. It is an `EPOCH_STARTED` of epoch 0: a driver
that has read the log while it was empty finds that epoch taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from coordlog.errors import FencedError, RecordError
from coordlog.limits import GROUP_BYTES_MAX, GROUP_RECORDS_MAX
from coordlog.log.interface import Log, StoredRecord, UnstoredRecord
from coordlog.schemas.validity import NOTHING_COUNTED, Verdict, judge

__all__ = ["groups", "is_same", "taken_by", "to_append"]


def to_append(
    stored: StoredRecord, *, header: bytes | None = None, value: bytes | None = None
) -> UnstoredRecord:
    """A stored record, to be appended elsewhere: unchanged, except for a header or a value that is passed."""
    return UnstoredRecord(
        key=stored.key or b"",
        value=stored.value or b"" if value is None else value,
        header=stored.header_bytes or b"" if header is None else header,
        timestamp_us=stored.timestamp_ms * 1000,
    )


def groups(records: Iterable[UnstoredRecord]) -> Iterator[list[UnstoredRecord]]:
    """The records in order, in groups for one append each: at most `GROUP_RECORDS_MAX`, and `GROUP_BYTES_MAX`.

    The first record is a group by itself, see above; so is a record above `GROUP_BYTES_MAX`.
    """
    records = iter(records)
    yield from ([first] for first in itertools.islice(records, 1))
    group: list[UnstoredRecord] = []
    size = 0
    for record in records:
        is_full = len(group) == GROUP_RECORDS_MAX or size + record.size_bytes > GROUP_BYTES_MAX
        if group and is_full:
            yield group
            group, size = [], 0
        group.append(record)
        size += record.size_bytes
    if group:
        yield group


def taken_by(log: Log, job_id: str, first: UnstoredRecord) -> FencedError | None:
    """The error that another driver began an epoch on the empty log; None if none did before a copy's first record.

    Behind that record no other epoch 0 counts, so that all counting records are the copy's, or follow it.

    Args:
        log: It begins at offset 0.
        job_id: For the message.
        first: The `EPOCH_STARTED` of epoch 0 that was to be the log's first record.

    Raises:
        LogError: The log cannot be read.
    """
    error: FencedError | None = None
    for judged in judge(log.read(0, log.high_watermark()), NOTHING_COUNTED):
        header = judged.entry.header
        if judged.verdict is not Verdict.EPOCH or header is None:
            continue
        if error is None and is_same(judged.entry, first):
            return None
        try:
            driver_id = judged.entry.record(header).driver_id
        except RecordError:
            driver_id = f"(of another version, at offset {judged.entry.offset})"
        error = FencedError(job_id, 0, header.epoch, driver_id)
    return error


def is_same(stored: StoredRecord, unstored: UnstoredRecord) -> bool:
    """Whether both have the same key, value and header, and the same time in milliseconds."""
    copied = to_append(stored)
    key, value, header = unstored.key, unstored.value, unstored.header
    is_alike = (copied.key, copied.value, copied.header) == (key, value, header)
    return is_alike and stored.timestamp_ms == unstored.timestamp_us // 1000
