"""Records of one log as another one takes them: alike, in groups of what one append holds.

A log's first record tells drivers whose it is, and all others count by it: a driver that begins an epoch on a new log
before that record is there, in the epoch of the copy, would have counted the copy's records as its own. So the first
record goes alone, and nothing follows where it does not come to stand at the place that it has. It is an
`EPOCH_STARTED` of epoch 0: whoever has read the log while it was empty finds that epoch taken.
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
    """A stored record, to be appended elsewhere: as it is, but for a header or a value that is given."""
    return UnstoredRecord(
        key=stored.key or b"",
        value=stored.value or b"" if value is None else value,
        header=stored.header_bytes or b"" if header is None else header,
        timestamp_us=stored.timestamp_ms * 1000,
    )


def groups(records: Iterable[UnstoredRecord]) -> Iterator[list[UnstoredRecord]]:
    """The records in order, in groups for one append each: at most `GROUP_RECORDS_MAX`, and `GROUP_BYTES_MAX`.

    The first record is a group by itself, see above; so is one that is larger than that.
    """
    records = iter(records)
    yield from ([one] for one in itertools.islice(records, 1))
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
    """That a driver has begun an epoch on a log that was empty; None where none has, before a copy's first record.

    Behind that record no other epoch of epoch 0 counts, so that all that count are the copy's, or follow on it.

    Args:
        log: It begins at offset 0.
        job_id: For the message.
        first: The `EPOCH_STARTED` of epoch 0 that was to be the log's first record.

    Raises:
        LogError: It cannot be read.
    """
    found: FencedError | None = None
    for judged in judge(log.read(0, log.high_watermark()), NOTHING_COUNTED):
        header = judged.entry.header
        if judged.verdict is not Verdict.EPOCH or header is None:
            continue
        if found is None and is_same(judged.entry, first):
            return None
        try:
            driver_id = judged.entry.record(header).driver_id
        except RecordError:
            driver_id = f"(of another version, at offset {judged.entry.offset})"
        found = FencedError(job_id, 0, header.epoch, driver_id)
    return found


def is_same(stored: StoredRecord, one: UnstoredRecord) -> bool:
    """Whether a log gives back what was handed to one: key, value, header, and the time in milliseconds."""
    there = to_append(stored)
    key, value, header = one.key, one.value, one.header
    is_alike = (there.key, there.value, there.header) == (key, value, header)
    return is_alike and stored.timestamp_ms == one.timestamp_us // 1000
