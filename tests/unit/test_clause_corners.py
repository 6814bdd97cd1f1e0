"""Corners of clauses that no other test goes into (clauses A6, B4, C4, E5, E9, K6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordlog.errors import AppendRefusedError, RestoreError
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import Rollback
from coordlog.log.memory import Refuse
from coordlog.messages import Fenced
from coordlog.projections.job.state import Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from kernel_fakes import Noted, Noting, NotingProvider, Up, chain_of, inside, send_down


@pytest.mark.clause("A6")
def test_neither_call_async_nor_schedule_survives_a_driver() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    heard: list[str] = []
    job.is_work_held = True

    def ask(coordinator: Noting) -> None:
        coordinator.context.call_async(lambda: Noted(text="x"), lambda *_: heard.append("result"))
        coordinator.context.schedule(10.0, lambda: heard.append("timer"))

    inside(attempt, provider, ask)
    job.crash()
    again = HandDrivenJob(job.chain, log=job.log, clock=job.clock)
    again.register(0)
    again.advance(60)

    assert heard == []
    assert not again.works
    assert again.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("B4")
@pytest.mark.may_fail("no reason")
def test_a_task_of_a_newer_stage_run_is_newer_whatever_its_task_id() -> None:
    """Spark begins its task ids again in a new application, and its attempt numbers in a stage that is tried again."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0, task_attempt_id=20)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(1)
    newer = job.register(0, task_attempt_id=0)

    assert job.stage.submitted == [1, 2]
    assert newer.accepted.attempt_number == 1


@pytest.mark.clause("C4")
def test_an_ack_that_a_dead_attempt_owes_fails_no_later_attempt() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(ack_timeout_s=5))
    first = job.register(0)
    inside(first, provider, send_down(provider, 0, 1))
    job.advance(4)
    first.lose()
    second = job.register(0)
    job.advance(60)

    assert [one.attempt_number for one in job.history(Kind.ATTEMPT_FAILED)] == [0]
    assert second.got(Fenced) == []


@pytest.mark.clause("C4")
@pytest.mark.clause("B8")
def test_a_broken_connection_fails_its_attempt_once_and_names_each_event_that_it_had() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    inside(second, provider, send_down(provider, 0, 1, 2))
    first.lose("reset by peer")
    first.lose("reset by peer")

    failed = job.history(Kind.EVENT_FAILED)
    assert [(one.event_id, one.reason) for one in failed] == [
        (0, "reset by peer"),
        (1, "reset by peer"),
    ]
    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1
    assert second.got(Fenced) == []


@pytest.mark.clause("E5")
def test_a_restore_never_takes_a_checkpoint_of_an_abandoned_branch() -> None:
    def retaining(config: KernelConfig) -> KernelConfig:
        return replace(config, retained_checkpoints=3)

    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), configure=retaining)
    attempt = job.register(0)
    for n in (1, 2, 3):
        job.trigger()
        attempt.ack_checkpoint(n)
    job.run(lambda: job.runtime.handle(Rollback(checkpoint_id=1, is_failover=False)))
    job.crash()
    provider.calls.clear()
    job = HandDrivenJob(job.chain, log=job.log, configure=retaining)

    assert provider.said("restore", "complete") == [("restore", 1, b"state of 1"), ("complete", 1)]
    attempt = job.register(0)
    assert attempt.accepted.restored_checkpoint == 1
    assert job.trigger() == 4
    attempt.ack_checkpoint(4)
    job.crash()
    provider.calls.clear()
    HandDrivenJob(job.chain, log=job.log, configure=retaining)
    assert provider.said("restore") == [("restore", 4, b"state of 4")]


@pytest.mark.clause("E9")
def test_a_log_that_does_not_begin_at_its_beginning_is_refused_before_anything_is_appended() -> (
    None
):
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0)
    job.crash()
    job.log.remove_below(2)
    before = job.log.high_watermark()

    with pytest.raises(RestoreError, match="at offset 0, and the log starts at 2"):
        HandDrivenJob(job.chain, log=job.log)
    assert job.log.high_watermark() == before


@pytest.mark.clause("K6")
def test_what_the_broker_refuses_ends_the_driver_and_leaves_the_log_readable() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    attempt = job.register(0)
    job.log.faults.next_append(Refuse("the disk is full"))

    with pytest.raises(AppendRefusedError, match="the disk is full"):
        attempt.send("source", Up(n=1))
    assert job.history(Kind.EVENT_TO_COORDINATOR) == []
    job.crash()
    provider = NotingProvider()
    again = HandDrivenJob(chain_of(provider), log=job.log)
    again.register(0).send("source", Up(n=2))
    assert provider.said("event") == [("event", 0, 1, 2)]
