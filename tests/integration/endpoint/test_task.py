"""What runs in a Spark task, on a thread and against a real endpoint, without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest
from pyspark import cloudpickle

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.coordinator import CoordinatorContext, CoordinatorProvider, OperatorCoordinator
from coordlog.api.operator import Poll, PollStatus, SourceReader
from coordlog.errors import AttemptError, CoordlogError, FencedAttemptError
from coordlog.messages import (
    Accepted,
    AckEvent,
    AlreadyFinished,
    Complete,
    DeliverEvent,
    Fail,
    Fenced,
    Refused,
    Register,
)
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.source_types import AddSplits, NoMoreSplits
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.task.task import TaskChain, TaskIds, TaskWork, run_task
from fakes.endpoint_parts import TOKEN, Heard, own_threads, running, wait_for

pytestmark = pytest.mark.timeout(120)

ACCEPTED: Final = Accepted(
    driver_id="d1",
    epoch=0,
    attempt_number=3,
    restored_checkpoint=-1,
    parallelism=1,
    is_batch=False,
    states=(),
)


class Reader(SourceReader):
    """Waits until it is told that no splits come; `poll_once` is what a test wants done first."""

    def __init__(self, poll_once: Callable[[], None]) -> None:
        self.poll_once, self.is_at_end = poll_once, False

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """None come."""
        raise AssertionError("no splits here")

    def notify_no_more_splits(self) -> None:
        """The next poll ends."""
        self.is_at_end = True

    def poll(self) -> Poll:
        """Nothing to read, until the end."""
        self.poll_once()
        return Poll(status=PollStatus.END if self.is_at_end else PollStatus.WAITING, retry_s=0.01)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Nothing to keep."""
        return b""


class Provider(CoordinatorProvider):
    """Stays on the driver: it could not be pickled."""

    def __init__(self) -> None:
        self.operator_id = "source"
        self.payload_types = (AddSplits, NoMoreSplits)
        self.lock = threading.Lock()

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        """Never called."""
        raise AssertionError("no driver here")


def chain_of(poll_once: Callable[[], None] = lambda: None) -> Chain:
    return Chain(
        source=SourceSpec(
            operator_id="source", create_reader=lambda: Reader(poll_once), coordinator=Provider()
        ),
        operators=(),
    )


class Task:
    """One task on a thread of its own."""

    def __init__(self, work: TaskWork) -> None:
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(work,), name="task")
        self.thread.start()

    def _run(self, work: TaskWork) -> None:
        try:
            run_task(work, TaskIds(subtask=0, task_attempt_id=17, spark_attempt_number=1))
        except BaseException as error:  # noqa: BLE001, the test looks at it
            self.error = error

    def ended(self) -> BaseException | None:
        """What it raised, if anything; its connection's thread is gone."""
        self.thread.join(20)
        assert not self.thread.is_alive()
        assert "coordlog-connection" not in own_threads()
        return self.error


@contextmanager
def started(
    poll_once: Callable[[], None] = lambda: None,
    *,
    registration_timeout_s: float = 60,
    task_lease_s: float = 30,
    **of_endpoint: Any,  # noqa: ANN401, the endpoint's own
) -> Generator[tuple[Endpoint, Heard, int, Task], None, None]:
    """A task that has registered, and its connection."""
    with running(**of_endpoint) as (endpoint, heard):
        task = Task(
            TaskWork(
                job_id="ingest",
                driver_id="d1",
                stage_run=2,
                endpoint=endpoint.address,
                token=TOKEN,
                chain=TaskChain.of(chain_of(poll_once)),
                lease_s=task_lease_s,
                heartbeat_s=0.1,
                registration_timeout_s=registration_timeout_s,
            )
        )
        yield endpoint, heard, heard.connection_of(0), task
        task.ended()


def no_more_splits() -> DeliverEvent:
    declared = payload_type_of(NoMoreSplits)
    return DeliverEvent(
        operator_id="source",
        event_id=9,
        payload_type=declared.key,
        payload=declared.encode(NoMoreSplits()),
    )


def test_a_task_registers_with_what_spark_calls_it_works_and_ends_well() -> None:
    with started() as (endpoint, heard, number, task):
        register = heard.arrivals[0][1]
        assert isinstance(register, Register)
        assert (register.driver_id, register.stage_run, register.subtask) == ("d1", 2, 0)
        assert (register.task_attempt_id, register.spark_attempt_number) == (17, 1)
        assert register.pid > 0
        endpoint.send(number, ACCEPTED)
        endpoint.send(number, no_more_splits())
        wait_for(lambda: len(heard.messages(number)) == 2, "it completes")
        acked, completed = heard.messages(number)
        assert acked == AckEvent(operator_id="source", event_id=9, last_barrier=-1)
        assert isinstance(completed, Complete)
        assert task.thread.is_alive(), "it waits until its completion is in the log"
        endpoint.send(number, Fenced(reason="finished", is_finished=True))
        endpoint.close(number)
        assert task.ended() is None


@pytest.mark.parametrize(
    "answer", [AlreadyFinished(attempt_number=1), Fenced(reason="done", is_finished=True)]
)
def test_a_subtask_that_has_finished_ends_its_task_well(answer: AlreadyFinished | Fenced) -> None:
    with started() as (endpoint, _, number, task):
        endpoint.send(number, answer)
        endpoint.close(number)
        assert task.ended() is None


