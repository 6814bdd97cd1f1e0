"""Events both ways, and their acks (clauses C1 to C9, D1 to D5, K6)."""

from __future__ import annotations

import pytest

from coordlog.api.coordinator import EventFuture
from coordlog.errors import AttemptNotRunningError, TooLargeError, UnresolvedError
from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.messages import Fenced, SendEvent
from coordlog.projections.job.skips import reason_in_words
from coordlog.projections.job.state import Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import (
    Down,
    Noted,
    Noting,
    NotingProvider,
    Stranger,
    Tick,
    Up,
    chain_of,
    delivered,
    event_ids,
    inside,
    kinds,
    send_down,
)


def started(
    provider: NotingProvider, *, parallelism: int = 1, **options: object
) -> tuple[HandDrivenJob, list[FakeAttempt]]:
    job = HandDrivenJob(chain_of(provider), parallelism=parallelism, **options)  # type: ignore[arg-type]
    return job, job.register_all()


@pytest.mark.clause("C1")
def test_an_event_is_what_it_was_when_it_was_sent() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    value = Down(n=1)

    def act(coordinator: Noting) -> None:
        coordinator.gateways[0].send_event(value)
        object.__setattr__(value, "n", 2)

    inside(attempt, provider, act)

    assert delivered(job, attempt) == [1]


@pytest.mark.clause("C2")
def test_delivery_order_is_send_order() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    inside(attempt, provider, send_down(provider, 0, 3, 1, 2))

    assert delivered(job, attempt) == [3, 1, 2]


@pytest.mark.flink("GW1")
@pytest.mark.clause("C5")
@pytest.mark.clause("C9")
def test_a_future_resolves_in_the_turn_of_its_ack() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    futures: list[EventFuture] = []
    heard: list[int] = []

    def act(coordinator: Noting) -> None:
        future = coordinator.gateways[0].send_event(Down(n=1))
        future.add_done_callback(lambda one: heard.append(one.result().event_id))
        futures.append(future)
        with pytest.raises(UnresolvedError):
            future.result()

    inside(attempt, provider, act)
    assert not futures[0].done()
    attempt.ack("source", event_ids(attempt)[0])

    assert heard == [0]
    ack = futures[0].result()
    assert (ack.subtask, ack.attempt_number, ack.event_id) == (0, 0, 0)
    (acked,) = job.history(Kind.EVENT_ACKED)
    (sent,) = job.history(Kind.EVENT_TO_SUBTASK)
    assert acked.cause == sent.sequence


@pytest.mark.clause("C9")
def test_a_handler_added_to_a_resolved_future_is_called_at_once() -> None:
    provider = NotingProvider()
    _, (attempt,) = started(provider)
    futures: list[EventFuture] = []
    inside(attempt, provider, lambda c: futures.append(c.gateways[0].send_event(Down(n=1))))
    attempt.ack("source", 0)
    heard: list[bool] = []

    inside(
        attempt,
        provider,
        lambda _: futures[0].add_done_callback(lambda one: heard.append(one.done())),
    )

    assert heard == [True]


@pytest.mark.clause("C9")
@pytest.mark.clause("A3")
@pytest.mark.may_fail("RuntimeError: bang")
def test_an_exception_in_a_futures_handler_fails_the_job() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)

    def explode(_: EventFuture) -> None:
        raise RuntimeError("bang")

    inside(
        attempt,
        provider,
        lambda c: c.gateways[0].send_event(Down(n=1)).add_done_callback(explode),
    )
    attempt.ack("source", 0)

    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert failure.subtask == 0
    assert "the handler of an event's future of operator 'source' for subtask 0" in str(
        failure.reason
    )


