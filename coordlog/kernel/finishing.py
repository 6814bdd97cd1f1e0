"""The end of a job whose subtasks have all finished: whether it may end, and if not, its open work (I3, L6: job end).

The same rule for every mode and every kind of start: `left_of` lists the open work, and `step.due` uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coordlog.kernel import checkpoints
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import FinishJob
from coordlog.projections.job.grants import uncommitted
from coordlog.projections.job.state import JobState, Phase
from coordlog.projections.splits.fold import SplitsState

__all__ = ["NO_WORK", "Left", "end_of", "is_at_its_end", "last_given_up", "left_of"]

NO_WORK: Final[Mapping[str, int]] = MappingProxyType({})
"""No operator has an open call or timer. A request is never open between turns: it is answered in its own turn."""

_NO_RESTART: Final = "a restart would leave the same"
"""Why a job that cannot finish is not restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Open or lost work of a job whose last subtask has finished."""

    unsettled: int
    """Number of intents without an outcome."""
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
            advice.append("read the splits, or skip them by name")
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
        unsettled=len(state.intents),
        committables=committables,
        open_work={
            operator_id: open_work[operator_id]
            for operator_id in committables
            if open_work.get(operator_id)
        },
        splits=splits,
    )


def is_at_its_end(state: JobState) -> bool:
    """Whether no subtask, checkpoint or notification is open, but only work that `left_of` lists."""
    if state.phase is Phase.ENDING:
        return True
    return (
        state.phase is Phase.RUNNING
        and not state.is_batch
        and not state.is_restoring
        and state.finished_count == state.parallelism
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


def last_given_up(config: KernelConfig, state: JobState) -> FinishJob | None:
    """Failure of a stream if its last checkpoint was aborted as often as allowed (H5: last checkpoint), else None."""
    is_last = state.phase is Phase.RUNNING and state.finished_count == state.parallelism
    if not is_last or state.is_batch or state.aborts_in_a_row < config.final_checkpoints_max:
        return None
    return FinishJob(left=f"its last checkpoint was aborted {state.aborts_in_a_row} times in a row")