def test_a_task_that_is_refused_fails_with_the_reason() -> None:
    with started() as (endpoint, _, number, task):
        endpoint.send(number, Refused(reason="an older stage run"))
        endpoint.close(number)
        error = task.ended()
    assert isinstance(error, AttemptError)
    assert str(error) == ("the driver assigns task 17 no attempt of subtask 0: an older stage run")


def test_a_task_whose_registration_is_held_back_waits_within_its_bound() -> None:
    with started(registration_timeout_s=0.5, heartbeat_s=0.1) as (_, _, _, task):
        error = task.ended()
    assert isinstance(error, FencedAttemptError)
    assert "has not answered its registration for 0.5 s" in str(error)


def test_an_answer_that_was_held_back_is_taken() -> None:
    with started(task_lease_s=0.4, heartbeat_s=0.05) as (endpoint, _, number, task):
        # Longer than the lease: the driver says that it lives, and no more.
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert task.thread.is_alive()
            time.sleep(0.02)
        endpoint.send(number, AlreadyFinished(attempt_number=1))
        assert task.ended() is None


@pytest.mark.clause("M4")
def test_a_fenced_attempt_ends_before_its_next_batch() -> None:
    polls: list[float] = []
    with started(lambda: polls.append(time.monotonic())) as (endpoint, _, number, task):
        endpoint.send(number, ACCEPTED)
        wait_for(lambda: polls, "it works")
        endpoint.send(number, Fenced(reason="attempt 4 has registered"))
        error = task.ended()
    assert isinstance(error, FencedAttemptError)
    assert str(error) == "attempt 3 of subtask 0 is over: attempt 4 has registered"


@pytest.mark.clause("M4")
@pytest.mark.clause("B8")
def test_an_attempt_whose_connection_is_lost_ends() -> None:
    with started() as (endpoint, heard, number, task):
        endpoint.send(number, ACCEPTED)
        endpoint.close(number)
        error = task.ended()
        assert [message for message in heard.messages(number) if isinstance(message, Fail)] == []
    assert isinstance(error, FencedAttemptError)
    assert "its driver has closed the connection" in str(error)


@pytest.mark.clause("M4")
def test_an_attempt_that_hears_nothing_for_its_lease_ends() -> None:
    with started(task_lease_s=0.5, heartbeat_s=30) as (endpoint, _, number, task):
        endpoint.send(number, ACCEPTED)
        error = task.ended()
    assert isinstance(error, FencedAttemptError)
    assert "the lease is 0.5 s" in str(error)


@pytest.mark.clause("M3")
def test_a_chain_that_raises_is_told_before_the_task_fails_in_one_sentence() -> None:
    def fail() -> None:
        raise KeyError("x" * 2000)

    with started(fail) as (endpoint, heard, number, task):
        endpoint.send(number, ACCEPTED)
        error = task.ended()
        heard.reason_of(number)
        (told,) = heard.messages(number)
    assert isinstance(told, Fail)
    assert (told.operator_id, told.callback) == ("source", "poll")
    assert "Traceback" in told.reason
    assert isinstance(error, AttemptError)
    assert str(error).startswith("attempt 3 of subtask 0 failed with KeyError: 'xxx")
    assert str(error).endswith("; its traceback is in the job's history")
    assert len(str(error)) < 700
    assert error.__cause__ is None


def test_a_driver_that_is_not_there_fails_the_task() -> None:
    with running() as (endpoint, _):
        address = endpoint.address
    work = TaskWork(
        job_id="ingest",
        driver_id="d1",
        stage_run=0,
        endpoint=address,
        token=TOKEN,
        chain=TaskChain.of(chain_of()),
    )
    with pytest.raises(CoordlogError, match=f"cannot be reached at {address}"):
        run_task(work, TaskIds(subtask=0, task_attempt_id=1, spark_attempt_number=0))
    assert own_threads() == []


def test_heartbeats_go_on_while_the_main_thread_works() -> None:
    began = threading.Event()

    def work_long() -> None:
        if not began.is_set():
            began.set()
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                pass

    with started(work_long, lease_s=0.6) as (endpoint, heard, number, _):
        endpoint.send(number, ACCEPTED)
        assert began.wait(20)
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            assert heard.lost == []
            time.sleep(0.05)
        endpoint.send(number, no_more_splits())
        wait_for(lambda: len(heard.messages(number)) == 2, "it completes")
        endpoint.send(number, Fenced(reason="finished", is_finished=True))


def test_a_chain_travels_without_its_coordinators() -> None:
    there = chain_of()
    with pytest.raises(TypeError, match="pickle"):
        cloudpickle.dumps(there)  # type: ignore[no-untyped-call]

    travelling = cloudpickle.dumps(TaskChain.of(there))  # type: ignore[no-untyped-call]
    arrived = cloudpickle.loads(travelling)
    assert isinstance(arrived, TaskChain)
    here = arrived.chain()

    assert [one.operator_id for one in here.links] == ["source"]
    assert here.source.coordinator.operator_id == "source"
    assert {one.key for one in here.payload_types} == {one.key for one in there.payload_types}
    assert here.keeps_state_across_splits == there.keeps_state_across_splits


def test_a_closure_shows_nothing_of_the_token() -> None:
    work = TaskWork(
        job_id="ingest",
        driver_id="d1",
        stage_run=0,
        endpoint="ws://127.0.0.1:1",
        token=TOKEN,
        chain=TaskChain(links=()),
    )
    assert TOKEN.text() not in repr(work)
    assert "Token(not shown)" in repr(work)
