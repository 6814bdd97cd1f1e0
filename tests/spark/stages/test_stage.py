"""Subtasks as Spark tasks: they register, work, die, are killed and replaced, and leave nothing.

The driver is a script: it lets each task in, gives it one split, and says when it has finished.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pytest
from pyspark.sql import SparkSession

from coordlog.errors import EnvironmentSetupError
from coordlog.messages import (
    Accepted,
    AlreadyFinished,
    Complete,
    DeliverEvent,
    Fail,
    Fenced,
    FinishSplit,
    Refused,
    Register,
    SendEvent,
    UpMessage,
)
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.source_types import AddSplits, NoMoreSplits, Split
from coordlog.spark_integration.driver import stage as stage_module
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.driver.stage import SparkStage, check_slots, endpoint_host
from coordlog.spark_integration.wire.token import Token
from jobs.left_threads import left_threads

from .stage_chain import CHAIN, Started

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

SUBTASKS: Final = 3
WAIT_S: Final = 120.0
"""Longer than Spark takes for anything here on a loaded machine."""

T = TypeVar("T")


# --- the script -----------------------------------------------------------------------------------
@dataclass(eq=False)
class Script:
    """The driver. As `Arrivals` and `StageEvents` it does at once what a test has asked for."""

    is_ended_by_itself: bool = True
    """Tell each attempt that no more splits come."""
    splits: list[dict[str, object]] = field(default_factory=lambda: [{"id": "a", "rows": 3}])
    answer: Callable[[Register], Refused | AlreadyFinished | None] = lambda _register: None
    registered: list[tuple[int, Register]] = field(default_factory=list)
    said: list[tuple[int, UpMessage]] = field(default_factory=list)
    lost: list[tuple[int, str]] = field(default_factory=list)
    ended: list[tuple[int, str | None]] = field(default_factory=list)
    endpoint: Endpoint | None = None
    stage: SparkStage | None = None

    def arrived(self, connection_id: int, message: UpMessage) -> None:
        """Answer, as scripted."""
        assert self.endpoint is not None
        self.endpoint.released(connection_id, 1)
        if isinstance(message, Register):
            self.registered.append((connection_id, message))
            self._let_in(connection_id, message)
        else:
            self.said.append((connection_id, message))
        if isinstance(message, Complete):
            self.endpoint.send(connection_id, Fenced(reason="finished", is_finished=True))
            self.endpoint.close(connection_id)

    def connection_lost(self, connection_id: int, reason: str) -> None:
        """Keep it."""
        self.lost.append((connection_id, reason))

    def stage_ended(self, stage_run: int, error: str | None) -> None:
        """Keep it."""
        self.ended.append((stage_run, error))

    def finish_all(self) -> None:
        """No more splits for anybody, now and later."""
        self.is_ended_by_itself = True
        for connection_id, _ in list(self.registered):
            self.deliver(connection_id, 2, NoMoreSplits())

    def deliver(self, connection_id: int, event_id: int, what: Payload) -> None:
        """Send an event to an attempt's source."""
        assert self.endpoint is not None
        declared = payload_type_of(what)
        self.endpoint.send(
            connection_id,
            DeliverEvent(
                operator_id="source",
                event_id=event_id,
                payload_type=declared.key,
                payload=declared.encode(what),
            ),
        )

    def _let_in(self, connection_id: int, register: Register) -> None:
        assert self.endpoint is not None
        other = self.answer(register)
        if other is not None:
            self.endpoint.send(connection_id, other)
            self.endpoint.close(connection_id)
            return
        self.endpoint.send(
            connection_id,
            Accepted(
                driver_id="d1",
                epoch=0,
                attempt_number=len(self.of(register.subtask)) - 1,
                restored_checkpoint=-1,
                parallelism=SUBTASKS,
                is_batch=False,
                states=(),
            ),
        )
        splits = [
            Split(split_id=str(one["id"]), content=json.dumps(one).encode()) for one in self.splits
        ]
        self.deliver(connection_id, 0, AddSplits(splits=splits))
        if self.is_ended_by_itself:
            self.deliver(connection_id, 1, NoMoreSplits())

    def of(self, subtask: int) -> list[tuple[int, Register]]:
        """Connections and registrations of a subtask, oldest first."""
        return [one for one in list(self.registered) if one[1].subtask == subtask]

    def messages(self, connection_id: int, kind: type[T]) -> list[T]:
        """What one attempt has said, of one kind."""
        return [m for n, m in list(self.said) if n == connection_id and isinstance(m, kind)]

    def wait_all_working(self) -> None:
        """Until an attempt of each subtask has read its split."""
        wait_for(
            lambda: all(
                self.of(s) and self.messages(self.of(s)[-1][0], FinishSplit)
                for s in range(SUBTASKS)
            ),
            "each subtask works",
        )

    def wait_ended(self) -> tuple[int, str | None]:
        """The stage run that has ended, and how."""
        wait_for(lambda: self.ended, "the stage ends")
        return self.ended[0]


