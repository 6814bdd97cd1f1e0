"""What a small change of the kernel would break unseen: each of these was found by mutating its code."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields, replace
from hashlib import blake2b
from typing import Any, cast

import pytest

from coordlog.kernel import checkpoints
from coordlog.kernel.builder import KernelConfig, limits_of, with_limits
from coordlog.kernel.inputs import CheckpointReleased, GiveCommit
from coordlog.kernel.outputs import Settle
from coordlog.kernel.refusals import encoded
from coordlog.kernel.step import act
from coordlog.limits import PAYLOAD_BYTES_MAX, REASON_CHARS_MAX, RECORD_BYTES_MAX
from coordlog.log import memory
from coordlog.messages import Accepted, Fenced, Refused
from coordlog.projections.job.state import Phase
from coordlog.restore.rebuild import projection_of
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import (
    AttemptSnapshot,
    CheckpointMetadata,
    OperatorState,
    SplitFinished,
)
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from kernel_fakes import (
    HANDLED,
    Down,
    FakeSink,
    Intent,
    NotingProvider,
    Tick,
    Up,
    chain_of,
    delivered,
    inside,
    send_down,
)


def metadata_of(job: HandDrivenJob, record: Record) -> CheckpointMetadata:
    found = job.chain.payload_types.decode(record.payload_type or "", record.payload)
    return cast("CheckpointMetadata", found)


def config_of(job: HandDrivenJob) -> KernelConfig:
    return KernelConfig(
        projection=projection_of(job.chain),
        operators=job.runtime.state.operators,
        is_batch=False,
        keeps_finished_splits=False,
    )


@pytest.mark.clause("D5")
def test_lost_events_are_those_of_the_coordinators_own_operator() -> None:
    source, other = NotingProvider("source"), NotingProvider("other")
    job = HandDrivenJob(chain_of(source, other))
    attempt = job.register(0)
    attempt.send("source", Up(n=1))
    attempt.send("other", Up(n=2))
    inside(attempt, source, send_down(source, 0, 3))
    inside(attempt, other, send_down(other, 0, 4))
    attempt.lose()

    assert [set(up) & {1, 2} for up, _ in source.lost] == [{1}]
    assert [set(up) & {1, 2} for up, _ in other.lost] == [{2}]
    assert [down for _, down in source.lost] == [[3]]
    assert [down for _, down in other.lost] == [[4]]


@pytest.mark.clause("E2")
@pytest.mark.may_fail("scripted")
def test_a_reset_says_whether_a_failover_or_a_new_driver_made_it() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    job.stage_ends("cancelled")
    job.advance(60)
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log)

    said = [
        (one.attributes["restore"], one.attributes["counted"])
        for one in job.history(Kind.RESET_TO_CHECKPOINT)
    ]
    assert said == [("failover", "true"), ("rollback", "true")]


@pytest.mark.clause("E2")
def test_what_died_with_its_driver_counts_once_against_the_restart_policy() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)), is_batch=True, parallelism=2)
    job.register_all()
    job.crash()
    job = HandDrivenJob(job.chain, is_batch=True, parallelism=2, log=job.log)

    resets = job.history(Kind.SUBTASK_RESET)
    assert [one.attributes.get("counted") for one in resets] == ["false", "false"]
    assert len(job.runtime.state.failures_us) == 1


@pytest.mark.clause("F11")
def test_the_metadata_of_a_checkpoint_name_the_subtasks_that_had_finished() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=3)
    first, second, third = job.register_all()
    second.complete()
    number = job.trigger()
    assert number is not None
    for one in (first, third):
        one.ack_checkpoint(number)

    (record,) = job.history(Kind.CHECKPOINT_COMPLETED)
    metadata = metadata_of(job, record)
    assert [one.subtask for one in metadata.finished] == [1]
    assert [one.subtask for one in metadata.subtasks] == [0, 2]


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


@pytest.mark.clause("F10")
@pytest.mark.clause("F12")
def test_neither_a_subsumed_checkpoint_nor_a_declined_one_counts_as_timed_out() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(
        chain_of(provider), configure=lambda config: replace(config, is_overlap_allowed=True)
    )
    attempt = job.register(0)
    job.trigger()
    job.trigger()
    attempt.ack_checkpoint(2)
    provider.is_cut_at_once = False
    job.trigger()
    inside(attempt, provider, lambda coordinator: coordinator.results[3].fail("declined"))

    aborted = {one.checkpoint_id: one.attributes for one in job.history(Kind.CHECKPOINT_ABORTED)}
    assert {one: dict(said) for one, said in aborted.items()} == {1: {"subsumed": "true"}, 3: {}}
    assert job.runtime.state.timeouts_in_a_row == 0
    assert job.runtime.state.aborts_in_a_row == 1


# --- attempts --------------------------------------------------------------------------------------
@pytest.mark.clause("B4")
def test_a_task_that_is_not_newer_is_told_which_one_has_been_an_attempt() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    for task in (7, 9):
        job.register(0, task_attempt_id=task)
    late = job.register(0, task_attempt_id=8)

    reason = (
        "task 8 of stage run 1 is not newer than task 9 of stage run 1, which has been an attempt"
    )
    assert late.inbox == [Refused(reason=reason)]
    (said,) = job.history(Kind.FACT)
    assert (said.subtask, said.attempt_number, said.reason) == (0, 1, reason)


@pytest.mark.clause("B4")
def test_a_task_that_is_refused_before_any_attempt_is_recorded_with_the_first_number() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0, stage_run=0)

    assert [one.attempt_number for one in job.history(Kind.FACT)] == [0]


@pytest.mark.clause("B3")
@pytest.mark.may_fail("scripted")
def test_an_attempt_that_speaks_while_the_job_fails_does_not_end_well() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    attempt = job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    attempt.send("source", Up(n=1))

    assert attempt.got(Fenced) == [Fenced(reason="the job is failing", is_finished=False)]


@pytest.mark.clause("E1")
def test_a_failed_attempts_own_task_is_killed() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    job.register(0, task_attempt_id=3)
    second = job.register(1, task_attempt_id=4)
    second.lose("no word")

    assert job.stage.killed == [(1, 4, "no word")]


@pytest.mark.clause("E1")
def test_a_resume_kills_no_task_for_what_the_dead_driver_had_and_delays_nobody() -> None:
    """Spark counts its tasks from 0 again: another's task would be killed."""
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)), is_batch=True)
    for _ in range(3):
        job.register(0).lose()
    job.register(0)
    job.crash()
    job = HandDrivenJob(job.chain, is_batch=True, log=job.log, clock=job.clock)
    again = job.register(0, is_patient=False)

    assert job.stage.killed == []
    assert len(again.got(Accepted)) == 1


