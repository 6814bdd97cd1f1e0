"""One restart policy over local and global failovers (clause E2)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

import pytest

from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import DriverStops, StopAsked
from coordlog.kernel.outputs import Settle
from coordlog.kernel.refusals import encoded
from coordlog.kernel.restart_policy import (
    backoff_s,
    failures_in_window,
    is_exhausted,
    local_backoff_s,
)
from coordlog.projections.job.skips import reason_in_words
from coordlog.projections.job.state import DriverStop, JobState, Phase
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.effects import Releasing
from coordlog.runtime.runtime import Runtime, RuntimeOptions
from coordlog.schemas.evolution import evolve
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from coordlog.testing.replay import replay
from fakes.kernel_fakes import (
    HANDLED,
    Down,
    FakeSink,
    JumpyClock,
    NotingProvider,
    chain_of,
    inside,
    send_down,
)


def three_in_a_minute(config: KernelConfig) -> KernelConfig:
    return replace(config, restarts_max=3, restart_window_s=60.0)


@pytest.mark.clause("E2")
@pytest.mark.may_fail("four", "three")
def test_local_and_global_failovers_count_together() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), configure=three_in_a_minute)
    job.register(0).fail("one")
    job.register(0).fail("two")
    job.run(lambda: job.runtime.fail_job("source", "three"))
    job.stage_ends()
    job.advance(10)
    assert job.runtime.state.phase is Phase.RUNNING
    job.register(0).fail("four")

    assert job.runtime.state.phase is Phase.FAILED  # type: ignore[comparison-overlap]  # it has moved on
    assert job.runtime.outcome is not None
    assert not job.runtime.outcome.is_finished
    (failed,) = job.history(Kind.JOB_FAILED)
    said = str(failed.reason)
    assert said.startswith("poll of operator 'source' raised four")
    assert [said.index(one) for one in ("four", "three", "two", "one")] == sorted(
        said.index(one) for one in ("four", "three", "two", "one")
    )
    assert job.stage.cancelled[-1] == (2, "the job has failed")


@pytest.mark.clause("E2")
def test_failures_that_are_older_than_the_window_do_not_count() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), configure=three_in_a_minute)
    for _ in range(6):
        job.register(0).lose()
        job.advance(30)

    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("E2")
@pytest.mark.may_fail("connection lost")
def test_the_count_survives_the_driver() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), configure=three_in_a_minute)
    for _ in range(2):
        job.register(0).lose()
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log, configure=three_in_a_minute, clock=job.clock)
    assert job.runtime.state.phase is Phase.RUNNING, "a driver's end is the third"
    job.register(0).lose()

    assert job.runtime.state.phase is Phase.FAILED  # type: ignore[comparison-overlap]  # it has moved on


@pytest.mark.clause("E2")
@pytest.mark.may_fail("no reason")
def test_a_global_failover_waits_longer_each_time() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    waited = []
    for _ in range(3):
        job.run(lambda: job.runtime.fail_job("source", "no reason"))
        before = job.clock.seconds
        due = job.runtime.next_timer_s()
        assert due is not None
        waited.append(due - before)
        job.stage_ends()
        job.advance(due - before + 0.001)
        assert job.runtime.state.phase is Phase.RUNNING

    assert waited == [0.5, 1.0, 2.0]


@pytest.mark.clause("E2")
def test_a_failed_subtasks_next_attempt_waits_from_its_second_failure_on() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    job.register(1)
    job.register(0).lose()
    assert job.register(0, is_patient=False).accepted.attempt_number == 1
    job.attempts[3].lose()

    waiting = job.register(0, is_patient=False)
    assert waiting.inbox == []
    job.advance(0.4)
    assert waiting.inbox == []
    job.advance(0.2)
    assert waiting.accepted.attempt_number == 2


def test_a_task_that_is_lost_while_it_waits_becomes_no_attempt() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0).lose()
    job.register(0).lose()
    waiting = job.register(0, is_patient=False)
    waiting.lose()
    job.advance(5)

    assert job.runtime.state.live_count == 0
    assert len(job.history(Kind.ATTEMPT_STARTED)) == 2


def test_a_split_with_three_failures_in_a_row_is_named_as_poison() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    for n in range(4):
        job.register(0).fail("bad row", split_id="part-3")
        assert job.runtime.state.poison["split_id:part-3"] == n + 1

    reasons = [str(reason_in_words(one)) for one in job.history(Kind.ATTEMPT_FAILED)]
    said = ["coordlog skip job --split part-3 " in one for one in reasons]
    assert said == [False, False, True, True]
    job.register(0).finish_split("source", "part-3")
    assert "split_id:part-3" not in job.runtime.state.poison


# --- the functions, at their limits ----------------------------------------------------------------
def at_its_limits() -> tuple[KernelConfig, JobState]:
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        configure=lambda config: replace(
            config,
            restarts_max=3,
            restart_window_s=10.0,
            restart_backoff_s=0.5,
            restart_backoff_max_s=60.0,
        ),
    )
    return job.runtime._config, job.runtime.state


@pytest.mark.clause("E2")
def test_a_failure_just_as_old_as_the_window_does_not_count() -> None:
    config, state = at_its_limits()
    state = evolve(state, failures_us=(20_000_000, 20_000_001, 29_999_999))

    assert failures_in_window(config, state, 29_999_999) == 3
    assert failures_in_window(config, state, 30_000_000) == 2
    assert failures_in_window(config, state, 30_000_001) == 1
    assert failures_in_window(config, state, 50_000_000) == 0
    assert [is_exhausted(config, state, now) for now in (29_999_999, 30_000_000)] == [True, False]
    assert is_exhausted(config, evolve(state, failures_us=(1,) * 4), 2)


@pytest.mark.clause("E2")
def test_pauses_double_with_each_failure_in_the_window_up_to_their_limit() -> None:
    config, state = at_its_limits()
    counts = (0, 1, 2, 3, 4, 6, 7, 8, 5000)
    states = [evolve(state, failures_us=(1,) * count) for count in counts]

    assert [backoff_s(config, one, 2) for one in states] == [
        *(0.5, 1.0, 2.0, 4.0, 8.0, 32.0),
        *(60.0, 60.0, 60.0),
    ]
    assert [local_backoff_s(config, one, 2) for one in states] == [
        *(0.0, 0.0, 0.5, 1.0, 2.0, 8.0, 16.0),
        *(32.0, 60.0),
    ]


@pytest.mark.clause("E2")
@pytest.mark.parametrize("ahead_at", ["a record", "a failure"])
def test_one_record_of_a_clock_hours_ahead_does_not_join_later_failures(
    ahead_at: str,
) -> None:
    clock = JumpyClock()
    job = HandDrivenJob(chain_of(NotingProvider()), clock=clock, configure=three_in_a_minute)
    clock.ahead_s = 12 * 3600
    attempt = job.register(0)
    if ahead_at == "a failure":
        attempt.lose()
    clock.ahead_s = 0
    for _ in range(8):
        if ahead_at == "a failure":
            attempt = job.register(0)
        attempt.lose()
        job.advance(3600)
        attempt = job.register(0)
        attempt.lose()
        job.advance(3600)
        attempt = job.register(0)

    assert job.runtime.state.phase is Phase.RUNNING
    (first, *_) = job.history(Kind.SUBTASK_RESET)[1:]
    assert int(first.attributes["clock_us"]) < first.timestamp_us
    assert replay(job.log, job.chain).epoch_count == 1


@pytest.mark.clause("E2")
@pytest.mark.may_fail("connection lost")
def test_failures_together_count_under_a_clock_that_was_ahead_before() -> None:
    clock = JumpyClock()
    job = HandDrivenJob(chain_of(NotingProvider()), clock=clock, configure=three_in_a_minute)
    clock.ahead_s = 12 * 3600
    attempt = job.register(0)
    clock.ahead_s = 0
    for _ in range(4):
        assert job.runtime.state.phase is Phase.RUNNING
        attempt.lose()
        job.advance(5)
        attempt = job.register(0)

    assert job.runtime.state.phase is Phase.FAILED


@pytest.mark.clause("E2")
def test_failures_of_a_clock_ahead_by_more_than_the_window_do_not_count() -> None:
    config, state = at_its_limits()
    state = evolve(state, failures_us=(90_000_000, 90_000_000, 90_000_000))

    assert failures_in_window(config, state, 80_000_000) == 0
    assert failures_in_window(config, state, 80_000_001) == 3
    assert failures_in_window(config, state, 100_000_000) == 0


# --- drivers that end ---
def opened(
    job: HandDrivenJob | None, *, projection: OperatorProjection[Any] | None = None
) -> HandDrivenJob:
    """The next driver of a job, which runs an attempt, and has died a second later."""
    if job is None:
        chain, log, clock = chain_of(NotingProvider(projection=projection)), None, None
    else:
        chain, log, clock = job.chain, job.log, job.clock
    opened = HandDrivenJob(
        chain,
        log=log,
        clock=clock,
        is_batch=projection is not None,
        configure=three_in_a_minute,
    )
    if opened.runtime.state.phase is Phase.RUNNING:
        opened.register(0)
    opened.clock.seconds += 1
    opened.crash()
    return opened


@pytest.mark.clause("E2")
@pytest.mark.parametrize(("projection", "mode"), [(None, "rollback"), (HANDLED, "resume")])
@pytest.mark.may_fail("its driver ended without a stop")
def test_a_job_whose_drivers_keep_dying_fails_by_name_and_counts_afresh(
    projection: OperatorProjection[Any] | None, mode: str
) -> None:
    job = opened(None, projection=projection)
    for _ in range(3):
        job = opened(job, projection=projection)
        assert (job.mode, job.runtime.state.phase) == (mode, Phase.RUNNING)
    job = opened(job, projection=projection)

    (over,) = job.history(Kind.JOB_FAILED)
    assert (over.reason or "").startswith(
        "its driver ended without a stop, after 3 failures and such ends within 60 s: find out why "
        "the drivers end (memory, the machine, Spark's session), then start the job again, with a "
        "new count; before that: its driver"
    )
    assert replay(job.log, job.chain).epoch_count == 5
    job = opened(job, projection=projection)
    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("E2")
def test_deaths_of_drivers_that_are_minutes_apart_do_not_add_up() -> None:
    job = opened(None)
    for _ in range(8):
        job.clock.seconds += 30
        job = opened(job)

    assert job.runtime.state.phase is Phase.RUNNING


STOP = StopAsked(by="SIGTERM", with_checkpoint=True, is_at_once=False)


@pytest.mark.clause("E2")
@pytest.mark.clause("K3")
@pytest.mark.parametrize("is_over", [False, True], ids=["killed while it stops", "stopped"])
@pytest.mark.parametrize("snapshot_every", [None, 1])
def test_a_driver_that_was_told_to_stop_has_not_died(
    *, is_over: bool, snapshot_every: int | None
) -> None:
    """A snapshot between the wish and the end: the next driver folds from there."""
    job = HandDrivenJob(
        chain_of(NotingProvider()), options=RuntimeOptions(snapshot_every=snapshot_every)
    )
    attempt = job.register(0)
    job.run(lambda: job.runtime.stop(STOP, lambda: None))
    attempt.ack_checkpoint(job.trigger() or 0)
    if is_over:
        job.run(lambda: job.runtime.stop(DriverStops(by="SIGTERM"), lambda: None))
    job.crash()
    made = rebuild(job.log, job.chain, projection_of(job.chain))
    assert (made.started_at is None) == (snapshot_every is None)
    assert made.state.driver_stop is (DriverStop.DONE if is_over else DriverStop.ASKED)

    job = HandDrivenJob(job.chain, log=job.log, clock=job.clock)

    (reset,) = job.history(Kind.RESET_TO_CHECKPOINT)
    assert reset.attributes["counted"] == "false"
    assert job.runtime.state.failures_us == ()
    assert job.runtime.state.driver_stop is DriverStop.NONE


@pytest.mark.clause("E2")
@pytest.mark.may_fail("its driver ended without a stop")
def test_drivers_that_die_before_their_first_turn_hide_no_earlier_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = opened(None)
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(Runtime, "begin", lambda *_given: None)
            job = opened(job)
        assert job.runtime.state.phase is Phase.STARTING
        job = opened(job)
        assert job.runtime.state.phase is Phase.RUNNING
    job = opened(job)

    assert job.runtime.state.phase is Phase.FAILED


@pytest.mark.clause("E2")
@pytest.mark.may_fail("its driver ended without a stop")
def test_a_stop_before_the_first_turn_hides_no_earlier_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A supervisor stops some starts: the deaths of the drivers between them still add up."""
    job = opened(None)
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(Runtime, "begin", lambda *_given: None)
            job = HandDrivenJob(job.chain, log=job.log, clock=job.clock)
        job.run(partial(job.runtime.stop, DriverStops(by="SIGTERM"), lambda: None))
        job.crash()
        assert job.runtime.state.phase is Phase.STARTING
        job = opened(job)
    job = opened(job)

    assert job.runtime.state.phase is Phase.FAILED


