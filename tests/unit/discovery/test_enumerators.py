"""Listings, and what an enumerator of one's own may do (clause L1)."""

# What the fakes' methods do is their contract's to say.

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

import pytest

from coordlog.coordinators import listing as listing_module
from coordlog.coordinators.enumerator import EnumeratorContext, SplitEnumerator, pages_of
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import OptionError, SourceError, TooLargeError
from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.projections.job.state import Phase
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import (
    RequestSplit,
    Split,
    SplitsDiscovered,
)
from coordlog.testing.driven_job import HandDrivenJob
from fakes.split_fakes import (
    NO_MORE,
    Hello,
    Slowly,
    ack_all,
    ask,
    chain_of,
    checkpoint,
    fail_globally,
    listing,
    pull_of,
    split,
    state_of,
    told,
    unlisted,
)

# Listings


@pytest.mark.may_fail("its listing has found no splits")
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


@pytest.mark.may_fail("permission denied")
def test_a_listing_that_raises_fails_the_job_with_its_text() -> None:
    def discover() -> SplitsDiscovered:
        raise SourceError("/data", "permission denied", "grant it")

    job = HandDrivenJob(chain_of(SplitCoordinatorProvider("source", discover=discover)))

    reasons = [one.reason or "" for one in job.history(Kind.GLOBAL_FAILURE)]
    assert "/data: permission denied; grant it" in reasons[0]


@pytest.mark.may_fail("its listing has not returned")
def test_a_listing_that_never_comes_back_fails_the_job_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mount whose server is gone: no error comes, and without a bound the job would wait in silence."""
    answers = threading.Event()

    def discover() -> SplitsDiscovered:
        answers.wait(20)
        return SplitsDiscovered(splits=[split("a")], is_complete=True)

    monkeypatch.setattr(listing_module, "LISTING_CALL_S", 0.05)
    job = HandDrivenJob(chain_of(SplitCoordinatorProvider("source", discover=discover)))
    answers.set()

    assert job.runtime.state.phase is Phase.FAILED
    (reason,) = [one.reason or "" for one in job.history(Kind.GLOBAL_FAILURE)]
    assert (
        "source 'source': its listing has not returned within 0.05 s; check that the listed"
        in reason
    )


def test_a_place_that_never_answers_ends_the_command_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`coordlog ingest` looks at a new job's source before it starts anything."""
    answers = threading.Event()
    monkeypatch.setattr(listing_module, "LISTING_CALL_S", 0.05)
    with pytest.raises(SourceError, match=r"source '/mnt/in': its listing has not returned"):
        listing_module.listed_in_time("/mnt/in", lambda: answers.wait(20))
    answers.set()


@pytest.mark.may_fail("its listing is not complete")
def test_a_listing_that_is_not_complete_fails_the_job() -> None:
    provider = SplitCoordinatorProvider(
        "source", discover=lambda: SplitsDiscovered(splits=[split("a")], is_complete=False)
    )
    job = HandDrivenJob(chain_of(provider))

    reasons = [one.reason or "" for one in job.history(Kind.GLOBAL_FAILURE)]
    assert "the default enumerator lists only once" in reasons[0]


def test_a_listing_larger_than_a_record_is_paged_and_used_once_whole() -> None:
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


@pytest.mark.clause("L6")
def test_splits_of_a_listing_cut_off_between_pages_wait_for_the_next() -> None:
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
    assert state_of(resumed).unassigned() == ("old", "new")
    assert state_of(resumed).is_discovery_complete


def test_pages_hold_the_splits_in_order_and_each_fits() -> None:
    given = [split(str(number), bytes(90_000)) for number in range(5)]

    pages = list(pages_of(given))

    assert [[one.split_id for one in page] for page in pages] == [["0", "1"], ["2", "3"], ["4"]]


def test_a_split_that_fits_no_page_is_refused_by_name() -> None:
    with pytest.raises(TooLargeError, match="split 'huge'"):
        list(pages_of([split("huge", bytes(PAYLOAD_BYTES_MAX))]))


@pytest.mark.may_fail("scripted")
def test_the_result_of_a_listing_for_a_closed_coordinator_changes_nothing() -> None:
    job = unlisted(chain_of(pull_of("a")))
    fail_globally(job)
    assert len(job.works) == 3, "the old object's listing, its close, the new object's listing"

    job.run(job.works.popleft())

    assert [r for r in job.history(Kind.FACT) if r.attributes.get("closed") == "true"]
    assert not state_of(job).splits


# Enumerators of one's own


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
@pytest.mark.may_fail("splits were assigned to subtask")
def test_a_split_assigned_to_a_subtask_without_a_reader_fails_the_job() -> None:
    def script(context: EnumeratorContext, subtask: int) -> None:
        context.assign_splits({1: context.unassigned_splits(1)})

    job = HandDrivenJob(chain_of(scripted(script)[0]), parallelism=2)
    ask(job.register(0))

    assert "assigned to subtask 1, which has no registered reader" in failures(job)[0]


@pytest.mark.may_fail("split 'a' was assigned to subtask")
def test_a_split_assigned_twice_fails_the_job_and_neither_is_sent() -> None:
    def script(context: EnumeratorContext, subtask: int) -> None:
        one = context.unassigned_splits(1)
        context.assign_splits({0: one, 1: one})

    job = HandDrivenJob(chain_of(scripted(script)[0]), parallelism=2)
    first, second = job.register_all()
    ask(first)

    assert "split 'a' was assigned to subtask 1; it is not with" in failures(job)[0]
    assert told(job, first) == told(job, second) == []


