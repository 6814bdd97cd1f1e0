"""Runs of the Spark stage: the newest run, whether it is running, and the meaning of its end. Mailbox only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from coordlog.kernel.inputs import FailGlobally
from coordlog.kernel.outputs import KillTask
from coordlog.projections.job.state import JobState, Phase, sorted_values
from coordlog.runtime.ports import Stage

__all__ = ["StageControl"]


class StageControl:
    """At most one stage run at a time; each has its own number, 1 first.

    Args:
        stage: Stage that runs them.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._run = 0
        self._is_cancelled = False
        self.is_running = False
        """Whether a run is submitted, or about to be, and has not ended."""

    def accepts(self, stage_run: int) -> bool:
        """Whether tasks of this run may become attempts."""
        return self.is_current(stage_run) and not self._is_cancelled

    def is_current(self, stage_run: int) -> bool:
        """Whether this run is the newest, and has not ended."""
        return self.is_running and stage_run == self._run

    def begin(self) -> Callable[[], None]:
        """Begin the next run. Returns its submission, to be called once the log has all records before it."""
        assert not self.is_running, "one run at a time"
        self.is_running = True
        self._run += 1
        return partial(self._stage.submit, self._run)

    def kill(self, effect: KillTask) -> None:
        """Kill a task, if its run has not ended."""
        if self.is_current(effect.stage_run):
            self._stage.kill_task(effect.stage_run, effect.task_attempt_id, effect.reason)

    def cancel(self, reason: str) -> None:
        """Cancel the present run, if there is one that is not cancelled yet."""
        if self.is_running and not self._is_cancelled:
            self._is_cancelled = True
            self._stage.cancel(self._run, reason)

    def ended(self, state: JobState, error: str | None, final: str) -> FailGlobally | None:
        """Note the end of the newest run. Returns the failure of the job if unfinished subtasks needed the run.

        Args:
            state: State of the job.
            error: Error of the run; None if its tasks have ended well.
            final: Reason why no other run can help; empty if one may.
        """
        is_cancelled, self.is_running, self._is_cancelled = self._is_cancelled, False, False
        unfinished = [
            subtask.subtask
            for subtask in sorted_values(state.subtasks)
            if subtask.completion is None
        ]
        if state.phase is not Phase.RUNNING or is_cancelled or not unfinished:
            return None
        cause = error or "all its tasks ended"
        reason = (
            f"Spark ended stage run {self._run} although the subtasks "
            f"{', '.join(map(str, unfinished))} have not completed: {cause}"
        )
        return FailGlobally(reason=cause if final else reason, final=final)
