"""`format("coordlog")` on a real Spark session: what queries see, and which splits their tasks read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from coordlog.errors import OptionError, SourceError
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit_records
from coordlog.schemas.record import Kind
from coordlog.spark_integration import FileSource
from coordlog.spark_integration.dataframes import CoordinatedReads, coordinated
from coordlog.spark_integration.dataframes.registry import _registered, register_format
from coordlog.spark_integration.files.source.watch import Watch
from fakes.driver_files import token_of
from jobs.kafka_session import shared_session
from jobs.left_threads import left_threads

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES = 12
ROWS = 50
WAIT_S = 120.0
_OWN_JVM = "COORDLOG_TEST_IN_A_JVM_OF_ITS_OWN"


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


def in_a_jvm_of_its_own(test: str, local: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, f"{__file__}::{test}"],
        env={**os.environ, _OWN_JVM: "1", "SPARK_LOCAL_DIRS": str(local)},
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]


def write_file(folder: Path, number: int) -> None:
    """Whole at once, for a watch."""
    rows = "".join(f"{number * ROWS + i},file {number}\n" for i in range(ROWS))
    hidden = folder / f".{number}"
    hidden.write_text(f"i,s\n{rows}", encoding="utf-8")
    hidden.rename(folder / f"f{number:03}.csv")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    for number in range(FILES):
        write_file(made, number)
    return made


def service(
    session: SparkSession,
    source: FileSource,
    log: MemoryLog,
    *,
    splits_per_batch: int | None = None,
) -> CoordinatedReads:
    return coordinated(
        session,
        "reads",
        source,
        log=log,
        partitions=3,
        splits_per_batch=splits_per_batch,
        snapshot_every=40,
    )


def payloads(log: MemoryLog, name: str, kind: Kind) -> list[dict[str, object]]:
    """What a type's records say."""
    found = audit_records(log.read(0, log.high_watermark()))
    return [
        dict(one.fields)
        for one in found
        if one.record is not None
        and one.record.kind is kind
        and (one.record.payload_type or "").startswith(f"coordlog.{name}@")
        and one.fields is not None
    ]


def splits_of_partitions(log: MemoryLog) -> dict[tuple[str, int], list[str]]:
    """By read and partition, as the log has given them: the longest list of each."""
    given: dict[tuple[str, int], list[str]] = {}
    for one in payloads(log, "splits_given", Kind.RESPONSE):
        position, splits = one["position"], one["splits"]
        assert isinstance(position, int)
        assert isinstance(splits, list)
        assert isinstance(one["partition"], int)
        had = given.setdefault((str(one["read_id"]), one["partition"]), [])
        names = [Path(str(split["split_id"])).stem for split in splits]
        assert had[position : position + len(names)] in (names, names[: len(had) - position])
        had[position:] = [*names, *had[position + len(names) :]]
    return given


def attempts_of_partitions(log: MemoryLog) -> dict[int, set[int]]:
    """By partition, Spark's task attempts that asked for its splits."""
    found: dict[int, set[int]] = {}
    for one in payloads(log, "next_splits", Kind.REQUEST):
        partition, attempt = one["partition"], one["task_attempt_id"]
        assert isinstance(partition, int)
        assert isinstance(attempt, int)
        found.setdefault(partition, set()).add(attempt)
    return found


def ids(frame: DataFrame) -> Counter[int]:
    return Counter(row[0] for row in frame.select("i").collect())


def each_once(files: int = FILES) -> Counter[int]:
    return Counter(range(files * ROWS))


# --- batch ----------------------------------------------------------------------------------------
@pytest.mark.tier("test")
def test_a_batch_query_reads_every_row_once_and_the_log_says_by_whom(
    session: SparkSession, folder: Path
) -> None:
    log = MemoryLog("reads")
    with service(session, FileSource(folder), log) as reads:
        frame = session.read.format("coordlog").options(**reads.options()).load()
        assert frame.schema.simpleString() == "struct<i:bigint,s:string>"
        assert ids(frame) == each_once()
        frame.createOrReplaceTempView("files")
        (row,) = session.sql("SELECT count(DISTINCT s), max(i) FROM files").collect()
        assert tuple(row) == (FILES, FILES * ROWS - 1)
        assert ids(reads.read().where("i < 60")) == Counter(range(60))

    given = splits_of_partitions(log)
    by_read: dict[str, Counter[str]] = {}
    for (read_id, _), names in given.items():
        by_read.setdefault(read_id, Counter()).update(names)
    assert len(by_read) == 2, "a DataFrame is one read, however often it is used"
    everything = Counter(f"f{number:03}" for number in range(FILES))
    assert all(one == everything for one in by_read.values())
    finished = [
        split["rows"]
        for one in payloads(log, "next_splits", Kind.REQUEST)
        for split in one["finished"]  # type: ignore[attr-defined]
    ]
    assert set(finished) == {ROWS}
    assert left_threads() == []


