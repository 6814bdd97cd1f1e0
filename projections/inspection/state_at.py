"""A job as it stood at any place of its log: at an offset, at a checkpoint, at a time. Needs nothing but the log."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from coordlog.errors import OptionError
from coordlog.projections.inspection.codeless_fold import PlainFold, record_of
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.apply_errors import Applying
from coordlog.projections.tables.attempts import AttemptFold
from coordlog.projections.tables.audit import AuditRecord, Stored, audit_records
from coordlog.projections.tables.checkpoints import CheckpointFold, CheckpointRow
from coordlog.projections.tables.splits import SplitFold, SplitRow
from coordlog.schemas.codec import decode_record
from coordlog.schemas.record import Kind

__all__ = ["Moment", "check_offset", "moment"]

_PRUNED: Final = (
    "where this log begins: what stood before is gone; where it was pruned it is in the file that the "
    "prune has archived, which can be given in JOB's place, as in `coordlog state FILE`"
)
_IDS_MAX: Final = 5
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a log says at one of its places."""

    state: JobState
    """Without the states of coordinators' projections, which only the job's own code can fold."""
    splits: tuple[SplitRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    offset: int
    """Of the last record that counts, -1 where none does."""
    record_count: int
    """Records that count up to there."""
    void_count: int


def check_offset(offset: int, start: int, end: int) -> None:
    """Refuse an offset at which a log can show nothing.

    Args:
        offset: The last record that is to be looked at; -1: before the first, of a log that has its first.
        start: Of the log's first record.
        end: The high watermark.

    Raises:
        OptionError: It is before the log's beginning, or behind its last record.
    """
    if offset < (start if start > 0 else -1):
        where = _PRUNED if start > 0 else "or -1 for the state before the first record"
        raise OptionError("offset", offset, f"{start} or above, {where}")
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
    """The job after the last turn that is whole there; without a place, at the end of what is given.

    Args:
        stored: All of the log, from its first record on.
        offset: The last record that is looked at; `check_offset` has nothing against it.
        checkpoint_id: Up to the turn in which this checkpoint completed.
        timestamp_us: Up to the last turn that was made by then; microseconds since 1970, UTC.

    Raises:
        RecordError: A record that counts cannot be read or applied; or the log's first records are gone.
        OptionError: The checkpoint has not completed in this log, or the time is before the beginning of a log whose
            first records were pruned.
    """
    entries = iter(stored)
    first = next(entries, None)
    if first is not None and first.offset > 0:
        _check_time(first, timestamp_us)
    fold = PlainFold()
    attempts, splits, checkpoints = AttemptFold(), SplitFold(), CheckpointFold()
    last, count, void = -1, 0, 0
    completed: list[int | None] = []
    is_found = checkpoint_id is None
    all_of_it = itertools.chain(() if first is None else (first,), entries)
    for one in _up_to(audit_records(_until(all_of_it, offset)), timestamp_us):
        if not one.counts:
            void += 1
            continue
        record = record_of(one)
        fold.apply(one)
        with Applying(one.offset, record):
            attempts.apply(record, one.fields)
            splits.apply(record, one.fields, attempts)
            checkpoints.apply(record)
        last, count = one.offset, count + 1
        if record.kind is Kind.CHECKPOINT_COMPLETED:
            completed.append(record.checkpoint_id)
            is_found = is_found or record.checkpoint_id == checkpoint_id
        if is_found and checkpoint_id is not None and record.turn_remaining == 0:
            break
    if not is_found:
        done = _some(completed) or "none has"
        is_pruned = first is not None and first.offset > 0
        since = f" behind offset {first.offset}, {_PRUNED}" if is_pruned and first else ""
        expected = f"one that has completed in this log ({done}){since}"
        raise OptionError("checkpoint", checkpoint_id, expected)
    return Moment(
        state=fold.state,
        splits=splits.rows(),
        checkpoints=checkpoints.rows(),
        offset=last,
        record_count=count,
        void_count=void,
    )


def _some(completed: list[int | None]) -> str:
    """The ids, the middle ones of very many left out."""
    shown = list(map(str, completed))
    if len(shown) > 2 * _IDS_MAX:
        shown[_IDS_MAX:-_IDS_MAX] = ["…"]
    return ", ".join(shown)


def _check_time(first: Stored, timestamp_us: int | None) -> None:
    """Refuse a time before the beginning of a log whose first records are gone."""
    began_us = decode_record(first.offset, first.value, first.header_bytes).timestamp_us
    if timestamp_us is not None and timestamp_us < began_us:
        raise OptionError("time", _iso(timestamp_us), f"{_iso(began_us)} or later, {_PRUNED}")


def _iso(timestamp_us: int) -> str:
    try:
        when = _EPOCH + dt.timedelta(microseconds=timestamp_us)
    except OverflowError:  # a record may say anything
        return f"{timestamp_us} microseconds since 1970"
    return when.isoformat().replace("+00:00", "Z")


def _until(stored: Iterable[Stored], offset: int | None) -> Iterator[Stored]:
    for one in stored:
        if offset is not None and one.offset > offset:
            return
        yield one


def _up_to(records: Iterable[AuditRecord], timestamp_us: int | None) -> Iterator[AuditRecord]:
    """Those made by then: times of records that count never fall, whatever a driver's clock does."""
    for one in records:
        is_later = (
            timestamp_us is not None
            and one.counts
            and one.record is not None
            and one.record.timestamp_us > timestamp_us
        )
        if is_later:
            return
        yield one
