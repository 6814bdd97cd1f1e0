"""The one restart policy over local and global failovers (E2: bounded restarts), by the records' own timestamps."""

from __future__ import annotations

from coordlog.kernel.builder import KernelConfig
from coordlog.limits import LOST_TOGETHER_S
from coordlog.projections.job.state import AttemptState, JobState

__all__ = [
    "backoff_s",
    "failures_in_window",
    "final_backoff_s",
    "is_exhausted",
    "is_of_one_cause",
    "local_backoff_s",
]

_US = 1_000_000
_DOUBLINGS_MAX = 30
"""Number of doublings after which any pause has reached its limit; a float can still hold the product."""


def failures_in_window(config: KernelConfig, state: JobState, now_us: int) -> int:
    """Number of failovers that the policy counts at `now_us`, a reading of the clock."""
    window_us = int(config.restart_window_s * _US)
    return sum(1 for at in state.failures_us if abs(now_us - at) < window_us)


def is_exhausted(config: KernelConfig, state: JobState, now_us: int) -> bool:
    """Whether one more failover is more than the policy allows."""
    return failures_in_window(config, state, now_us) >= config.restarts_max


def is_of_one_cause(state: JobState, attempt: AttemptState, now_us: int) -> bool:
    """Whether an attempt fails together with the newest counted failure, so that both count as one.

    A machine that is lost, or a store that rejects every request for a second, fails many attempts at once: those that
    had begun before the first failure. A later attempt has its own failure.
    """
    return (
        attempt.started_sequence < state.failure_sequence
        and bool(state.failures_us)
        and abs(now_us - state.failures_us[-1]) <= LOST_TOGETHER_S * _US
    )


def backoff_s(config: KernelConfig, state: JobState, now_us: int) -> float:
    """Pause before the next global failover: doubles with each failure in the window."""
    return _doubled_s(config, failures_in_window(config, state, now_us))


def local_backoff_s(config: KernelConfig, state: JobState, now_us: int) -> float:
    """Pause before the next attempt of a failed subtask: 0 after the first failure in the window.

    `state` counts this failure already.
    """
    earlier = failures_in_window(config, state, now_us) - 1
    return 0.0 if earlier < 1 else _doubled_s(config, earlier - 1)


def final_backoff_s(config: KernelConfig, state: JobState) -> float:
    """Pause before the next try of a stream's last checkpoint: doubles with each aborted try (H5: last checkpoint)."""
    return _doubled_s(config, max(state.aborts_in_a_row - 1, 0))


def _doubled_s(config: KernelConfig, doublings: int) -> float:
    pause_s = config.restart_backoff_s * 2 ** min(doublings, _DOUBLINGS_MAX)
    return float(min(pause_s, config.restart_backoff_max_s))
