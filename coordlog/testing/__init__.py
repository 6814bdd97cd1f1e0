"""Run a coordinator in memory: no Kafka, no Spark, no real clock, no thread."""

from __future__ import annotations

from .by_hand import FakeAttempt, FakeClock, FakeStage, HandDrivenJob

__all__ = ["FakeAttempt", "FakeClock", "FakeStage", "HandDrivenJob"]
