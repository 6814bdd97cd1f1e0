"""A job on Spark that keeps a checkpoint, and goes back to it elsewhere with other subtasks (clauses E6, E7)."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from coordlog.errors import RestoreError
from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.builtin_types import SavepointRecorded, TakeSavepoint
from coordlog.spark_integration import FileSource, Job, ParquetSink
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.spark_integration.job_options import Start
from jobs.kafka_session import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES, ROWS = 3, 40
WAIT_S = 120.0


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


def add_files(folder: Path, first: int) -> list[int]:
    """Some more files; their rows."""
    for number in range(first, first + FILES):
        rows = range(number * ROWS, (number + 1) * ROWS)
        text = "a\n" + "".join(f"{row}\n" for row in rows)
        staged = folder / f".{number}"
        staged.write_text(text, encoding="utf-8")
        staged.rename(folder / "in" / f"{number}.csv")
    return list(range(first * ROWS, (first + FILES) * ROWS))


def job_on(
    folder: Path,
    log: MemoryLog,
    out: str,
    *,
    parallelism: int = 2,
    from_checkpoint: int | None = None,
) -> Job:
    return Job(
        job_id="job",
        log=log,
        source=FileSource(folder / "in", watch=Watch(watch_interval_s=0.2)),
        sink=ParquetSink(folder / out),
        parallelism=parallelism,
        checkpoint_interval_s=0.2,
        start=Start(from_checkpoint=from_checkpoint),
    )


def wait_for_rows(folder: Path, out: str, rows: list[int]) -> None:
    """Until exactly these are visible."""
    end = time.monotonic() + WAIT_S
    found: list[int] = []
    while time.monotonic() < end:
        there = sorted((folder / out).glob("*.parquet"))
        found = sorted(row for one in there for row in pq.read_table(one).column("a").to_pylist())
        if len(found) >= len(rows):
            break
        time.sleep(0.1)
    assert found == rows


def stopped(job: Job) -> None:
    job.stop()
    result = job.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.STOPPED


@pytest.mark.tier("test")
@pytest.mark.clause("E6")
@pytest.mark.clause("E7")
def test_a_job_goes_back_to_a_savepoint_elsewhere_with_other_subtasks(
    session: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    log, early = MemoryLog("job"), add_files(tmp_path, 0)
    job = job_on(tmp_path, log, "out")
    job.start(session)
    wait_for_rows(tmp_path, "out", early)
    kept = job.request("", TakeSavepoint(name="early")).response
    assert isinstance(kept, SavepointRecorded)
    late = add_files(tmp_path, FILES)
    wait_for_rows(tmp_path, "out", [*early, *late])
    stopped(job)

    before = log.high_watermark()
    with pytest.raises(RestoreError, match="its rows would be committed again"):
        job_on(tmp_path, log, "out", from_checkpoint=kept.checkpoint).start(session)
    assert log.high_watermark() == before
    for parallelism, out in ((3, "elsewhere"), (1, "once-more")):
        job = job_on(tmp_path, log, out, parallelism=parallelism, from_checkpoint=kept.checkpoint)
        job.start(session)
        wait_for_rows(tmp_path, out, late)
        stopped(job)
    wait_for_rows(tmp_path, "out", [*early, *late])
