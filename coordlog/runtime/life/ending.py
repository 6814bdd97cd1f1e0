"""Waits of a runtime at a job's end, each with a time limit: for the last checkpoint, and for late commits.

Mailbox only. `watch` is called after every input; the rest happens by timers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import FinishJob, Input
from coordlog.kernel.job_end import NO_WORK, failed_last_checkpoint, is_at_its_end, left_of
from coordlog.kernel.restart_policy import final_backoff_s
from coordlog.kernel.step import due, is_final_owed
from coordlog.limits import COMMIT_WAIT_S
from coordlog.projections.job.state import JobState
from coordlog.runtime.timers import Timers

__all__ = ["Ending", "EndingPort"]


class EndingPort(Protocol):
    """The runtime, as far as a job's end needs it."""

    @property
    def state(self) -> JobState:
        """The present job state, un-released turns included."""
        ...

    def handle(self, input_: Input) -> None:
        """Begin a turn."""
        ...

    def trigger_checkpoint(self) -> int | None:
        """Trigger a checkpoint, if one may start."""
        ...


class Ending:
    """Waits of one driver at the end of its job."""

    def __init__(
        self,
        *,
        runtime: EndingPort,
        config: KernelConfig,
        timers: Timers,
        open_work: Callable[[], Mapping[str, int]],
    ) -> None:
        self._runtime, self._config, self._timers = runtime, config, timers
        self._open_work = open_work
        self._is_checkpoint_awaited = False
        self._is_commit_awaited = False

    def following(self) -> Input | None:
        """Input that is due before any further message, or None."""
        state = self._runtime.state
        work = self._open_work() if is_at_its_end(state) else NO_WORK
        return due(state, work) or failed_last_checkpoint(self._config, state)

    def watch(self) -> None:
        """Begin the waits that the present state needs."""
        self._await_checkpoint()
        self._await_commits()

    def _await_checkpoint(self) -> None:
        """Retry the last checkpoint of a stream after an abort (clause H5: with growing pauses)."""
        state = self._runtime.state
        if self._is_checkpoint_awaited or not is_final_owed(state):
            return
        self._is_checkpoint_awaited = True

        def retry() -> None:
            self._is_checkpoint_awaited = False
            self._runtime.trigger_checkpoint()

        self._timers.call_later(final_backoff_s(self._config, state), retry)

    def _await_commits(self) -> None:
        """Wait for coordinators' commits after all subtasks have finished (clause I3: results are committed)."""
        state = self._runtime.state
        if self._is_commit_awaited or not is_at_its_end(state):
            return
        if not left_of(state, self._open_work()).open_work:
            return
        self._is_commit_awaited = True

        def give_up() -> None:
            self._is_commit_awaited = False
            state_now = self._runtime.state
            remaining = left_of(state_now, self._open_work())
            if is_at_its_end(state_now) and remaining.open_work:
                self._runtime.handle(FinishJob(left=f"after {COMMIT_WAIT_S:g} s {remaining}"))

        self._timers.call_later(COMMIT_WAIT_S, give_up)
