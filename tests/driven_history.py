"""Logs of whole jobs with the real driver, in memory: attempts and a driver are killed, another one finishes.

`recorded_history` is such a log as a file, which `python tests/driven_history.py FILE` made: a job that had all kinds
of trouble. It is recorded once, so that the claims of docs/history.md and of the tests about it stay true.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from coordlog.api.chain import Chain
from coordlog.export import write_exported
from coordlog.log.copy import to_append
from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log, UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.ports import Observer
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.transform import transform_spec
from coordlog.testing.in_memory import InMemorySurroundings

__all__ = [
    "ALL_ROWS",
    "FILES",
    "RECORDED_JOB",
    "ROWS",
    "SUBTASKS",
    "DrivenJob",
    "driven_log",
    "recorded_history",
]

RECORDED_JOB: Final = "flights"
_RECORDED: Final = Path(__file__).parent / "golden" / "audited-history.avro"
FILES, ROWS, SUBTASKS = 24, 40, 3
_WAIT_S = 60.0


class _KilledError(Exception):
    """The driver is killed by the test."""


def driven_log(folder: Path, job_id: str, *, is_batch: bool) -> MemoryLog:
    """A log of two epochs: an attempt is killed in each, and the first driver; all rows get there."""
    log, driven = MemoryLog(job_id), DrivenJob(folder, job_id, is_batch=is_batch)
    driven.drive(log, kill_attempt_at=6, kill_driver_at=13)
    driven.drive(log, kill_attempt_at=3)
    return log


class DrivenJob:
    """Files into files, with the real driver and tasks that are threads."""

    def __init__(self, folder: Path, job_id: str, *, is_batch: bool) -> None:
        (folder / "in").mkdir()
        for number in range(FILES):
            rows = "".join(f"{number},{row}\n" for row in range(ROWS))
            (folder / "in" / f"{number:03}.csv").write_text(f"a,b\n{rows}")
        self.folder, self.job_id, self.is_batch = folder, job_id, is_batch
        self.sink = ParquetSink(folder / "out")
        source = FileSource(folder / "in", batch_rows=10)
        self.chain = Chain(
            source=source.spec(),
            operators=[transform_spec(partial(_slow, 0.005)), self.sink.spec()],
        )

    def drive(self, log: Log, *, observer: Observer | None = None, **options: int | None) -> None:
        """One driver, to the job's end or its own."""
        self.sink.prepare(self.job_id)
        _drive(self.chain, log, self.job_id, is_batch=self.is_batch, observer=observer, **options)

    def rows(self) -> list[tuple[int, int]]:
        """What has come out, sorted."""
        table = pq.read_table(self.folder / "out")
        return sorted(
            zip(table.column("a").to_pylist(), table.column("b").to_pylist(), strict=True)
        )


ALL_ROWS = [(number, row) for number in range(FILES) for row in range(ROWS)]


OnRecord = Callable[[Record, InMemorySurroundings, JobDriver], None]
"""Called with each record that its driver has released."""


def _drive(
    chain: Chain,
    log: Log,
    job_id: str,
    *,
    is_batch: bool,
    kill_attempt_at: int | None = None,
    kill_driver_at: int | None = None,
    snapshot_every: int | None = None,
    observer: Observer | None = None,
) -> None:
    """One driver; places are counted in splits that it has seen finished."""
    finished = 0

    def on_record(record: Record, surroundings: InMemorySurroundings, driver: JobDriver) -> None:
        nonlocal finished
        if record.kind is Kind.SPLIT_FINISHED:
            finished += 1
            if finished == kill_attempt_at:
                surroundings.kill(1)
            if finished == kill_driver_at:
                driver._mailbox.end(_KilledError())  # pyright: ignore[reportPrivateUsage]

    runtime = RuntimeOptions(
        checkpoint_interval_s=None if is_batch else 0.05, snapshot_every=snapshot_every
    )
    _run(chain, log, job_id, SUBTASKS, runtime, on_record, is_batch=is_batch, observer=observer)


