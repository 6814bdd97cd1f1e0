"""Gateways and attempts: who is ready, who is fenced, who is refused (clauses B1 to B8, G1 to G5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordlog.api.coordinator import EventFuture
from coordlog.errors import AttemptNotRunningError, ClosedError, GatewayFullError, PayloadTypeError
from coordlog.kernel.builder import KernelConfig
from coordlog.messages import AlreadyFinished, Fenced, Refused, Register
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import (
    Down,
    Noting,
    NotingProvider,
    Stranger,
    Up,
    chain_of,
    delivered,
    event_ids,
    inside,
    kinds,
    send_down,
)


@pytest.mark.clause("B1")
def test_a_gateway_leads_to_its_own_attempt_or_to_nobody() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    first = job.register(0)
    old = provider.newest.gateways[0]
    first.lose()
    second = job.register(0)
    futures: list[EventFuture] = []

    inside(second, provider, lambda _: futures.append(old.send_event(Down(n=1))))

    assert (old.subtask, old.attempt_number) == (0, 0)
    assert delivered(job, second) == []
    with pytest.raises(AttemptNotRunningError) as raised:
        futures[0].result()
    assert (raised.value.subtask, raised.value.attempt_number) == (0, 0)


@pytest.mark.clause("B5")
def test_an_event_to_a_dead_attempt_is_in_the_log_as_failed() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0).lose()
    old = provider.newest.gateways[0]
    second = job.register(0)

    inside(second, provider, lambda _: old.send_event(Down(n=1)))

    (failed,) = job.history(Kind.EVENT_FAILED)
    assert (failed.subtask, failed.attempt_number, failed.event_id) == (0, 0, 0)
    assert job.history(Kind.EVENT_TO_SUBTASK) == []


@pytest.mark.clause("B2")
def test_each_subtask_hears_ready_failed_reset_ready() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, _other = job.register_all()
    first.lose()
    job.register(0)

    assert provider.said("ready", "failed", "reset") == [
        ("ready", 0, 0),
        ("ready", 1, 0),
        ("failed", 0, 0),
        ("reset", 0, -1),
        ("ready", 0, 1),
    ]


@pytest.mark.clause("B3")
def test_what_a_dead_attempt_still_sends_is_recorded_and_not_handled() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    first = job.register(0)
    second = job.register(0)
    before = job.runtime.state

    first.send("source", Up(n=7))

    assert provider.said("event") == []
    refused = job.history(Kind.FACT)[-1]
    assert (refused.subtask, refused.attempt_number) == (0, 0)
    assert refused.reason == "attempt 0 of subtask 0 is over"
    assert job.runtime.state.subtasks == before.subtasks
    assert first.got(Fenced) == [Fenced(reason="fenced by the newer task 2")]
    assert second.got(Fenced) == []


@pytest.mark.clause("B4")
def test_a_newer_task_fences_the_older_attempt_in_one_turn() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    first = job.register(0)
    second = job.register(0)

    assert first.is_closed
    assert second.accepted.attempt_number == 1
    turn = job.history()[-3:]
    assert kinds(turn) == ["ATTEMPT_FAILED", "SUBTASK_RESET", "ATTEMPT_STARTED"]
    assert [one.turn_remaining for one in turn] == [2, 1, 0]


@pytest.mark.clause("B4")
def test_an_older_task_that_comes_late_is_refused() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    newer = job.register(0, task_attempt_id=20)
    older = job.register(0, task_attempt_id=19)

    (refused,) = older.got(Refused)
    assert "task 19 of stage run 1 is not newer than task 20" in refused.reason
    assert not newer.is_closed
    assert job.history(Kind.FACT)[-1].reason == refused.reason


@pytest.mark.clause("B7")
def test_a_task_that_has_had_an_attempt_gets_no_second_one() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0, task_attempt_id=20).lose()

    again = job.register(0, task_attempt_id=20)

    assert len(again.got(Refused)) == 1


@pytest.mark.clause("B7")
@pytest.mark.may_fail("no reason")
def test_attempt_numbers_are_never_used_twice_over_drivers_and_resets() -> None:
    provider = NotingProvider()
    chain = chain_of(provider)
    job = HandDrivenJob(chain)
    job.register(0).lose()
    job.register(0)
    job.crash()
    job = HandDrivenJob(chain, log=job.log)
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(10)
    job.register(0)

    assert [one.attempt_number for one in job.history(Kind.ATTEMPT_STARTED)] == [0, 1, 2, 3]


@pytest.mark.clause("B8")
def test_a_lost_connection_ends_its_attempt() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0).lose("the network is gone")

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.reason == "the network is gone"
    assert job.runtime.state.live_count == 0


@pytest.mark.clause("B8")
def test_a_connection_that_registers_again_ends_its_attempt() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    attempt = job.register(0)
    again = Register(
        driver_id="driver-0",
        subtask=0,
        stage_run=1,
        task_attempt_id=99,
        spark_attempt_number=0,
        host="memory",
        pid=0,
    )
    job.run(lambda: job.runtime.arrived(attempt.connection_id, again))

    assert len(attempt.got(Fenced)) == 1
    assert job.runtime.state.live_count == 0


def test_a_task_of_another_driver_is_refused_and_nothing_is_appended() -> None:
    chain = chain_of(NotingProvider())
    job = HandDrivenJob(chain)
    attempt = job.register(0)
    before = job.log.high_watermark()
    foreign = Register(
        driver_id="driver-7",
        subtask=0,
        stage_run=1,
        task_attempt_id=99,
        spark_attempt_number=0,
        host="memory",
        pid=0,
    )
    job.run(lambda: job.runtime.arrived(attempt.connection_id, foreign))

    assert len(attempt.got(Refused)) == 1
    assert job.log.high_watermark() == before


def test_a_subtask_out_of_range_is_refused() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))

    assert len(job.register(5).got(Refused)) == 1


@pytest.mark.clause("I1")
def test_a_task_of_a_finished_subtask_is_told_so() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, _ = job.register_all()
    first.complete()

    assert job.register(0).inbox == [AlreadyFinished(attempt_number=0)]


@pytest.mark.clause("B6")
def test_an_event_of_an_unregistered_type_raises_at_once_unrecorded() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    raised: list[Exception] = []

    def act(coordinator: Noting) -> None:
        try:
            coordinator.gateways[0].send_event(Stranger(n=1))
        except PayloadTypeError as error:
            raised.append(error)

    inside(attempt, provider, act)

    assert len(raised) == 1
    assert job.history(Kind.EVENT_TO_SUBTASK) == []


@pytest.mark.clause("B6")
@pytest.mark.clause("A1")
@pytest.mark.may_fail("no reason")
def test_a_gateway_of_a_closed_coordinator_raises() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    old = provider.newest.gateways[0]
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(1)

    with pytest.raises(ClosedError):
        old.send_event(Down(n=1))


@pytest.mark.flink("HO6")
@pytest.mark.flink("HO17")
@pytest.mark.flink("GW2")
@pytest.mark.clause("G1")
@pytest.mark.clause("C2")
def test_a_gateway_closes_at_the_cut_and_opens_when_its_own_attempt_acks() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    n = job.trigger()
    assert n == 1
    inside(first, provider, send_down(provider, 0, 1, 2))
    inside(first, provider, send_down(provider, 1, 3))
    assert (delivered(job, first), delivered(job, second)) == (["|1"], ["|1"])

    first.ack_checkpoint(1)
    assert (delivered(job, first), delivered(job, second)) == (["|1", 1, 2], ["|1"])

    second.ack_checkpoint(1)
    assert delivered(job, second) == ["|1", 3]


@pytest.mark.clause("G1")
@pytest.mark.clause("C6")
def test_a_stray_checkpoint_ack_opens_nothing() -> None:
    """Were the id not matched, events of after the cut would reach a subtask ahead of its barrier."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 1))

    attempt.ack_checkpoint(7)
    attempt.last_barrier = -1

    assert delivered(job, attempt) == ["|1"]
    assert "checkpoint 7" in (job.history(Kind.FACT)[-1].reason or "")
    attempt.ack_checkpoint(1)
    assert delivered(job, attempt) == ["|1", 1]


