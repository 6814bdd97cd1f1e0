"""Test your own coordinator: no Kafka, no Spark, no real clock, no thread (docs/testing.md).

May import everything but `cli` and `spark_integration`.
Read first: `driven_job.HandDrivenJob`.
"""

from __future__ import annotations

from coordlog.messages import DeliverEvent
from coordlog.testing.crash_sweep import CrashSweepError, SweepResult, crash_sweep
from coordlog.testing.driven_job import (
    FakeAttempt,
    FakeClock,
    FakeRequest,
    FakeStage,
    HandDrivenJob,
    UnexpectedFailureError,
)
from coordlog.testing.real_attempt import RealAttempt, RowsReader, silent_source
from coordlog.testing.replay import ReplayError, ReplayResult, replay

__all__ = [
    "CrashSweepError",
    "DeliverEvent",
    "FakeAttempt",
    "FakeClock",
    "FakeRequest",
    "FakeStage",
    "HandDrivenJob",
    "RealAttempt",
    "ReplayError",
    "ReplayResult",
    "RowsReader",
    "SweepResult",
    "UnexpectedFailureError",
    "crash_sweep",
    "replay",
    "silent_source",
]