@pytest.mark.clause("C4")
def test_an_ack_that_does_not_come_fails_exactly_that_attempt_once() -> None:
    provider = NotingProvider()
    job, (first, second) = started(provider, parallelism=2, options=RuntimeOptions(ack_timeout_s=5))
    inside(first, provider, send_down(provider, 0, 1, 2))
    inside(second, provider, send_down(provider, 1, 3))
    second.ack("source", event_ids(second)[0])

    job.advance(4.9)
    assert job.history(Kind.ATTEMPT_FAILED) == []
    job.advance(30)

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert (failed.subtask, failed.attempt_number) == (0, 0)
    assert failed.reason == ("no ack of event 0 (test.down@1) to operator 'source' within 5 s")
    assert len(first.got(Fenced)) == 1
    assert second.got(Fenced) == []
    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("C4")
def test_the_time_for_an_ack_runs_from_delivery() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider, options=RuntimeOptions(ack_timeout_s=5))
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 1))
    job.advance(100)
    attempt.ack_checkpoint(1)

    job.advance(4.9)
    assert job.history(Kind.ATTEMPT_FAILED) == []
    job.advance(0.2)
    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1


@pytest.mark.clause("C4")
def test_the_ack_timer_is_paused_while_the_log_does_not_acknowledge() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider, options=RuntimeOptions(ack_timeout_s=5, append_stall_s=1))
    inside(attempt, provider, send_down(provider, 0, 1))
    attempt.send("source", Up(n=0))
    job.is_held = True
    attempt.send("source", Up(n=1))
    group = job.runtime.turns.take_group()
    assert group

    job.advance(60)
    assert job.runtime.state.live_count == 1
    job.runtime.acknowledged(job.appender.append(group))
    job.is_held = False
    job.advance(3.5)
    assert job.runtime.state.live_count == 1, "60 s, of which 59 stood still, and 3.5"
    job.advance(1)
    assert job.runtime.state.live_count == 0


@pytest.mark.clause("C6")
def test_late_doubled_and_foreign_acks_change_nothing_and_are_recorded() -> None:
    provider = NotingProvider()
    job, (first, second) = started(provider, parallelism=2)
    inside(first, provider, send_down(provider, 0, 1))
    second.ack("source", 0)
    first.ack("source", 0)
    before = job.runtime.state.gateways
    first.ack("source", 0)
    first.ack("source", 12)

    assert len(job.history(Kind.EVENT_ACKED)) == 1
    assert job.runtime.state.gateways == before
    assert (
        len([one for one in job.history(Kind.FACT) if one.payload_type == "coordlog.refused@1"])
        == 3
    )


@pytest.mark.clause("C6")
def test_an_ack_of_an_event_that_is_still_held_is_refused() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 1))

    attempt.ack("source", 0)

    assert job.history(Kind.EVENT_ACKED) == []


@pytest.mark.clause("C7")
@pytest.mark.clause("C9")
def test_a_dead_attempts_events_fail_at_once_in_send_order_ahead_of_failed() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)

    def act(coordinator: Noting) -> None:
        for n in (1, 2, 3):
            coordinator.gateways[0].send_event(Down(n=n)).add_done_callback(
                lambda one, n=n: provider.calls.append(("future", n, one.done()))  # type: ignore[misc]
            )

    inside(attempt, provider, act)
    attempt.ack("source", 1)
    job.trigger()
    provider.calls.clear()
    attempt.lose()

    assert provider.calls == [
        ("future", 1, True),
        ("future", 3, True),
        ("aborted", 1),
        ("failed", 0, 0),
        ("reset", 0, -1),
    ]
    turn = job.history()[-6:]
    assert kinds(turn) == [
        "EVENT_FAILED",
        "EVENT_FAILED",
        "ATTEMPT_FAILED",
        "CHECKPOINT_ABORTED",
        "COORDINATOR_NOTIFIED",
        "SUBTASK_RESET",
    ]
    assert [one.turn_remaining for one in turn] == [5, 4, 3, 2, 1, 0]


@pytest.mark.flink("HO15")
@pytest.mark.clause("C5")
def test_a_failed_event_completes_no_checkpoint_in_between() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    inside(attempt, provider, send_down(provider, 0, 1))
    job.trigger()
    attempt.lose()

    assert job.history(Kind.BARRIER_INJECTED, Kind.CHECKPOINT_COMPLETED) == []
    assert len(job.history(Kind.CHECKPOINT_ABORTED)) == 1


