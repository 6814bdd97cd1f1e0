"""Whether a driver of a job lives: asked before a command takes its place, or what it needs."""

from __future__ import annotations

from coordlog.errors import UpkeepError
from coordlog.projections.state import JobState
from coordlog.spark_integration.endpoint import probe_driver
from coordlog.spark_integration.token import TOKEN_VARIABLE, find_token

__all__ = ["driver_lives"]


def driver_lives(job: str, state: JobState, *, is_take_over: bool) -> bool:
    """Whether a driver of the job answers, and proves itself.

    Args:
        job: The job.
        state: What its log says.
        is_take_over: The user says that none does.

    Raises:
        UpkeepError: Nobody here can tell: there is no token to ask with.
    """
    endpoint, token = state.launch.get("endpoint"), find_token(job)
    if not endpoint or is_take_over:
        return False
    if token is not None:
        return probe_driver(endpoint, job_id=job, driver_id=state.driver_id, token=token)
    if state.is_over:
        return False
    raise UpkeepError(
        job,
        f"whether its driver at {endpoint} lives cannot be asked from here, without its token",
        f"run this where the driver ran, or give {TOKEN_VARIABLE}; where it is surely gone, "
        "--take-over",
    )