@pytest.mark.clause("E1")
def test_a_resume_resets_the_subtasks_in_their_order() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)), parallelism=3, is_batch=True)
    job.register_all()
    job.crash()
    job = HandDrivenJob(job.chain, parallelism=3, is_batch=True, log=job.log)

    assert [one.subtask for one in job.history(Kind.SUBTASK_RESET)] == [0, 1, 2]


@pytest.mark.clause("E4")
def test_a_resume_aborts_what_was_pending_before_anything_else_and_says_why() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)))
    job.register(0)
    job.trigger()
    before = len(job.history())
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log, restore="resume")

    assert job.mode == "resume"
    epoch, aborted, then = job.history()[before : before + 3]
    assert (epoch.kind, aborted.kind) == (Kind.EPOCH_STARTED, Kind.CHECKPOINT_ABORTED)
    assert then.kind is Kind.COORDINATORS_STARTED, "nobody is told who never saw it"
    assert (aborted.checkpoint_id, aborted.reason) == (1, "its driver is gone")


@pytest.mark.clause("C7")
def test_no_timer_is_left_of_an_attempt_that_has_failed() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    inside(attempt, provider, send_down(provider, 0, 1))
    assert job.runtime.next_timer_s() is not None
    attempt.lose()

    assert job.runtime.next_timer_s() is None


@pytest.mark.clause("C8")
def test_a_failed_events_record_says_whether_it_might_be_lost() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    inside(attempt, provider, lambda c: c.gateways[0].send_event(Tick(n=1)))
    inside(attempt, provider, send_down(provider, 0, 2))
    attempt.lose()

    said = [one.attributes.get("loss_tolerant") for one in job.history(Kind.EVENT_FAILED)]
    assert said == ["true", None]


