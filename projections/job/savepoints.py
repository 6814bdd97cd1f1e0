"""Checkpoints that are kept by name: they stay restorable, whatever completes after them, until they are let go."""

from __future__ import annotations

import re
from typing import Final

from coordlog.limits import KEPT_CHECKPOINTS_MAX
from coordlog.projections.job.retention import why_not_retained
from coordlog.projections.job.state import JobState
from coordlog.schemas.builtin_types import CheckpointKept, CheckpointLetGo
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = ["FACTS", "fold_keep", "names_of", "to_keep", "why_not_let_go"]

FACTS: Final = frozenset(payload_type_of(one).key for one in (CheckpointKept, CheckpointLetGo))
"""The payload types of the facts that say what is kept."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")


def fold_keep(state: JobState, value: Payload) -> JobState:
    """The state after a `FACT` of one of `FACTS`. One that is let go stays until the next that completes."""
    if isinstance(value, CheckpointKept):
        assert value.kept_checkpoint in state.completed, "what is not there cannot be kept"
        return evolve(state, kept=state.kept.set(value.name, value.kept_checkpoint))
    assert isinstance(value, CheckpointLetGo), "FACTS has two types"
    return evolve(state, kept=state.kept.delete(value.name))


def names_of(state: JobState, checkpoint_id: int) -> tuple[str, ...]:
    """The names under which a checkpoint is kept, sorted."""
    return tuple(name for name in sorted(state.kept) if state.kept[name] == checkpoint_id)


def to_keep(state: JobState, name: str, checkpoint_id: int | None) -> tuple[int, str | None]:
    """Which checkpoint is to be kept, the last one where none is said; and why it cannot be, or None."""
    number = state.last_checkpoint if checkpoint_id is None else checkpoint_id
    known = state.kept.get(name)
    if not _NAME.fullmatch(name):
        why_not: str | None = (
            f"{name!r} is no name: lower-case letters, digits and hyphens, at most 100, beginning "
            "with a letter or digit"
        )
    elif known is None and name.isdecimal():
        why_not = f"{name!r} is a number, as checkpoints have: give it a name with a letter in it"
    elif number == NO_CHECKPOINT:
        why_not = "no checkpoint has completed"
    elif known is not None and known != number:
        why_not = f"{name!r} keeps checkpoint {known}, not {number}: let that go first"
    elif known is None and len(state.kept) >= KEPT_CHECKPOINTS_MAX:
        why_not = (
            f"{len(state.kept)} checkpoints are kept, and {KEPT_CHECKPOINTS_MAX} may be: let one go"
        )
    else:
        why_not = why_not_retained(state, number)
        if why_not is not None:
            there = ", ".join(str(one) for one in sorted(state.completed)) or "none"
            why_not = f"checkpoint {number} is {why_not}; those that can be kept are: {there}"
    return number, why_not


def why_not_let_go(state: JobState, name: str) -> str | None:
    """Why there is nothing of this name to let go; None where there is."""
    if name in state.kept:
        return None
    names = ", ".join(sorted(state.kept)) or "none"
    return f"no checkpoint is kept as {name!r}; those that are: {names}"
