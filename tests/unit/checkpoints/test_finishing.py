"""The end of a job: what must be done before it, what a coordinator may do late, and how it fails by what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from immutables import Map

from coordlog.api.coordinator import CommittableOf
from coordlog.errors import NoSinkError, UsageError
from coordlog.kernel.inputs import FailGlobally, FinishJob
from coordlog.kernel.step import due
from coordlog.limits import COMMIT_WAIT_S, FINAL_CHECKPOINTS_MAX
from coordlog.projections.job.grants import COVERS
from coordlog.projections.job.invariants import faults_of
from coordlog.projections.job.state import Granted, JobState, Phase
from coordlog.projections.splits.fold import SplitsState, apply_record
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import Split, SplitsDiscovered
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from coordlog.testing.replay import replay
from fakes.kernel_fakes import HANDLED, FakeSink, Intent, Noted, Noting, NotingProvider, chain_of

ROWS = [("sink", b"a"), ("sink", b"b")]


def asking(sink: FakeSink, *, is_timer: bool = False, is_giving: bool = True) -> NotingProvider:
    """A sink's coordinator that gives its intent in the handler of a call or a timer."""
    provider = NotingProvider("sink", sink=sink, is_committing=False)

    def give(coordinator: Noting, checkpoint_id: int) -> None:
        granted = coordinator.context.committables(checkpoint_id)
        if granted and is_giving:
            names = [one.content.decode() for one in granted]
            coordinator.context.commit(checkpoint_id, Intent(names=names))

    def told(coordinator: Noting, checkpoint_id: int) -> None:
        if is_timer:
            coordinator.context.schedule(5, lambda: give(coordinator, checkpoint_id))
        else:
            coordinator.context.call_async(
                lambda: Noted(text="version 7"), lambda _r, _e: give(coordinator, checkpoint_id)
            )

    provider.on["complete"] = told
    return provider


def finished(job: HandDrivenJob, rows: Sequence[tuple[str, bytes]] = tuple(ROWS)) -> FakeAttempt:
    """Its one subtask completes, having made these rows."""
    (attempt,) = job.register_all()
    attempt.complete(committables=rows)
    job.stage_ends()
    return attempt


def ways() -> list[tuple[bool, bool]]:
    return [(is_batch, is_timer) for is_batch in (False, True) for is_timer in (False, True)]


@pytest.mark.clause("I3")
@pytest.mark.parametrize(("is_batch", "is_timer"), ways())
def test_a_job_waits_for_the_call_or_timer_that_commits_its_last_rows(
    *, is_batch: bool, is_timer: bool
) -> None:
    sink = FakeSink()
    job = HandDrivenJob(
        chain_of(NotingProvider(), asking(sink, is_timer=is_timer)), is_batch=is_batch
    )
    job.is_work_held = True
    finished(job)

    assert not job.runtime.state.is_over
    assert sink.settled == []
    job.is_work_held = False
    job.pump()
    job.advance(6)
    assert sink.settled == [("a", "b")]
    assert job.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("I3")
@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.may_fail("committables that no intent covers")
def test_a_job_with_uncommittable_last_rows_fails_by_operator_and_number(
    *,
    is_batch: bool,
) -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider(), asking(FakeSink(), is_giving=False)), is_batch=is_batch
    )
    finished(job)

    (over,) = job.history(Kind.JOB_FAILED)
    assert over.reason == (
        "its subtasks have finished, and operator 'sink' has 2 committables that no intent covers, and "
        "no open calls and timers: have its coordinator commit them once notified of the checkpoint"
    )
    assert over.attributes == {"final": "a restart would leave the same"}
    assert job.history(Kind.JOB_FINISHED) == []


@pytest.mark.clause("I3")
@pytest.mark.clause("E6")
@pytest.mark.parametrize(
    ("is_batch", "restore", "mode"),
    [(False, "rollback", "rollback"), (False, "resume", "resume"), (True, None, "settle")],
)
def test_the_next_driver_commits_what_a_dead_one_had_not_committed_yet(
    *, is_batch: bool, restore: str | None, mode: str
) -> None:
    sink = FakeSink()
    sinks = asking(sink)
    sinks.projection = HANDLED
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED), sinks), is_batch=is_batch)
    job.is_work_held = True
    finished(job)
    job.crash()
    assert sink.settled == []

    again = HandDrivenJob(
        job.chain, log=job.log, is_batch=is_batch, restore=restore, clock=job.clock
    )

    assert again.mode == mode
    assert sink.settled == [("a", "b")]
    assert again.runtime.state.phase is Phase.FINISHED
    assert len(again.history(Kind.SUBTASK_COMPLETED)) == 1
    replayed = replay(again.log, again.chain)
    assert replayed.epoch_count == 2


