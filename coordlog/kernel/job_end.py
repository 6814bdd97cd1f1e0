"""The end of a job: failed, finished, or its driver stopped."""

from __future__ import annotations

from typing import Final

from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import (
    DriverStops,
    FinishJob,
    StopAsked,
)
from coordlog.kernel.outputs import (
    CancelStage,
    EndJob,
    FenceAttempt,
)
from coordlog.kernel.poison import without_poison
from coordlog.kernel.restart_policy import failures_in_window
from coordlog.limits import REASON_CHARS_MAX
from coordlog.projections.job.state import JobState, sorted_values
from coordlog.schemas import builtin_types as builtin
from coordlog.schemas.record import Kind

__all__ = [
    "BEFORE",
    "DRIVER_ENDED",
    "UNFINISHED",
    "counted_if_dead",
    "fail_job",
    "final_of",
    "finish_job",
    "is_given_up",
    "record_end_of_driver",
    "record_stop",
]


BEFORE: Final = "; before that: "
"""Separator of the reasons of a `JOB_FAILED`."""

DRIVER_ENDED: Final = "its driver ended without a stop, after "
"""Beginning of the reason of a job that fails because its drivers keep ending."""

UNFINISHED: Final = "its subtasks have finished, and "
"""Beginning of the reason of a job that fails by open work at its end."""


def is_given_up(step: StepBuilder) -> bool:
    """Fail a job whose drivers keep ending without a stop, but not at the first such end; returns whether it failed."""
    config, state = step.config, step.state
    count = failures_in_window(config, state, step.clock_us)
    if not state.is_former_dead or count < max(config.restarts_max, 1):
        return False
    fail_job(
        step,
        f"{DRIVER_ENDED}{count} failures and such ends within "
        f"{config.restart_window_s:g} s: find out why the drivers end (memory, the machine, Spark's "
        "session), then start the job again, with a new count",
    )
    return True


def counted_if_dead(state: JobState) -> dict[str, str]:
    """Attributes of a `COORDINATORS_STARTED` that counts the end of a former driver without a stop."""
    return {"counted": "true"} if state.is_former_dead else {}


def final_of(final: str) -> dict[str, str]:
    """Attributes of a failure's record, if `final`, the reason why a restart cannot help, is not empty."""
    return {"final": final} if final else {}


def fail_job(step: StepBuilder, reason: str, *, where: str = "", final: str = "") -> None:
    """Record `JOB_FAILED` with the chain of reasons; a later start is a rollback with a new count.

    Args:
        step: The step so far.
        reason: The newest reason.
        where: The attempt that failed, and the split that it read; empty if none.
        final: Reason why a restart cannot help; empty if the restart policy is used up.
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
        reason=BEFORE.join((newest, *(text[:each] for text in older))),
        attributes={**({"where": where} if where else {}), **final_of(final)},
    )
    step.calls.clear()
    step.effects += [
        CancelStage(reason="the job has failed", backoff_s=None),
        EndJob(is_finished=False, reasons=chain, where=where, final=final),
    ]


def _chain(newest: str, older: tuple[str, ...]) -> tuple[str, ...]:
    """The newest reason, then the earlier reasons that differ, newest first."""
    seen = {without_poison(newest)}
    chain = [newest]
    for reason in map(without_poison, older):
        if reason not in seen:
            seen.add(reason)
            chain.append(reason)
    return tuple(chain)


def finish_job(step: StepBuilder, end: FinishJob) -> None:
    """Record `JOB_FINISHED` if no work is open, else `JOB_FAILED` with the open work (I3, L6: job end)."""
    if end.left:
        fail_job(step, UNFINISHED + end.left, final=end.final)
        return
    step.add(Kind.JOB_FINISHED)
    step.effects.append(EndJob(is_finished=True, reasons=()))


def record_stop(step: StepBuilder, stop: StopAsked) -> None:
    """Record that a stop of the driver was requested, as the reason of later records."""
    step.add(
        Kind.FACT,
        reason=f"stop requested by {stop.by}",
        value=builtin.StopRequested(
            by=stop.by, with_checkpoint=stop.with_checkpoint, is_at_once=stop.is_at_once
        ),
    )


def record_end_of_driver(step: StepBuilder, stop: DriverStops) -> None:
    """Record that the driver has stopped: the proof that it and its attempts are over."""
    reason = f"stopped by {stop.by}"
    step.add(Kind.FACT, reason=reason, value=builtin.DriverStopped(by=stop.by))