def wait_for(look: Callable[[], T], what: str) -> T:
    """What `look` gives once that is true."""
    deadline = time.monotonic() + WAIT_S
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {what}"
        time.sleep(0.01)


@contextmanager
def driving(
    spark: SparkSession,
    script: Script,
    *,
    token_of_tasks: Token | None = None,
    lease_s: float = 30.0,
    heartbeat_s: float = 2.0,
) -> Generator[SparkStage, None, None]:
    """An endpoint and a stage for the script; whatever happens, none of its tasks is left."""
    token = Token.new()
    script.endpoint = Endpoint(
        job_id="ingest",
        driver_id="d1",
        token=token,
        arrivals=script,
        host=endpoint_host(spark),
        lease_s=lease_s,
        heartbeat_s=heartbeat_s,
    )
    address = script.endpoint.start()
    script.stage = SparkStage(
        spark,
        chain=CHAIN,
        job_id="ingest",
        driver_id="d1",
        parallelism=SUBTASKS,
        endpoint=address,
        token=token_of_tasks or token,
        events=script,
        lease_s=30.0,
        heartbeat_s=heartbeat_s,
    )
    try:
        yield script.stage
    finally:
        script.stage.end()
        script.endpoint.stop()
    assert left_threads() == []
    tracker = spark.sparkContext.statusTracker()
    wait_for(lambda: not tracker.getActiveJobsIds(), "no job is left in Spark")


@pytest.fixture(autouse=True)
def _free_slots(spark: SparkSession) -> None:
    """Tasks of an earlier test that are still ending are not this one's concern."""
    check_slots(spark, SUBTASKS)


# --- the tests ------------------------------------------------------------------------------------
@pytest.mark.tier("test")
def test_each_subtask_registers_works_and_completes_and_nothing_is_left(
    spark: SparkSession,
) -> None:
    script = Script()
    with driving(spark, script) as stage:
        stage.submit(7)
        assert script.wait_ended() == (7, None)

        registers = sorted((one for _, one in script.registered), key=lambda one: one.subtask)
        assert [one.subtask for one in registers] == [0, 1, 2]
        assert {(one.driver_id, one.stage_run) for one in registers} == {("d1", 7)}
        assert {one.spark_attempt_number for one in registers} == {0}
        assert len({one.task_attempt_id for one in registers}) == SUBTASKS
        assert len({one.pid for one in registers} - {os.getpid()}) == SUBTASKS
        for number, _ in script.registered:
            counted = [
                one for one in script.messages(number, SendEvent) if one.operator_id == "count"
            ]
            assert [one.payload for one in counted] == [b"\x06"]
            assert len(script.messages(number, FinishSplit)) == 1
            assert len(script.messages(number, Complete)) == 1
        assert len(script.ended) == 1


@pytest.mark.kill
@pytest.mark.clause("B8")
def test_a_worker_that_is_killed_is_lost_at_once_and_replaced_alone(spark: SparkSession) -> None:
    script = Script(is_ended_by_itself=False)
    with driving(spark, script) as stage:
        stage.submit(0)
        script.wait_all_working()
        number, register = script.of(1)[0]
        began_s = time.monotonic()
        os.kill(register.pid, signal.SIGKILL)
        wait_for(lambda: script.lost, "the connection is lost")
        lost_s = time.monotonic() - began_s
        wait_for(lambda: len(script.of(1)) == 2, "another task registers")
        again_s = time.monotonic() - began_s
        print(f"killed: lost after {lost_s:.3f} s, registered again after {again_s:.2f} s")
        script.wait_all_working()

        ((lost, reason),) = script.lost
        assert lost == number
        assert reason.startswith("it broke: its process has ended, or the network; ")
        assert "killed by signal 9" in reason
        _, newer = script.of(1)[1]
        assert newer.task_attempt_id > register.task_attempt_id
        assert (newer.spark_attempt_number, newer.stage_run) == (1, 0)
        assert newer.pid != register.pid
        assert len(script.of(0)) == len(script.of(2)) == 1
        assert lost_s < 10
        script.finish_all()
        assert script.wait_ended() == (0, None)


