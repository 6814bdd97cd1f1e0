"""Whoever is let in nowhere is counted in a record that is written anyway, and makes none."""

from __future__ import annotations

from coordlog.schemas.record import Kind, Record
from coordlog.testing import HandDrivenJob, replay
from jobs.quota import User, quota_chain


def records(job: HandDrivenJob) -> list[Record]:
    stored = job.log.read(0, job.log.high_watermark())
    return [one.record() for one in stored]


def told(job: HandDrivenJob) -> list[str | None]:
    """Of each checkpoint, in order."""
    return [
        one.attributes.get("refused_connections")
        for one in records(job)
        if one.kind is Kind.CHECKPOINT_TRIGGERED
    ]


def test_the_next_checkpoint_records_connections_refused_since_the_last() -> None:
    job = HandDrivenJob(quota_chain(), job_id="job")
    (attempt,) = job.register_all()
    user = User.of(attempt)

    def checkpoint(*, refused: int) -> None:
        job.runtime.refused_connections = refused
        before = len(records(job))
        assert job.trigger() is not None
        assert len(records(job)) > before
        user.handle_all()

    checkpoint(refused=0)
    checkpoint(refused=3)
    checkpoint(refused=3)
    checkpoint(refused=1_000_003)

    assert told(job) == [None, "3", None, "1000000"]
    assert replay(job.log, quota_chain()).turn_count > 4


def test_refusals_while_no_checkpoint_may_start_are_recorded_by_the_next() -> None:
    job = HandDrivenJob(quota_chain(), job_id="job")
    job.runtime.refused_connections = 2
    assert job.trigger() is None, "nobody has registered"
    before = len(records(job))
    job.runtime.refused_connections = 5
    assert len(records(job)) == before, "nothing is written for them"

    job.register_all()
    assert job.trigger() is not None

    assert told(job) == ["5"]
