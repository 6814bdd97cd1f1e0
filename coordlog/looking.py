"""Looks into a job's log at any place, without the job's code."""

from __future__ import annotations

import datetime as dt

from coordlog.errors import OptionError
from coordlog.log.port import Log
from coordlog.projections.moments import Moment, moment

__all__ = ["state_at"]


def state_at(
    log: Log,
    *,
    offset: int | None = None,
    checkpoint_id: int | None = None,
    time: dt.datetime | None = None,
) -> Moment:
    """What a job's coordinator knew at one place of its log; without a place, at its end. Reads from the log's start.

    Args:
        log: The job's; its driver need not run.
        offset: After the last turn that is whole at this offset.
        checkpoint_id: After the turn in which it completed.
        time: After the last turn that was made by then; with a time zone.

    Raises:
        OptionError: More than one place, a time without a zone, or a checkpoint that has not completed.
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
    return moment(
        log.read(log.start_offset(), log.high_watermark()),
        offset=offset,
        checkpoint_id=checkpoint_id,
        timestamp_us=None if time is None else (time - since) // dt.timedelta(microseconds=1),
    )
