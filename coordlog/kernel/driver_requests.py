"""Requests that the driver itself answers, not a coordinator: skips, savepoints, stops, checkpoints, kills.

Each is one turn: `REQUEST` with the client's names, the facts that it causes, and `RESPONSE`.
"""

from __future__ import annotations

from typing import assert_never

from coordlog.kernel.attempts import fail_attempt
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import (
    AttemptLost,
    RequestArrived,
    RequestOutcome,
    StopAsked,
    TakeSnapshot,
)
from coordlog.kernel.job_end import record_stop
from coordlog.kernel.outputs import AnswerRequest, QueueCheckpoint, StopDriver
from coordlog.projections.job.event_skips import key_of_skip
from coordlog.projections.job.savepoints import to_take, why_no_name, why_not_released
from coordlog.projections.job.skips import find_split
from coordlog.projections.job.state import DriverStop, JobState, Phase
from coordlog.projections.splits.fold import Assigned, Finished, Skipped, WithEnumerator
from coordlog.schemas.builtin_types import (
    AttemptKilled,
    CheckpointQueued,
    CheckpointWanted,
    EventSkipped,
    KillAttempt,
    ReleaseSavepoint,
    SavepointRecorded,
    SavepointReleased,
    SavepointTaken,
    SkipEvent,
    SkipRecorded,
    SkipSplit,
    SplitSkipped,
    StopRecorded,
    StopWanted,
    TakeSavepoint,
)
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import NO_CHECKPOINT, Kind

__all__ = ["DRIVER_REQUESTS", "asked_by", "driver_requested", "why_not_skippable"]

DRIVER_REQUESTS = frozenset(
    payload_type_of(payload_type).key
    for payload_type in (
        CheckpointWanted,
        KillAttempt,
        ReleaseSavepoint,
        SkipEvent,
        SkipSplit,
        StopWanted,
        TakeSavepoint,
    )
)
"""Payload types of the requests that the driver answers."""


def asked_by(request: RequestArrived | TakeSnapshot) -> dict[str, str]:
    """Attributes of a `REQUEST`, or of a requested `SNAPSHOT`: the names of the client, if it gives them."""
    return {} if request.asked_by is None else request.asked_by.attributes()


def driver_requested(step: StepBuilder, request: RequestArrived) -> None:
    """Record the request, its effect on the job, and the answer, in one turn."""
    wanted = step.config.projection.types.decode(request.payload_type, request.payload)
    record = step.add(
        Kind.REQUEST,
        payload_type=request.payload_type,
        payload=request.payload,
        attributes=asked_by(request),
    )
    match wanted:
        case SkipSplit() | SkipEvent():
            response, why_not = _skipped(step, wanted)
        case TakeSavepoint() | ReleaseSavepoint():
            response, why_not = _savepoint(step, wanted, request)
        case StopWanted():
            response, why_not = _stop(step, wanted, request)
        case CheckpointWanted():
            response, why_not = _checkpoint(step)
        case KillAttempt():
            response, why_not = _kill(step, wanted, request)
        case _:
            raise AssertionError(f"{request.payload_type} is none of DRIVER_REQUESTS")
    _answer(step, request, record.sequence, response, why_not)


def _skipped(step: StepBuilder, skip: SkipSplit | SkipEvent) -> tuple[Payload | None, str | None]:
    """Record the fact of a skip, and the failure of the attempt that reads the split (J2: skip poison)."""
    if isinstance(skip, SkipEvent):
        return SkipRecorded(was_skipped_before=_skip_event(step, skip)), None
    why_not = why_not_skippable(step.state, skip.split_id)
    if why_not is not None:
        return None, why_not
    return SkipRecorded(was_skipped_before=_skip_split(step, skip)), None


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
    """Skip an event; returns whether a skip of it is in force already. A delivery in flight is not undone."""
    event: EventSkipped = skip.skipped
    key = key_of_skip(skip.operator_id, skip.subtask, event)
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


