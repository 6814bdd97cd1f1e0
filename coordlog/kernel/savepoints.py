"""Decisions about kept checkpoints: which stays by which name is a fact of the job from then on."""

from __future__ import annotations

from coordlog.kernel.answers import answer
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import RequestArrived
from coordlog.projections.job.savepoints import to_keep, why_not_let_go
from coordlog.schemas.builtin_types import (
    CheckpointKept,
    CheckpointLetGo,
    KeepCheckpoint,
    KeepRecorded,
    LetGoCheckpoint,
)
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import NO_CHECKPOINT, Kind

__all__ = ["REQUESTS", "keep_requested"]

REQUESTS = frozenset(payload_type_of(one).key for one in (KeepCheckpoint, LetGoCheckpoint))
"""The payload types of the requests that the driver itself answers."""


def keep_requested(step: StepBuilder, given: RequestArrived) -> None:
    """`REQUEST`, the fact, and `RESPONSE`, in one turn."""
    asked = step.config.projection.types.decode(given.payload_type, given.payload)
    request = step.add(Kind.REQUEST, payload_type=given.payload_type, payload=given.payload)
    was_before = False
    if isinstance(asked, KeepCheckpoint):
        number, why_not = to_keep(step.state, asked.name, asked.kept_checkpoint)
        was_before = step.state.kept.get(asked.name) == number
        if why_not is None and not was_before:
            fact = CheckpointKept(name=asked.name, kept_checkpoint=number)
            step.add(Kind.FACT, reason="asked by a client", value=fact)
    else:
        assert isinstance(asked, LetGoCheckpoint), "REQUESTS has two types"
        number = step.state.kept.get(asked.name, NO_CHECKPOINT)
        why_not = why_not_let_go(step.state, asked.name)
        if why_not is None:
            step.add(Kind.FACT, reason="asked by a client", value=CheckpointLetGo(name=asked.name))
    recorded = KeepRecorded(kept_checkpoint=number, was_so_before=was_before)
    answer(step, given, request.sequence, recorded, why_not)