@pytest.mark.clause("I3")
@pytest.mark.may_fail("RuntimeError: the catalog is away")
def test_a_partly_committed_batch_job_continues_and_resets_nothing() -> None:
    quick, slow = FakeSink(), FakeSink()
    late = asking(slow)
    give = late.on.pop("complete")

    def explode(coordinator: Noting, checkpoint_id: int) -> None:
        def bang(_result: object, _error: object) -> None:
            coordinator.context.call_async(lambda: Noted(text="never"), lambda _r, _e: None)
            raise RuntimeError("the catalog is away")

        coordinator.context.call_async(lambda: Noted(text="x"), bang)

    late.on["complete"] = explode
    job = HandDrivenJob(chain_of(NotingProvider("rows", sink=quick), late), is_batch=True)
    job.is_work_held = True
    (attempt,) = job.register_all()
    attempt.complete(committables=[("rows", b"r"), *ROWS])
    job.stage_ends()
    job.is_work_held = False
    job.pump()

    assert quick.settled == [("r",)]
    assert job.runtime.state.phase is Phase.FAILED
    (over,) = job.history(Kind.JOB_FAILED)
    assert "the catalog is away" in (over.reason or "")
    assert "a part is committed" in over.attributes["final"]
    job.crash()

    late.on["complete"] = give
    again = HandDrivenJob(job.chain, log=job.log, is_batch=True, clock=job.clock)
    assert again.history(Kind.RESET_TO_CHECKPOINT) == []
    assert (quick.settled, slow.settled) == ([("r",)], [("a", "b")])
    assert again.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("I3")
def test_a_failure_past_the_last_commit_of_a_batch_changes_nothing() -> None:
    sink = FakeSink()
    job = HandDrivenJob(chain_of(NotingProvider("sink", sink=sink)), is_batch=True)
    job.is_work_held = True
    finished(job)
    job.run(lambda: job.runtime.handle(FailGlobally(reason="late")))
    job.is_work_held = False
    job.pump()

    assert job.runtime.state.phase is Phase.FINISHED
    assert sink.settled == [("a", "b")]


@pytest.mark.clause("I3")
@pytest.mark.may_fail("the catalog is away")
def test_a_batch_that_has_committed_a_marker_alone_is_not_reset_either() -> None:
    sink = FakeSink()
    provider = NotingProvider("sink", sink=sink, is_committing=False)

    def mark(coordinator: Noting, checkpoint_id: int) -> None:
        coordinator.context.commit(checkpoint_id, Intent(names=["_BEGUN"]), committables=[])
        coordinator.context.schedule(1, lambda: coordinator.context.fail_job("the catalog is away"))

    provider.on["complete"] = mark
    job = HandDrivenJob(chain_of(NotingProvider(), provider), is_batch=True)
    finished(job)
    assert sink.settled == [("_BEGUN",)]

    job.advance(2)

    assert job.runtime.state.phase is Phase.FAILED
    assert job.history(Kind.RESET_TO_CHECKPOINT) == []


@pytest.mark.clause("E6")
@pytest.mark.parametrize("ahead", [1, 40])
@pytest.mark.may_fail("which has not completed on this branch")
def test_an_intent_of_an_incomplete_checkpoint_is_refused_harmlessly(
    ahead: int,
) -> None:
    sink = FakeSink()
    provider = NotingProvider("sink", sink=sink, is_committing=False)
    provider.on["complete"] = lambda coordinator, n: coordinator.context.commit(
        n + ahead, Intent(names=["a"])
    )
    job = HandDrivenJob(chain_of(NotingProvider(), provider))
    job.register(0).ack_checkpoint(job.trigger() or 0, committables=ROWS)

    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert (
        f"commits an intent of checkpoint {1 + ahead}, which has not completed on this branch"
        in (failure.reason or "")
    )
    job.crash()
    del provider.on["complete"]
    provider.is_committing = True
    job = HandDrivenJob(job.chain, log=job.log, clock=job.clock)
    assert sink.settled == [("a", "b")]


