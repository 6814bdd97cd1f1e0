"""Savepoints: checkpoints with a name, which stay restorable until they are released."""

from __future__ import annotations

import re
from typing import Final

from coordlog.limits import SAVEPOINTS_MAX
from coordlog.projections.job.state import JobState
from coordlog.schemas.builtin_types import SavepointReleased, SavepointTaken
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = [
    "FACTS",
    "fold_savepoint",
    "names_of",
    "to_take",
    "why_no_name",
    "why_not_released",
    "why_not_retained",
]

FACTS: Final = frozenset(payload_type_of(fact).key for fact in (SavepointTaken, SavepointReleased))
"""The payload types of the facts about savepoints."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")


def fold_savepoint(state: JobState, value: Payload) -> JobState:
    """The state after a `FACT` of one of `FACTS`. A released one stays until the next checkpoint completes."""
    if isinstance(value, SavepointTaken):
        assert value.checkpoint in state.completed, "a savepoint names a retained checkpoint"
        return evolve(state, savepoints=state.savepoints.set(value.name, value.checkpoint))
    assert isinstance(value, SavepointReleased), "FACTS has two types"
    return evolve(state, savepoints=state.savepoints.delete(value.name))


def names_of(state: JobState, checkpoint_id: int) -> tuple[str, ...]:
    """Names of the savepoints of a checkpoint, sorted."""
    return tuple(
        name for name in sorted(state.savepoints) if state.savepoints[name] == checkpoint_id
    )


def to_take(state: JobState, name: str, checkpoint_id: int | None) -> tuple[int, str | None]:
    """The checkpoint to retain, by default the last one; and why it cannot be retained, or None."""
    number = state.last_checkpoint if checkpoint_id is None else checkpoint_id
    known = state.savepoints.get(name)
    why_not = why_no_name(state, name)
    if why_not is not None:
        return number, why_not
    if number == NO_CHECKPOINT:
        why_not = "no checkpoint has completed"
    elif known is not None and known != number:
        why_not = f"{name!r} names checkpoint {known}, not {number}: release it first"
    else:
        why_not = why_not_retained(state, number)
        if why_not is not None:
            retained = ", ".join(map(str, sorted(state.completed))) or "none"
            why_not = f"checkpoint {number} is {why_not}; the retained ones are: {retained}"
    return number, why_not


def why_no_name(state: JobState, name: str) -> str | None:
    """Reason why no savepoint can have this name, whichever its checkpoint; None for a name that is in use."""
    if not _NAME.fullmatch(name):
        return (
            f"{name!r} is no savepoint name: lower-case letters, digits and hyphens, at most 100, beginning "
            "with a letter or digit"
        )
    if name in state.savepoints:
        return None
    if name.isdecimal():
        return f"{name!r} is a number, as checkpoints have: use a name with a letter in it"
    if len(state.savepoints) >= SAVEPOINTS_MAX:
        return f"the job has {len(state.savepoints)} savepoints, and the limit is {SAVEPOINTS_MAX}: release one"
    return None


def why_not_released(state: JobState, name: str) -> str | None:
    """Why no savepoint of this name can be released, or None."""
    if name in state.savepoints:
        return None
    names = ", ".join(sorted(state.savepoints)) or "none"
    return f"there is no savepoint {name!r}; the job has: {names}"


def why_not_retained(state: JobState, checkpoint_id: int) -> str | None:
    """Reason if the job state does not retain a checkpoint, else None."""
    if checkpoint_id in state.completed:
        return None
    if not 0 < checkpoint_id < state.next_checkpoint_id:
        return f"none that there has been: the next one is {state.next_checkpoint_id}"
    if checkpoint_id in state.pending:
        return "not completed"
    return "not retained: it was aborted or abandoned, or newer ones have taken its place"
