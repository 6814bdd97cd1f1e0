"""Decisions about failures of the whole job: global failures, rollback, resume, the end."""

from __future__ import annotations

from coordlog.limits import REASON_CHARS_MAX
from coordlog.projections.checkpoint_records import coordinator_state
from coordlog.projections.opening import AGAIN
from coordlog.projections.state import Phase, sorted_items, sorted_values
from coordlog.schemas import builtin
from coordlog.schemas.record import Kind

from . import attempts, checkpoints
from .building import StepBuilder
from .inputs import (
    CommitSettled,
    FailGlobally,
    GiveCommit,
    RecordFact,
    Rollback,
    StopAsked,
    WorkDone,
)
from .outputs import (
    CallCreate,
    CallEvent,
    CallHandler,
    CallReset,
    CallStart,
    CancelStage,
    EndJob,
    FenceAttempt,
    Settle,
)
from .policy import backoff_s, is_exhausted

_BEFORE = "; before that: "

__all__ = [
    "commit_settled",
    "fail_globally",
    "fail_job",
    "finish_job",
    "give_commit",
    "is_exhausted",
    "record_fact",
    "record_stop",
    "redeliver",
    "reopen",
    "resume",
    "rollback",
    "settle_open",
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
    for checkpoint_id, _ in sorted_items(step.state.pending):
        checkpoints.abort(step, checkpoint_id, "its driver is gone", is_told=False)
    step.add(Kind.COORDINATORS_STARTED, attributes={"restore": "resume"})
    for operator_id in step.config.operators:
        step.calls += [CallCreate(operator_id=operator_id), CallStart(operator_id=operator_id)]
    settle_open(step)


def rollback(step: StepBuilder, given: Rollback) -> None:
    """Back to a checkpoint: abort, end, reset; new coordinators are reset and started (clauses A2, E2, E4)."""
    has_failed = step.state.resumed_phase is Phase.FAILING
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
        # A driver that died after a failure and before its reset has not counted it.
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
    settle_open(step)


def settle_open(step: StepBuilder) -> None:
    """An intent in the log is carried out, never dropped (clause E6)."""
    for _, intent in sorted_items(step.state.intents):
        step.effects.append(
            Settle(
                sequence=intent.sequence,
                operator_id=intent.operator_id,
                checkpoint_id=intent.checkpoint_id,
                payload_type=intent.payload_type,
                payload=intent.payload,
                delay_s=0.0,
            )
        )


def redeliver(step: StepBuilder) -> None:
    """The next event of the cut's channel state is handled again, once, in log order (clause D3)."""
    event = step.state.owed_redeliveries[0]
    step.add(
        Kind.EVENT_REDELIVERED,
        operator_id=event.operator_id,
        subtask=event.subtask,
        attempt_number=event.attempt_number,
        event_id=event.event_id,
        cause=event.sequence,
    )
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
    if state.phase is Phase.ENDING and state.intents:
        # Batch, past its last completion: there is no reset any more, only settling.
        step.add(
            Kind.FACT,
            operator_id=given.operator_id,
            reason=f"only settling is left: {given.reason}",
            attributes={"closed": "true"},
            value=builtin.Refused(what="failure"),
        )
        return
    step.add(
        Kind.GLOBAL_FAILURE,
        operator_id=given.operator_id,
        subtask=given.subtask,
        reason=given.reason,
    )
    if state.phase is Phase.FAILING:
        return
    if is_exhausted(step.config, state, step.now_us):
        fail_job(step, given.reason)
        return
    step.effects.append(
        CancelStage(reason=given.reason, backoff_s=backoff_s(step.config, state, step.now_us))
    )


def fail_job(step: StepBuilder, reason: str) -> None:
    """`JOB_FAILED`, with the chain of reasons; a later start is a rollback with a fresh count."""
    chain = tuple(dict.fromkeys((reason, *step.state.reasons)))
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
    each = REASON_CHARS_MAX // len(chain) - len(_BEFORE)
    step.add(Kind.JOB_FAILED, reason=_BEFORE.join(one[:each] for one in chain))
    step.calls.clear()
    step.effects += [
        CancelStage(reason="the job has failed", backoff_s=None),
        EndJob(is_finished=False, reasons=chain),
    ]


def finish_job(step: StepBuilder) -> None:
    """`JOB_FINISHED`: every commit has an outcome (clause I3)."""
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


def record_fact(step: StepBuilder, given: RecordFact) -> None:
    """A coordinator's own fact."""
    step.add(
        Kind.FACT,
        operator_id=given.operator_id,
        payload_type=given.payload_type,
        payload=given.payload,
    )


def give_commit(step: StepBuilder, given: GiveCommit) -> None:
    """`COMMIT_INTENT`; settled after release (clause H3)."""
    record = step.add(
        Kind.COMMIT_INTENT,
        operator_id=given.operator_id,
        checkpoint_id=given.checkpoint_id,
        payload_type=given.payload_type,
        payload=given.payload,
    )
    step.effects.append(
        Settle(
            sequence=record.sequence or 0,
            operator_id=given.operator_id,
            checkpoint_id=given.checkpoint_id,
            payload_type=given.payload_type,
            payload=given.payload,
            delay_s=0.0,
        )
    )


def commit_settled(step: StepBuilder, given: CommitSettled) -> None:
    """`COMMIT_OUTCOME`; a sink that could not is tried again, within bounds."""
    intent = step.state.intents.get(given.sequence)
    if intent is None:
        return
    is_settled = given.error is None
    step.add(
        Kind.COMMIT_OUTCOME,
        operator_id=intent.operator_id,
        checkpoint_id=intent.checkpoint_id,
        cause=intent.sequence,
        payload_type=given.payload_type,
        payload=given.payload,
        reason=given.error,
        attributes={"settled": "true" if is_settled else "false"},
    )
    if is_settled or step.state.is_over:
        return
    tries = intent.failed_tries + 1
    if tries >= step.config.settle_attempts_max:
        fail_job(
            step,
            f"operator {intent.operator_id!r}: the commit of checkpoint {intent.checkpoint_id} "
            f"failed {tries} times: {given.error}",
        )
        return
    step.effects.append(
        Settle(
            sequence=intent.sequence,
            operator_id=intent.operator_id,
            checkpoint_id=intent.checkpoint_id,
            payload_type=intent.payload_type,
            payload=intent.payload,
            delay_s=min(
                step.config.restart_backoff_s * 2**tries, step.config.restart_backoff_max_s
            ),
        )
    )


def work_done(step: StepBuilder, given: WorkDone) -> None:
    """The result of a `call_async`, or a timer, as a `FACT`; for a closed coordinator it is recorded only (A6)."""
    attributes = {
        "turn": str(given.turn_sequence),
        "call": str(given.call_number),
        "generation": str(given.generation),
    }
    is_closed = given.is_orphan or step.state.phase is not Phase.RUNNING
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
