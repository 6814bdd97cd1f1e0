"""What an opening again means for coordinators, attempts and checkpoints, one record at a time."""

from __future__ import annotations

import dataclasses

import pytest

from coordlog.errors import OptionError, RestoreError
from coordlog.projections.inspection.prune_plan import plan_prune
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.invariants import faults_of
from coordlog.projections.job.state import Phase
from coordlog.schemas.builtin_types import SnapshotWanted, TakeSavepoint
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, FakeSink, NotingProvider, Up, chain_of, kinds


def provider(**more: object) -> NotingProvider:
    sink = FakeSink()
    return dataclasses.replace(NotingProvider(projection=HANDLED, sink=sink), **more)  # type: ignore[arg-type]


def finished(
    source: NotingProvider, *, parallelism: int = 1, is_batch: bool = False
) -> HandDrivenJob:
    """A job that has ended: each subtask sent a number and has committed something, and a state."""
    job = HandDrivenJob(chain_of(source), parallelism=parallelism, is_batch=is_batch)
    for one in job.register_all():
        one.send("source", Up(n=one.subtask))
        state = f"of {one.subtask}".encode()
        one.complete(states={"source": state}, committables=[("source", state)])
    assert job.runtime.state.phase is Phase.FINISHED
    return job


def opened(job: HandDrivenJob, source: NotingProvider, **more: object) -> HandDrivenJob:
    options = {"parallelism": job.runtime.state.parallelism, "is_batch": job.runtime.state.is_batch}
    again = {**options, **more}
    return HandDrivenJob(chain_of(source), log=job.log, again=True, **again)  # type: ignore[arg-type]


def test_new_coordinators_continue_the_fold_and_attempts_their_states() -> None:
    job = finished(provider())
    source = provider()
    again = opened(job, source)
    attempt = again.register(0)

    assert again.mode == "again"
    assert source.said("create", "start", "reset_to_checkpoint", "failed", "reset") == [
        ("create",),
        ("start",),
    ]
    assert source.said("complete") == [("complete", 1)], "told again, before attempts are ready"
    assert again.runtime.state.projections["source"] == (0,)
    assert attempt.accepted.restored_checkpoint == 1
    assert [one.state for one in attempt.accepted.states] == [b"of 0"]
    assert attempt.accepted.attempt_number == 1


def test_what_is_committed_is_not_committed_again() -> None:
    job = finished(provider())
    sink = FakeSink()
    again = opened(job, provider(sink=sink))
    again.register(0).complete(committables=[("source", b"new")])

    assert again.runtime.state.phase is Phase.FINISHED
    assert sink.settled == [("new",)]


def test_in_batch_too_each_opening_ends_with_the_commit_of_its_own() -> None:
    job = finished(provider(), is_batch=True)
    sink = FakeSink()
    source = provider(sink=sink)
    again = opened(job, source)
    attempt = again.register(0)
    assert [one.state for one in attempt.accepted.states] == []
    attempt.complete(committables=[("source", b"new")])

    assert sink.settled == [("new",)]
    assert source.said("complete") == [("complete", -1)]
    assert kinds(again.history())[-1] == "JOB_FINISHED"


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.may_fail("scripted")
def test_a_global_failover_goes_back_to_the_opening(*, is_batch: bool) -> None:
    job = finished(provider(), is_batch=is_batch)
    source = provider()
    again = opened(job, source)
    attempt = again.register(0)
    attempt.send("source", Up(n=7))
    assert again.runtime.state.projections["source"] == (0, 7)
    again.run(lambda: again.runtime.fail_job("source", "scripted"))
    again.stage_ends("cancelled")
    again.advance(60.0)

    state = again.runtime.state
    assert state.projections["source"] == (0,)
    assert state.phase is Phase.RUNNING
    assert state.subtasks[0].completion is None
    assert again.history(Kind.EVENT_REDELIVERED) == []
    assert again.register(0).accepted.restored_checkpoint == (-1 if is_batch else 1)


def test_its_failures_are_counted_afresh() -> None:
    job = HandDrivenJob(chain_of(provider()))
    job.register(0).fail("scripted")
    job.advance(60.0)
    job.register(0).complete()
    assert job.runtime.state.failures_us

    again = opened(job, provider())

    assert again.runtime.state.failures_us == ()
    assert again.runtime.state.reasons == ()


