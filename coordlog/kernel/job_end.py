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
"""Between two reasons of a `JOB_FAILED`."""

DRIVER_ENDED: Final = "its driver ended without a stop, after "
"""Begins the reason of a job that fails because its drivers keep ending."""

UNFINISHED: Final = "its subtasks have finished, and "
"""Begins the reason of a job that fails by what is left at its end."""


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