def _run(
    chain: Chain,
    log: Log,
    job_id: str,
    parallelism: int,
    runtime: RuntimeOptions,
    on_record: OnRecord,
    *,
    is_batch: bool,
    observer: Observer | None = None,
) -> None:
    """One driver, to the end of the job or its own."""
    surroundings = InMemorySurroundings(chain, job_id, parallelism)

    def released(records: Sequence[Record]) -> None:
        for record in records:
            on_record(record, surroundings, driver)

    driver = JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id=job_id,
            parallelism=parallelism,
            is_batch=is_batch,
            runtime=runtime,
            restart_backoff_s=0.01,
        ),
        surroundings=surroundings,
        on_released=released,
        observer=observer,
    )
    driver.start()
    try:
        result = driver.wait(_WAIT_S)
    except _KilledError:
        return
    assert result is not None
    assert result.status is JobStatus.FINISHED


def _slow(seconds: float, batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(seconds)  # so that a kill falls into the middle; nothing waits for it
    return batch


def recorded_history() -> list[UnstoredRecord]:
    """The records of the recorded history, to be put into a log."""
    log = ExportedLog(_RECORDED)
    return [to_append(stored) for stored in log.read(0, log.high_watermark())]


class _Trouble:
    """What happens when, counted in splits that are finished and checkpoints that are triggered."""

    def __init__(self) -> None:
        self._finished = self._completed = self._stage_run = 0

    def first_epoch(
        self, record: Record, surroundings: InMemorySurroundings, driver: JobDriver
    ) -> None:
        mailbox = driver._mailbox  # pyright: ignore[reportPrivateUsage]
        if record.kind is Kind.ATTEMPT_STARTED:
            self._stage_run = int(record.attributes["stage_run"])
        elif record.kind is Kind.SPLIT_FINISHED:
            self._finished += 1
            if self._finished == 2:
                surroundings.kill(1)
            elif self._finished == 5:
                surroundings.cancel(self._stage_run, "lost")
                mailbox.stage_ended(self._stage_run, "ExecutorLostFailure: executor 3 exited")
        elif record.kind is Kind.COMMIT_INTENT and self._finished > 5:
            mailbox.end(_KilledError())
        elif record.kind is Kind.CHECKPOINT_COMPLETED:
            self._completed += 1
        elif record.kind is Kind.CHECKPOINT_TRIGGERED and self._completed == 1:
            self._completed += 1
            surroundings.kill(0)


def _late(log: MemoryLog, offset: int) -> None:
    """What its driver had sent before it died comes once more."""
    (stored,) = log.read(offset, offset + 1)
    doubled = to_append(stored)
    log.writer().append([doubled], timeout_s=1.0)


def _main(path: Path) -> None:
    folder = Path(tempfile.gettempdir(), RECORDED_JOB)
    folder.mkdir()
    try:
        (folder / "in").mkdir()
        for number in range(12):
            rows = "".join(f"{number},{row}\n" for row in range(40))
            (folder / "in" / f"{number:02}.csv").write_text(f"a,b\n{rows}")
        sink = ParquetSink(folder / "out")
        sink.prepare(RECORDED_JOB)
        source = FileSource(folder / "in", batch_rows=10)
        operators = [transform_spec(partial(_slow, 0.02)), sink.spec()]
        chain, log = Chain(source=source.spec(), operators=operators), MemoryLog(RECORDED_JOB)
        runtime = RuntimeOptions(checkpoint_interval_s=0.15)
        _run(chain, log, RECORDED_JOB, 2, runtime, _Trouble().first_epoch, is_batch=False)
        last = log.high_watermark() - 1
        _late(log, last)
        _run(chain, log, RECORDED_JOB, 3, runtime, lambda *_: None, is_batch=False)
        _late(log, last)
        print(write_exported(log, RECORDED_JOB, path), "records")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