def test_with_fewer_subtasks_states_are_shared_out_and_numbers_stay_unique() -> None:
    source = provider()
    job = finished(source, parallelism=3)
    chain = chain_of(provider())
    with pytest.raises(RestoreError, match="would be one"):
        HandDrivenJob(chain, log=job.log, again=True, parallelism=2)
    merging = dataclasses.replace(chain.source, merge_states=b"+".join)
    chain = dataclasses.replace(chain, source=merging)

    again = HandDrivenJob(chain, log=job.log, again=True, parallelism=2)
    first = again.register(0).accepted
    more = HandDrivenJob(chain, log=job.log, again=True, parallelism=3)

    assert first.attempt_number == 1
    assert len(first.states) == 2, "those of subtasks 0 and 2"
    assert more.register(2).accepted.attempt_number == 1


def test_coordinators_that_cannot_be_refolded_are_refused_unrecorded() -> None:
    job = finished(NotingProvider(sink=FakeSink()))
    before = job.log.high_watermark()

    with pytest.raises(OptionError, match="the coordinators of source are not event-sourced"):
        opened(job, NotingProvider(sink=FakeSink()))

    assert job.log.high_watermark() == before


def test_a_job_that_has_not_finished_goes_on_as_without_it() -> None:
    job = HandDrivenJob(chain_of(provider()))
    job.register(0)

    again = opened(job, provider())

    assert again.mode == "rollback"


@pytest.mark.clause("E5")
def test_what_is_kept_stays_and_can_be_gone_back_to_and_pruned_to() -> None:
    job = HandDrivenJob(chain_of(provider()))
    attempt = job.register(0)
    for number in range(1, 5):
        attempt.send("source", Up(n=number))
        job.trigger()
        attempt.ack_checkpoint(number, states={"source": b"%d" % number})
        if number == 1:
            job.ask("", TakeSavepoint(name="first")).answer()
    attempt.complete(states={"source": b"end"})
    assert job.runtime.state.phase is Phase.FINISHED
    again = opened(job, provider())
    assert dict(again.runtime.state.savepoints.items()) == {"first": 1}
    assert sorted(again.runtime.state.completed) == [1, 5], "the opening, and what is kept"
    checkpointed(again)
    assert again.ask("", SnapshotWanted(why="prune")).answer().sequence > 0
    assert sorted(again.runtime.state.completed) == [1, 5, 6]
    assert faults_of(again.runtime.state) == ()
    again.crash()
    stored = list(again.log.read(0, again.log.high_watermark()))
    assert verify(stored).faults == []
    plan = plan_prune(stored)
    assert plan.why_not == ""
    assert plan.checkpoints == (1, 5, 6)

    back = HandDrivenJob(chain_of(provider()), log=again.log, from_checkpoint=1)
    assert back.runtime.state.projections["source"] == (1,)
    assert [one.state for one in back.register(0).accepted.states] == [b"1"]


@pytest.mark.clause("E2")
def test_a_savepoint_from_before_an_added_operator_has_nothing_of_it() -> None:
    """Not the state of the opening: the events in it come once more."""
    job = HandDrivenJob(chain_of(provider()))
    checkpointed(job)
    job.ask("", TakeSavepoint(name="first")).answer()
    job.crash()
    both = chain_of(provider(), provider(operator_id="added"))
    added = HandDrivenJob(both, log=job.log)
    attempt = added.register(0)
    attempt.send("added", Up(n=1))
    attempt.complete()
    assert added.runtime.state.phase is Phase.FINISHED
    again = HandDrivenJob(both, log=job.log, again=True)
    assert again.runtime.state.projections["added"] == (1,)
    again.crash()

    back = HandDrivenJob(both, log=job.log, from_checkpoint=1)
    assert back.runtime.state.projections["added"] == ()


@pytest.mark.clause("E2")
@pytest.mark.may_fail("scripted")
def test_a_failover_to_the_opening_restores_an_operator_added_by_it() -> None:
    job = finished(provider())
    job.crash()
    both = chain_of(provider(), provider(operator_id="added"))
    again = HandDrivenJob(both, log=job.log, again=True)
    again.register(0).send("added", Up(n=1))
    again.run(lambda: again.runtime.fail_job("source", "scripted"))
    again.stage_ends("cancelled")
    again.advance(60.0)

    assert dict(again.runtime.state.projections.items()) == {"source": (0,), "added": ()}


def checkpointed(job: HandDrivenJob) -> None:
    attempt = job.register(0)
    number = job.trigger()
    assert number is not None
    attempt.ack_checkpoint(number)
