"""How many events a job remembers for local failovers, and what follows once some are forgotten (clause D5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordlog.errors import OptionError
from coordlog.kernel.builder import KernelConfig
from coordlog.limits import REMEMBERED_EVENTS_BYTES_MAX, SNAPSHOT_STATE_BYTES_MAX
from coordlog.messages import DeliverEvent
from coordlog.projections.job.remembered import EVENT_BYTES, FORGETS, weights
from coordlog.projections.job.state import JobState, Phase, sorted_values
from coordlog.schemas.record import Kind
from coordlog.testing import replay
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of, delivered, inside, send_down

ROOM = 10
"""Events that are remembered."""


def config(config: KernelConfig) -> KernelConfig:
    return replace(config, remembered_bytes_max=ROOM * (EVENT_BYTES + 8))


def job_of(
    provider: NotingProvider,
    *,
    is_batch: bool,
    parallelism: int = 1,
    like: HandDrivenJob | None = None,
) -> HandDrivenJob:
    return HandDrivenJob(
        chain_of(provider),
        is_batch=is_batch,
        parallelism=parallelism,
        configure=config,
        log=None if like is None else like.log,
    )


def remembered(state: JobState) -> int:
    """Number of the events that the state holds, as nobody but it counts them."""
    count = 0
    for one in sorted_values(state.subtasks):
        if one.attempt is not None:
            count += len(one.attempt.received) + len(one.attempt.sent)
        if one.completion is not None:
            count += len(one.completion.received)
    return count


def talk(job: HandDrivenJob, attempt: FakeAttempt, provider: NotingProvider, count: int) -> None:
    """So many events up, each followed by one down, which is acked."""
    for n in range(count):
        attempt.inbox.clear()
        inside(attempt, provider, send_down(provider, attempt.subtask, n))
        for one in attempt.got(DeliverEvent):
            attempt.ack("source", one.event_id)
        assert remembered(job.runtime.state) <= ROOM


@pytest.mark.clause("D5")
@pytest.mark.parametrize("is_batch", [True, False], ids=["batch", "stream"])
def test_events_are_remembered_up_to_a_bound_without_any_checkpoint(*, is_batch: bool) -> None:
    provider = NotingProvider()
    job = job_of(provider, is_batch=is_batch)
    (attempt,) = job.register_all()
    talk(job, attempt, provider, 100)

    assert job.runtime.state.phase is Phase.RUNNING
    forgetting = [one for one in job.history() if FORGETS in one.attributes]
    assert 200 // ROOM - 1 <= len(forgetting) <= 200 // (ROOM - 1)


@pytest.mark.clause("D5")
@pytest.mark.may_fail("its machine is gone")
@pytest.mark.parametrize("is_batch", [True, False], ids=["batch", "stream"])
def test_a_failover_that_cannot_say_what_it_loses_is_a_global_one(*, is_batch: bool) -> None:
    provider = NotingProvider()
    job = job_of(provider, is_batch=is_batch, parallelism=2)
    talker, _ = job.register_all()
    talk(job, talker, provider, ROOM)
    talker.lose("its machine is gone")

    assert provider.lost == []
    assert provider.said("failed", "reset") == []
    assert job.runtime.state.phase is Phase.FAILING
    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert failure.reason == (
        "attempt 0 of subtask 0 failed: its machine is gone; all subtasks go back to checkpoint -1, "
        f"because the events since then exceeded {ROOM * (EVENT_BYTES + 8)} bytes and are forgotten"
    )
    job.stage_ends("cancelled")
    job.advance(60)
    assert provider.said("restore") == [("restore", -1, None)]
    assert job.runtime.state.remembered_bytes == 0
    again, _ = job.register_all()
    again.send("source", Up(n=7))
    again.lose()
    assert provider.lost == [([7], [])], "what a new attempt exchanges is remembered"


@pytest.mark.clause("D5")
def test_an_attempt_without_forgotten_events_fails_alone() -> None:
    provider = NotingProvider()
    job = job_of(provider, is_batch=True, parallelism=2)
    talker, silent = job.register_all()
    talk(job, talker, provider, ROOM)
    silent.lose()

    assert provider.said("reset") == [("reset", 1, -1)]
    assert provider.lost == [([], [])]
    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("D5")
def test_the_next_completed_checkpoint_makes_a_failover_local_again() -> None:
    provider = NotingProvider()
    job = job_of(provider, is_batch=False)
    attempt = job.register(0)
    talk(job, attempt, provider, ROOM)
    number = job.trigger()
    assert number is not None
    attempt.ack_checkpoint(number)
    assert job.runtime.state.remembered_bytes == 0
    attempt.send("source", Up(n=7))
    attempt.lose()

    assert provider.lost == [([7], [])]
    assert provider.said("reset") == [("reset", 0, number)]


@pytest.mark.clause("D3")
@pytest.mark.clause("D5")
def test_a_pending_checkpoint_whose_channel_state_is_forgotten_is_aborted() -> None:
    provider = NotingProvider()
    job = job_of(provider, is_batch=False, parallelism=2)
    talker, other = job.register_all()
    number = job.trigger()
    assert number is not None
    inside(other, provider, send_down(provider, 1, 5))
    assert delivered(job, other) == [f"|{number}"]
    for n in range(ROOM):
        talker.send("source", Up(n=n))

    (aborted,) = job.history(Kind.CHECKPOINT_ABORTED)
    assert aborted.reason == (
        "the events since the last completed checkpoint exceed "
        f"{ROOM * (EVENT_BYTES + 8)} bytes and are forgotten"
    )
    assert provider.said("aborted") == [("aborted", number)]
    assert delivered(job, other) == [f"|{number}", 5]
    assert job.history(Kind.GLOBAL_FAILURE) == []


@pytest.mark.clause("K7")
def test_a_history_in_which_an_event_aborts_a_checkpoint_is_replayed() -> None:
    job = job_of(NotingProvider(), is_batch=False)
    (talker,) = job.register_all()
    job.trigger()
    for n in range(ROOM + 2):
        talker.send("source", Up(n=n))

    assert job.history(Kind.CHECKPOINT_ABORTED) != []
    result = replay(job.log, chain_of(NotingProvider()))
    assert (result.passed_over_count, result.record_count) == (0, len(job.history()) - 1)


@pytest.mark.clause("D5")
@pytest.mark.parametrize("is_batch", [True, False], ids=["batch", "stream"])
def test_what_a_finished_subtask_has_exchanged_is_not_remembered(*, is_batch: bool) -> None:
    provider = NotingProvider()
    job = job_of(provider, is_batch=is_batch, parallelism=2)
    first, _ = job.register_all()
    talk(job, first, provider, 3)
    assert job.runtime.state.remembered_bytes == 6 * (EVENT_BYTES + 2) - 3
    first.complete()

    assert remembered(job.runtime.state) == 0
    assert job.runtime.state.remembered_bytes == 0


@pytest.mark.clause("D5")
@pytest.mark.clause("I1")
def test_a_driver_after_one_with_forgotten_events_rolls_back_over_resuming() -> None:
    provider = NotingProvider(projection=HANDLED)
    job = job_of(provider, is_batch=True, parallelism=2)
    talker, _ = job.register_all()
    talk(job, talker, provider, ROOM)
    job.crash()
    with pytest.raises(
        OptionError, match="an attempt has had more events than the driver remembers"
    ):
        HandDrivenJob(
            chain_of(provider), is_batch=True, parallelism=2, log=job.log, restore="resume"
        )
    again = job_of(provider, is_batch=True, parallelism=2, like=job)

    assert [one.attributes["restore"] for one in again.history(Kind.RESET_TO_CHECKPOINT)] == [
        "rollback"
    ]
    assert again.history(Kind.SUBTASK_RESET) == []
    assert again.runtime.state.projections["source"] == ()


@pytest.mark.clause("D5")
def test_the_weight_of_remembered_events_is_exact_over_failovers() -> None:
    provider = NotingProvider()
    job = job_of(provider, is_batch=False, parallelism=2)
    attempts = job.register_all()
    for round_number in range(6):
        for attempt in attempts:
            talk(job, attempt, provider, 1)
        if round_number % 2:
            number = job.trigger()
            attempts[1].send("source", Up(n=1))
            for attempt in attempts:
                attempt.ack_checkpoint(number or -1)
        elif round_number % 4 == 0:
            attempts[0].lose()
            attempts[0] = job.register(0)
        held = [
            weights(one.attempt.received, one.attempt.sent)
            for one in sorted_values(job.runtime.state.subtasks)
            if one.attempt is not None
        ]
        assert job.runtime.state.remembered_bytes == sum(held)


def test_the_bound_leaves_room_for_a_snapshot_of_the_state() -> None:
    assert REMEMBERED_EVENTS_BYTES_MAX <= SNAPSHOT_STATE_BYTES_MAX // 2
