"""The lifecycle of a job, as a table; any other transition is a fault of the driver that wrote it.

The stop of a driver, its request and the end that follows, are facts of its epoch and not failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coordlog.projections.job.state import STOP_ASKED, STOPPED, Phase
from coordlog.schemas.builtin_types import DriverStopped, StopRequested
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record, RestoredBy

__all__ = ["HANDLED_IN", "JOB", "is_driver_stopped", "is_opened_again", "mark_of_stop"]

JOB: Final[Mapping[Phase, Mapping[Kind, Phase]]] = {
    Phase.STARTING: {
        Kind.COORDINATORS_STARTED: Phase.RUNNING,
        Kind.RESET_TO_CHECKPOINT: Phase.RUNNING,
        Kind.JOB_FAILED: Phase.FAILED,
        Kind.JOB_FINISHED: Phase.FINISHED,
    },
    Phase.RUNNING: {
        Kind.GLOBAL_FAILURE: Phase.FAILING,
        Kind.RESET_TO_CHECKPOINT: Phase.RUNNING,
        Kind.JOB_FAILED: Phase.FAILED,
        Kind.JOB_FINISHED: Phase.FINISHED,
    },
    Phase.FAILING: {
        Kind.GLOBAL_FAILURE: Phase.FAILING,
        Kind.RESET_TO_CHECKPOINT: Phase.RUNNING,
        Kind.JOB_FAILED: Phase.FAILED,
    },
    Phase.ENDING: {
        Kind.GLOBAL_FAILURE: Phase.FAILING,
        Kind.JOB_FAILED: Phase.FAILED,
        Kind.JOB_FINISHED: Phase.FINISHED,
    },
    Phase.FINISHED: {Kind.COORDINATORS_STARTED: Phase.RUNNING},
    Phase.FAILED: {},
}
"""Next phase by phase and kind of record. `EPOCH_STARTED` leads from every phase to STARTING, except from FINISHED and
FAILED: only the first turn of a new epoch leaves them, and FINISHED only if the job is opened again. The last
`SUBTASK_COMPLETED` of a batch job leads from RUNNING to ENDING."""

HANDLED_IN: Final[frozenset[Phase]] = frozenset({Phase.RUNNING})
"""Phases in which events and requests of attempts are handled; in other phases they are recorded only."""


_DONE: Final = payload_type_of(DriverStopped).key.partition("@")[0] + "@"
_ASKED: Final = payload_type_of(StopRequested).key.partition("@")[0] + "@"


def is_driver_stopped(record: Record) -> bool:
    """Whether the record is the end of the work of its driver."""
    return record.kind is Kind.FACT and (record.payload_type or "").startswith(_DONE)


def mark_of_stop(record: Record) -> str | None:
    """Mark of a stop in the job's state, requested or done, or None if the record is neither."""
    if is_driver_stopped(record):
        return STOPPED
    is_asked = record.kind is Kind.FACT and (record.payload_type or "").startswith(_ASKED)
    return STOP_ASKED if is_asked else None


def is_opened_again(record: Record) -> bool:
    """Whether the record is the `COORDINATORS_STARTED` of a further opening."""
    restore = record.attributes.get("restore")
    return record.kind is Kind.COORDINATORS_STARTED and restore == RestoredBy.AGAIN
