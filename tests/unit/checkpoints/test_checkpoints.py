"""Checkpoints: cuts, barriers, acks, aborts, overlaps (clauses D4, F1 to F12, H1, H2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from immutables import Map

from coordlog.kernel.builder import KernelConfig
from coordlog.limits import RESTARTS_MAX
from coordlog.messages import CheckpointAborted, CheckpointCompleted, Fenced
from coordlog.projections.job.checkpoints import late_attempts
from coordlog.projections.job.state import (
    DownEvent,
    GatewayState,
    JobState,
    PendingCheckpoint,
    Phase,
)
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import CheckpointMetadata
from coordlog.schemas.evolution import evolve
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import (
    Noting,
    NotingProvider,
    Up,
    chain_of,
    delivered,
    event_ids,
    inside,
    kinds,
    send_down,
)


def overlapping(config: KernelConfig) -> KernelConfig:
    return replace(config, is_overlap_allowed=True)


@pytest.mark.clause("F1")
def test_barriers_go_out_after_the_last_coordinators_cut() -> None:
    source = NotingProvider("source")
    sink = NotingProvider("sink", is_cut_at_once=False)
    job = HandDrivenJob(chain_of(source, sink))
    attempt = job.register(0)
    job.trigger()
    assert (source.said("cut"), sink.said("cut")) == ([("cut", 1)], [("cut", 1)])
    assert delivered(job, attempt) == []

    inside(attempt, source, lambda _: sink.newest.results[1].complete(b"late"))

    assert delivered(job, attempt) == ["|1"]
    assert [one.operator_id for one in job.history(Kind.COORDINATOR_CHECKPOINTED)] == [
        "source",
        "sink",
    ]


@pytest.mark.clause("F2")
def test_what_a_coordinator_sends_before_its_cut_belongs_to_the_checkpoint() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)

    def cut(coordinator: Noting, checkpoint_id: int) -> None:
        send_down(provider, 0, 1)(coordinator)
        coordinator.results[checkpoint_id].complete(b"")
        send_down(provider, 0, 2)(coordinator)

    provider.on["cut"] = cut
    job.trigger()
    assert delivered(job, attempt) == [1]
    attempt.ack("source", event_ids(attempt)[0])
    assert delivered(job, attempt) == [1, "|1"]
    attempt.ack_checkpoint(1)
    assert delivered(job, attempt) == [1, "|1", 2]


@pytest.mark.flink("HO12")
@pytest.mark.clause("F3")
def test_the_barrier_waits_for_the_acks_of_what_was_sent_before_the_cut() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    inside(first, provider, send_down(provider, 0, 1))
    inside(first, provider, send_down(provider, 1, 2))
    job.trigger()
    first.ack("source", 0)
    assert delivered(job, first) == [1]

    second.ack("source", 1)

    assert (delivered(job, first), delivered(job, second)) == ([1, "|1"], [2, "|1"])


@pytest.mark.flink("FT6")
@pytest.mark.clause("F4")
def test_an_unacked_event_holds_back_the_next_checkpoint_too() -> None:
    """Were it forgotten with the abort, the next checkpoint could count as sent what is lost."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(checkpoint_timeout_s=5))
    attempt = job.register(0)
    inside(attempt, provider, send_down(provider, 0, 1))
    job.trigger()
    job.advance(6)
    assert job.trigger() == 2
    assert delivered(job, attempt) == [1]

    attempt.ack("source", 0)

    assert delivered(job, attempt) == [1, "|2"]


@pytest.mark.clause("F5")
@pytest.mark.parametrize("how", ["fails", "no bytes"])
def test_a_result_that_fails_aborts_the_checkpoint_and_the_job_goes_on(how: str) -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)

    def cut(coordinator: Noting, checkpoint_id: int) -> None:
        if how == "fails":
            coordinator.results[checkpoint_id].fail(ValueError("no"))
        else:
            coordinator.results[checkpoint_id].complete(None)  # type: ignore[arg-type]

    provider.on["cut"] = cut
    job.trigger()
    (aborted,) = job.history(Kind.CHECKPOINT_ABORTED)
    assert str(aborted.reason).startswith("operator 'source': ")
    assert provider.said("aborted") == [("aborted", 1)]
    assert job.runtime.state.phase is Phase.RUNNING
    del provider.on["cut"]
    provider.is_cut_at_once = True

    assert job.trigger() == 2
    attempt.ack_checkpoint(2)
    assert provider.said("complete") == [("complete", 2)]


