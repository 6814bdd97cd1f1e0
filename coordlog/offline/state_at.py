"""Looks into a job's log at any place, without the job's code."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator

from coordlog.errors import OptionError
from coordlog.log.interface import Log, StoredRecord
from coordlog.projections.inspection.state_at import Moment, check_offset, moment

__all__ = ["state_at"]


def state_at(
    log: Log,
    *,
    offset: int | None = None,
    checkpoint_id: int | None = None,
    time: dt.datetime | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Moment:
    """What a job's coordinator knew at one place of its log; without a place, at its end. Reads from the log's start.

    Args:
        log: The job's; its driver need not run.
        offset: After the last turn that is whole at this offset; -1: before the first record.
        checkpoint_id: After the turn in which it completed.
        time: After the last turn that was made by then; with a time zone.
        on_progress: Told the offset of each record that is read, before it is folded.

    Raises:
        OptionError: More than one place, a time without a zone, a checkpoint that has not completed in this log, or a
            place that is none of it: before the beginning of a pruned log, or an offset behind the last record.
        RecordError: A record that counts cannot be read.
        LogError: The log.
    """
    if sum(one is not None for one in (offset, checkpoint_id, time)) > 1:
        raise OptionError(
            "offset, checkpoint_id, time", (offset, checkpoint_id, time), "given one at most"
        )
    if time is not None and time.tzinfo is None:
        raise OptionError("time", time.isoformat(), "given with its time zone, as in 12:00:00Z")
    since = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    start, end = log.start_offset(), log.high_watermark()
    if offset is not None:
        check_offset(offset, start, end)
    return moment(
        _told(log.read(start, end), on_progress),
        offset=offset,
        checkpoint_id=checkpoint_id,
        timestamp_us=None if time is None else (time - since) // dt.timedelta(microseconds=1),
    )


def _told(
    stored: Iterator[StoredRecord], on_progress: Callable[[int], None] | None
) -> Iterator[StoredRecord]:
    for one in stored:
        if on_progress is not None:
            on_progress(one.offset)
        yield one
