"""Who has which split, through failures, checkpoints and resumes (clauses L3 to L5, D3, D5).

The coordinator runs in the real kernel and runtime on an in-memory log.
"""

from __future__ import annotations

import pytest

from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.limits import CHECKPOINT_TIMEOUT_S
from coordlog.messages import DeliverEvent
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import (
    SplitsDiscovered,
)
from coordlog.testing.driven_job import HandDrivenJob
from fakes.split_fakes import (
    NO_MORE,
    More,
    Slowly,
    ack_all,
    ask,
    chain_of,
    checkpoint,
    fail_globally,
    listing,
    places,
    pull_of,
    split,
    state_of,
    told,
    unlisted,
)

# Pull


@pytest.mark.clause("L5")
@pytest.mark.flink("SC3")
def test_each_request_is_answered_by_one_split_in_the_order_of_discovery() -> None:
    job = HandDrivenJob(chain_of(pull_of("c", "a", "b")), parallelism=2)
    first, second = job.register_all()

    ask(second)
    ask(first)
    ask(second)

    assert told(job, second) == ["c", "b"]
    assert told(job, first) == ["a"]


@pytest.mark.clause("L5")
def test_when_nothing_is_left_a_request_is_answered_by_no_more_splits_once() -> None:
    job = HandDrivenJob(chain_of(pull_of("a")))
    (attempt,) = job.register_all()

    ask(attempt)
    ask(attempt)
    ask(attempt)

    assert told(job, attempt) == ["a", NO_MORE]


@pytest.mark.clause("L5")
def test_requests_that_come_before_the_listing_is_there_are_answered_by_it() -> None:
    job = unlisted(chain_of(pull_of("a", "b")), parallelism=3)
    attempts = job.register_all()
    assert not state_of(job).splits
    for one in reversed(attempts):
        ask(one)
    assert [told(job, one) for one in attempts] == [[], [], []]

    job.is_work_held = False
    job.pump()

    assert [told(job, one) for one in attempts] == [[NO_MORE], ["b"], ["a"]]


# Local failovers


@pytest.mark.clause("L4")
@pytest.mark.flink("SC9")
@pytest.mark.flink("ST5")
def test_without_a_checkpoint_all_splits_of_a_lost_attempt_go_back() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b", "c", "d")), parallelism=2)
    first, second = job.register_all()
    ask(first)
    ask(second)
    ask(first)
    assert told(job, first) == ["a", "c"]

    first.finish_split("source", "a")
    first.fail()

    assert places(job) == {
        "a": "enumerator",
        "b": "with 1",
        "c": "enumerator",
        "d": "enumerator",
    }
    assert state_of(job).unassigned() == ("a", "c", "d")
    assert told(job, second) == ["b"]


@pytest.mark.clause("L4")
@pytest.mark.flink("SC10")
@pytest.mark.flink("ST4")
@pytest.mark.flink("ST6")
def test_splits_assigned_before_the_cut_stay_and_later_ones_go_back() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b", "c")))
    (attempt,) = job.register_all()
    ask(attempt)
    checkpoint(job, attempt)
    ask(attempt)
    assert places(job) == {"a": "with 0", "b": "with 0", "c": "enumerator"}

    attempt.fail()

    assert places(job) == {"a": "with 0", "b": "enumerator", "c": "enumerator"}


@pytest.mark.clause("L4")
def test_the_cut_decides_not_the_completion_of_the_checkpoint() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b", "c")), parallelism=2)
    first, second = job.register_all()
    ask(first)
    ack_all(first)
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    ask(first)  # after the cut, before the barrier: held, and not part of the checkpoint
    assert told(job, first) == ["a"]
    first.ack_checkpoint(checkpoint_id)
    assert told(job, first) == ["a", "b"]
    second.ack_checkpoint(checkpoint_id)
    assert job.runtime.state.last_checkpoint == checkpoint_id

    first.fail()

    assert places(job) == {"a": "with 0", "b": "enumerator", "c": "enumerator"}


