"""Decisions about clients' requests: recorded before they are handled, answered after release (J1: requests).

The driver itself answers those to skip a split or an event, and those about savepoints: each is recorded as a fact.
"""

from __future__ import annotations

from typing import assert_never

from coordlog.kernel.attempts import fail_attempt
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import AttemptLost, RequestArrived, RequestOutcome, Respond
from coordlog.kernel.outputs import AnswerRequest, CallRequest
from coordlog.projections.job.attempts import required
from coordlog.projections.job.savepoints import to_take, why_not_released
from coordlog.projections.job.skips import event_key, find_split
from coordlog.projections.job.state import JobState, Phase
from coordlog.projections.splits.fold import Assigned, Finished, Skipped, WithEnumerator
from coordlog.schemas.builtin_types import (
    EventSkipped,
    ReleaseSavepoint,
    SavepointRecorded,
    SavepointReleased,
    SavepointTaken,
    SkipEvent,
    SkipRecorded,
    SkipSplit,
    SplitSkipped,
    TakeSavepoint,
)
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import NO_CHECKPOINT, Kind

__all__ = [
    "request_arrived",
    "respond",
    "why_not_skippable",
]


def request_arrived(step: StepBuilder, request: RequestArrived) -> None:
    """Record `REQUEST` and call the coordinator; a request that none can handle is answered, not recorded."""
    if request.payload_type in _SKIP_REQUESTS:
        _skip_requested(step, request)
        return
    if request.payload_type in _SAVEPOINT_REQUESTS:
        _savepoint_requested(step, request)
        return
    why_not = _why_not(step, request.operator_id)
    if why_not is not None:
        # An effect without a record: it does not overtake the records on which it depends.
        outcome, reason = why_not
        step.effects.append(
            AnswerRequest(request_id=request.request_id, outcome=outcome, reason=reason)
        )
        return
    record = step.add(
        Kind.REQUEST,
        operator_id=request.operator_id,
        payload_type=request.payload_type,
        payload=request.payload,
    )
    step.calls.append(
        CallRequest(
            operator_id=request.operator_id,
            request_id=request.request_id,
            sequence=required(record.sequence),
            payload_type=request.payload_type,
            payload=request.payload,
        )
    )


def _why_not(step: StepBuilder, operator_id: str) -> tuple[RequestOutcome, str] | None:
    operators, phase = step.config.operators, step.state.phase
    if operator_id not in operators:
        known = ", ".join(operators) or "none"
        return RequestOutcome.NO_SUCH_OPERATOR, f"the operators with a coordinator are: {known}"
    if phase is Phase.RUNNING:
        return None
    if phase in (Phase.STARTING, Phase.FAILING):
        return RequestOutcome.RESTARTING, f"the job is {phase.value}"
    return RequestOutcome.OVER, f"the job is {phase.value}: no coordinator is called any more"


def respond(step: StepBuilder, action: Respond) -> None:
    """Record `RESPONSE`, in the turn of its request; the client receives it once released."""
    record = step.add(
        Kind.RESPONSE,
        operator_id=action.operator_id,
        cause=action.cause,
        payload_type=action.payload_type,
        payload=action.payload,
        reason=action.reason,
        attributes={"outcome": action.outcome.value},
    )
    step.effects.append(
        AnswerRequest(
            request_id=action.request_id,
            outcome=action.outcome,
            sequence=record.sequence,
            payload_type=action.payload_type,
            payload=action.payload,
            reason=record.reason,
        )
    )


def _answer(
    step: StepBuilder,
    request: RequestArrived,
    cause: int | None,
    value: Payload | None,
    why_not: str | None,
) -> None:
    """Record a `RESPONSE` to the `REQUEST` at sequence `cause`, and send it once released.

    The request is answered with `value`, or refused with the reason `why_not` if that is not None.
    """
    outcome = RequestOutcome.ANSWERED if why_not is None else RequestOutcome.REFUSED
    response = step.add(
        Kind.RESPONSE,
        cause=cause,
        value=value if why_not is None else None,
        reason=why_not,
        attributes={"outcome": outcome.value},
    )
    step.effects.append(
        AnswerRequest(
            request_id=request.request_id,
            outcome=outcome,
            sequence=response.sequence,
            payload_type=response.payload_type,
            payload=response.payload,
            reason=why_not,
        )
    )


