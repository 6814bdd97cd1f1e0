"""Which log writes at a destination: one suite, in a local folder and on a server with S3's protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordlog.errors import JobMovedError, SinkError
from coordlog.log.port import LogIdentity
from coordlog.spark_integration.files.payloads import PublishFiles
from coordlog.spark_integration.files.sink import ParquetSink
from s3_server import S3Server, s3_server, s3_store

__all__ = ["s3_server", "s3_store"]

JOB = "ingest"


@dataclass(frozen=True)
class Place:
    url: str
    read: Callable[[str], bytes]
    write: Callable[[str, bytes], None]
    """As somebody else does, without asking."""

    def sink(self) -> ParquetSink:
        """As another process would make one."""
        return ParquetSink(self.url)


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        root = tmp_path / "out"
        made = Place(
            str(root), lambda name: (root / name).read_bytes(), lambda n, b: _write(root / n, b)
        )
    else:
        server: S3Server = request.getfixturevalue("s3_store")
        bucket = server.new_bucket()
        made = Place(
            f"s3://{bucket}/out",
            lambda name: server.get(bucket, f"out/{name}"),
            lambda n, b: _put(server, bucket, f"out/{n}", b),
        )
    made.sink().prepare(JOB)
    return made


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _put(server: S3Server, bucket: str, key: str, content: bytes) -> None:
    server.client.put_object(Bucket=bucket, Key=key, Body=content)


def log_of(cluster: str, topic_id: str, topic: str = "ingest.log") -> LogIdentity:
    name = f"{topic} at {cluster}:9092"
    return LogIdentity(cluster_id=cluster, topic_id=topic_id, name=name, topic=topic)


HERE = log_of("here", "1")


def refusal(place: Place, log: LogIdentity, *former: tuple[str, str]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        place.sink().claim(JOB, log, former)
    return caught.value


@pytest.mark.parametrize("other", [log_of("there", "1"), log_of("here", "2", "prefix.ingest.log")])
def test_two_histories_of_one_job_id_do_not_share_a_destination(
    place: Place, other: LogIdentity
) -> None:
    place.sink().claim(JOB, HERE)
    place.sink().claim(JOB, HERE)
    written = place.read(".coordlog/log.json")

    assert json.loads(written) == {
        "cluster_id": "here",
        "topic_id": "1",
        "name": "ingest.log at here:9092",
        "topic": "ingest.log",
    }
    error = refusal(place, other)
    assert "ingest.log at here:9092 (cluster here, topic id 1)" in error.problem
    assert f"(cluster {other.cluster_id}, topic id {other.topic_id})" in error.problem
    assert "`coordlog adopt`" in error.next_step
    assert place.read(".coordlog/log.json") == written
    place.sink().claim(JOB, HERE)


def test_of_histories_that_claim_a_destination_at_once_one_gets_it(place: Place) -> None:
    together = threading.Barrier(4)
    ends: list[str] = []

    def claim(cluster: str) -> None:
        sink = place.sink()
        together.wait()
        try:
            sink.claim(JOB, log_of(cluster, "1"))
            ends.append("got it")
        except SinkError as error:
            assert "with another log" in str(error)  # noqa: PT017, one succeeds
            ends.append("refused")

    threads = [threading.Thread(target=claim, args=(f"cluster-{i}",)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert sorted(ends) == ["got it", "refused", "refused", "refused"]


def test_a_job_that_was_adopted_takes_its_destination_along(place: Place) -> None:
    place.write("part.parquet", b"published before")
    place.sink().claim(JOB, HERE)
    place.sink().claim(JOB, log_of("there", "1"), [("here", "1")])

    assert "there:9092" in refusal(place, HERE).problem
    # Adopted elsewhere too, from a copy of the same log: of the two one goes on.
    assert "there:9092" in refusal(place, log_of("elsewhere", "1"), ("here", "1")).problem
    place.sink().claim(JOB, HERE, [("here", "0"), ("there", "1")])
    assert json.loads(place.read(".coordlog/log-2.json"))["cluster_id"] == "here"


def test_a_driver_of_before_an_adoption_publishes_and_sweeps_nothing_more(place: Place) -> None:
    """It lives on, at a cluster that was taken for lost: only the destination can tell it."""
    staged = ".coordlog/staging/driver/0-0-0.parquet"
    intent = PublishFiles(checkpoint_id=1, files=[])
    before, now = place.sink(), place.sink()
    before.claim(JOB, HERE)
    assert before.settle(intent).file_count == 0
    now.claim(JOB, log_of("there", "1"), [("here", "1")])
    place.write(staged, b"the other driver's")

    def clean() -> None:
        """As after an attempt that has failed: what it has staged may be kept by the job that goes on."""
        before.clean(driver_id="driver", subtask=0, attempt_number=0, keep=frozenset())

    for act in (lambda: before.settle(intent), clean, before.sweep):
        with pytest.raises(JobMovedError, match="since this driver began") as refused:
            act()
        assert "ingest.log at there:9092 (cluster there, topic id 1)" in refused.value.problem
        assert "this one's is ingest.log at here:9092" in refused.value.problem
    assert place.read(staged)
    assert now.settle(intent).file_count == 0
    now.sweep()
    with pytest.raises(Exception):  # noqa: B017, PT011, each place has its own
        place.read(staged)


def test_a_job_whose_log_was_deleted_begins_anew_where_nothing_was_published(place: Place) -> None:
    """A cluster has one topic of a name: another id before is that of one that is gone."""
    place.sink().claim(JOB, HERE)
    place.sink().claim(JOB, log_of("here", "2"))
    place.write("part.parquet", b"published")

    problem = refusal(place, log_of("here", "3")).problem
    assert "an earlier history of job 'ingest' has published" in problem
    place.sink().claim(JOB, log_of("here", "2"))


def test_a_destination_inside_another_jobs_is_refused_and_not_made(place: Place) -> None:
    for below in ("inner", "a/b/inner"):
        with pytest.raises(SinkError, match="it is inside the destination of job 'ingest'"):
            ParquetSink(f"{place.url}/{below}").prepare("other")
        assert not ParquetSink(f"{place.url}/{below}").is_taken()
        assert "s3:" in place.url or not Path(place.url, "inner").exists()
    # One of an earlier version goes on.
    place.write("inner/.coordlog/owner.json", b'{"job_id": "other"}')
    ParquetSink(f"{place.url}/inner").prepare("other")


def test_what_does_not_say_which_log_writes_is_an_error(place: Place) -> None:
    place.write(".coordlog/log.json", b'{"cluster_id": "here"}')

    assert "does not say which log writes there" in refusal(place, HERE).problem
