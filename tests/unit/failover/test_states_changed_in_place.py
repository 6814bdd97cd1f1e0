"""Projections whose states are dicts: `apply` changes them in place, or depends on their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from coordlog.api.chain import Chain
from coordlog.api.coordinator import EventSourcedCoordinator, provide
from coordlog.coordinators import DerivedCodec, OperatorProjection
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload import Payload, event, fact, request, response
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from coordlog.testing.real_attempt import silent_source


@event("in_place.seen", version=1)
class Seen(Payload):
    key: str


@dataclass(frozen=True)
class Counts:
    by_key: dict[str, int] = field(default_factory=dict[str, int])


class Counter(EventSourcedCoordinator[Counts]):
    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Seen) -> None:
        """All is in the projection."""


def count(state: Counts, record: Record, value: Payload | None) -> Counts:
    if record.kind is Kind.EVENT_TO_COORDINATOR and isinstance(value, Seen):
        state.by_key[value.key] = state.by_key.get(value.key, 0) + 1
    return state


Apply = Callable[[Counts, Record, Payload | None], Counts]


def new_chain(
    apply: Apply = count,
    *,
    has_codec: bool = True,
    after_reset: Callable[[Counts, Counts], Counts] | None = None,
) -> Chain:
    projection = OperatorProjection(
        name="in_place.counts",
        version=1,
        initial=Counts(),
        apply=apply,
        codec=DerivedCodec(Counts) if has_codec else None,
        after_reset=after_reset,
    )
    provider = provide(Counter, operator_id="source", payload_types=[Seen], projection=projection)
    return Chain(source=silent_source(provider), operators=[])


def counted(job: HandDrivenJob) -> dict[str, int]:
    state = job.runtime.state.projections["source"]
    assert isinstance(state, Counts)
    return dict(state.by_key)


def send(attempt: FakeAttempt, *keys: str) -> None:
    for key in keys:
        attempt.send("source", Seen(key=key))


def checkpoint(job: HandDrivenJob, attempt: FakeAttempt) -> None:
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    attempt.ack_checkpoint(checkpoint_id)


@pytest.mark.clause("E2")
@pytest.mark.parametrize("has_codec", [True, False])
def test_a_restore_begins_with_the_state_of_the_cut(has_codec: bool) -> None:  # noqa: FBT001
    job = HandDrivenJob(new_chain(has_codec=has_codec))
    (attempt,) = job.register_all()
    send(attempt, "x")
    checkpoint(job, attempt)
    send(attempt, "x", "y")
    job.crash()

    restored = HandDrivenJob(new_chain(has_codec=has_codec), log=job.log)

    assert counted(restored) == {"x": 1}


@pytest.mark.clause("E2")
@pytest.mark.may_fail("no reason")
def test_each_failover_in_one_driver_begins_with_the_state_of_the_cut() -> None:
    job = HandDrivenJob(new_chain())
    (attempt,) = job.register_all()
    send(attempt, "before a checkpoint")
    for expected in ({}, {"x": 1}, {"x": 1}):
        job.run(lambda: job.runtime.fail_job("source", "no reason"))
        job.stage_ends()
        job.advance(60)
        assert counted(job) == expected
        (attempt,) = job.register_all()
        if not expected:
            send(attempt, "x")
            checkpoint(job, attempt)
        send(attempt, "x", "y")


@pytest.mark.clause("K3")
@pytest.mark.parametrize("every", range(2, 14))
def test_a_state_that_a_snapshot_holds_once_is_apart_from_the_cut(every: int) -> None:
    """A snapshot that follows the checkpoint has equal states for the newest one and the cut."""
    options = RuntimeOptions(snapshot_every=every)
    job = HandDrivenJob(new_chain(), options=options)
    (attempt,) = job.register_all()
    send(attempt, "x")
    checkpoint(job, attempt)
    send(attempt, "x", "y")
    job.crash()

    restored = HandDrivenJob(new_chain(), log=job.log, options=options)

    assert counted(restored) == {"x": 1}


@pytest.mark.clause("K3")
def test_one_chain_serves_several_jobs_whose_states_are_apart() -> None:
    chain = new_chain()
    for _ in range(2):
        job = HandDrivenJob(chain)
        (attempt,) = job.register_all()
        send(attempt, "x")
        assert counted(job) == {"x": 1}


def keep_newest(state: Counts, record: Record, value: Payload | None) -> Counts:
    """The two newest keys; the oldest is dropped."""
    if record.kind is not Kind.EVENT_TO_COORDINATOR or not isinstance(value, Seen):
        return state
    by_key = {**state.by_key, value.key: 1}
    if len(by_key) > 2:
        del by_key[next(iter(by_key))]
    return Counts(by_key=by_key)


@pytest.mark.clause("K3")
@pytest.mark.parametrize("every", [3, None])
def test_a_snapshot_keeps_the_order_of_a_dict(every: int | None) -> None:
    options = RuntimeOptions(snapshot_every=every)
    job = HandDrivenJob(new_chain(keep_newest), options=options)
    (attempt,) = job.register_all()
    send(attempt, "z", "a")
    checkpoint(job, attempt)
    job.crash()

    restored = HandDrivenJob(new_chain(keep_newest), log=job.log, options=options)
    (attempt,) = restored.register_all()
    send(attempt, "m")

    assert bool(restored.history(Kind.SNAPSHOT)) == (every is not None)
    assert list(counted(restored)) == ["a", "m"]


@fact("in_place.noted", version=1)
class Noted(Payload):
    key: str


class Noting(EventSourcedCoordinator[Counts]):
    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Seen) -> None:
        self.context.record(Noted(key=event.key))
        if event.key == "bad":
            raise ValueError("no reason")


def count_noted(state: Counts, record: Record, value: Payload | None) -> Counts:
    if isinstance(value, Noted):
        state.by_key[value.key] = state.by_key.get(value.key, 0) + 1
    return state


@pytest.mark.clause("A3")
@pytest.mark.may_fail("no reason")
@pytest.mark.parametrize("keeps", [{"survives_resets": True}, {"after_reset": lambda old, _: old}])
def test_a_turn_that_fails_changes_no_state_that_outlives_resets(keeps: dict[str, Any]) -> None:
    projection = OperatorProjection(
        name="in_place.noted",
        version=1,
        initial=Counts(),
        apply=count_noted,
        codec=DerivedCodec(Counts),
        **keeps,
    )
    types = [Seen, Noted]
    provider = provide(Noting, operator_id="source", payload_types=types, projection=projection)
    job = HandDrivenJob(Chain(source=silent_source(provider), operators=[]))
    (attempt,) = job.register_all()

    send(attempt, "good", "bad")
    job.stage_ends()
    job.advance(60)

    assert counted(job) == {"good": 1}


@request("in_place.take", version=1)
class Take(Payload):
    key: str


@response("in_place.taken", version=1)
class Taken(Payload):
    count: int


def take(state: Counts, request: Payload) -> Payload:
    """A query that changes the state, which is a mistake of its author."""
    assert isinstance(request, Take)
    return Taken(count=state.by_key.pop(request.key, 0))


@pytest.mark.clause("J1")
def test_a_query_changes_no_state() -> None:
    provider = new_chain().coordinators[0]
    provider.payload_types, provider.queries = (Seen, Take, Taken), {Take: take}
    job = HandDrivenJob(Chain(source=silent_source(provider), operators=[]))
    (attempt,) = job.register_all()
    send(attempt, "x")

    answers = [job.ask("source", Take(key="x")).answer() for _ in range(2)]

    assert [answer.response for answer in answers] == [Taken(count=1)] * 2
    assert counted(job) == {"x": 1}


@pytest.mark.clause("E2")
def test_an_after_reset_that_changes_its_state_in_place_leaves_the_cut() -> None:
    def both(before: Counts, restored: Counts) -> Counts:
        restored.by_key["resets"] = restored.by_key.get("resets", 0) + 1
        return restored

    chain = new_chain(after_reset=both)
    job = HandDrivenJob(chain)
    (attempt,) = job.register_all()
    send(attempt, "x")
    checkpoint(job, attempt)
    for _ in range(2):
        job.crash()
        job = HandDrivenJob(chain, log=job.log)
        assert counted(job) == {"x": 1, "resets": 1}


@pytest.mark.clause("E2")
def test_a_state_that_cannot_be_copied_is_folded_all_the_same() -> None:
    linked: tuple[object, ...] = ()
    for _ in range(5_000):
        linked = (0, linked)
    projection = OperatorProjection(
        name="linked", version=1, initial=linked, apply=lambda state, _record, _value: state
    )
    assert projection.apart(linked) is linked
