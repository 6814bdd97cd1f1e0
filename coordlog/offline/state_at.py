"""State of a job at any place of its log, folded without the job's code."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from coordlog.errors import OptionError
from coordlog.history import History
from coordlog.log.interface import Log
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
    """State of a job's coordinator at one place of its log, by default at its end. Reads from the log's start.

    Args:
        log: The job's log; its driver need not run.
        offset: Place after the last turn that is whole at this offset; -1: before the first record.
        checkpoint_id: Place after the turn in which this checkpoint completed.
        time: Place after the last turn made by then; with a time zone.
        on_progress: Called with the offset of each record, before it is folded.

    Raises:
        OptionError: More than one place, a time without a zone, a checkpoint that has not completed in this log, or a
            place outside it: before the beginning of a pruned log, or an offset after the last record.
        RecordError: A record that counts cannot be read.
        LogError: The log cannot be read.
    """
    if sum(place is not None for place in (offset, checkpoint_id, time)) > 1:
        raise OptionError(
            "offset, checkpoint_id, time", (offset, checkpoint_id, time), "at most one of them"
        )
    if time is not None and time.tzinfo is None:
        raise OptionError("time", time.isoformat(), "with its time zone, as in 12:00:00Z")
    epoch_start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    history = History(log, on_progress)
    if offset is not None:
        check_offset(offset, history.start, history.end)
    return moment(
        history.stored(),
        offset=offset,
        checkpoint_id=checkpoint_id,
        timestamp_us=None if time is None else (time - epoch_start) // dt.timedelta(microseconds=1),
    )
