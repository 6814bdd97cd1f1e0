"""A stage that Spark runs again: its numbers begin anew, ours go on.

A job's own stage has no shuffle before or behind it, so that Spark has no reason to run it again. One
before a shuffle and in barrier mode it does, as a whole, while attempts of the first run still live.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import FileSource, Job, ParquetSink
from coordlog.spark_integration.driver import stage
from coordlog.spark_integration.job_options import Callbacks
from coordlog.spark_integration.task.task import TaskWork, spark_function

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.kill]

FILES, ROWS, SUBTASKS = 60, 40, 3
WAIT_S = 120.0


def slowly_once_there_is(marker: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Attempts of the first run go on for seconds, and must not come to their end."""

    def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
        deadline = time.monotonic() + WAIT_S
        while not marker.exists():
            assert time.monotonic() < deadline, "not all attempts have started"
            time.sleep(0.02)
        time.sleep(0.05)
        return batch

    return slowly


def run_before_a_shuffle(spark: SparkSession, work: TaskWork, count: int) -> None:
    rows = spark.range(0, count, 1, count)
    tasks = rows.mapInArrow(spark_function(work), "subtask long", barrier=True)
    tasks.repartition(1).collect()


@pytest.mark.clause("B4")
@pytest.mark.clause("B7")
def test_attempt_numbers_rise_when_sparks_begin_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_run_tasks", run_before_a_shuffle)
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        rows = range(number * ROWS, (number + 1) * ROWS)
        text = "a\n" + "".join(f"{row}\n" for row in rows)
        (tmp_path / "in" / f"{number:03}.csv").write_text(text, encoding="utf-8")
    marker = tmp_path / "all attempts have started"
    started: list[Record] = []
    finished: list[Record] = []

    def look(records: Sequence[Record]) -> None:
        started.extend(one for one in records if one.kind is Kind.ATTEMPT_STARTED)
        if len(started) == SUBTASKS:
            marker.touch()
        before = len(finished)
        finished.extend(one for one in records if one.kind is Kind.SPLIT_FINISHED)
        if before < 4 <= len(finished):
            victim = next(one for one in started if one.subtask == 1)
            os.kill(int(victim.attributes["pid"]), signal.SIGKILL)

    result = Job(
        job_id="job",
        log=MemoryLog("job"),
        source=FileSource(tmp_path / "in", batch_rows=10),
        transform=slowly_once_there_is(marker),
        sink=ParquetSink(tmp_path / "out"),
        parallelism=SUBTASKS,
        checkpoint_interval_s=0.2,
        callbacks=Callbacks(on_released=look),
    ).run(spark)

    assert result.status is JobStatus.FINISHED
    read = pq.read_table(tmp_path / "out").column("a").to_pylist()
    assert sorted(read) == list(range(FILES * ROWS))
    for subtask in range(SUBTASKS):
        of_it = [one for one in started if one.subtask == subtask]
        assert len(of_it) >= 2
        assert [one.attempt_number for one in of_it] == list(range(len(of_it)))
        assert {one.attributes["spark_attempt_number"] for one in of_it} == {"0"}
        assert {one.attributes["stage_run"] for one in of_it} == {"1"}
    tasks = [int(one.attributes["spark_task_attempt_id"]) for one in started]
    assert min(tasks[SUBTASKS:]) > max(tasks[:SUBTASKS])
