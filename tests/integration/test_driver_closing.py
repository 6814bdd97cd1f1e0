"""What a driver leaves behind: nothing, whenever it fails or is interrupted."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from coordlog.api.chain import Chain
from coordlog.log.memory import MemoryLog, _MemoryWriter
from coordlog.restore.rebuild import Restored
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.mailbox import Mailbox
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.testing.in_memory import InMemorySurroundings
from endpoint_parts import WAIT_S, own_threads, wait_for

pytestmark = pytest.mark.slow


def driver_of(folder: Path, log: MemoryLog, error: BaseException | None = None) -> JobDriver:
    """A driver of a job without an end; `error` is raised once it has taken over."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "0.csv").write_text("a\n1\n")
    sink = ParquetSink(folder / "out")
    sink.prepare("job")
    source = FileSource(folder / "in", watch=True, watch_interval_s=0.1)
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
