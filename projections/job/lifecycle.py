"""The lifecycles of a job and of a checkpoint, as tables; the rest is a fault of the driver that wrote it."""

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
"""Phase, record, next phase. `EPOCH_STARTED` leads from every phase to STARTING (a finished or failed job apart, which
only a new epoch's first turn leaves; a finished one only where it is opened again), and a batch job's last
`SUBTASK_COMPLETED` from RUNNING to ENDING."""

HANDLED_IN: Final[frozenset[Phase]] = frozenset({Phase.RUNNING})
"""Where what attempts send is handled; elsewhere it is recorded only."""
