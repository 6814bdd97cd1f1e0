"""Acks of older attempts, failed triggers, completions that race with failures (clauses E1, E2, E5, G1, G3, H1)."""

from __future__ import annotations

import pytest

from coordlog.messages import CheckpointCompleted
from coordlog.projections.job.state import Phase
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import (
    HANDLED,
    NotingProvider,
    Up,
    chain_of,
    delivered,
    inside,
    prefix_of,
    send_down,
)

# Whose ack it is


@pytest.mark.clause("G1")
@pytest.mark.clause("B3")
def test_an_ack_of_an_older_attempt_opens_no_gateway_of_the_newer() -> None:
    """Were only the subtask looked at, the newer attempt would get events of after the cut ahead of its barrier."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    old, other = job.register_all()
    new = job.register(0)
    inside(other, provider, send_down(provider, 1, 9))  # its ack holds the barriers back
    job.trigger()
    inside(other, provider, send_down(provider, 0, 1))
    old.ack_checkpoint(1)
    assert delivered(job, new) == []
    other.ack("source", 0)
    old.ack_checkpoint(1)

    assert delivered(job, new) == ["|1"]
    assert job.history(Kind.CHECKPOINT_ACKED) == []
    assert job.history(Kind.FACT)[-1].reason == "attempt 0 of subtask 0 is over"
    new.ack_checkpoint(1)
    assert delivered(job, new) == ["|1", 1]


@pytest.mark.clause("G3")
@pytest.mark.clause("F8")
def test_a_trigger_that_is_refused_opens_no_gateway() -> None:
    """Were the newest mark opened whenever a trigger fails, events of after the cut of 1 would overtake barrier 1."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    inside(attempt, provider, send_down(provider, 0, 1))
    job.trigger()
    inside(attempt, provider, send_down(provider, 0, 2))
    before = job.log.high_watermark()

    assert job.trigger() is None
    assert delivered(job, attempt) == [1]
    assert job.log.high_watermark() == before
    attempt.ack("source", 0)
    assert delivered(job, attempt) == [1, "|1"]


# A completion that races with a failure: what a reset names is what the next attempt begins from, and what is told as
# lost is what came after it. Where one of the two were behind the other's back, work would be done twice or not at all.


def about_to_complete(provider: NotingProvider) -> tuple[HandDrivenJob, FakeAttempt, FakeAttempt]:
    """Checkpoint 1 lacks the ack of subtask 1; each subtask has been sent one event before it and one after."""
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    for subtask, one in enumerate((first, second)):
        inside(one, provider, send_down(provider, subtask, 10 + subtask))
        one.ack("source", subtask)
    job.trigger()
    inside(first, provider, send_down(provider, 0, 20))
    first.ack_checkpoint(1, states={"source": b"one"})
    first.ack("source", 2)
    first.send("source", Up(n=30))
    provider.calls.clear()
    return job, first, second


@pytest.mark.clause("E1")
@pytest.mark.clause("H1")
@pytest.mark.parametrize("is_released", [True, False], ids=["released", "not yet released"])
def test_a_failure_just_behind_a_completion_resets_to_what_has_completed(
    *, is_released: bool
) -> None:
    """Were the reset to name -1 here, what was assigned before 1 would go back, and be read twice."""
    provider = NotingProvider()
    job, first, second = about_to_complete(provider)
    job.is_held = not is_released
    second.ack_checkpoint(1)
    first.lose()
    assert provider.said("reset") == [("reset", 0, 1)]
    assert provider.lost == [([30], [20])]
    job.is_held = False
    job.pump()

    assert provider.said("complete", "aborted") == [("complete", 1)]
    again = job.register(0)
    assert again.accepted.restored_checkpoint == 1
    assert [one.state for one in again.accepted.states] == [b"one"]
    assert second.got(CheckpointCompleted) == [CheckpointCompleted(checkpoint_id=1)]
    assert job.trigger() == 2


@pytest.mark.clause("E1")
@pytest.mark.clause("H2")
def test_a_failure_just_ahead_of_a_completion_aborts_it() -> None:
    """Were 1 to complete all the same, the reset would have named a checkpoint that is not the last one."""
    provider = NotingProvider()
    job, first, second = about_to_complete(provider)
    first.lose()
    second.ack_checkpoint(1)

    assert provider.said("aborted", "reset", "complete") == [("aborted", 1), ("reset", 0, -1)]
    assert provider.lost == [([0, 0, 30], [10, 20])]
    assert job.history(Kind.CHECKPOINT_COMPLETED) == []
    assert job.register(0).accepted.restored_checkpoint == -1
    assert job.runtime.state.last_checkpoint == -1


@pytest.mark.clause("E2")
@pytest.mark.clause("H1")
@pytest.mark.parametrize("is_released", [True, False], ids=["released", "not yet released"])
@pytest.mark.may_fail("no reason")
def test_a_global_failure_right_after_a_completion_resets_to_it(*, is_released: bool) -> None:
    provider = NotingProvider()
    job, _, second = about_to_complete(provider)
    job.is_held = not is_released
    second.ack_checkpoint(1)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.is_held = False
    job.pump()
    job.stage_ends()
    job.advance(10)

    told = provider.said("restore", "start", "complete", "aborted")
    assert told[-3:] == [("restore", 1, b"state of 1"), ("start",), ("complete", 1)]
    assert told[:-3] == ([("complete", 1)] if is_released else [])
    assert [one.accepted.restored_checkpoint for one in job.register_all()] == [1, 1]


@pytest.mark.clause("E2")
@pytest.mark.clause("E5")
@pytest.mark.may_fail("no reason")
def test_a_global_failure_just_ahead_of_a_completion_leaves_it_out() -> None:
    provider = NotingProvider()
    job, _, second = about_to_complete(provider)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    second.ack_checkpoint(1)
    job.stage_ends()
    job.advance(10)

    assert provider.said("restore", "complete", "aborted") == [("restore", -1, None)]
    assert job.history(Kind.CHECKPOINT_COMPLETED) == []
    assert [one.checkpoint_id for one in job.history(Kind.CHECKPOINT_ABORTED)] == [1]


@pytest.mark.clause("E5")
@pytest.mark.clause("K5")
@pytest.mark.parametrize("restore", ["rollback", "resume"])
def test_a_driver_death_between_completion_and_failure_leaves_one_history(
    restore: str,
) -> None:
    provider = NotingProvider(projection=HANDLED)
    job, first, second = about_to_complete(provider)
    job.is_held = True
    second.ack_checkpoint(1)
    first.lose()
    group = job.runtime.turns.take_group()
    seen: set[int] = set()
    for end in range(1, len(group) + 1):
        log = prefix_of(job.log, job.log.high_watermark())
        log.writer().append(group[:end], timeout_s=1)
        provider.calls.clear()
        made = HandDrivenJob(job.chain, log=log, parallelism=2, restore=restore)
        last = made.runtime.state.last_checkpoint
        seen.add(last)
        restored = {one.accepted.restored_checkpoint for one in made.register_all()}
        assert restored == {last}
        assert provider.said("complete") == ([("complete", 1)] if last == 1 else [])
        assert made.runtime.state.phase is Phase.RUNNING
    assert seen == {-1, 1}
