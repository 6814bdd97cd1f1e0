"""The branches of a history: its completed checkpoints are a tree, since a job may go back to one and on from there.

Numbers only rise, whatever the branch: of two checkpoints the higher need not be the later one of the same branch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from immutables import Map

from coordlog.projections.job.state import Abandoned, Granted, JobState, sorted_items
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = [
    "GOING_BACK",
    "abandoned_by_reset",
    "ahead_of",
    "allowed_by",
    "destinations_in",
    "is_on_the_way",
    "kept_numbers",
    "needed_by",
]

GOING_BACK: Final = "from_checkpoint"
"""Attribute of `EPOCH_STARTED`: the older checkpoint that its driver goes back to."""

_Grants = Map[int, tuple[Granted, ...]]


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


def allowed_by(state: JobState, checkpoint_id: int) -> tuple[_Grants, _Grants]:
    """What no intent holds yet of a checkpoint and those that it has come from; and of all others.

    Args:
        state: The job's.
        checkpoint_id: A retained one, or -1.
    """
    allowed, others = _Grants(), _Grants()
    for number, grants in sorted_items(state.granted.update(state.set_aside)):
        if number == NO_CHECKPOINT:
            continue  # a batch job's end, which no checkpoint has come from
        if is_on_the_way(state, number, checkpoint_id):
            allowed = allowed.set(number, grants)
        else:
            others = others.set(number, grants)
    return allowed, others


def needed_by(state: JobState, grants: _Grants, checkpoints: Collection[int]) -> _Grants:
    """Of these grants those that one of these retained checkpoints has come from."""
    for number, _ in sorted_items(grants):
        if not any(is_on_the_way(state, number, one) for one in sorted(checkpoints)):
            grants = grants.delete(number)
    return grants


def destinations_in(operators: str) -> Mapping[str, str]:
    """Where the operators of a fingerprint write, by operator id; those that tell it."""
    return {one["id"]: one["destination"] for one in json.loads(operators) if "destination" in one}


def kept_numbers(state: JobState) -> frozenset[int]:
    """The checkpoints that somebody keeps by name."""
    return frozenset(number for _, number in sorted_items(state.kept))