@pytest.mark.clause("C8")
def test_a_loss_tolerant_event_delays_no_checkpoint_and_fails_no_attempt() -> None:
    """Were it waited for, an event that nobody misses would abort checkpoint after checkpoint."""
    provider = NotingProvider()
    job, (attempt,) = started(provider, options=RuntimeOptions(ack_timeout_s=5))
    inside(attempt, provider, lambda c: c.gateways[0].send_event(Tick(n=1)))
    job.trigger()
    assert delivered(job, attempt) == [1, "|1"]

    job.advance(100)

    assert job.history(Kind.ATTEMPT_FAILED) == []
    attempt.ack_checkpoint(1)
    assert len(job.history(Kind.CHECKPOINT_COMPLETED)) == 1


@pytest.mark.clause("I2")
def test_an_event_to_a_completing_subtask_fails_its_future_only() -> None:
    provider = NotingProvider()
    job, (first, second) = started(provider, parallelism=2)
    failed: list[str] = []

    def hear(future: EventFuture) -> None:
        try:
            future.result()
        except AttemptNotRunningError as error:
            failed.append(error.reason)

    def act(coordinator: Noting) -> None:
        coordinator.gateways[0].send_event(Down(n=1)).add_done_callback(hear)

    inside(second, provider, act)
    job.trigger()
    first.complete()
    inside(second, provider, act)

    assert failed == ["subtask 0 has completed", "subtask 0 has completed"]
    assert delivered(job, second) == ["|1"], "it is not waited for"
    second.ack_checkpoint(1)
    assert len(job.history(Kind.CHECKPOINT_COMPLETED)) == 1
    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("D1")
def test_events_are_handled_in_the_order_in_which_they_were_sent() -> None:
    provider = NotingProvider()
    job, (first, second) = started(provider, parallelism=2)
    first.send("source", Up(n=1))
    second.send("source", Up(n=2))
    first.send("source", Up(n=3))

    assert provider.said("event") == [
        ("event", 0, 0, 1),
        ("event", 1, 0, 2),
        ("event", 0, 0, 3),
    ]
    assert [one.event_id for one in job.history(Kind.EVENT_TO_COORDINATOR)] == [0, 0, 1]


@pytest.mark.flink("TE2")
@pytest.mark.clause("D2")
@pytest.mark.parametrize(
    "message",
    [
        SendEvent(
            operator_id="source",
            event_id=0,
            last_barrier=-1,
            payload_type="test.unknown@1",
            payload=b"",
        ),
        SendEvent(
            operator_id="nobody",
            event_id=0,
            last_barrier=-1,
            payload_type="test.up@1",
            payload=b"\x02",
        ),
        SendEvent(
            operator_id="source",
            event_id=0,
            last_barrier=-1,
            payload_type="test.up@1",
            payload=b"\x02\x02",
        ),
        SendEvent(
            operator_id="source",
            event_id=0,
            last_barrier=-1,
            payload_type="test.up@1",
            payload=b"x" * (PAYLOAD_BYTES_MAX + 1),
        ),
    ],
    ids=["unknown type", "no such operator", "damaged", "too large"],
)
def test_an_event_that_cannot_be_taken_fails_its_sender_alone(message: SendEvent) -> None:
    provider = NotingProvider()
    job, (first, second) = started(provider, parallelism=2)

    job.run(lambda: job.runtime.arrived(first.connection_id, message))

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.subtask == 0
    assert second.got(Fenced) == []
    assert job.history(Kind.EVENT_TO_COORDINATOR) == []
    assert job.runtime.state.phase is Phase.RUNNING


def test_a_stranger_is_registered_with_no_job() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    attempt.send("source", Stranger(n=1))

    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1