_SKIP_REQUESTS = frozenset(
    payload_type_of(payload_type).key for payload_type in (SkipSplit, SkipEvent)
)
"""Payload types of the requests to skip a split or an event (J2: skip poison)."""


def _skip_requested(step: StepBuilder, request: RequestArrived) -> None:
    """Record `REQUEST`, the fact, the failure of the attempt that reads the split, and `RESPONSE` in one turn."""
    skip = step.config.projection.types.decode(request.payload_type, request.payload)
    record = step.add(Kind.REQUEST, payload_type=request.payload_type, payload=request.payload)
    if isinstance(skip, SkipSplit):
        why_not = why_not_skippable(step.state, skip.split_id)
        was_before = why_not is None and _skip_split(step, skip)
    else:
        assert isinstance(skip, SkipEvent), "the set has two types"
        why_not, was_before = None, _skip_event(step, skip)
    recorded = SkipRecorded(was_skipped_before=was_before)
    _answer(step, request, record.sequence, recorded, why_not)


def why_not_skippable(state: JobState, split_id: str) -> str | None:
    """Reason why a split cannot be skipped; None if it can be, or is skipped already."""
    if state.is_over or state.phase is Phase.ENDING:
        return f"the job is {state.phase.value}: nothing of it is read any more"
    entry = find_split(state, split_id)
    if entry is None:
        return (
            f"there is no split {split_id!r}, or it has not been listed yet: "
            f"`coordlog splits {state.job_id}` has them"
        )
    operator_id, splits, known = entry
    place = known.place
    match place:
        case Finished():
            return f"split {split_id!r} has been read to its end, by subtask {place.subtask}"
        case Assigned() if splits.reader(place.subtask).is_completed:
            return (
                f"split {split_id!r} is done: subtask {place.subtask}, which had it, has completed"
            )
        case Assigned() | WithEnumerator() | Skipped():
            assert operator_id, "a source has an id"
            return None
        case _:
            assert_never(place)


def _skip_split(step: StepBuilder, skip: SkipSplit) -> bool:
    """Skip a split; returns whether it was skipped before. An attempt that reads it restarts from its checkpoint."""
    entry = find_split(step.state, skip.split_id)
    assert entry is not None, "the caller has checked it"
    operator_id, _, known = entry
    if isinstance(known.place, Skipped):
        return True
    step.add(
        Kind.FACT,
        operator_id=operator_id,
        reason=skip.why,
        value=SplitSkipped(split_id=skip.split_id),
    )
    if isinstance(known.place, Assigned) and step.state.phase is Phase.RUNNING:
        attempt = step.state.subtasks[known.place.subtask].attempt
        if attempt is not None:
            lost = AttemptLost(
                subtask=attempt.subtask,
                attempt_number=attempt.attempt_number,
                reason=f"split {skip.split_id!r}, which it has, is skipped: {skip.why}",
            )
            fail_attempt(step, lost, is_counted=False)
    return False


def _skip_event(step: StepBuilder, skip: SkipEvent) -> bool:
    """Skip an event; returns whether it was skipped before. A delivery in flight is not undone, only later ones."""
    event: EventSkipped = skip.skipped
    key = event_key(
        operator_id=skip.operator_id,
        subtask=skip.subtask,
        is_down=event.is_down,
        event_type=event.event_type,
        digest=event.digest,
    )
    if key in step.state.skipped_events:
        return True
    step.add(
        Kind.FACT,
        operator_id=skip.operator_id,
        subtask=skip.subtask,
        reason=skip.why,
        value=event,
    )
    return False


_SAVEPOINT_REQUESTS = frozenset(
    payload_type_of(payload_type).key for payload_type in (TakeSavepoint, ReleaseSavepoint)
)
"""Payload types of the requests about savepoints."""


def _savepoint_requested(step: StepBuilder, request: RequestArrived) -> None:
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
        assert isinstance(savepoint, ReleaseSavepoint), "the set has two types"
        number = step.state.savepoints.get(savepoint.name, NO_CHECKPOINT)
        why_not = why_not_released(step.state, savepoint.name)
        if why_not is None:
            step.add(
                Kind.FACT,
                reason="requested by a client",
                value=SavepointReleased(name=savepoint.name),
            )
    recorded = SavepointRecorded(checkpoint=number, was_so_before=was_before)
    _answer(step, request, record.sequence, recorded, why_not)
