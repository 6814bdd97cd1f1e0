"""Records of one log as another one takes them: alike, in groups of what one append holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coordlog.limits import GROUP_BYTES_MAX, GROUP_RECORDS_MAX

from .port import StoredRecord, UnstoredRecord

__all__ = ["groups", "to_append"]


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

    A record that is larger than that by itself is a group by itself.
    """
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