@pytest.mark.clause("K6")
def test_what_is_too_large_raises_where_it_is_handed_over() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, (attempt,) = started(provider)
    job.trigger()
    raised: list[str] = []
    text = "x" * (PAYLOAD_BYTES_MAX + 1)

    def act(coordinator: Noting) -> None:
        for what in (
            lambda: coordinator.gateways[0].send_event(Down(n=1, text=text)),
            lambda: coordinator.context.record(Noted(text=text)),
            lambda: coordinator.results[1].complete(b"x" * 1_000_000),
        ):
            try:
                what()
            except TooLargeError as error:
                raised.append(error.what)

    before = job.runtime.state.next_sequence
    inside(attempt, provider, act)

    assert raised == ["a test.down@1", "a test.noted@1", "the result of a checkpoint"]
    assert job.runtime.state.next_sequence - before == 2, "the event itself, and its type"


@pytest.mark.clause("K6")
def test_a_snapshot_that_is_too_large_fails_its_attempt_before_any_append() -> None:
    provider = NotingProvider()
    job, (first, second) = started(provider, parallelism=2)
    job.trigger()

    first.ack_checkpoint(1, states={"source": b"x" * 1_000_000})

    assert job.history(Kind.CHECKPOINT_ACKED) == []
    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert "its snapshot of checkpoint 1 is 1000" in str(failed.reason)
    assert second.got(Fenced) == []


@pytest.mark.clause("K6")
def test_a_completion_that_is_too_large_fails_its_attempt() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    attempt.complete(states={"source": b"x" * 1_000_000})

    assert job.history(Kind.SUBTASK_COMPLETED) == []
    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1


@pytest.mark.clause("K6")
def test_states_that_are_too_large_together_stay_in_place_and_are_restored() -> None:
    provider = NotingProvider()
    job, (first, second) = started(provider, parallelism=2)
    job.trigger()
    first.ack_checkpoint(1, states={"source": b"a" * 600_000})
    second.ack_checkpoint(1, states={"source": b"b" * 600_000})

    (completed,) = job.history(Kind.CHECKPOINT_COMPLETED)
    assert completed.attributes["states"] == "in the records of its cuts and acks"
    job.crash()
    job = HandDrivenJob(job.chain, parallelism=2, log=job.log)
    states = [one.accepted.states[0].state for one in job.register_all()]
    assert states == [b"a" * 600_000, b"b" * 600_000]


@pytest.mark.clause("D5")
def test_a_failover_tells_what_was_sent_since_the_checkpoint_both_ways() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    attempt.send("source", Up(n=1))
    inside(attempt, provider, send_down(provider, 0, 10))
    attempt.ack("source", 0)
    job.trigger()
    attempt.send("source", Up(n=2))  # of the channel state: it is part of the checkpoint
    inside(attempt, provider, send_down(provider, 0, 11))  # after the cut, and held
    attempt.ack_checkpoint(1)
    attempt.ack("source", 1)
    attempt.send("source", Up(n=3))
    inside(attempt, provider, send_down(provider, 0, 12))

    attempt.lose()

    assert provider.said("reset") == [("reset", 0, 1)]
    # The events named 0 are those by which `inside` begins its turns: two of them came after the barrier.
    assert provider.lost == [([3, 0], [11, 12])]


@pytest.mark.clause("D5")
@pytest.mark.may_fail("context.lost_events was called")
def test_lost_events_are_asked_for_inside_subtask_reset_only() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    inside(attempt, provider, lambda c: c.context.lost_events(0))

    assert "only" in str(job.history(Kind.GLOBAL_FAILURE)[0].reason)


def test_an_event_at_which_attempts_fail_three_times_is_named_as_poison() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(ack_timeout_s=5))
    provider.on["ready"] = lambda c, *_: c.gateways[0].send_event(Down(n=1))
    for _ in range(3):
        job.register(0)
        job.advance(6)

    reasons = [reason_in_words(one) or "" for one in job.history(Kind.ATTEMPT_FAILED)]
    assert len(reasons) == 3
    newest = job.history(Kind.EVENT_TO_SUBTASK)[-1].sequence
    command = f"coordlog skip job --event {newest} "
    assert [command in one for one in reasons] == [False, False, True]