@pytest.mark.clause("F6")
def test_a_result_that_comes_after_the_abort_closes_no_gateway() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(checkpoint_timeout_s=5))
    attempt = job.register(0)
    job.trigger()
    job.advance(6)

    inside(attempt, provider, lambda c: c.results[1].complete(b"late"))
    inside(attempt, provider, send_down(provider, 0, 1))

    assert job.history(Kind.COORDINATOR_CHECKPOINTED) == []
    assert delivered(job, attempt) == [1]


@pytest.mark.clause("F7")
def test_ids_rise_over_aborts_and_drivers() -> None:
    provider = NotingProvider()
    chain = chain_of(provider)
    job = HandDrivenJob(chain)
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1)
    job.trigger()
    job.crash()
    job = HandDrivenJob(chain, log=job.log)
    job.register(0)

    assert job.trigger() == 3


@pytest.mark.clause("F8")
def test_no_checkpoint_starts_beside_another_or_without_all_attempts() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first = job.register(0)
    assert job.trigger() is None
    job.register(1)
    assert job.trigger() == 1
    assert job.trigger() is None
    first.lose()
    assert job.trigger() is None


@pytest.mark.clause("F8")
@pytest.mark.fault("X5")
def test_as_many_registrations_as_subtasks_do_not_make_all_of_them_ready() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    job.register(0).lose()
    job.register(0)
    assert len(job.history(Kind.ATTEMPT_STARTED)) == 2

    assert job.trigger() is None

    job.register(1)
    assert job.trigger() == 1


@pytest.mark.clause("F8")
def test_a_checkpoint_names_its_attempts_and_a_completion_is_an_ack() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    first.complete()
    second.ack_checkpoint(1)

    assert len(job.history(Kind.CHECKPOINT_COMPLETED)) == 1
    assert sorted(job.runtime.state.completed[1].finished) == [0]


@pytest.mark.fault("X5")
@pytest.mark.clause("F9")
def test_doubled_acks_do_not_make_a_checkpoint_whole() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    first.ack_checkpoint(1)
    first.ack_checkpoint(1)
    assert job.history(Kind.CHECKPOINT_COMPLETED) == []
    second.ack_checkpoint(1)

    assert len(job.history(Kind.CHECKPOINT_COMPLETED)) == 1
    assert len(job.history(Kind.CHECKPOINT_ACKED)) == 2


@pytest.mark.flink("CC3")
@pytest.mark.clause("F10")
def test_a_newer_checkpoint_that_completes_aborts_the_older() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2, configure=overlapping)
    first, second = job.register_all()
    job.trigger()
    job.trigger()
    first.ack_checkpoint(2)
    second.ack_checkpoint(1)
    second.ack_checkpoint(2)

    (aborted,) = job.history(Kind.CHECKPOINT_ABORTED)
    assert (aborted.checkpoint_id, aborted.reason) == (1, "checkpoint 2 completed first")
    assert provider.said("complete", "aborted") == [("aborted", 1), ("complete", 2)]


@pytest.mark.clause("F10")
def test_a_coordinator_that_cuts_the_newer_first_has_given_up_the_older() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job = HandDrivenJob(chain_of(provider), configure=overlapping)
    attempt = job.register(0)
    job.trigger()
    job.trigger()
    inside(attempt, provider, lambda c: c.results[2].complete(b""))
    inside(attempt, provider, lambda c: c.results[1].complete(b""))

    assert delivered(job, attempt) == ["|2"]
    assert provider.said("aborted") == [("aborted", 1)]


