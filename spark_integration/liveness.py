"""Whether the driver of a reign lives: asked over its endpoint, with the job's token."""

from __future__ import annotations

from .endpoint import probe_driver
from .token import find_token

__all__ = ["does_driver_live"]


def does_driver_live(job_id: str, *, endpoint: str | None, driver_id: str) -> bool | None:
    """Whether this very driver answers and proves itself, within `TAKE_OVER_PROBE_S`.

    Args:
        job_id: The job.
        endpoint: Where it listens, as its `EPOCH_STARTED` says; empty or None where nobody does.
        driver_id: The driver.

    Returns:
        None where there is no token here to ask with: whether it lives cannot be told.

    Raises:
        OptionError: What is there for a token is none.
    """
    token = find_token(job_id, endpoint=endpoint)
    if not endpoint:
        return False
    if token is None:
        return None
    return probe_driver(endpoint, job_id=job_id, driver_id=driver_id, token=token)
