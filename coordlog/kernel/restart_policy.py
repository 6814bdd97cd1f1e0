"""The one restart policy over local and global failovers (clause E2), by the records' own timestamps."""

from __future__ import annotations

from coordlog.kernel.builder import KernelConfig
from coordlog.projections.job.state import JobState

__all__ = ["backoff_s", "failures_in_window", "final_backoff_s", "is_exhausted", "local_backoff_s"]

_US = 1_000_000
_DOUBLINGS_MAX = 30
"""Any pause has reached its limit by then, and a float can still hold the product."""


def failures_in_window(config: KernelConfig, state: JobState, now_us: int) -> int:
    """How many failovers the policy counts at `now_us`, a reading of the clock."""
    window_us = int(config.restart_window_s * _US)
    return sum(1 for at in state.failures_us if abs(now_us - at) < window_us)


def is_exhausted(config: KernelConfig, state: JobState, now_us: int) -> bool:
    """Whether one more failover is more than the policy allows."""
    return failures_in_window(config, state, now_us) >= config.restarts_max


def backoff_s(config: KernelConfig, state: JobState, now_us: int) -> float:
    """How long the next global failover waits: doubles with each failure in the window."""
    return _doubled_s(config, failures_in_window(config, state, now_us))


def local_backoff_s(config: KernelConfig, state: JobState, now_us: int) -> float:
    """How long the next attempt of a failed subtask waits: not at all after the first failure in the window.

    `state` counts this failure already.
    """
    earlier = failures_in_window(config, state, now_us) - 1
    return 0.0 if earlier < 1 else _doubled_s(config, earlier - 1)


def final_backoff_s(config: KernelConfig, state: JobState) -> float:
    """How long the next try of a stream's last checkpoint waits: doubles with each try that was aborted (clause H5)."""
    return _doubled_s(config, max(state.aborts_in_a_row - 1, 0))


def _doubled_s(config: KernelConfig, doublings: int) -> float:
    pause_s = config.restart_backoff_s * 2 ** min(doublings, _DOUBLINGS_MAX)
    return float(min(pause_s, config.restart_backoff_max_s))