# --- sizes -----------------------------------------------------------------------------------------
@pytest.mark.clause("K6")
@pytest.mark.clause("D2")
def test_an_event_of_just_the_size_that_is_allowed_is_handled() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    rest = len(encoded(Down(n=1, text="x" * PAYLOAD_BYTES_MAX))[1]) - PAYLOAD_BYTES_MAX
    attempt.send("source", Down(n=1, text="x" * (PAYLOAD_BYTES_MAX - rest)))
    attempt.send("source", Down(n=2, text="x" * (PAYLOAD_BYTES_MAX - rest + 1)))

    assert provider.said("event", "failed") == [("event", 0, 0, 1), ("failed", 0, 0)]
    (record,) = job.history(Kind.EVENT_TO_COORDINATOR)
    assert len(record.payload or b"") == PAYLOAD_BYTES_MAX


def just_fits(size_of: Callable[[int], int]) -> int:
    """The `n` for which `size_of(n)`, `n` and a rest that hardly grows, is the limit of a record."""
    n = RECORD_BYTES_MAX
    while size_of(n) > RECORD_BYTES_MAX:
        n -= size_of(n) - RECORD_BYTES_MAX
    assert size_of(n) == RECORD_BYTES_MAX
    return n


@pytest.mark.clause("K6")
@pytest.mark.parametrize("more", [0, 1])
def test_a_snapshot_of_just_the_size_that_is_allowed_is_taken(more: int) -> None:
    def snapshot(n: int) -> AttemptSnapshot:
        state = OperatorState(operator_id="source", state=b"x" * n)
        return AttemptSnapshot(states=[state], committables=[])

    size = just_fits(lambda n: len(encoded(snapshot(n))[1])) + more
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    first.ack_checkpoint(1, states={"source": b"x" * size})
    second.complete(states={"source": b"x" * size})

    for kind in (Kind.CHECKPOINT_ACKED, Kind.SUBTASK_COMPLETED):
        assert len(job.history(kind)) == 1 - more
    assert len(job.history(Kind.ATTEMPT_FAILED)) == 2 * more


@pytest.mark.clause("K6")
@pytest.mark.parametrize("more", [0, 1])
def test_a_split_end_of_just_the_size_that_is_allowed_is_taken(more: int) -> None:
    def end_of(n: int) -> SplitFinished:
        return SplitFinished(split_id="s" * n, rows=1, bytes_read=1, committables=[])

    size = just_fits(lambda n: len(encoded(end_of(n))[1])) + more
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0).finish_split("source", "s" * size)

    assert len(job.history(Kind.SPLIT_FINISHED)) == 1 - more
    assert len(job.history(Kind.ATTEMPT_FAILED)) == more


# --- checkpoints -----------------------------------------------------------------------------------
@pytest.mark.clause("F9")
def test_an_ack_of_a_checkpoint_below_the_last_that_an_attempt_passed_is_refused() -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        configure=lambda config: replace(config, is_overlap_allowed=True),
    )
    attempt = job.register(0)
    job.trigger()
    job.trigger()
    attempt.ack_checkpoint(2)
    attempt.ack_checkpoint(1)

    assert [one.checkpoint_id for one in job.history(Kind.CHECKPOINT_ACKED)] == [2]
    (said,) = job.history(Kind.FACT)
    assert said.reason == (
        "checkpoint 1 is not above 2, the last that it passed, and below 3, the next to be triggered"
    )


@pytest.mark.clause("F9")
def test_an_ack_of_a_checkpoint_that_was_never_triggered_is_refused() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    attempt = job.register(0)
    attempt.ack_checkpoint(1)

    assert job.history(Kind.CHECKPOINT_ACKED) == []
    assert job.runtime.state.next_checkpoint_id == 1


