"""The end of a job: global failure, failed, finished, or its driver stopped (I3, L6: job end).

The same rule for every mode and every kind of start: `left_of` lists the open work, and `step.due` uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coordlog.kernel import checkpoints
from coordlog.kernel.builder import KernelConfig, StepBuilder
from coordlog.kernel.inputs import (
    DriverStops,
    FailGlobally,
    FinishJob,
    StopAsked,
)
from coordlog.kernel.outputs import (
    CancelStage,
    EndJob,
    FenceAttempt,
)
from coordlog.kernel.restart_policy import backoff_s, failures_in_window, is_exhausted
from coordlog.limits import REASON_CHARS_MAX
from coordlog.projections.job.grants import is_held_back, uncommitted
from coordlog.projections.job.skips import attributes_of_event, marked, poison_in, skip_command
from coordlog.projections.job.state import (
    JobState,
    Phase,
    sorted_values,
)
from coordlog.projections.splits.fold import SplitsState
from coordlog.schemas import builtin_types as builtin
from coordlog.schemas.record import Kind

__all__ = [
    "BEFORE",
    "DRIVER_ENDED",
    "NO_WORK",
    "UNFINISHED",
    "Left",
    "counted_if_dead",
    "end_of",
    "fail_globally",
    "fail_if_drivers_keep_ending",
    "fail_job",
    "failed_last_checkpoint",
    "final_of",
    "finish_job",
    "is_at_its_end",
    "is_committed_since",
    "left_of",
    "record_end_of_driver",
    "record_stop",
]

BEFORE: Final = "; before that: "
"""Separator of the reasons of a `JOB_FAILED`."""

DRIVER_ENDED: Final = "its driver ended without a stop, after "
"""Beginning of the reason of a job that fails because its drivers keep ending."""

UNFINISHED: Final = "its subtasks have finished, and "
"""Beginning of the reason of a job that fails by open work at its end."""


def fail_if_drivers_keep_ending(step: StepBuilder) -> bool:
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


def fail_job(
    step: StepBuilder,
    reason: str,
    *,
    where: str = "",
    final: str = "",
    failure: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Record `JOB_FAILED` with the chain of reasons; a later start is a rollback with a new count.

    Args:
        step: The step so far.
        reason: The newest reason.
        where: The attempt that failed, and the split that it read; empty if none.
        final: Reason why a restart cannot help; empty if the restart policy is used up.
        failure: Attributes of the last failure's record.
    """
    poison = poison_in(failure)
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
        attributes={**({"where": where} if where else {}), **final_of(final), **poison},
    )
    step.calls.clear()
    step.effects += [
        CancelStage(reason="the job has failed", backoff_s=None),
        EndJob(
            is_finished=False,
            reasons=chain,
            where=where,
            final=final,
            skip_command=skip_command(step.state.job_id, poison) if poison else "",
        ),
    ]


def _chain(newest: str, older: tuple[str, ...]) -> tuple[str, ...]:
    """The newest reason, then the earlier reasons that differ, newest first."""
    recorded = newest[:REASON_CHARS_MAX]
    return newest, *(reason for reason in dict.fromkeys(older) if reason != recorded)


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


_COMMITTED: Final = (
    "a part is committed, and no reset follows: the next start continues with the rest"
)
"""Why a batch job that fails in the middle of its commits is not restarted."""


def fail_globally(step: StepBuilder, failure: FailGlobally) -> None:
    """Record `GLOBAL_FAILURE`: until the next reset no message of attempts is handled. Several lead to one reset."""
    state = step.state
    if state.is_over:
        return
    is_committing = state.phase is Phase.ENDING and state.is_end_committed
    if is_committing and not uncommitted(state):
        # A batch job behind its last completion has no reset any more, only commits to settle.
        step.add(
            Kind.FACT,
            operator_id=failure.operator_id,
            reason=f"only settling is left: {failure.reason}",
            attributes={"closed": "true"},
            value=builtin.Refused(what="failure"),
        )
        return
    attributes = {} if failure.event is None else attributes_of_event(failure.event)
    attributes = (
        attributes | final_of(failure.final) if failure.final else marked(state, attributes)
    )
    step.add(
        Kind.GLOBAL_FAILURE,
        operator_id=failure.operator_id,
        subtask=failure.subtask,
        reason=failure.reason,
        attributes=attributes,
    )
    if state.phase is Phase.FAILING and not failure.final:
        return
    if failure.final or is_committing or is_exhausted(step.config, state, step.clock_us):
        final = failure.final or (_COMMITTED if is_committing else "")
        fail_job(step, failure.reason, final=final, failure=attributes)
        return
    step.effects.append(
        CancelStage(reason=failure.reason, backoff_s=backoff_s(step.config, state, step.clock_us))
    )


