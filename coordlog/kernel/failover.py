"""Decisions about failures of the whole job: global failures, rollback, resume, the end."""

from __future__ import annotations

from typing import Final

from coordlog.kernel import attempts, checkpoints
from coordlog.kernel import commits as settling
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import (
    DriverStops,
    FailGlobally,
    FinishJob,
    RecordFact,
    Rollback,
    StopAsked,
    WorkDone,
)
from coordlog.kernel.outputs import (
    CallCreate,
    CallEvent,
    CallHandler,
    CallReset,
    CallStart,
    CancelStage,
    EndJob,
    FenceAttempt,
)
from coordlog.kernel.poison import attributes_of_event, marked, with_poison, without_poison
from coordlog.kernel.restart_policy import backoff_s, failures_in_window, is_exhausted
from coordlog.limits import REASON_CHARS_MAX
from coordlog.projections.job.checkpoints import coordinator_state
from coordlog.projections.job.grants import uncommitted
from coordlog.projections.job.reopen import AGAIN
from coordlog.projections.job.skips import skip_of_event
from coordlog.projections.job.state import JobState, Phase, sorted_items, sorted_values
from coordlog.schemas import builtin_types as builtin
from coordlog.schemas.record import Kind

BEFORE: Final = "; before that: "
"""Between two reasons of a `JOB_FAILED`."""
DRIVER_ENDED: Final = "its driver ended without a stop, after "
"""Begins the reason of a job that fails because its drivers keep ending."""
UNFINISHED: Final = "its subtasks have finished, and "
"""Begins the reason of a job that fails by what is left at its end."""
_COMMITTED: Final = (
    "a part is committed, and no reset follows: the next start goes on with the rest"
)
"""Why a batch job that fails in the middle of its commits is not restarted."""

__all__ = [
    "BEFORE",
    "DRIVER_ENDED",
    "UNFINISHED",
    "counted_if_dead",
    "fail_globally",
    "fail_job",
    "final_of",
    "finish_job",
    "is_exhausted",
    "is_given_up",
    "record_end_of_driver",
    "record_fact",
    "record_stop",
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


def is_given_up(step: StepBuilder) -> bool:
    """Fail a job whose drivers keep ending without a stop; one that does for the first time is always replaced."""
    config, state = step.config, step.state
    count = failures_in_window(config, state, step.clock_us)
    if not state.is_former_dead or count < max(config.restarts_max, 1):
        return False
    fail_job(
        step,
        f"{DRIVER_ENDED}{count} failures and such ends within "
        f"{config.restart_window_s:g} s: find out why the drivers end (memory, the machine, Spark's "
        "session), then start the job again, which counts afresh",
    )
    return True


def counted_if_dead(state: JobState) -> dict[str, str]:
    """What `COORDINATORS_STARTED` says of a driver before it that ended without a stop."""
    return {"counted": "true"} if state.is_former_dead else {}


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
    settling.settle_open(step)


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
        attempts.fail_events(step, subtask.subtask, reason)
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
    settling.settle_open(step)


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


def fail_globally(step: StepBuilder, given: FailGlobally) -> None:
    """`GLOBAL_FAILURE`: until the next reset nothing from attempts is handled. Several make one reset."""
    state = step.state
    if state.is_over:
        return
    is_committing = state.phase is Phase.ENDING and state.is_end_committed
    if is_committing and not uncommitted(state):
        # Batch, past its last completion: there is no reset any more, only settling.
        step.add(
            Kind.FACT,
            operator_id=given.operator_id,
            reason=f"only settling is left: {given.reason}",
            attributes={"closed": "true"},
            value=builtin.Refused(what="failure"),
        )
        return
    attributes = {} if given.event is None else attributes_of_event(given.event)
    attributes = attributes | final_of(given.final) if given.final else marked(state, attributes)
    reason = with_poison(state.job_id, given.reason, attributes)
    step.add(
        Kind.GLOBAL_FAILURE,
        operator_id=given.operator_id,
        subtask=given.subtask,
        reason=reason,
        attributes=attributes,
    )
    if state.phase is Phase.FAILING and not given.final:
        return
    if given.final or is_committing or is_exhausted(step.config, state, step.clock_us):
        fail_job(step, reason, final=given.final or (_COMMITTED if is_committing else ""))
        return
    step.effects.append(
        CancelStage(reason=given.reason, backoff_s=backoff_s(step.config, state, step.clock_us))
    )


def final_of(final: str) -> dict[str, str]:
    """What a failure's record says where trying again cannot help: why."""
    return {"final": final} if final else {}


def fail_job(step: StepBuilder, reason: str, *, where: str = "", final: str = "") -> None:
    """`JOB_FAILED`, with the chain of reasons; a later start is a rollback with a fresh count.

    Args:
        step: So far.
        reason: The newest.
        where: The attempt that failed, and the split that it read.
        final: Why no restart is tried; empty where the restart policy is used up.
    """
    chain = _chain(reason, step.state.reasons)
    for subtask in sorted_values(step.state.subtasks):
        if subtask.attempt is not None:
            step.effects.append(
                FenceAttempt(
                    driver_id=subtask.attempt.driver_id,
                    subtask=subtask.subtask,
                    attempt_number=subtask.attempt.attempt_number,
                    reason="the job has failed",
                    is_finished=False,
                )
            )
    newest, older = chain[0][: REASON_CHARS_MAX // 2], chain[1:]
    each = REASON_CHARS_MAX // 2 // max(len(older), 1) - len(BEFORE)
    step.add(
        Kind.JOB_FAILED,
        reason=BEFORE.join((newest, *(one[:each] for one in older))),
        attributes={**({"where": where} if where else {}), **final_of(final)},
    )
    step.calls.clear()
    step.effects += [
        CancelStage(reason="the job has failed", backoff_s=None),
        EndJob(is_finished=False, reasons=chain, where=where, final=final),
    ]


def _chain(newest: str, older: tuple[str, ...]) -> tuple[str, ...]:
    """The newest reason, then those before it that say something else, newest first."""
    seen = {without_poison(newest)}
    chain = [newest]
    for one in map(without_poison, older):
        if one not in seen:
            seen.add(one)
            chain.append(one)
    return tuple(chain)


def finish_job(step: StepBuilder, given: FinishJob) -> None:
    """`JOB_FINISHED` if nothing is left; else `JOB_FAILED` by what is left and nothing will do (clauses I3 and L6)."""
    if given.left:
        fail_job(step, UNFINISHED + given.left, final=given.final)
        return
    step.add(Kind.JOB_FINISHED)
    step.effects.append(EndJob(is_finished=True, reasons=()))


def record_stop(step: StepBuilder, given: StopAsked) -> None:
    """That the driver was told to stop: what follows in the log is explained by it."""
    step.add(
        Kind.FACT,
        reason=f"told to stop by {given.by}",
        value=builtin.StopRequested(
            by=given.by, with_checkpoint=given.with_checkpoint, is_at_once=given.is_at_once
        ),
    )


def record_end_of_driver(step: StepBuilder, given: DriverStops) -> None:
    """That the driver has stopped: a proof that it is over, and the end of its attempts."""
    reason = f"stopped by {given.by}"
    step.add(Kind.FACT, reason=reason, value=builtin.DriverStopped(by=given.by))


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
