"""Commits: intent, settling, outcome (clauses H1, H3, I4, K6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordlog.api.coordinator import CommittableOf
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import GiveCommit
from coordlog.kernel.outputs import Settle
from coordlog.kernel.refusals import encoded
from coordlog.kernel.step import act
from coordlog.limits import SETTLE_CALL_S
from coordlog.projections.job.state import Phase
from coordlog.restore.rebuild import projection_of
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import FakeSink, Intent, Noting, NotingProvider, chain_of, inside, kinds


@pytest.mark.clause("H3")
@pytest.mark.clause("K1")
def test_an_intent_is_settled_after_its_release_and_ends_with_its_outcome() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1)
    job.trigger()
    job.is_held = True
    attempt.ack_checkpoint(2, committables=[("source", b"a")])
    job.runtime.acknowledged(job.appender.append(job.runtime.turns.take_group()))
    job.pump()
    assert provider.said("complete")[-1] == ("complete", 2)
    assert sink.settled == [], "the intent is not in the log"
    job.release()

    assert sink.settled == [("a",)]
    intent, outcome = job.history(Kind.COMMIT_INTENT, Kind.COMMIT_OUTCOME)
    assert outcome.cause == intent.sequence
    assert (intent.checkpoint_id, outcome.checkpoint_id) == (2, 2)
    assert len(job.runtime.state.intents) == 0


@pytest.mark.clause("H3")
def test_an_intent_carried_out_without_an_outcome_is_settled_again() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    job.is_work_held = True
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    work = job.works.popleft()
    job.crash()
    work()
    assert sink.settled == [("a",)]
    job = HandDrivenJob(job.chain, log=job.log)

    assert (sink.settled, sink.tries) == ([("a",)], 2)
    assert len(job.history(Kind.COMMIT_OUTCOME)) == 1


@pytest.mark.clause("H3")
@pytest.mark.may_fail("the disk is full")
def test_a_sink_that_cannot_is_tried_again_and_in_the_end_fails_the_job() -> None:
    sink = FakeSink()
    sink.failures = 99
    provider = NotingProvider(sink=sink)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    assert job.runtime.state.phase is Phase.RUNNING
    job.advance(100)

    assert sink.tries == 5
    assert job.runtime.state.phase is Phase.FAILED  # type: ignore[comparison-overlap]  # it has moved on
    (failed,) = job.history(Kind.JOB_FAILED)
    assert str(failed.reason).startswith(
        "operator 'source': the commit of checkpoint 1 failed 5 times: OSError: the disk is full"
    )


class GoneJvmError(Exception):
    """As py4j's: its text is fetched from a JVM, which has died."""

    def __str__(self) -> str:
        raise ConnectionError("nothing listens")


@pytest.mark.clause("H3")
def test_an_error_of_a_sink_without_a_readable_text_is_one_of_its_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink, settle = FakeSink(), FakeSink.settle

    def settle_once_in_vain(self: FakeSink, intent: Payload) -> Payload | None:
        if not self.tries:
            self.tries += 1
            raise GoneJvmError
        return settle(self, intent)

    monkeypatch.setattr(FakeSink, "settle", settle_once_in_vain)
    job = HandDrivenJob(chain_of(NotingProvider(sink=sink)))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    job.advance(60)

    assert (sink.settled, sink.tries) == ([("a",)], 2)
    failed, settled = job.history(Kind.COMMIT_OUTCOME)
    assert failed.reason == "GoneJvmError, whose text cannot be read (ConnectionError)"
    assert settled.attributes["settled"] == "true"


@pytest.mark.clause("H3")
def test_a_sink_that_never_comes_back_is_tried_again_and_heard_no_more() -> None:
    """A mount whose server is gone: nothing raises, and the commit would be waited for in silence."""
    sink = FakeSink()
    job = HandDrivenJob(chain_of(NotingProvider(sink=sink)))
    attempt = job.register(0)
    job.trigger()
    job.is_work_held = True
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    hanging = job.works.popleft()
    job.advance(SETTLE_CALL_S)
    (failed,) = job.history(Kind.COMMIT_OUTCOME)
    assert failed.attributes["settled"] == "false"
    assert f"its sink has not returned within {SETTLE_CALL_S:g} s" in str(failed.reason)

    job.is_work_held = False
    job.advance(60)
    hanging()
    job.pump()

    assert (sink.settled, sink.tries) == ([("a",)], 2)
    assert [one.attributes["settled"] for one in job.history(Kind.COMMIT_OUTCOME)] == [
        "false",
        "true",
    ]
    assert not job.runtime.state.intents


