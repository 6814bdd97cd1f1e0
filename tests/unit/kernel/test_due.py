"""What a job's state makes due, and what it allows, condition by condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest
from immutables import Map

from coordlog.kernel.checkpoints import can_trigger
from coordlog.kernel.inputs import (
    AdvanceCheckpoints,
    CheckpointDue,
    FinishJob,
    Input,
    Redeliver,
    StaleAttempt,
    TellRestored,
)
from coordlog.kernel.step import due, is_final_owed, is_ready_for_attempts
from coordlog.projections.job.state import (
    CompletedCheckpoint,
    Cut,
    FinishedPart,
    JobState,
    OpenIntent,
    PendingCheckpoint,
    Phase,
    UpEvent,
)

EVENT: Final = UpEvent(
    sequence=3,
    operator_id="source",
    subtask=0,
    attempt_number=0,
    event_id=0,
    last_barrier=-1,
    payload_type="test.up@1",
    payload=b"",
)
INTENTS: Final = Map(
    {
        4: OpenIntent(
            sequence=4,
            operator_id="source",
            checkpoint_id=1,
            payload_type="test.intent@1",
            payload=b"",
        )
    }
)
FINAL: Final = CompletedCheckpoint(
    checkpoint_id=1,
    sequence=5,
    parallelism=2,
    cuts=Map(),
    states=Map(),
    finished=Map({n: FinishedPart(attempt_number=0, sequence=2, states=()) for n in (0, 1)}),
    in_flight=(),
)
HALF: Final = replace(FINAL, states=Map({0: ()}), finished=FINAL.finished.delete(0))
CUT: Final = Cut(sequence=6, state=b"", projection=None)
UNCUT: Final = PendingCheckpoint(
    checkpoint_id=2,
    triggered_sequence=5,
    triggered_us=0,
    attempts=Map({0: 0, 1: 0}),
    finished=(),
)
HALF_CUT: Final = replace(UNCUT, cuts=Map({"source": CUT}))
ALL_CUT: Final = replace(UNCUT, cuts=Map({"source": CUT, "sink": CUT}))
WAITING: Final = replace(ALL_CUT, waiting=Map({0: None}))
INJECTED: Final = replace(ALL_CUT, is_injected=True, acks=Map({0: ()}))
ALL_ACKED: Final = replace(INJECTED, acks=Map({0: (), 1: ()}))

RUNNING: Final = JobState(
    phase=Phase.RUNNING, parallelism=2, live_count=2, operators=("source", "sink")
)
"""A stream of two subtasks and two coordinators, in which nothing is due."""
LAST_OWED: Final = replace(RUNNING, live_count=0, finished_count=2)
"""Every subtask has finished, and no checkpoint holds that."""
DONE: Final = replace(LAST_OWED, last_checkpoint=1, completed=Map({1: FINAL}))


def pending(*ones: PendingCheckpoint, of: JobState = RUNNING) -> JobState:
    numbered = (replace(one, checkpoint_id=n) for n, one in enumerate(ones, 2))
    return replace(of, pending=Map({one.checkpoint_id: one for one in numbered}))


RESTORING: Final = replace(
    RUNNING, live_count=0, is_restore_owed=True, owed_complete=1, stale=(1, 0)
)

DUE: Final[Mapping[str, tuple[JobState, Input | None]]] = {
    "nothing of a job that runs": (RUNNING, None),
    "a redelivery before all else": (
        replace(RESTORING, owed_redeliveries=(EVENT,)),
        Redeliver(),
    ),
    "the completion before an attempt is reset": (RESTORING, TellRestored()),
    "the reset of the first stale one": (
        replace(RESTORING, is_restore_owed=False, owed_complete=None),
        StaleAttempt(subtask=1),
    ),
    "nothing of a checkpoint without a cut": (pending(UNCUT), None),
    "nothing of one that half of the coordinators have cut": (pending(HALF_CUT), None),
    "nothing of one that waits for an event": (pending(WAITING), None),
    "the barriers of one that all have cut": (pending(ALL_CUT), AdvanceCheckpoints()),
    "nothing of one that half of the attempts have acked": (pending(INJECTED), None),
    "the end of one that all have acked": (pending(ALL_ACKED), AdvanceCheckpoints()),
    "that also behind one that waits": (pending(INJECTED, ALL_CUT), AdvanceCheckpoints()),
    "nothing where half has finished": (
        replace(RUNNING, live_count=1, finished_count=1),
        None,
    ),
    "nothing where the last checkpoint holds half as finished": (
        replace(DONE, live_count=1, finished_count=1, completed=Map({1: HALF})),
        None,
    ),
    "the last checkpoint": (LAST_OWED, CheckpointDue()),
    "the last checkpoint after one that holds half as finished": (
        replace(DONE, completed=Map({1: HALF})),
        CheckpointDue(),
    ),
    "no other beside a pending one": (pending(UNCUT, of=LAST_OWED), None),
    "none while coordinators are owed a completion": (replace(LAST_OWED, owed_complete=1), None),
    "none at once after an abort": (replace(LAST_OWED, aborts_in_a_row=1), None),
    "no checkpoint of a batch": (replace(LAST_OWED, is_batch=True), None),
    "the end": (DONE, FinishJob()),
    "the end only after the completion is told": (replace(DONE, owed_complete=1), None),
    "the end only after the last commit": (replace(DONE, intents=INTENTS), None),
    "the end only with nothing pending": (pending(UNCUT, of=DONE), None),
    "the end of a batch": (replace(LAST_OWED, phase=Phase.ENDING, is_batch=True), FinishJob()),
    "the end of a batch only after the last commit": (
        replace(LAST_OWED, phase=Phase.ENDING, is_batch=True, intents=INTENTS),
        None,
    ),
}


@pytest.mark.clause("D3")
@pytest.mark.clause("E6")
@pytest.mark.clause("I3")
@pytest.mark.parametrize("name", DUE)
def test_what_is_due(name: str) -> None:
    state, expected = DUE[name]
    assert due(state) == expected


@pytest.mark.parametrize("state", [RESTORING, pending(ALL_ACKED), LAST_OWED, DONE])
@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.FAILING, Phase.FINISHED, Phase.FAILED])
def test_nothing_is_due_of_a_job_that_does_not_run(state: JobState, phase: Phase) -> None:
    assert due(replace(state, phase=phase)) is None


@pytest.mark.fault("X12")
@pytest.mark.clause("F8")
def test_a_checkpoint_is_due_only_if_all_run_and_nothing_is_in_progress() -> None:
    half = replace(RUNNING, live_count=1)
    for state in (RUNNING, replace(half, finished_count=1), LAST_OWED):
        assert can_trigger(state, is_overlap_allowed=False)
        assert can_trigger(state, is_overlap_allowed=True)
    for state in (
        replace(RUNNING, phase=Phase.FAILING),
        replace(RUNNING, is_batch=True),
        replace(RUNNING, owed_redeliveries=(EVENT,)),
        replace(RUNNING, is_restore_owed=True),
        replace(RUNNING, owed_complete=1),
        half,
    ):
        assert not can_trigger(state, is_overlap_allowed=False)
        assert not can_trigger(state, is_overlap_allowed=True)
    assert can_trigger(pending(UNCUT), is_overlap_allowed=True)
    assert not can_trigger(pending(UNCUT), is_overlap_allowed=False)


@pytest.mark.clause("I3")
def test_a_last_checkpoint_is_left_to_a_timer_only_after_it_was_aborted() -> None:
    aborted = replace(LAST_OWED, aborts_in_a_row=1)
    assert is_final_owed(aborted)
    assert is_final_owed(replace(aborted, aborts_in_a_row=2))
    for state in (
        RUNNING,
        LAST_OWED,
        replace(RUNNING, live_count=1, finished_count=1, aborts_in_a_row=1),
        replace(DONE, aborts_in_a_row=1),
        replace(aborted, phase=Phase.FAILING),
        pending(UNCUT, of=aborted),
    ):
        assert not is_final_owed(state)


@pytest.mark.clause("E6")
def test_tasks_may_start_only_where_all_that_precedes_an_attempt_is_done() -> None:
    assert is_ready_for_attempts(RUNNING)
    assert is_ready_for_attempts(replace(RUNNING, live_count=1, finished_count=1))
    for state in (
        replace(RUNNING, phase=Phase.FAILING),
        replace(RUNNING, owed_redeliveries=(EVENT,)),
        replace(RUNNING, is_restore_owed=True),
        replace(RUNNING, intents=INTENTS),
        LAST_OWED,
    ):
        assert not is_ready_for_attempts(state)
