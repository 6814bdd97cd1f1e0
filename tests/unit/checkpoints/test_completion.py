"""The end of subtasks and of jobs (clauses F11, H1, I1 to I4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordlog.errors import RestoreError
from coordlog.kernel.inputs import CheckpointReleased
from coordlog.messages import CheckpointAborted, Fenced
from coordlog.projections.job.state import Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import FakeSink, NotingProvider, chain_of, kinds


def batch(provider: NotingProvider, parallelism: int = 2, **options: object) -> HandDrivenJob:
    chain = chain_of(provider, keeps_state=False)
    return HandDrivenJob(chain, parallelism=parallelism, is_batch=True, **options)  # type: ignore[arg-type]


@pytest.mark.clause("H1")
@pytest.mark.clause("I3")
def test_in_batch_the_turn_of_the_last_completion_holds_the_intents() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = batch(provider)
    first, second = job.register_all()
    second.complete(committables=[("source", b"b")])
    assert provider.said("complete") == []
    first.complete(committables=[("source", b"a")])

    assert provider.said("complete") == [("complete", -1)]
    assert sink.settled == [("a", "b")]
    end = [one for one in job.history() if one.kind is not Kind.TYPE_REGISTERED][-5:]
    assert kinds(end) == [
        "SUBTASK_COMPLETED",
        "COORDINATOR_NOTIFIED",
        "COMMIT_INTENT",
        "COMMIT_OUTCOME",
        "JOB_FINISHED",
    ]
    assert [one.timestamp_us for one in end[:3]] == [end[0].timestamp_us] * 3
    assert end[2].turn_remaining == 0
    assert end[0].turn_remaining == 3, "a type stands between"
    assert job.runtime.outcome is not None
    assert job.runtime.outcome.is_finished


@pytest.mark.clause("I3")
def test_a_job_finishes_when_every_commit_has_an_outcome() -> None:
    sink = FakeSink()
    sink.failures = 2
    provider = NotingProvider(sink=sink)
    job = batch(provider, 1)
    job.register(0).complete(committables=[("source", b"a")])
    assert job.runtime.state.phase is Phase.ENDING
    assert job.history(Kind.JOB_FINISHED) == []
    job.advance(10)

    assert sink.settled == [("a",)]
    assert [one.attributes["settled"] for one in job.history(Kind.COMMIT_OUTCOME)] == [
        "false",
        "false",
        "true",
    ]
    assert job.runtime.state.phase is Phase.FINISHED  # type: ignore[comparison-overlap]  # it has moved on


class PanicError(BaseException):
    """As libraries in Rust raise it: no subclass of Exception."""


@pytest.mark.clause("H3")
def test_a_commit_that_ends_in_a_panic_is_recorded_and_tried_again() -> None:
    class PanickingSink(FakeSink):
        def settle(self, intent: Payload) -> Payload | None:
            outcome = super().settle(intent)
            if self.tries == 1:
                raise PanicError("called `unwrap` on an error")
            return outcome

    job = batch(NotingProvider(sink=PanickingSink()), 1)

    job.register(0).complete(committables=[("source", b"a")])
    job.advance(10)

    failed, settled = job.history(Kind.COMMIT_OUTCOME)
    assert failed.reason == "PanicError: called `unwrap` on an error"
    assert settled.attributes["settled"] == "true"
    assert job.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("A3")
@pytest.mark.clause("I3")
@pytest.mark.may_fail("RuntimeError: bang")
def test_a_commit_that_raises_before_its_intent_is_run_again() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = batch(provider, 1)

    def explode(*_said: object) -> None:
        raise RuntimeError("bang")

    provider.on["complete"] = explode
    job.register(0).complete(committables=[("source", b"lost")])
    assert job.runtime.state.phase is Phase.FAILING
    assert job.history(Kind.JOB_FINISHED, Kind.COMMIT_INTENT) == []
    del provider.on["complete"]
    job.stage_ends()
    job.advance(1)
    assert len(job.runtime.state.granted) == 0, "given up"
    job.register(0).complete(committables=[("source", b"a")])

    assert sink.settled == [("a",)]
    assert job.runtime.state.phase is Phase.FINISHED  # type: ignore[comparison-overlap]  # it has moved on


@pytest.mark.clause("I3")
@pytest.mark.may_fail("the disk is full")
def test_a_batch_job_that_failed_at_settling_is_only_settled_again() -> None:
    sink = FakeSink()
    sink.failures = 5
    provider = NotingProvider(sink=sink)
    job = batch(provider, 1)
    job.register(0).complete(committables=[("source", b"a")])
    job.advance(100)
    assert job.runtime.state.phase is Phase.FAILED
    job.crash()
    sink.failures = 1
    provider.calls.clear()
    job = HandDrivenJob(job.chain, is_batch=True, log=job.log)
    job.advance(100)

    assert (job.mode, job.stage.submitted, provider.calls) == ("settle", [], [])
    assert sink.settled == [("a",)]
    assert job.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("E9")
@pytest.mark.may_fail("the disk is full")
def test_settling_alone_is_refused_with_another_parallelism() -> None:
    sink = FakeSink()
    sink.failures = 5
    job = batch(NotingProvider(sink=sink), 1)
    job.register(0).complete(committables=[("source", b"a")])
    job.advance(100)
    assert job.runtime.state.phase is Phase.FAILED
    job.crash()
    before = job.log.high_watermark()

    with pytest.raises(RestoreError, match="run it with parallelism 1 until it has ended"):
        HandDrivenJob(job.chain, is_batch=True, log=job.log, parallelism=2)
    assert job.log.high_watermark() == before


@pytest.mark.clause("I3")
def test_a_driver_that_dies_at_settling_leaves_it_to_the_next() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = batch(provider, 1)
    attempt = job.register(0)
    job.is_work_held = True
    attempt.complete(committables=[("source", b"a")])
    job.crash()
    job = HandDrivenJob(job.chain, is_batch=True, log=job.log)

    assert job.mode == "settle"
    assert sink.settled == [("a",)]
    assert job.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("A4")
def test_fail_job_while_only_settling_is_left_is_recorded() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = batch(provider, 1)
    attempt = job.register(0)
    job.is_work_held = True
    attempt.complete(committables=[("source", b"a")])
    job.run(lambda: job.runtime.fail_job("source", "too late"))
    assert job.history(Kind.FACT)[-1].reason == "only settling is left: too late"
    job.is_work_held = False
    job.pump()

    assert job.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("I4")
def test_in_batch_a_dead_attempts_kept_split_is_committed_with_its_split() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = batch(provider, 1)
    first = job.register(0)
    first.finish_split("source", "s1", committables=[("source", b"a")])
    first.lose()
    job.register(0).complete(committables=[("source", b"b")])

    assert sink.settled == [("a", "b")]


@pytest.mark.clause("I3")
@pytest.mark.clause("F11")
def test_in_streaming_a_last_checkpoint_commits_the_last_committables() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    first.complete(committables=[("source", b"a")])
    assert sink.settled == []
    second.complete(committables=[("source", b"b")])

    assert provider.said("cut", "complete") == [("cut", 1), ("complete", 1)]
    assert sink.settled == [("a", "b")]
    assert job.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("I3")
def test_a_last_checkpoint_runs_although_one_before_it_has_completed() -> None:
    sink = FakeSink()
    job = HandDrivenJob(chain_of(NotingProvider(sink=sink)))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    attempt.complete(committables=[("source", b"b")])

    assert [one.checkpoint_id for one in job.history(Kind.CHECKPOINT_COMPLETED)] == [1, 2]
    assert sink.settled == [("a",), ("b",)]
    assert job.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("I3")
@pytest.mark.clause("F5")
def test_a_last_checkpoint_that_is_aborted_is_tried_again() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    provider.on["cut"] = lambda c, n: c.results[n].fail("not now")
    job = HandDrivenJob(chain_of(provider))
    job.register(0).complete()
    assert job.runtime.state.phase is Phase.RUNNING
    del provider.on["cut"]
    provider.is_cut_at_once = True
    job.advance(2)

    assert job.runtime.state.phase is Phase.FINISHED  # type: ignore[comparison-overlap]  # it has moved on
    assert [one.checkpoint_id for one in job.history(Kind.CHECKPOINT_COMPLETED)] == [2]


@pytest.mark.clause("I4")
def test_committables_made_after_the_barrier_wait_for_the_next_checkpoint() -> None:
    provider = NotingProvider(is_committing=False)
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    first.ack_checkpoint(1, committables=[("source", b"at 1")])
    first.complete(committables=[("source", b"after 1")])
    second.ack_checkpoint(1)
    assert [one.content for one in job.runtime.state.granted[1]] == [b"at 1"]
    job.trigger()
    second.ack_checkpoint(2)

    assert [one.content for one in job.runtime.state.granted[2]] == [b"after 1"]


def test_a_completed_subtasks_task_ends_well() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, _ = job.register_all()
    first.complete()

    assert first.got(Fenced) == [Fenced(reason="completed", is_finished=True)]
    assert first.got(CheckpointAborted) == []
    assert first.is_closed


@pytest.mark.clause("H1")
def test_of_two_completions_released_together_only_the_newer_is_notified() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(
        chain_of(provider), configure=lambda config: replace(config, is_overlap_allowed=True)
    )
    attempt = job.register(0)
    job.trigger()
    job.trigger()
    job.is_held = True
    attempt.ack_checkpoint(1)
    attempt.ack_checkpoint(2)
    assert provider.said("complete") == []
    job.release()

    assert provider.said("complete") == [("complete", 2)]


@pytest.mark.clause("H1")
def test_a_completion_that_has_been_told_is_not_told_again_by_a_release() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1)
    job.run(lambda: job.runtime.handle(CheckpointReleased(checkpoint_id=1)))

    assert provider.said("complete") == [("complete", 1)]
    assert len(job.history(Kind.COORDINATOR_NOTIFIED)) == 1


@pytest.mark.clause("I3")
@pytest.mark.clause("F10")
def test_a_job_ends_only_if_no_checkpoint_is_pending_beside_its_last() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job = HandDrivenJob(
        chain_of(provider),
        options=RuntimeOptions(checkpoint_timeout_s=5.0),
        configure=lambda config: replace(config, is_overlap_allowed=True),
    )
    job.register(0).complete()
    provider.on["cut"] = lambda coordinator, _: coordinator.results[1].complete(b"")
    job.trigger()
    assert [one.checkpoint_id for one in job.history(Kind.CHECKPOINT_COMPLETED)] == [1]
    assert sorted(job.runtime.state.pending) == [2]
    assert job.runtime.outcome is None
    job.advance(6)

    assert job.runtime.outcome is not None
    assert job.runtime.outcome.is_finished


@pytest.mark.clause("F5")
def test_only_a_last_checkpoint_is_tried_again_by_itself() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    provider.is_cut_at_once = False
    provider.on["cut"] = lambda coordinator, n: coordinator.results[n].fail("declined")
    job.trigger()
    assert job.runtime.state.aborts_in_a_row == 1
    job.advance(300)

    assert len(job.history(Kind.CHECKPOINT_TRIGGERED)) == 1
