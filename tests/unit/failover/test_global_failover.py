"""All attempts are replaced, and the coordinators are reset (clauses A1 to A4, B2, E2, E3)."""

from __future__ import annotations

from typing import Any

import pytest

from coordlog.api.coordinator import CoordinatorContext, OperatorCoordinator
from coordlog.messages import Fenced, Refused
from coordlog.projections.job.state import Phase
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import Noting, NotingProvider, Up, chain_of, inside, kinds


def raising(*_said: object) -> None:
    raise RuntimeError("bang")


@pytest.mark.clause("A3")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("create", "create of operator 'source'"),
        ("start", "start of operator 'source'"),
        ("event", "handle_event_from_operator of operator 'source' for subtask 0"),
        ("ready", "execution_attempt_ready of operator 'source' for subtask 0"),
        ("failed", "execution_attempt_failed of operator 'source' for subtask 0"),
        ("reset", "subtask_reset of operator 'source' for subtask 0"),
        ("cut", "checkpoint_coordinator of operator 'source'"),
        ("complete", "notify_checkpoint_complete of operator 'source'"),
        ("aborted", "notify_checkpoint_aborted of operator 'source'"),
    ],
)
@pytest.mark.may_fail("RuntimeError: bang")
def test_an_exception_out_of_any_callback_fails_the_job_globally(name: str, said: str) -> None:
    """Were one swallowed, the job would go on with a coordinator that has missed a commit."""
    provider = NotingProvider(on={name: raising})
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    if name not in ("create", "start", "ready"):
        attempt.send("source", Up(n=1))
        if name != "event":
            job.trigger()
        if name == "complete":
            attempt.ack_checkpoint(1)
        elif name in ("failed", "reset", "aborted"):
            attempt.lose()

    failure = job.history(Kind.GLOBAL_FAILURE)[0]
    assert str(failure.reason).startswith(f"{said} raised RuntimeError: bang")
    assert failure.operator_id == "source"
    assert failure.turn_remaining == 0
    assert job.runtime.state.phase is Phase.FAILING


@pytest.mark.clause("A3")
@pytest.mark.parametrize("panic", [SystemExit(0), BaseException("unwrap on None")], ids=repr)
@pytest.mark.may_fail("SystemExit", "unwrap on None")
def test_a_panic_in_a_callback_fails_the_job_globally_like_an_exception(
    panic: BaseException,
) -> None:
    """`sys.exit` in a coordinator ended the process with status 0, in the middle of its job."""

    def panicking(*_said: object) -> None:
        raise panic

    provider = NotingProvider(on={"event": panicking})
    job = HandDrivenJob(chain_of(provider))

    job.register(0).send("source", Up(n=1))

    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert f"raised {type(panic).__name__}: {panic}" in str(failure.reason)
    assert job.runtime.state.phase is Phase.FAILING


@pytest.mark.clause("A1")
@pytest.mark.may_fail("no reason", "the object that is closed")
def test_a_provider_that_returns_the_closed_object_again_is_refused() -> None:
    """What it had counted before the reset would be counted twice."""

    class Keeping(NotingProvider):
        def create(self, context: CoordinatorContext) -> OperatorCoordinator:
            return self.newest if self.made else super().create(context)

    job = HandDrivenJob(chain_of(Keeping()))
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(60)

    first, second, *_ = job.history(Kind.GLOBAL_FAILURE)
    assert "no reason" in str(first.reason)
    assert "`create` of Keeping returned the object that is closed" in str(second.reason)


@pytest.mark.clause("A3")
@pytest.mark.may_fail("it must return")
def test_a_provider_that_returns_no_coordinator_is_named_each_time() -> None:
    class Forgetful(NotingProvider):
        def create(self, context: CoordinatorContext) -> Any:  # noqa: ANN401, wrong on purpose
            super().create(context)

    job = HandDrivenJob(chain_of(Forgetful()))
    job.advance(60)

    failures = [str(failure.reason) for failure in job.history(Kind.GLOBAL_FAILURE)]
    assert len(failures) > 1
    assert all(
        "`create` of Forgetful returned a NoneType; it must return" in each for each in failures
    )


@pytest.mark.clause("A3")
@pytest.mark.may_fail("no reason", "RuntimeError: bang")
def test_a_reset_that_raises_fails_the_job_again() -> None:
    provider = NotingProvider(on={"restore": raising})
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(0.6)
    assert len(job.history(Kind.GLOBAL_FAILURE)) == 2
    del provider.on["restore"]
    job.advance(2)

    assert job.runtime.state.phase is Phase.RUNNING
    assert job.stage.submitted == [1, 2]


@pytest.mark.fault("X10")
@pytest.mark.flink("RC4")
@pytest.mark.clause("E2")
@pytest.mark.clause("A1")
@pytest.mark.clause("A2")
@pytest.mark.clause("B2")
@pytest.mark.may_fail("no reason")
def test_coordinators_are_new_objects_reset_and_started_after_a_failover() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1)
    job.trigger()
    provider.calls.clear()
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(1)

    assert provider.calls == [
        ("create",),
        ("restore", 1, b"state of 1"),
        ("start",),
        ("complete", 1),
        ("close",),
    ]
    assert len(provider.made) == 2
    assert len(attempt.got(Fenced)) == 1
    tail = job.history()[-5:]
    assert kinds(tail) == [
        "GLOBAL_FAILURE",
        "CHECKPOINT_ABORTED",
        "ATTEMPT_FAILED",
        "RESET_TO_CHECKPOINT",
        "COORDINATOR_NOTIFIED",
    ]
    assert [one.turn_remaining for one in tail] == [0, 2, 1, 0, 0]


