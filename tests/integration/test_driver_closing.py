"""What a driver leaves behind: nothing, whenever it fails or is interrupted."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from coordlog.api.chain import Chain
from coordlog.log.memory import MemoryLog, _MemoryWriter
from coordlog.restore.rebuild import Restored
from coordlog.runtime import driver as driver_module
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.mailbox import Mailbox, PanicError
from coordlog.spark_integration import Job
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.testing.in_memory import InMemorySurroundings
from endpoint_parts import WAIT_S, own_threads, wait_for

pytestmark = pytest.mark.slow


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


def main_thread_waits() -> bool:
    """Whether it waits in `_close`: a signal just before such a wait is handled behind it only."""
    main_id = threading.main_thread().ident
    assert main_id is not None
    frame: FrameType | None = sys._current_frames()[main_id]
    names = list[str]()
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[:3] == ["wait", "wait", "_close"]  # a condition's, an event's, and the driver's


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

    log = MemoryLog("job")
    driver = driver_of(tmp_path, log)
    source, sink = FileSource(tmp_path / "in"), ParquetSink(tmp_path / "out")
    job = Job(job_id="job", log=log, source=source, sink=sink)
    job._driver = driver
    for name in ("wait", "stop", "end_at_once"):
        monkeypatch.setattr(JobDriver, name, interrupted)
    driver.start()
    with pytest.raises(KeyboardInterrupt):
        job._run_until_stopped()

    assert own_threads() == []


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
    monkeypatch.setattr(driver_module, "DRIVER_CLOSE_TIMEOUT_S", 0.2, raising=False)
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