@pytest.mark.clause("L4")
def test_a_checkpoint_that_is_aborted_keeps_no_split_from_going_back() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")), parallelism=2)
    first, second = job.register_all()
    ask(first)
    ack_all(first)
    assert job.trigger() is not None
    second.fail()  # aborts it

    first.fail()

    assert places(job) == {"a": "enumerator", "b": "enumerator"}
    assert not state_of(job).cuts


@pytest.mark.clause("L3")
def test_a_split_finished_after_the_barrier_returns_to_the_restored_reader() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")))
    (attempt,) = job.register_all()
    ask(attempt)
    ask(attempt)
    attempt.finish_split("source", "a")
    checkpoint(job, attempt)
    attempt.finish_split("source", "b")
    assert places(job) == {"a": "finished by 0", "b": "finished by 0"}

    attempt.fail()

    assert places(job) == {"a": "finished by 0", "b": "with 0"}


@pytest.mark.clause("L5")
@pytest.mark.flink("SC18")
def test_a_replaced_attempt_gets_the_same_splits_and_no_more_splits_again() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")))
    (attempt,) = job.register_all()
    for _ in range(3):
        ask(attempt)
    assert told(job, attempt) == ["a", "b", NO_MORE]
    ack_all(attempt)
    assert job.trigger() is not None

    attempt.fail()
    replaced = job.register(0)
    for _ in range(3):
        ask(replaced)

    assert told(job, replaced) == ["a", "b", NO_MORE]


@pytest.mark.clause("L5")
def test_a_reader_with_no_more_splits_in_its_checkpoint_gets_it_unasked() -> None:
    job = HandDrivenJob(chain_of(pull_of("a")))
    (attempt,) = job.register_all()
    ask(attempt)
    ask(attempt)
    checkpoint(job, attempt)

    for _ in range(2):
        attempt.fail()
        attempt = job.register(0)
        assert told(job, attempt) == [NO_MORE]


@pytest.mark.clause("L5")
def test_splits_that_come_back_go_to_readers_that_wait() -> None:
    # Splits are found one after the other here, so that readers can wait while all are assigned.
    provider = SplitCoordinatorProvider("source", enumerator=Slowly, payload_types=(More,))
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    ask(first)
    ask(second)
    assert (told(job, first), told(job, second)) == (["a"], [])

    first.fail()

    assert told(job, second) == ["a"]


@pytest.mark.clause("D5")
def test_requests_that_a_lost_attempt_sent_after_its_barrier_are_undone() -> None:
    provider = SplitCoordinatorProvider("source", enumerator=Slowly, payload_types=(More,))
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    ask(first)
    ask(first)
    ask(first)
    assert told(job, first) == ["a"]

    first.fail()
    replaced = job.register(0)
    assert state_of(job).reader(0).owed == 0
    ask(second)

    assert told(job, second) == ["a"]
    assert told(job, replaced) == []


@pytest.mark.clause("D5")
@pytest.mark.clause("D3")
def test_a_request_answered_between_barrier_and_cut_is_answered_again() -> None:
    provider = SplitCoordinatorProvider("source", enumerator=Slowly, payload_types=(More,))
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    ask(second)
    ask(first)  # nothing is left for it: it waits, and this is part of the checkpoint
    checkpoint(job, first, second)
    second.send("source", More(name="b"))
    assert told(job, first) == ["b"]

    first.fail()
    replaced = job.register(0)

    assert told(job, replaced) == ["b"]
    assert places(job) == {"a": "with 1", "b": "with 0"}


