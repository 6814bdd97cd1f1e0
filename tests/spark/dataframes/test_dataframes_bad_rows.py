"""Bad rows of `format("coordlog")` on a real Spark session: each is published once, however often it is read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from coordlog.errors import SinkError
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit_records
from coordlog.projections.tables.reads import reads as reads_of
from coordlog.spark_integration import CsvOptions, FileSource, Watch
from coordlog.spark_integration.dataframes import CoordinatedReads, coordinated
from jobs.kafka_session import shared_session
from servers.s3_server import S3Server, s3_server, s3_store

__all__ = ["s3_server", "s3_store"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES, ROWS, BAD = 6, 40, 5
WAIT_S = 120.0


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        write_file(tmp_path / "in", number)
    return tmp_path


def write_file(folder: Path, number: int) -> None:
    """Whole at once, for a watch: every eighth line is bad."""
    lines = [
        f"bad {number}-{i},x\n" if i % 8 == 3 else f"{number * ROWS + i},x\n" for i in range(ROWS)
    ]
    hidden = folder / f".{number}"
    hidden.write_text("i,s\n" + "".join(lines), encoding="utf-8")
    hidden.rename(folder / f"f{number:03}.csv")


def good(files: int = FILES) -> Counter[int]:
    return Counter(number for number in range(files * ROWS) if number % ROWS % 8 != 3)


def source(folder: Path, **options: Any) -> FileSource:  # noqa: ANN401, of a source
    return FileSource(
        folder / "in", schema="i bigint, s string", bad_rows=folder / "rejects", **options
    )


def service(session: SparkSession, files: FileSource, log: MemoryLog) -> CoordinatedReads:
    return coordinated(session, "reads", files, log=log, partitions=3)


def ids(frame: DataFrame) -> Counter[int]:
    return Counter(row[0] for row in frame.select("i").collect())


def rejects(folder: Path) -> Counter[tuple[str, int, str]]:
    """File, line and text of the published rejects."""
    files = list((folder / "rejects").glob("*.parquet"))
    return Counter(
        (Path(row["file"]).name, row["line"], row["row"])
        for file in files
        for row in pq.read_table(file).to_pylist()
    )


def bad(files: int = FILES) -> Counter[tuple[str, int, str]]:
    return Counter(
        (f"f{number:03}.csv", i + 2, f"bad {number}-{i},x")
        for number in range(files)
        for i in range(ROWS)
        if i % 8 == 3
    )


def failing_once(mark: Path) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The first task fails once it has read its splits."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = list(batches)
        if not mark.exists():
            mark.touch()
            raise RuntimeError("scripted")
        yield from read

    return work


def test_bad_rows_are_published_once_however_often_they_are_read(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    log = MemoryLog("reads")
    with service(session, source(folder), log) as reads:
        assert len(reads.read().limit(1).collect()) == 1
        assert not rejects(folder) - bad(), "a part of the splits was read, perhaps none to the end"
        frame = reads.read().mapInArrow(failing_once(tmp_path / "failed"), "i long, s string")
        assert ids(frame) == good()
        assert rejects(folder) == bad()
        again = reads.read()
        assert (again.count(), again.count()) == (good().total(), good().total())
    with service(session, source(folder), log) as reads:
        assert ids(reads.read()) == good()

    assert rejects(folder) == bad()
    shown = session.read.parquet(str(folder / "rejects"))
    assert shown.columns == ["file", "line", "offset", "reason", "row"]
    assert shown.count() == FILES * BAD
    audited = reads_of(audit_records(log.read(0, log.high_watermark())))
    assert {split.rejected for read in audited[1:] for split in read.splits} == {BAD}
    assert sum(task.rejected for task in audited[-1].tasks) == FILES * BAD


def test_a_query_may_skip_bad_rows_or_fail_at_them(session: SparkSession, folder: Path) -> None:
    log = MemoryLog("reads")
    with service(session, source(folder), log) as reads:
        frame = session.read.format("coordlog").options(**reads.options())
        assert ids(frame.option("bad_rows", "skip").load()) == good()
        assert rejects(folder) == Counter()
        with pytest.raises(Exception, match="no int64"):
            frame.option("bad_rows", "fail").load().collect()
        assert ids(frame.option("bad_rows", str(folder / "rejects")).load()) == good()
        assert rejects(folder) == bad()
        with pytest.raises(Exception, match="bad_rows"):
            frame.option("bad_rows", "/elsewhere").load()
    with pytest.raises(SinkError, match="other rows are bad"):
        service(session, source(folder, csv=CsvOptions(null_values=("NA",))), log).start()


def test_a_stream_publishes_bad_rows_once_also_of_a_batch_that_runs_again(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """The query dies in its second batch; another one continues from its checkpoint."""
    log, rows, fail_at = MemoryLog("reads"), dict[int, Counter[int]](), [1]

    def take(frame: DataFrame, batch_id: int) -> None:
        rows[batch_id] = ids(frame)
        if batch_id in fail_at:
            raise RuntimeError("scripted")

    def run() -> None:
        files = source(folder, watch=Watch(watch_interval_s=0.2, idle_timeout_s=3))
        with coordinated(
            session, "reads", files, log=log, partitions=2, splits_per_batch=4
        ) as reads:
            query = (
                reads.read_stream()
                .writeStream.foreachBatch(take)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .start()
            )
            try:
                for _ in range(int(WAIT_S)):
                    if query.awaitTermination(1) or sum(rows.values(), Counter()) == good():
                        break
            finally:
                query.stop()

    with pytest.raises(Exception, match="scripted"):
        run()
    assert rejects(folder) == bad(), "the batch that has failed was read"
    fail_at.clear()
    run()

    assert sum(rows.values(), Counter()) == good()
    assert rejects(folder) == bad()


@pytest.mark.any_spark
@pytest.mark.timeout(300)
def test_bad_rows_are_published_once_in_s3(folder: Path, s3_store: S3Server) -> None:
    """In a process of its own: the tasks' workers have the server in their environment."""
    bucket = s3_store.new_bucket()
    program = Path(__file__).with_name("s3_rejects_program.py")
    ran = subprocess.run(
        [sys.executable, str(program), str(folder), f"s3://{bucket}/rejects"],
        env={**os.environ, **s3_store.environment, "COORDLOG_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]

    keys = [key for key in s3_store.keys(bucket, "rejects/") if key.endswith(".parquet")]
    published = Counter(
        (Path(row["file"]).name, row["line"], row["row"])
        for key in keys
        for row in pq.read_table(io.BytesIO(s3_store.get(bucket, key))).to_pylist()
    )
    assert published == bad()