@pytest.mark.clause("E2")
@pytest.mark.clause("I3")
@pytest.mark.may_fail("its driver ended without a stop")
def test_a_batch_whose_drivers_die_at_the_commit_fails_and_then_settles_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = FakeSink()
    job = HandDrivenJob(
        chain_of(NotingProvider(), NotingProvider("sink", sink=sink)),
        is_batch=True,
        configure=three_in_a_minute,
    )
    job.is_work_held = True
    job.register(0).complete(committables=[("sink", b"a")])

    def next_driver(*, is_killed: bool) -> HandDrivenJob:
        job.crash()
        if is_killed:
            monkeypatch.setattr(Releasing, "settle", _killed)
        try:
            return HandDrivenJob(
                job.chain,
                log=job.log,
                clock=job.clock,
                is_batch=True,
                configure=three_in_a_minute,
            )
        finally:
            monkeypatch.undo()

    for _ in range(3):
        with pytest.raises(_KilledError):
            next_driver(is_killed=True)
    job = next_driver(is_killed=False)

    (over,) = job.history(Kind.JOB_FAILED)
    assert (over.reason or "").startswith("its driver ended without a stop, after 3 failures")
    assert sink.settled == []
    assert replay(job.log, job.chain).epoch_count == 5
    job = next_driver(is_killed=False)
    assert (job.mode, job.runtime.state.phase) == ("settle", Phase.FINISHED)
    assert sink.settled == [("a",)]
    assert job.history(Kind.RESET_TO_CHECKPOINT) == []