@pytest.mark.clause("B5")
def test_a_returned_split_is_not_given_to_a_reader_that_ends_in_that_turn() -> None:
    provider = SplitCoordinatorProvider("source", enumerator=Slowly, payload_types=(More,))
    job = HandDrivenJob(chain_of(provider), parallelism=3)
    first, second, third = job.register_all()
    ask(second)  # the oldest request: answered, then part of the checkpoint
    ask(second)
    checkpoint(job, first, second, third)
    first.send("source", More(name="b"))
    assert told(job, second) == ["a", "b"]
    ack_all(second)
    ask(third)

    # Three checkpoints time out for lack of both: both fail in one turn, `first` ahead of `second`.
    for _ in range(3):
        checkpoint_id = job.trigger()
        assert checkpoint_id is not None
        third.ack_checkpoint(checkpoint_id)
        job.advance(CHECKPOINT_TIMEOUT_S)

    (turn,) = {one.timestamp_us for one in job.history(Kind.ATTEMPT_FAILED)}
    assert turn
    assert told(job, third) == ["b"]
    assert [one for one in job.history(Kind.EVENT_FAILED) if "never_sent" in one.attributes] == []


@pytest.mark.clause("L3")
def test_splits_that_come_back_are_unassigned_in_the_order_of_discovery() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")), parallelism=2)
    first, second = job.register_all()
    ask(first)
    ask(second)

    second.fail()
    first.fail()

    assert state_of(job).unassigned() == ("a", "b")


@pytest.mark.clause("L3")
def test_a_split_finished_before_the_completion_returns_to_the_reader() -> None:
    job = HandDrivenJob(chain_of(pull_of("a")), parallelism=2)
    first, second = job.register_all()
    ask(first)
    ack_all(first)
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    first.ack_checkpoint(checkpoint_id)
    first.finish_split("source", "a")
    second.ack_checkpoint(checkpoint_id)

    first.fail()

    assert places(job) == {"a": "with 0"}


# Global failovers and redelivery


@pytest.mark.clause("L3")
@pytest.mark.flink("SC7")
@pytest.mark.may_fail("scripted")
def test_a_global_failover_unassigns_splits_assigned_after_the_cut() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b", "c")))
    (attempt,) = job.register_all()
    ask(attempt)
    checkpoint(job, attempt)
    ask(attempt)

    fail_globally(job)

    assert places(job) == {"a": "with 0", "b": "enumerator", "c": "enumerator"}
    (restored,) = job.register_all()
    ask(restored)
    restored.fail()
    assert places(job) == {"a": "with 0", "b": "enumerator", "c": "enumerator"}


@pytest.mark.clause("D3")
@pytest.mark.may_fail("scripted")
def test_a_redelivered_request_is_answered_when_the_attempt_is_ready() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b", "c")), parallelism=2)
    first, second = job.register_all()
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    ask(first)  # after the cut, before the barrier: channel state
    first.ack_checkpoint(checkpoint_id)
    second.ack_checkpoint(checkpoint_id)
    assert told(job, first) == ["a"]

    fail_globally(job)
    assert len(job.history(Kind.EVENT_REDELIVERED)) == 1
    assert state_of(job).reader(0).owed == 1
    again = job.register(0)
    assert told(job, again) == ["a"]

    # And once more to the same checkpoint, by a local failover.
    again.fail()
    assert told(job, job.register(0)) == ["a"]


@pytest.mark.clause("D3")
@pytest.mark.may_fail("scripted")
def test_a_request_waiting_at_the_cut_still_waits_after_a_global_failover() -> None:
    provider = SplitCoordinatorProvider("source", enumerator=Slowly, payload_types=(More,))
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    ask(second)
    ask(first)
    checkpoint(job, first, second)

    fail_globally(job)
    restored, other = job.register_all()
    other.send("source", More(name="b"))

    assert told(job, restored) == ["b"]
    assert told(job, other) == []


@pytest.mark.clause("L5")
@pytest.mark.may_fail("scripted")
def test_no_more_splits_from_before_the_cut_survives_a_global_failover() -> None:
    job = HandDrivenJob(chain_of(pull_of("a")))
    (attempt,) = job.register_all()
    ask(attempt)
    ask(attempt)
    checkpoint(job, attempt)

    fail_globally(job)

    assert told(job, job.register(0)) == [NO_MORE]


# Batch


