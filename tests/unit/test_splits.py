"""The source layer: who has which split, through failures, checkpoints and resumes (clauses L1 to L5).

The coordinator runs in the real kernel and runtime on an in-memory log; attempts are driven by hand.
"""

# No `from __future__ import annotations` here: events are declared below.

from collections.abc import Callable, Sequence
from typing import Literal

import pytest

from coordlog.chain import Chain, OperatorSpec, SourceSpec
from coordlog.coordinators.enumerator import EnumeratorContext, SplitEnumerator, pages_of
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import OptionError, SourceError, TooLargeError, UsageError
from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.messages import DeliverEvent
from coordlog.projections.splits import Assigned, Finished, SplitsState, WithEnumerator
from coordlog.schemas.payload import Payload, event, payload_type_of
from coordlog.schemas.record import Kind
from coordlog.schemas.source_events import (
    AddSplits,
    NoMoreSplits,
    RequestSplit,
    Split,
    SplitsDiscovered,
)
from coordlog.subtask import Operator, Poll, PollStatus, SourceReader
from coordlog.testing.by_hand import FakeAttempt, HandDrivenJob

NO_MORE = "no more"


class IdleReader(SourceReader):
    """Never asked for anything: the attempts of these tests are driven by hand."""

    def add_splits(self, splits: Sequence[bytes]) -> None:
        raise AssertionError(splits)

    def poll(self) -> Poll:
        return Poll(status=PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return b""


def split(name: str, content: bytes = b"") -> Split:
    return Split(split_id=name, content=content)


def listing(*names: str) -> Callable[[], SplitsDiscovered]:
    return lambda: SplitsDiscovered(splits=[split(one) for one in names], is_complete=True)


def pull_of(*names: str) -> SplitCoordinatorProvider:
    return SplitCoordinatorProvider("source", discover=listing(*names))


def chain_of(
    provider: SplitCoordinatorProvider, *, keeps_state_across_splits: bool = False
) -> Chain:
    return Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=IdleReader,
            coordinator=provider,
            keeps_state_across_splits=keeps_state_across_splits,
        ),
        operators=[],
    )


def state_of(job: HandDrivenJob) -> SplitsState:
    state = job.runtime.state.projections["source"]
    assert isinstance(state, SplitsState)
    return state


def decoded(job: HandDrivenJob, message: DeliverEvent) -> Payload:
    return job.chain.payload_types.decode(message.payload_type, message.payload)


def told(job: HandDrivenJob, attempt: FakeAttempt) -> list[str]:
    """What an attempt was sent, in order: split ids, and `no more`."""
    found: list[str] = []
    for message in attempt.got(DeliverEvent):
        value = decoded(job, message)
        if isinstance(value, AddSplits):
            found += [one.split_id for one in value.splits]
        elif isinstance(value, NoMoreSplits):
            found.append(NO_MORE)
        else:
            found.append(type(value).__name__)
    return found


def ask(attempt: FakeAttempt) -> None:
    attempt.send("source", RequestSplit())


def ack_all(attempt: FakeAttempt) -> None:
    for message in attempt.got(DeliverEvent):
        attempt.ack("source", message.event_id)


def checkpoint(job: HandDrivenJob, *attempts: FakeAttempt) -> int:
    """A checkpoint that completes at once: all acked, all barriers passed."""
    for one in attempts:
        ack_all(one)
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    for one in attempts:
        one.ack_checkpoint(checkpoint_id)
    assert job.runtime.state.last_checkpoint == checkpoint_id
    return checkpoint_id


def fail_globally(job: HandDrivenJob) -> None:
    """A global failover, up to the new coordinators; attempts register next."""
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    job.stage_ends("cancelled")
    job.advance(60.0)


def places(job: HandDrivenJob) -> dict[str, str]:
    """Where each split is, in a word."""
    shown: dict[str, str] = {}
    for name, known in sorted(state_of(job).splits.items()):
        match known.place:
            case WithEnumerator():
                shown[name] = "enumerator"
            case Assigned(subtask=subtask):
                shown[name] = f"with {subtask}"
            case Finished(subtask=subtask):
                shown[name] = f"finished by {subtask}"
    return shown