@pytest.mark.clause("I4")
def test_an_ack_says_in_its_record_whether_its_checkpoint_had_been_aborted() -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider()), options=RuntimeOptions(checkpoint_timeout_s=5.0)
    )
    attempt = job.register(0)
    job.trigger()
    job.advance(6)
    attempt.ack_checkpoint(1)
    job.trigger()
    attempt.ack_checkpoint(2)

    said = [one.reason for one in job.history(Kind.CHECKPOINT_ACKED)]
    assert said == ["the checkpoint was aborted before", None]


@pytest.mark.clause("F8")
def test_the_last_subtask_that_a_checkpoint_waits_for_may_complete_instead_of_its_ack() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    first.ack_checkpoint(1)
    second.complete()

    (record,) = job.history(Kind.CHECKPOINT_COMPLETED)
    assert [one.subtask for one in metadata_of(job, record).finished] == [1]


@pytest.mark.clause("F11")
def test_the_metadata_of_a_checkpoint_hold_every_state() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, second = job.register_all()
    second.complete(states={"source": b"end"})
    job.trigger()
    first.ack_checkpoint(1, states={"source": b"one"})

    metadata = metadata_of(job, job.history(Kind.CHECKPOINT_COMPLETED)[0])
    assert metadata.metadata_version == 3
    assert [one.state for one in metadata.coordinators] == [b"state of 1"]
    assert [[each.state for each in one.states] for one in metadata.subtasks] == [[b"one"]]
    assert [[each.state for each in one.states] for one in metadata.finished] == [[b"end"]]


@pytest.mark.clause("K6")
def test_metadata_that_would_be_too_large_leave_out_every_state_and_nothing_else() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=3)
    first, second, third = job.register_all()
    third.complete(states={"source": b"end"})
    for number, size in ((1, 1), (2, RECORD_BYTES_MAX // 2)):
        job.trigger()
        for one in (first, second):
            one.ack_checkpoint(number, states={"source": b"x" * size})

    _, record = job.history(Kind.CHECKPOINT_COMPLETED)
    assert dict(record.attributes) == {"states": "in the records of its cuts and acks"}
    metadata = metadata_of(job, record)
    assert [one.state for one in metadata.coordinators] == [None]
    assert [one.states for one in metadata.subtasks] == [[], []]
    assert [one.states for one in metadata.finished] == [[]]
    assert metadata.oldest_retained == 1


@pytest.mark.clause("K6")
@pytest.mark.parametrize("more", [0, 1])
def test_metadata_of_just_the_size_that_is_allowed_hold_the_states(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(memory, "_topic_ids", itertools.repeat(0))  # ids of one length

    def completed(size: int) -> Record:
        job = HandDrivenJob(chain_of(NotingProvider()))
        attempt = job.register(0)
        job.trigger()
        attempt.ack_checkpoint(1, states={"source": b"x" * size})
        return job.history(Kind.CHECKPOINT_COMPLETED)[0]

    size = RECORD_BYTES_MAX - 1000
    size += RECORD_BYTES_MAX - len(completed(size).payload or b"")
    record = completed(size + more)
    assert ("states" in record.attributes) == bool(more)


@pytest.mark.clause("F12")
@pytest.mark.may_fail("scripted")
def test_a_checkpoint_that_is_late_while_the_job_fails_waits_for_the_reset() -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        options=RuntimeOptions(checkpoint_timeout_s=5.0),
        configure=lambda config: replace(config, restart_backoff_s=30.0),
    )
    job.register(0)
    job.trigger()
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    job.advance(10)
    assert job.runtime.state.phase is Phase.FAILING
    assert job.history(Kind.CHECKPOINT_ABORTED) == []
    job.stage_ends()
    job.advance(30)

    (aborted,) = job.history(Kind.CHECKPOINT_ABORTED)
    assert (aborted.reason, dict(aborted.attributes)) == ("the job goes back to a checkpoint", {})


@pytest.mark.clause("F12")
def test_attempts_that_are_late_after_more_than_the_stated_number_of_timeouts_are_failed() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job = HandDrivenJob(
        chain_of(provider),
        options=RuntimeOptions(checkpoint_timeout_s=5.0),
        configure=lambda config: replace(config, timeouts_in_a_row_max=2),
    )
    job.register(0)
    for _ in range(3):
        job.trigger()
        job.advance(6)
    assert job.history(Kind.ATTEMPT_FAILED) == []
    provider.is_cut_at_once = True
    job.trigger()
    job.advance(6)

    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1


@pytest.mark.clause("F12")
@pytest.mark.may_fail("1 checkpoints in a row timed out")
def test_of_several_late_attempts_none_is_failed_once_the_first_has_ended_the_job() -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        parallelism=2,
        options=RuntimeOptions(checkpoint_timeout_s=5.0),
        configure=lambda config: replace(config, timeouts_in_a_row_max=1, restarts_max=0),
    )
    job.register_all()
    job.trigger()
    job.advance(6)

    assert [one.subtask for one in job.history(Kind.ATTEMPT_FAILED)] == [0]
    assert job.history()[-1].kind is Kind.JOB_FAILED


@pytest.mark.clause("H1")
def test_of_two_completions_that_are_released_together_the_newer_is_told_alone() -> None:
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


@pytest.mark.clause("K6")
def test_metadata_that_are_too_large_even_without_states_abort_their_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(limit: int) -> Record:
        provider = NotingProvider(is_cut_at_once=False)
        job = HandDrivenJob(chain_of(provider))
        attempt = job.register(0)
        job.trigger()
        inside(attempt, provider, lambda coordinator: coordinator.results[1].complete(b"x" * 500))
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "RECORD_BYTES_MAX", limit)
            attempt.ack_checkpoint(1)
        (record,) = job.history(Kind.CHECKPOINT_COMPLETED, Kind.CHECKPOINT_ABORTED)
        return record

    with_states = len(ended(RECORD_BYTES_MAX).payload or b"")
    without = len(ended(with_states - 1).payload or b"")
    assert without < with_states - 500
    assert ended(without).kind is Kind.CHECKPOINT_COMPLETED
    aborted = ended(without - 1)
    assert aborted.kind is Kind.CHECKPOINT_ABORTED
    assert str(aborted.reason).startswith(f"its metadata is {without} bytes;"), aborted.reason


