"""The kit's own promises: a failure is never swallowed, and a real chain runs by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain, OperatorSpec
from coordlog.api.operator import Operator, OperatorContext, Snapshot
from coordlog.messages import DeliverEvent, InjectBarrier
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.task.attempt import StepStatus
from coordlog.testing import (
    FakeAttempt,
    HandDrivenJob,
    RealAttempt,
    UnexpectedFailureError,
    crash_sweep,
    silent_source,
)
from coordlog.testing.driven_job import MayFail
from fakes.kernel_fakes import Down, Noting, NotingProvider, Up, chain_of, inside


def wrong(_coordinator: Noting) -> object:
    grants: dict[str, int] = {}
    return grants["no such key"]


def started(provider: NotingProvider, *, may_fail: MayFail) -> tuple[HandDrivenJob, FakeAttempt]:
    job = HandDrivenJob(chain_of(provider), may_fail=may_fail)
    return job, job.register(0)


def test_a_callback_that_raises_fails_the_test_with_its_traceback() -> None:
    provider = NotingProvider()
    _, attempt = started(provider, may_fail=False)

    with pytest.raises(UnexpectedFailureError) as raised:
        inside(attempt, provider, wrong)

    assert "KeyError: 'no such key'" in str(raised.value)
    assert 'grants["no such key"]' in str(raised.value)
    assert "may_fail=True" in str(raised.value)


def test_a_job_that_is_failed_by_its_coordinator_fails_the_test() -> None:
    provider = NotingProvider()
    _, attempt = started(provider, may_fail=False)

    with pytest.raises(UnexpectedFailureError, match="no permits are left"):
        inside(attempt, provider, lambda c: c.context.fail_job(ValueError("no permits are left")))


def test_a_test_of_a_failure_says_so_and_goes_on() -> None:
    provider = NotingProvider()
    job, attempt = started(provider, may_fail=True)

    inside(attempt, provider, wrong)

    assert len(job.history(Kind.GLOBAL_FAILURE)) == 1


@pytest.mark.parametrize("texts", ["no such key", ("out of quota", "no such key")])
def test_a_failure_with_one_of_the_texts_is_meant(texts: MayFail) -> None:
    provider = NotingProvider()
    job, attempt = started(provider, may_fail=texts)

    inside(attempt, provider, wrong)

    assert len(job.history(Kind.GLOBAL_FAILURE)) == 1


@pytest.mark.parametrize("texts", ["out of quota", ("out of quota", "no permits"), ()])
def test_a_failure_with_none_of_the_texts_fails_the_test(texts: MayFail) -> None:
    provider = NotingProvider()
    _, attempt = started(provider, may_fail=texts)

    with pytest.raises(UnexpectedFailureError, match="no such key"):
        inside(attempt, provider, wrong)


def test_a_second_failure_is_not_meant_because_an_older_one_was() -> None:
    job, _ = started(NotingProvider(), may_fail="scripted")
    job.run(lambda: job.runtime.fail_job("source", "scripted"))

    with pytest.raises(UnexpectedFailureError, match="another"):
        job.run(lambda: job.runtime.fail_job("source", "another", final="for good"))

    assert "before that: scripted" in (job.history(Kind.JOB_FAILED)[0].reason or "")


def test_an_attempt_may_always_fail() -> None:
    job, attempt = started(NotingProvider(), may_fail=False)

    attempt.fail()

    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1


def test_a_failure_that_waits_for_the_log_is_raised_by_its_release() -> None:
    provider = NotingProvider()
    job, attempt = started(provider, may_fail=False)
    job.is_held = True
    inside(attempt, provider, wrong)

    with pytest.raises(UnexpectedFailureError):
        job.release()


def test_a_failure_in_a_crash_sweep_is_raised_too() -> None:
    provider = NotingProvider()

    def script(job: HandDrivenJob) -> None:
        inside(job.register(0), provider, wrong)

    with pytest.raises(UnexpectedFailureError, match="no such key"):
        crash_sweep(
            lambda: chain_of(provider), script, lambda _: None, lambda _: None, may_fail=False
        )


# --- a real chain ---------------------------------------------------------------------------------
class Adding(Operator):
    """Adds to each row what it was sent last, and counts rows."""

    def __init__(self) -> None:
        self.added, self.rows = 0, list[int]()

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Go on with the sum."""
        self.context = context
        self.added = int(state or b"0")

    def handle_event(self, event: Payload) -> None:
        """Add this from here on."""
        assert isinstance(event, Down)
        self.added = event.n

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Add it."""
        self.rows += [n + self.added for n in batch.column(0).to_pylist()]
        self.context.send_event(Up(n=len(self.rows)))
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """What is added."""
        return Snapshot(state=str(self.added).encode())


def adding_job() -> tuple[HandDrivenJob, NotingProvider]:
    provider = NotingProvider("adding")
    chain = Chain(
        source=silent_source(),
        operators=[
            OperatorSpec(operator_id="adding", create_operator=Adding, coordinator=provider)
        ],
    )
    return HandDrivenJob(chain, may_fail=False), provider


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def test_a_real_operator_runs_by_hand_over_rows_events_and_barriers() -> None:
    job, provider = adding_job()
    attempt = RealAttempt(job, 0)
    operator = attempt.operator("adding")
    assert isinstance(operator, Adding)
    provider.on["event"] = lambda coordinator, *_: coordinator.gateways[0].send_event(Down(n=10))

    attempt.read(rows(1, 2))
    del provider.on["event"]
    attempt.read(rows(3))
    assert operator.rows == [1, 2, 3], "the event waits until it is taken"
    (delivered,) = attempt.take()
    assert isinstance(delivered, DeliverEvent)
    job.trigger()
    assert [type(one) for one in attempt.take(1)] == [InjectBarrier]
    attempt.read(rows(4))

    assert operator.rows == [1, 2, 3, 14]
    assert len(job.history(Kind.CHECKPOINT_COMPLETED)) == 1
    assert attempt.end().status is StepStatus.COMPLETED
    assert attempt.is_completed
    assert len(job.history(Kind.SUBTASK_COMPLETED)) == 1


def test_the_next_attempt_is_restored_with_the_state_of_the_checkpoint() -> None:
    job, provider = adding_job()
    first = RealAttempt(job, 0)
    provider.on["event"] = lambda coordinator, *_: coordinator.gateways[0].send_event(Down(n=7))
    first.read(rows(1))
    del provider.on["event"]
    first.take()
    job.trigger()
    first.take()
    first.attempt.lose()

    operator = RealAttempt(job, 0).operator("adding")

    assert isinstance(operator, Adding)
    assert operator.added == 7


# --- tests of this tree -----------------------------------------------------------------------------------------------
def test_a_test_without_the_mark_has_a_job_that_may_not_fail() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))

    with pytest.raises(UnexpectedFailureError):
        job.run(lambda: job.runtime.fail_job("source", "scripted"))


@pytest.mark.may_fail("scripted")
def test_a_marked_tests_job_may_fail_by_the_marks_reason() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))

    job.run(lambda: job.runtime.fail_job("source", "scripted"))

    assert len(job.history(Kind.GLOBAL_FAILURE)) == 1
    with pytest.raises(UnexpectedFailureError, match="another"):
        job.run(lambda: job.runtime.fail_job("source", "another"))
