"""One restart policy over local and global failovers (clause E2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordlog.kernel.building import KernelConfig
from coordlog.kernel.policy import backoff_s, failures_in_window, is_exhausted, local_backoff_s
from coordlog.projections.state import JobState, Phase
from coordlog.schemas.evolving import evolve
from coordlog.schemas.record import Kind
from coordlog.testing.by_hand import HandDrivenJob
from kernel_fakes import NotingProvider, chain_of


def three_in_a_minute(config: KernelConfig) -> KernelConfig:
    return replace(config, restarts_max=3, restart_window_s=60.0)


@pytest.mark.clause("E2")
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
def test_the_count_survives_the_driver() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), configure=three_in_a_minute)
    for _ in range(3):
        job.register(0).lose()
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log, configure=three_in_a_minute, clock=job.clock)
    assert job.runtime.state.phase is Phase.RUNNING, "a driver's end is no failure"
    job.register(0).lose()

    assert job.runtime.state.phase is Phase.FAILED  # type: ignore[comparison-overlap]  # it has moved on


@pytest.mark.clause("E2")
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


def test_a_split_at_which_attempts_fail_three_times_in_a_row_is_named_as_poison() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    for n in range(4):
        job.register(0).fail("bad row", split_id="part-3")
        assert job.runtime.state.poison["split_id:part-3"] == n + 1

    reasons = [str(one.reason) for one in job.history(Kind.ATTEMPT_FAILED)]
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
