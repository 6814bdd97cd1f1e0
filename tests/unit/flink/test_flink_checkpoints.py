"""A checkpoint's parts and its end: the scenarios PC, CC and CP4 of the contract."""

from __future__ import annotations

import pytest

from coordlog.kernel import checkpoints
from coordlog.kernel.inputs import CompleteCheckpoint
from coordlog.projections.job.state import Phase
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import HANDLED, Noting, NotingProvider, chain_of, delivered, inside


def late(operator_id: str) -> NotingProvider:
    """Its coordinators make their cuts when a test says so."""
    return NotingProvider(operator_id, is_cut_at_once=False)


def started(*providers: NotingProvider) -> tuple[HandDrivenJob, FakeAttempt]:
    job = HandDrivenJob(chain_of(*providers))
    return job, job.register(0)


@pytest.mark.flink("PC10")
def test_a_new_checkpoint_has_a_part_of_no_coordinator() -> None:
    source, sink = late("source"), late("sink")
    job, attempt = started(source, sink)
    job.trigger()

    pending = job.runtime.state.pending[1]
    assert len(pending.cuts) == 0
    assert pending.missing_coordinators(job.runtime.state.operators) == ("source", "sink")
    assert delivered(job, attempt) == []


@pytest.mark.flink("PC11")
@pytest.mark.clause("F9")
def test_a_part_without_bytes_counts_like_one_with_bytes() -> None:
    source, sink = NotingProvider("source", projection=HANDLED), late("sink")
    job, attempt = started(source, sink)
    job.trigger()
    assert sorted(job.runtime.state.pending[1].cuts) == ["source"]
    assert delivered(job, attempt) == []
    inside(attempt, sink, lambda c: c.results[1].complete(b"kept"))
    assert delivered(job, attempt) == ["|1"]
    attempt.ack_checkpoint(1)

    cuts = job.runtime.state.completed[1].cuts
    assert (cuts["source"].state, cuts["sink"].state) == (None, b"kept")


@pytest.mark.flink("PC12")
@pytest.mark.clause("F9")
def test_a_second_part_of_the_same_coordinator_changes_nothing() -> None:
    source, sink = late("source"), late("sink")
    job, attempt = started(source, sink)
    job.trigger()

    def twice(coordinator: Noting) -> None:
        coordinator.results[1].complete(b"first")
        coordinator.results[1].complete(b"second")
        job.runtime.act(CompleteCheckpoint(operator_id="source", checkpoint_id=1, state=b"third"))

    inside(attempt, source, twice)

    (cut,) = job.history(Kind.COORDINATOR_CHECKPOINTED)
    assert cut.payload == b"first"
    assert delivered(job, attempt) == [], "the sink's is missing"


@pytest.mark.flink("PC13")
@pytest.mark.clause("F9")
def test_a_coordinators_part_of_another_checkpoint_changes_nothing() -> None:
    source, sink = late("source"), late("sink")
    job, attempt = started(source, sink)
    job.trigger()

    def act(coordinator: Noting) -> None:
        coordinator.results[1].complete(b"mine")
        job.runtime.act(CompleteCheckpoint(operator_id="nobody", checkpoint_id=1, state=b"other"))

    inside(attempt, source, act)

    assert sorted(job.runtime.state.pending[1].cuts) == ["source"]
    assert delivered(job, attempt) == []


@pytest.mark.flink("PC14")
@pytest.mark.clause("E5")
def test_parts_of_an_aborted_checkpoint_are_abandoned() -> None:
    provider = NotingProvider("source")
    job, attempt = started(provider)
    job.trigger()
    attempt.lose()
    assert (len(job.runtime.state.pending), len(job.runtime.state.completed)) == (0, 0)
    job.crash()
    HandDrivenJob(job.chain, log=job.log)

    assert provider.said("restore") == [("restore", -1, None)]


@pytest.mark.flink("CC1")
@pytest.mark.clause("F1")
def test_an_ack_ahead_of_its_barrier_is_refused_and_does_not_abort() -> None:
    """Adapted: no source takes part on its own, so that an attempt has nothing to ack before its barrier."""
    source, sink = NotingProvider("source"), late("sink")
    job, attempt = started(source, sink)
    job.trigger()
    attempt.ack_checkpoint(1)
    assert job.history(Kind.CHECKPOINT_ACKED) == []
    attempt.last_barrier = -1
    inside(attempt, sink, lambda c: c.results[1].complete(b""))
    attempt.ack_checkpoint(1)

    assert sorted(job.runtime.state.completed) == [1]


@pytest.mark.flink("CC2")
@pytest.mark.clause("K6")
def test_a_checkpoint_with_too_large_metadata_is_aborted_without_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Adapted: its size is seen before anything has a sequence, so that no write of it can fail."""
    provider = NotingProvider("source")
    job, attempt = started(provider)
    job.trigger()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "RECORD_BYTES_MAX", 20)
        attempt.ack_checkpoint(1)

    (aborted,) = job.history(Kind.CHECKPOINT_ABORTED)
    assert "its metadata is " in str(aborted.reason)
    assert len(job.runtime.state.completed) == 0
    assert provider.said("complete", "aborted") == [("aborted", 1)]
    assert job.trigger() == 2
    attempt.ack_checkpoint(2)
    assert provider.said("complete", "aborted") == [("aborted", 1), ("complete", 2)]


@pytest.mark.flink("CC5")
@pytest.mark.clause("H2")
def test_a_coordinator_gets_no_call_for_an_aborted_checkpoint() -> None:
    source, sink = late("source"), late("sink")
    source.on["cut"] = lambda c, n: c.results[n].fail("not now")
    job, _ = started(source, sink)
    job.trigger()

    assert source.said("cut", "aborted") == [("cut", 1), ("aborted", 1)]
    assert sink.said("cut", "aborted") == [], "it was not asked, so that it is told nothing"
    assert len(job.runtime.state.pending) == 0


@pytest.mark.flink("CP4")
@pytest.mark.clause("F11")
def test_a_finished_operators_coordinator_state_stays_in_the_checkpoint() -> None:
    """Adapted: were it dropped, a job that goes on from there would begin the operator's work again."""
    provider = NotingProvider("source")
    job, attempt = started(provider)
    attempt.complete(states={"source": b"all read"})

    assert job.runtime.state.phase is Phase.FINISHED
    checkpoint = job.runtime.state.completed[1]
    assert checkpoint.cuts["source"].state == b"state of 1"
    assert checkpoint.finished[0].states[0].state == b"all read"