@pytest.mark.clause("E2")
@pytest.mark.clause("A2")
@pytest.mark.may_fail("no reason")
def test_before_the_first_checkpoint_a_reset_is_to_nothing() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    assert provider.calls[:2] == [("create",), ("start",)], "no reset at a job's first start"
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(1)

    assert provider.said("restore") == [("restore", -1, None)]
    assert provider.said("complete") == []


@pytest.mark.clause("E3")
@pytest.mark.may_fail("no reason")
def test_in_batch_a_global_failover_resets_to_nothing_and_forgets_splits() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider, keeps_state=False), parallelism=2, is_batch=True)
    first, second = job.register_all()
    first.finish_split("source", "a", committables=[("source", b"a")])
    second.complete(committables=[("source", b"b")])
    assert len(job.runtime.state.kept_splits) == 1
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(1)

    state = job.runtime.state
    assert provider.said("restore") == [("restore", -1, None)]
    assert (len(state.kept_splits), state.finished_count) == (0, 0)
    assert [one.accepted.restored_checkpoint for one in job.register_all()] == [-1, -1]


@pytest.mark.clause("E2")
@pytest.mark.clause("A4")
@pytest.mark.may_fail("two", "one", "three")
def test_failures_in_quick_succession_make_one_reset_and_are_recorded() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    for reason in ("one", "two", "three"):
        job.run(lambda reason=reason: job.runtime.fail_job("source", reason))  # type: ignore[misc]
    job.stage_ends()
    job.advance(10)

    assert [one.reason for one in job.history(Kind.GLOBAL_FAILURE)] == ["one", "two", "three"]
    assert len(job.history(Kind.RESET_TO_CHECKPOINT)) == 1


@pytest.mark.clause("A4")
@pytest.mark.may_fail("enough")
def test_fail_job_inside_a_callback_is_as_if_it_had_raised_on_its_return() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)

    def act(coordinator: Noting) -> None:
        coordinator.context.fail_job("enough")
        coordinator.context.fail_job("more")
        provider.calls.append(("after",))

    inside(attempt, provider, act)

    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert failure.reason == "operator 'source' failed the job: enough"
    assert ("after",) in provider.calls


@pytest.mark.clause("A3")
@pytest.mark.may_fail("no reason")
def test_before_the_reset_messages_of_attempts_are_refused_to_their_sender() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    attempt.send("source", Up(n=1))

    assert provider.said("event") == []
    assert job.history(Kind.FACT)[-1].reason == "the job is failing"
    assert len(attempt.got(Fenced)) == 1


@pytest.mark.clause("E2")
@pytest.mark.may_fail("no reason")
def test_a_stage_that_ends_as_asked_after_the_reset_is_no_further_failure() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.advance(1)
    assert job.runtime.state.phase is Phase.RUNNING
    assert job.stage.submitted == [1], "the cancelled run has not ended"

    late = job.register(0)
    assert len(late.got(Refused)) == 1, "a task of a cancelled stage run"
    job.stage_ends("cancelled")

    assert len(job.history(Kind.GLOBAL_FAILURE)) == 1
    assert job.stage.submitted == [1, 2]
    assert job.register(0).accepted.attempt_number == 1


@pytest.mark.may_fail("Spark ended stage run")
def test_a_stage_that_spark_aborts_is_a_global_failure() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    job.register(0).complete()
    job.stage_ends("task 1 failed 4 times")

    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert failure.reason == (
        "Spark ended stage run 1 although the subtasks 1 have not completed: task 1 failed 4 times"
    )


@pytest.mark.may_fail("subtask 1 of 2 has had no attempt")
def test_a_subtask_without_an_attempt_for_too_long_is_a_global_failure() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    job.register(0)
    job.advance(121)
    job.run(job.runtime.registrations.watch)

    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert failure.subtask == 1
    assert failure.reason == (
        "subtask 1 of 2 has had no attempt for 121 s: Spark has started no task for it (are there 2 free slots?), its "
        "task cannot reach the driver, or its workers end before they register, as with too little memory in "
        "spark.executor.pyspark.memory (do tasks fail in Spark's log?)"
    )


@pytest.mark.clause("E2")
@pytest.mark.may_fail("scripted")
def test_the_end_of_an_older_stage_run_is_no_failure_of_the_newer() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    job.stage_ends("cancelled")
    job.advance(60)
    assert job.stage.submitted == [1, 2]
    attempt = job.register(0, stage_run=2)

    job.run(lambda: job.runtime.stage_ended(1, "its tasks were killed late"))

    assert len(job.history(Kind.GLOBAL_FAILURE)) == 1
    assert job.runtime.is_stage_running
    assert not attempt.is_closed


@pytest.mark.clause("B2")
@pytest.mark.may_fail("scripted")
def test_a_global_failover_ends_all_attempts_even_if_a_subtask_has_none() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=3)
    attempts = [job.register(1), job.register(2)]
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    job.stage_ends()
    job.advance(60)

    assert [one.subtask for one in job.history(Kind.ATTEMPT_FAILED)] == [1, 2]
    for one in attempts:
        assert one.got(Fenced) == [Fenced(reason="global failover", is_finished=False)]
