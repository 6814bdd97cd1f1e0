"""Decisions about a whole job: start, resume, rollback, reopening and checkpoint timeouts."""

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
from coordlog.kernel.job_end import counted_if_dead, fail_if_drivers_keep_ending
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
    missing_parts,
)
from coordlog.projections.job.event_skips import skip_of_event
from coordlog.projections.job.grants import uncommitted
from coordlog.projections.job.state import (
    JobState,
    Phase,
    sorted_items,
    sorted_values,
)
from coordlog.schemas import builtin_types as builtin
from coordlog.schemas.record import SKIPPED_BY, Kind, RestoredBy

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
    step.add(Kind.COORDINATORS_STARTED, attributes={"restore": RestoredBy.START})
    for operator_id in step.config.operators:
        step.calls += [CallCreate(operator_id=operator_id), CallStart(operator_id=operator_id)]


def reopen(step: StepBuilder) -> None:
    """The first turn of a driver that opens a finished job again. Its commits are not repeated."""
    attributes = {
        "restore": RestoredBy.AGAIN,
        **_rescaling(step.state, step.state.last_checkpoint),
    }
    step.add(Kind.COORDINATORS_STARTED, attributes=attributes)
    for operator_id in step.config.operators:
        step.calls += [CallCreate(operator_id=operator_id), CallStart(operator_id=operator_id)]


def resume(step: StepBuilder) -> None:
    """Continue from the folded state. `reset_stale_subtask` later resets each subtask of the former driver."""
    if fail_if_drivers_keep_ending(step):
        return
    for checkpoint_id, _ in sorted_items(step.state.pending):
        checkpoints.abort(step, checkpoint_id, "its driver is gone", is_notified=False)
    step.add(
        Kind.COORDINATORS_STARTED,
        attributes={"restore": RestoredBy.RESUME, **counted_if_dead(step.state)},
    )
    for operator_id in step.config.operators:
        step.calls += [CallCreate(operator_id=operator_id), CallStart(operator_id=operator_id)]
    commits.settle_open(step)


def rollback(step: StepBuilder, reset: Rollback) -> None:
    """Go back to a checkpoint (E2: global failovers).

    Aborts pending checkpoints, ends all attempts, then creates, resets and starts new coordinators.
    """
    if not reset.is_failover and fail_if_drivers_keep_ending(step):
        return
    # A failure is counted by its reset. If the driver died between the two, this reset counts it.
    has_failed = step.state.resumed_phase is Phase.FAILING or step.state.is_former_dead
    for checkpoint_id, _ in sorted_items(step.state.pending):
        checkpoints.abort(
            step, checkpoint_id, "the job goes back to a checkpoint", is_notified=False
        )
    reason = "global failover" if reset.is_failover else "its driver is gone"
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
            continue  # its own job may still run it, and alone cleans its staged files
        step.effects.append(
            FenceAttempt(
                driver_id=attempt.driver_id,
                subtask=subtask.subtask,
                attempt_number=attempt.attempt_number,
                reason=reason,
                is_finished=False,
            )
        )
    # Of the old coordinators only `close` is called from here on (B2: closed coordinators).
    step.calls.clear()
    attributes = {
        "restore": RestoredBy.FAILOVER if reset.is_failover else RestoredBy.ROLLBACK,
        "counted": "true" if reset.is_failover or has_failed else "false",
        **_rescaling(step.state, reset.checkpoint_id),
    }
    step.add(Kind.RESET_TO_CHECKPOINT, checkpoint_id=reset.checkpoint_id, attributes=attributes)
    for operator_id in step.config.operators:
        step.calls += [
            CallCreate(operator_id=operator_id),
            CallReset(
                operator_id=operator_id,
                checkpoint_id=reset.checkpoint_id,
                state=coordinator_state(step.state, reset.checkpoint_id, operator_id),
            ),
            CallStart(operator_id=operator_id),
        ]
    commits.settle_open(step)


def _rescaling(state: JobState, checkpoint_id: int) -> dict[str, str]:
    """Attributes if the attempts begin from a checkpoint of another parallelism: states move (E7: rescaling)."""
    checkpoint = state.completed.get(checkpoint_id)
    if checkpoint is None or checkpoint.parallelism == state.parallelism:
        return {}
    return {
        "parallelism_was": str(checkpoint.parallelism),
        "parallelism": str(state.parallelism),
    }


