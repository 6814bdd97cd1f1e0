"""What a driver leaves behind: nothing, whenever it fails or is interrupted."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from coordlog.api.chain import Chain
from coordlog.cli.ingest.signals import StoppedError
from coordlog.cli.living import driver_in
from coordlog.errors import LogUnavailableError, RecordError, UsageError
from coordlog.kernel.builder import KernelConfig
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog, _MemoryWriter
from coordlog.payloads.offload import NO_STORE
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import audit
from coordlog.projections.tables.epochs import EpochEnd
from coordlog.restore.rebuild import Rebuild, Restored
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.life import closing as closing_module
from coordlog.runtime.mailbox import Mailbox, PanicError
from coordlog.runtime.runtime import Runtime
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import Job
from coordlog.spark_integration import job as job_module
from coordlog.spark_integration.driver.payload_options import PayloadChoice
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.testing.in_memory import InMemorySurroundings
from fakes.endpoint_parts import WAIT_S, own_threads, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_thread_of_an_earlier_test() -> None:
    wait_for(lambda: own_threads() == [], "the threads of earlier tests have ended")


def driver_of(folder: Path, log: MemoryLog, error: BaseException | None = None) -> JobDriver:
    """A driver of a job without an end; `error` is raised once it has taken over."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "0.csv").write_text("a\n1\n")
    sink = ParquetSink(folder / "out")
    sink.prepare("job")
    source = FileSource(folder / "in", watch=Watch(watch_interval_s=0.1))
    chain = Chain(source=source.spec(), operators=[sink.spec()])

    def restored(_restored: Restored) -> None:
        if error is not None:
            raise error

    return JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(job_id="job", parallelism=1, is_batch=False),
        surroundings=InMemorySurroundings(chain, "job", 1),
        on_restored=restored,
    )


NO_SPARK = cast("SparkSession", None)


def job_of(folder: Path, monkeypatch: pytest.MonkeyPatch, log: MemoryLog | None = None) -> Job:
    """A job whose start makes the driver of `driver_of`."""
    log = log or MemoryLog("job")
    driver = driver_of(folder, log)
    surroundings = SimpleNamespace(with_versions=lambda options: options)
    monkeypatch.setattr(job_module, "SparkSurroundings", lambda *_args, **_options: surroundings)
    monkeypatch.setattr(job_module, "JobDriver", lambda **_options: driver)
    monkeypatch.setattr(PayloadChoice, "on", lambda *_args: NO_STORE)
    source, sink = FileSource(folder / "in"), ParquetSink(folder / "out")
    return Job(job_id="job", log=log, source=source, sink=sink)


def interrupted_behind(call: Callable[..., None], *arguments: object) -> None:
    """Make the call, and raise as a signal does that comes when it returns."""
    call(*arguments)
    raise KeyboardInterrupt


def last_of(log: MemoryLog) -> tuple[bool, str | None]:
    """Whether the last record is the end of its driver, and its reason; a snapshot and its type may follow."""
    records = [stored.record() for stored in log.records]
    *_, last = [
        record for record in records if record.kind not in (Kind.SNAPSHOT, Kind.TYPE_REGISTERED)
    ]
    return is_driver_stopped(last), last.reason


def main_thread_waits() -> bool:
    """Whether it waits in `_close`, whose wait begins again every moment, so that a signal is handled."""
    main_id = threading.main_thread().ident
    assert main_id is not None
    frame: FrameType | None = sys._current_frames()[main_id]
    names = list[str]()
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[:4] == ["wait", "wait", "wait_for_event", "wait"]  # a condition's, an event's


@pytest.mark.parametrize("error", [ValueError("a callback's"), KeyboardInterrupt()], ids=repr)
def test_a_start_that_fails_behind_the_take_over_closes_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Of Kafka it is a producer, which would try to connect for as long as the process lives."""
    writers: list[_MemoryWriter] = []
    closed: list[_MemoryWriter] = []
    log, made, close = MemoryLog("job"), MemoryLog.writer, _MemoryWriter.close

    def writer(self: MemoryLog) -> _MemoryWriter:
        one = made(self)
        assert isinstance(one, _MemoryWriter)
        writers.append(one)
        return one

    def noted(self: _MemoryWriter, *, timeout_s: float) -> None:
        closed.append(self)
        close(self, timeout_s=timeout_s)

    monkeypatch.setattr(MemoryLog, "writer", writer)
    monkeypatch.setattr(_MemoryWriter, "close", noted)
    with pytest.raises(type(error)):
        driver_of(tmp_path, log, error).start()

    assert len(writers) == 1
    assert closed == writers
    assert own_threads() == []


@pytest.mark.parametrize("refused", ["coordlog-log", "coordlog-watchdog", "coordlog-closing"])
def test_a_start_for_which_the_system_has_too_few_threads_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Its endpoint would answer as that of a driver that lives, for as long as the process does."""
    ended, start, end = list[object](), threading.Thread.start, InMemorySurroundings.end

    def scarce(self: threading.Thread) -> None:
        if self.name == refused:
            raise RuntimeError("can't start new thread")
        start(self)

    def noted(self: InMemorySurroundings) -> None:
        ended.append(self)
        end(self)

    log = MemoryLog("job")
    driver = driver_of(tmp_path, log)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", scarce)
        patched.setattr(InMemorySurroundings, "end", noted)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            driver.start()

    assert (len(ended) == 1) == bool(log.records)
    appender = driver._appender
    assert appender is None or appender._writer is None
    wait_for(lambda: own_threads() == [], "all threads have ended")


