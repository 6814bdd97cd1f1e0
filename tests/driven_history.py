"""The log of a whole job with the real driver, in memory: attempts and a driver are killed, another one finishes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from coordlog.chain import Chain
from coordlog.driver import DriverOptions, JobDriver, JobStatus
from coordlog.log.memory import MemoryLog
from coordlog.runtime import RuntimeOptions
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.files.sink import ParquetSink
from coordlog.spark_integration.files.source import FileSource
from coordlog.spark_integration.transform import transform_spec
from coordlog.testing.in_memory import InMemorySurroundings

__all__ = ["FILES", "ROWS", "SUBTASKS", "driven_log"]

FILES, ROWS, SUBTASKS = 24, 40, 3
_WAIT_S = 60.0


class _KilledError(Exception):
    """The driver is killed by the test."""


def driven_log(folder: Path, job_id: str, *, is_batch: bool) -> MemoryLog:
    """A log of two reigns: an attempt is killed in each, and the first driver; all rows get there."""
    (folder / "in").mkdir()
    for number in range(FILES):
        rows = "".join(f"{number},{row}\n" for row in range(ROWS))
        (folder / "in" / f"{number:03}.csv").write_text(f"a,b\n{rows}")
    sink = ParquetSink(folder / "out")
    source = FileSource(folder / "in", batch_rows=10)
    chain = Chain(source=source.spec(), operators=[transform_spec(_slow), sink.spec()])
    log = MemoryLog(job_id)
    for kill_attempt_at, kill_driver_at in ((6, 13), (3, None)):
        sink.prepare(job_id)
        _drive(chain, log, job_id, kill_attempt_at, kill_driver_at, is_batch=is_batch)
    return log


def _drive(
    chain: Chain,
    log: MemoryLog,
    job_id: str,
    kill_attempt_at: int,
    kill_driver_at: int | None,
    *,
    is_batch: bool,
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
            runtime=RuntimeOptions(checkpoint_interval_s=None if is_batch else 0.05),
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