@pytest.mark.clause("F11")
def test_a_checkpoint_after_the_end_of_a_subtask_holds_its_last_states() -> None:
    """Were the state of what has finished dropped, a restore would begin it again, from nothing."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    first.complete(states={"source": b"last"})
    job.trigger()
    second.ack_checkpoint(1)

    checkpoint = job.runtime.state.completed[1]
    assert checkpoint.finished[0].states[0].state == b"last"
    assert checkpoint.cuts["source"].state == b"state of 1"


@pytest.mark.clause("F12")
def test_an_expired_checkpoint_is_aborted_and_names_the_missing_parts() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(
        chain_of(provider), parallelism=2, options=RuntimeOptions(checkpoint_timeout_s=5)
    )
    first, second = job.register_all()
    job.trigger()
    first.ack_checkpoint(1)
    job.advance(6)

    (aborted,) = job.history(Kind.CHECKPOINT_ABORTED)
    assert aborted.reason == "not whole after 5 s; missing: acks of the subtasks 1"
    assert second.got(CheckpointAborted) == [CheckpointAborted(checkpoint_id=1)]
    assert second.got(Fenced) == []


@pytest.mark.clause("F12")
def test_after_three_timeouts_in_a_row_the_missing_attempts_are_failed() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(
        chain_of(provider), parallelism=2, options=RuntimeOptions(checkpoint_timeout_s=5)
    )
    first, second = job.register_all()
    for n in (1, 2, 3):
        assert job.trigger() == n
        first.ack_checkpoint(n)
        job.advance(6)

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.subtask == 1
    assert str(failed.reason).startswith("3 checkpoints in a row timed out; the last, 3, ")
    assert (len(first.got(Fenced)), len(second.got(Fenced))) == (0, 1)
    second = job.register(1)
    job.trigger()
    first.ack_checkpoint(4)
    job.advance(6)
    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1, "the count begins again"


@pytest.mark.clause("E2")
@pytest.mark.clause("F12")
def test_attempts_that_are_late_for_the_same_checkpoint_are_one_failure() -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        parallelism=RESTARTS_MAX + 2,
        options=RuntimeOptions(checkpoint_timeout_s=5),
    )
    job.register_all()
    for _ in range(3):
        job.trigger()
        job.advance(6)

    assert len(job.history(Kind.ATTEMPT_FAILED)) == RESTARTS_MAX + 2
    state = job.runtime.state
    assert (state.phase, len(state.failures_us)) == (Phase.RUNNING, 1)
    job.register_all()
    assert job.runtime.state.live_count == state.parallelism


@pytest.mark.flink("CC4")
@pytest.mark.clause("F12")
def test_attempts_are_not_failed_for_a_coordinator_that_does_not_cut() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(checkpoint_timeout_s=5))
    job.register(0)
    for _ in range(4):
        job.trigger()
        job.advance(6)

    reasons = [one.reason for one in job.history(Kind.CHECKPOINT_ABORTED)]
    assert reasons == ["not whole after 5 s; missing: cuts of the coordinators source"] * 4
    assert job.history(Kind.ATTEMPT_FAILED) == []


@pytest.mark.clause("D4")
@pytest.mark.clause("H1")
def test_completion_is_told_in_a_turn_of_its_own_after_release() -> None:
    """Were an event overtaken by its checkpoint, what a coordinator commits then would lack it."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    attempt.send("source", Up(n=5))
    job.is_held = True
    attempt.ack_checkpoint(1)
    assert provider.said("complete") == []
    assert attempt.got(CheckpointCompleted) == []
    job.release()

    assert provider.said("event", "complete") == [("event", 0, 0, 5), ("complete", 1)]
    assert attempt.got(CheckpointCompleted) == [CheckpointCompleted(checkpoint_id=1)]
    assert kinds(job.history())[-2:] == ["CHECKPOINT_COMPLETED", "COORDINATOR_NOTIFIED"]
    assert [one.turn_remaining for one in job.history()[-2:]] == [0, 0]


@pytest.mark.clause("H2")
def test_each_checkpoint_that_does_not_complete_is_told_as_aborted_once() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    job.trigger()
    job.register(0)

    assert provider.said("aborted", "complete") == [("aborted", 1)]


def test_periodic_checkpoints_come_at_their_interval() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(checkpoint_interval_s=10))
    attempt = job.register(0)
    job.advance(10)
    attempt.ack_checkpoint(1)
    job.advance(9)
    assert len(job.history(Kind.CHECKPOINT_TRIGGERED)) == 1
    job.advance(1.5)

    assert len(job.history(Kind.CHECKPOINT_TRIGGERED)) == 2


