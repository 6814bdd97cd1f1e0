"""Times of the failures that the restart policy counts, by the clock of the driver that recorded them.

Times of records never decrease. If an earlier clock was ahead they stay constant until it is passed, and failures of
many hours would appear simultaneous. During that time, records of failures also hold the reading of the clock.
"""

from __future__ import annotations

from typing import Final

from coordlog.projections.job.state import JobState
from coordlog.schemas.evolution import evolve
from coordlog.schemas.record import Kind, Record

__all__ = ["CLOCK_US", "FAILURES", "failure_us", "with_failure"]

CLOCK_US: Final = "clock_us"
"""Attribute with the reading of the driver's clock, microseconds since 1970, UTC; absent if it is the record's time."""

FAILURES: Final[frozenset[Kind]] = frozenset(
    {
        Kind.ATTEMPT_FAILED,
        Kind.GLOBAL_FAILURE,
        Kind.SUBTASK_RESET,
        Kind.RESET_TO_CHECKPOINT,
        Kind.COORDINATORS_STARTED,
        Kind.JOB_FAILED,
    }
)
"""Kinds of the records that the policy counts, and of those whose turns use the policy."""

_COUNT_MAX: Final = 1_000
"""Failures whose times are kept: far more than any policy counts."""


def failure_us(record: Record) -> int:
    """Time of a failure by its driver's clock: microseconds since 1970, UTC."""
    return int(record.attributes.get(CLOCK_US, record.timestamp_us))


def with_failure(state: JobState, record: Record, *, is_counted_by_default: bool) -> JobState:
    """The state with the failover of this record, if the restart policy counts it."""
    default = "true" if is_counted_by_default else "false"
    if record.attributes.get("counted", default) != "true":
        return state
    assert record.sequence is not None, "records of failovers are folded by sequence"
    return evolve(
        state,
        failures_us=(*state.failures_us, failure_us(record))[-_COUNT_MAX:],
        failure_sequence=record.sequence,
    )
