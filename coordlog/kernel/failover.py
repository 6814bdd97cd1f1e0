"""Decisions about failures of the whole job: global failures, rollback, resume, the end."""

from __future__ import annotations

from coordlog.kernel import attempts, checkpoints, commits, events
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.checkpoints import abort
from coordlog.kernel.inputs import (
    AttemptLost,
    CheckpointTimedOut,
    RecordFact,
    Rollback,
    WorkDone,
)
from coordlog.kernel.job_end import counted_if_dead, is_given_up
from coordlog.kernel.outputs import (
    CallCreate,
    CallEvent,
    CallHandler,
    CallReset,
    CallStart,
    FenceAttempt,
)
from coordlog.kernel.restart_policy import is_exhausted
from coordlog.projections.job.checkpoints import (
    coordinator_state,
    late_attempts,
    missing,
)
from coordlog.projections.job.grants import uncommitted
from coordlog.projections.job.reopen import AGAIN
from coordlog.projections.job.skips import skip_of_event
from coordlog.projections.job.state import (
    JobState,
    Phase,
    sorted_items,
    sorted_values,
)
from coordlog.schemas import builtin_types as builtin
from coordlog.schemas.record import Kind

__all__ = [
    "checkpoint_timed_out",
    "is_exhausted",
    "record_fact",
    "redeliver",
    "reopen",
    "resume",
    "rollback",
    "start",
    "tell_restored",
    "work_done",
]


def start(step: StepBuilder) -> None:
    """The first turn of a job."""
    step.add(Kind.COORDINATORS_STARTED, attributes={"restore": "start"})
    for operator_id in step.config.operators:
        step.calls += [CallCreate(operator_id=operator_id), CallStart(operator_id=operator_id)]


def reopen(step: StepBuilder) -> None:
    """The first turn of a further opening of a job that has finished: what is committed stays."""
    step.add(Kind.COORDINATORS_STARTED, attributes={"restore": AGAIN})
    for operator_id in step.config.operators:
        step.calls += [CallCreate(operator_id=operator_id), CallStart(operator_id=operator_id)]


def resume(step: StepBuilder) -> None:
    """Go on from the folded state: a local failover of whatever the dead driver had."""
    if is_given_up(step):
        return
    for checkpoint_id, _ in sorted_items(step.state.pending):
        checkpoints.abort(step, checkpoint_id, "its driver is gone", is_told=False)
    step.add(
        Kind.COORDINATORS_STARTED, attributes={"restore": "resume", **counted_if_dead(step.state)}
    )
    for operator_id in step.config.operators:
        step.calls += [CallCreate(operator_id=operator_id), CallStart(operator_id=operator_id)]
    commits.settle_open(step)


def rollback(step: StepBuilder, given: Rollback) -> None:
    """Back to a checkpoint: abort, end, reset; new coordinators are reset and started (clauses A2, E2, E4)."""
    if not given.is_failover and is_given_up(step):
        return
    # A driver that died after a failure and before its reset has not counted it.
    has_failed = step.state.resumed_phase is Phase.FAILING or step.state.is_former_dead
    for checkpoint_id, _ in sorted_items(step.state.pending):
        checkpoints.abort(step, checkpoint_id, "the job goes back to a checkpoint", is_told=False)
    reason = "global failover" if given.is_failover else "its driver is gone"
    for subtask in sorted_values(step.state.subtasks):
        attempt = subtask.attempt
        if attempt is None:
            continue
        events.fail_events(step, subtask.subtask, reason)
        step.add(
            Kind.ATTEMPT_FAILED,
            subtask=subtask.subtask,
            attempt_number=attempt.attempt_number,
            reason=reason,
        )
        if step.state.is_another_jobs:
            continue  # it may live, and what it has staged is for that job to clean
        step.effects.append(
            FenceAttempt(
                driver_id=attempt.driver_id,
                subtask=subtask.subtask,
                attempt_number=attempt.attempt_number,
                reason=reason,
                is_finished=False,
            )
        )
    # The old objects hear nothing more but `close` (clause B2).
    step.calls.clear()
    attributes = {
        "restore": "failover" if given.is_failover else "rollback",
        "counted": "true" if given.is_failover or has_failed else "false",
    }
    checkpoint = step.state.completed.get(given.checkpoint_id)
    if checkpoint is not None and checkpoint.parallelism != step.state.parallelism:
        # What is kept by subtask goes to others (clause E7).
        attributes["parallelism_was"] = str(checkpoint.parallelism)
        attributes["parallelism"] = str(step.state.parallelism)
    step.add(Kind.RESET_TO_CHECKPOINT, checkpoint_id=given.checkpoint_id, attributes=attributes)
    for operator_id in step.config.operators:
        step.calls += [
            CallCreate(operator_id=operator_id),
            CallReset(
                operator_id=operator_id,
                checkpoint_id=given.checkpoint_id,
                state=coordinator_state(step.state, given.checkpoint_id, operator_id),
            ),
            CallStart(operator_id=operator_id),
        ]
    commits.settle_open(step)


