"""The log of a whole job with the real driver, in memory: attempts and a driver are killed, another one finishes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from coordlog.api.chain import Chain
from coordlog.log.interface import Log
from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.transform import transform_spec
from coordlog.testing.in_memory import InMemorySurroundings

__all__ = ["ALL_ROWS", "FILES", "ROWS", "SUBTASKS", "DrivenJob", "driven_log"]

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
            source=source.spec(), operators=[transform_spec(_slow), self.sink.spec()]
        )

    def drive(self, log: Log, **options: int | None) -> None:
        """One driver, to the job's end or its own."""
        self.sink.prepare(self.job_id)
        _drive(self.chain, log, self.job_id, is_batch=self.is_batch, **options)

    def rows(self) -> list[tuple[int, int]]:
        """What has come out, sorted."""
        table = pq.read_table(self.folder / "out")
        return sorted(
            zip(table.column("a").to_pylist(), table.column("b").to_pylist(), strict=True)
        )


ALL_ROWS = [(number, row) for number in range(FILES) for row in range(ROWS)]


def _drive(
    chain: Chain,
    log: Log,
    job_id: str,
    *,
    is_batch: bool,
    kill_attempt_at: int | None = None,
    kill_driver_at: int | None = None,
    snapshot_every: int | None = None,
) -> None:
    """One driver; places are counted in splits that it has seen finished."""
    surroundings = InMemorySurroundings(chain, job_id, SUBTASKS)
    finished = 0

    def released(records: Sequence[Record]) -> None:
        nonlocal finished
        for _ in [one for one in records if one.kind is Kind.SPLIT_FINISHED]:
            finished += 1
            if finished == kill_attempt_at:
                surroundings.kill(1)
            if finished == kill_driver_at:
                driver._mailbox.end(_KilledError())  # pyright: ignore[reportPrivateUsage]

    driver = JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id=job_id,
            parallelism=SUBTASKS,
            is_batch=is_batch,
            runtime=RuntimeOptions(
                checkpoint_interval_s=None if is_batch else 0.05, snapshot_every=snapshot_every
            ),
            restart_backoff_s=0.01,
        ),
        surroundings=surroundings,
        on_released=released,
    )
    driver.start()
    try:
        result = driver.wait(_WAIT_S)
    except _KilledError:
        return
    assert result is not None
    assert result.status is JobStatus.FINISHED


def _slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.005)  # so that a kill falls into the middle; nothing waits for it
    return batch
