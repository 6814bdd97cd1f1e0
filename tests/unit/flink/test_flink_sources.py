"""The source's coordinator, its enumerator, and where splits are: the scenarios SC, ST and DF2 of the contract."""

# No `from __future__ import annotations` here: an event is declared below.
# What the fakes' methods do is their contract's to say.

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from immutables import Map

from coordlog.api.coordinator import CoordinatorContext, SubtaskGateway
from coordlog.coordinators import (
    CoordinatorProvider,
    EventSourcedCoordinator,
    OperatorProjection,
    SplitCoordinator,
    SplitCoordinatorProvider,
    SplitEnumerator,
)
from coordlog.coordinators.enumerator import EnumeratorContext
from coordlog.kernel.builder import KernelConfig
from coordlog.messages import Refused
from coordlog.projections.splits.fold import Assigned, SplitsState
from coordlog.schemas.payload import Payload, event, payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import (
    AddSplits,
    EnumeratorState,
    NoMoreSplits,
    RequestSplit,
    Split,
    SplitsDiscovered,
)
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.split_fakes import (
    NO_MORE,
    Hello,
    ack_all,
    ask,
    chain_of,
    checkpoint,
    fail_globally,
    listing,
    places,
    split,
    state_of,
    told,
)
from jobs.quota import quota_chain

SIX = ("a", "b", "c", "d", "e", "f")


def overlapping(config: KernelConfig) -> KernelConfig:
    return replace(config, is_overlap_allowed=True)


@dataclass
class Watch:
    """What was called on which object, in order; what a test puts under a name in `on` happens in it."""

    calls: list[tuple[str, int]] = field(default_factory=list)
    on: dict[str, Callable[[], object]] = field(default_factory=dict)
    said: list[tuple[int, int, Payload]] = field(default_factory=list)
    kept: list[bytes | None] = field(default_factory=list)
    coordinators: int = 0
    enumerators: int = 0

    def note(self, name: str, number: int) -> None:
        self.calls.append((name, number))
        if name in self.on:
            self.on[name]()

    def of(self, number: int) -> list[str]:
        """The calls of one object."""
        return [name for name, which in self.calls if which == number]


class WatchedEnumerator(SplitEnumerator):
    """Knows six splits, gives one for each request."""

    def __init__(self, context: EnumeratorContext, watch: Watch) -> None:
        self.context, self.watch = context, watch
        watch.enumerators += 1
        self.number = watch.enumerators
        watch.note("create", self.number)

    def start(self) -> None:
        self.watch.note("start", self.number)
        if not self.context.state.splits:
            found = [split(name) for name in SIX]
            self.context.record(SplitsDiscovered(splits=found, is_complete=True))

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        self.watch.note("request", self.number)
        self.context.assign_splits({subtask: self.context.unassigned_splits(1)})

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        self.watch.note("back", self.number)

    def add_reader(self, subtask: int) -> None:
        self.watch.note("reader", self.number)

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        self.watch.note("event", self.number)
        self.watch.said.append((subtask, attempt_number, event))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.watch.note("complete", self.number)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.watch.note("aborted", self.number)

    def close(self) -> None:
        self.watch.note("close", self.number)


class WatchedCoordinator(SplitCoordinator):
    """Notes what the kernel calls, apart from what the enumerator is told."""

    def __init__(self, context: CoordinatorContext, watch: Watch) -> None:
        super().__init__(context, lambda inner, _kept: WatchedEnumerator(inner, watch))
        watch.coordinators += 1
        self.watch, self.number = watch, -watch.coordinators

    def start(self) -> None:
        self.watch.note("start", self.number)
        super().start()

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        self.watch.note(f"restore {checkpoint_id}", self.number)

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        self.watch.note("event", self.number)
        super().handle_event_from_operator(subtask, attempt_number, event)

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        self.watch.note("ready", self.number)
        super().execution_attempt_ready(subtask, attempt_number, gateway)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.watch.note("complete", self.number)
        super().notify_checkpoint_complete(checkpoint_id)

    def close(self) -> None:
        self.watch.note("close", self.number)
        super().close()


