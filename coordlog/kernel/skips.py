"""Decisions about skips of splits and events: each is recorded as a fact (J2: skip poison)."""

from __future__ import annotations

from typing import assert_never

from coordlog.kernel.answers import answer
from coordlog.kernel.attempts import fail_attempt
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import AttemptLost, RequestArrived
from coordlog.projections.job.skips import event_key, find_split
from coordlog.projections.job.state import JobState, Phase
from coordlog.projections.splits.fold import Assigned, Finished, Skipped, WithEnumerator
from coordlog.schemas.builtin_types import (
    EventSkipped,
    SkipEvent,
    SkipRecorded,
    SkipSplit,
    SplitSkipped,
)
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind

__all__ = ["REQUESTS", "skip_requested", "why_not_skippable"]

REQUESTS = frozenset(payload_type_of(payload_type).key for payload_type in (SkipSplit, SkipEvent))
"""Payload types of the requests that the driver itself answers."""


def skip_requested(step: StepBuilder, request: RequestArrived) -> None:
    """Record `REQUEST`, the fact, the failure of the attempt that reads the split, and `RESPONSE` in one turn."""
    skip = step.config.projection.types.decode(request.payload_type, request.payload)
    record = step.add(Kind.REQUEST, payload_type=request.payload_type, payload=request.payload)
    if isinstance(skip, SkipSplit):
        why_not = why_not_skippable(step.state, skip.split_id)
        was_before = why_not is None and _skip_split(step, skip)
    else:
        assert isinstance(skip, SkipEvent), "REQUESTS has two types"
        why_not, was_before = None, _skip_event(step, skip)
    recorded = SkipRecorded(was_skipped_before=was_before)
    answer(step, request, record.sequence, recorded, why_not)


def why_not_skippable(state: JobState, split_id: str) -> str | None:
    """Reason why a split cannot be skipped; None if it can be, or is skipped already."""
    if state.is_over or state.phase is Phase.ENDING:
        return f"the job is {state.phase.value}: nothing of it is read any more"
    entry = find_split(state, split_id)
    if entry is None:
        return (
            f"there is no split {split_id!r}, or it has not been listed yet: "
            f"`coordlog splits {state.job_id}` has them"
        )
    operator_id, splits, known = entry
    place = known.place
    match place:
        case Finished():
            return f"split {split_id!r} has been read to its end, by subtask {place.subtask}"
        case Assigned() if splits.reader(place.subtask).is_completed:
            return (
                f"split {split_id!r} is done: subtask {place.subtask}, which had it, has completed"
            )
        case Assigned() | WithEnumerator() | Skipped():
            assert operator_id, "a source has an id"
            return None
        case _:
            assert_never(place)


def _skip_split(step: StepBuilder, skip: SkipSplit) -> bool:
    """Skip a split; returns whether it was skipped before. An attempt that reads it restarts from its checkpoint."""
    entry = find_split(step.state, skip.split_id)
    assert entry is not None, "the caller has checked it"
    operator_id, _, known = entry
    if isinstance(known.place, Skipped):
        return True
    step.add(
        Kind.FACT,
        operator_id=operator_id,
        reason=skip.why,
        value=SplitSkipped(split_id=skip.split_id),
    )
    if isinstance(known.place, Assigned) and step.state.phase is Phase.RUNNING:
        attempt = step.state.subtasks[known.place.subtask].attempt
        if attempt is not None:
            lost = AttemptLost(
                subtask=attempt.subtask,
                attempt_number=attempt.attempt_number,
                reason=f"split {skip.split_id!r}, which it has, is skipped: {skip.why}",
            )
            fail_attempt(step, lost, is_counted=False)
    return False


def _skip_event(step: StepBuilder, skip: SkipEvent) -> bool:
    """Skip an event; returns whether it was skipped before. A delivery in flight is not undone, only later ones."""
    event: EventSkipped = skip.skipped
    key = event_key(
        operator_id=skip.operator_id,
        subtask=skip.subtask,
        is_down=event.is_down,
        event_type=event.event_type,
        digest=event.digest,
    )
    if key in step.state.skipped_events:
        return True
    step.add(
        Kind.FACT,
        operator_id=skip.operator_id,
        subtask=skip.subtask,
        reason=skip.why,
        value=event,
    )
    return False
