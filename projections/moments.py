"""A job as it stood at any place of its log: at an offset, at a checkpoint, at a time. Needs nothing but the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coordlog.errors import OptionError
from coordlog.schemas.record import Kind

from .attempts import AttemptFold
from .audit import AuditRecord, Stored, audit_records
from .checkpoint_audit import CheckpointFold, CheckpointRow, CheckpointStatus
from .plain_fold import PlainFold, record_of
from .split_audit import SplitFold, SplitRow
from .state import JobState
from .unfit import Applying

__all__ = ["Moment", "moment"]


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
        offset: The last record that is looked at.
        checkpoint_id: Up to the turn in which this checkpoint completed.
        timestamp_us: Up to the last turn that was made by then; microseconds since 1970, UTC.

    Raises:
        RecordError: A record that counts cannot be read or applied; or the log's first records are gone.
        OptionError: The checkpoint has not completed in this log.
    """
    fold = PlainFold()
    attempts, splits, checkpoints = AttemptFold(), SplitFold(), CheckpointFold()
    last, count, void = -1, 0, 0
    is_found = checkpoint_id is None
    for one in _up_to(audit_records(_until(stored, offset)), timestamp_us):
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
        if record.kind is Kind.CHECKPOINT_COMPLETED and record.checkpoint_id == checkpoint_id:
            is_found = True
        if is_found and checkpoint_id is not None and record.turn_remaining == 0:
            break
    if not is_found:
        done = [
            str(one.checkpoint_id)
            for one in checkpoints.rows()
            if one.status in (CheckpointStatus.COMPLETED, CheckpointStatus.ABANDONED)
        ]
        raise OptionError(
            "checkpoint",
            checkpoint_id,
            f"one that has completed in this log: {', '.join(done) or 'none has'}",
        )
    return Moment(
        state=fold.state,
        splits=splits.rows(),
        checkpoints=checkpoints.rows(),
        offset=last,
        record_count=count,
        void_count=void,
    )


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