@pytest.mark.parametrize("retained", [1, 2])
def test_as_many_checkpoints_are_retained_as_the_configuration_says(retained: int) -> None:
    provider = NotingProvider()
    job = HandDrivenJob(
        chain_of(provider),
        configure=lambda config: replace(config, retained_checkpoints=retained),
    )
    attempt = job.register(0)
    for n in (1, 2, 3):
        job.trigger()
        attempt.ack_checkpoint(n)

    assert sorted(job.runtime.state.completed) == [1, 2, 3][-retained:]


@pytest.mark.clause("D3")
@pytest.mark.clause("F10")
def test_what_crosses_two_cuts_is_channel_state_of_both() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), configure=overlapping)
    attempt = job.register(0)
    job.trigger()
    job.trigger()
    attempt.send("source", Up(n=5))
    attempt.ack_checkpoint(1)
    assert [one.event_id for one in job.runtime.state.completed[1].in_flight] == [0]
    attempt.ack_checkpoint(2)
    assert [one.event_id for one in job.runtime.state.completed[2].in_flight] == [0]
    attempt.lose()

    assert provider.lost == [([], [])], "it was sent ahead of the barrier"


@pytest.mark.clause("I3")
def test_no_checkpoint_follows_a_last_one_that_no_coordinator_cuts() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job = HandDrivenJob(chain_of(provider), configure=overlapping)
    job.register(0).complete()

    assert len(job.history(Kind.CHECKPOINT_TRIGGERED)) == 1


@pytest.mark.clause("F9")
def test_an_ack_of_the_checkpoint_restored_from_is_refused() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    (attempt,) = job.register_all()
    restored = job.trigger()
    assert restored is not None
    attempt.ack_checkpoint(restored)
    attempt.lose()
    again = job.register(0)
    assert again.accepted.restored_checkpoint == restored

    again.ack_checkpoint(restored, committables=[("source", b"rows of before")])

    assert len(job.history(Kind.CHECKPOINT_ACKED)) == 1
    refused = job.history(Kind.FACT)[-1]
    assert refused.reason == (
        "checkpoint 1 is not above 1, the last that it passed, and below 2, the next to be triggered"
    )
    held = job.runtime.state.attempt(0, 1)
    assert held is not None
    assert held.handed_over == ()


@pytest.mark.clause("F12")
def test_late_attempts_are_found_in_one_pass_over_the_missing_parts() -> None:
    """Each gateway is asked for its own un-acked events; a look at all that waits for each would cost their product."""

    class Waiting(dict[int, None]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            Waiting.looks += 1
            return super().__iter__()

    gateways = {
        ("source", n): GatewayState(attempt_number=0, unacked=Map({n: event_down(n)}))
        for n in range(8)
    }
    pending = PendingCheckpoint(
        checkpoint_id=1,
        triggered_sequence=0,
        triggered_us=0,
        attempts=Map(dict.fromkeys(range(8), 0)),
        finished=(),
    )
    waiting = Waiting(dict.fromkeys((2, 5)))
    pending = evolve(pending, waiting=waiting)

    assert late_attempts(JobState(gateways=Map(gateways)), pending) == [(2, 0), (5, 0)]
    assert Waiting.looks <= 1


def event_down(n: int) -> DownEvent:
    return DownEvent(
        sequence=n,
        operator_id="source",
        subtask=n,
        attempt_number=0,
        event_id=n,
        payload_type="test.down@1",
        payload=b"",
        is_loss_tolerant=False,
    )


@pytest.mark.clause("F10")
@pytest.mark.clause("F12")
def test_neither_a_subsumed_nor_a_declined_checkpoint_counts_as_timed_out() -> None:
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


@pytest.mark.clause("F9")
def test_an_ack_below_the_attempts_last_passed_checkpoint_is_refused() -> None:
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


def metadata_of(job: HandDrivenJob, record: Record) -> CheckpointMetadata:
    found = job.chain.payload_types.decode(record.payload_type or "", record.payload)
    return cast("CheckpointMetadata", found)


@pytest.mark.clause("F8")
def test_the_last_missing_subtask_may_complete_in_place_of_its_ack() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    first.ack_checkpoint(1)
    second.complete()

    (record,) = job.history(Kind.CHECKPOINT_COMPLETED)
    assert [one.subtask for one in metadata_of(job, record).finished] == [1]


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
def test_attempts_late_at_more_than_the_stated_timeouts_are_failed() -> None:
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
def test_of_several_late_attempts_none_fails_after_the_jobs_end() -> None:
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