@pytest.mark.kill
def test_a_worker_that_hangs_is_lost_by_its_lease_and_replaced_when_killed(
    spark: SparkSession,
) -> None:
    script = Script(is_ended_by_itself=False)
    with driving(spark, script, lease_s=2.0, heartbeat_s=0.2) as stage:
        stage.submit(0)
        script.wait_all_working()
        number, register = script.of(2)[0]
        os.kill(register.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: script.lost, "the lease runs out")
            assert [one for one, _ in script.lost] == [number]
            assert "its lease is 2 s" in script.lost[0][1]
            stage.kill_task(0, register.task_attempt_id, "its lease ran out")
            wait_for(lambda: len(script.of(2)) == 2, "another task registers")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(register.pid, signal.SIGCONT)
        script.wait_all_working()
        assert script.of(2)[1][1].task_attempt_id > register.task_attempt_id
        assert len(script.of(0)) == len(script.of(1)) == 1
        script.finish_all()
        assert script.wait_ended() == (0, None)


@pytest.mark.kill
def test_a_stage_of_a_jvm_that_stands_still_ends_within_its_limit(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover waited for the stage for ever: the call that cancels it does not return."""
    script = Script(is_ended_by_itself=False)
    with driving(spark, script) as stage:
        stage.submit(0)
        script.wait_all_working()
        gateway: Any = spark.sparkContext._gateway
        jvm: subprocess.Popen[bytes] = gateway.proc
        jvm.send_signal(signal.SIGSTOP)
        try:
            with monkeypatch.context() as shorter:
                shorter.setattr(stage_module, "STAGE_END_TIMEOUT_S", 1.0)
                stage.cancel(0, "the job fails over")
                number, reason = script.wait_ended()
        finally:
            jvm.send_signal(signal.SIGCONT)
        assert number == 0
        assert reason == "the job fails over; Spark has not ended the stage for 1 s"


def test_a_task_that_is_killed_by_its_driver_is_replaced_alone(spark: SparkSession) -> None:
    script = Script(is_ended_by_itself=False)
    with driving(spark, script) as stage:
        stage.submit(0)
        script.wait_all_working()
        _, register = script.of(0)[0]
        stage.kill_task(0, register.task_attempt_id, "the test says so")
        stage.kill_task(0, 999_999_999, "there is no such task")
        began_s = time.monotonic()
        wait_for(lambda: len(script.of(0)) == 2, "another task registers")
        print(f"kill_task: registered again after {time.monotonic() - began_s:.2f} s")
        assert len(script.of(1)) == len(script.of(2)) == 1
        script.finish_all()
        assert script.wait_ended() == (0, None)


def test_an_attempt_that_is_fenced_ends_its_task_and_another_one_comes(
    spark: SparkSession,
) -> None:
    script = Script(is_ended_by_itself=False)
    with driving(spark, script) as stage:
        stage.submit(0)
        script.wait_all_working()
        number, _ = script.of(1)[0]
        assert script.endpoint is not None
        script.endpoint.send(number, Fenced(reason="a test"))
        script.endpoint.close(number)
        wait_for(lambda: len(script.of(1)) == 2, "another task registers")
        assert script.messages(number, Fail) == []
        assert script.messages(number, Complete) == []
        script.finish_all()
        assert script.wait_ended() == (0, None)


def test_cancel_ends_all_tasks_within_a_bound(spark: SparkSession) -> None:
    script = Script(is_ended_by_itself=False)
    with driving(spark, script) as stage:
        stage.submit(0)
        script.wait_all_working()
        began_s = time.monotonic()
        stage.cancel(0, "a global failover")
        assert script.wait_ended() == (0, "a global failover")
        ended_s = time.monotonic() - began_s
        wait_for(lambda: len(script.lost) == SUBTASKS, "each attempt is gone")
        gone_s = time.monotonic() - began_s
        print(f"cancel: stage ended after {ended_s:.2f} s, attempts gone after {gone_s:.2f} s")
        assert ended_s < 20

        stage.cancel(0, "again")
        stage.cancel(5, "there is no such run")
        # Another run of the same driver, at once.
        script.ended.clear()
        script.is_ended_by_itself = True
        stage.submit(1)
        assert script.wait_ended() == (1, None)
        assert {one.stage_run for _, one in script.registered} == {0, 1}


def test_a_stage_that_is_cancelled_before_it_begins_ends_all_the_same(spark: SparkSession) -> None:
    script = Script(is_ended_by_itself=False)
    with driving(spark, script) as stage:
        stage.submit(0)
        stage.cancel(0, "a change of mind")
        assert script.wait_ended() == (0, "a change of mind")
        assert len(script.ended) == 1


def test_end_leaves_nothing_while_all_tasks_work(spark: SparkSession) -> None:
    script = Script(is_ended_by_itself=False)
    with driving(spark, script) as stage:
        stage.submit(0)
        script.wait_all_working()
        stage.end()
        assert script.ended == [(0, "the driver ends")]


def test_a_task_that_is_refused_fails_and_another_one_comes(spark: SparkSession) -> None:
    refused: list[int] = []

    def refuse_first(register: Register) -> Refused | None:
        if register.subtask == 0 and not refused:
            refused.append(register.task_attempt_id)
            return Refused(reason="once")
        return None

    script = Script(answer=refuse_first)
    with driving(spark, script) as stage:
        stage.submit(0)
        assert script.wait_ended() == (0, None)
        assert [one.spark_attempt_number for _, one in script.of(0)] == [0, 1]


def test_a_subtask_that_has_finished_ends_its_task_well(spark: SparkSession) -> None:
    script = Script(
        answer=lambda one: AlreadyFinished(attempt_number=4) if one.subtask == 1 else None
    )
    with driving(spark, script) as stage:
        stage.submit(0)
        assert script.wait_ended() == (0, None)
        assert len(script.of(1)) == 1


@pytest.mark.clause("M3")
def test_a_chain_that_raises_tells_its_driver_before_its_task_fails(spark: SparkSession) -> None:
    script = Script(splits=[{"id": "bad", "raise": "no rows today"}])
    with driving(spark, script) as stage:
        stage.submit(0)
        wait_for(lambda: len(script.of(0)) >= 2, "another task registers")
        number, _ = script.of(0)[0]
        (told,) = script.messages(number, Fail)
        assert (told.operator_id, told.callback) == ("source", "poll")
        assert told.reason.endswith("ZeroDivisionError: no rows today\n")
        assert "Traceback" in told.reason
        stage.cancel(0, "enough")
        assert script.wait_ended() == (0, "enough")


def test_tasks_with_another_token_end_before_they_send_it(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wrong = Token.new()
    tracker = spark.sparkContext.statusTracker()

    def failed() -> int:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return sum(stage.numFailedTasks for stage in stages if stage is not None)

    script = Script()
    with driving(spark, script, token_of_tasks=wrong) as stage:
        stage.submit(0)
        wait_for(lambda: failed() >= SUBTASKS, "they end")
        stage.cancel(0, "enough")
        script.wait_ended()
        assert script.registered == []
        assert "refused" not in caplog.text, "no token came"
        assert wrong.text() not in caplog.text


def test_no_thread_outlives_its_task_in_a_worker_that_is_used_again(spark: SparkSession) -> None:
    script = Script()
    with driving(spark, script) as stage:
        for run in range(3):
            stage.submit(run)
            wait_for(lambda n=run: len(script.ended) == n + 1, "the stage ends")  # type: ignore[misc]
        pids = [one.pid for _, one in script.registered]
        assert len(set(pids)) < len(pids), "a worker was used again"
        for _, message in script.said:
            if isinstance(message, SendEvent) and message.operator_id == "source":
                started = payload_type_of(Started).decode(message.payload)
                assert isinstance(started, Started)
                own = [one for one in started.threads if one.startswith("coordlog")]
                assert sorted(own) == ["coordlog-connection", "coordlog-watch"]


def test_too_few_slots_are_refused_by_both_numbers(spark: SparkSession) -> None:
    master = spark.conf.get("spark.master", "") or ""
    slots = int(master.split("[")[1].split(",")[0])
    check_slots(spark, slots)
    with pytest.raises(
        EnvironmentSetupError,
        match=rf"{slots + 1} subtasks need one each.* has {slots}, of which 0 are taken.*"
        rf"local\[{slots + 1},1000\].* parallelism of at most {slots}",
    ):
        check_slots(spark, slots + 1)


def test_a_local_session_that_retries_nothing_is_warned_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_slots(spark, 1)
    assert caplog.text == ""
    get = spark.conf.get
    monkeypatch.setattr(
        type(spark.conf),
        "get",
        lambda _self, key, *rest: "local[4]" if key == "spark.master" else get(key, *rest),
    )
    check_slots(spark, 1)
    assert "aborts the stage at failure 1" in caplog.text
    assert "use the master local[N,1000]" in caplog.text