@pytest.mark.clause("G2")
def test_an_abort_delivers_what_each_gateway_held() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=3)
    attempts = job.register_all()
    job.trigger()
    inside(attempts[0], provider, send_down(provider, 2, 1))
    assert delivered(job, attempts[2]) == ["|1"]
    attempts[0].lose()

    assert delivered(job, attempts[2]) == ["|1", 1]


@pytest.mark.clause("I3")
@pytest.mark.clause("F10")
def test_a_job_ends_only_when_nothing_is_pending_beside_its_last_checkpoint() -> None:
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


# --- failures --------------------------------------------------------------------------------------
@pytest.mark.clause("E2")
@pytest.mark.may_fail("third", "first", "second")
def test_a_second_failure_before_the_reset_leaves_no_pause_of_its_own_behind() -> None:
    """It would end the next failure's pause early."""
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        configure=lambda config: replace(config, restart_backoff_s=10.0),
    )
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "first"))
    job.advance(9)
    job.run(lambda: job.runtime.fail_job("source", "second"))
    job.stage_ends()
    job.advance(1)
    assert len(job.history(Kind.RESET_TO_CHECKPOINT)) == 1
    job.run(lambda: job.runtime.fail_job("source", "third"))
    job.advance(15)

    assert len(job.history(Kind.RESET_TO_CHECKPOINT)) == 1
    job.advance(10)
    assert len(job.history(Kind.RESET_TO_CHECKPOINT)) == 2


@pytest.mark.clause("E2")
@pytest.mark.parametrize("before", ["a", "abc"])
@pytest.mark.may_fail("zzz")
def test_the_end_of_a_job_tells_most_of_the_last_failure_and_as_much_of_each_before(
    before: str,
) -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        configure=lambda config: replace(config, restarts_max=len(before)),
    )
    for letter in f"{before}z":
        job.register(0).lose(letter * REASON_CHARS_MAX)

    (failed,) = job.history(Kind.JOB_FAILED)
    said = str(failed.reason).split("; before that: ")
    assert [set(one) for one in said] == [{"z"}, *({one} for one in reversed(before))]
    older = REASON_CHARS_MAX // 2 // len(before) - len("; before that: ")
    assert [len(one) for one in said] == [REASON_CHARS_MAX // 2, *(older for _ in before)]


@pytest.mark.clause("C4")
def test_an_event_at_which_attempts_fail_is_known_by_its_operator_type_and_content() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(ack_timeout_s=5.0))
    for _ in range(2):
        inside(job.register(0), provider, send_down(provider, 0, 1))
        job.advance(6)

    digest = blake2b(encoded(Down(n=1))[1], digest_size=8).hexdigest()
    assert dict(job.runtime.state.poison) == {f"event:source/test.down@1/{digest}": 2}