@pytest.mark.clause("L4")
@pytest.mark.flink("SC8")
def test_a_batch_jobs_finished_split_stays_so_over_failovers_and_a_resume() -> None:
    chain = chain_of(pull_of("a", "b", "c"))
    job = HandDrivenJob(chain, is_batch=True)
    (attempt,) = job.register_all()
    ask(attempt)
    attempt.finish_split("source", "a", committables=[("source", b"rows of a")])
    ask(attempt)
    attempt.fail()
    assert places(job) == {"a": "finished by 0", "b": "enumerator", "c": "enumerator"}
    attempt = job.register(0)
    ask(attempt)
    attempt.finish_split("source", "b")
    ask(attempt)
    job.crash()

    resumed = HandDrivenJob(chain, is_batch=True, log=job.log)

    assert resumed.mode == "resume"
    assert places(resumed) == {"a": "finished by 0", "b": "finished by 0", "c": "enumerator"}
    attempt = resumed.register(0)
    ask(attempt)
    ask(attempt)
    assert told(resumed, attempt) == ["c", NO_MORE]


@pytest.mark.clause("L4")
def test_with_state_across_splits_all_ever_assigned_go_back() -> None:
    chain = chain_of(pull_of("a", "b"), keeps_state_across_splits=True)
    job = HandDrivenJob(chain, is_batch=True)
    (attempt,) = job.register_all()
    ask(attempt)
    attempt.finish_split("source", "a")
    ask(attempt)

    attempt.fail()

    assert places(job) == {"a": "enumerator", "b": "enumerator"}


@pytest.mark.clause("L4")
def test_a_resume_takes_back_dead_attempts_splits_without_a_listing() -> None:
    listings: list[int] = []

    def discover() -> SplitsDiscovered:
        listings.append(1)
        return listing("a", "b", "c")()

    chain = chain_of(SplitCoordinatorProvider("source", discover=discover))
    job = HandDrivenJob(chain, parallelism=2, is_batch=True)
    first, second = job.register_all()
    ask(first)
    ask(second)
    ask(second)
    ask(second)
    assert told(job, second) == ["b", "c", NO_MORE]
    job.crash()

    resumed = HandDrivenJob(chain, parallelism=2, is_batch=True, log=job.log)

    assert resumed.mode == "resume"
    assert len(listings) == 1
    assert state_of(resumed).unassigned() == ("a", "b", "c")
    again = resumed.register(1)
    for _ in range(4):
        ask(again)
    assert told(resumed, again) == ["a", "b", "c", NO_MORE]


def test_a_resume_lists_again_where_no_listing_is_in_the_log() -> None:
    chain = chain_of(pull_of("a"))
    job = unlisted(chain, is_batch=True)
    job.crash()

    resumed = HandDrivenJob(chain, is_batch=True, log=job.log)

    assert resumed.mode == "resume"
    assert state_of(resumed).unassigned() == ("a",)


def test_a_listing_made_again_adds_only_what_is_not_known() -> None:
    names = [split("b"), split("a"), split("b")]
    provider = SplitCoordinatorProvider(
        "source", discover=lambda: SplitsDiscovered(splits=names, is_complete=True)
    )

    job = HandDrivenJob(chain_of(provider))

    assert state_of(job).unassigned() == ("b", "a")


@pytest.mark.clause("L5")
def test_a_request_that_crosses_no_more_splits_is_not_owed_an_answer() -> None:
    job = HandDrivenJob(chain_of(pull_of("a")), parallelism=2)
    first, second = job.register_all()
    ask(second)
    ask(first)
    ask(first)

    second.fail()  # its split comes back, while `first` has been told that none will come

    assert told(job, first) == [NO_MORE]
    assert state_of(job).unassigned() == ("a",)
    assert job.history(Kind.GLOBAL_FAILURE) == []


