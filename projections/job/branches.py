"""The branches of a history: completed checkpoints are a tree, because a job may go back to one and continue there.

Numbers rise across all branches: of two checkpoints the higher may be of another branch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from immutables import Map

from coordlog.projections.job.state import Abandoned, Granted, JobState, sorted_items
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = [
    "GOING_BACK",
    "abandoned_by_reset",
    "ahead_of",
    "allowed_by",
    "is_on_the_way",
    "needed_by",
    "savepoint_numbers",
]

GOING_BACK: Final = "from_checkpoint"
"""Attribute of `EPOCH_STARTED`: older checkpoint that its driver goes back to."""

_Grants = Map[int, tuple[Granted, ...]]


def is_on_the_way(state: JobState, number: int, checkpoint_id: int) -> bool:
    """Whether checkpoint `number` is `checkpoint_id` or one of its ancestors.

    Args:
        state: State of the job.
        number: A completed checkpoint, retained or not.
        checkpoint_id: A retained checkpoint, or -1.
    """
    if number > checkpoint_id:
        return False
    held = state.completed.get(checkpoint_id)
    gaps = state.abandoned if held is None else held.abandoned
    return not any(gap.above < number <= gap.through for gap in gaps)


def abandoned_by_reset(state: JobState, checkpoint_id: int) -> tuple[Abandoned, ...]:
    """Checkpoints that are not ancestors of a branch from `checkpoint_id`; `state` is before the reset."""
    if checkpoint_id == state.last_checkpoint:
        return state.abandoned  # nothing has completed above it
    held = None if checkpoint_id == NO_CHECKPOINT else state.completed[checkpoint_id]
    before = () if held is None else held.abandoned
    return (*before, Abandoned(above=checkpoint_id, through=state.next_checkpoint_id - 1))


def ahead_of(state: JobState, checkpoint_id: int) -> tuple[tuple[str, str, int], ...]:
    """Destinations with commits of checkpoints that are not ancestors of `checkpoint_id` (E6: no second commit).

    A branch from `checkpoint_id` would commit their rows a second time.

    Returns:
        Operator id, destination (empty if undeclared) and newest checkpoint with an intent there.
    """
    return tuple(
        (operator_id, destination, newest)
        for (operator_id, destination), newest in sorted_items(state.last_intents)
        if not is_on_the_way(state, newest, checkpoint_id)
    )


def allowed_by(state: JobState, checkpoint_id: int) -> tuple[_Grants, _Grants]:
    """Grants without an intent of a checkpoint and its ancestors; and those of all others.

    Args:
        state: State of the job.
        checkpoint_id: A retained checkpoint, or -1.
    """
    allowed, others = _Grants(), _Grants()
    for number, grants in sorted_items(state.granted.update(state.set_aside)):
        if number == NO_CHECKPOINT:
            continue  # the end of a batch job, which is no ancestor of a checkpoint
        if is_on_the_way(state, number, checkpoint_id):
            allowed = allowed.set(number, grants)
        else:
            others = others.set(number, grants)
    return allowed, others


def needed_by(state: JobState, grants: _Grants, checkpoints: Collection[int]) -> _Grants:
    """The grants of checkpoints that are ancestors of one of the retained `checkpoints`."""
    for number, _ in sorted_items(grants):
        if not any(is_on_the_way(state, number, retained) for retained in sorted(checkpoints)):
            grants = grants.delete(number)
    return grants


def savepoint_numbers(state: JobState) -> frozenset[int]:
    """The checkpoints that have savepoints."""
    return frozenset(number for _, number in sorted_items(state.savepoints))