NO_WORK: Final[Mapping[str, int]] = MappingProxyType({})
"""No operator has an open call or timer. A request is never open between turns: it is answered in its own turn."""

_NO_RESTART: Final = "a restart would leave the same"
"""Why a job that cannot finish is not restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Open or lost work of a job whose last subtask has finished."""

    unsettled: int
    """Number of intents without an outcome, but those that wait for committables or for others of these."""
    committables: Mapping[str, int]
    """Number of committables that no intent covers, by operator, in the order of the chain."""
    open_work: Mapping[str, int]
    """Number of open calls and timers of these operators, by operator; operators without any are left out."""
    splits: Mapping[str, int]
    """Number of waiting splits, by source."""

    @property
    def is_nothing(self) -> bool:
        """Whether the job may finish."""
        return not (self.unsettled or self.committables or self.splits)

    @property
    def is_awaited(self) -> bool:
        """Whether an outcome, or a call or timer of an operator with committables, is still to come."""
        return bool(self.unsettled or self.open_work)

    def __str__(self) -> str:
        parts = [f"{self.unsettled} intents without an outcome"] if self.unsettled else []
        for operator_id, count in self.committables.items():
            work = self.open_work.get(operator_id, 0)
            parts.append(
                f"operator {operator_id!r} has {count} committables that no intent covers, and "
                f"{work or 'no'} open calls and timers"
            )
        parts += [
            f"source {source!r} has {count} splits waiting" for source, count in self.splits.items()
        ]
        advice = []
        if self.committables:
            advice.append("have its coordinator commit them once notified of the checkpoint")
        if self.splits:
            advice.append("read the splits, or skip them with `coordlog skip`")
        return "; ".join(parts) + (f": {', and '.join(advice)}" if advice else "")


def left_of(state: JobState, open_work: Mapping[str, int]) -> Left:
    """The open work of a job whose subtasks have all finished.

    Args:
        state: State of the job.
        open_work: Number of calls and timers in progress, by operator.
    """
    committables = uncommitted(state)
    splits: dict[str, int] = {}
    for operator_id in state.operators:
        projection = state.projections.get(operator_id)
        if isinstance(projection, SplitsState) and (count := projection.waiting_count):
            splits[operator_id] = count
    return Left(
        # One that is held back waits for committables, or for another intent: an outcome is not to come from it.
        unsettled=sum(not is_held_back(state, intent) for intent in sorted_values(state.intents)),
        committables=committables,
        open_work={
            operator_id: open_work[operator_id]
            for operator_id in committables
            if open_work.get(operator_id)
        },
        splits=splits,
    )


def is_committed_since(before: int, state: JobState, open_work: Mapping[str, int]) -> bool:
    """Whether a checkpoint after `before` has completed, and its commits are settled.

    Open are intents without an outcome, and intents to come of operators with an open call or timer (clause I3: the
    job's end waits too).
    """
    if state.last_checkpoint <= before or state.owed_complete is not None:
        return False
    return not left_of(state, open_work).is_awaited


def is_at_its_end(state: JobState) -> bool:
    """Whether no subtask, checkpoint or notification is open, but only work that `left_of` lists."""
    if state.phase is Phase.ENDING:
        return True
    return (
        state.finished_count == state.parallelism
        and state.phase is Phase.RUNNING
        and not state.is_batch
        and not state.is_restoring
        and checkpoints.last_is_final(state)
        and state.owed_complete is None
        and not state.pending
    )


def end_of(state: JobState, open_work: Mapping[str, int]) -> FinishJob | None:
    """Input that ends a job at its end: finished, or failed by its open work; None if the work is still to come."""
    left = left_of(state, open_work)
    if left.is_nothing:
        return FinishJob()
    return None if left.is_awaited else FinishJob(left=str(left), final=_NO_RESTART)


def failed_last_checkpoint(config: KernelConfig, state: JobState) -> FinishJob | None:
    """Failure of a stream if its last checkpoint was aborted as often as allowed (H5: last checkpoint), else None."""
    is_last = state.phase is Phase.RUNNING and state.finished_count == state.parallelism
    if not is_last or state.is_batch or state.aborts_in_a_row < config.final_checkpoints_max:
        return None
    return FinishJob(left=f"its last checkpoint was aborted {state.aborts_in_a_row} times in a row")