@pytest.mark.clause("D5")
def test_a_request_answered_before_the_cut_is_not_answered_again() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b", "c")))
    (attempt,) = job.register_all()
    ask(attempt)
    checkpoint(job, attempt)
    assert state_of(job).reader(0).requests == ()

    for _ in range(2):
        attempt.fail()
        attempt = job.register(0)
        assert told(job, attempt) == []


@pytest.mark.clause("D5")
def test_requests_and_split_ends_after_a_checkpoint_are_kept_for_the_next() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b", "c")))
    (attempt,) = job.register_all()
    ask(attempt)
    checkpoint(job, attempt)
    ack_all(attempt)
    second = job.trigger()
    assert second is not None
    ask(attempt)  # held: the answer is after the second cut, the request before its barrier
    attempt.finish_split("source", "a")
    attempt.ack_checkpoint(second)
    assert told(job, attempt) == ["a", "b"]

    attempt.fail()

    assert places(job) == {"a": "finished by 0", "b": "enumerator", "c": "enumerator"}
    assert told(job, job.register(0)) == ["b"]


# Static assignment


def static_of(*names: str) -> SplitCoordinatorProvider:
    return SplitCoordinatorProvider("source", discover=listing(*names), assignment="static")


@pytest.mark.clause("L5")
def test_static_assignment_deals_all_splits_round_robin_without_requests() -> None:
    job = HandDrivenJob(chain_of(static_of("a", "b", "c", "d", "e")), parallelism=2)

    first, second = job.register_all()

    assert told(job, first) == ["a", "c", "e", NO_MORE]
    assert told(job, second) == ["b", "d", NO_MORE]


@pytest.mark.clause("L5")
@pytest.mark.flink("SC22")
def test_static_assignment_gives_a_new_attempt_its_own_splits_again() -> None:
    job = HandDrivenJob(chain_of(static_of("a", "b", "c", "d")), parallelism=2)
    first, second = job.register_all()

    second.fail()
    replaced = job.register(1)

    assert told(job, replaced) == ["b", "d", NO_MORE]
    assert told(job, first) == ["a", "c", NO_MORE]


@pytest.mark.clause("L5")
@pytest.mark.flink("SC23")
def test_static_assignment_keeps_splits_in_the_reader_over_a_checkpoint() -> None:
    job = HandDrivenJob(chain_of(static_of("a", "b")))
    (attempt,) = job.register_all()
    checkpoint(job, attempt)

    attempt.fail()

    assert told(job, job.register(0)) == [NO_MORE]


@pytest.mark.clause("I2")
@pytest.mark.clause("L3")
@pytest.mark.may_fail("while split 'a' was in flight to it")
def test_splits_of_a_subtask_that_completes_without_them_are_still_read() -> None:
    """Were the checkpoint complete in the turn that finds it out, the job would end without the splits' rows."""
    provider = SplitCoordinatorProvider("source", discover=listing("a", "b"), assignment="static")
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    (_, no_more) = attempt.got(DeliverEvent)
    attempt.ack("source", no_more.event_id)
    attempt.complete()
    job.stage_ends("cancelled")
    job.advance(60)

    assert job.history(Kind.CHECKPOINT_COMPLETED) == []
    assert len(job.history(Kind.GLOBAL_FAILURE)) == 1
    assert told(job, job.register(0)) == ["a", "b", NO_MORE]


class Hasty(Slowly):
    """Says that there is no more while there is."""

    def start(self) -> None:
        self.context.record(SplitsDiscovered(splits=[split("a"), split("b")], is_complete=True))

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        self.context.assign_splits({subtask: self.context.unassigned_splits(1)})
        self.context.signal_no_more_splits(subtask)


