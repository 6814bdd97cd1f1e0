"""Decisions about attempts: registering, events both ways, acks, failing and completing."""

from __future__ import annotations

from collections.abc import Sequence

from coordlog.kernel import checkpoints, global_failover, job_end
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.events import fail_events
from coordlog.kernel.inputs import (
    AttemptLost,
    AttemptRegistered,
    FailGlobally,
)
from coordlog.kernel.outputs import (
    AcceptAttempt,
    AnswerFinished,
    CallAttemptFailed,
    CallAttemptReady,
    CallSubtaskReset,
    DelayNextAttempt,
    FenceAttempt,
    KillTask,
    RefuseAttempt,
)
from coordlog.kernel.poison import attributes_of_event, marked, with_poison
from coordlog.kernel.refusals import (
    refuse,
)
from coordlog.kernel.restart_policy import is_exhausted, local_backoff_s
from coordlog.projections.job.checkpoints import states_of
from coordlog.projections.job.skips import skipped_in_reader
from coordlog.projections.job.state import (
    AttemptState,
    DownEvent,
    JobState,
    Phase,
    UpEvent,
    sorted_items,
)
from coordlog.schemas.builtin_types import Committable
from coordlog.schemas.record import Kind

__all__ = [
    "attempt_lost",
    "attempt_registered",
    "fail_attempt",
    "fail_without_events",
    "is_lost_by_committables",
    "lose",
    "stale_attempt",
]


def attempt_registered(step: StepBuilder, given: AttemptRegistered) -> None:
    """Make the task an attempt, unless its subtask has finished or a newer task has come before (clauses B4, B7)."""
    state = step.state
    known = state.subtasks.get(given.subtask)
    if known is None:
        step.effects.append(
            RefuseAttempt(
                connection_id=given.connection_id,
                reason=f"there is no subtask {given.subtask} of {state.parallelism}",
            )
        )
        return
    if known.completion is not None:
        step.effects.append(
            AnswerFinished(
                connection_id=given.connection_id,
                attempt_number=known.completion.attempt_number,
            )
        )
        return
    task = (state.epoch, given.stage_run, given.task_attempt_id)
    if not given.is_current_run or state.phase is not Phase.RUNNING:
        _refuse_task(
            step, given, f"stage run {given.stage_run} is over, and the job is {state.phase.value}"
        )
        return
    if task <= known.newest_task:
        reason = (
            f"task {given.task_attempt_id} of stage run {given.stage_run} is not newer than task "
            f"{known.newest_task[2]} of stage run {known.newest_task[1]}, which has been an attempt"
        )
        _refuse_task(step, given, reason)
        return
    if known.attempt is not None:
        reason = f"fenced by the newer task {given.task_attempt_id}"
        fail_attempt(
            step,
            AttemptLost(
                subtask=given.subtask,
                attempt_number=known.attempt.attempt_number,
                reason=reason,
            ),
        )
        if step.state.phase is not Phase.RUNNING:
            step.effects.append(RefuseAttempt(connection_id=given.connection_id, reason=reason))
            return
    _start_attempt(step, given)


def _refuse_task(step: StepBuilder, given: AttemptRegistered, reason: str) -> None:
    newest = step.state.subtasks[given.subtask].next_attempt_number - 1
    refuse(step, "registration", given.subtask, max(newest, 0), reason)
    step.effects.append(RefuseAttempt(connection_id=given.connection_id, reason=reason))


def _start_attempt(step: StepBuilder, given: AttemptRegistered) -> None:
    known = step.state.subtasks[given.subtask]
    attempt_number = known.next_attempt_number
    step.add(
        Kind.ATTEMPT_STARTED,
        subtask=given.subtask,
        attempt_number=attempt_number,
        checkpoint_id=known.restore_from,
        attributes={
            "stage_run": str(given.stage_run),
            "spark_task_attempt_id": str(given.task_attempt_id),
            "spark_attempt_number": str(given.spark_attempt_number),
            "host": given.host,
            "pid": str(given.pid),
        },
    )
    step.effects.append(
        AcceptAttempt(
            connection_id=given.connection_id,
            subtask=given.subtask,
            attempt_number=attempt_number,
            epoch=step.state.epoch,
            restored_checkpoint=known.restore_from,
            states=states_of(step.state, given.subtask),
            skipped_splits=skipped_in_reader(step.state, given.subtask),
        )
    )
    step.call_all(
        lambda operator_id: CallAttemptReady(
            operator_id=operator_id, subtask=given.subtask, attempt_number=attempt_number
        )
    )


