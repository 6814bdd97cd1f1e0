"""One attempt is replaced (clauses B2, E1, E4, E5, I4)."""

from __future__ import annotations

import pytest

from coordlog.messages import Fenced
from coordlog.projections.job.checkpoints import held_committables
from coordlog.projections.job.state import Phase
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from kernel_fakes import NotingProvider, chain_of, delivered, inside, kinds, send_down


@pytest.mark.clause("E1")
def test_only_the_subtask_concerned_hears_of_its_failure_in_one_turn() -> None:
    providers = NotingProvider("source"), NotingProvider("sink")
    job = HandDrivenJob(chain_of(*providers), parallelism=2)
    first, second = job.register_all()
    for provider in providers:
        provider.calls.clear()
    first.fail("boom")

    for provider in providers:
        assert provider.calls == [("failed", 0, 0), ("reset", 0, -1)]
    assert second.got(Fenced) == []
    turn = job.history()[-2:]
    assert kinds(turn) == ["ATTEMPT_FAILED", "SUBTASK_RESET"]
    assert [one.turn_remaining for one in turn] == [1, 0]
    assert turn[0].reason == "poll of operator 'source' raised boom\nboom"


@pytest.mark.clause("E1")
@pytest.mark.clause("E5")
def test_the_next_attempt_begins_from_the_last_completed_checkpoint() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1, states={"source": b"one"})
    job.trigger()
    attempt.lose()
    again = job.register(0)

    assert provider.said("reset") == [("reset", 0, 1)]
    assert again.accepted.restored_checkpoint == 1
    assert [one.state for one in again.accepted.states] == [b"one"]


@pytest.mark.clause("E4")
def test_pending_checkpoints_are_aborted_and_others_gateways_released() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    inside(first, provider, send_down(provider, 1, 1))
    assert delivered(job, second) == ["|1"]
    first.lose()

    assert delivered(job, second) == ["|1", 1]
    assert len(job.runtime.state.pending) == 0


@pytest.mark.clause("E4")
@pytest.mark.clause("I4")
def test_an_abort_takes_no_committable_from_an_attempt_that_lives_on() -> None:
    """Were it forgotten, its rows would never be seen: an attempt does not hand over twice."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    first.ack_checkpoint(1, committables=[("source", b"a1")])
    second.lose()
    second = job.register(1)
    job.trigger()
    first.ack_checkpoint(2, committables=[("source", b"a2")])
    second.ack_checkpoint(2, committables=[("source", b"b2")])

    granted = job.runtime.state.granted[2]
    assert [(one.subtask, one.content) for one in granted] == [(0, b"a1"), (0, b"a2"), (1, b"b2")]


@pytest.mark.clause("I4")
def test_a_late_ack_of_an_aborted_checkpoint_hands_over_all_the_same() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    second.lose()
    first.ack_checkpoint(1, committables=[("source", b"a1")])
    second = job.register(1)
    job.trigger()
    first.ack_checkpoint(2)
    second.ack_checkpoint(2)

    assert [one.content for one in job.runtime.state.granted[2]] == [b"a1"]


@pytest.mark.clause("I4")
def test_what_a_failed_attempt_handed_over_since_the_last_checkpoint_is_given_up() -> None:
    provider = NotingProvider(is_committing=False)
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    first.ack_checkpoint(1, committables=[("source", b"a1")])
    second.ack_checkpoint(1)
    job.trigger()
    first.ack_checkpoint(2, committables=[("source", b"a2")])
    assert held_committables(job.runtime.state, "source") == (b"a2", b"a1")
    first.lose()

    assert held_committables(job.runtime.state, "source") == (b"a1",)


@pytest.mark.clause("A3")
@pytest.mark.may_fail("no reason")
def test_a_failure_of_an_attempt_while_the_job_fails_is_recorded_only() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, _ = job.register_all()
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    assert job.runtime.state.phase is Phase.FAILING
    provider.calls.clear()
    first.fail("boom")

    assert job.history(Kind.ATTEMPT_FAILED) == []
    assert "the job is failing" in str(job.history(Kind.FACT)[-1].reason)
    assert provider.calls == []