@pytest.mark.clause("I3")
@pytest.mark.may_fail("committables that no intent covers")
def test_an_endlessly_restarted_timer_does_not_keep_a_job_alive() -> None:
    provider = NotingProvider("sink", sink=FakeSink(), is_committing=False)

    def again(coordinator: Noting) -> None:
        coordinator.context.schedule(600, lambda: again(coordinator))

    provider.on["complete"] = lambda coordinator, _n: again(coordinator)
    job = HandDrivenJob(chain_of(provider))
    finished(job)
    job.advance(COMMIT_WAIT_S - 1)
    assert job.runtime.state.phase is Phase.RUNNING

    job.advance(601)

    (over,) = job.history(Kind.JOB_FAILED)
    assert (over.reason or "").startswith(
        "its subtasks have finished, and after 14400 s operator 'sink' has 2 committables that no "
        "intent covers, and 1 open calls and timers"
    )


@pytest.mark.may_fail("RuntimeError: bang")
def test_calls_of_a_turn_that_failed_are_not_open() -> None:
    provider = NotingProvider("sink", sink=FakeSink())

    def explode(coordinator: Noting, *_said: object) -> None:
        coordinator.context.call_async(lambda: Noted(text="x"), lambda _r, _e: None)
        coordinator.context.schedule(1, lambda: None)
        raise RuntimeError("bang")

    provider.on["ready"] = explode
    job = HandDrivenJob(chain_of(provider))
    job.register(0)

    assert job.history(Kind.GLOBAL_FAILURE)
    assert job.runtime.host.open_work() == {}


# --- the one predicate ---
GRANT = Granted(operator_id="sink", subtask=0, attempt_number=0, split_id=None, content=b"a")
ENDING = JobState(
    phase=Phase.ENDING,
    is_batch=True,
    parallelism=1,
    finished_count=1,
    operators=("source", "sink"),
    granted=Map({-1: (GRANT,)}),
)


def splits_of(*names: str) -> SplitsState:
    record = Record(epoch=0, driver_id="d", sequence=1, kind=Kind.FACT, timestamp_us=0, job_id="j")
    found = SplitsDiscovered(
        splits=[Split(split_id=one, content=b"") for one in names], is_complete=True
    )
    return apply_record(SplitsState(), record, found)


@pytest.mark.clause("I3")
def test_work_of_another_operator_keeps_no_job_from_its_end() -> None:
    assert due(ENDING, {"sink": 1}) is None
    failed = due(ENDING, {"source": 1})
    assert isinstance(failed, FinishJob)
    assert "operator 'sink' has 1 committables" in failed.left


@pytest.mark.clause("L6")
def test_a_job_with_a_split_that_waits_fails_by_source_and_number() -> None:
    waiting = replace(
        ENDING, granted=Map(), projections=Map({"source": splits_of("a", "b"), "sink": None})
    )

    ended = due(waiting)

    assert isinstance(ended, FinishJob)
    assert (
        ended.left
        == "source 'source' has 2 splits waiting: read the splits, or skip them with `coordlog skip`"
    )
    done = replace(waiting, projections=Map({"source": SplitsState()}))
    assert due(done) == FinishJob()


def test_a_finished_state_with_committables_left_is_unsound() -> None:
    over = replace(ENDING, phase=Phase.FINISHED)
    fault = "the job has finished, and 1 committables of 'sink' are left"
    assert fault in faults_of(over)
    assert fault not in faults_of(replace(over, operators=("source",)))


# --- the last checkpoint ---
def failing_cuts(count: int | None) -> NotingProvider:
    """A coordinator whose part of the first `count` checkpoints, or of all, fails."""
    provider = NotingProvider(is_cut_at_once=False)

    def cut(coordinator: Noting, checkpoint_id: int) -> None:
        result = coordinator.results[checkpoint_id]
        if count is None or checkpoint_id <= count:
            result.fail("the store is full")
        else:
            result.complete(b"")

    provider.on["cut"] = cut
    return provider


@pytest.mark.clause("H5")
def test_a_last_checkpoint_is_tried_again_with_growing_pauses() -> None:
    job = HandDrivenJob(chain_of(failing_cuts(4)))
    finished(job, ())
    began_us = job.clock.now_us()
    job.advance(60)

    tries = [(one.timestamp_us - began_us) / 1e6 for one in job.history(Kind.CHECKPOINT_TRIGGERED)]
    assert tries == [0.0, 0.5, 1.5, 3.5, 7.5]
    assert job.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("H5")