def unlisted(chain: Chain, *, parallelism: int = 1, is_batch: bool = False) -> HandDrivenJob:
    """A job that has started and whose listing waits for a worker."""
    job = HandDrivenJob(chain, parallelism=parallelism, is_batch=is_batch, is_held=True)
    job.is_work_held = True
    job.release()
    job.is_held = False
    assert len(job.works) == 1
    return job


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
def test_splits_assigned_before_the_cut_stay_with_the_reader_and_later_ones_go_back() -> None:
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
def test_a_split_that_was_finished_after_the_barrier_is_with_the_restored_reader_again() -> None:
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
def test_a_reader_whose_checkpoint_holds_no_more_splits_is_told_again_without_asking() -> None:
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
def test_a_request_before_the_barrier_whose_answer_came_after_the_cut_is_answered_again() -> None:
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
def test_readers_that_end_in_the_same_turn_are_given_nothing() -> None:
    provider = SplitCoordinatorProvider("source", enumerator=Slowly, payload_types=(More,))
    job = HandDrivenJob(chain_of(provider), parallelism=3)
    first, second, third = job.register_all()
    ask(first)
    ask(second)
    ask(third)
    second.lose()

    first.fail()

    assert told(job, second) == []
    assert told(job, third) == ["a"]


# Global failovers and redelivery


@pytest.mark.clause("L3")
@pytest.mark.flink("SC7")
def test_after_a_global_failover_the_splits_assigned_after_the_cut_are_unassigned() -> None:
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


@pytest.mark.clause("L5")
def test_no_more_splits_before_the_cut_reaches_the_attempts_of_a_global_failover() -> None:
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
def test_a_finished_split_of_a_batch_job_stays_finished_through_failovers_and_a_resume() -> None:
    chain = chain_of(pull_of("a", "b", "c"))
    job = HandDrivenJob(chain, is_batch=True)
    (attempt,) = job.register_all()
    ask(attempt)
    attempt.finish_split("source", "a", committables=[("sink", b"rows of a")])
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
def test_where_the_chain_keeps_state_across_splits_all_ever_assigned_go_back() -> None:
    chain = chain_of(pull_of("a", "b"), keeps_state_across_splits=True)
    job = HandDrivenJob(chain, is_batch=True)
    (attempt,) = job.register_all()
    ask(attempt)
    attempt.finish_split("source", "a")
    ask(attempt)

    attempt.fail()

    assert places(job) == {"a": "enumerator", "b": "enumerator"}


@pytest.mark.clause("L4")
def test_a_resume_gives_back_what_the_dead_drivers_attempts_had_and_lists_nothing_again() -> None:
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


@pytest.mark.clause("D5")
def test_a_request_answered_before_the_cut_is_not_answered_again_after_a_failover() -> None:
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
def test_requests_and_ends_of_splits_between_two_checkpoints_are_kept_until_the_second() -> None:
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
def test_static_assignment_deals_all_splits_out_round_robin_without_being_asked() -> None:
    job = HandDrivenJob(chain_of(static_of("a", "b", "c", "d", "e")), parallelism=2)

    first, second = job.register_all()

    assert told(job, first) == ["a", "c", "e", NO_MORE]
    assert told(job, second) == ["b", "d", NO_MORE]


@pytest.mark.clause("L5")
@pytest.mark.flink("SC22")
def test_under_static_assignment_a_replaced_attempt_gets_its_own_splits_again_and_no_other() -> (
    None
):
    job = HandDrivenJob(chain_of(static_of("a", "b", "c", "d")), parallelism=2)
    first, second = job.register_all()

    second.fail()
    replaced = job.register(1)

    assert told(job, replaced) == ["b", "d", NO_MORE]
    assert told(job, first) == ["a", "c", NO_MORE]


@pytest.mark.clause("L5")
@pytest.mark.flink("SC23")
def test_under_static_assignment_a_checkpoint_keeps_the_splits_in_the_reader() -> None:
    job = HandDrivenJob(chain_of(static_of("a", "b")))
    (attempt,) = job.register_all()
    checkpoint(job, attempt)

    attempt.fail()

    assert told(job, job.register(0)) == [NO_MORE]


# Listings


def test_an_empty_listing_fails_the_job_and_says_what_to_do() -> None:
    job = HandDrivenJob(chain_of(pull_of()))

    reasons = [one.reason or "" for one in job.history(Kind.GLOBAL_FAILURE)]
    assert "its listing has found no splits" in reasons[0]
    assert "allow_empty" in reasons[0]


def test_an_empty_listing_that_is_allowed_ends_every_reader() -> None:
    provider = SplitCoordinatorProvider("source", discover=listing(), allow_empty=True)
    job = HandDrivenJob(chain_of(provider))
    (attempt,) = job.register_all()

    ask(attempt)

    assert told(job, attempt) == [NO_MORE]
    assert job.history(Kind.GLOBAL_FAILURE) == []


def test_a_listing_that_raises_fails_the_job_with_its_text() -> None:
    def discover() -> SplitsDiscovered:
        raise SourceError("/data", "permission denied", "grant it")

    job = HandDrivenJob(chain_of(SplitCoordinatorProvider("source", discover=discover)))

    reasons = [one.reason or "" for one in job.history(Kind.GLOBAL_FAILURE)]
    assert "/data: permission denied; grant it" in reasons[0]