@pytest.mark.clause("F3")
def test_an_ack_of_a_barrier_that_was_not_sent_is_refused() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()

    attempt.ack_checkpoint(1)

    assert job.history(Kind.CHECKPOINT_ACKED) == []
    assert "has not been sent" in (job.history(Kind.FACT)[-1].reason or "")


@pytest.mark.clause("G2")
def test_a_held_event_is_appended_when_sent_and_leaves_ahead_of_later_ones() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 1, 2))
    sent = job.history(Kind.EVENT_TO_SUBTASK)
    assert [one.attributes.get("held_by") for one in sent] == ["1", "1"]

    provider.on["complete"] = send_down(provider, 0, 3)
    attempt.ack_checkpoint(1)

    assert delivered(job, attempt) == ["|1", 1, 2, 3]


@pytest.mark.clause("G3")
@pytest.mark.clause("F10")
def test_aborting_one_checkpoint_opens_no_gateway_that_another_has_closed() -> None:
    """Were all opened by one abort, events of after the cut of 1 would overtake barrier 1."""
    provider = NotingProvider()
    job = HandDrivenJob(
        chain_of(provider), configure=lambda config: replace(config, is_overlap_allowed=True)
    )
    attempt = job.register(0)
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 1))
    provider.is_cut_at_once = False
    job.trigger()
    job.trigger()

    inside(attempt, provider, lambda c: c.results[2].fail("cannot"))
    assert delivered(job, attempt) == ["|1"]

    inside(attempt, provider, lambda c: c.results[3].complete(b""))
    inside(attempt, provider, send_down(provider, 0, 2))
    attempt.ack_checkpoint(1)

    # 1 held event 1 alone, 3 holds event 2; event 1, un-acked at the cut of 3, holds back its barrier.
    assert delivered(job, attempt) == ["|1", 1]
    attempt.ack("source", event_ids(attempt)[0])
    assert delivered(job, attempt) == ["|1", 1, "|3"]
    attempt.ack_checkpoint(3)
    assert delivered(job, attempt) == ["|1", 1, "|3", 2]


