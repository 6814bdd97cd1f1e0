"""A driver that is told to stop: with a checkpoint, without one, at once; the history says who asked."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from coordlog.api.chain import SourceSpec
from coordlog.api.operator import Poll, PollStatus, SourceReader
from coordlog.cli.living import driver_in
from coordlog.coordinators.commits import CommitCoordinator
from coordlog.errors import EnvironmentSetupError, UsageError
from coordlog.limits import STOP_RECORD_S
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import _MemoryWriter
from coordlog.offline.epoch import read_job
from coordlog.projections.job.grants import uncommitted
from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.state import DriverStop
from coordlog.projections.tables.attempts import AttemptEnd
from coordlog.projections.tables.audit import audit
from coordlog.projections.tables.epochs import EpochEnd
from coordlog.runtime.driver import JobDriver, JobResult, JobStatus
from coordlog.schemas.builtin_types import StopRequested
from coordlog.schemas.payload import Payload, PayloadTypes
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import EnumeratorState
from coordlog.spark_integration.driver.liveness import Liveness, driver_liveness
from coordlog.spark_integration.transform import TransformFunction
from examples.demo_parts.follow import Follower
from fakes.endpoint_parts import wait_for
from jobs.file_pipeline import ALL_ROWS, BATCH_ROWS, FILES, ROWS, SUBTASKS, WAIT_S, Pipeline, at

pytestmark = pytest.mark.slow

NOBODY = "ws://127.0.0.1:1"

_TYPES = PayloadTypes((StopRequested,))


class Gate:
    """A transform that works until so many batches are through, and then does not return before it is opened."""

    def __init__(self, *, shuts_after: int) -> None:
        self.is_open, self.has_shut = threading.Event(), threading.Event()
        self._count, self._shuts_after = itertools.count(1), shuts_after

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if next(self._count) > self._shuts_after:
            self.has_shut.set()
            self.is_open.wait(WAIT_S)
        return batch


class HeldPipeline(Pipeline):
    """Its first driver never reads the second half of the rows, so that no job ends before its stop.

    Its readers wait, and barriers pass.
    """

    def __init__(
        self, folder: Path, *, is_batch: bool, transform: TransformFunction = lambda batch: batch
    ) -> None:
        super().__init__(folder, is_batch=is_batch, transform=transform)
        self._batches, self._is_held = 0, True
        source = self.chain.source
        self.chain = replace(
            self.chain, source=replace(source, create_reader=partial(self._reader, source))
        )

    def _reader(self, source: SourceSpec) -> SourceReader:
        reader = source.create_reader()
        poll = reader.poll

        def held() -> Poll:
            if self._is_held and self._batches >= FILES * ROWS // BATCH_ROWS // 2:
                return Poll(status=PollStatus.WAITING)
            polled = poll()
            self._batches += polled.status is PollStatus.BATCH
            return polled

        reader.poll = held  # type: ignore[method-assign]
        return reader

    def begun(self) -> JobDriver:
        """A driver of which a split is finished."""
        is_under_way = threading.Event()
        driver = self.begin(at(Kind.SPLIT_FINISHED, 1, lambda *_: is_under_way.set()))
        assert is_under_way.wait(WAIT_S)
        return driver

    def go_on(self) -> None:
        """Run a second driver to the end."""
        self._is_held = False
        assert self.drive().status is JobStatus.FINISHED
        assert self.committed() == ALL_ROWS


def stops(pipeline: Pipeline) -> list[StopRequested]:
    follower = Follower(pipeline.log)
    follower.catch_up()
    found = [
        _TYPES.decode(one.payload_type, one.payload)
        for one in follower.records
        if one.kind is Kind.FACT and (one.payload_type or "").startswith("coordlog.stop_requested")
    ]
    return [one for one in found if isinstance(one, StopRequested)]


def ended(driver: JobDriver) -> JobResult:
    result = driver.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.STOPPED
    return result


@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_stop_is_in_the_history_with_its_signal_and_the_job_goes_on(
    tmp_path: Path, *, is_batch: bool
) -> None:
    pipeline = HeldPipeline(tmp_path, is_batch=is_batch)
    driver = pipeline.begun()
    driver.stop(with_checkpoint=True, by="SIGTERM")
    result = ended(driver)

    assert stops(pipeline) == [
        StopRequested(by="SIGTERM", with_checkpoint=not is_batch, is_at_once=False)
    ]
    if is_batch:
        assert result.stop_checkpoint is None
    else:
        assert result.stop_checkpoint == result.last_checkpoint > 0
        assert pipeline.committed(), "what the checkpoint holds is published"
    pipeline.go_on()


@pytest.mark.parametrize("is_at_once", [False, True], ids=["in order", "at once"])
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_stop_is_the_end_of_its_epoch_and_of_its_attempts_and_no_failure(
    tmp_path: Path, *, is_batch: bool, is_at_once: bool
) -> None:
    """The next driver once told of failures, and the pause counted as work."""
    pipeline = HeldPipeline(tmp_path, is_batch=is_batch)
    driver = pipeline.begun()
    if is_at_once:
        driver.end_at_once(by="SIGTERM")
    else:
        driver.stop(with_checkpoint=True, by="SIGTERM")
    ended(driver)
    records = [stored.record() for stored in pipeline.log.records]
    *_, last, snapshot = [one for one in records if one.kind is not Kind.TYPE_REGISTERED]
    named = driver_in(pipeline.log, last.job_id)

    assert is_driver_stopped(last), "nothing of the driver comes after it"
    assert snapshot.kind is Kind.SNAPSHOT, "but its last snapshot"
    assert named is not None
    assert named.is_stopped
    assert driver_liveness(replace(named, endpoint=NOBODY)).liveness is Liveness.GONE
    read = read_job(pipeline.log, last.job_id, lambda _state: None)
    assert read.state.driver_stop is DriverStop.DONE
    pipeline.go_on()
    tables = audit(pipeline.log.read(0, pipeline.log.high_watermark()))
    assert [one.end for one in tables.epochs] == [EpochEnd.STOPPED, EpochEnd.FINISHED]
    assert tables.failures == ()
    ends = {one.end for one in tables.attempts if one.epoch == 0}
    assert AttemptEnd.STOPPED in ends
    assert ends <= {AttemptEnd.STOPPED, AttemptEnd.COMPLETED}
    until_us = tables.epochs[0].last_us
    assert all((one.ended_us or 0) <= until_us for one in tables.attempts if one.epoch == 0)


@pytest.mark.parametrize("call", ["wait", "stop", "end_at_once"])
def test_a_call_that_would_wait_for_its_own_thread_is_refused_at_once(
    tmp_path: Path, call: str
) -> None:
    """`on_released` runs on the mailbox: there `wait` blocked the job for good, and a stop for a minute."""
    pipeline = Pipeline(tmp_path, is_batch=False, transform=lambda batch: batch)
    refusals: list[UsageError] = []

    def look(driver: JobDriver, _tasks: object) -> None:
        calls: dict[str, Callable[[], object]] = {
            "wait": driver.wait,
            "stop": lambda: driver.stop(with_checkpoint=True),
            "end_at_once": lambda: driver.end_at_once(by="the test"),
        }
        with pytest.raises(UsageError, match=f"`{call}` was called on the mailbox") as refused:
            calls[call]()
        refusals.append(refused.value)

    assert pipeline.drive(at(Kind.SPLIT_FINISHED, 1, look)).status is JobStatus.FINISHED
    assert len(refusals) == 1
    assert pipeline.committed() == ALL_ROWS


def test_a_stop_waits_until_a_slow_log_has_the_outcomes_of_its_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory an intent has its outcome before the log has it: what counts is the log."""
    append = _MemoryWriter.append

    def slowly(
        writer: _MemoryWriter, records: Sequence[UnstoredRecord], *, timeout_s: float
    ) -> Sequence[int]:
        time.sleep(0.2)  # an append of a broker under load
        return append(writer, records, timeout_s=timeout_s)

    pipeline = HeldPipeline(tmp_path, is_batch=False)
    driver = pipeline.begun()
    monkeypatch.setattr(_MemoryWriter, "append", slowly)
    driver.stop(with_checkpoint=True, by="SIGTERM")
    stopped_at = ended(driver).stop_checkpoint

    follower = Follower(pipeline.log)
    follower.catch_up()
    of_it = [one for one in follower.records if one.checkpoint_id == stopped_at is not None]
    kinds = [one.kind for one in of_it]
    assert kinds.count(Kind.COMMIT_INTENT) == kinds.count(Kind.COMMIT_OUTCOME) > 0