def test_a_listing_that_is_not_complete_fails_the_job() -> None:
    provider = SplitCoordinatorProvider(
        "source", discover=lambda: SplitsDiscovered(splits=[split("a")], is_complete=False)
    )
    job = HandDrivenJob(chain_of(provider))

    reasons = [one.reason or "" for one in job.history(Kind.GLOBAL_FAILURE)]
    assert "this enumerator lists once" in reasons[0]


def test_a_listing_larger_than_a_record_comes_in_pages_and_is_used_when_it_is_whole() -> None:
    many = [split(f"{number:02}", bytes(100_000)) for number in range(10)]
    provider = SplitCoordinatorProvider(
        "source", discover=lambda: SplitsDiscovered(splits=many, is_complete=True)
    )

    job = HandDrivenJob(chain_of(provider))

    key = payload_type_of(SplitsDiscovered).key
    pages = [one for one in job.history(Kind.FACT) if one.payload_type == key]
    assert len(pages) == 10
    assert all(len(one.payload or b"") <= PAYLOAD_BYTES_MAX for one in pages)
    assert state_of(job).unassigned() == tuple(f"{number:02}" for number in range(10))
    assert state_of(job).is_discovery_complete


def test_a_listing_that_was_cut_off_between_two_pages_is_replaced_by_the_next_one() -> None:
    found = [split("old", bytes(150_000)), split("older", bytes(150_000))]
    chain = chain_of(
        SplitCoordinatorProvider(
            "source", discover=lambda: SplitsDiscovered(splits=list(found), is_complete=True)
        )
    )
    job = unlisted(chain, is_batch=True)
    job.run(job.works.popleft())  # the first page
    assert sorted(state_of(job).splits) == ["old"]
    assert not state_of(job).is_discovery_complete
    job.crash()
    found[:] = [split("new")]

    resumed = HandDrivenJob(chain, is_batch=True, log=job.log)

    assert resumed.mode == "resume"
    assert state_of(resumed).unassigned() == ("new",)


def test_pages_hold_the_splits_in_order_and_each_fits() -> None:
    given = [split(str(number), bytes(90_000)) for number in range(5)]

    pages = list(pages_of(given))

    assert [[one.split_id for one in page] for page in pages] == [["0", "1"], ["2", "3"], ["4"]]


def test_a_split_that_fits_no_page_is_refused_by_name() -> None:
    with pytest.raises(TooLargeError, match="split 'huge'"):
        list(pages_of([split("huge", bytes(PAYLOAD_BYTES_MAX))]))


def test_the_result_of_a_listing_for_a_closed_coordinator_changes_nothing() -> None:
    job = unlisted(chain_of(pull_of("a")))
    fail_globally(job)
    assert len(job.works) == 3, "the old object's listing, its close, the new object's listing"

    job.run(job.works.popleft())

    assert [r for r in job.history(Kind.FACT) if r.attributes.get("closed") == "true"]
    assert not state_of(job).splits


# Enumerators of one's own


@event("test.more", version=1)
class More(Payload):
    """A reader has heard of another split."""

    name: str


@event("test.hello", version=1)
class Hello(Payload):
    """To a reader."""


class Slowly(SplitEnumerator):
    """Knows of split `a`, and of others when readers say so; never signals an end."""

    def __init__(self, context: EnumeratorContext, kept: bytes | None) -> None:
        self.context = context

    def start(self) -> None:
        if not self.context.state.splits:
            self._found("a")

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        self._serve()

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        self._serve()

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        assert isinstance(event, More)
        self._found(event.name)
        self._serve()

    def _found(self, name: str) -> None:
        self.context.record(SplitsDiscovered(splits=[split(name)], is_complete=False))

    def _serve(self) -> None:
        waiting = self.context.waiting_readers()
        for subtask, one in zip(waiting, self.context.unassigned_splits(), strict=False):
            self.context.assign_splits({subtask: [one]})


class Scripted(SplitEnumerator):
    """Does at a request what the test says; keeps how often it was asked."""

    script: Callable[[EnumeratorContext, int], None]

    def __init__(self, context: EnumeratorContext, kept: bytes | None) -> None:
        self.context, self.asked = context, int(kept or b"0")
        self.back: list[tuple[int, list[str]]] = []

    def start(self) -> None:
        if not self.context.state.splits:
            found = [split("a"), split("b"), split("c")]
            self.context.record(SplitsDiscovered(splits=found, is_complete=True))

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        self.asked += 1
        type(self).script(self.context, subtask)

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        self.back.append((subtask, [one.split_id for one in splits]))

    def snapshot_state(self) -> bytes | None:
        return str(self.asked).encode() if self.asked else None