class _KilledError(BaseException):
    """The process ends in the middle of a commit."""


def _killed(_releasing: Releasing, _effect: Settle) -> None:
    raise _KilledError


@pytest.mark.clause("E2")
def test_a_rollback_to_an_older_checkpoint_is_never_one_death_too_many() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), configure=three_in_a_minute)
    job.register(0).ack_checkpoint(job.trigger() or 0)
    job.crash()
    for _ in range(3):
        job = opened(job)

    job = HandDrivenJob(
        job.chain, log=job.log, clock=job.clock, configure=three_in_a_minute, from_checkpoint=1
    )

    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("E2")
@pytest.mark.may_fail("scripted")
def test_a_reset_says_whether_a_failover_or_a_new_driver_made_it() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    job.stage_ends("cancelled")
    job.advance(60)
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log)

    said = [
        (one.attributes["restore"], one.attributes["counted"])
        for one in job.history(Kind.RESET_TO_CHECKPOINT)
    ]
    assert said == [("failover", "true"), ("rollback", "true")]


@pytest.mark.clause("E2")
def test_what_died_with_its_driver_counts_once_against_the_restart_policy() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)), is_batch=True, parallelism=2)
    job.register_all()
    job.crash()
    job = HandDrivenJob(job.chain, is_batch=True, parallelism=2, log=job.log)

    resets = job.history(Kind.SUBTASK_RESET)
    assert [one.attributes.get("counted") for one in resets] == ["false", "false"]
    assert len(job.runtime.state.failures_us) == 1


