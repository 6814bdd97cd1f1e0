"""Whether the driver of a reign lives: asked over its endpoint, with what may be its token."""

from __future__ import annotations

from enum import Enum

from .endpoint import DriverHeard, hear_driver
from .token import find_tokens

__all__ = ["Liveness", "driver_liveness"]


class Liveness(Enum):
    """What can be told of a driver from here."""

    LIVES = "lives"
    """It answers, and proves itself."""
    UNPROVED = "unproved"
    """Something answers under its name, and no token that is here proves it."""
    UNKNOWN = "unknown"
    """Nothing answers, but no token is here: perhaps it ran elsewhere, where it can be reached."""
    GONE = "gone"
    """Nothing answers."""

    @property
    def answers(self) -> bool:
        """Whether something answers under its name, proved or not: its place is taken only by who says so."""
        return self in (Liveness.LIVES, Liveness.UNPROVED)


def driver_liveness(job_id: str, *, endpoint: str | None, driver_id: str) -> Liveness:
    """What is known of this very driver, within `TAKE_OVER_PROBE_S`.

    Args:
        job_id: The job.
        endpoint: Where it listens, as its `EPOCH_STARTED` says; empty or None where nobody does.
        driver_id: The driver.

    Raises:
        OptionError: What is there for a token is none.
    """
    if not endpoint:
        return Liveness.GONE
    tokens = list(find_tokens(job_id, endpoint=endpoint))
    match hear_driver(endpoint, job_id=job_id, driver_id=driver_id, tokens=tokens):
        case DriverHeard.DRIVER:
            return Liveness.LIVES
        case DriverHeard.UNPROVED:
            return Liveness.UNPROVED
        case DriverHeard.NOTHING:
            return Liveness.GONE if tokens else Liveness.UNKNOWN
