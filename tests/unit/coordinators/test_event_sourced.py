"""The base of event-sourced coordinators, with one of a user's own on it (clauses D3, D5, F2)."""

from __future__ import annotations

import pytest

from coordlog.api.coordinator import CoordinatorContext
from coordlog.coordinators import (
    CommitCoordinator,
    CoordinatorProvider,
    EventSourcedCoordinator,
    SplitCoordinator,
)
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from jobs.quota import Quota, QuotaCoordinator, QuotaProvider, User, quota_chain, quota_of


def started(provider: QuotaProvider | None = None) -> tuple[HandDrivenJob, User, User]:
    job = HandDrivenJob(quota_chain(provider), parallelism=2)
    first, second = (User.of(one) for one in job.register_all())
    return job, first, second


def checkpoint(job: HandDrivenJob, *users: User) -> None:
    for one in users:
        one.handle_all()
    checkpoint_id = job.trigger()
    for one in users:
        one.handle_all()
    assert job.runtime.state.last_checkpoint == checkpoint_id


def test_the_ready_made_coordinators_stand_on_it() -> None:
    assert issubclass(SplitCoordinator, EventSourcedCoordinator)
    assert issubclass(CommitCoordinator, EventSourcedCoordinator)


@pytest.mark.clause("F2")
def test_its_part_of_a_checkpoint_is_its_cut_and_no_bytes() -> None:
    job, first, second = started()
    first.say()
    checkpoint(job, first, second)
    first.say()

    (cut,) = job.history(Kind.COORDINATOR_CHECKPOINTED)
    assert (cut.payload, cut.attributes["state"]) == (None, "folded")
    at_the_cut = job.runtime.state.completed[1].cuts["source"].projection
    assert isinstance(at_the_cut, Quota)
    assert at_the_cut.totals(0) == (1, 1)
    assert quota_of(job).totals(0) == (3, 3), "and the state has gone on"


@pytest.mark.clause("D5")
def test_a_local_failover_undoes_exactly_the_events_the_projection_lost() -> None:
    job, first, second = started()
    first.say()
    second.say()
    checkpoint(job, first, second)
    first.say()
    second.say()
    first.handle_all()
    assert first.granted == 1 + 2

    first.attempt.fail()

    assert quota_of(job).totals(0) == (1, 1)
    assert quota_of(job).totals(1) == (3, 3)
    again = User.of(job.register(0))
    again.handle_all()
    assert (again.said, again.granted) == (1, 1)


@pytest.mark.clause("D5")
def test_a_request_before_the_barrier_answered_after_the_cut_is_redone() -> None:
    job, first, second = started()
    job.trigger()
    first.say()  # after the cut, before the barrier
    first.handle_all()
    second.handle_all()
    assert (job.runtime.state.last_checkpoint, first.granted) == (1, 1)

    first.attempt.fail()
    again = User.of(job.register(0))
    again.handle_all()

    assert (again.said, again.granted) == (1, 1)
    assert quota_of(job).totals(0) == (1, 1)


@pytest.mark.clause("D3")
@pytest.mark.clause("K3")
@pytest.mark.parametrize("restore", ["rollback", "resume"])
def test_a_rollback_and_a_resume_come_to_the_same_state(restore: str) -> None:
    provider = QuotaProvider()
    job, first, second = started(provider)
    first.say()
    first.handle_all()
    job.trigger()
    first.say()  # channel state
    second.say()  # as well
    first.handle_all()
    second.handle_all()
    first.say()  # after the barrier: lost
    job.crash()
    chain = quota_chain(provider)

    restored = HandDrivenJob(chain, parallelism=2, log=job.log, restore=restore)

    assert restored.mode == restore
    assert [quota_of(restored).totals(n)[0] for n in (0, 1)] == [1 + 2, 1]
    users = [User.of(one) for one in restored.register_all()]
    for one in users:
        one.handle_all()
    assert [quota_of(restored).totals(n) for n in (0, 1)] == [(3, 3), (1, 1)]
    assert [(one.said, one.granted) for one in users] == [(2, 3), (1, 1)]
    at_the_cut = [(1, None, (1, 1))]
    assert provider.told == (at_the_cut if restore == "rollback" else [])


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.may_fail("QuotaCoordinator is event-sourced")
def test_one_whose_provider_declares_no_projection_is_refused(is_batch: bool) -> None:  # noqa: FBT001
    class Forgetful(CoordinatorProvider):
        operator_id = "source"
        payload_types: tuple[type[Payload], ...] = QuotaProvider.payload_types

        def create(self, context: CoordinatorContext) -> QuotaCoordinator:
            return QuotaCoordinator(context, [])

    job = HandDrivenJob(quota_chain(Forgetful()), is_batch=is_batch)

    failure = job.history(Kind.GLOBAL_FAILURE)[0]
    assert failure.operator_id == "source"
    assert "its provider declares no `projection`" in str(failure.reason)