@pytest.mark.parametrize("is_batch", [True, False])
@pytest.mark.may_fail("splits are unassigned")
def test_a_job_does_not_end_while_a_split_is_with_nobody(*, is_batch: bool) -> None:
    provider = SplitCoordinatorProvider("source", enumerator=Hasty)
    job = HandDrivenJob(chain_of(provider), is_batch=is_batch)
    (attempt,) = job.register_all()
    ask(attempt)
    assert told(job, attempt) == ["a", NO_MORE]
    ack_all(attempt)
    attempt.finish_split("source", "a")
    attempt.complete()
    if not is_batch:
        job.trigger()
    job.stage_ends()

    (failed, *_) = job.history(Kind.GLOBAL_FAILURE)
    assert "1 of 2 splits are unassigned, the first 'b'" in str(failed.reason)
    assert not job.history(Kind.JOB_FINISHED, Kind.COMMIT_INTENT)


# What a driver holds of many splits


@pytest.mark.clause("D5")
@pytest.mark.parametrize("keeps_state", [False, True])
def test_a_batch_attempt_holds_no_assignment_and_no_request_after_its_loss(
    *, keeps_state: bool
) -> None:
    """No checkpoint ever forgets what was said in batch: an attempt would hold the whole history of its splits."""
    names = tuple(f"{number:02}" for number in range(20))
    chain = chain_of(pull_of(*names), keeps_state_across_splits=keeps_state)
    job = HandDrivenJob(chain, is_batch=True)
    attempt = job.register(0)
    for name in names[:15]:
        ask(attempt)
        if name != names[14]:
            attempt.finish_split("source", name)
    held = job.runtime.state.subtasks[0].attempt

    assert held is not None
    assert (len(held.received), len(held.sent)) == (0, 0)
    attempt.fail()
    assert state_of(job).unassigned() == (names if keeps_state else names[14:])


def test_splits_that_are_dealt_out_of_order_are_known_by_who_has_none() -> None:
    """Static: the first subtask's share passes over those of the others, which are dealt one by one then."""
    names = tuple(f"{number:03}" for number in range(600))
    provider = SplitCoordinatorProvider("source", discover=listing(*names), assignment="static")
    job = HandDrivenJob(chain_of(provider), parallelism=3)
    seen = []
    for subtask in range(3):
        job.register(subtask)
        state = state_of(job)
        left = state.unassigned()
        assert left == tuple(sorted(left))
        assert len(state.passed_over) + len(state.splits) - state.fresh_from == len(left)
        seen.append(len(left))

    assert seen == [400, 200, 0]


@pytest.mark.clause("L4")
@pytest.mark.may_fail("scripted")
def test_what_no_failover_undoes_any_more_is_one_place_for_all_and_stays() -> None:
    names = tuple(f"{number:02}" for number in range(20))
    job = HandDrivenJob(chain_of(pull_of(*names)))
    attempt = job.register(0)
    for name in names[:10]:
        ask(attempt)
        attempt.finish_split("source", name)
    before = {id(state_of(job).splits.place(name)) for name in names[:10]}
    checkpoint(job, attempt)
    table = state_of(job).splits

    assert len(before) == 10
    assert {id(table.place(name)) for name in names[:10]} == {id(table.place("00"))}
    attempt.fail()
    assert state_of(job).unassigned() == names[10:]
    fail_globally(job)
    # The cut's own state knows the sequences: it comes to the same with the next completion.
    assert state_of(job).unassigned() == names[10:]
    again = job.register(0)
    again.last_barrier = 1
    checkpoint(job, again)
    assert {id(state_of(job).splits.place(name)) for name in names[:10]} == {id(table.place("00"))}


@pytest.mark.clause("L4")
@pytest.mark.parametrize("keeps_state", [False, True])
def test_in_batch_answered_requests_are_forgotten_at_the_next_split_end(
    *, keeps_state: bool
) -> None:
    names = [f"s{n}" for n in range(6)]
    chain = chain_of(pull_of(*names), keeps_state_across_splits=keeps_state)
    job = HandDrivenJob(chain, is_batch=True)
    (attempt,) = job.register_all()
    for name in names:
        ask(attempt)
        ack_all(attempt)
        attempt.finish_split("source", name)

        reader = state_of(job).reader(0)
        assert reader.requests == ()

    ask(attempt)
    assert state_of(job).reader(0).owed == 0, "it has been told that there are no more"
