"""Faults of an author's reader or operator that would lose rows without an error: they fail the attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from coordlog.api.operator import (
    FinishedSplit,
    Operator,
    Poll,
    PollStatus,
    SkippedSplit,
    SourceReader,
)
from coordlog.errors import UsageError

__all__ = ["check_handover", "check_poll", "check_state"]

_NEEDED: Final[Mapping[PollStatus, tuple[str, str]]] = {
    PollStatus.BATCH: ("batch", "its rows"),
    PollStatus.SPLIT_FINISHED: ("finished", "the split"),
    PollStatus.SPLIT_SKIPPED: ("skipped", "the split"),
}
"""Part that a poll of this status has, and what that is."""
_PARTS: Final[Mapping[str, type]] = {
    "batch": pa.RecordBatch,
    "rejects": pa.RecordBatch,
    "finished": FinishedSplit,
    "skipped": SkippedSplit,
}


def check_poll(poll: Poll, unread: Sequence[str]) -> None:
    """Refuse a poll with parts of another status or type, and an `END` before all splits have ended.

    Args:
        poll: Result of the reader's `poll`.
        unread: Splits that were added to this attempt and have not ended.

    Raises:
        UsageError: A part is missing, of another type, or would be dropped; or splits would be lost.
    """
    if not isinstance(poll, Poll):
        raise UsageError(f"`poll` returned a {type(poll).__name__}; it must return a `Poll`")
    status = poll.status.name
    needed, what = _NEEDED.get(poll.status, ("", ""))
    if needed and getattr(poll, needed) is None:
        raise UsageError(
            f"`poll` returned {status} without {what}: return it as `Poll({needed}=...)`"
        )
    allowed = (needed, "rejects") if poll.status is PollStatus.BATCH else (needed,)
    for part, kind in _PARTS.items():
        value = getattr(poll, part)
        if value is None:
            continue
        if not isinstance(value, kind):
            raise UsageError(
                f"`poll` returned {status} with a {type(value).__name__} as `{part}`; it must be a {kind.__name__}"
            )
        if part not in allowed:
            raise UsageError(
                f"`poll` returned {status} with `{part}`, which would be dropped: return it from a call of its own"
            )
    if poll.status is PollStatus.END and unread:
        raise UsageError(
            f"`poll` returned END, and split {unread[0]!r}, which was added, has not ended: return SPLIT_FINISHED with "
            "this id after its last batch, or SPLIT_SKIPPED"
        )


def check_handover(operator: Operator, *, is_batch: bool, is_flushed: bool) -> None:
    """Refuse an operator with a sink that returns committables in some calls, and lacks a call in which it must.

    Args:
        operator: The operator.
        is_batch: Whether the job runs without checkpoints.
        is_flushed: Whether the rows of each split are handed over at its end.

    Raises:
        UsageError: The rows before this call would be lost.
    """
    handing_over = ("snapshot_state", "end_of_split", "final_snapshot")
    if not any(_has_own(operator, call) for call in handing_over):
        return  # its coordinator commits without committables
    needed: tuple[str, ...] = ("snapshot_state", "final_snapshot")
    if is_batch:
        needed = ("end_of_split",) if is_flushed else ("final_snapshot",)
    for call in needed:
        if not _has_own(operator, call):
            raise UsageError(
                f"{type(operator).__name__} has a sink and no `{call}`: rows that it holds by then would be lost; "
                "return their committables there, or `Snapshot()` if it holds none"
            )


def check_state(link: Operator | SourceReader, state: bytes | None) -> None:
    """Refuse the state of a link that does not read it. Raises UsageError."""
    if state and not _has_own(link, "open"):
        raise UsageError(
            f"{type(link).__name__} has a state and no `open`, which gets it after a failure: restore the state there"
        )


def _has_own(link: Operator | SourceReader, call: str) -> bool:
    defaults = (getattr(Operator, call), getattr(SourceReader, call, None))
    return getattr(type(link), call) not in defaults
