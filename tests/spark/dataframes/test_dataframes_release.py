"""Streams of `format("coordlog")` whose read files are archived or deleted, and whose old files are forgotten."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.memory import MemoryLog
from coordlog.schemas.record import Kind
from coordlog.spark_integration import FileSource
from coordlog.spark_integration.dataframes import CoordinatedReads
from coordlog.spark_integration.files.source import discovery
from coordlog.spark_integration.files.source.watch import Watch
from jobs.kafka_session import shared_session
from servers.brokers import broker
from servers.s3_server import S3Server, s3_server, s3_store

from .test_dataframes import (
    FILES,
    ROWS,
    Batches,
    each_once,
    ids,
    payloads,
    service,
    stream,
    wait_until,
    write_file,
)

__all__ = ["broker", "s3_server", "s3_store"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LIMIT_S = 240.0
PROGRAM = Path(__file__).with_name("release_program.py")
STEPS = ("planned", "written", "commit called", "intent recorded", "one moved", "all moved")
DAY_S = 86_400


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look compares files with those that were known when it began."""
    monkeypatch.setattr(discovery, "WATCH_REPORT_S", 1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(FILES):
        write_file(source, number)
    return source


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog("reads")


def source(folder: Path, **options: str) -> FileSource:
    watch = Watch(watch_interval_s=0.05, **options)  # type: ignore[arg-type]
    return FileSource(folder, schema="i bigint, s string", watch=watch)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def numbered(*numbers: int) -> list[str]:
    return [f"f{number:03}.csv" for number in numbers]


# --- files that are archived ----------------------------------------------------------------------
def test_files_of_committed_batches_are_archived_and_their_names_are_free(
    session: SparkSession, folder: Path, tmp_path: Path, log: MemoryLog
) -> None:
    """A query that fails in a batch finds the files of that batch, also in the next service."""
    checkpoint, batches, done = tmp_path / "checkpoint", Batches(fail_at=1), tmp_path / "done"
    archiving = {"after_commit": f"archive:{done}"}
    with (
        service(session, source(folder, **archiving), log, splits_per_batch=4) as reads,
        stream(reads, checkpoint, batches) as query,
        pytest.raises(Exception, match="scripted"),
    ):
        assert query.awaitTermination(int(LIMIT_S))
    assert set(names_in(folder)) >= set(numbered(*range(4, FILES)))
    batches.fail_at = -1

    with (
        service(session, source(folder, **archiving), log, splits_per_batch=4) as reads,
        stream(reads, checkpoint, batches) as query,
    ):
        wait_until(lambda: len(batches.total()) == FILES * ROWS, query)
        wait_until(lambda: names_in(done) == numbered(*range(FILES - 4)), query)
        rows = "".join(f"{(FILES + 1) * ROWS + i},again\n" for i in range(ROWS))
        (folder / "f000.csv").write_text(f"i,s\n{rows}")
        wait_until(lambda: len(batches.total()) == (FILES + 1) * ROWS, query)
        wait_until(lambda: names_in(folder) == ["f000.csv"], query)
        is_refused(reads, tmp_path / "other")

    first, second = batches.rows[1]
    assert first == second, "the same rows, from files that were still there"
    assert batches.total() == each_once(FILES) + Counter(
        range((FILES + 1) * ROWS, (FILES + 2) * ROWS)
    )
    assert names_in(done) == numbered(*range(FILES))
    released = payloads(log, "splits_released", Kind.COMMIT_OUTCOME)
    assert all(outcome["unreleased"] == [] for outcome in released)


def is_refused(reads: CoordinatedReads, checkpoint: Path) -> None:
    """A batch DataFrame, and a stream that begins after files have gone."""
    with pytest.raises(Exception, match="a batch DataFrame has no commit, and with after_commit"):
        reads.read().collect()
    with (
        stream(reads, checkpoint, Batches()) as query,
        pytest.raises(Exception, match=r"the first \d+ splits of its history have been read"),
    ):
        assert query.awaitTermination(int(LIMIT_S))


def test_a_stateful_stream_goes_on_with_its_state_when_its_files_are_gone(
    session: SparkSession, folder: Path, tmp_path: Path, log: MemoryLog
) -> None:
    totals: dict[int, int] = {}

    def run(count: int) -> None:
        with service(session, source(folder, after_commit="delete"), log) as reads:
            frame = reads.read_stream().selectExpr("i % 2 AS odd").groupBy("odd").count()
            query = (
                frame.writeStream.outputMode("complete")
                .foreachBatch(lambda batch, _: totals.update(map(tuple, batch.collect())))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(processingTime="50 milliseconds")
                .start()
            )
            try:
                wait_until(lambda: sum(totals.values()) == count * ROWS, query)
            finally:
                query.stop()

    run(FILES)
    write_file(folder, FILES)
    run(FILES + 1)
    assert totals == {0: (FILES + 1) * ROWS // 2, 1: (FILES + 1) * ROWS // 2}
    assert len(names_in(folder)) < FILES + 1


# --- old files ------------------------------------------------------------------------------------
def test_old_files_are_left_out_and_forgotten(
    session: SparkSession, folder: Path, tmp_path: Path, log: MemoryLog
) -> None:
    now_s = time.time()
    for number in range(4):
        os.utime(folder / f"f{number:03}.csv", (now_s - 40 * DAY_S, now_s - 40 * DAY_S))
    for number in range(4, 8):
        os.utime(folder / f"f{number:03}.csv", (now_s - 31 * DAY_S, now_s - 31 * DAY_S))
    for number in range(8, FILES):
        os.utime(folder / f"f{number:03}.csv", (now_s - 2 * DAY_S, now_s - 2 * DAY_S))
    batches = Batches()
    with (
        service(session, source(folder, max_file_age="30d"), log, splits_per_batch=4) as reads,
        stream(reads, tmp_path / "checkpoint", batches) as query,
    ):
        wait_until(lambda: len(batches.total()) == 8 * ROWS, query)
        write_file(folder, FILES)
        wait_until(lambda: len(batches.total()) == 9 * ROWS, query)
        write_file(folder, FILES + 1)
        wait_until(lambda: payloads(log, "known_splits_forgotten", Kind.FACT) != [], query)
        wait_until(lambda: len(batches.total()) == 10 * ROWS, query)
    read = Counter(i for i in range(4 * ROWS, (FILES + 2) * ROWS))
    assert batches.total() == read
    (left_out,) = payloads(log, "files_left_out", Kind.FACT)
    assert left_out["file_count"] == 4
    forgotten = payloads(log, "known_splits_forgotten", Kind.FACT)
    names = [Path(str(name)).name for one in forgotten for name in one["split_ids"]]  # type: ignore[attr-defined]
    assert names == numbered(*range(4, 8))

    with service(session, source(folder, max_file_age="30d"), log) as reads:
        assert ids(reads.read()) == Counter(range(8 * ROWS, (FILES + 2) * ROWS))


# --- a driver that dies ---------------------------------------------------------------------------
class Place:
    """A place with the files of a stream, and their archive."""

    def __init__(self, folder: Path, s3: S3Server | None) -> None:
        self._folder, self._s3 = folder, s3
        self._bucket = s3.new_bucket() if s3 else ""
        self.url = f"s3://{self._bucket}" if s3 else str(folder)
        self.environment = s3.environment if s3 else {}
        (folder / "in").mkdir()
        for number in range(FILES):
            write_file(folder / "in", number)
        if s3:
            for path in (folder / "in").iterdir():
                key, body = f"in/{path.name}", path.read_bytes()
                s3.client.put_object(Bucket=self._bucket, Key=key, Body=body)

    def contents(self, name: str) -> dict[str, bytes]:
        """Content of each file, by name, in `in` or `done`."""
        if self._s3 is None:
            files = [path for path in (self._folder / name).rglob("*") if path.is_file()]
            return {path.name: path.read_bytes() for path in files}
        keys = self._s3.keys(self._bucket, f"{name}/")
        return {Path(key).name: self._s3.get(self._bucket, key) for key in keys}


def start(
    folder: Path, servers: str, job_id: str, step: str, place: Place
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), servers, job_id, step, place.url],
        env={**os.environ, **place.environment, "COORDLOG_HOME": str(folder / "home")},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.any_spark
@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.timeout(600)
@pytest.mark.clause("H3")
@pytest.mark.parametrize(
    ("step", "in_s3"),
    [*((step, False) for step in STEPS), ("intent recorded", True), ("one moved", True)],
)
def test_files_and_rows_are_whole_though_the_driver_dies_at_a_step(
    step: str, tmp_path: Path, broker: EmbeddedBroker, s3_store: S3Server, *, in_s3: bool
) -> None:
    place = Place(tmp_path, s3_store if in_s3 else None)
    contents = place.contents("in")
    job_id, servers = f"release-{secrets.token_hex(4)}", broker.bootstrap_servers

    killed = start(tmp_path, servers, job_id, step, place)
    assert killed.wait(LIMIT_S) == -signal.SIGKILL
    archived = set(place.contents("done"))
    read = {i // ROWS for rows in rows_of_batches(tmp_path).values() for i in rows}
    assert archived <= set(numbered(*sorted(read))), "only files of written batches"

    again = start(tmp_path, servers, job_id, "none", place)
    try:
        assert again.wait(LIMIT_S) == 0
    finally:
        if again.poll() is None:
            os.killpg(again.pid, signal.SIGKILL)
    rows = Counter(i for rows in rows_of_batches(tmp_path).values() for i in rows)
    assert rows == Counter(range(FILES * ROWS))
    kept, moved = place.contents("in"), place.contents("done")
    assert sorted(kept) == numbered(9, 10, 11), "the last batch has no commit yet"
    assert kept | moved == contents
    assert not kept.keys() & moved.keys()


def rows_of_batches(folder: Path) -> dict[int, list[int]]:
    """Rows of each batch, by its last run."""
    out = folder / "out.jsonl"
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return dict(map(json.loads, lines))
