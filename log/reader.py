"""Reading a log through the fold of what counts."""

from __future__ import annotations

from collections.abc import Iterator

from coordlog.log.interface import Log, StoredRecord
from coordlog.schemas.validity import NOTHING_COUNTED, Counted, Counting, counted_turns

__all__ = ["read_counted"]


def read_counted(
    log: Log,
    from_offset: int,
    to_offset: int,
    counting: Counting = NOTHING_COUNTED,
    *,
    stall_s: float | None = None,
) -> Iterator[Counted[StoredRecord]]:
    """The turns that count with `from_offset` <= offsets < `to_offset`, each whole, in log order.

    Args:
        log: Where to read.
        from_offset: Inclusive.
        to_offset: Exclusive, at most the high watermark. A turn that ends beyond it is left out.
        counting: What the log came to below `from_offset`, with no turn unfinished there.
        stall_s: As in `Log.read`.

    Raises:
        OutOfRangeError: At once, as in `Log.read`.
        LogUnavailableError: While reading, as in `Log.read`.
    """
    assert counting.turn_began == counting.next_sequence
    return counted_turns(log.read(from_offset, to_offset, stall_s=stall_s), counting)
