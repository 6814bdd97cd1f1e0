"""A coordinator in a running job: the scenarios SD of the contract that are not shown elsewhere."""

from __future__ import annotations

import pytest

from coordlog.api.coordinator import EventFuture
from coordlog.errors import AttemptNotRunningError
from coordlog.messages import Fail
from coordlog.projections.job.state import Phase
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import Down, NotingProvider, chain_of, delivered, inside, send_down


def started(
    provider: NotingProvider, *, is_batch: bool = False
) -> tuple[HandDrivenJob, list[FakeAttempt]]:
    job = HandDrivenJob(chain_of(provider), parallelism=2, is_batch=is_batch)
    return job, job.register_all()


def checkpointed(job: HandDrivenJob, attempts: list[FakeAttempt]) -> int:
    """The id of a checkpoint that completes here."""
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    for one in attempts:
        one.ack_checkpoint(checkpoint_id)
    assert job.runtime.state.last_checkpoint == checkpoint_id
    return checkpoint_id


def failed_over(job: HandDrivenJob) -> None:
    """A global failover."""
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(10)
    assert job.runtime.state.phase is Phase.RUNNING


# Starting and closing


@pytest.mark.flink("SD1")
def test_a_job_that_starts_starts_its_coordinators_ahead_of_any_attempt() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), is_held=True)

    assert provider.calls == [("create",), ("start",)]
    assert job.stage.submitted == []


@pytest.mark.flink("SD3")
@pytest.mark.flink("SD4")
@pytest.mark.clause("A3")
@pytest.mark.may_fail("RuntimeError: no listing")
def test_a_start_that_raises_fails_the_job_and_its_coordinator_is_closed() -> None:
    """Adapted: where a `start` that raises would end the process, or be lost, it is a global failure."""
    provider = NotingProvider()

    def raising(*_said: object) -> None:
        raise RuntimeError("no listing")

    provider.on["start"] = raising
    job = HandDrivenJob(chain_of(provider))
    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert str(failure.reason).startswith("start of operator 'source' raised RuntimeError: no lis")
    assert job.stage.submitted == []
    del provider.on["start"]
    job.advance(10)

    assert provider.calls == [
        ("create",),
        ("start",),
        ("create",),
        ("restore", -1, None),
        ("start",),
        ("close",),
    ]
    assert job.stage.submitted == [1]


# Attempts