@pytest.mark.clause("I3")
def test_a_stop_waits_for_the_commit_that_an_open_call_still_owes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that asks something outside first, and commits in the handler."""
    commit = CommitCoordinator.notify_checkpoint_complete

    def ask_first(coordinator: CommitCoordinator, checkpoint_id: int) -> None:
        def ask() -> Payload:
            time.sleep(0.2)  # longer than a stop looks; nothing waits for it
            return EnumeratorState(content=b"yes")

        coordinator.context.call_async(ask, lambda *_: commit(coordinator, checkpoint_id))

    monkeypatch.setattr(CommitCoordinator, "notify_checkpoint_complete", ask_first)
    pipeline = HeldPipeline(tmp_path, is_batch=False)
    driver = pipeline.begun()
    driver.stop(with_checkpoint=True, by="SIGTERM")
    stopped_at = ended(driver).stop_checkpoint

    assert stopped_at is not None
    read = read_job(pipeline.log, "job", lambda _state: None)
    assert read.state.last_checkpoint == stopped_at
    assert uncommitted(read.state) == {}
    assert pipeline.committed(), "what the checkpoint holds is published"
    pipeline.go_on()


def test_a_stop_takes_a_checkpoint_that_is_begun_after_it(tmp_path: Path) -> None:
    """One that is under way may have been cut long before: what was done since would be done again."""
    gate = Gate(shuts_after=30)
    pipeline = HeldPipeline(tmp_path, is_batch=False, transform=gate)
    driver = pipeline.begin(checkpoint_interval_s=0.02)
    assert gate.has_shut.wait(WAIT_S)
    wait_for(lambda: bool(driver.state and driver.state.pending), "one is under way")
    assert driver.state is not None
    (under_way,) = driver.state.pending
    stop = threading.Thread(target=lambda: driver.stop(with_checkpoint=True, timeout_s=WAIT_S))
    stop.start()
    wait_for(lambda: bool(stops(pipeline)), "the stop is in the history")
    gate.is_open.set()
    stop.join(WAIT_S)

    stopped_at = ended(driver).stop_checkpoint
    assert stopped_at is not None
    assert stopped_at > under_way
    pipeline.go_on()


def test_a_stop_that_gets_no_checkpoint_ends_within_its_limit_and_says_so(tmp_path: Path) -> None:
    """A transform that never returns acks no barrier."""
    gate = Gate(shuts_after=30)
    pipeline = Pipeline(tmp_path, is_batch=False, transform=gate)
    driver = pipeline.begin(checkpoint_interval_s=600)  # only the stop asks for one
    assert gate.has_shut.wait(WAIT_S)
    began_s = time.monotonic()
    driver.stop(with_checkpoint=True, timeout_s=0.5, by="SIGINT")
    took_s = time.monotonic() - began_s
    gate.is_open.set()

    assert ended(driver).stop_checkpoint is None
    assert 0.5 <= took_s < 0.5 + STOP_RECORD_S + 1.0
    assert pipeline.drive().status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS


def test_a_second_one_ends_what_the_first_waits_for(tmp_path: Path) -> None:
    gate = Gate(shuts_after=30)
    pipeline = Pipeline(tmp_path, is_batch=False, transform=gate)
    driver = pipeline.begin(checkpoint_interval_s=600)  # only the stop asks for one
    assert gate.has_shut.wait(WAIT_S)
    first = threading.Thread(
        target=lambda: driver.stop(with_checkpoint=True, timeout_s=WAIT_S, by="SIGINT")
    )
    first.start()
    end_s = time.monotonic() + WAIT_S
    while not stops(pipeline):
        assert time.monotonic() < end_s, "the first is recorded"
        time.sleep(0.01)
    began_s = time.monotonic()
    driver.end_at_once(by="SIGINT")
    first.join(WAIT_S)
    took_s = time.monotonic() - began_s
    gate.is_open.set()

    assert took_s < STOP_RECORD_S + 1.0
    assert ended(driver).stop_checkpoint is None
    assert [one.is_at_once for one in stops(pipeline)] == [False, True]


GONE = EnvironmentSetupError("the job's Spark session has ended: its JVM", "start the job again")


def test_a_driver_whose_spark_is_gone_ends_without_failing_the_job(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(tmp_path, is_batch=False, transform=lambda batch: batch)
    driver = pipeline.begin(
        at(Kind.SPLIT_FINISHED, 2, lambda driver, _: driver._mailbox.session_lost(1, GONE))
    )

    with pytest.raises(EnvironmentSetupError, match="Spark session has ended"):
        driver.wait(WAIT_S)

    follower = Follower(pipeline.log)
    follower.catch_up()
    kinds = {one.kind for one in follower.records}
    assert Kind.GLOBAL_FAILURE not in kinds
    assert Kind.JOB_FAILED not in kinds
    pipeline.drive()
    assert pipeline.committed() == ALL_ROWS


def test_where_no_task_is_left_to_ack_a_stop_waits_for_no_checkpoint(tmp_path: Path) -> None:
    """Spark session has ended, as with a Ctrl-C that its JVM gets too: no new stage is started for a stop."""
    gate = Gate(shuts_after=30)
    pipeline = Pipeline(tmp_path, is_batch=False, transform=gate)
    driver = pipeline.begin()
    assert gate.has_shut.wait(WAIT_S)
    runtime = driver._runtime
    assert runtime is not None

    def go() -> None:
        """The tasks, then their stage: as the connections and the stage thread tell it."""
        for number in range(SUBTASKS):
            state = runtime.state.subtasks[number].attempt
            assert state is not None
        for connection_id in sorted(runtime._releasing.attempt_of):
            runtime.connection_lost(connection_id, "the JVM is gone")
        driver._mailbox.session_lost(1, GONE)

    began_s = time.monotonic()
    driver._mailbox.post(lambda: setattr(runtime, "_is_stopping", True))
    driver._mailbox.post(go)
    driver.stop(with_checkpoint=True, timeout_s=WAIT_S)
    gate.is_open.set()

    assert time.monotonic() - began_s < STOP_RECORD_S + 2.0
    assert ended(driver).stop_checkpoint is None
