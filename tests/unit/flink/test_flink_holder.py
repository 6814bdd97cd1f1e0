"""Checkpoints and events of one coordinator: the scenarios HO, GW and FT of the contract."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from coordlog.api.coordinator import EventFuture
from coordlog.errors import AttemptNotRunningError, WrongThreadError
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import CompleteCheckpoint
from coordlog.messages import Fenced
from coordlog.projections.job.state import Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import (
    Down,
    Noting,
    NotingProvider,
    Tick,
    chain_of,
    delivered,
    event_ids,
    inside,
    kinds,
    send_down,
)


def overlapping(config: KernelConfig) -> KernelConfig:
    return replace(config, is_overlap_allowed=True)


def started(
    *providers: NotingProvider, parallelism: int = 1
) -> tuple[HandDrivenJob, list[FakeAttempt]]:
    job = HandDrivenJob(
        chain_of(*providers),
        parallelism=parallelism,
        options=RuntimeOptions(checkpoint_timeout_s=5, ack_timeout_s=60),
    )
    return job, job.register_all()


def complete(checkpoint_id: int, state: bytes = b"") -> Callable[[Noting], object]:
    """What a coordinator does that makes its cut now: for `inside`."""
    return lambda coordinator: coordinator.results[checkpoint_id].complete(state)


def ack_all(attempt: FakeAttempt, since: int = 0) -> None:
    """Ack what has been delivered, from the event with this id on."""
    for event_id in event_ids(attempt):
        if event_id >= since:
            attempt.ack("source", event_id)


def unacked(job: HandDrivenJob, subtask: int = 0) -> list[int]:
    """The ids of the events that are sent to a subtask and neither acked nor failed."""
    gateway = job.runtime.state.gateways.get(("source", subtask))
    return [] if gateway is None else sorted(gateway.unacked)


def why(future: EventFuture) -> str:
    """Why an event failed."""
    with pytest.raises(AttemptNotRunningError) as raised:
        future.result()
    return raised.value.reason


# The holder


@pytest.mark.flink("HO1")
def test_a_checkpoint_whose_coordinator_says_nothing_is_pending() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, (attempt,) = started(provider)
    job.trigger()

    assert provider.said("cut") == [("cut", 1)]
    assert sorted(job.runtime.state.pending) == [1]
    assert delivered(job, attempt) == []
    assert kinds(job.history())[-1] == "CHECKPOINT_TRIGGERED"


@pytest.mark.flink("HO2")
def test_the_bytes_of_the_coordinator_are_the_bytes_of_the_checkpoint() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, (attempt,) = started(provider)
    job.trigger()
    inside(attempt, provider, complete(1, b"\x00\x01\x02\x03"))
    attempt.ack_checkpoint(1)

    assert job.runtime.state.completed[1].cuts["source"].state == b"\x00\x01\x02\x03"
    (cut,) = job.history(Kind.COORDINATOR_CHECKPOINTED)
    assert cut.payload == b"\x00\x01\x02\x03"


@pytest.mark.flink("HO3")
def test_events_pass_until_the_cut() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, (first, second) = started(provider, parallelism=2)
    job.trigger()
    inside(first, provider, send_down(provider, 1, 7))
    second.ack("source", 0)

    assert delivered(job, second) == [7]
    assert unacked(job, 1) == []


@pytest.mark.flink("HO4")
@pytest.mark.flink("GW5")
def test_events_wait_after_the_cut_and_their_futures_are_open() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    futures: list[EventFuture] = []
    job.trigger()
    inside(attempt, provider, lambda c: futures.append(c.gateways[0].send_event(Down(n=1))))

    assert delivered(job, attempt) == ["|1"]
    assert not futures[0].done()


@pytest.mark.flink("HO5")
def test_an_abort_lets_go_of_what_waits() -> None:
    source, sink = NotingProvider("source"), NotingProvider("sink", is_cut_at_once=False)
    job, (attempt,) = started(source, sink)
    job.trigger()
    inside(attempt, source, send_down(source, 0, 1))
    assert delivered(job, attempt) == []

    inside(attempt, sink, lambda c: c.results[1].fail("not now"))

    assert delivered(job, attempt) == [1]


@pytest.mark.flink("HO7")
@pytest.mark.may_fail("no reason")
def test_a_restore_opens_every_gateway() -> None:
    provider = NotingProvider()
    job, (first, _) = started(provider, parallelism=2)
    job.trigger()
    inside(first, provider, send_down(provider, 0, 1))
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(1)
    first, second = job.register_all()
    inside(first, provider, send_down(provider, 1, 2))

    assert (delivered(job, first), delivered(job, second)) == ([], [2])


@pytest.mark.flink("HO8")
def test_a_cut_long_after_its_checkpoints_abort_closes_nothing() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, (attempt,) = started(provider)
    job.trigger()
    first = provider.newest.results[1]
    job.advance(6)
    job.trigger()
    inside(attempt, provider, complete(2))
    attempt.ack_checkpoint(2)

    inside(attempt, provider, lambda _: first.complete(b"late"))
    inside(attempt, provider, send_down(provider, 0, 1))

    assert delivered(job, attempt) == ["|2", 1]


@pytest.mark.flink("HO9")
def test_events_around_two_checkpoints_arrive_once_each_in_order() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, (attempt,) = started(provider)
    inside(attempt, provider, send_down(provider, 0, 0))
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 1))
    inside(attempt, provider, complete(1))
    inside(attempt, provider, send_down(provider, 0, 2))
    ack_all(attempt)
    attempt.ack_checkpoint(1)
    ack_all(attempt, since=2)
    job.trigger()
    inside(attempt, provider, complete(2))
    inside(attempt, provider, send_down(provider, 0, 3))
    attempt.ack_checkpoint(2)

    assert delivered(job, attempt) == [0, 1, "|1", 2, "|2", 3]
    assert provider.said("complete") == [("complete", 1), ("complete", 2)]


@pytest.mark.flink("HO10")
def test_events_around_an_aborted_and_a_completed_checkpoint_keep_order() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, (attempt,) = started(provider)
    inside(attempt, provider, send_down(provider, 0, 0))
    job.trigger()
    inside(attempt, provider, complete(1))
    inside(attempt, provider, send_down(provider, 0, 1))
    job.advance(6)
    assert delivered(job, attempt) == [0, 1], "its barrier waited for the ack of event 0"
    ack_all(attempt)
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 2))
    inside(attempt, provider, complete(2))
    inside(attempt, provider, send_down(provider, 0, 3))
    ack_all(attempt, since=2)
    attempt.ack_checkpoint(2)

    assert delivered(job, attempt) == [0, 1, 2, "|2", 3]
    assert provider.said("complete", "aborted") == [("aborted", 1), ("complete", 2)]


@pytest.mark.flink("HO11")
@pytest.mark.may_fail("first")
def test_of_several_calls_of_fail_job_one_counts_until_the_reset() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)

    def act(coordinator: Noting) -> None:
        coordinator.context.fail_job("first")
        coordinator.context.fail_job("second")

    for _ in range(2):
        inside(attempt, provider, act)
        assert job.runtime.state.phase is Phase.FAILING
        job.stage_ends()
        job.advance(10)
        (attempt,) = job.register_all()

    reasons = [one.reason for one in job.history(Kind.GLOBAL_FAILURE)]
    assert reasons == ["operator 'source' failed the job: first"] * 2
    assert len(job.history(Kind.RESET_TO_CHECKPOINT)) == 2


@pytest.mark.flink("HO13")
@pytest.mark.clause("F2")
def test_a_cut_with_sends_in_the_same_turn_matches_the_deliveries() -> None:
    """Adapted: what another thread would send or complete in between is refused, so that nothing can race."""
    provider = NotingProvider(is_cut_at_once=False)
    job, (attempt,) = started(provider)
    elsewhere: list[str] = []

    def from_elsewhere(coordinator: Noting, checkpoint_id: int) -> None:
        for act in (
            lambda: coordinator.gateways[0].send_event(Down(n=99)),
            lambda: coordinator.results[checkpoint_id].complete(b"\x63"),
        ):
            try:
                act()
            except WrongThreadError as error:
                elsewhere.append(str(error))

    def cut(coordinator: Noting, checkpoint_id: int) -> None:
        sent = job.runtime.state.next_event_id
        send_down(provider, 0, sent)(coordinator)
        thread = threading.Thread(target=from_elsewhere, args=(coordinator, checkpoint_id))
        thread.start()
        thread.join()
        coordinator.results[checkpoint_id].complete(bytes([sent + 1]))
        send_down(provider, 0, sent + 1)(coordinator)

    provider.on["cut"] = cut
    for n in (1, 2, 3):
        job.trigger()
        ack_all(attempt, since=max(0, 2 * n - 3))
        attempt.ack_checkpoint(n)
        checkpoint = job.runtime.state.completed[n]
        seen = delivered(job, attempt)
        before_barrier = [one for one in seen[: seen.index(f"|{n}")] if isinstance(one, int)]
        assert before_barrier == list(range((checkpoint.cuts["source"].state or b"?")[0]))
    assert len(elsewhere) == 6


@pytest.mark.flink("HO14")
def test_a_late_cut_agrees_with_what_each_of_three_subtasks_was_delivered() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, attempts = started(provider, parallelism=3)
    steps = 0

    def flush() -> None:
        nonlocal steps
        for subtask in range(3):
            inside(attempts[0], provider, send_down(provider, subtask, steps))
        steps += 1

    for n in (1, 2):
        flush()
        job.trigger()
        flush()
        inside(attempts[0], provider, complete(n, bytes([steps])))
        flush()
        for attempt in attempts:
            ack_all(attempt, since=0 if n == 1 else 6)
        for attempt in attempts:
            attempt.ack_checkpoint(n)
        counter = (job.runtime.state.completed[n].cuts["source"].state or b"?")[0]
        for attempt in attempts:
            seen = delivered(job, attempt)
            before = [one for one in seen[: seen.index(f"|{n}")] if isinstance(one, int)]
            assert before == list(range(counter))
    assert steps == 6


@pytest.mark.flink("HO16")
def test_an_unhandled_failure_lets_no_checkpoint_start_in_between() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(
        chain_of(provider), options=RuntimeOptions(ack_timeout_s=5, checkpoint_timeout_s=60)
    )
    attempt = job.register(0)
    inside(attempt, provider, send_down(provider, 0, 1))
    job.clock.seconds += 6  # the ack is overdue, and its timer has not fired
    job.trigger()
    assert job.history(Kind.BARRIER_INJECTED) == []
    job.run(job.runtime.fire_timers)

    end = job.history()[-5:]
    assert kinds(end) == [
        "EVENT_FAILED",
        "ATTEMPT_FAILED",
        "CHECKPOINT_ABORTED",
        "COORDINATOR_NOTIFIED",
        "SUBTASK_RESET",
    ]
    assert [one.turn_remaining for one in end] == [4, 3, 2, 1, 0]
    assert job.trigger() is None, "nor after it"


@pytest.mark.flink("HO-del")
@pytest.mark.clause("F10")
def test_two_checkpoints_at_once_hold_their_own_events_each() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), configure=overlapping)
    attempt = job.register(0)
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 1))
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 2))
    assert delivered(job, attempt) == ["|1"]

    attempt.ack_checkpoint(1)
    assert delivered(job, attempt) == ["|1", 1]
    attempt.ack("source", 0)
    assert delivered(job, attempt) == ["|1", 1, "|2"]
    attempt.ack_checkpoint(2)
    assert delivered(job, attempt) == ["|1", 1, "|2", 2]


# Gateways


@pytest.mark.flink("GW3")
def test_a_cut_that_nobody_asked_for_closes_nothing() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    unasked = CompleteCheckpoint(operator_id="source", checkpoint_id=1, state=b"")
    inside(attempt, provider, lambda _: job.runtime.act(unasked))
    inside(attempt, provider, send_down(provider, 0, 1))

    assert delivered(job, attempt) == [1]
    assert job.history(Kind.COORDINATOR_CHECKPOINTED) == []


@pytest.mark.flink("GW4")
def test_a_cut_for_another_checkpoint_than_the_requested_closes_nothing() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, (attempt,) = started(provider)
    job.trigger()
    other = CompleteCheckpoint(operator_id="source", checkpoint_id=2, state=b"")
    inside(attempt, provider, lambda _: job.runtime.act(other))
    inside(attempt, provider, send_down(provider, 0, 1))

    assert delivered(job, attempt) == [1]
    assert sorted(job.runtime.state.pending) == [1]


@pytest.mark.flink("GW6")
def test_gateways_that_open_together_let_everything_go_and_futures_resolve() -> None:
    source, sink = NotingProvider("source"), NotingProvider("sink", is_cut_at_once=False)
    job, attempts = started(source, sink, parallelism=2)
    futures: list[EventFuture] = []
    job.trigger()

    def act(coordinator: Noting) -> None:
        futures.extend(coordinator.gateways[n].send_event(Down(n=n)) for n in (0, 1))

    inside(attempts[0], source, act)
    assert [delivered(job, one) for one in attempts] == [[], []]
    inside(attempts[0], sink, lambda c: c.results[1].fail("not now"))

    assert [delivered(job, one) for one in attempts] == [[0], [1]]
    for attempt, event_id in zip(attempts, (0, 1), strict=True):
        attempt.ack("source", event_id)
    assert [one.result().subtask for one in futures] == [0, 1]


@pytest.mark.flink("GW7")
def test_what_is_let_go_and_then_fails_fails_its_future() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    futures: list[EventFuture] = []
    job.trigger()
    inside(attempt, provider, lambda c: futures.append(c.gateways[0].send_event(Down(n=1))))
    attempt.ack_checkpoint(1)
    assert delivered(job, attempt) == ["|1", 1]
    attempt.lose("the network is gone")

    assert why(futures[0]) == "the network is gone"


@pytest.mark.flink("GW8")
@pytest.mark.clause("C8")
def test_a_loss_tolerant_event_to_an_ended_attempt_fails_its_future_only() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    old = provider.newest.gateways[0]
    attempt.lose()
    again = job.register(0)
    futures: list[EventFuture] = []
    inside(again, provider, lambda _: futures.append(old.send_event(Tick(n=1))))

    assert why(futures[0]) == "attempt 0 of subtask 0 is over"
    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1, "the old one"
    assert again.got(Fenced) == []


# What is un-acked


@pytest.mark.flink("FT1")
@pytest.mark.flink("FT2")
def test_an_event_is_unacked_from_its_sending_to_its_ack() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    inside(attempt, provider, send_down(provider, 0, 1, 2))
    assert unacked(job) == [0, 1]
    attempt.ack("source", 0)

    assert unacked(job) == [1]


@pytest.mark.flink("FT3")
@pytest.mark.flink("FT5")
def test_an_event_to_a_failed_attempt_fails_at_once_and_is_never_unacked() -> None:
    provider = NotingProvider()
    job, (first, second) = started(provider, parallelism=2)
    old = provider.newest.gateways[0]
    first.lose()
    futures: list[EventFuture] = []
    is_done: list[bool] = []

    def act(_: Noting) -> None:
        futures.append(old.send_event(Down(n=1)))
        is_done.append(futures[0].done())

    inside(second, provider, act)

    assert is_done == [False], "it is decided in this turn, and told behind this callback"
    assert why(futures[0]) == "attempt 0 of subtask 0 is over"
    assert unacked(job) == []
    again = job.register(0)
    assert job.trigger() == 1
    assert delivered(job, again) == ["|1"], "nothing waits for it"


@pytest.mark.flink("FT4")
def test_all_that_a_failed_attempt_has_not_acked_fails_with_the_cause() -> None:
    provider = NotingProvider()
    job, (attempt,) = started(provider)
    futures: list[EventFuture] = []

    def act(coordinator: Noting) -> None:
        futures.extend(coordinator.gateways[0].send_event(Down(n=n)) for n in (1, 2))

    inside(attempt, provider, act)
    attempt.lose("the machine is gone")

    assert [why(one) for one in futures] == ["the machine is gone"] * 2
    assert unacked(job) == []
