"""Decisions about attempts: registering, events both ways, acks, failing and completing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coordlog.kernel import checkpoints, job_end
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
from coordlog.kernel.refusals import (
    refuse,
)
from coordlog.kernel.restart_policy import is_exhausted, is_of_one_cause, local_backoff_s
from coordlog.projections.job.checkpoints import states_of
from coordlog.projections.job.skips import (
    attributes_of_event,
    marked,
    skipped_in_reader,
)
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
    "fail_sender",
    "fail_stray_committables",
    "fail_without_events",
    "reset_stale_subtask",
]

_HOST_CHARS_MAX: Final = 255
"""Limit of a name in DNS, in characters."""


def attempt_registered(step: StepBuilder, registration: AttemptRegistered) -> None:
    """Start an attempt for the task. Refuse if its subtask has finished or a newer task is known (B4: newer wins)."""
    state, task = step.state, registration.message
    current = state.subtasks.get(task.subtask)
    if current is None:
        step.effects.append(
            RefuseAttempt(
                connection_id=registration.connection_id,
                reason=f"there is no subtask {task.subtask} of {state.parallelism}",
            )
        )
        return
    if current.completion is not None:
        step.effects.append(
            AnswerFinished(
                connection_id=registration.connection_id,
                attempt_number=current.completion.attempt_number,
            )
        )
        return
    task_order = (state.epoch, task.stage_run, task.task_attempt_id)
    if not registration.is_current_run or state.phase is not Phase.RUNNING:
        _refuse_task(
            step,
            registration,
            f"stage run {task.stage_run} is over, and the job is {state.phase.value}",
        )
        return
    if task_order <= current.newest_task:
        reason = (
            f"task {task.task_attempt_id} of stage run {task.stage_run} is not newer than task "
            f"{current.newest_task[2]} of stage run {current.newest_task[1]}, which registered before"
        )
        _refuse_task(step, registration, reason)
        return
    if current.attempt is not None:
        reason = f"fenced by the newer task {task.task_attempt_id}"
        fail_attempt(
            step,
            AttemptLost(
                subtask=task.subtask,
                attempt_number=current.attempt.attempt_number,
                reason=reason,
            ),
        )
        if step.state.phase is not Phase.RUNNING:
            step.effects.append(
                RefuseAttempt(connection_id=registration.connection_id, reason=reason)
            )
            return
    _start_attempt(step, registration)


def _refuse_task(step: StepBuilder, registration: AttemptRegistered, reason: str) -> None:
    subtask = registration.message.subtask
    newest = step.state.subtasks[subtask].next_attempt_number - 1
    refuse(step, "registration", subtask, max(newest, 0), reason)
    step.effects.append(RefuseAttempt(connection_id=registration.connection_id, reason=reason))


def _start_attempt(step: StepBuilder, registration: AttemptRegistered) -> None:
    task = registration.message
    current = step.state.subtasks[task.subtask]
    attempt_number = current.next_attempt_number
    step.add(
        Kind.ATTEMPT_STARTED,
        subtask=task.subtask,
        attempt_number=attempt_number,
        checkpoint_id=current.restore_from,
        attributes={
            "stage_run": str(task.stage_run),
            "spark_task_attempt_id": str(task.task_attempt_id),
            "spark_attempt_number": str(task.spark_attempt_number),
            "host": task.host[:_HOST_CHARS_MAX],
            "pid": str(task.pid),
        },
    )
    step.effects.append(
        AcceptAttempt(
            connection_id=registration.connection_id,
            subtask=task.subtask,
            attempt_number=attempt_number,
            epoch=step.state.epoch,
            restored_checkpoint=current.restore_from,
            states=states_of(step.state, task.subtask),
            skipped_splits=skipped_in_reader(step.state, task.subtask),
        )
    )
    step.call_all(
        lambda operator_id: CallAttemptReady(
            operator_id=operator_id, subtask=task.subtask, attempt_number=attempt_number
        )
    )


def fail_sender(step: StepBuilder, subtask: int, attempt_number: int, reason: str) -> None:
    """Fail only the attempt that sent an invalid message (D2: refusals fail alone)."""
    fail_attempt(step, AttemptLost(subtask=subtask, attempt_number=attempt_number, reason=reason))


def fail_stray_committables(
    step: StepBuilder, subtask: int, attempt_number: int, committables: Sequence[Committable]
) -> bool:
    """Fail the job if committables are of an operator without a coordinator (H4: committers need sinks).

    Returns whether it failed. There is no restart, because the operator would hand them over again.
    """
    operators = step.config.operators
    stray = next(
        (
            committable.operator_id
            for committable in committables
            if committable.operator_id not in operators
        ),
        None,
    )
    if stray is None:
        return False
    count = sum(1 for committable in committables if committable.operator_id == stray)
    reason = (
        f"operator {stray!r} handed over {count} committables and has no coordinator that could "
        "commit them: add a coordinator with a sink to its OperatorSpec"
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


def attempt_lost(step: StepBuilder, loss: AttemptLost) -> None:
    """Fail over a lost attempt locally. A repeated report of its end changes nothing."""
    state = step.state
    if state.attempt(loss.subtask, loss.attempt_number) is None:
        return
    if state.phase is not Phase.RUNNING:
        reason = f"the job is {state.phase.value}; {loss.reason}"
        refuse(step, "failure", loss.subtask, loss.attempt_number, reason)
        return
    fail_attempt(step, loss)


def fail_attempt(step: StepBuilder, loss: AttemptLost, *, is_counted: bool = True) -> None:
    """Fail over locally: failed events, the attempt's end, aborted checkpoints, the reset (E1: local failovers)."""
    state = step.state
    attempt = state.attempt(loss.subtask, loss.attempt_number)
    assert attempt is not None, "a live attempt fails"
    is_new = is_counted and not is_of_one_cause(state, attempt, step.clock_us)
    is_used_up = is_new and is_exhausted(step.config, state, step.clock_us)
    lost_up, lost_down = _lost_events(state, attempt)
    attributes = _place_of_failure(state, loss)
    attributes = (
        attributes | job_end.final_of(loss.final) if loss.final else marked(state, attributes)
    )
    if loss.is_with_another:
        attributes["with_another"] = "true"
    fail_events(step, loss.subtask, loss.reason)
    step.add(
        Kind.ATTEMPT_FAILED,
        operator_id=None,
        subtask=loss.subtask,
        attempt_number=loss.attempt_number,
        reason=loss.reason,
        attributes=attributes,
    )
    step.effects.append(
        FenceAttempt(
            driver_id=attempt.driver_id,
            subtask=loss.subtask,
            attempt_number=loss.attempt_number,
            reason=loss.reason,
            is_finished=False,
        )
    )
    if attempt.epoch == state.epoch:
        step.effects.append(
            KillTask(
                stage_run=attempt.stage_run,
                task_attempt_id=attempt.task_attempt_id,
                reason=loss.reason,
            )
        )
    if is_used_up or loss.final:
        where = _attempt_and_split(loss)
        job_end.fail_job(step, loss.reason, where=where, final=loss.final, failure=attributes)
        return
    if attempt.has_forgotten:
        fail_without_events(step, attempt, loss.reason)
        return
    for checkpoint_id, _ in sorted_items(step.state.pending):
        checkpoints.abort(
            step, checkpoint_id, f"attempt {loss.attempt_number} of subtask {loss.subtask} failed"
        )
    last = step.state.last_checkpoint
    step.add(
        Kind.SUBTASK_RESET,
        subtask=loss.subtask,
        checkpoint_id=last,
        attributes={"counted": "true" if is_new else "false"},
    )
    if is_counted:
        delay_s = local_backoff_s(step.config, step.state, step.clock_us)
        step.effects.append(DelayNextAttempt(subtask=loss.subtask, delay_s=delay_s))
    _call_attempt_failed(step, loss, lost_up, lost_down)


