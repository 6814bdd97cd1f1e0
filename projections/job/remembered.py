"""The events of live attempts that the job state remembers, until a completed checkpoint holds what they led to.

A local failover hands them to coordinators (clause D5: lost events); a checkpoint takes its channel state from them.
They are bounded: the record of an event that is one too many has the attribute `FORGETS`, and all before it are gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from immutables import Map

from coordlog.projections.job.state import DownEvent, JobState, UpEvent, sorted_items, sorted_values
from coordlog.schemas.evolution import evolve

__all__ = [
    "EVENT_BYTES",
    "FORGETS",
    "forget",
    "has_forgotten",
    "is_remembered",
    "weight",
    "weights",
]

FORGETS: Final = "forgets"
"""On `EVENT_TO_SUBTASK` and `EVENT_TO_COORDINATOR`: the events of all attempts before this one are forgotten."""

EVENT_BYTES: Final = 256
"""What an event weighs besides its payload."""

_OF_SPLITS: Final = ("coordlog.add_splits@", "coordlog.no_more_splits@", "coordlog.request_split@")
_SPLITS: Final = "coordlog.splits@"


def weight(payload: bytes) -> int:
    """What an event with this payload weighs, in bytes."""
    return len(payload) + EVENT_BYTES


def weights(*events: Mapping[int, UpEvent] | Mapping[int, DownEvent]) -> int:
    """What all these events weigh, in bytes."""
    return sum(weight(one.payload) for some in events for one in some.values())


def is_remembered(state: JobState, event: UpEvent | DownEvent) -> bool:
    """Whether an event may be asked for. Not one of splits: their projection takes back what it has to.

    A stream remembers a reader's request behind a cut all the same: it may be channel state of that checkpoint.
    """
    is_of_splits = event.payload_type.startswith(_OF_SPLITS) and event.operator_id in _sources(
        state.launch.get("operators", "[]")
    )
    if not is_of_splits:
        return True
    return isinstance(event, UpEvent) and any(
        event.operator_id in one.cuts for one in sorted_values(state.pending)
    )


@lru_cache(maxsize=16)
def _sources(operators: str) -> frozenset[str]:
    """The operators of a fingerprint whose projection is that of splits."""
    return frozenset(
        one["id"]
        for one in json.loads(operators)
        if str(one.get("projection", "")).startswith(_SPLITS)
    )


def forget(state: JobState) -> JobState:
    """The state without remembered events. No checkpoint is pending, so that none is channel state."""
    assert not state.pending, "the kernel has aborted them"
    subtasks = state.subtasks
    for number, subtask in sorted_items(subtasks):
        attempt, completion = subtask.attempt, subtask.completion
        if attempt is not None and (attempt.received or attempt.sent):
            attempt = evolve(attempt, received=Map(), sent=Map(), has_forgotten=True)
            subtasks = subtasks.set(number, evolve(subtask, attempt=attempt))
        elif completion is not None and completion.received:
            completion = evolve(completion, received=Map())
            subtasks = subtasks.set(number, evolve(subtask, completion=completion))
    return evolve(state, subtasks=subtasks, remembered_bytes=0)


def has_forgotten(state: JobState) -> bool:
    """Whether a live attempt has events that are forgotten: its failover cannot say which are lost."""
    return any(
        one.attempt is not None and one.attempt.has_forgotten
        for one in sorted_values(state.subtasks)
    )
