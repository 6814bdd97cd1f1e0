"""`Job` into tables on a real Spark session: each checkpoint is one commit, and no row is lost or doubled by a kill."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import DeltaSink, FileSource, IcebergSink, Job
from coordlog.spark_integration.files.tables.sink import TableSink
from coordlog.spark_integration.job_options import Callbacks
from coordlog.spark_integration.transform import TransformFunction
from jobs.kafka_session import shared_session
from jobs.left_threads import left_threads

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES, ROWS, SUBTASKS = 20, 40, 3
ALL_ROWS = list(range(FILES * ROWS))
WAIT_S = 120.0


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        rows = range(number * ROWS, (number + 1) * ROWS)
        text = "a,b\n" + "".join(f"{row},x{row}\n" for row in rows)
        (tmp_path / "in" / f"{number:03}.csv").write_text(text)
    yield tmp_path
    assert left_threads() == []


class Iceberg:
    """A table in a catalog in SQLite."""

    def __init__(self, folder: Path) -> None:
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }

    def sink(self) -> TableSink:
        return IcebergSink("ns.flights", catalog="local", properties=self.properties)

    def rows(self) -> list[int]:
        table = load_catalog("local", **self.properties).load_table("ns.flights")
        by_duckdb = table.scan().to_duckdb("flights").execute("SELECT a FROM flights").fetchall()
        rows = table.scan().to_arrow()["a"].to_pylist()
        assert sorted(a for (a,) in by_duckdb) == sorted(rows)
        return sorted(rows)

    def checkpoints(self) -> list[str]:
        """The checkpoint of each commit of rows, oldest first."""
        table = load_catalog("local", **self.properties).load_table("ns.flights")
        return [
            str(one.summary["coordlog.checkpoint"])
            for one in table.snapshots()
            if one.summary is not None
        ]


class Delta:
    """A table in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "flights"

    def sink(self) -> TableSink:
        return DeltaSink(self.path)

    def rows(self) -> list[int]:
        by_duckdb = duckdb.execute(
            f"SELECT a FROM read_parquet({DeltaTable(self.path).file_uris()})"
        )
        rows = DeltaTable(self.path).to_pyarrow_table()["a"].to_pylist()
        assert sorted(a for (a,) in by_duckdb.fetchall()) == sorted(rows)
        return sorted(rows)

    def checkpoints(self) -> list[str]:
        """The checkpoint of each commit of rows, oldest first."""
        commits = reversed(DeltaTable(self.path).history())
        return [one["coordlog.checkpoint"] for one in commits if "coordlog.checkpoint" in one]


Kinds = type[Iceberg] | type[Delta]


def waits_for(go_on: Path) -> TransformFunction:
    """Its second half waits for `go_on`, so that the job cannot end before."""

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("a")[0].as_py() >= FILES * ROWS // 2:
            deadline = time.monotonic() + WAIT_S
            while not go_on.exists():
                assert time.monotonic() < deadline, "nobody says to go on"
                time.sleep(0.02)
        time.sleep(0.02)  # so that a kill falls in the middle; nothing waits for it
        return batch

    return work


@pytest.mark.kill
@pytest.mark.parametrize("batch", [False, True], ids=["streaming", "batch"])
@pytest.mark.parametrize("kind", [Iceberg, Delta])
def test_a_job_commits_each_checkpoint_once_though_a_worker_is_killed(
    session: SparkSession, folder: Path, kind: Kinds, *, batch: bool
) -> None:
    table, go_on = kind(folder), folder / "go on"
    pids: dict[int, int] = {}
    settled: list[Record] = []

    def kill_once(records: Sequence[Record]) -> None:
        for record in records:
            if record.kind is Kind.ATTEMPT_STARTED and record.subtask is not None:
                pids[record.subtask] = int(record.attributes["pid"])
            if record.kind is Kind.COMMIT_OUTCOME:
                settled.append(record)
        is_due = batch or settled
        if is_due and len(pids) == SUBTASKS and not go_on.exists():
            os.kill(pids[1], signal.SIGKILL)
            go_on.touch()  # no subtask could finish before

    job = _job(table.sink(), folder, waits_for(go_on), kill_once, batch=batch)
    assert job.run(session).status is JobStatus.FINISHED

    assert table.rows() == ALL_ROWS
    assert table.checkpoints() == [str(record.checkpoint_id) for record in settled]
    assert len(settled) == 1 if batch else len(settled) > 1
    again = _job(table.sink(), folder, waits_for(go_on), kill_once, batch=batch, log=job.log)
    assert again.run(session).status is JobStatus.ALREADY_FINISHED
    assert table.rows() == ALL_ROWS


def _job(
    sink: TableSink,
    folder: Path,
    transform: TransformFunction,
    on_released: Callable[[Sequence[Record]], None],
    *,
    batch: bool,
    log: object = None,
) -> Job:
    return Job(
        job_id="job",
        log=log if isinstance(log, MemoryLog) else MemoryLog("job"),
        source=FileSource(folder / "in", batch_rows=10),
        transform=transform,
        sink=sink,
        parallelism=SUBTASKS,
        checkpoint_interval_s=0.2,
        batch=batch,
        callbacks=Callbacks(on_released=on_released),
    )