@pytest.mark.flink("SD5")
@pytest.mark.flink("SD12")
@pytest.mark.clause("B2")
def test_a_task_that_ends_before_it_registers_is_told_to_nobody() -> None:
    """Adapted: an attempt begins with its registration, so that there is no failed without a ready."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    assert job.stage.submitted == [1], "its tasks are being deployed"
    before = job.log.high_watermark()
    job.run(lambda: job.runtime.connection_lost(77, "cancelled while it was deployed"))

    assert provider.said("ready", "failed", "reset") == []
    assert job.log.high_watermark() == before
    assert job.register(0).accepted.attempt_number == 0
    assert provider.said("ready", "failed", "reset") == [("ready", 0, 0)]


@pytest.mark.flink("SD6")
def test_the_failure_of_a_running_attempt_is_told() -> None:
    provider = NotingProvider()
    _, (_, second) = started(provider)
    second.fail("boom")

    assert provider.said("failed") == [("failed", 1, 0)]


@pytest.mark.flink("SD7")
@pytest.mark.flink("SD13")
@pytest.mark.clause("B2")
@pytest.mark.may_fail("no reason")
def test_attempts_cancelled_by_a_global_failover_are_recorded() -> None:
    """Adapted: the object that could be told is closed by the same reset."""
    provider = NotingProvider()
    job, _ = started(provider)
    provider.calls.clear()
    failed_over(job)

    ended = job.history(Kind.ATTEMPT_FAILED)
    assert [(one.subtask, one.reason) for one in ended] == [
        (0, "global failover"),
        (1, "global failover"),
    ]
    assert provider.said("failed", "reset") == []
    assert provider.said("close") == [("close",)]


@pytest.mark.flink("SD8")
def test_a_subtask_that_fails_twice_is_told_twice() -> None:
    provider = NotingProvider()
    job, (first, _) = started(provider)
    first.fail("once")
    job.register(0).fail("twice")

    assert provider.said("failed") == [("failed", 0, 0), ("failed", 0, 1)]


@pytest.mark.clause("B6")
@pytest.mark.flink("SD9")
@pytest.mark.flink("SD10")
def test_there_is_a_gateway_from_ready_on_and_not_before() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    assert (job.stage.submitted, provider.newest.gateways) == ([1], {})
    provider.on["ready"] = send_down(provider, 0, 1)
    attempt = job.register(0)

    assert (provider.newest.gateways[0].subtask, delivered(job, attempt)) == (0, [1])


@pytest.mark.flink("SD11")
@pytest.mark.clause("C4")
def test_a_refused_delivery_fails_the_events_future_and_its_attempt() -> None:
    provider = NotingProvider()
    job, (first, second) = started(provider)
    futures: list[EventFuture] = []
    inside(second, provider, lambda c: futures.append(c.gateways[0].send_event(Down(n=1))))
    refusal = Fail(
        operator_id="source", callback="handle_event", reason="cannot be handled", event_id=0
    )
    job.run(lambda: job.runtime.arrived(first.connection_id, refusal))

    with pytest.raises(AttemptNotRunningError, match="cannot be handled"):
        futures[0].result()
    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert (failed.subtask, failed.attributes["event_id"]) == (0, "0")
    assert not second.is_closed


# Checkpoints


@pytest.mark.flink("SD14")
def test_a_completed_checkpoint_holds_the_bytes_once_all_have_acked() -> None:
    provider = NotingProvider()
    job, (first, second) = started(provider)
    job.trigger()
    first.ack_checkpoint(1, states={"source": b"of 0"})
    assert job.history(Kind.CHECKPOINT_COMPLETED) == []
    second.ack_checkpoint(1, states={"source": b"of 1"})

    checkpoint = job.runtime.state.completed[1]
    assert {name: cut.state for name, cut in checkpoint.cuts.items()} == {"source": b"state of 1"}
    assert [checkpoint.states[n][0].state for n in (0, 1)] == [b"of 0", b"of 1"]


@pytest.mark.flink("SD15")
@pytest.mark.may_fail("RuntimeError: no state")
def test_a_coordinator_that_raises_at_its_cut_fails_the_checkpoint() -> None:
    provider = NotingProvider()
    job, _ = started(provider)

    def raising(*_said: object) -> None:
        raise RuntimeError("no state")

    provider.on["cut"] = raising
    job.trigger()
    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert "checkpoint_coordinator of operator 'source' raised RuntimeError: no state" in str(
        failure.reason
    )
    del provider.on["cut"]
    job.stage_ends()
    job.advance(10)

    (aborted,) = job.history(Kind.CHECKPOINT_ABORTED)
    assert aborted.checkpoint_id == 1
    assert len(job.runtime.state.completed) == 0


@pytest.mark.flink("SD16")
def test_a_later_failing_result_fails_the_checkpoint_and_not_the_job() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, (first, _) = started(provider)
    job.trigger()
    inside(first, provider, lambda c: c.results[1].fail(ValueError("the disk is full")))

    (aborted,) = job.history(Kind.CHECKPOINT_ABORTED)
    assert aborted.reason == "operator 'source': the disk is full"
    assert job.runtime.state.phase is Phase.RUNNING
    assert job.trigger() == 2


@pytest.mark.flink("SD17")
def test_a_driver_from_a_checkpoint_restores_its_bytes_before_start() -> None:
    provider = NotingProvider()
    job, attempts = started(provider)
    checkpointed(job, attempts)
    job.crash()
    provider.calls.clear()
    HandDrivenJob(job.chain, log=job.log, parallelism=2)

    assert provider.calls[:3] == [("create",), ("restore", 1, b"state of 1"), ("start",)]


@pytest.mark.flink("SD25")
def test_a_completed_checkpoint_is_told() -> None:
    provider = NotingProvider()
    job, attempts = started(provider)
    checkpointed(job, attempts)

    assert provider.said("complete") == [("complete", 1)]


# Failover: global, then local; in streaming, then in batch


@pytest.mark.flink("SD18")
@pytest.mark.flink("SD21")
@pytest.mark.may_fail("no reason")
def test_a_global_failure_resets_to_the_last_checkpoint_as_a_whole() -> None:
    provider = NotingProvider()
    job, attempts = started(provider)
    checkpointed(job, attempts)
    failed_over(job)

    assert provider.said("restore") == [("restore", 1, b"state of 1")]
    assert provider.said("reset") == []
    assert job.history(Kind.SUBTASK_RESET) == []


@pytest.mark.flink("SD19")
@pytest.mark.flink("SD26")
@pytest.mark.flink("SD27")
@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.may_fail("no reason")
def test_a_global_failure_before_any_checkpoint_resets_to_nothing(*, is_batch: bool) -> None:
    provider = NotingProvider()
    job, _ = started(provider, is_batch=is_batch)
    failed_over(job)

    assert provider.said("restore") == [("restore", -1, None)]
    assert provider.said("reset") == []


@pytest.mark.flink("SD20")
@pytest.mark.may_fail("one", "no reason")
def test_two_global_failures_in_a_row_make_one_reset() -> None:
    provider = NotingProvider()
    job, _ = started(provider)
    job.run(lambda: job.runtime.fail_job("source", "one"))
    failed_over(job)
    job.advance(60)

    assert provider.said("restore") == [("restore", -1, None)]
    assert job.stage.submitted == [1, 2]


@pytest.mark.flink("SD22")
@pytest.mark.flink("SD24")
def test_a_local_failover_resets_only_its_subtask_to_the_last_checkpoint() -> None:
    provider = NotingProvider()
    job, attempts = started(provider)
    checkpoint_id = checkpointed(job, attempts)
    attempts[1].fail("boom")

    assert provider.said("reset", "restore") == [("reset", 1, checkpoint_id)]


@pytest.mark.flink("SD23")
@pytest.mark.flink("SD28")
@pytest.mark.flink("SD29")
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_local_failover_before_any_checkpoint_resets_to_nothing(*, is_batch: bool) -> None:
    provider = NotingProvider()
    _, attempts = started(provider, is_batch=is_batch)
    attempts[1].fail("boom")

    assert provider.said("reset", "restore") == [("reset", 1, -1)]
