"""Health of a job, from the verdict on it: what `/healthz` and `coordlog health` report."""

from __future__ import annotations

from dataclasses import dataclass

from coordlog.projections.inspection.verdict import Verdict, VerdictState

__all__ = ["Health", "health_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a job is healthy, and why."""

    is_healthy: bool
    state: str
    """Value of `VerdictState`, or `starting` before the driver has taken over."""
    reason: str
    since_us: int | None = None
    """Begin of the state; microseconds since 1970, UTC."""


def health_of(verdict: Verdict | None) -> Health:
    """The health by a verdict: stuck and failed jobs are unhealthy. None: the driver restores the job."""
    if verdict is None:
        return Health(is_healthy=True, state="starting", reason="the driver restores the job")
    return Health(
        is_healthy=verdict.state not in (VerdictState.STUCK, VerdictState.FAILED),
        state=verdict.state.value,
        reason=verdict.reason,
        since_us=verdict.since_us,
    )