def test_a_driver_that_ends_during_its_start_closes_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its endpoint may fail then; whatever the rest of the start opens must be closed too."""
    lost, make = LogUnavailableError("job", "appending", 1.0, "the test"), JobDriver._make_runtime

    def ended(self: JobDriver, rebuilt: Rebuild, config: KernelConfig) -> Runtime:
        self._mailbox.end(lost)
        assert not self._closing._closed.wait(0.3)
        return make(self, rebuilt, config)

    monkeypatch.setattr(JobDriver, "_make_runtime", ended)
    driver = driver_of(tmp_path, MemoryLog("job"))
    driver.start()

    with pytest.raises(LogUnavailableError):
        driver.wait()
    assert driver._appender is not None
    assert driver._appender._writer is None
    wait_for(lambda: own_threads() == [], "all threads have ended")


CUTS = [
    (KeyboardInterrupt(), "SIGINT"),
    (SystemExit(128 + signal.SIGTERM), "SIGTERM"),
    (StoppedError(signal.SIGTERM), "SIGTERM"),
    (SystemExit(1), "SystemExit"),
    (ValueError("a callback's"), "ValueError"),
]


@pytest.mark.clause("K3")
@pytest.mark.parametrize(("error", "by"), CUTS, ids=repr)
def test_a_start_cut_off_before_its_first_turn_is_a_stop_in_the_log(
    tmp_path: Path, error: BaseException, by: str
) -> None:
    """Its epoch had no end: it was shown as open, and `jobs` could call it stuck."""
    log = MemoryLog("job")
    with pytest.raises(type(error)):
        driver_of(tmp_path, log, error).start()
    driver = driver_in(log, "job")

    assert last_of(log) == (True, f"stopped by {by}")
    assert driver is not None
    assert driver.is_stopped
    tables = audit(log.read(0, log.high_watermark()))
    assert [epoch.end for epoch in tables.epochs] == [EpochEnd.STOPPED]
    assert own_threads() == []


@pytest.mark.clause("K3")
def test_a_start_cut_off_behind_its_first_turn_is_a_stop_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    log = MemoryLog("job")
    monkeypatch.setattr(JobDriver, "_prune_history", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver_of(tmp_path, log).start()

    assert last_of(log) == (True, "stopped by SIGINT")
    assert own_threads() == []


@pytest.mark.clause("K3")
def test_a_take_over_that_is_interrupted_is_a_stop_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when the epoch has begun, and before the driver has heard of it."""
    log, append = MemoryLog("job"), _MemoryWriter.append
    interrupted = threading.Event()

    def appended(
        self: _MemoryWriter, records: Sequence[UnstoredRecord], *, timeout_s: float
    ) -> Sequence[int]:
        offsets = append(self, records, timeout_s=timeout_s)
        if not interrupted.is_set():
            interrupted.set()
            os.kill(os.getpid(), signal.SIGINT)
        return offsets

    monkeypatch.setattr(_MemoryWriter, "append", appended)
    with pytest.raises(KeyboardInterrupt):
        driver_of(tmp_path, log).start()

    assert last_of(log) == (True, "stopped by SIGINT")
    assert own_threads() == []


def test_a_take_over_that_waits_for_the_log_ends_with_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that does not answer is no reason to wait for its time limit."""
    log = MemoryLog("job")
    interrupted = threading.Event()

    def unanswered(
        self: _MemoryWriter, records: Sequence[UnstoredRecord], *, timeout_s: float
    ) -> Sequence[int]:
        if not interrupted.is_set():
            interrupted.set()
            os.kill(os.getpid(), signal.SIGINT)
        raise LogUnavailableError("job", "append", timeout_s, "no answer")

    monkeypatch.setattr(_MemoryWriter, "append", unanswered)
    with pytest.raises(KeyboardInterrupt):
        driver_of(tmp_path, log).start()

    assert log.records == ()
    wait_for(lambda: own_threads() == [], "all threads have ended")


def test_an_interrupt_while_it_closes_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second Ctrl-C of a notebook, whose process lives on."""
    driver = driver_of(tmp_path, MemoryLog("job"))
    closing, goes_on, close = threading.Event(), threading.Event(), Mailbox.close

    def slowly(self: Mailbox) -> None:
        closing.set()
        assert goes_on.wait(WAIT_S)
        close(self)

    def interrupt() -> None:
        assert closing.wait(WAIT_S)
        wait_for(main_thread_waits, "the main thread waits for the closing")
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Mailbox, "close", slowly)
    driver.start()
    driver.stop(with_checkpoint=False)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            driver.wait()
    finally:
        goes_on.set()
        interrupting.join()
    result = driver.wait()

    assert result is not None
    assert result.status is JobStatus.STOPPED
    wait_for(lambda: own_threads() == [], "all threads have ended")


