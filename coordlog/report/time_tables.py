"""The time of a document: of its offsets, and its idle times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from coordlog.report.columns import Table

__all__ = ["idle_times", "time_tables"]

_CLOCK_ROWS: Final = 2_000
_IDLE_SHARE: Final = 0.04
"""Share of the remaining time from which a time without records is idle."""
_IDLE_MIN_US: Final = 500_000
_IDLE_MAX: Final = 200


def time_tables(records: Table) -> Iterator[tuple[str, Table]]:
    """The tables `clock` and `gaps`, from the offsets, times and verdicts of all records."""
    places = [
        (offset, t)
        for offset, t, valid in zip(
            records.column("off"), records.column("t"), records.column("valid"), strict=True
        )
        if valid == 0 and isinstance(t, int)
    ]
    clock = Table("off", "t")
    step = max(1, -(-len(places) // _CLOCK_ROWS))
    for offset, t in places[::step]:
        clock.add(offset, t)
    if places and (len(places) - 1) % step:
        clock.add(*places[-1])
    yield "clock", clock
    gaps = Table("t", "end_t")
    for begin, end in idle_times([t for _, t in places]):
        gaps.add(begin, end)
    yield "gaps", gaps


def idle_times(times: list[int]) -> list[tuple[int, int]]:
    """Begin and end of the times without records that are long compared with the rest, ascending.

    Args:
        times: Times of the records, ascending; microseconds.
    """
    if not times:
        return []
    waits = sorted(
        (later - earlier, earlier, later)
        for earlier, later in itertools.pairwise(times)
        if later - earlier >= _IDLE_MIN_US
    )
    rest, idle = times[-1] - times[0], list[tuple[int, int]]()
    while waits and len(idle) < _IDLE_MAX:
        length, earlier, later = waits.pop()
        if length < _IDLE_SHARE * rest:
            break
        rest -= length
        idle.append((earlier, later))
    return sorted(idle)
