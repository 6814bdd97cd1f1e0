"""The branches of a history: its completed checkpoints are a tree, since a job may go back to one and on from there.

Numbers only rise, whatever the branch: of two checkpoints the higher need not be the later one of the same branch.
"""

from __future__ import annotations

from coordlog.schemas.record import NO_CHECKPOINT

from .state import Abandoned, JobState, sorted_items

__all__ = ["abandoned_by_reset", "ahead_of", "is_on_the_way"]


def is_on_the_way(state: JobState, number: int, checkpoint_id: int) -> bool:
    """Whether checkpoint `number` is `checkpoint_id` or one of those that it has come from.

    Args:
        state: The job's.
        number: Any that has completed, retained or not.
        checkpoint_id: A retained one, or -1.
    """
    if number > checkpoint_id:
        return False
    held = state.completed.get(checkpoint_id)
    gaps = state.abandoned if held is None else held.abandoned
    return not any(gap.above < number <= gap.through for gap in gaps)


def abandoned_by_reset(state: JobState, checkpoint_id: int) -> tuple[Abandoned, ...]:
    """What a branch that goes on from `checkpoint_id` has not come from; `state` is that before the reset."""
    if checkpoint_id == state.last_checkpoint:
        return state.abandoned  # nothing has completed above it
    held = None if checkpoint_id == NO_CHECKPOINT else state.completed[checkpoint_id]
    before = () if held is None else held.abandoned
    return (*before, Abandoned(above=checkpoint_id, through=state.next_checkpoint_id - 1))


def ahead_of(state: JobState, checkpoint_id: int) -> tuple[tuple[str, str, int], ...]:
    """Where more has been committed than `checkpoint_id` has come from (clause E6).

    Rows of what goes on from it would be committed there a second time.

    Returns:
        Operator id, destination (empty where none is told) and newest checkpoint with an intent there.
    """
    return tuple(
        (operator_id, destination, newest)
        for (operator_id, destination), newest in sorted_items(state.last_intents)
        if not is_on_the_way(state, newest, checkpoint_id)
    )
