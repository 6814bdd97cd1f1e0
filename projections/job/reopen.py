"""A finished job is opened again in the same history: every subtask is unfinished, what is committed stays."""

from __future__ import annotations

from dataclasses import replace

from immutables import Map

from coordlog.projections.job.attempts import required
from coordlog.projections.job.branches import kept_numbers
from coordlog.projections.job.state import END_COMMITTED, Cut, JobState, SubtaskState, sorted_items
from coordlog.schemas.evolution import evolve
from coordlog.schemas.record import Kind, Record

__all__ = ["AGAIN", "CONCLUDE", "is_opened_again", "opened_again", "with_opening"]

AGAIN = "again"
"""What `COORDINATORS_STARTED` of a further opening says of how it goes on."""

CONCLUDE = "conclude"
"""The same of a batch job whose subtasks have all completed: those with committables left are notified again."""


def is_opened_again(record: Record) -> bool:
    """Whether this is the `COORDINATORS_STARTED` of a further opening."""
    return record.kind is Kind.COORDINATORS_STARTED and record.attributes.get("restore") == AGAIN


def opened_again(state: JobState) -> JobState:
    """Every subtask unfinished, with the states that it had at its end and a fresh count of failures."""
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
    """The state with this opening as what a failover goes back to, until a checkpoint of its own completes.

    The last checkpoint holds the subtasks as they ended, the coordinators as they are now, and
    nothing in flight: all of that has been handled. Others stay as they are, as long as somebody
    keeps them. In batch the virtual empty checkpoint is the opening.
    """
    checkpoint = state.completed.get(state.last_checkpoint)
    completed = Map({n: state.completed[n] for n in sorted(kept_numbers(state))})
    if checkpoint is not None:
        states = checkpoint.states
        for number, part in sorted_items(checkpoint.finished):
            states = states.set(number, part.states)
        cuts = Map[str, Cut]()
        for operator_id, cut in sorted_items(checkpoint.cuts):
            projection = state.projections.get(operator_id, cut.projection)
            here = replace(cut, sequence=required(record.sequence), projection=projection)
            cuts = cuts.set(operator_id, here)
        begun = replace(checkpoint, states=states, cuts=cuts, finished=Map(), in_flight=())
        completed = completed.set(checkpoint.checkpoint_id, begun)
    return evolve(state, completed=completed, opening=state.projections)
