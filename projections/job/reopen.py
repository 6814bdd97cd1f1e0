"""Opening a finished job again in the same history: every subtask is unfinished, committed rows stay."""

from __future__ import annotations

import json
from dataclasses import replace

from immutables import Map

from coordlog.projections.job.attempts import required
from coordlog.projections.job.branches import savepoint_numbers
from coordlog.projections.job.state import (
    AWAY_AT,
    END_COMMITTED,
    WRITTEN_AT,
    Cut,
    JobState,
    SubtaskState,
    sorted_items,
)
from coordlog.schemas.evolution import evolve
from coordlog.schemas.record import NO_CHECKPOINT, Record

__all__ = ["opened_again", "with_opening"]


def opened_again(state: JobState) -> JobState:
    """The state with every subtask unfinished, with the states of its end and no counted failures."""
    known, subtasks = state.subtasks.update(state.retired), Map[int, SubtaskState]()
    for number in range(state.parallelism):
        before = known.get(number) or SubtaskState(subtask=number)
        unfinished = evolve(
            before, restore_from=state.last_checkpoint, is_reset=True, attempt=None, completion=None
        )
        subtasks = subtasks.set(number, unfinished)
    retired = Map[int, SubtaskState]()
    for number, subtask in sorted_items(known):
        if number >= state.parallelism:
            retired = retired.set(number, evolve(subtask, attempt=None, completion=None))
    return evolve(
        state,
        subtasks=subtasks,
        retired=retired,
        finished_count=0,
        live_count=0,
        stale=(),
        gateways=Map(),
        kept_splits=Map(),
        aborts_in_a_row=0,
        timeouts_in_a_row=0,
        launch=state.launch.delete(END_COMMITTED) if state.is_end_committed else state.launch,
        failures_us=(),
        reasons=(),
    )


def with_opening(state: JobState, record: Record) -> JobState:
    """The state with this opening as the target of failovers, until a later checkpoint completes.

    The last checkpoint holds the subtasks as they ended, the coordinators as they are now, and no
    events in flight: all were handled. Checkpoints with savepoints stay unchanged. In batch the
    virtual empty checkpoint is the opening.
    """
    checkpoint = state.completed.get(state.last_checkpoint)
    completed = Map({n: state.completed[n] for n in sorted(savepoint_numbers(state))})
    launch, sequence = state.launch, required(record.sequence)
    if checkpoint is None:
        away = [operator for text in state.away.values() for operator in json.loads(text)]
        if away:
            launch = launch.set(f"{AWAY_AT}{sequence}", json.dumps(away, sort_keys=True))
        launch = launch.set(f"{WRITTEN_AT}{NO_CHECKPOINT}", str(sequence))
    else:
        # The cuts are of the operators of this opening, which the epoch of the checkpoint may not have had.
        states, known = checkpoint.states, [checkpoint.sequence, sequence]
        for number, part in sorted_items(checkpoint.finished):
            states = states.set(number, part.states)
            known.append(part.sequence)
        written = " ".join(map(str, state.written_at(known)))
        launch = launch.set(f"{WRITTEN_AT}{checkpoint.sequence}", written)
        cuts = Map[str, Cut]()
        for operator_id in sorted({*checkpoint.cuts, *state.operators}):
            cut = checkpoint.cuts.get(operator_id) or Cut(sequence=-1, state=None, projection=None)
            projection = state.projections.get(operator_id, cut.projection)
            moved = replace(cut, sequence=sequence, projection=projection)
            cuts = cuts.set(operator_id, moved)
        opened = replace(checkpoint, states=states, cuts=cuts, finished=Map(), in_flight=())
        completed = completed.set(checkpoint.checkpoint_id, opened)
    return evolve(state, completed=completed, launch=launch, opening=state.projections)