def _attempt_and_split(loss: AttemptLost) -> str:
    split = "" if loss.split_id is None else f", which read split {loss.split_id!r}"
    return f"attempt {loss.attempt_number} of subtask {loss.subtask}{split}"


def _call_attempt_failed(
    step: StepBuilder,
    loss: AttemptLost,
    lost_up: tuple[UpEvent, ...],
    lost_down: tuple[DownEvent, ...],
) -> None:
    step.call_all(
        lambda operator_id: CallAttemptFailed(
            operator_id=operator_id,
            subtask=loss.subtask,
            attempt_number=loss.attempt_number,
            reason=loss.reason,
        )
    )
    _call_subtask_reset(step, loss.subtask, lost_up, lost_down)


def _call_subtask_reset(
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
            lost_up=tuple(event for event in lost_up if event.operator_id == operator_id),
            lost_down=tuple(event for event in lost_down if event.operator_id == operator_id),
        )
    )


def _place_of_failure(state: JobState, loss: AttemptLost) -> dict[str, str]:
    """Attributes with the split and the event at which an attempt failed.

    The attributes include the event's content, because an event that is sent again has a new id.
    """
    attributes = {}
    if loss.split_id is not None:
        attributes["split_id"] = loss.split_id
    if loss.event_id is not None:
        attributes["event_id"] = str(loss.event_id)
        gateway = state.gateways.get((loss.operator_id or "", loss.subtask))
        event = None if gateway is None else gateway.unacked.get(loss.event_id)
        if event is not None:
            attributes.update(attributes_of_event(event))
    return attributes


def _lost_events(
    state: JobState, attempt: AttemptState
) -> tuple[tuple[UpEvent, ...], tuple[DownEvent, ...]]:
    """Events up and down that a reset to the last completed checkpoint loses, in send order (D5: lost events)."""
    last = state.last_checkpoint
    up = tuple(event for _, event in sorted_items(attempt.received) if event.last_barrier >= last)
    # `sent` has no events from before the checkpoint's cut: they were removed when it completed.
    return up, tuple(event for _, event in sorted_items(attempt.sent))


def reset_stale_subtask(step: StepBuilder, subtask: int) -> None:
    """At a resume, reset a subtask of the former driver; its attempt, if any, fails."""
    attempt = step.state.subtasks[subtask].attempt
    if attempt is None:
        step.add(
            Kind.SUBTASK_RESET,
            subtask=subtask,
            checkpoint_id=step.state.last_checkpoint,
            attributes={"counted": "false"},
        )
        _call_subtask_reset(step, subtask)
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
    """Fail globally, because the lost events of the attempt are forgotten (D5: lost events are listed)."""
    last = step.state.last_checkpoint
    step.calls.clear()  # at a global failover the old coordinators get no call but `close`
    job_end.fail_globally(
        step,
        FailGlobally(
            reason=f"attempt {attempt.attempt_number} of subtask {attempt.subtask} failed: {reason}; "
            f"all subtasks go back to checkpoint {last}, because the events since then exceeded "
            f"{step.config.remembered_bytes_max} bytes and are forgotten",
            subtask=attempt.subtask,
        ),
    )
