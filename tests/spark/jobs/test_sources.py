"""Sources on a real Spark session: each format, packed, over HTTP and watched; and a killed watch."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.kafka import KafkaLog
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import FileSource, Job, ParquetSink
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.spark_integration.job_options import RestartPolicy
from jobs.ingest_case import FILES, LIMIT_S, IngestCase
from jobs.ingest_case import ROWS as ROWS_OF_A_FILE
from jobs.kafka_session import shared_session
from jobs.left_threads import left_threads
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = [(i, f"x{i}") for i in range(300)]
PER_FILE = 100
ADDED_ROWS = 10


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


def fill(folder: Path, write: Callable[[Path, list[tuple[int, str]]], None]) -> Path:
    """Three files with a third of the rows each."""
    folder.mkdir(parents=True)
    for number in range(3):
        write(folder / f"part-{number}", ROWS[number * PER_FILE : (number + 1) * PER_FILE])
    return folder


def csv_xz(path: Path, rows: list[tuple[int, str]]) -> None:
    text = "i,s\n" + "".join(f"{i},{s}\n" for i, s in rows)
    path.with_suffix(".csv.xz").write_bytes(lzma.compress(text.encode()))


def json_lines(path: Path, rows: list[tuple[int, str]]) -> None:
    text = "".join(json.dumps({"i": i, "s": s}) + "\n" for i, s in rows)
    if path.name.endswith("1"):
        path.with_suffix(".jsonl.bz2").write_bytes(bz2.compress(text.encode()))
    else:
        path.with_suffix(".jsonl").write_text(text)


def parquet(path: Path, rows: list[tuple[int, str]]) -> None:
    table = pa.table({"i": [i for i, _ in rows], "s": [s for _, s in rows]})
    pq.write_table(table, path.with_suffix(".parquet"), row_group_size=20)


def text_gz(path: Path, rows: list[tuple[int, str]]) -> None:
    text = "".join(f"{i} {s}\n" for i, s in rows)
    path.with_suffix(".txt.gz").write_bytes(gzip.compress(text.encode()))


class Quiet(SimpleHTTPRequestHandler):
    """Says nothing of requests."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, the base's
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a server of `tmp_path`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10.0)
    server.server_close()


@pytest.mark.tier("test")
def test_each_format_becomes_the_same_rows(
    session: SparkSession, tmp_path: Path, site: str
) -> None:
    fill(tmp_path / "csv", csv_xz)
    fill(tmp_path / "jsonl", json_lines)
    fill(tmp_path / "parquet", parquet)
    fill(tmp_path / "text", text_gz)
    names = sorted(path.name for path in (tmp_path / "jsonl").iterdir())
    sources = {
        "csv": FileSource(tmp_path / "csv"),
        "jsonl": FileSource(tmp_path / "jsonl", format="jsonl", split_bytes=500),
        "parquet": FileSource(tmp_path / "parquet", format="parquet", split_bytes=500),
        "text": FileSource(tmp_path / "text", format="text"),
        "http": FileSource(
            f"{site}/jsonl/{names[0]}",
            format="jsonl",
            also=[f"{site}/jsonl/{name}" for name in names[1:]],
        ),
        "watch": FileSource(
            tmp_path / "jsonl", format="jsonl", watch=Watch(watch_interval_s=0.1, idle_timeout_s=1)
        ),
    }
    for name, source in sources.items():
        job = Job(
            job_id=name,
            log=MemoryLog(name),
            source=source,
            sink=ParquetSink(tmp_path / "out" / name),
            parallelism=2,
            checkpoint_interval_s=0.3,
            batch=name in ("csv", "parquet"),
            restart_policy=RestartPolicy(restarts_max=0),
        )
        assert job.run(session).status is JobStatus.FINISHED

        table = pq.read_table(tmp_path / "out" / name)
        if name == "text":
            assert sorted(table.column("value").to_pylist()) == sorted(f"{i} {s}" for i, s in ROWS)
        else:
            found = zip(table.column("i").to_pylist(), table.column("s").to_pylist(), strict=True)
            assert sorted(found) == ROWS, name
    assert left_threads() == []


# --- a watch that is killed -----------------------------------------------------------------------
class Adding:
    """Goes on adding files, whole at once, until `stop`."""

    def __init__(self, folder: Path) -> None:
        self.count = 0
        self._folder = folder
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        while not self._stopped.wait(0.25):
            first = 1_000_000 + self.count * ADDED_ROWS
            rows = "".join(f"{i},added {i},{i * 3}\n" for i in range(first, first + ADDED_ROWS))
            hidden = self._folder / ".being-written"
            hidden.write_text(f"id,name,amount\n{rows}", encoding="utf-8")
            hidden.rename(self._folder / f"added-{self.count:04}.csv")
            self.count += 1


@pytest.mark.any_spark
@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.timeout(900)
def test_a_watch_whose_driver_is_killed_reads_the_rest_and_nothing_twice(
    tmp_path: Path, broker: EmbeddedBroker
) -> None:
    """Files are added all the time: before the kill, while nobody looks, and after the restart."""
    case = IngestCase(
        folder=tmp_path,
        servers=broker.bootstrap_servers,
        arguments=["--checkpoint-interval", "0.5", "--watch", "--watch-interval", "0.2"],
        seconds_per_row=0.0,
    )
    adding = Adding(case.source)
    try:
        run = case.start()
        finds, commits = 0, 0

        def is_in_full_swing(record: Record) -> bool:
            nonlocal finds, commits
            finds += (record.payload_type or "").startswith("coordlog.splits_discovered@")
            commits += record.kind is Kind.COMMIT_OUTCOME
            return finds >= 6 and commits >= 2 and record.kind is Kind.SPLIT_FINISHED

        case.follower().wait_for(is_in_full_swing, is_over=lambda: run.has_ended, limit_s=LIMIT_S)
        run.kill()
        assert not case.rows_out() - case.rows_in(), "no row twice, none of nowhere"
        assert case.rows_out(), "some rows are published already"
        before = adding.count

        run = case.start()
        run.wait_for_line("restored by rollback from checkpoint", LIMIT_S)
        adding.stop()
        assert adding.count > before, "files came while nobody looked"
        case.expected = case.rows_in()
        deadline_s = time.monotonic() + LIMIT_S
        while case.rows_out() != case.expected and not run.has_ended:
            assert time.monotonic() < deadline_s, "not all rows come"
            time.sleep(0.2)
        run.signal(signal.SIGINT)
        assert run.wait(LIMIT_S) == 130, run.lines
        assert case.rows_out() == case.expected
        check_history(case, FILES + adding.count)
    finally:
        adding.stop()
        case.clear()


def check_history(case: IngestCase, files: int) -> None:
    """Each file is a split, finished with all its rows."""
    log = KafkaLog.for_job(case.job_id, case.servers)
    try:
        found = audit(log.read(0, log.high_watermark()))
    finally:
        log.close()
    assert len(found.splits) == files
    assert {one.rows for one in found.splits} == {ROWS_OF_A_FILE, ADDED_ROWS}