def lose(step: StepBuilder, subtask: int, attempt_number: int, reason: str) -> None:
    """Fail an attempt for what it has sent: that one alone (clause D2)."""
    fail_attempt(step, AttemptLost(subtask=subtask, attempt_number=attempt_number, reason=reason))


def is_lost_by_committables(
    step: StepBuilder, subtask: int, attempt_number: int, committables: Sequence[Committable]
) -> bool:
    """Fail the job if an operator hands over committables and has no coordinator to commit them (clause H4).

    The same operator would hand them over again, so that there is no restart.
    """
    operators = step.config.operators
    stray = next(
        (one.operator_id for one in committables if one.operator_id not in operators), None
    )
    if stray is None:
        return False
    count = sum(1 for one in committables if one.operator_id == stray)
    reason = (
        f"operator {stray!r} handed over {count} committables and has no coordinator, so that "
        "nothing would commit them: give its OperatorSpec a coordinator with a sink"
    )
    lost = AttemptLost(
        subtask=subtask,
        attempt_number=attempt_number,
        reason=reason,
        operator_id=stray,
        final="no coordinator",
    )
    fail_attempt(step, lost)
    return True

    # Pending checkpoints go on in a turn of their own: a coordinator that cannot do without what has failed here may
    # fail the job in this one, and then no checkpoint may hold the subtask as finished.


def attempt_lost(step: StepBuilder, given: AttemptLost) -> None:
    """An attempt is over: a local failover; unless it was over already."""
    state = step.state
    if state.attempt(given.subtask, given.attempt_number) is None:
        return
    if state.phase is not Phase.RUNNING:
        reason = f"the job is {state.phase.value}; {given.reason}"
        refuse(step, "failure", given.subtask, given.attempt_number, reason)
        return
    fail_attempt(step, given, is_counted=not given.is_with_another)


def fail_attempt(step: StepBuilder, given: AttemptLost, *, is_counted: bool = True) -> None:
    """The one turn of a local failover (clauses B2, C7, C9, E1): the end, the failed events, the aborts, the reset."""
    state = step.state
    attempt = state.attempt(given.subtask, given.attempt_number)
    assert attempt is not None, "a live attempt fails"
    is_used_up = is_counted and is_exhausted(step.config, state, step.clock_us)
    lost_up, lost_down = _lost(state, attempt)
    attributes = _at_what(state, given)
    attributes = (
        attributes | job_end.final_of(given.final) if given.final else marked(state, attributes)
    )
    if given.is_with_another:
        attributes["with_another"] = "true"
    reason = with_poison(state.job_id, given.reason, attributes)
    fail_events(step, given.subtask, given.reason)
    step.add(
        Kind.ATTEMPT_FAILED,
        operator_id=None,
        subtask=given.subtask,
        attempt_number=given.attempt_number,
        reason=reason,
        attributes=attributes,
    )
    step.effects.append(
        FenceAttempt(
            driver_id=attempt.driver_id,
            subtask=given.subtask,
            attempt_number=given.attempt_number,
            reason=given.reason,
            is_finished=False,
        )
    )
    if attempt.epoch == state.epoch:
        step.effects.append(
            KillTask(
                stage_run=attempt.stage_run,
                task_attempt_id=attempt.task_attempt_id,
                reason=given.reason,
            )
        )
    if is_used_up or given.final:
        job_end.fail_job(step, reason, where=_where(given), final=given.final)
        return
    if attempt.has_forgotten:
        fail_without_events(step, attempt, reason)
        return
    for checkpoint_id, _ in sorted_items(step.state.pending):
        checkpoints.abort(
            step, checkpoint_id, f"attempt {given.attempt_number} of subtask {given.subtask} failed"
        )
    last = step.state.last_checkpoint
    step.add(
        Kind.SUBTASK_RESET,
        subtask=given.subtask,
        checkpoint_id=last,
        attributes={"counted": "true" if is_counted else "false"},
    )
    if is_counted or given.is_with_another:
        delay_s = local_backoff_s(step.config, step.state, step.clock_us)
        step.effects.append(DelayNextAttempt(subtask=given.subtask, delay_s=delay_s))
    _tell_of_failure(step, given, reason, lost_up, lost_down)