@pytest.mark.clause("E2")
@pytest.mark.may_fail("connection lost")
def test_a_job_that_has_failed_ends_every_attempt() -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        parallelism=2,
        configure=lambda config: replace(config, restarts_max=0),
    )
    first, second = job.register_all()
    first.lose()

    assert second.got(Fenced) == [Fenced(reason="the job has failed", is_finished=False)]


@pytest.mark.clause("H3")
@pytest.mark.may_fail("connection lost")
def test_a_commit_that_fails_after_the_end_of_its_job_is_recorded_and_left_to_the_next() -> None:
    sink = FakeSink()
    sink.failures = 1
    job = HandDrivenJob(
        chain_of(NotingProvider(sink=sink)),
        configure=lambda config: replace(config, restarts_max=0),
    )
    attempt = job.register(0)
    job.is_work_held = True
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    attempt.lose()
    job.is_work_held = False
    job.pump()
    job.advance(300)

    assert [one.attributes["settled"] for one in job.history(Kind.COMMIT_OUTCOME)] == ["false"]
    assert (sink.tries, sink.settled) == (1, [])
    assert len(job.history(Kind.JOB_FAILED)) == 1


@pytest.mark.clause("B2")
@pytest.mark.may_fail("scripted")
def test_a_global_failover_ends_every_attempt_though_another_subtask_has_none() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=3)
    attempts = [job.register(1), job.register(2)]
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    job.stage_ends()
    job.advance(60)

    assert [one.subtask for one in job.history(Kind.ATTEMPT_FAILED)] == [1, 2]
    for one in attempts:
        assert one.got(Fenced) == [Fenced(reason="global failover", is_finished=False)]


@pytest.mark.clause("H3")
@pytest.mark.may_fail("the disk is full")
def test_a_driver_that_allows_fewer_tries_than_there_were_fails_the_job_at_the_next() -> None:
    sink = FakeSink()
    sink.failures = 99
    job = HandDrivenJob(chain_of(NotingProvider(sink=sink)))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    job.advance(2)
    assert sink.tries == 2
    job.crash()
    job = HandDrivenJob(
        job.chain,
        log=job.log,
        clock=job.clock,
        configure=lambda config: replace(config, settle_attempts_max=1),
    )

    assert sink.tries == 3
    assert job.runtime.state.phase is Phase.FAILED


# --- what the kernel decides by, and what it builds ------------------------------------------------
@pytest.mark.clause("K7")
def test_every_limit_of_an_epoch_is_recorded_and_read_again() -> None:
    config = config_of(HandDrivenJob(chain_of(NotingProvider())))
    numbers: dict[str, Any] = {
        one.name: type(one.default)(3 + index)
        for index, one in enumerate(fields(KernelConfig))
        if isinstance(one.default, int | float) and not isinstance(one.default, bool)
    }
    changed = replace(config, **numbers)

    assert len(limits_of(changed)) == len(numbers) > 0
    assert with_limits(config, limits_of(changed)) == changed
    assert with_limits(config, {}) == config


@pytest.mark.clause("K5")
def test_a_snapshot_is_a_turn_of_one_record() -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)), options=RuntimeOptions(snapshot_every=3)
    )
    attempt = job.register(0)
    for n in range(5):
        attempt.send("source", Up(n=n))

    history = job.history()
    at = [n for n, one in enumerate(history) if one.kind is Kind.SNAPSHOT]
    assert len(at) > 1
    assert [history[n].turn_remaining for n in at] == [0] * len(at)
    assert [history[n - 1].turn_remaining for n in at] == [0] * len(at)