def test_a_thread_that_did_not_make_the_session_reads_by_the_format(
    session: SparkSession, folder: Path
) -> None:
    """Spark looks for a format in the active session of a thread, which this one has not."""
    with (
        service(session, FileSource(folder, format="csv"), MemoryLog()) as reads,
        ThreadPoolExecutor(1) as pool,
    ):
        assert pool.submit(lambda: reads.read().count()).result(WAIT_S) == FILES * ROWS


def test_nothing_that_spark_shows_has_the_token(session: SparkSession, folder: Path) -> None:
    with service(session, FileSource(folder), MemoryLog("reads")) as reads:
        frame = reads.read()
        plan = str(cast("Any", frame)._jdf.queryExecution().toString())
        token = token_of("reads")
        shown = [plan, repr(reads.options()), str(session.sparkContext.getConf().getAll())]
        shown += [f"{name}={value}" for name, value in session.conf.getAll.items()]
        assert "PythonScan" in plan or "coordlog" in plan
        assert not [one for one in shown if token.text() in one]


def failing_once(mark: Path) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The first task that has rows fails behind the first of them: which one that is nobody can say."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not mark.exists():
                mark.touch()
                raise RuntimeError("scripted")

    return work


def test_a_failed_task_reads_its_splits_again_without_loss_or_doubles(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    log = MemoryLog("reads")
    with service(session, FileSource(folder), log) as reads:
        frame = reads.read().mapInArrow(failing_once(tmp_path / "failed"), "i long, s string")
        assert ids(frame) == each_once()

    attempts = [len(one) for one in attempts_of_partitions(log).values()]
    assert max(attempts) == 2, "a task has failed, and another one has asked again"
    names = [name for one in splits_of_partitions(log).values() for name in one]
    assert len(names) == len(set(names)) == FILES


def losing_shuffle_files(
    folder: Path, mark: Path
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The first task that has read its shuffle input removes all that the map tasks have written."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = list(batches)
        if not mark.exists():
            mark.touch()
            for file in folder.rglob("shuffle_*.data"):
                file.unlink(missing_ok=True)
        yield from read

    return work


def test_completed_tasks_that_run_again_read_exactly_what_they_had(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """Reduce tasks that have ended keep rows of the first run: other splits would double and lose rows."""
    if _OWN_JVM not in os.environ:
        # What has lost its shuffle files in local mode counts as gone, and ends the JVM ten minutes later.
        in_a_jvm_of_its_own(
            "test_completed_tasks_that_run_again_read_exactly_what_they_had", tmp_path / "spark"
        )
        return
    log = MemoryLog("reads")
    adaptive = session.conf.get("spark.sql.adaptive.enabled")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        with service(session, FileSource(folder), log) as reads:
            lose = losing_shuffle_files(Path(os.environ["SPARK_LOCAL_DIRS"]), tmp_path / "lost")
            frame = reads.read().repartition(16, "i").mapInArrow(lose, "i long, s string")
            assert ids(frame) == each_once()
    finally:
        session.conf.set("spark.sql.adaptive.enabled", adaptive or "true")

    assert all(len(one) == 2 for one in attempts_of_partitions(log).values()), "all ran twice"
    names = [name for one in splits_of_partitions(log).values() for name in one]
    assert len(names) == len(set(names)) == FILES


# --- streams --------------------------------------------------------------------------------------
@contextmanager
def stream(
    reads: CoordinatedReads,
    checkpoint: Path,
    handle: Callable[[DataFrame, int], None],
    *,
    all_that_is_there: bool = False,
) -> Iterator[StreamingQuery]:
    writer = (
        reads.read_stream()
        .writeStream.foreachBatch(handle)
        .option("checkpointLocation", str(checkpoint))
    )
    writer = (
        writer.trigger(availableNow=True)
        if all_that_is_there
        else writer.trigger(processingTime="50 milliseconds")
    )
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()


class Batches:
    """What a stream's batches held, by batch id: each time that it was handed over."""

    def __init__(self, fail_at: int = -1) -> None:
        self.rows: dict[int, list[Counter[int]]] = {}
        self.fail_at = fail_at

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        held = ids(frame)
        self.rows.setdefault(batch_id, []).append(held)
        if batch_id == self.fail_at:
            raise RuntimeError("scripted")

    def total(self) -> Counter[int]:
        """Of the last time of each."""
        return sum((one[-1] for one in self.rows.values()), Counter())


def watched(folder: Path) -> FileSource:
    return FileSource(folder, watch=Watch(watch_interval_s=0.05))


def wait_until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "it takes too long"
        error = query.exception()
        assert error is None, error
        time.sleep(0.05)


def test_a_stream_reads_new_files_and_a_restarted_query_its_batch_again(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """The query dies in its second batch; more comes; service and query are made anew, and again."""
    log, checkpoint = MemoryLog("reads"), tmp_path / "checkpoint"
    batches = Batches(fail_at=1)
    with (
        service(session, watched(folder), log, splits_per_batch=8) as reads,
        stream(reads, checkpoint, batches) as query,
        pytest.raises(Exception, match="scripted"),
    ):
        assert query.awaitTermination(int(WAIT_S))
    assert [len(one) for one in batches.rows.values()] == [1, 1]
    write_file(folder, FILES)
    batches.fail_at = -1

    with (
        service(session, watched(folder), log, splits_per_batch=8) as reads,
        stream(reads, checkpoint, batches) as query,
    ):
        wait_until(lambda: len(batches.total()) == (FILES + 1) * ROWS, query)
        write_file(folder, FILES + 1)
        wait_until(lambda: len(batches.total()) == (FILES + 2) * ROWS, query)
        committed = checkpoint / "commits" / str(max(batches.rows))
        wait_until(committed.exists, query)
    write_file(folder, FILES + 2)
    with (
        service(session, watched(folder), log, splits_per_batch=8) as reads,
        stream(reads, checkpoint, batches) as query,
    ):
        wait_until(lambda: len(batches.total()) == (FILES + 3) * ROWS, query)

    assert batches.total() == each_once(FILES + 3)
    first, second = batches.rows[1]
    assert first == second, "the same rows, planned again from the log"
    assert sum(batches.rows[0][0].values()) == 8 * ROWS
    assert len(payloads(log, "reads_opened", Kind.FACT)) == 3
    assert payloads(log, "commit_read", Kind.REQUEST)
    offsets = [
        json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])
        for number in (0, 1)
    ]
    assert [one["splits"] for one in offsets] == [8, 12]
    assert set(offsets[0]) == {"job", "history", "sequence", "splits", "reader"}


def test_all_that_is_there_is_read_and_then_nothing(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    log, batches = MemoryLog("reads"), Batches()
    with service(session, FileSource(folder), log) as reads:
        for _ in range(2):
            with stream(reads, tmp_path / "checkpoint", batches, all_that_is_there=True) as query:
                assert query.awaitTermination(int(WAIT_S))

    assert batches.total() == each_once()


# --- failures -------------------------------------------------------------------------------------
def test_a_file_that_cannot_be_read_ends_the_query_at_the_first_try(
    session: SparkSession, folder: Path
) -> None:
    """On a session that tries each task a thousand times."""
    log = MemoryLog("reads")
    with service(session, FileSource(folder, batch_rows=10), log) as reads:
        (folder / "f003.csv").write_text("i,s\n1x9,changed\n", encoding="utf-8")
        frame = reads.read()
        with pytest.raises(
            Exception, match=r"cancelled because SourceError: .*f003\.csv: it has changed"
        ):
            frame.collect()

    assert len(payloads(log, "read_failed", Kind.REQUEST)) == 1
    (ended,) = payloads(log, "query_ended", Kind.FACT)
    assert "f003.csv" in str(ended["reason"])


# --- the end of a service -------------------------------------------------------------------------
@contextmanager
def failed_tasks(session: SparkSession, group: str) -> Iterator[list[int]]:
    """The number of failed tasks of the jobs in the block, once it has ended."""
    failed: list[int] = []
    session.sparkContext.setJobGroup(group, group)
    yield failed
    tracker = session.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [
        tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds
    ]
    failed.append(sum(stage.numFailedTasks for stage in stages if stage is not None))
    session.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_a_plan_made_before_its_service_ended_fails_once_with_what_to_do(
    session: SparkSession, folder: Path
) -> None:
    """On a session that tries each task a thousand times."""
    with service(session, FileSource(folder), MemoryLog("reads")) as reads:
        planned = reads.read()
        assert len(planned.collect()) == FILES * ROWS

    with failed_tasks(session, "after") as failed:
        with pytest.raises(Exception, match=r"service of job reads has ended: start it again"):
            planned.collect()
        with pytest.raises(Exception, match=r"service of job reads has ended: start it again"):
            planned.count()
    assert failed == [0]

    with service(session, FileSource(folder), MemoryLog("reads")) as reads:
        assert ids(reads.read()) == each_once()


def test_a_query_running_at_its_services_end_is_cancelled_with_advice(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    going, errors = tmp_path / "going", list[BaseException]()

    def slow(rows: Iterable[Any]) -> Iterable[Any]:
        for row in rows:
            going.touch()
            time.sleep(0.5)
            yield row

    with service(session, FileSource(folder), MemoryLog("reads")) as reads:
        frame = reads.read()

        def run() -> None:
            try:
                frame.rdd.mapPartitions(slow).count()
            except Exception as error:  # noqa: BLE001, checked below
                errors.append(error)

        query = threading.Thread(target=run)
        query.start()
        until = time.monotonic() + WAIT_S
        while not going.exists() and time.monotonic() < until:
            time.sleep(0.05)
    query.join(WAIT_S)

    assert "service of job reads has ended: start it again" in "".join(map(str, errors))


def test_a_new_session_of_a_session_with_services_has_its_own(
    session: SparkSession, folder: Path
) -> None:
    with service(session, FileSource(folder), MemoryLog("reads")) as reads:
        other = session.newSession()
        with service(other, FileSource(folder), MemoryLog("reads")) as others:
            assert ids(others.read()) == each_once()
        assert ids(reads.read()) == each_once()
    with service(other, FileSource(folder), MemoryLog("reads")) as others:
        assert ids(others.read()) == each_once()


def test_registrations_beside_one_service_share_a_seal(session: SparkSession, folder: Path) -> None:
    with service(session, FileSource(folder), MemoryLog("reads")) as reads:
        for _ in range(3):
            register_format(session, {})  # as each write does
        assert len(_registered[session].seals) == 1
        frame = reads.read()
    assert _registered[session].seals == []
    with pytest.raises(Exception, match=r"service of job reads has ended: start it again"):
        frame.collect()


# --- refusals -------------------------------------------------------------------------------------
def test_what_cannot_be_read_is_refused_by_name(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    with service(session, FileSource(folder), MemoryLog("reads")) as reads:
        with pytest.raises(Exception, match=r"job 'other' is requested, and .* are: reads"):
            session.read.format("coordlog").option("job", "other").load()
        with pytest.raises(Exception, match=r"left out: the source's is struct<i:bigint"):
            session.read.format("coordlog").schema("i int").load().count()
        with pytest.raises(Exception, match=r"did you mean 'splits_per_batch'"):
            session.read.format("coordlog").option("splits_per_bach", 3).load()
        with pytest.raises(Exception, match=r"path is .*elsewhere"):
            session.read.format("coordlog").load(str(tmp_path / "elsewhere"))
        assert session.read.format("coordlog").load(str(folder)).count() == FILES * ROWS
        checkpoint = tmp_path / "checkpoint"
        with stream(reads, checkpoint, Batches(), all_that_is_there=True) as query:
            assert query.awaitTermination(int(WAIT_S))
        left = reads.read_stream()
    with pytest.raises(Exception, match="the services of this session are: none"):
        session.read.format("coordlog").load()
    query = left.writeStream.format("noop").start()
    with pytest.raises(Exception, match="its service does not answer"):
        assert query.awaitTermination(int(WAIT_S))
    with (
        service(session, FileSource(folder), MemoryLog("reads")) as other,
        pytest.raises(Exception, match="the query's checkpoint is of history"),
        stream(other, checkpoint, Batches(), all_that_is_there=True) as query,
    ):
        assert query.awaitTermination(int(WAIT_S))
    with pytest.raises(SourceError, match="it does not exist"):
        service(session, FileSource(tmp_path / "nothing"), MemoryLog("reads")).start()
    with pytest.raises(OptionError, match="if queries read the source"):
        service(session, FileSource(folder, on_error="skip"), MemoryLog("reads"))
