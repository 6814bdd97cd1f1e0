"""A restore with another parallelism: who gets what subtasks had that there are no more (clause E7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordlog.errors import RestoreError
from coordlog.messages import DeliverEvent
from coordlog.projections.job.checkpoints import restoring_subtasks
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import RequestSplit
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up
from fakes.kernel_fakes import chain_of as noting_chain
from fakes.split_fakes import (
    NO_MORE,
    ack_all,
    ask,
    checkpoint,
    fail_globally,
    places,
    pull_of,
    told,
)
from fakes.split_fakes import chain_of as splits_chain

pytestmark = pytest.mark.clause("E7")


def merging(job: HandDrivenJob, parallelism: int) -> HandDrivenJob:
    """The same job with a source that merges."""
    source = replace(job.chain.source, merge_states=b"+".join)
    chain = replace(job.chain, source=source)
    return HandDrivenJob(chain, log=job.log, parallelism=parallelism)


def states_of(attempt: FakeAttempt) -> list[bytes | None]:
    return [one.state for one in attempt.accepted.states]


@pytest.mark.parametrize(
    ("was", "now", "dealt"),
    [
        (4, 4, [(0,), (1,), (2,), (3,)]),
        (5, 2, [(0, 2, 4), (1, 3)]),
        (3, 1, [(0, 1, 2)]),
        (2, 4, [(0,), (1,), (), ()]),
    ],
)
def test_each_part_of_a_checkpoint_goes_to_one_subtask(
    was: int, now: int, dealt: list[tuple[int, ...]]
) -> None:
    assert [restoring_subtasks(was, now, one) for one in range(now)] == dealt


def crashed_with_states(count: int, provider: NotingProvider | None = None) -> HandDrivenJob:
    """Checkpoint 1 holds a state of each subtask."""
    job = HandDrivenJob(noting_chain(provider or NotingProvider()), parallelism=count)
    attempts = job.register_all()
    job.trigger()
    for number, attempt in enumerate(attempts):
        attempt.ack_checkpoint(1, states={"source": f"s{number}".encode()})
    job.crash()
    return job


def test_fewer_subtasks_are_restored_with_the_states_of_all() -> None:
    job = merging(crashed_with_states(5), parallelism=2)

    assert [states_of(one) for one in job.register_all()] == [
        [b"s0", b"s2", b"s4"],
        [b"s1", b"s3"],
    ]


def test_more_subtasks_keep_theirs_and_new_ones_begin_afresh() -> None:
    old = crashed_with_states(2)
    job = HandDrivenJob(old.chain, log=old.log, parallelism=3)

    assert [states_of(one) for one in job.register_all()] == [[b"s0"], [b"s1"], []]
    assert job.runtime.state.parallelism == 3
    (reset,) = job.history(Kind.RESET_TO_CHECKPOINT)
    said = (reset.attributes["parallelism_was"], reset.attributes["parallelism"])
    assert said == ("2", "3")


def test_a_state_that_cannot_be_merged_is_refused_before_any_append() -> None:
    old = crashed_with_states(3)
    before = old.log.high_watermark()

    with pytest.raises(RestoreError, match="operator 'source' in checkpoint 1") as raised:
        HandDrivenJob(old.chain, log=old.log, parallelism=2)

    assert old.log.high_watermark() == before
    assert "pass `merge_states=` to its SourceSpec" in str(raised.value)


@pytest.mark.parametrize("restore", ["rollback", "resume"])
def test_an_epoch_of_the_same_parallelism_hides_no_state_to_merge(restore: str) -> None:
    """It has died before a checkpoint of its own, so that the states are those of more subtasks."""
    old = crashed_with_states(3, NotingProvider(projection=HANDLED))
    merging(old, parallelism=2).crash()
    before = old.log.high_watermark()

    with pytest.raises(RestoreError, match="operator 'source' in checkpoint 1") as raised:
        HandDrivenJob(old.chain, log=old.log, parallelism=2, restore=restore)

    assert old.log.high_watermark() == before
    assert "pass `merge_states=` to its SourceSpec" in str(raised.value)


def test_states_too_large_for_one_subtask_are_refused_before_any_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = crashed_with_states(4)
    before = old.log.high_watermark()
    monkeypatch.setattr("coordlog.restore.rebuild.RESTORED_STATES_BYTES_MAX", 5)

    with pytest.raises(RestoreError, match="operator 'source' in checkpoint 1") as raised:
        merging(old, parallelism=1)

    assert old.log.high_watermark() == before
    assert "with 8 bytes of states, 8 of them its own" in str(raised.value)
    assert "with at most 5 bytes for a subtask" in str(raised.value)
    assert "--payload-store" in str(raised.value)
    assert merging(old, parallelism=2).runtime.state.parallelism == 2


@pytest.mark.may_fail("scripted")
def test_later_failures_restore_the_old_checkpoint_until_a_new_one() -> None:
    job = merging(crashed_with_states(4), parallelism=2)
    first, _ = job.register_all()
    first.lose()
    job.advance(60)
    assert states_of(job.register(0)) == [b"s0", b"s2"]
    fail_globally(job)
    attempts = job.register_all()
    assert [states_of(one) for one in attempts] == [[b"s0", b"s2"], [b"s1", b"s3"]]

    number = job.trigger()
    assert number is not None
    for one in attempts:
        one.ack_checkpoint(number, states={"source": b"new"})
    fail_globally(job)
    assert [states_of(one) for one in job.register_all()] == [[b"new"], [b"new"]]


@pytest.mark.clause("B7")
def test_no_attempt_number_is_reused_over_fewer_subtasks_and_more_again() -> None:
    old = crashed_with_states(3)
    fewer = merging(old, parallelism=1)
    fewer.register(0)
    fewer.crash()
    job = merging(fewer, parallelism=3)
    job.register_all()

    started = [(one.subtask, one.attempt_number) for one in job.history(Kind.ATTEMPT_STARTED)]
    assert len(set(started)) == len(started) == 7
    assert started[-3:] == [(0, 2), (1, 1), (2, 1)]


@pytest.mark.clause("D3")
def test_an_event_of_a_removed_subtask_is_redelivered_with_its_old_number() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(noting_chain(provider), parallelism=2)
    _, second = job.register_all()
    job.trigger()
    second.send("source", Up(n=7))
    for attempt in list(job.attempts.values()):
        attempt.ack_checkpoint(1)
    job.crash()
    provider.calls.clear()
    HandDrivenJob(job.chain, log=job.log, parallelism=1)

    assert provider.said("event") == [("event", 1, 0, 7, "again")]


def test_a_subtask_is_finished_where_all_that_it_is_restored_with_is() -> None:
    job = HandDrivenJob(noting_chain(NotingProvider()), parallelism=4)
    attempts = job.register_all()
    for one in (attempts[0], attempts[2], attempts[3]):
        one.complete()
    number = job.trigger()
    assert number is not None
    attempts[1].ack_checkpoint(number)
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log, parallelism=2)

    assert [job.runtime.state.subtasks[one].completion is None for one in (0, 1)] == [False, True]
    assert job.runtime.state.finished_count == 1


def test_the_splits_of_a_subtask_that_is_no_more_are_with_another() -> None:
    job = HandDrivenJob(splits_chain(pull_of("a", "b", "c", "d")), parallelism=3)
    attempts = job.register_all()
    for one in attempts:
        ask(one)
    checkpoint(job, *attempts)
    assert places(job) == {"a": "with 0", "b": "with 1", "c": "with 2", "d": "enumerator"}
    job.crash()
    job = merging(job, parallelism=2)
    assert places(job) == {"a": "with 0", "b": "with 1", "c": "with 0", "d": "enumerator"}

    first, second = job.register_all()
    ask(second)
    assert told(job, second) == ["d"]
    ack_all(second)
    first.lose()
    job.advance(1)
    again = job.register(0)
    ask(again)
    assert places(job)["a"] == places(job)["c"] == "with 0", "they are part of the checkpoint"
    assert told(job, again) == [NO_MORE]


def test_a_request_of_a_subtask_that_is_no_more_is_answered_to_another() -> None:
    job = HandDrivenJob(splits_chain(pull_of("a", "b")), parallelism=2)
    first, second = job.register_all()
    number = job.trigger()
    assert number is not None
    second.send("source", RequestSplit())
    for one in (first, second):
        for message in one.got(DeliverEvent):
            one.ack("source", message.event_id)
        one.ack_checkpoint(number)
    job.crash()
    job = merging(job, parallelism=1)

    assert told(job, job.register(0)) == ["a"]


def test_a_job_that_had_not_begun_begins_with_what_is_asked_for() -> None:
    old = HandDrivenJob(noting_chain(NotingProvider()), parallelism=3, is_held=True)
    old.crash()
    job = HandDrivenJob(old.chain, log=old.log, parallelism=2)

    assert sorted(job.runtime.state.subtasks) == [0, 1]


def test_no_more_splits_is_sent_at_once_only_if_all_merged_readers_had_it() -> None:
    job = merging(HandDrivenJob(splits_chain(pull_of("a", "b", "c")), parallelism=2), 2)
    first, second = job.register_all()
    ask(first)
    ask(second)
    checkpoint(job, first, second)
    second.finish_split("source", "b")
    ask(second)
    first.finish_split("source", "a")
    ask(first)
    assert told(job, first) == ["a", NO_MORE]
    assert told(job, second) == ["b", "c"]
    ack_all(first)
    first.complete()
    second.lose()
    job.advance(60.0)
    second = job.register(1)
    checkpoint(job, second)
    assert places(job) == {"a": "finished by 0", "b": "with 1", "c": "enumerator"}

    job.crash()
    job = merging(job, 1)
    (only,) = job.register_all()
    assert told(job, only) == [], "c is left: it is not the end"
    only.finish_split("source", "b")
    ask(only)
    assert told(job, only) == ["c"]


@pytest.mark.clause("L5")
def test_a_subtask_that_goes_on_for_two_that_were_told_is_told() -> None:
    job = HandDrivenJob(splits_chain(pull_of("a")), parallelism=2)
    attempts = job.register_all()
    for one in (attempts[0], attempts[0], attempts[1]):
        ask(one)
    checkpoint(job, *attempts)
    job.crash()
    job = merging(job, parallelism=1)

    assert told(job, job.register(0)) == [NO_MORE]