class WatchedProvider(SplitCoordinatorProvider):
    """Makes watched ones."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(
            "source",
            enumerator=lambda context, _kept: WatchedEnumerator(context, watch),
            payload_types=(Hello,),
        )
        self.watch = watch

    def create(self, context: CoordinatorContext) -> SplitCoordinator:
        return WatchedCoordinator(context, self.watch)


def watched(
    watch: Watch,
    *,
    parallelism: int = 1,
    configure: Callable[[KernelConfig], KernelConfig] | None = None,
) -> HandDrivenJob:
    return HandDrivenJob(
        chain_of(WatchedProvider(watch)), parallelism=parallelism, configure=configure
    )


def failures(job: HandDrivenJob) -> list[str]:
    return [one.reason or "" for one in job.history(Kind.GLOBAL_FAILURE)]


# The life of the coordinator and its enumerator

BEFORE_START: dict[str, Callable[[SplitCoordinator], None]] = {
    "event": lambda one: one.handle_event_from_operator(0, 0, Hello()),
    "ready": lambda one: one.execution_attempt_ready(0, 0, cast("SubtaskGateway", None)),
    "reset": lambda one: one.subtask_reset(0, -1),
    "complete": lambda one: one.notify_checkpoint_complete(1),
    "aborted": lambda one: one.notify_checkpoint_aborted(1),
}


class NoContext:
    """Enough of a context for a coordinator that refuses."""

    state = SplitsState()


@pytest.mark.clause("A2")
@pytest.mark.flink("SC1")
@pytest.mark.parametrize("callback", sorted(BEFORE_START))
def test_a_callback_ahead_of_start_is_refused(callback: str) -> None:
    context = cast("CoordinatorContext", NoContext())
    one = SplitCoordinator(context, lambda inner, _: WatchedEnumerator(inner, Watch()))

    with pytest.raises(AssertionError, match="`start` is called first"):
        BEFORE_START[callback](one)


@pytest.mark.clause("A2")
@pytest.mark.flink("SC1")
@pytest.mark.parametrize("restore", [None, "rollback", "resume"])
@pytest.mark.may_fail("scripted")
def test_nothing_is_called_ahead_of_start_however_the_object_comes_to_be(
    restore: str | None,
) -> None:
    watch = Watch()
    job = watched(watch)
    attempt = job.register(0)
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    ask(attempt)  # channel state: delivered again by a rollback
    attempt.ack_checkpoint(checkpoint_id)
    if restore is None:
        fail_globally(job)
    else:
        job.crash()
        job = HandDrivenJob(chain_of(WatchedProvider(watch)), log=job.log, restore=restore)
    job.register(0)

    for number in (-1, -2):
        calls = [one for one in watch.of(number) if not one.startswith("restore")]
        assert calls[0] == "start"
        assert "ready" in calls
    assert watch.of(1)[:2] == watch.of(2)[:2] == ["create", "start"]


@pytest.mark.fault("X11")
@pytest.mark.clause("A1")
@pytest.mark.clause("A2")
@pytest.mark.flink("SC2")
@pytest.mark.may_fail("scripted")
def test_no_object_is_reset_after_its_start_each_reset_makes_a_new_one() -> None:
    watch = Watch()
    job = watched(watch)
    checkpoint(job, *job.register_all())
    fail_globally(job)
    job.register(0)
    fail_globally(job)

    restores = [watch.of(-number)[:2] for number in (1, 2, 3)]
    assert restores == [["start", "ready"], ["restore 1", "start"], ["restore 1", "start"]]
    assert [one.count("restore 1") for one in map(watch.of, (-1, -2, -3))] == [0, 1, 1]
    assert (watch.coordinators, watch.enumerators) == (3, 3)


@pytest.mark.clause("L1")
@pytest.mark.flink("SC3")
def test_start_makes_the_enumerator_and_starts_it_once() -> None:
    watch = Watch()
    job = watched(watch)

    job.register(0)

    assert watch.calls == [("start", -1), ("create", 1), ("start", 1), ("ready", -1), ("reader", 1)]
    assert sorted(state_of(job).splits) == list(SIX), "what it does in `start` counts"


@pytest.mark.clause("L1")
@pytest.mark.flink("SC4")
@pytest.mark.may_fail("scripted")
def test_a_closed_coordinator_closes_its_enumerator_once() -> None:
    watch = Watch()
    job = watched(watch)
    fail_globally(job)
    job.run(job.runtime.host.close_all)
    job.run(job.runtime.host.close_all)

    closed = [(name, number) for name, number in watch.calls if name == "close"]
    assert sorted(closed) == [("close", -2), ("close", -1), ("close", 1), ("close", 2)]


@pytest.mark.clause("A2")
@pytest.mark.flink("SC5")
@pytest.mark.may_fail("ValueError: scripted")
def test_a_coordinator_that_was_never_started_closes_cleanly() -> None:
    watch = Watch()
    SplitCoordinator(
        cast("CoordinatorContext", NoContext()), lambda inner, _: WatchedEnumerator(inner, watch)
    ).close()
    assert watch.calls == []

    def refuse() -> None:
        watch.on.clear()
        raise ValueError("scripted")

    watch.on["create"] = refuse
    job = watched(watch)  # its first enumerator cannot be made: that coordinator is closed
    job.advance(60.0)

    assert [name for name, number in watch.calls if number == 1] == ["create"]
    assert watch.of(-1) == ["start", "close"]
    assert watch.of(-2)[:2] == ["restore -1", "start"]


@pytest.mark.clause("L1")
@pytest.mark.flink("SC6")
def test_an_event_of_a_readers_own_reaches_the_enumerator_with_its_sender() -> None:
    watch = Watch()
    job = watched(watch, parallelism=2)
    job.register_all()[1].lose()
    attempt = job.register(1)

    attempt.send("source", Hello())

    assert watch.said == [(1, 1, Hello())]
    assert "request" not in watch.of(1)


@pytest.mark.clause("L1")
@pytest.mark.flink("SC7")
def test_a_restored_enumerator_has_what_was_not_assigned_and_no_reader() -> None:
    seen: list[tuple[list[str], dict[int, int], list[int]]] = []

    class Looking(WatchedEnumerator):
        def start(self) -> None:
            super().start()
            left = [one.split_id for one in self.context.unassigned_splits()]
            seen.append((left, self.context.registered_readers(), self.context.waiting_readers()))

    provider = SplitCoordinatorProvider(
        "source", enumerator=lambda context, _kept: Looking(context, Watch())
    )
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    ask(attempt)
    ask(attempt)
    checkpoint(job, attempt)
    job.crash()

    HandDrivenJob(chain_of(provider), log=job.log, restore="rollback")

    assert seen == [(list(SIX), {}, []), (["c", "d", "e", "f"], {}, [])]


@pytest.mark.clause("L4")
@pytest.mark.flink("SC9")
@pytest.mark.flink("ST5")
def test_a_failed_subtask_returns_the_splits_of_incomplete_checkpoints() -> None:
    job = watched(Watch(), parallelism=2, configure=overlapping)
    first, second = job.register_all()
    ask(second)
    ask(first)
    ask(first)
    ack_all(first)
    ack_all(second)
    assert job.trigger() == 1  # two of its splits under 1
    first.ack_checkpoint(1)
    ask(first)
    ack_all(first)
    assert job.trigger() == 2  # one more under 2
    assert places(job)["d"] == "with 0"

    first.fail()

    assert state_of(job).unassigned() == ("b", "c", "d", "e", "f")
    assert places(job)["a"] == "with 1"
    assert state_of(job).reader(0).splits == ()


@pytest.mark.clause("A3")
@pytest.mark.flink("SC11")
@pytest.mark.may_fail("ValueError: scripted")
def test_an_enumerator_whose_start_raises_fails_the_job_with_the_cause() -> None:
    watch = Watch()

    def refuse() -> None:
        raise ValueError("scripted")

    watch.on["start"] = refuse
    job = watched(watch)

    assert "ValueError: scripted" in failures(job)[0]
    assert job.history(Kind.GLOBAL_FAILURE)[0].operator_id == "source"


@pytest.mark.clause("A3")
@pytest.mark.flink("SC12")
@pytest.mark.may_fail("ValueError: scripted")
def test_an_enumerator_that_cannot_be_made_fails_the_job_with_the_cause() -> None:
    watch = Watch()

    def refuse() -> None:
        raise ValueError("scripted")

    watch.on["create"] = refuse
    job = watched(watch)

    assert "ValueError: scripted" in failures(job)[0]
    assert "start" not in watch.of(1)


@pytest.mark.clause("A3")
@pytest.mark.flink("SC13")
@pytest.mark.parametrize("where", ["request", "back", "reader", "event", "complete", "aborted"])
@pytest.mark.may_fail("ValueError: scripted")
def test_an_enumerator_that_raises_in_any_handler_fails_the_job(where: str) -> None:
    watch = Watch()
    job = watched(watch, parallelism=2)

    def refuse() -> None:
        watch.on.clear()
        raise ValueError(f"scripted {where}")

    watch.on[where] = refuse
    first, second = job.register_all()

    def abort() -> None:
        job.trigger()
        second.fail()

    acts: dict[str, Callable[[], object]] = {
        "request": lambda: ask(first),
        "back": first.fail,
        "event": lambda: first.send("source", Hello()),
        "complete": lambda: checkpoint(job, first, second),
        "aborted": abort,
        "reader": lambda: None,
    }
    acts[where]()

    assert f"ValueError: scripted {where}" in failures(job)[0]
    assert len(failures(job)) == 1


@pytest.mark.clause("L1")
@pytest.mark.flink("SC17")
def test_state_of_an_older_enumerator_version_is_given_to_the_newer() -> None:
    given: list[bytes | None] = []

    class Older(WatchedEnumerator):
        def snapshot_state(self) -> bytes | None:
            return b"1:two readers"

    class Newer(WatchedEnumerator):
        def snapshot_state(self) -> bytes | None:
            return b"2:two readers, one split"

    def provider_of(made: type[WatchedEnumerator]) -> SplitCoordinatorProvider:
        def create(context: EnumeratorContext, kept: bytes | None) -> SplitEnumerator:
            given.append(kept)
            return made(context, Watch())

        return SplitCoordinatorProvider("source", enumerator=create)

    job = HandDrivenJob(chain_of(provider_of(Older)))
    checkpoint(job, *job.register_all())
    for _ in range(2):
        job.crash()
        job = HandDrivenJob(chain_of(provider_of(Newer)), log=job.log, restore="rollback")
        checkpoint(job, *job.register_all())

    assert given == [None, b"1:two readers", b"2:two readers, one split"]


@pytest.mark.flink("SC17")
@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("02026104020300", AddSplits(splits=[Split(split_id="a", content=b"\x02\x03")])),
        ("", NoMoreSplits()),
        ("00", RequestSplit()),
        ("020261", RequestSplit(finished_split_id="a")),
        (
            "020261000001",
            SplitsDiscovered(splits=[Split(split_id="a", content=b"")], is_complete=True),
        ),
        ("0278", EnumeratorState(content=b"x")),
    ],
)
def test_what_version_1_of_the_sources_types_wrote_is_read(encoded: str, value: Payload) -> None:
    declared = payload_type_of(value)
    assert declared.key.endswith("@1")
    assert declared.decode(bytes.fromhex(encoded)) == value
    assert declared.encode(value) == bytes.fromhex(encoded)


# Readers that register again


def static_of(*names: str) -> SplitCoordinatorProvider:
    return SplitCoordinatorProvider("source", discover=listing(*names), assignment="static")


@pytest.mark.clause("B7")
@pytest.mark.clause("L5")
@pytest.mark.flink("SC21")
def test_an_attempt_registers_once_so_that_its_splits_are_dealt_out_once() -> None:
    """Adapted: a second registration of the same task is refused, and nobody is dealt anything more."""
    job = HandDrivenJob(chain_of(static_of("a", "b", "c")), parallelism=3)
    attempts = [job.register(n, task_attempt_id=10 + n) for n in range(3)]
    dealt = [["a", NO_MORE], ["b", NO_MORE], ["c", NO_MORE]]
    assert [told(job, one) for one in attempts] == dealt

    again = job.register(0, task_attempt_id=10)

    assert len(again.got(Refused)) == 1
    assert [told(job, one) for one in attempts] == dealt
    assert len(job.history(Kind.EVENT_TO_SUBTASK)) == 6


@pytest.mark.clause("L5")
@pytest.mark.flink("SC22")
def test_a_restart_before_any_checkpoint_reassigns_to_that_subtask_only() -> None:
    job = HandDrivenJob(chain_of(static_of("a", "b", "c")), parallelism=3)
    first, *others = job.register_all()
    before = len(job.history(Kind.EVENT_TO_SUBTASK))

    first.fail()
    again = job.register(0)

    assert told(job, again) == ["a", NO_MORE]
    assert [told(job, one) for one in others] == [["b", NO_MORE], ["c", NO_MORE]]
    assert {one.subtask for one in job.history(Kind.EVENT_TO_SUBTASK)[before:]} == {0}


@pytest.mark.clause("L4")
@pytest.mark.clause("L5")
@pytest.mark.flink("SC23")
def test_a_restart_after_a_checkpoint_reassigns_no_split_of_its_state() -> None:
    job = HandDrivenJob(chain_of(static_of("a", "b", "c")), parallelism=3)
    attempts = job.register_all()
    checkpoint(job, *attempts)
    before = len(job.history(Kind.EVENT_TO_SUBTASK))

    attempts[0].fail()
    again = job.register(0)

    assert told(job, again) == [NO_MORE]
    assert [told(job, one) for one in attempts[1:]] == [["b", NO_MORE], ["c", NO_MORE]]
    assert [one.subtask for one in job.history(Kind.EVENT_TO_SUBTASK)[before:]] == [0]


# Which splits are assigned


@pytest.mark.clause("L3")
@pytest.mark.flink("ST1")
def test_assignments_add_up_by_subtask_in_order() -> None:
    job = watched(Watch(), parallelism=2)
    first, second = job.register_all()
    for one in (first, second, second, first):
        ask(one)

    assert state_of(job).reader(0).splits == ("a", "d")
    assert state_of(job).reader(1).splits == ("b", "c")
    assert state_of(job).unassigned() == ("e", "f")


@pytest.mark.clause("L3")
@pytest.mark.flink("ST2")
@pytest.mark.parametrize("restore", ["rollback", "resume"])
def test_assignments_survive_a_snapshot_and_a_restore(restore: str) -> None:
    job = watched(Watch(), parallelism=2)
    first, second = job.register_all()
    for one in (first, second, second):
        ask(one)
    checkpoint(job, first, second)
    before = places(job)
    job.crash()

    restored = HandDrivenJob(
        chain_of(WatchedProvider(Watch())), parallelism=2, log=job.log, restore=restore
    )

    assert places(restored) == before
    assert state_of(restored).reader(0).splits == ("a",)
    assert state_of(restored).reader(1).splits == ("b", "c")


@pytest.mark.clause("L4")
@pytest.mark.flink("ST3")
def test_a_checkpoint_moves_what_was_assigned_before_it_under_its_id() -> None:
    job = watched(Watch())
    attempt = job.register(0)
    ask(attempt)
    ack_all(attempt)
    assert job.trigger() == 1
    ask(attempt)

    (cut,) = job.history(Kind.COORDINATOR_CHECKPOINTED)
    state = state_of(job)
    assert dict(state.cuts) == {1: cut.sequence}
    under_1, under_none = (state.splits[name].place for name in ("a", "b"))
    assert isinstance(under_1, Assigned)
    assert isinstance(under_none, Assigned)
    assert under_1.sequence < (cut.sequence or 0) < under_none.sequence


@pytest.mark.clause("L4")
@pytest.mark.flink("ST4")
@pytest.mark.flink("ST6")
def test_a_checkpoint_makes_assignments_final_and_a_reset_returns_the_rest() -> None:
    job = watched(Watch(), configure=overlapping)
    attempt = job.register(0)
    ask(attempt)
    ack_all(attempt)
    assert job.trigger() == 1
    ask(attempt)  # under 2
    assert job.trigger() == 2
    ask(attempt)  # under none
    attempt.ack_checkpoint(1)
    assert job.runtime.state.last_checkpoint == 1
    assert sorted(state_of(job).cuts) == [2]

    attempt.fail()

    assert places(job)["a"] == "with 0"
    assert state_of(job).unassigned() == ("b", "c", "d", "e", "f")


# A coordinator that tells a repetition from a contradiction


@event("test.filter", version=1)
class Filter(Payload):
    """What a subtask has found."""

    values: list[int]


def _collect(state: Map[int, list[int]], record: Record, value: Payload | None) -> Any:  # noqa: ANN401, as projections have it
    if record.kind is Kind.EVENT_TO_COORDINATOR and isinstance(value, Filter):
        subtask = record.subtask or 0
        return state if subtask in state else state.set(subtask, value.values)
    return state


class Collector(EventSourcedCoordinator[Map[int, list[int]]]):
    """Keeps the first that each subtask says, for good: readers were given it already."""

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        assert isinstance(event, Filter)
        known = self.state[subtask]
        if known != event.values:
            raise ValueError(f"subtask {subtask} said {known}, and now says {event.values}")


class CollectorProvider(CoordinatorProvider):
    operator_id = "source"
    payload_types: tuple[type[Payload], ...] = (Filter,)
    projection: OperatorProjection[Any] | None = OperatorProjection(
        name="test.collected", version=1, initial=Map(), apply=_collect
    )

    def create(self, context: CoordinatorContext) -> Collector:
        return Collector(context)


@pytest.mark.clause("A3")
@pytest.mark.flink("DF2")
@pytest.mark.may_fail("subtask 0 said [1, 2], and now says [1, 3]")
def test_a_new_attempt_may_repeat_its_message_but_not_contradict_it() -> None:
    def replaced(attempt: FakeAttempt, values: list[int]) -> FakeAttempt:
        attempt.fail()
        attempt = job.register(0)
        attempt.send("source", Filter(values=values))
        return attempt

    job = HandDrivenJob(quota_chain(CollectorProvider()), parallelism=2)
    attempt = job.register_all()[0]
    attempt.send("source", Filter(values=[1, 2]))
    attempt = replaced(attempt, [1, 2])
    assert failures(job) == []

    replaced(attempt, [1, 3])

    assert "subtask 0 said [1, 2], and now says [1, 3]" in failures(job)[0]
    assert dict(job.runtime.state.projections["source"]) == {0: [1, 2]}
