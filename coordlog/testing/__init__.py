"""Test your own coordinator: no Kafka, no Spark, no real clock, no thread (docs/testing.md)."""

from __future__ import annotations

from .by_hand import (
    FakeAttempt,
    FakeClock,
    FakeRequest,
    FakeStage,
    HandDrivenJob,
    UnexpectedFailureError,
)
from .crash_sweep import CrashSweepError, SweepResult, crash_sweep
from .real_attempt import RealAttempt, RowsReader, silent_source
from .replay import ReplayError, ReplayResult, replay
from .replay_history import History

__all__ = [
    "CrashSweepError",
    "FakeAttempt",
    "FakeClock",
    "FakeRequest",
    "FakeStage",
    "HandDrivenJob",
    "History",
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
