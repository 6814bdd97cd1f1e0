"""Which log writes at a destination: one suite, for folders, a server with S3's protocol, and tables of databases."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import psycopg
import pyarrow as pa
import pytest

from coordlog.errors import JobMovedError, SinkError
from coordlog.log.interface import LogIdentity
from coordlog.spark_integration.batches.databases.database import DatabaseTable
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.parquet import ParquetBatches
from coordlog.spark_integration.batches.sinks import Batch, BatchSink
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.store.log_claims import claim_for
from data.sql_statements import executed
from fakes.batch_fakes import ArrowFrame
from servers.postgres_server import postgres_server
from servers.s3_server import S3Server, s3_server, s3_store

__all__ = ["s3_server", "s3_store"]

JOB = "ingest"


class ClaimingSink(BatchSink, Protocol):
    """A sink of batches whose destination keeps which log writes there."""

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """Raise SinkError if another one does."""
        ...

    def refuse_lost_output(self, job_id: str) -> None:
        """Raise SinkError if nothing of the job is there."""
        ...


@dataclass(frozen=True)
class Place:
    """A destination, looked at past its sink."""

    make: Callable[[], ClaimingSink]
    """A sink as another process would make one; not prepared."""
    entry: Callable[[int], bytes]
    put_entry: Callable[[int, bytes], None]
    """Without asking."""
    rows: Callable[[], int]
    """How many a reader sees."""
    staged: Callable[[], int]
    """How many files or tables of rows are hidden there."""
    has_markers: bool
    """The destination has what is in it by batch, so that none is written twice."""

    def sink(self) -> ClaimingSink:
        sink = self.make()
        sink.prepare(JOB, cast("Any", None))
        return sink

    def claim(self, log: LogIdentity, *former: tuple[str, str]) -> ClaimingSink:
        sink = self.sink()
        sink.claim(JOB, log, former)
        return sink


def in_folder(root: Path) -> Place:
    def sink() -> ClaimingSink:
        return ParquetBatches(ParquetSink(str(root)))

    return Place(
        make=sink,
        entry=lambda number: (root / entry_name(number)).read_bytes(),
        put_entry=lambda number, content: put(root / entry_name(number), content),
        rows=lambda: sum(1 for _ in root.glob("*.parquet")),
        staged=lambda: sum(1 for _ in root.rglob(".coordlog/staging/*/*.parquet")),
        has_markers=False,
    )


def put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def in_bucket(server: S3Server) -> Place:
    bucket = server.new_bucket()

    def sink() -> ClaimingSink:
        return ParquetBatches(ParquetSink(f"s3://{bucket}/out"))

    def names() -> list[str]:
        listed = server.client.list_objects_v2(Bucket=bucket, Prefix="out/").get("Contents", [])
        return [str(entry["Key"]).removeprefix("out/") for entry in listed]

    def put_entry(number: int, content: bytes) -> None:
        server.client.put_object(Bucket=bucket, Key=f"out/{entry_name(number)}", Body=content)

    return Place(
        make=sink,
        entry=lambda number: server.get(bucket, f"out/{entry_name(number)}"),
        put_entry=put_entry,
        rows=lambda: sum(1 for name in names() if "/" not in name),
        staged=lambda: sum(1 for name in names() if "/staging/" in name),
        has_markers=False,
    )


def entry_name(number: int) -> str:
    return f".coordlog/log-{number}.json" if number else ".coordlog/log.json"


def in_database(make: Callable[[], DatabaseTable], connect: Callable[[], Any], names: str) -> Place:
    run = partial(executed, connect)

    def entry(number: int) -> bytes:
        ((content,),) = run(f"SELECT content FROM coordlog_claims WHERE number = {number}")
        return str(content).encode()

    def put_entry(number: int, content: bytes) -> None:
        run(
            "INSERT INTO coordlog_claims (job, target, number, content) "
            f"VALUES ('{JOB}', 'orders', {number}, '{content.decode()}')"
        )

    run("CREATE TABLE orders (id BIGINT)")
    return Place(
        make=make,
        entry=entry,
        put_entry=put_entry,
        rows=lambda: int(run("SELECT count(*) FROM orders")[0][0]),
        staged=lambda: sum(1 for (name,) in run(names) if name.startswith("coordlog_staging")),
        has_markers=True,
    )


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with postgres_server() as server:
        yield server


@pytest.fixture(
    params=[
        "local",
        pytest.param("s3", marks=pytest.mark.tier("matrix")),
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.tier("matrix")),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind = str(request.param)
    if kind == "s3":
        destination = in_bucket(request.getfixturevalue("s3_store"))
    elif kind == "sqlite":
        path = tmp_path / "shop.db"
        destination = in_database(
            lambda: DatabaseTable.sqlite(path, "orders"),
            lambda: sqlite3.connect(path),
            "SELECT name FROM sqlite_master",
        )
    elif kind == "postgresql":
        server = request.getfixturevalue("conninfo")
        with psycopg.connect(server) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        destination = in_database(
            lambda: DatabaseTable.postgresql(server, "orders"),
            lambda: psycopg.connect(server),
            "SELECT table_name FROM information_schema.tables",
        )
    else:
        destination = in_folder(tmp_path / "out")
    destination.sink()
    return destination


def log_of(cluster: str, topic_id: str, topic: str = "ingest.log") -> LogIdentity:
    name = f"{topic} at {cluster}:9092"
    return LogIdentity(cluster_id=cluster, topic_id=topic_id, name=name, topic=topic)


HERE = log_of("here", "1")
THERE = log_of("there", "1")
OF_HERE = ("here", "1")


def batch(number: int = 0, driver_id: str = "driver", query_id: str = "q-1") -> Batch:
    key = BatchKey(query_id=query_id, batch_id=number)
    return Batch(job_id=JOB, driver_id=driver_id, key=key, sink="sink")


def frame(value: int) -> Any:  # noqa: ANN401, it stands for a DataFrame
    return ArrowFrame([pa.table({"id": pa.array([value], pa.int64())})])


def refusal(place: Place, log: LogIdentity, *former: tuple[str, str]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        place.claim(log, *former)
    return caught.value


@pytest.mark.parametrize(
    ("other", "next_step"),
    [
        (THERE, "use the broker that the job was begun on"),
        (log_of("here", "2", "prefix.ingest.log"), "(`--topic-prefix`), whose topic is ingest.log"),
    ],
)
def test_two_histories_of_one_job_id_do_not_share_a_destination(
    place: Place, other: LogIdentity, next_step: str
) -> None:
    place.claim(HERE)
    place.claim(HERE)
    written = place.entry(0)

    assert json.loads(written) == {
        "cluster_id": "here",
        "topic_id": "1",
        "name": "ingest.log at here:9092",
        "topic": "ingest.log",
    }
    error = refusal(place, other)
    assert "ingest.log at here:9092 (cluster here, topic id 1)" in error.problem
    assert f"(cluster {other.cluster_id}, topic id {other.topic_id})" in error.problem
    assert next_step in error.next_step
    assert "`coordlog adopt`" in error.next_step
    assert place.entry(0) == written
    place.claim(HERE)


@pytest.mark.clause("M5")
def test_a_driver_of_another_log_removes_no_staged_file_of_a_live_batch(
    place: Place,
) -> None:
    live = place.claim(HERE)
    part = live.stage(frame(1), batch())
    assert place.staged() == 1

    refusal(place, THERE)
    assert place.staged() == 1
    assert live.settle(part, batch()).is_done
    assert place.rows() == 1


def test_of_histories_that_claim_a_destination_at_once_one_gets_it(place: Place) -> None:
    together = threading.Barrier(4)
    ends: list[str] = []

    def claim(cluster: str) -> None:
        sink = place.make()
        together.wait()
        try:
            sink.claim(JOB, log_of(cluster, "1"), ())
            ends.append("got it")
        except SinkError as error:
            assert "with another log" in str(error)  # noqa: PT017, one succeeds
            ends.append("refused")

    threads = [threading.Thread(target=claim, args=(f"cluster-{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(ends) == ["got it", "refused", "refused", "refused"]


def test_a_job_that_was_adopted_takes_its_destination_along(place: Place) -> None:
    before = place.claim(HERE)
    before.settle(before.stage(frame(1), batch()), batch())
    place.claim(THERE, OF_HERE)

    assert "there:9092" in refusal(place, HERE).problem
    # Adopted elsewhere too, from a copy of the same log: of the two one goes on.
    assert "there:9092" in refusal(place, log_of("elsewhere", "1"), OF_HERE).problem
    place.claim(HERE, ("here", "0"), ("there", "1"))
    assert json.loads(place.entry(2))["cluster_id"] == "here"


def test_a_driver_of_before_an_adoption_publishes_and_sweeps_nothing_more(place: Place) -> None:
    """It lives on, at a cluster that was taken for lost: only the destination can tell it."""
    before = place.claim(HERE)
    first = before.stage(frame(1), batch())
    assert before.settle(first, batch()).is_done
    late = before.stage(frame(2), batch(1))
    now = place.claim(THERE, OF_HERE)
    new = now.stage(frame(3), batch(2, "other"))

    acts: tuple[Callable[[], object], ...] = (
        lambda: before.settle(late, batch(1)),
        lambda: before.sweep(lambda: True),
    )
    for act in acts:
        with pytest.raises(JobMovedError, match="since this driver began") as refused:
            act()
        assert "ingest.log at there:9092 (cluster there, topic id 1)" in refused.value.problem
        assert "this one's is ingest.log at here:9092" in refused.value.problem
    assert (place.rows(), place.staged()) == (1, 2)
    assert now.settle(new, batch(2)).is_done
    now.sweep(lambda: True)
    assert (place.rows(), place.staged()) == (2, 0)


def test_a_job_with_a_deleted_log_starts_anew_if_no_row_is_written_twice(
    place: Place,
) -> None:
    """A cluster has one topic of a name: another id before is that of one that is gone."""
    place.claim(HERE)
    before = place.claim(log_of("here", "2"))
    before.settle(before.stage(frame(1), batch()), batch())

    if place.has_markers:
        anew = place.claim(log_of("here", "3"))
        assert anew.settle(anew.stage(frame(1), batch()), batch()).is_done
        assert place.rows() == 1, "the marker keeps the batch from being written again"
    else:
        problem = refusal(place, log_of("here", "3")).problem
        assert "an earlier history of job 'ingest' has published" in problem
        place.claim(log_of("here", "2"))


def test_a_destination_without_a_trace_of_a_job_with_commits_is_refused(place: Place) -> None:
    with pytest.raises(SinkError, match=f"of job '{JOB}' was removed.*mount it or put it back"):
        place.sink().refuse_lost_output(JOB)
    before = place.claim(HERE)
    before.settle(before.stage(frame(1), batch()), batch())

    place.sink().refuse_lost_output(JOB)


def test_what_does_not_say_which_log_writes_is_an_error(place: Place) -> None:
    place.put_entry(0, b'{"cluster_id": "here"}')

    assert "does not say which log writes there" in refusal(place, HERE).problem


class Forgetful:
    """A `ClaimKeeper` that keeps nothing."""

    where, release = "somewhere", "nothing is there"

    def __init__(self) -> None:
        self.written: list[int] = []

    def read_claim(self, number: int) -> bytes | None:
        return None

    def write_claim(self, number: int, content: bytes) -> None:
        assert not self.written, "written once"
        self.written.append(number)

    def claim_path(self, number: int) -> str:
        return f"entry {number}"

    def refuse_earlier_output(self, _job_id: str) -> None:
        raise AssertionError


def test_a_claim_that_is_not_there_once_written_is_an_error() -> None:
    """As of a store that has answered before it has the name: to write again would never end."""
    keeper = Forgetful()
    with pytest.raises(SinkError, match="entry 0 was written, and is not there"):
        claim_for(keeper, JOB, HERE, ())
    assert keeper.written == [0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ParquetSink(str(tmp_path / "out")).prepare(JOB)
    return tmp_path / "out"


def test_a_driver_of_before_an_adoption_cleans_no_files_of_an_attempt(folder: Path) -> None:
    """As after an attempt that has failed: what it has staged may be kept by the job that goes on."""
    staged = folder / ".coordlog/staging/driver/0-0-0.parquet"
    before, now = ParquetSink(str(folder)), ParquetSink(str(folder))
    before.claim(JOB, HERE)
    now.claim(JOB, THERE, [OF_HERE])
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(b"the other driver's")

    with pytest.raises(JobMovedError, match="since this driver began"):
        before.clean(driver_id="driver", subtask=0, attempt_number=0, keep=frozenset())
    assert staged.exists()


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.tier("matrix"))])
def test_a_destination_inside_another_jobs_is_refused_and_not_made(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    if kind == "local":
        url = str(request.getfixturevalue("folder"))
    else:
        url = f"s3://{request.getfixturevalue('s3_store').new_bucket()}/out"
        ParquetSink(url).prepare(JOB)
    for below in ("inner", "a/b/inner"):
        with pytest.raises(SinkError, match="it is inside the destination of job 'ingest'"):
            ParquetSink(f"{url}/{below}").prepare("other")
        assert not ParquetSink(f"{url}/{below}").is_taken(JOB)
    assert not (tmp_path / "out" / "inner").exists()
    # One of an earlier version goes on.
    owner = b'{"job_id": "other"}'
    if kind == "local":
        (tmp_path / "out/inner/.coordlog").mkdir(parents=True)
        (tmp_path / "out/inner/.coordlog/owner.json").write_bytes(owner)
    else:
        server: S3Server = request.getfixturevalue("s3_store")
        bucket = url.split("/")[2]
        server.client.put_object(Bucket=bucket, Key="out/inner/.coordlog/owner.json", Body=owner)
    ParquetSink(f"{url}/inner").prepare("other")