def test_a_job_that_is_interrupted_again_and_again_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One Ctrl-C stops it, and each further one cuts off what the one before has begun."""

    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    job = job_of(tmp_path, monkeypatch)
    for name in ("wait", "stop", "end_at_once"):
        monkeypatch.setattr(JobDriver, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        job._run_until_stopped(NO_SPARK)

    assert own_threads() == []


@pytest.mark.parametrize("place", ["the driver's start", "the job's start"])
def test_a_signal_just_behind_the_start_leaves_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The driver ran on: its caller had no object that knew of it, or nobody stopped it."""
    log = MemoryLog("job")
    job = job_of(tmp_path, monkeypatch, log)
    if place == "the driver's start":
        start_driver = JobDriver.start
        monkeypatch.setattr(JobDriver, "start", lambda self: interrupted_behind(start_driver, self))
    else:
        start_job = Job.start
        monkeypatch.setattr(
            Job, "start", lambda self, spark: interrupted_behind(start_job, self, spark)
        )
    with pytest.raises(KeyboardInterrupt):
        job._run_until_stopped(NO_SPARK)

    wait_for(lambda: own_threads() == [], "all threads have ended")
    assert last_of(log) == (True, "stopped by SIGINT")


def test_a_second_run_of_a_started_job_is_refused_and_leaves_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refused call ended the driver of the first one, without a record."""
    log = MemoryLog("job")
    job = job_of(tmp_path, monkeypatch, log)
    job.start(NO_SPARK)
    with pytest.raises(UsageError, match="has been started before"):
        job._run_until_stopped(NO_SPARK)

    assert own_threads() != []
    job.stop(with_checkpoint=False)
    wait_for(lambda: own_threads() == [], "all threads have ended")
    assert last_of(log) == (True, "stopped by stop")


def test_a_start_whose_fold_refuses_a_record_raises_what_the_fold_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An assertion about the place of the driver's last record took the place of the cause."""
    apply = JobProjection.apply

    def refusing(self: JobProjection, state: JobState, record: Record) -> JobState:
        if record.kind is Kind.EPOCH_STARTED:
            raise RecordError(0, record.kind.value, "it cannot be applied")
        return apply(self, state, record)

    monkeypatch.setattr(JobProjection, "apply", refusing)
    with pytest.raises(RecordError, match="it cannot be applied"):
        driver_of(tmp_path, MemoryLog("job")).start()

    assert own_threads() == []


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_driver_that_has_ended_closes_although_nobody_waits_for_it(
    tmp_path: Path, how: str
) -> None:
    """Of several jobs of a program, those behind the one that is waited for kept tasks and slots, and answered."""
    driver = driver_of(tmp_path, MemoryLog("job"))
    driver.start()
    if how == "stopped":
        driver.stop(with_checkpoint=False)
    else:
        driver._mailbox.end(LogUnavailableError("job", "appending", 1.0, "the test"))

    wait_for(lambda: own_threads() == [], "all threads have ended")
    if how == "stopped":
        result = driver.wait()
        assert result is not None
        assert result.status is JobStatus.STOPPED
    else:
        with pytest.raises(LogUnavailableError):
            driver.wait()


def test_a_panic_on_the_mailbox_is_an_error_and_no_exit_status(
    tmp_path: Path,
) -> None:
    """As a `SystemExit` it passed for a stop by SIGTERM, and the process ended with status 0."""
    driver = driver_of(tmp_path, MemoryLog("job"))
    driver.start()

    def panic() -> None:
        raise SystemExit(0)

    driver._mailbox.post(panic)

    with pytest.raises(PanicError, match=r"coordlog-mailbox .* SystemExit: 0 .* run the job again"):
        driver.wait(WAIT_S)
    wait_for(lambda: own_threads() == [], "all threads have ended")


def test_a_close_that_does_not_end_is_waited_for_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As over a store that hangs: the caller goes on, the result is told, and one line says what is left."""
    driver = driver_of(tmp_path, MemoryLog("job"))
    goes_on, close, ended = threading.Event(), Mailbox.close, list[JobStatus | None]()

    def hangs(self: Mailbox) -> None:
        assert goes_on.wait(WAIT_S)
        close(self)

    def work() -> None:
        result = driver.wait()
        ended.append(None if result is None else result.status)

    monkeypatch.setattr(Mailbox, "close", hangs)
    monkeypatch.setattr(closing_module, "DRIVER_CLOSE_TIMEOUT_S", 0.2)
    driver.start()
    driver.stop(with_checkpoint=False)
    waiting = threading.Thread(target=work)
    waiting.start()
    try:
        waiting.join(5.0)
        assert ended == [JobStatus.STOPPED]
        assert "has not closed within 0.2 s" in caplog.text
    finally:
        goes_on.set()
        waiting.join(WAIT_S)
    wait_for(lambda: own_threads() == [], "all threads have ended")