@pytest.mark.may_fail("its last checkpoint was aborted 10 times in a row")
def test_a_last_checkpoint_that_always_aborts_fails_the_job_by_reason() -> None:
    job = HandDrivenJob(chain_of(failing_cuts(None)))
    finished(job, ())
    job.advance(600)

    assert len(job.history(Kind.CHECKPOINT_ABORTED)) == FINAL_CHECKPOINTS_MAX
    (over,) = job.history(Kind.JOB_FAILED)
    assert over.reason == (
        "its subtasks have finished, and its last checkpoint was aborted 10 times in a row; "
        "before that: operator 'source': the store is full"
    )


@pytest.mark.clause("H5")
def test_aborts_before_the_last_subtask_has_finished_do_not_count() -> None:
    job = HandDrivenJob(chain_of(failing_cuts(FINAL_CHECKPOINTS_MAX - 1)))
    (attempt,) = job.register_all()
    for _ in range(FINAL_CHECKPOINTS_MAX - 1):
        job.trigger()

    attempt.complete()
    job.stage_ends()

    assert job.runtime.state.phase is Phase.FINISHED
    assert job.runtime.state.reasons == ()


# --- what an intent covers ---
def giving(
    sink: FakeSink, give: Callable[[Noting, int, list[CommittableOf]], object]
) -> NotingProvider:
    provider = NotingProvider("sink", sink=sink, is_committing=False)
    provider.on["complete"] = lambda coordinator, n: give(
        coordinator, n, list(coordinator.context.committables(n))
    )
    return provider


def of(*committables: CommittableOf) -> Intent:
    return Intent(names=[one.content.decode() for one in committables])


FILES = [("sink", name) for name in (b"1", b"2", b"3", b"4", b"5")]


@pytest.mark.clause("H4")
@pytest.mark.may_fail("scripted")
def test_an_intent_covers_what_it_names_and_the_others_stay_granted() -> None:
    sink = FakeSink()

    def odd_ones(coordinator: Noting, checkpoint_id: int, left: list[CommittableOf]) -> None:
        some = left[::2]
        coordinator.context.commit(checkpoint_id, of(*some), committables=some)

    provider = giving(sink, odd_ones)
    job = HandDrivenJob(chain_of(NotingProvider(), provider))
    (attempt,) = job.register_all()
    attempt.ack_checkpoint(job.trigger() or 0, committables=FILES)

    assert sink.settled == [("1", "3", "5")]
    (intent,) = job.history(Kind.COMMIT_INTENT)
    assert intent.attributes == {COVERS: "1:0,2,4"}
    assert [one.content for one in job.runtime.state.granted[1]] == [b"2", b"4"]

    attempt.ack_checkpoint(job.trigger() or 0, committables=[("sink", b"6")])
    assert sink.settled[1:] == [("2", "6")]
    assert job.history(Kind.COMMIT_INTENT)[1].attributes == {COVERS: "1:0;2:0"}

    # Neither a failover nor the next driver forgets those that are left.
    attempt.lose()
    job.run(lambda: job.runtime.handle(FailGlobally(reason="scripted")))
    job.stage_ends()
    job.advance(60)
    assert sink.settled[2:] == [("4",)]
    assert job.runtime.state.granted == Map()


@pytest.mark.clause("H4")
def test_one_intent_for_each_committable_and_a_crash_between_lose_nothing() -> None:
    sink = FakeSink()

    def first(coordinator: Noting, checkpoint_id: int, left: list[CommittableOf]) -> None:
        if left:
            coordinator.context.commit(checkpoint_id, of(left[0]), committables=left[:1])

    provider = giving(sink, first)
    job = HandDrivenJob(chain_of(NotingProvider(), provider))
    (attempt,) = job.register_all()
    attempt.ack_checkpoint(job.trigger() or 0, committables=FILES[:3])
    job.crash()
    assert sink.settled == [("1",)]

    for _ in range(2):
        job = HandDrivenJob(job.chain, log=job.log, clock=job.clock)
        job.crash()
    assert sink.settled == [("1",), ("2",), ("3",)]


