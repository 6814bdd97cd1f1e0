"""State of a job at a place of its log: an offset, a checkpoint or a time. Needs only the log."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from coordlog.errors import OptionError
from coordlog.projections.inspection.codeless_fold import PlainFold
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import AuditFold, AuditRecord, Stored, audit_records
from coordlog.projections.tables.checkpoints import CheckpointRow
from coordlog.projections.tables.splits import SplitRow
from coordlog.schemas.codec import decode_record
from coordlog.schemas.record import Kind

__all__ = ["Moment", "check_offset", "moment"]

_PRUNED: Final = (
    "where this log begins: the records before were removed; if it was pruned they are in the file that the "
    "prune has archived, which can take JOB's place, as in `coordlog state FILE`"
)
_IDS_MAX: Final = 5
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """State of a job at one place of its log."""

    state: JobState
    """Without the states of coordinators' projections, which only the job's own code can fold."""
    splits: tuple[SplitRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    offset: int
    """Offset of the last record that counts, or -1 if none does."""
    record_count: int
    """Number of records that count, up to `offset`."""
    void_count: int


def check_offset(offset: int, start: int, end: int) -> None:
    """Refuse an offset that the log does not have.

    Args:
        offset: Offset of the last record to fold; -1 is before the first, if the log has its first record.
        start: Offset of the first record in the log.
        end: The high watermark.

    Raises:
        OptionError: The offset is before the first record, or behind the last.
    """
    if offset < (start if start > 0 else -1):
        place = _PRUNED if start > 0 else "or -1 for the state before the first record"
        raise OptionError("offset", offset, f"{start} or above, {place}")
    if offset >= end:
        last = f"{end - 1} or below, which is the last record" if end > start else None
        raise OptionError("offset", offset, last or "left out: the log has no record")


def moment(
    stored: Iterable[Stored],
    *,
    offset: int | None = None,
    checkpoint_id: int | None = None,
    timestamp_us: int | None = None,
) -> Moment:
    """State of the job after the last whole turn up to a place; without a place, at the end of `stored`.

    Args:
        stored: All of the log, from its first record on.
        offset: Offset of the last record to fold, which `check_offset` has accepted.
        checkpoint_id: Checkpoint at whose completing turn the fold ends.
        timestamp_us: Time at which the fold ends; microseconds since 1970, UTC.

    Raises:
        RecordError: A record that counts cannot be read or applied, or the first records of the log were removed.
        OptionError: The checkpoint has not completed in this log, or the time is before the beginning of a log whose
            first records were pruned.
    """
    entries = iter(stored)
    first = next(entries, None)
    if first is not None and first.offset > 0:
        _check_time(first, timestamp_us)
    fold, tables = PlainFold(), AuditFold()
    last = -1
    completed: list[int | None] = []
    is_found = checkpoint_id is None
    all_entries = itertools.chain(() if first is None else (first,), entries)
    for entry in _up_to(audit_records(_until(all_entries, offset)), timestamp_us):
        tables.apply(entry)
        if not entry.counts:
            continue
        record = entry.known()
        fold.apply(entry)
        last = entry.offset
        if record.kind is Kind.CHECKPOINT_COMPLETED:
            completed.append(record.checkpoint_id)
            is_found = is_found or record.checkpoint_id == checkpoint_id
        if is_found and checkpoint_id is not None and record.turn_remaining == 0:
            break
    if not is_found:
        known = _some(completed) or "none has"
        is_pruned = first is not None and first.offset > 0
        scope = f" behind offset {first.offset}, {_PRUNED}" if is_pruned and first else ""
        expected = f"one that has completed in this log ({known}){scope}"
        raise OptionError("checkpoint", checkpoint_id, expected)
    shown = tables.audit()
    return Moment(
        state=fold.state,
        splits=shown.splits,
        checkpoints=shown.checkpoints,
        offset=last,
        record_count=shown.record_count,
        void_count=shown.void_count,
    )


def _some(completed: list[int | None]) -> str:
    """Ids as text; of very many, without those in the middle."""
    shown = list(map(str, completed))
    if len(shown) > 2 * _IDS_MAX:
        shown[_IDS_MAX:-_IDS_MAX] = ["…"]
    return ", ".join(shown)


def _check_time(first: Stored, timestamp_us: int | None) -> None:
    """Refuse a time before the beginning of a log whose first records were removed."""
    began_us = decode_record(first.offset, first.value, first.header_bytes).timestamp_us
    if timestamp_us is not None and timestamp_us < began_us:
        raise OptionError("time", _iso(timestamp_us), f"{_iso(began_us)} or later, {_PRUNED}")


def _iso(timestamp_us: int) -> str:
    try:
        when = _EPOCH + dt.timedelta(microseconds=timestamp_us)
    except OverflowError:  # records are untrusted
        return f"{timestamp_us} microseconds since 1970"
    return when.isoformat().replace("+00:00", "Z")


def _until(stored: Iterable[Stored], offset: int | None) -> Iterator[Stored]:
    for entry in stored:
        if offset is not None and entry.offset > offset:
            return
        yield entry


def _up_to(records: Iterable[AuditRecord], timestamp_us: int | None) -> Iterator[AuditRecord]:
    """Records up to the time: times of records that count never decrease, even if a driver's clock does."""
    for entry in records:
        is_later = (
            timestamp_us is not None
            and entry.counts
            and entry.record is not None
            and entry.record.timestamp_us > timestamp_us
        )
        if is_later:
            return
        yield entry