def scripted(
    script: Callable[[EnumeratorContext, int], None],
) -> tuple[SplitCoordinatorProvider, list[Scripted]]:
    made: list[Scripted] = []
    kind = type("Once", (Scripted,), {"script": staticmethod(script)})

    def create(context: EnumeratorContext, kept: bytes | None) -> SplitEnumerator:
        made.append(kind(context, kept))
        return made[-1]

    return SplitCoordinatorProvider("source", enumerator=create, payload_types=(Hello,)), made


def failures(job: HandDrivenJob) -> list[str]:
    return [one.reason or "" for one in job.history(Kind.GLOBAL_FAILURE)]


@pytest.mark.flink("CX6")
def test_a_split_assigned_to_a_subtask_without_a_reader_fails_the_job() -> None:
    def script(context: EnumeratorContext, subtask: int) -> None:
        context.assign_splits({1: context.unassigned_splits(1)})

    job = HandDrivenJob(chain_of(scripted(script)[0]), parallelism=2)
    ask(job.register(0))

    assert "assigned to subtask 1, which has no registered reader" in failures(job)[0]


def test_a_split_assigned_twice_fails_the_job_and_neither_is_sent() -> None:
    def script(context: EnumeratorContext, subtask: int) -> None:
        one = context.unassigned_splits(1)
        context.assign_splits({0: one, 1: one})

    job = HandDrivenJob(chain_of(scripted(script)[0]), parallelism=2)
    first, second = job.register_all()
    ask(first)

    assert "split 'a' was assigned to subtask 1; it is not with" in failures(job)[0]
    assert told(job, first) == told(job, second) == []


def test_a_split_assigned_after_no_more_splits_fails_the_job() -> None:
    def script(context: EnumeratorContext, subtask: int) -> None:
        context.signal_no_more_splits(subtask)
        context.assign_splits({subtask: context.unassigned_splits(1)})

    job = HandDrivenJob(chain_of(scripted(script)[0]))
    ask(job.register(0))

    assert "after `signal_no_more_splits`" in failures(job)[0]


def test_an_event_to_a_subtask_without_a_reader_fails_the_job() -> None:
    def script(context: EnumeratorContext, subtask: int) -> None:
        context.send_event_to_reader(0, Hello())
        context.send_event_to_reader(1, Hello())

    job = HandDrivenJob(chain_of(scripted(script)[0]), parallelism=2)
    ask(job.register(0))

    assert "an event was sent to subtask 1" in failures(job)[0]


@pytest.mark.clause("L4")
def test_the_enumerator_is_told_what_comes_back_once_and_oldest_assignment_first() -> None:
    def script(context: EnumeratorContext, subtask: int) -> None:
        context.assign_splits({subtask: list(reversed(context.unassigned_splits(2)))})

    provider, made = scripted(script)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    ask(attempt)
    ask(attempt)
    assert told(job, attempt) == ["b", "a", "c"]

    attempt.fail()
    job.register(0).fail()

    assert made[0].back == [(0, ["b", "a", "c"]), (0, [])]


@pytest.mark.clause("L1")
def test_what_an_enumerator_keeps_itself_is_in_the_log_and_given_to_the_next_object() -> None:
    provider, made = scripted(lambda _context, _subtask: None)
    chain = chain_of(provider)
    job = HandDrivenJob(chain, is_batch=True)
    attempt = job.register(0)
    ask(attempt)
    ask(attempt)
    job.crash()

    HandDrivenJob(chain, is_batch=True, log=job.log)

    assert [one.asked for one in made] == [2, 2]


def test_a_reader_that_ends_while_splits_are_on_their_way_to_it_fails_the_job() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")), is_batch=True, parallelism=2)
    first, _second = job.register_all()
    ask(first)

    first.complete()  # without an ack of the split

    assert "subtask 0 completed while split 'a' was on its way to it" in failures(job)[0]


@pytest.mark.clause("A3")
@pytest.mark.flink("SC11")
def test_an_enumerator_that_cannot_be_made_fails_the_job() -> None:
    def create(_context: EnumeratorContext, _kept: bytes | None) -> SplitEnumerator:
        raise ValueError("scripted")

    job = HandDrivenJob(chain_of(SplitCoordinatorProvider("source", enumerator=create)))

    assert "scripted" in failures(job)[0]


# Options


@pytest.mark.parametrize("wrong", ["both", "neither", "assignment"])
def test_options_that_do_not_fit_are_refused(wrong: str) -> None:
    assignment: Literal["pull", "static"] = "pull"
    with pytest.raises(OptionError):
        SplitCoordinatorProvider(
            "source",
            discover=None if wrong == "neither" else listing("a"),
            enumerator=Slowly if wrong == "both" else None,
            assignment="round" if wrong == "assignment" else assignment,  # type: ignore[arg-type]
        )