@pytest.mark.clause("H4")
def test_equal_committables_are_covered_one_by_one() -> None:
    sink = FakeSink()

    def one_only(coordinator: Noting, checkpoint_id: int, left: list[CommittableOf]) -> None:
        coordinator.context.commit(checkpoint_id, of(left[1]), committables=[left[1]])

    provider = giving(sink, one_only)
    job = HandDrivenJob(chain_of(NotingProvider(), provider))
    (attempt,) = job.register_all()
    attempt.ack_checkpoint(job.trigger() or 0, committables=[("sink", b"same")] * 3)

    assert len(job.runtime.state.granted[1]) == 2


@pytest.mark.clause("H4")
def test_an_intent_of_nothing_takes_nothing() -> None:
    sink = FakeSink()

    def marker(coordinator: Noting, checkpoint_id: int, left: list[CommittableOf]) -> None:
        coordinator.context.commit(checkpoint_id, Intent(names=["_SUCCESS"]), committables=[])
        coordinator.context.commit(checkpoint_id, of(*left))

    job = HandDrivenJob(chain_of(NotingProvider(), giving(sink, marker)))
    finished(job)

    assert sink.settled == [("_SUCCESS",), ("a", "b")]
    assert job.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("H4")
def test_an_intent_that_names_what_is_not_granted_is_refused_with_it() -> None:
    seen: list[str] = []

    def twice(coordinator: Noting, checkpoint_id: int, left: list[CommittableOf]) -> None:
        coordinator.context.commit(checkpoint_id, of(left[0]), committables=left[:1])
        with pytest.raises(UsageError) as refused:
            coordinator.context.commit(checkpoint_id, of(*left), committables=left)
        seen.append(str(refused.value))
        coordinator.context.commit(checkpoint_id, of(left[1]), committables=left[1:])

    sink = FakeSink()
    job = HandDrivenJob(chain_of(NotingProvider(), giving(sink, twice)))
    finished(job)

    (said,) = seen
    assert said == (
        "an intent of operator 'sink' names 1 committables that checkpoint 1 does not allow or that "
        "an intent covers already, the first of subtask 0, attempt 0: b'a'; take them from "
        "`context.committables(1)`"
    )
    assert sink.settled == [("a",), ("b",)]


# --- operators that cannot commit ---
def hand_over_at_a_barrier(job: HandDrivenJob, attempt: FakeAttempt) -> None:
    attempt.ack_checkpoint(job.trigger() or 0, committables=[("plain", b"x"), ("plain", b"y")])


def hand_over_at_the_end(_job: HandDrivenJob, attempt: FakeAttempt) -> None:
    attempt.complete(committables=[("plain", b"x"), ("plain", b"y")])


def hand_over_with_a_split(_job: HandDrivenJob, attempt: FakeAttempt) -> None:
    attempt.finish_split("source", "s", committables=[("plain", b"x"), ("plain", b"y")])


@pytest.mark.clause("H4")
@pytest.mark.parametrize(
    "hand_over", [hand_over_at_a_barrier, hand_over_at_the_end, hand_over_with_a_split]
)
@pytest.mark.may_fail("handed over 2 committables and has no coordinator")
def test_the_first_committables_without_a_coordinator_end_the_job(
    hand_over: Callable[[HandDrivenJob, FakeAttempt], None],
) -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    (attempt,) = job.register_all()

    hand_over(job, attempt)

    (over,) = job.history(Kind.JOB_FAILED)
    assert over.reason == (
        "operator 'plain' handed over 2 committables and has no coordinator that could "
        "commit them: add a coordinator with a sink to its OperatorSpec"
    )
    assert over.attributes["final"] == "no coordinator"


@pytest.mark.clause("H4")
@pytest.mark.may_fail("has no sink to settle it")
def test_a_commit_without_a_sink_ends_the_job_at_once() -> None:
    provider = NotingProvider("sink", is_committing=False)
    provider.on["complete"] = lambda coordinator, n: coordinator.context.commit(n, Intent(names=[]))
    job = HandDrivenJob(chain_of(provider))
    (attempt,) = job.register_all()

    attempt.ack_checkpoint(job.trigger() or 0)

    (over,) = job.history(Kind.JOB_FAILED)
    assert str(NoSinkError("sink")) == (
        "operator 'sink' commits an intent and has no sink to settle it: set `sink` in its provider"
    )
    assert str(NoSinkError("sink")) in (over.reason or "")
    assert over.attributes["final"] == "no sink"
    assert job.history(Kind.COMMIT_INTENT) == []
