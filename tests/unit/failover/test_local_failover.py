"""One attempt is lost and replaced, and what is left of it (clauses B2, B4, C4, E1, E4, E5, I4)."""

from __future__ import annotations

import pytest

from coordlog.messages import Accepted, Fenced, Refused
from coordlog.projections.job.checkpoints import held_committables
from coordlog.projections.job.state import Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import (
    HANDLED,
    NotingProvider,
    Tick,
    Up,
    chain_of,
    delivered,
    inside,
    kinds,
    send_down,
)


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
def test_a_failed_attempts_committables_since_the_checkpoint_are_abandoned() -> None:
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


@pytest.mark.clause("D5")
def test_lost_events_are_those_of_the_coordinators_own_operator() -> None:
    source, other = NotingProvider("source"), NotingProvider("other")
    job = HandDrivenJob(chain_of(source, other))
    attempt = job.register(0)
    attempt.send("source", Up(n=1))
    attempt.send("other", Up(n=2))
    inside(attempt, source, send_down(source, 0, 3))
    inside(attempt, other, send_down(other, 0, 4))
    attempt.lose()

    assert [set(up) & {1, 2} for up, _ in source.lost] == [{1}]
    assert [set(up) & {1, 2} for up, _ in other.lost] == [{2}]
    assert [down for _, down in source.lost] == [[3]]
    assert [down for _, down in other.lost] == [[4]]


@pytest.mark.clause("B4")
def test_a_task_that_is_not_newer_is_told_which_one_has_been_an_attempt() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    for task in (7, 9):
        job.register(0, task_attempt_id=task)
    late = job.register(0, task_attempt_id=8)

    reason = (
        "task 8 of stage run 1 is not newer than task 9 of stage run 1, which registered before"
    )
    assert late.inbox == [Refused(reason=reason)]
    (said,) = job.history(Kind.FACT)
    assert (said.subtask, said.attempt_number, said.reason) == (0, 1, reason)


@pytest.mark.clause("B4")
def test_a_task_refused_before_any_attempt_is_recorded_by_first_number() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0, stage_run=0)

    assert [one.attempt_number for one in job.history(Kind.FACT)] == [0]


@pytest.mark.clause("B3")
@pytest.mark.may_fail("scripted")
def test_an_attempt_that_speaks_while_the_job_fails_does_not_end_well() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    attempt = job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    attempt.send("source", Up(n=1))

    assert attempt.got(Fenced) == [Fenced(reason="the job is failing", is_finished=False)]


@pytest.mark.clause("E1")
def test_a_failed_attempts_own_task_is_killed() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    job.register(0, task_attempt_id=3)
    second = job.register(1, task_attempt_id=4)
    second.lose("no word")

    assert job.stage.killed == [(1, 4, "no word")]


@pytest.mark.clause("E1")
def test_a_resume_kills_no_task_of_the_dead_driver_and_adds_no_delay() -> None:
    """Spark counts its tasks from 0 again: another's task would be killed."""
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)), is_batch=True)
    for _ in range(3):
        job.register(0).lose()
    job.register(0)
    job.crash()
    job = HandDrivenJob(job.chain, is_batch=True, log=job.log, clock=job.clock)
    again = job.register(0, is_patient=False)

    assert job.stage.killed == []
    assert len(again.got(Accepted)) == 1


@pytest.mark.clause("E1")
def test_a_resume_resets_the_subtasks_in_their_order() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)), parallelism=3, is_batch=True)
    job.register_all()
    job.crash()
    job = HandDrivenJob(job.chain, parallelism=3, is_batch=True, log=job.log)

    assert [one.subtask for one in job.history(Kind.SUBTASK_RESET)] == [0, 1, 2]


@pytest.mark.clause("E4")
def test_a_resume_first_aborts_pending_checkpoints_with_a_reason() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)))
    job.register(0)
    job.trigger()
    before = len(job.history())
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log, restore="resume")

    assert job.mode == "resume"
    epoch, aborted, then = job.history()[before : before + 3]
    assert (epoch.kind, aborted.kind) == (Kind.EPOCH_STARTED, Kind.CHECKPOINT_ABORTED)
    assert then.kind is Kind.COORDINATORS_STARTED, "nobody is told who never saw it"
    assert (aborted.checkpoint_id, aborted.reason) == (1, "its driver is gone")


@pytest.mark.clause("C7")
def test_no_timer_is_left_of_an_attempt_that_has_failed() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    inside(attempt, provider, send_down(provider, 0, 1))
    assert job.runtime.next_timer_s() is not None
    attempt.lose()

    assert job.runtime.next_timer_s() is None


@pytest.mark.clause("C8")
def test_a_failed_events_record_says_whether_it_might_be_lost() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    inside(attempt, provider, lambda c: c.gateways[0].send_event(Tick(n=1)))
    inside(attempt, provider, send_down(provider, 0, 2))
    attempt.lose()

    said = [one.attributes.get("loss_tolerant") for one in job.history(Kind.EVENT_FAILED)]
    assert said == ["true", None]


@pytest.mark.clause("B4")
@pytest.mark.may_fail("no reason")
def test_a_task_of_a_newer_stage_run_is_newer_whatever_its_task_id() -> None:
    """Spark begins its task ids again in a new application, and its attempt numbers in a stage that is tried again."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0, task_attempt_id=20)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(1)
    newer = job.register(0, task_attempt_id=0)

    assert job.stage.submitted == [1, 2]
    assert newer.accepted.attempt_number == 1


@pytest.mark.clause("C4")
def test_an_ack_that_a_dead_attempt_owes_fails_no_later_attempt() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(ack_timeout_s=5))
    first = job.register(0)
    inside(first, provider, send_down(provider, 0, 1))
    job.advance(4)
    first.lose()
    second = job.register(0)
    job.advance(60)

    assert [one.attempt_number for one in job.history(Kind.ATTEMPT_FAILED)] == [0]
    assert second.got(Fenced) == []


@pytest.mark.clause("C4")
@pytest.mark.clause("B8")
def test_a_broken_connection_fails_its_attempt_once_and_names_its_events() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    inside(second, provider, send_down(provider, 0, 1, 2))
    first.lose("reset by peer")
    first.lose("reset by peer")

    failed = job.history(Kind.EVENT_FAILED)
    assert [(one.event_id, one.reason) for one in failed] == [
        (0, "reset by peer"),
        (1, "reset by peer"),
    ]
    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1
    assert second.got(Fenced) == []
