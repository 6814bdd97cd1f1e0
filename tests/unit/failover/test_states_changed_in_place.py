"""A projection whose `apply` changes its state in place: cuts, and the states of a new job, stay as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from coordlog.api.chain import Chain
from coordlog.api.coordinator import EventSourcedCoordinator, provide
from coordlog.coordinators import DerivedCodec, OperatorProjection
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload import Payload, event
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


def new_chain(
    *, has_codec: bool = True, after_reset: Callable[[Counts, Counts], Counts] | None = None
) -> Chain:
    projection = OperatorProjection(
        name="in_place.counts",
        version=1,
        initial=Counts(),
        apply=count,
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
