"""The history of a job that had all kinds of trouble, as a file: `python tests/recorded_history.py FILE` made it.

The real driver, with tasks that are threads: an attempt is killed, one is killed under a checkpoint,
Spark loses the stage, the driver is killed, and the next one goes on with another parallelism. It is
recorded once, so that what docs/history.md and the tests say of it stays true.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from coordlog.api.chain import Chain
from coordlog.log.copy import to_append
from coordlog.log.file import ExportedLog, write_exported
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import DriverOptions, JobDriver
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.transform import transform_spec
from coordlog.testing.in_memory import InMemorySurroundings

__all__ = ["JOB", "RECORDED", "recorded_history"]

JOB: Final = "flights"
RECORDED: Final = Path(__file__).parent / "golden" / "audited-history.avro"


def recorded_history() -> list[UnstoredRecord]:
    """Its records, to be put into a log."""
    log = ExportedLog(RECORDED)
    return [to_append(one) for one in log.read(0, log.high_watermark())]


class _KilledError(Exception):
    """The driver is killed."""


def _slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.02)
    return batch


def _drive(
    chain: Chain,
    log: MemoryLog,
    parallelism: int,
    on_record: Callable[[Record, InMemorySurroundings, JobDriver], None],
) -> None:
    surroundings = InMemorySurroundings(chain, JOB, parallelism)

    def released(records: Sequence[Record]) -> None:
        for one in records:
            on_record(one, surroundings, driver)

    driver = JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id=JOB,
            parallelism=parallelism,
            is_batch=False,
            runtime=RuntimeOptions(checkpoint_interval_s=0.15),
            restart_backoff_s=0.01,
        ),
        surroundings=surroundings,
        on_released=released,
    )
    driver.start()
    try:
        driver.wait(60.0)
    except _KilledError:
        print("the driver is killed")


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
    (one,) = log.read(offset, offset + 1)
    doubled = to_append(one)
    log.writer().append([doubled], timeout_s=1.0)


def _main(path: Path) -> None:
    folder = Path(tempfile.gettempdir(), JOB)
    folder.mkdir()
    try:
        (folder / "in").mkdir()
        for number in range(12):
            rows = "".join(f"{number},{row}\n" for row in range(40))
            (folder / "in" / f"{number:02}.csv").write_text(f"a,b\n{rows}")
        sink = ParquetSink(folder / "out")
        sink.prepare(JOB)
        source = FileSource(folder / "in", batch_rows=10)
        operators = [transform_spec(_slow), sink.spec()]
        log, trouble = MemoryLog(JOB), _Trouble()
        _drive(Chain(source=source.spec(), operators=operators), log, 2, trouble.first_epoch)
        last = log.high_watermark() - 1
        _late(log, last)
        _drive(Chain(source=source.spec(), operators=operators), log, 3, lambda *_: None)
        _late(log, last)
        print(write_exported(log, JOB, path), "records")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