@pytest.mark.clause("E2")
@pytest.mark.may_fail("third", "first", "second")
def test_a_second_failure_before_the_reset_leaves_no_pause_of_its_own() -> None:
    """It would end the next failure's pause early."""
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        configure=lambda config: replace(config, restart_backoff_s=10.0),
    )
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "first"))
    job.advance(9)
    job.run(lambda: job.runtime.fail_job("source", "second"))
    job.stage_ends()
    job.advance(1)
    assert len(job.history(Kind.RESET_TO_CHECKPOINT)) == 1
    job.run(lambda: job.runtime.fail_job("source", "third"))
    job.advance(15)

    assert len(job.history(Kind.RESET_TO_CHECKPOINT)) == 1
    job.advance(10)
    assert len(job.history(Kind.RESET_TO_CHECKPOINT)) == 2


@pytest.mark.clause("C4")
def test_a_poisonous_event_is_known_by_operator_type_and_content() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(ack_timeout_s=5.0))
    for _ in range(2):
        inside(job.register(0), provider, send_down(provider, 0, 1))
        job.advance(6)

    digest = blake2b(encoded(Down(n=1))[1], digest_size=8).hexdigest()
    assert dict(job.runtime.state.poison) == {f"event:source/test.down@1/{digest}": 2}


@pytest.mark.clause("H3")
@pytest.mark.may_fail("the disk is full")
def test_a_driver_that_allows_fewer_tries_than_used_fails_at_the_next_one() -> None:
    sink = FakeSink()
    sink.failures = 99
    job = HandDrivenJob(chain_of(NotingProvider(sink=sink)))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    job.advance(2)
    assert sink.tries == 2
    job.crash()
    job = HandDrivenJob(
        job.chain,
        log=job.log,
        clock=job.clock,
        configure=lambda config: replace(config, settle_attempts_max=1),
    )

    assert sink.tries == 3
    assert job.runtime.state.phase is Phase.FAILED