def _savepoint(
    step: StepBuilder, savepoint: TakeSavepoint | ReleaseSavepoint, request: RequestArrived
) -> tuple[Payload | None, str | None]:
    """Record that a checkpoint is a savepoint, or is one no longer."""
    why = f"requested by {request.asked_by or 'a client'}"
    was_before = False
    if isinstance(savepoint, TakeSavepoint):
        number, why_not = to_take(step.state, savepoint.name, savepoint.checkpoint)
        was_before = step.state.savepoints.get(savepoint.name) == number
        if why_not is None and not was_before:
            fact = SavepointTaken(name=savepoint.name, checkpoint=number)
            step.add(Kind.FACT, reason=why, value=fact)
    else:
        number = step.state.savepoints.get(savepoint.name, NO_CHECKPOINT)
        why_not = why_not_released(step.state, savepoint.name)
        if why_not is None:
            step.add(Kind.FACT, reason=why, value=SavepointReleased(name=savepoint.name))
    recorded = SavepointRecorded(checkpoint=number, was_so_before=was_before)
    return recorded, why_not


def _stop(
    step: StepBuilder, stop: StopWanted, request: RequestArrived
) -> tuple[Payload | None, str | None]:
    """Record the stop; the driver begins it once the log has this turn."""
    state = step.state
    with_checkpoint = stop.with_checkpoint and not state.is_batch
    if state.is_over:
        return None, f"the job is {state.phase.value}: its driver ends anyway"
    if stop.savepoint is not None:
        if not with_checkpoint:
            kind = "a batch takes no checkpoint" if state.is_batch else "it needs a checkpoint"
            return None, f"no savepoint {stop.savepoint!r} can be taken: {kind}"
        why_not = why_no_name(state, stop.savepoint)
        if stop.savepoint in state.savepoints:
            number = state.savepoints[stop.savepoint]
            why_not = f"{stop.savepoint!r} names checkpoint {number}: release it first"
        if why_not is not None:
            return None, why_not
    was_asked_before = state.driver_stop is not DriverStop.NONE
    by = "stop" if request.asked_by is None else str(request.asked_by)
    record_stop(step, StopAsked(by=by, with_checkpoint=with_checkpoint, is_at_once=False))
    step.effects.append(
        StopDriver(
            by=by,
            with_checkpoint=with_checkpoint,
            savepoint=stop.savepoint,
            asked_by=request.asked_by,
        )
    )
    return StopRecorded(with_checkpoint=with_checkpoint, was_asked_before=was_asked_before), None


def _checkpoint(step: StepBuilder) -> tuple[Payload | None, str | None]:
    """Queue a checkpoint, which begins in a turn of its own."""
    state = step.state
    if state.is_batch:
        return None, (
            "the job is a batch and takes no checkpoints: the results of a split are durable when it finishes"
        )
    if state.is_over or state.phase is Phase.ENDING:
        return None, f"the job is {state.phase.value}"
    step.effects.append(QueueCheckpoint())
    return CheckpointQueued(checkpoint=state.next_checkpoint_id), None


def _kill(
    step: StepBuilder, kill: KillAttempt, request: RequestArrived
) -> tuple[Payload | None, str | None]:
    """Fail the live attempt of a subtask. The restart policy does not count it: no fault has caused it."""
    state, number = step.state, kill.subtask
    if state.phase is not Phase.RUNNING:
        return None, f"the job is {state.phase.value}: no attempt of it runs"
    subtask = state.subtasks.get(number)
    if subtask is None:
        return None, f"there is no subtask {number}: they are 0 to {state.parallelism - 1}"
    attempt = subtask.attempt
    if attempt is None:
        has = "has completed" if subtask.completion is not None else "has no attempt now"
        return None, f"subtask {number} {has}"
    if kill.attempt_number not in (None, attempt.attempt_number):
        return None, (
            f"attempt {kill.attempt_number} of subtask {number} is not live: its attempt is "
            f"{attempt.attempt_number}"
        )
    by = request.asked_by or "a client"
    reason = f"killed by {by}: {kill.why}" if kill.why else f"killed by {by}"
    lost = AttemptLost(subtask=number, attempt_number=attempt.attempt_number, reason=reason)
    fail_attempt(step, lost, is_counted=False)
    return AttemptKilled(attempt_number=attempt.attempt_number), None


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