@pytest.mark.clause("H1")
@pytest.mark.clause("I4")
def test_an_older_checkpoints_committables_are_committed_by_the_newer_one() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = HandDrivenJob(
        chain_of(provider), configure=lambda config: replace(config, is_overlap_allowed=True)
    )
    attempt = job.register(0)
    job.trigger()
    job.trigger()
    job.is_held = True
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    attempt.ack_checkpoint(2, committables=[("source", b"b")])
    job.release()

    assert provider.said("complete") == [("complete", 2)]
    assert sink.settled == [("a", "b")]
    assert len(job.runtime.state.granted) == 0


@pytest.mark.clause("I4")
def test_committables_come_in_subtask_order_and_name_their_attempts() -> None:
    provider, other = NotingProvider(is_committing=False), NotingProvider("sink")
    job = HandDrivenJob(chain_of(provider, other), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    second.ack_checkpoint(1, committables=[("source", b"b")])
    first.ack_checkpoint(1, committables=[("source", b"a"), ("sink", b"x")])
    seen: list[CommittableOf] = []
    inside(first, provider, lambda c: seen.extend(c.context.committables(1)))

    assert [(one.subtask, one.attempt_number, one.content) for one in seen] == [
        (0, 0, b"a"),
        (1, 0, b"b"),
    ]


@pytest.mark.clause("A3")
@pytest.mark.clause("H3")
@pytest.mark.may_fail("RuntimeError: bang")
def test_a_completion_whose_callback_raises_has_no_intent_and_is_repeated() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)

    def commit_and_explode(coordinator: Noting, checkpoint_id: int) -> None:
        coordinator.context.commit(checkpoint_id, Intent(names=["a"]))
        raise RuntimeError("bang")

    provider.on["complete"] = commit_and_explode
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    assert sink.settled == []
    assert kinds(job.history())[-2:] == ["COORDINATOR_NOTIFIED", "GLOBAL_FAILURE"]
    del provider.on["complete"]
    job.stage_ends()
    job.advance(1)

    assert sink.settled == [("a",)]


@pytest.mark.clause("E6")
@pytest.mark.may_fail("no reason")
def test_a_global_failover_does_not_settle_what_is_being_settled() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    job.is_work_held = True
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(1)
    assert job.stage.submitted == [1], "an intent is open"
    job.is_work_held = False
    job.pump()

    assert (sink.tries, sink.settled) == (1, [("a",)])
    assert job.stage.submitted == [1, 2]


class _Loud(FakeSink):
    """Its outcome is above the limit."""

    def settle(self, intent: Payload) -> Payload | None:
        super().settle(intent)
        return Intent(names=["x" * 300_000])


@pytest.mark.clause("K6")
def test_an_outcome_that_is_too_large_counts_as_a_failed_try() -> None:
    provider = NotingProvider(sink=_Loud())
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])

    (outcome,) = job.history(Kind.COMMIT_OUTCOME)
    assert outcome.attributes["settled"] == "false"
    assert "TooLargeError: a test.intent@1 is 3000" in str(outcome.reason)


@pytest.mark.clause("H3")
def test_a_commit_that_fails_is_tried_again_after_pauses_that_double() -> None:
    sink = FakeSink()
    job = HandDrivenJob(
        chain_of(NotingProvider(sink=sink)),
        configure=lambda config: replace(config, restart_backoff_s=1.0, restart_backoff_max_s=60.0),
    )
    attempt = job.register(0)
    sink.failures = 3
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    tried = [sink.tries]
    for factor in (2, 4, 8):
        job.advance(factor * 0.9)
        tried.append(sink.tries)
        job.advance(factor * 0.2)
        tried.append(sink.tries)

    assert tried == [1, 1, 2, 2, 3, 3, 4]
    assert sink.settled == [("a",)]


def config_of(job: HandDrivenJob) -> KernelConfig:
    return KernelConfig(
        projection=projection_of(job.chain),
        operators=job.runtime.state.operators,
        is_batch=False,
        keeps_finished_splits=False,
    )


@pytest.mark.clause("H3")
def test_an_intent_beside_one_that_is_being_settled_asks_for_itself_alone() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(sink=FakeSink())))
    attempt = job.register(0)
    job.is_work_held = True
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    (first,) = job.runtime.state.intents
    key, payload = encoded(Intent(names=["b"]))
    given = GiveCommit(operator_id="source", checkpoint_id=1, payload_type=key, payload=payload)
    done = act(config_of(job), job.runtime.state, given, 0)

    asked = [one.sequence for one in done.effects if isinstance(one, Settle)]
    assert asked == [done.records[-1].sequence]
    assert sorted(done.state.intents) == [first, *asked]
