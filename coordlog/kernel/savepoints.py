"""Decisions about savepoints: each is recorded as a fact."""

from __future__ import annotations

from coordlog.kernel.answers import answer
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import RequestArrived
from coordlog.projections.job.savepoints import to_take, why_not_released
from coordlog.schemas.builtin_types import (
    ReleaseSavepoint,
    SavepointRecorded,
    SavepointReleased,
    SavepointTaken,
    TakeSavepoint,
)
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import NO_CHECKPOINT, Kind

__all__ = ["REQUESTS", "savepoint_requested"]

REQUESTS = frozenset(
    payload_type_of(payload_type).key for payload_type in (TakeSavepoint, ReleaseSavepoint)
)
"""Payload types of the requests that the driver itself answers."""


def savepoint_requested(step: StepBuilder, request: RequestArrived) -> None:
    """Record `REQUEST`, the fact and `RESPONSE` in one turn."""
    savepoint = step.config.projection.types.decode(request.payload_type, request.payload)
    record = step.add(Kind.REQUEST, payload_type=request.payload_type, payload=request.payload)
    was_before = False
    if isinstance(savepoint, TakeSavepoint):
        number, why_not = to_take(step.state, savepoint.name, savepoint.checkpoint)
        was_before = step.state.savepoints.get(savepoint.name) == number
        if why_not is None and not was_before:
            fact = SavepointTaken(name=savepoint.name, checkpoint=number)
            step.add(Kind.FACT, reason="requested by a client", value=fact)
    else:
        assert isinstance(savepoint, ReleaseSavepoint), "REQUESTS has two types"
        number = step.state.savepoints.get(savepoint.name, NO_CHECKPOINT)
        why_not = why_not_released(step.state, savepoint.name)
        if why_not is None:
            step.add(
                Kind.FACT,
                reason="requested by a client",
                value=SavepointReleased(name=savepoint.name),
            )
    recorded = SavepointRecorded(checkpoint=number, was_so_before=was_before)
    answer(step, request, record.sequence, recorded, why_not)
