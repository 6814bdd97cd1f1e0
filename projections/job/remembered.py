"""The events of live attempts that the job state remembers, until a completed checkpoint holds their effects.

A local failover hands them to coordinators (clause D5: lost events); a checkpoint takes its channel state from them.
They are bounded: the record of an event above the limit has the attribute `FORGETS`; earlier events are then gone.
"""

from __future__ import annotations

from collections.abc import Mapping
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
"""Weight of an event besides its payload, in bytes."""

_OF_SPLITS: Final = ("coordlog.add_splits@", "coordlog.no_more_splits@", "coordlog.request_split@")
_SPLITS: Final = "coordlog.splits@"


def weight(payload: bytes) -> int:
    """Weight of an event with this payload, in bytes."""
    return len(payload) + EVENT_BYTES


def weights(*events: Mapping[int, UpEvent] | Mapping[int, DownEvent]) -> int:
    """Weight of all these events, in bytes."""
    return sum(weight(event.payload) for by_sequence in events for event in by_sequence.values())


def is_remembered(state: JobState, event: UpEvent | DownEvent) -> bool:
    """Whether an event may be needed. Events of splits are not: their projection reclaims lost splits.

    A stream remembers a reader's request behind a cut all the same: it may be channel state of that checkpoint.
    """
    is_of_splits = event.payload_type.startswith(_OF_SPLITS) and any(
        operator.operator_id == event.operator_id
        and (operator.projection or "").startswith(_SPLITS)
        for operator in state.launch_info.operators
    )
    if not is_of_splits:
        return True
    return isinstance(event, UpEvent) and any(
        event.operator_id in checkpoint.cuts for checkpoint in sorted_values(state.pending)
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
        subtask.attempt is not None and subtask.attempt.has_forgotten
        for subtask in sorted_values(state.subtasks)
    )
