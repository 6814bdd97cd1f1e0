"""The lifecycle of a job, as a table; any other transition is a fault of the driver that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coordlog.projections.job.state import Phase
from coordlog.schemas.record import Kind

__all__ = ["HANDLED_IN", "JOB"]

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