@pytest.mark.may_fail("splits were assigned to subtask")
def test_a_split_assigned_after_no_more_splits_fails_the_job() -> None:
    def script(context: EnumeratorContext, subtask: int) -> None:
        context.signal_no_more_splits(subtask)
        context.assign_splits({subtask: context.unassigned_splits(1)})

    job = HandDrivenJob(chain_of(scripted(script)[0]))
    ask(job.register(0))

    assert "after `signal_no_more_splits`" in failures(job)[0]


@pytest.mark.may_fail("an event was sent to subtask")
def test_an_event_to_a_subtask_without_a_reader_fails_the_job() -> None:
    def script(context: EnumeratorContext, subtask: int) -> None:
        context.send_event_to_reader(0, Hello())
        context.send_event_to_reader(1, Hello())

    job = HandDrivenJob(chain_of(scripted(script)[0]), parallelism=2)
    ask(job.register(0))

    assert "an event was sent to subtask 1" in failures(job)[0]


@pytest.mark.flink("SC18")
def test_after_no_more_splits_requests_wait_for_the_attempts_replacement() -> None:
    def script(context: EnumeratorContext, subtask: int) -> None:
        context.signal_no_more_splits(subtask)
        context.signal_no_more_splits(subtask)

    provider, made = scripted(script)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    ask(attempt)
    ask(attempt)
    assert (made[0].asked, told(job, attempt)) == (1, [NO_MORE])

    attempt.fail()
    ask(job.register(0))

    assert made[0].asked == 2


@pytest.mark.clause("D3")
@pytest.mark.may_fail("scripted")
def test_a_redelivered_request_is_handed_on_only_to_a_ready_attempt() -> None:
    provider, made = scripted(lambda _context, _subtask: None)
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    ask(first)
    first.ack_checkpoint(checkpoint_id)
    second.ack_checkpoint(checkpoint_id)

    fail_globally(job)

    assert len(job.history(Kind.EVENT_REDELIVERED)) == 1
    assert [one.asked for one in made] == [1, 0]
    job.register(1)
    assert made[1].asked == 0
    job.register(0)
    assert made[1].asked == 1


@pytest.mark.clause("L4")
def test_the_enumerator_gets_returned_splits_once_oldest_first() -> None:
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
def test_an_enumerators_state_is_in_the_log_and_restored_to_its_successor() -> None:
    provider, made = scripted(lambda _context, _subtask: None)
    chain = chain_of(provider)
    job = HandDrivenJob(chain, is_batch=True)
    attempt = job.register(0)
    ask(attempt)
    ask(attempt)
    job.crash()

    HandDrivenJob(chain, is_batch=True, log=job.log)

    assert [one.asked for one in made] == [2, 2]


@pytest.mark.may_fail("while split 'a' was in flight to it")
def test_a_reader_that_ends_with_splits_in_flight_fails_the_job() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")), is_batch=True, parallelism=2)
    first, _second = job.register_all()
    ask(first)

    first.complete()  # without an ack of the split

    assert "subtask 0 completed while split 'a' was in flight to it" in failures(job)[0]


@pytest.mark.clause("A3")
@pytest.mark.flink("SC12")
@pytest.mark.may_fail("ValueError: scripted")
def test_an_enumerator_that_cannot_be_made_fails_the_job() -> None:
    def create(_context: EnumeratorContext, _kept: bytes | None) -> SplitEnumerator:
        raise ValueError("scripted")

    job = HandDrivenJob(chain_of(SplitCoordinatorProvider("source", enumerator=create)))

    assert "scripted" in failures(job)[0]


class Whole(SplitEnumerator):
    """Uses everything that its contract names, and notes what it is told."""

    def __init__(self, context: EnumeratorContext, calls: list[object]) -> None:
        self.context, self.calls = context, calls

    def start(self) -> None:
        self.calls.append("start")
        self.context.call_async(listing("a", "b"), self._listed)

    def _listed(self, result: Payload | None, error: str | None) -> None:
        self.calls.append(("listed", error, self.context.state.is_discovery_complete))

    def add_reader(self, subtask: int) -> None:
        self.calls.append(("reader", subtask, self.context.registered_readers()))
        self.context.send_event_to_reader(subtask, Hello())

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        self.calls.append(("request", subtask, finished_split_id))
        if finished_split_id is None:
            self.context.assign_splits({subtask: self.context.unassigned_splits()})
        else:
            self.context.signal_no_more_splits(subtask)

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        self.calls.append(("back", subtask, [one.split_id for one in splits]))

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        self.calls.append(("event", subtask, attempt_number, event))

    def snapshot_state(self) -> bytes | None:
        return str(len(self.calls)).encode()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.calls.append(("aborted", checkpoint_id))

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.clause("L1")
def test_an_enumerator_hears_and_may_do_all_that_its_contract_names() -> None:
    calls: list[object] = []
    provider = SplitCoordinatorProvider(
        "source",
        enumerator=lambda context, _kept: Whole(context, calls),
        payload_types=(Hello,),
    )
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    checkpoint(job, attempt)
    ask(attempt)
    attempt.send("source", RequestSplit(finished_split_id="a"))
    attempt.send("source", Hello())
    assert told(job, attempt) == ["Hello", "a", "b", NO_MORE]
    ack_all(attempt)
    assert job.trigger() == 2
    attempt.fail()
    assert state_of(job).enumerator_state == str(len(calls)).encode()
    job.run(job.runtime.host.close_all)

    assert calls == [
        "start",
        ("listed", None, True),
        ("reader", 0, {0: 0}),
        ("complete", 1),
        ("request", 0, None),
        ("request", 0, "a"),
        ("event", 0, 0, Hello()),
        ("aborted", 2),
        ("back", 0, ["a", "b"]),
        "close",
    ]


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
