"""What becomes of two coordinators' parts of a checkpoint, restores included: PC14, CC3, CC4, CP4 of the contract."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordlog.projections.job.state import PendingCheckpoint
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import NotingProvider, chain_of, prefix_of

TIMEOUT_S = 5.0


def two(*, is_cut_at_once: bool = False) -> tuple[NotingProvider, NotingProvider]:
    return (
        NotingProvider("source", is_cut_at_once=is_cut_at_once),
        NotingProvider("sink", is_cut_at_once=is_cut_at_once),
    )


def started(*providers: NotingProvider) -> tuple[HandDrivenJob, FakeAttempt]:
    job = HandDrivenJob(
        chain_of(*providers), options=RuntimeOptions(checkpoint_timeout_s=TIMEOUT_S)
    )
    return job, job.register(0)


def pending(job: HandDrivenJob, checkpoint_id: int = 1) -> PendingCheckpoint:
    return job.runtime.state.pending[checkpoint_id]


@pytest.mark.clause("E5")
@pytest.mark.flink("PC14")
def test_committables_of_an_aborted_checkpoint_are_abandoned() -> None:
    source, sink = two(is_cut_at_once=True)
    job, _attempt = started(source, sink)
    job.trigger()
    assert sorted(pending(job).cuts) == ["sink", "source"]

    job.advance(TIMEOUT_S + 1)

    state = job.runtime.state
    assert (dict(state.pending), dict(state.completed)) == ({}, {})
    job.crash()
    HandDrivenJob(job.chain, log=job.log, restore="rollback")
    assert source.said("restore") == [("restore", -1, None)]


@pytest.mark.clause("F10")
@pytest.mark.clause("H2")
@pytest.mark.flink("CC3")
def test_of_two_pending_checkpoints_one_aborts_and_the_newer_completes() -> None:
    source, sink = two(is_cut_at_once=True)
    job = HandDrivenJob(
        chain_of(source, sink),
        parallelism=2,
        configure=lambda config: replace(config, is_overlap_allowed=True),
    )
    attempts = job.register_all()
    assert (job.trigger(), job.trigger()) == (1, 2)
    attempts[0].ack_checkpoint(1)

    for one in attempts:
        one.ack_checkpoint(2)

    for provider in (source, sink):
        assert provider.said("aborted", "complete") == [("aborted", 1), ("complete", 2)]


@pytest.mark.clause("F5")
@pytest.mark.clause("F12")
@pytest.mark.flink("CC4")
def test_a_coordinator_that_never_cuts_holds_up_no_later_checkpoint() -> None:
    source, sink = two()
    source.is_cut_at_once = True
    job, attempt = started(source, sink)
    assert job.trigger() == 1
    assert job.trigger() is None

    job.advance(TIMEOUT_S - 1)
    assert job.trigger() is None
    job.advance(2)

    (aborted,) = job.history(Kind.CHECKPOINT_ABORTED)
    assert aborted.reason == "not whole after 5 s; missing: cuts of the coordinators sink"
    sink.is_cut_at_once = True
    assert job.trigger() == 2
    attempt.ack_checkpoint(2)
    assert job.runtime.state.last_checkpoint == 2


@pytest.mark.clause("F11")
@pytest.mark.flink("CP4")
def test_a_finished_operators_coordinator_keeps_its_checkpoint_state() -> None:
    """Adapted: elsewhere this state was dropped, and a restored coordinator began with nothing."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    for one in job.register_all():
        one.complete(states={"source": b"last"})

    checkpoint = job.runtime.state.completed[1]
    assert sorted(checkpoint.finished) == [0, 1]
    assert checkpoint.cuts["source"].state == b"state of 1"

    at = next(
        offset for offset, one in enumerate(job.history()) if one.kind is Kind.CHECKPOINT_COMPLETED
    )
    restored = prefix_of(job.log, job.log.start_offset() + at + 1)
    again = HandDrivenJob(job.chain, parallelism=2, log=restored, job_id="job", restore="rollback")
    assert provider.said("restore") == [("restore", 1, b"state of 1")]
    assert again.runtime.state.finished_count == 2