def _where(given: AttemptLost) -> str:
    split = "" if given.split_id is None else f", which read split {given.split_id!r}"
    return f"attempt {given.attempt_number} of subtask {given.subtask}{split}"


def _tell_of_failure(
    step: StepBuilder,
    given: AttemptLost,
    reason: str,
    lost_up: tuple[UpEvent, ...],
    lost_down: tuple[DownEvent, ...],
) -> None:
    step.call_all(
        lambda operator_id: CallAttemptFailed(
            operator_id=operator_id,
            subtask=given.subtask,
            attempt_number=given.attempt_number,
            reason=reason,
        )
    )
    _tell_of_reset(step, given.subtask, lost_up, lost_down)


def _tell_of_reset(
    step: StepBuilder,
    subtask: int,
    lost_up: tuple[UpEvent, ...] = (),
    lost_down: tuple[DownEvent, ...] = (),
) -> None:
    last = step.state.last_checkpoint
    step.call_all(
        lambda operator_id: CallSubtaskReset(
            operator_id=operator_id,
            subtask=subtask,
            checkpoint_id=last,
            lost_up=tuple(one for one in lost_up if one.operator_id == operator_id),
            lost_down=tuple(one for one in lost_down if one.operator_id == operator_id),
        )
    )


def _at_what(state: JobState, given: AttemptLost) -> dict[str, str]:
    """The split and the event at which an attempt failed; an event sent again has another id, not another content."""
    attributes = {}
    if given.split_id is not None:
        attributes["split_id"] = given.split_id
    if given.event_id is not None:
        attributes["event_id"] = str(given.event_id)
        gateway = state.gateways.get((given.operator_id or "", given.subtask))
        event = None if gateway is None else gateway.unacked.get(given.event_id)
        if event is not None:
            attributes.update(attributes_of_event(event))
    return attributes


def _lost(
    state: JobState, attempt: AttemptState
) -> tuple[tuple[UpEvent, ...], tuple[DownEvent, ...]]:
    """What a failover to the last completed checkpoint loses (clause D5)."""
    last = state.last_checkpoint
    up = tuple(event for _, event in sorted_items(attempt.received) if event.last_barrier >= last)
    # What was sent before its cut was forgotten when it completed.
    return up, tuple(event for _, event in sorted_items(attempt.sent))


def stale_attempt(step: StepBuilder, subtask: int) -> None:
    """At a resume: what the dead driver had is a local failover."""
    attempt = step.state.subtasks[subtask].attempt
    if attempt is None:
        step.add(
            Kind.SUBTASK_RESET,
            subtask=subtask,
            checkpoint_id=step.state.last_checkpoint,
            attributes={"counted": "false"},
        )
        _tell_of_reset(step, subtask)
        return
    fail_attempt(
        step,
        AttemptLost(
            subtask=subtask,
            attempt_number=attempt.attempt_number,
            reason=f"its driver, of epoch {attempt.epoch}, is gone",
        ),
        is_counted=False,
    )


def fail_without_events(step: StepBuilder, attempt: AttemptState, reason: str) -> None:
    """Fail globally in place of a local failover: nobody can say any more which events it loses (clause D5)."""
    last = step.state.last_checkpoint
    step.calls.clear()  # as at every global failover, the old objects hear nothing more but `close`
    global_failover.fail_globally(
        step,
        FailGlobally(
            reason=f"attempt {attempt.attempt_number} of subtask {attempt.subtask} failed: {reason}; "
            f"all subtasks go back to checkpoint {last}, because the events since then had more than "
            f"{step.config.remembered_bytes_max} bytes and are forgotten",
            subtask=attempt.subtask,
        ),
    )