@pytest.mark.clause("G4")
@pytest.mark.clause("D5")
def test_held_events_of_a_subtask_that_dies_fail_and_are_lost_events() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 1, 2))

    attempt.lose()

    assert len(job.history(Kind.EVENT_FAILED)) == 2
    assert provider.lost == [([0], [1, 2])]
    assert delivered(job, job.register(0)) == []


@pytest.mark.clause("G5")
def test_a_closed_gateway_holds_up_to_its_limit() -> None:
    provider = NotingProvider()

    def configure(config: KernelConfig) -> KernelConfig:
        return replace(config, held_events_max=2)

    job = HandDrivenJob(chain_of(provider), configure=configure)
    attempt = job.register(0)
    job.trigger()
    raised: list[GatewayFullError] = []

    def act(coordinator: Noting) -> None:
        for n in range(3):
            try:
                coordinator.gateways[0].send_event(Down(n=n))
            except GatewayFullError as error:
                raised.append(error)

    inside(attempt, provider, act)

    (error,) = raised
    assert (error.subtask, error.checkpoint_id, error.held, error.limit) == (0, 1, 2, 2)
    attempt.ack_checkpoint(1)
    assert delivered(job, attempt) == ["|1", 0, 1]


@pytest.mark.clause("G2")
def test_an_abort_delivers_what_each_gateway_held() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=3)
    attempts = job.register_all()
    job.trigger()
    inside(attempts[0], provider, send_down(provider, 2, 1))
    assert delivered(job, attempts[2]) == ["|1"]
    attempts[0].lose()

    assert delivered(job, attempts[2]) == ["|1", 1]
