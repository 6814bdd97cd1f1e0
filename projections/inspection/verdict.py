"""The verdict on a job at a moment: whether it progresses, since when, and what it waits for."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from coordlog.limits import (
    VERDICT_APPEND_SLOW_S,
    VERDICT_APPEND_STUCK_S,
    VERDICT_COMMIT_SLOW_S,
    VERDICT_COMMIT_STUCK_S,
    VERDICT_FAILURES,
    VERDICT_SILENCE_SLOW_S,
    VERDICT_SLOW_INTERVALS,
    VERDICT_SLOW_S,
    VERDICT_STUCK_INTERVALS,
    VERDICT_STUCK_S,
    VERDICT_SUBTASK_SLOW_S,
    VERDICT_SUBTASK_STUCK_S,
)

__all__ = ["Thresholds", "Verdict", "VerdictState", "Waiting", "WaitingFor"]


class VerdictState(enum.Enum):
    """State of a job in a verdict."""

    NEW = "new"
    """The log has no record that counts."""
    PROGRESSING = "progressing"
    SLOW = "slow"
    """The job waits longer than usual."""
    STUCK = "stuck"
    """The job waits so long that a person should act."""
    STOPPED = "stopped"
    """Its driver was stopped in order; another one can continue."""
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether no driver works on the job, by the log."""
        return self in (VerdictState.STOPPED, VerdictState.FINISHED, VerdictState.FAILED)


class WaitingFor(enum.Enum):
    """Kind of thing that a job waits for."""

    DRIVER = "driver"
    """The start of its driver, or the answer of a driver that is gone."""
    SUBTASK = "subtask"
    """Attempts of subtasks that have none."""
    CHECKPOINT = "checkpoint"
    APPEND = "append"
    """Records that the driver has appended, and the log has not acknowledged."""
    COMMIT = "commit"
    RECORD = "record"
    """Any record at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One thing that a job waits for."""

    kind: WaitingFor
    since_us: int
    """Begin of the wait; microseconds since 1970, UTC."""
    checkpoint_id: int | None = None
    subtasks: tuple[int, ...] = ()
    """Subtasks without an attempt, or without an ack of the checkpoint; ascending."""
    operators: tuple[str, ...] = ()
    """Operators without a cut, or without the outcome of their commit."""
    sequence: int | None = None
    """Sequence of the intent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a job at a moment."""

    state: VerdictState
    since_us: int
    """Begin of the state; microseconds since 1970, UTC. Of a slow or stuck job, the time of a threshold."""
    reason: str
    """One sentence for people, without its full stop."""
    wait_since_us: int | None = None
    """Begin of the wait that makes the job slow or stuck; None in another state, or if failures do."""
    waiting_for: tuple[Waiting, ...] = ()
    """All that the job waits for at the moment, the longest wait first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Waits from which a job is slow, and stuck; seconds, except the intervals and `failures`."""

    slow_intervals: float = VERDICT_SLOW_INTERVALS
    """Checkpoint intervals without a completed checkpoint; never less than `slow_s`."""
    stuck_intervals: float = VERDICT_STUCK_INTERVALS
    """As `slow_intervals`; never less than `stuck_s`."""
    slow_s: float = VERDICT_SLOW_S
    stuck_s: float = VERDICT_STUCK_S
    subtask_slow_s: float = VERDICT_SUBTASK_SLOW_S
    subtask_stuck_s: float = VERDICT_SUBTASK_STUCK_S
    append_slow_s: float = VERDICT_APPEND_SLOW_S
    append_stuck_s: float = VERDICT_APPEND_STUCK_S
    commit_slow_s: float = VERDICT_COMMIT_SLOW_S
    commit_stuck_s: float = VERDICT_COMMIT_STUCK_S
    silence_slow_s: float = VERDICT_SILENCE_SLOW_S
    """Time without any record, if the job has no checkpoint interval."""
    failures: int = VERDICT_FAILURES
    """Failures without a completed checkpoint between them from which a job is slow; those of 2 s count as one."""

    def longest_s(self, interval_s: float | None) -> float:
        """Seconds after which every wait makes a job stuck, with checkpoints at this interval."""
        checkpoint_s = max(self.stuck_s, self.stuck_intervals * (interval_s or 0))
        return max(checkpoint_s, self.subtask_stuck_s, self.append_stuck_s, self.commit_stuck_s)
