"""Decisions about skips: what a client or a reader wants skipped is a fact of the job from then on (clause J2)."""

from __future__ import annotations

from typing import assert_never

from coordlog.kernel.answers import answer
from coordlog.kernel.attempts import fail_attempt
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import AttemptLost, RequestArrived, SplitSkippedArrived
from coordlog.kernel.refusals import is_handled, refuse_and_fence
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

__all__ = ["REQUESTS", "skip_requested", "split_skipped_arrived", "why_not_skippable"]

REQUESTS = frozenset(payload_type_of(one).key for one in (SkipSplit, SkipEvent))
"""The payload types of the requests that the driver itself answers."""


def split_skipped_arrived(step: StepBuilder, given: SplitSkippedArrived) -> None:
    """A reader has let go of a split: a fact, with the rows of it that stay."""
    if not is_handled(step.state, given.subtask, given.attempt_number):
        refuse_and_fence(step, "split skip", given.subtask, given.attempt_number)
        return
    step.add(
        Kind.FACT,
        operator_id=given.operator_id,
        subtask=given.subtask,
        attempt_number=given.attempt_number,
        last_barrier=given.last_barrier,
        reason=_reason_of(step.state, given),
        value=SplitSkipped(split_id=given.split_id, rows=given.rows),
    )


def _reason_of(state: JobState, given: SplitSkippedArrived) -> str:
    """The reader's; where it only does as a skip says that stands in the log, that one's."""
    known = state.skipped_splits.get((given.operator_id, given.split_id))
    return given.reason if known is None else known.reason


def skip_requested(step: StepBuilder, given: RequestArrived) -> None:
    """`REQUEST`, the fact, what becomes of who has the split, and `RESPONSE`, in one turn."""
    asked = step.config.projection.types.decode(given.payload_type, given.payload)
    request = step.add(Kind.REQUEST, payload_type=given.payload_type, payload=given.payload)
    if isinstance(asked, SkipSplit):
        why_not = why_not_skippable(step.state, asked.split_id)
        was_before = why_not is None and _skip_split(step, asked)
    else:
        assert isinstance(asked, SkipEvent), "REQUESTS has two types"
        why_not, was_before = None, _skip_event(step, asked)
    recorded = SkipRecorded(was_skipped_before=was_before)
    answer(step, given, request.sequence, recorded, why_not)


def why_not_skippable(state: JobState, split_id: str) -> str | None:
    """Why a split cannot be skipped; None where it can, or has been."""
    if state.is_over or state.phase is Phase.ENDING:
        return f"the job is {state.phase.value}: nothing of it is read any more"
    found = find_split(state, split_id)
    if found is None:
        return (
            f"there is no split {split_id!r}, or it has not been listed yet: "
            f"`coordlog splits {state.job_id}` has them"
        )
    operator_id, splits, known = found
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


def _skip_split(step: StepBuilder, asked: SkipSplit) -> bool:
    """Whether it was skipped before. An attempt that has it begins again, without it, from its checkpoint."""
    found = find_split(step.state, asked.split_id)
    assert found is not None, "the caller has looked"
    operator_id, _, known = found
    if isinstance(known.place, Skipped):
        return True
    step.add(
        Kind.FACT,
        operator_id=operator_id,
        reason=asked.why,
        value=SplitSkipped(split_id=asked.split_id),
    )
    if isinstance(known.place, Assigned) and step.state.phase is Phase.RUNNING:
        attempt = step.state.subtasks[known.place.subtask].attempt
        if attempt is not None:
            lost = AttemptLost(
                subtask=attempt.subtask,
                attempt_number=attempt.attempt_number,
                reason=f"split {asked.split_id!r}, which it has, is skipped: {asked.why}",
            )
            fail_attempt(step, lost, is_counted=False)
    return False


def _skip_event(step: StepBuilder, asked: SkipEvent) -> bool:
    """Whether it was skipped before. One that is on its way is not taken back: only the next is skipped."""
    one: EventSkipped = asked.skipped
    key = event_key(
        operator_id=asked.operator_id,
        subtask=asked.subtask,
        is_down=one.is_down,
        event_type=one.event_type,
        digest=one.digest,
    )
    if key in step.state.skipped_events:
        return True
    step.add(
        Kind.FACT,
        operator_id=asked.operator_id,
        subtask=asked.subtask,
        reason=asked.why,
        value=one,
    )
    return False
