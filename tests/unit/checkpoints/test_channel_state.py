"""The events that crossed a cut on their way up: those that stand after it and were sent before the barrier (D3)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from immutables import Map

from coordlog.projections.job.checkpoints import channel_state
from coordlog.projections.job.state import (
    AttemptState,
    Completion,
    Cut,
    JobState,
    PendingCheckpoint,
    SubtaskState,
    UpEvent,
)

CHECKPOINT = 4
CUT_AT = 10


def event(
    sequence: int, *, last_barrier: int, subtask: int = 0, operator: str = "source"
) -> UpEvent:
    return UpEvent(
        sequence=sequence,
        operator_id=operator,
        subtask=subtask,
        attempt_number=0,
        event_id=sequence,
        last_barrier=last_barrier,
        payload_type="test.up@1",
        payload=b"",
    )


def by_sequence(events: Sequence[UpEvent]) -> Map[int, UpEvent]:
    return Map({one.sequence: one for one in events})


def live(subtask: int, *events: UpEvent) -> SubtaskState:
    attempt = AttemptState(
        subtask=subtask,
        attempt_number=0,
        epoch=0,
        driver_id="d",
        stage_run=1,
        task_attempt_id=0,
        started_sequence=0,
        restored_checkpoint=-1,
        last_barrier=CHECKPOINT,
        received=by_sequence(events),
    )
    return SubtaskState(subtask=subtask, attempt=attempt)


def finished(subtask: int, *events: UpEvent) -> SubtaskState:
    completion = Completion(
        attempt_number=0, sequence=30, states=(), ungranted=(), received=by_sequence(events)
    )
    return SubtaskState(subtask=subtask, completion=completion)


def crossed(*subtasks: SubtaskState) -> list[int]:
    """The sequences of the channel state of a checkpoint whose source was cut at 10, and whose sink was not."""
    pending = PendingCheckpoint(
        checkpoint_id=CHECKPOINT,
        triggered_sequence=5,
        triggered_us=0,
        attempts=Map({one.subtask: 0 for one in subtasks if one.attempt is not None}),
        finished=tuple(one.subtask for one in subtasks if one.completion is not None),
        cuts=Map({"source": Cut(sequence=CUT_AT, state=b"", projection=None)}),
    )
    state = JobState(subtasks=Map({one.subtask: one for one in subtasks}))
    return [one.sequence for one in channel_state(state, pending)]


@pytest.mark.clause("D3")
def test_an_event_between_barrier_and_cut_is_a_part_of_the_channel_state() -> None:
    before, after = CHECKPOINT - 1, CHECKPOINT
    events = (
        event(9, last_barrier=before),  # handled before the cut
        event(11, last_barrier=before),
        event(12, last_barrier=-1),
        event(13, last_barrier=after),  # sent after the barrier: not part of the checkpoint
        event(14, last_barrier=after + 1),
    )
    assert crossed(live(0, *events)) == [11, 12]
    assert crossed(finished(0, *events)) == [11, 12]


@pytest.mark.clause("D3")
def test_channel_state_is_in_log_order_whatever_the_subtask() -> None:
    one = live(0, event(11, last_barrier=1), event(15, last_barrier=1))
    other = finished(1, event(12, last_barrier=1, subtask=1))

    assert crossed(one, other) == [11, 12, 15]


@pytest.mark.clause("D3")
def test_events_to_an_operator_without_a_cut_are_no_channel_state() -> None:
    assert crossed(live(0, event(11, last_barrier=1, operator="sink"))) == []