def redeliver(step: StepBuilder) -> None:
    """Redeliver the next event that was in flight at the cut, in log order, each one once (D3: exactly once)."""
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
        attributes=None if skip is None else {SKIPPED_BY: str(skip.sequence)},
    )
    if skip is not None:
        return
    step.calls.append(CallEvent(event=event, is_redelivery=True))


def tell_restored(step: StepBuilder) -> None:
    """Notify the coordinators of the restored checkpoint again, before any attempt is ready (E6: restore order)."""
    assert step.state.owed_complete is not None, "the caller has checked it"
    checkpoints.notify_complete(step, step.state.owed_complete)


def record_fact(step: StepBuilder, action: RecordFact) -> None:
    """Record a coordinator's own fact."""
    step.add(
        Kind.FACT,
        operator_id=action.operator_id,
        payload_type=action.payload_type,
        payload=action.payload,
    )


def _is_called(state: JobState, operator_id: str) -> bool:
    """Whether an operator's coordinator is called now.

    While a batch job ends, only coordinators with uncommitted committables are called.
    """
    if state.phase is Phase.ENDING:
        return operator_id in uncommitted(state)
    return state.phase is Phase.RUNNING


def work_done(step: StepBuilder, work: WorkDone) -> None:
    """Record the end of a `call_async` or timer as a `FACT`, and call its handler (A6: results are recorded).

    The handler of a closed coordinator is not called. After the end of the job nothing is recorded, because the
    payloads that the driver has stored may be deleted by then.
    """
    if step.state.is_over:
        return
    attributes = {
        "turn": str(work.turn_sequence),
        "call": str(work.call_number),
        "generation": str(work.generation),
    }
    is_closed = work.is_orphan or not _is_called(step.state, work.operator_id)
    reason = work.error
    if is_closed:
        reason = f"its coordinator is closed{'' if work.error is None else ': ' + work.error}"
        attributes["closed"] = "true"
    if work.payload_type is None:
        fact = step.add(
            Kind.FACT,
            operator_id=work.operator_id,
            reason=reason,
            attributes=attributes,
            value=builtin.WorkDone(call_number=work.call_number, is_timer=work.is_timer),
        )
    else:
        fact = step.add(
            Kind.FACT,
            operator_id=work.operator_id,
            reason=reason,
            attributes=attributes,
            payload_type=work.payload_type,
            payload=work.payload,
        )
    if is_closed:
        return
    step.calls.append(
        CallHandler(
            operator_id=work.operator_id,
            generation=work.generation,
            turn_sequence=work.turn_sequence,
            call_number=work.call_number,
            payload_type=work.payload_type,
            payload=work.payload,
            error=fact.reason,  # as a replay has it
        )
    )


def checkpoint_timed_out(step: StepBuilder, timeout: CheckpointTimedOut) -> None:
    """Abort a checkpoint that was not complete in time; the reason names its missing parts (F12: checkpoint timeouts).

    After `timeouts_in_a_row_max` timeouts in a row, the attempts that it waited for fail.
    """
    pending = step.state.pending.get(timeout.checkpoint_id)
    if pending is None or step.state.phase is not Phase.RUNNING:
        return
    lacking = missing_parts(step.state, pending, step.config.operators)
    late = late_attempts(step.state, pending)
    reason = f"not whole after {timeout.timeout_s:g} s; missing: {lacking}"
    abort(step, timeout.checkpoint_id, reason, is_timed_out=True)
    if step.state.timeouts_in_a_row < step.config.timeouts_in_a_row_max:
        return
    timeouts = step.state.timeouts_in_a_row
    for index, (subtask, attempt_number) in enumerate(late):
        if step.state.phase is not Phase.RUNNING:
            return  # the failure of the attempt before has used up the restart policy
        attempts.attempt_lost(
            step,
            AttemptLost(
                subtask=subtask,
                attempt_number=attempt_number,
                reason=f"{timeouts} checkpoints in a row timed out; the last, "
                f"{timeout.checkpoint_id}, was missing {lacking}",
                is_with_another=index > 0,  # one cause, for any number of late subtasks
            ),
        )
