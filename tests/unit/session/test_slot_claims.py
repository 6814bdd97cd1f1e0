"""Slots that a job has claimed, until Spark counts its tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordlog.api.chain import Chain
from coordlog.runtime.ports import StageEvents
from coordlog.spark_integration.driver import stage as stage_module
from coordlog.spark_integration.driver.slot_claims import SlotClaim, busy_slots, claimed_slots
from coordlog.spark_integration.driver.stage import SparkStage, claim_slots
from coordlog.spark_integration.task.task import TaskChain
from coordlog.spark_integration.wire.token import Token


class Context:
    """A context whose jobs have one stage of two tasks each, with the number of the job."""

    def __init__(self) -> None:
        self.running: dict[int, str] = {}
        self._jsc = self

    def sc(self) -> Context:
        return self

    def statusTracker(self) -> Context:  # noqa: N802, as Spark has it
        return self

    def getJobIdsForTag(self, tag: str) -> list[int]:  # noqa: N802, as above
        return [number for number, its_tag in self.running.items() if its_tag == tag]

    def getActiveStageIds(self) -> list[int]:  # noqa: N802, as above
        return list(self.running)

    def getJobInfo(self, number: int) -> object:  # noqa: N802, as above
        return SimpleNamespace(status="RUNNING", stageIds=[number])

    def getStageInfo(self, _number: int) -> object:  # noqa: N802, as above
        return SimpleNamespace(numTasks=2, numCompletedTasks=0)


def test_a_claim_ends_with_the_second_run_if_the_first_never_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slots of the job were counted twice until its end, and other jobs were refused."""
    context = Context()
    monkeypatch.setattr(TaskChain, "of", lambda _chain: None)
    monkeypatch.setattr(stage_module.SparkStage, "_start", lambda _self, run: run.ended.set())
    stage = SparkStage(
        cast("Any", SimpleNamespace(sparkContext=context)),
        chain=cast("Chain", None),
        job_id="job",
        driver_id="driver",
        parallelism=2,
        endpoint="",
        token=cast("Token", None),
        events=cast("StageEvents", None),
    )
    claim = stage.claim = SlotClaim(context, 2, first_tag="first")
    claim.take()
    try:
        stage.submit(1)
        assert claimed_slots(context) == 2
        stage.submit(2)
        assert claimed_slots(context) == 2
        context.running[7] = "coordlog-job-driver-2"
        assert (claimed_slots(context), busy_slots(context)) == (0, 2)
    finally:
        claim.release()
        stage.end()


def test_a_signal_behind_the_claim_leaves_no_slots_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    spark = cast("Any", SimpleNamespace(sparkContext=context))
    claim = SlotClaim(context, 2, first_tag="first")
    take = claim.take

    def interrupted() -> None:
        take()
        raise KeyboardInterrupt

    monkeypatch.setattr(stage_module, "_has_slots", lambda *_: True)
    monkeypatch.setattr(claim, "take", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            claim_slots(spark, claim)
        assert claimed_slots(context) == 2
    finally:
        claim.release()
    assert claimed_slots(context) == 0