def redeliver(step: StepBuilder) -> None:
    """The next event of the cut's channel state is handled again, once, in log order (clause D3)."""
    event = step.state.owed_redeliveries[0]
    skip = skip_of_event(step.state, event)
    step.add(
        Kind.EVENT_REDELIVERED,
        operator_id=event.operator_id,
        subtask=event.subtask,
        attempt_number=event.attempt_number,
        event_id=event.event_id,
        cause=event.sequence,
        reason=None if skip is None else f"not handled: it is skipped: {skip.reason}",
        attributes=None if skip is None else {"skipped": "true"},
    )
    if skip is not None:
        return
    step.calls.append(CallEvent(event=event, is_redelivery=True))


def tell_restored(step: StepBuilder) -> None:
    """complete(n) once more, before any attempt is ready (clause E6)."""
    assert step.state.owed_complete is not None, "the caller has looked"
    checkpoints.tell_complete(step, step.state.owed_complete)


def record_fact(step: StepBuilder, given: RecordFact) -> None:
    """A coordinator's own fact."""
    step.add(
        Kind.FACT,
        operator_id=given.operator_id,
        payload_type=given.payload_type,
        payload=given.payload,
    )


def _is_heard(state: JobState, operator_id: str) -> bool:
    """Whether an operator's coordinator is called: at a batch job's end only while it has committables to commit."""
    if state.phase is Phase.ENDING:
        return operator_id in uncommitted(state)
    return state.phase is Phase.RUNNING


def work_done(step: StepBuilder, given: WorkDone) -> None:
    """The result of a `call_async`, or a timer, as a `FACT`; for a closed coordinator it is recorded only (A6).

    Not behind the end of the job: no record there may address a stored payload, so that those of the driver may go.
    """
    if step.state.is_over:
        return
    attributes = {
        "turn": str(given.turn_sequence),
        "call": str(given.call_number),
        "generation": str(given.generation),
    }
    is_closed = given.is_orphan or not _is_heard(step.state, given.operator_id)
    reason = given.error
    if is_closed:
        reason = f"its coordinator is closed{'' if given.error is None else ': ' + given.error}"
        attributes["closed"] = "true"
    if given.payload_type is None:
        step.add(
            Kind.FACT,
            operator_id=given.operator_id,
            reason=reason,
            attributes=attributes,
            value=builtin.WorkDone(call_number=given.call_number, is_timer=given.is_timer),
        )
    else:
        step.add(
            Kind.FACT,
            operator_id=given.operator_id,
            reason=reason,
            attributes=attributes,
            payload_type=given.payload_type,
            payload=given.payload,
        )
    if is_closed:
        return
    step.calls.append(
        CallHandler(
            operator_id=given.operator_id,
            generation=given.generation,
            turn_sequence=given.turn_sequence,
            call_number=given.call_number,
            payload_type=given.payload_type,
            payload=given.payload,
            error=given.error,
        )
    )


def checkpoint_timed_out(step: StepBuilder, given: CheckpointTimedOut) -> None:
    """Abort it, naming who was missing; after a stated number in a row the missing attempts fail (clause F12)."""
    pending = step.state.pending.get(given.checkpoint_id)
    if pending is None or step.state.phase is not Phase.RUNNING:
        return
    lacking = missing(step.state, pending, step.config.operators)
    late = late_attempts(step.state, pending)
    reason = f"not whole after {given.timeout_s:g} s; missing: {lacking}"
    abort(step, given.checkpoint_id, reason, is_timed_out=True)
    if step.state.timeouts_in_a_row < step.config.timeouts_in_a_row_max:
        return
    timeouts = step.state.timeouts_in_a_row
    for subtask, attempt_number in late:
        if step.state.phase is not Phase.RUNNING:
            return  # the one before was one failure too many
        attempts.fail_attempt(
            step,
            AttemptLost(
                subtask=subtask,
                attempt_number=attempt_number,
                reason=f"{timeouts} checkpoints in a row timed out; the last, "
                f"{given.checkpoint_id}, was missing {lacking}",
            ),
        )
