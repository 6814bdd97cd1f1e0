"""A job by `spark-submit` on a standalone cluster: what dies there loses and doubles no row.

Driver and executors have the package from a zip alone, and an interpreter that has never seen it.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.projections.tables.attempts import AttemptEnd
from coordlog.projections.tables.audit import Audit, audit
from coordlog.schemas.record import Kind, Record
from data.kafka_topics import Topics, topics_at
from data.wheels import Environment, build_wheel
from examples.demo_parts.follow import Follower, NotSeenError, nth_of_kind, open_log
from servers.brokers import broker
from servers.spark_cluster import SparkCluster, Submission, wait_for

__all__ = ["broker"]

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

SCRIPT: Final = Path(__file__).parents[2] / "cluster_job.py"
QUERIES: Final = Path(__file__).parents[2] / "cluster_frames.py"
FILES, ROWS, SUBTASKS = 24, 100, 3
LIMIT_S: Final = 240.0
"""Of one submission: its JVM, its executors and their workers start anew. The queries take 40 s alone on two cores, and
66 s beside six processes that compute all the time."""
ON_BOTH_WORKERS: Final = {
    # Nothing starts before both executors are there, and then each of them gets a task.
    "spark.cores.max": str(2 * SUBTASKS),
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "90s",
}


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """What a cluster needs of us."""

    python: Path
    package: Path


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    environment = Environment(tmp_path_factory.mktemp("bare") / "environment")
    environment.link()
    wheel = build_wheel(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built"))
    # Spark puts a .zip on the path of Python, and a .whl beside it.
    package = Path(shutil.copy(wheel, wheel.with_name("coordlog.zip")))
    return Shipped(python=environment.bin / "python", package=package)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster") / "spark", cores=SUBTASKS) as one:
        yield one


class Case:
    """One job: its input, its submissions, its history."""

    def __init__(
        self, folder: Path, broker: EmbeddedBroker, cluster: SparkCluster, shipped: Shipped
    ) -> None:
        self.folder, self.cluster, self.shipped = folder, cluster, shipped
        self.servers = broker.bootstrap_servers
        self.job_id = f"cluster-{secrets.token_hex(4)}"
        self.log = open_log(self.job_id, self.servers)
        self.follower = Follower(self.log)
        (folder / "in").mkdir()
        for number in range(FILES):
            rows = range(number * ROWS, (number + 1) * ROWS)
            text = "id,name\n" + "".join(f"{row},name {row % 7}\n" for row in rows)
            (folder / "in" / f"{number:03}.csv").write_text(text, encoding="utf-8")

    def submit(
        self,
        script: Path = SCRIPT,
        *,
        conf: dict[str, str] | None = None,
        **given: Any,  # noqa: ANN401
    ) -> Submission:
        order = {
            "job_id": self.job_id,
            "servers": self.servers,
            "source": str(self.folder / "in"),
            "destination": str(self.folder / "out"),
            "parallelism": SUBTASKS,
            **given,
        }
        return self.cluster.submit(
            script,
            json.dumps(order),
            python=self.shipped.python,
            py_files=[self.shipped.package],
            conf={"spark.task.maxFailures": "1000", **(conf or {})},
            environment={"COORDLOG_HOME": str(self.folder / "home")},
        )

    def wait_for(self, kind: Kind, count: int, submission: Submission) -> None:
        """Until `count` more records of a kind count."""
        try:
            self.follower.wait_for(
                nth_of_kind(kind, count), is_over=lambda: submission.has_ended, limit_s=LIMIT_S
            )
        except NotSeenError as error:
            error.add_note(submission.output[-8000:])
            raise

    def finish(self, submission: Submission) -> Audit:
        """The job to its good end; its rows are exact."""
        status = submission.wait(LIMIT_S)
        assert status == 0, submission.output[-8000:]
        assert "the job has ended: finished" in submission.output
        assert self.rows() == Counter(range(FILES * ROWS))
        return audit(self.log.read(0, self.log.high_watermark()))

    def rows(self, place: str = "out") -> Counter[int]:
        """The ids that a reader finds."""
        return Counter(self.table(["id"], place).column("id").to_pylist())

    def table(self, columns: list[str], place: str = "out") -> pa.Table:
        """What a reader finds."""
        found = ds.dataset(self.folder / place, format="parquet", ignore_prefixes=[".", "_"])
        return found.to_table(columns=columns)


@pytest.fixture
def case(
    tmp_path: Path, broker: EmbeddedBroker, cluster: SparkCluster, shipped: Shipped
) -> Iterator[Case]:
    one = Case(tmp_path, broker, cluster, shipped)
    with closing(one.log):
        yield one


@pytest.fixture
def topics(broker: EmbeddedBroker) -> Iterator[Topics]:
    with topics_at(broker.bootstrap_servers) as one:
        yield one


def app_id(submission: Submission) -> str:
    """What Spark calls it, once it does."""

    def look() -> str:
        found = re.search(r"^application (\S+)$", submission.output, re.MULTILINE)
        return found[1] if found else ""

    return wait_for(look, "the application has an id")


def started(found: Case) -> list[Record]:
    """The starts of attempts, in log order."""
    found.follower.catch_up()
    return [one for one in found.follower.records if one.kind is Kind.ATTEMPT_STARTED]


@pytest.mark.clause("B8")
def test_deaths_of_executors_and_workers_lose_nothing_and_leak_no_token(
    case: Case,
) -> None:
    """The package is in a zip, the endpoint encrypted and bound elsewhere than it is reached by."""
    endpoint = {"bind": "0.0.0.0", "ports": "40100-40899"}
    error = case.folder / "error"
    order: dict[str, Any] = {"seconds_per_row": 0.016, "log_level": "DEBUG", "endpoint": endpoint}
    order |= {"error_file": str(error), "conf": ON_BOTH_WORKERS}
    first = case.submit(**order)
    case.wait_for(Kind.CHECKPOINT_COMPLETED, 2, first)
    (driver_file,) = (case.folder / "home" / "jobs" / case.job_id).glob("*.json")
    token: str = json.loads(driver_file.read_bytes())["token"]

    shown = case.cluster.shown()
    assert b"pyspark.daemon" in shown, "the workers that have it"
    assert token.encode() not in shown

    victim = case.cluster.executors(app_id(first))[0]
    case.cluster.kill_executor(victim)
    case.wait_for(Kind.ATTEMPT_FAILED, 1, first)
    case.wait_for(Kind.CHECKPOINT_COMPLETED, 2, first)
    first.kill_jvm()
    wait_for(lambda: not first.pids(), "the driver ends when its JVM has gone")
    assert "the job's Spark session has ended: its JVM does not respond" in error.read_text("utf-8")
    assert 0 < len(case.rows()) < FILES * ROWS

    second = case.submit(**order)
    case.wait_for(Kind.CHECKPOINT_COMPLETED, 1, second)
    case.cluster.stop_worker(2)
    case.wait_for(Kind.ATTEMPT_FAILED, 1, second)
    found = case.finish(second)
    case.cluster.start_worker(2)

    began = [one for one in case.follower.records if one.kind is Kind.EPOCH_STARTED]
    assert [one.attributes["endpoint"].rpartition(":")[0] for one in began] == [
        "wss://127.0.0.1",
        "wss://127.0.0.1",
    ]
    assert all(40100 <= int(one.attributes["endpoint"][-5:]) <= 40899 for one in began)
    ends = [one.end for one in found.attempts]
    assert ends.count(AttemptEnd.COMPLETED) == SUBTASKS
    assert {AttemptEnd.FAILED, AttemptEnd.FENCED} <= set(ends)
    place = re.search(r"^coordlog is at (\S+)$", second.output, re.MULTILINE)
    assert place is not None
    assert "coordlog.zip/coordlog/__init__.py" in place[1], "not an installed one"
    assert "the endpoint listens at wss://127.0.0.1:" in first.output, "the logging is on"
    printed = [one for one in case.cluster.folder.rglob("*") if one.is_file()]
    assert any(one.name == "stderr" for one in printed), "those of executors"
    assert [str(one) for one in printed if token.encode() in one.read_bytes()] == []


@pytest.mark.clause("B4")
def test_a_speculative_copy_fences_its_original_and_both_are_recorded(
    case: Case,
) -> None:
    submission = case.submit(
        seconds_per_row=0.002,
        slow_row=FILES * ROWS // 2,
        marker=str(case.folder / "slow"),
        conf={
            "spark.speculation": "true",
            "spark.speculation.interval": "200ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.2",
            "spark.speculation.minTaskRuntime": "1s",
        },
    )

    found = case.finish(submission)

    assert (case.folder / "slow").exists(), "somebody was slow"
    twice = [one for one in found.attempts if one.attempt_number > 0]
    (newer,) = twice
    (older,) = [
        one for one in found.attempts if one.subtask == newer.subtask and one.attempt_number == 0
    ]
    assert older.end is AttemptEnd.FAILED
    assert "fenced by the newer task" in (older.reason or "")
    assert newer.end is AttemptEnd.COMPLETED
    assert (newer.spark_task_attempt_id or 0) > (older.spark_task_attempt_id or 0)
    hosts = {one.attributes["spark_attempt_number"] for one in started(case)}
    assert hosts == {"0", "1"}


def test_executors_come_for_subtasks_and_stay_for_as_long_as_these_run(
    case: Case, topics: Topics
) -> None:
    """Dynamic allocation; topics; and a driver that is killed with its JVM."""
    topic = topics.create(SUBTASKS)
    for partition in range(SUBTASKS):
        topics.fill(topic, partition, [f"{partition}-{one}" for one in range(600)])
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": str(SUBTASKS),
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.executor.cores": "1",
    }
    first = case.submit(topic=topic, seconds_per_row=0.012, conf=conf)
    case.wait_for(Kind.CHECKPOINT_COMPLETED, 2, first)
    first.kill()

    second = case.submit(topic=topic, seconds_per_row=0.012, conf=conf)
    status = second.wait(LIMIT_S)

    assert status == 0, second.output[-8000:]
    table = case.table(["partition", "offset"])
    assert Counter(zip(*(one.to_pylist() for one in table.columns), strict=True)) == Counter(
        (partition, offset) for partition in range(SUBTASKS) for offset in range(600)
    )
    found = audit(case.log.read(0, case.log.high_watermark()))
    ends = {one.end for one in found.attempts}
    assert ends == {AttemptEnd.FENCED, AttemptEnd.COMPLETED}, "no executor was let go at work"
    assert {one.subtask for one in found.attempts} == set(range(SUBTASKS))


def test_queries_commit_each_row_once_whatever_part_of_the_cluster_dies(case: Case) -> None:
    """An executor in the middle of a batch, then the driver after its first commit."""
    batches = 6
    order: dict[str, Any] = {"seconds_per_row": 0.004, "folder": str(case.folder)}
    order |= {"splits_per_batch": FILES // batches, "batches": batches, "conf": ON_BOTH_WORKERS}
    first = case.submit(QUERIES, **order)
    case.wait_for(Kind.RESPONSE, SUBTASKS + 3, first)
    case.cluster.kill_executor(case.cluster.executors(app_id(first))[0])
    commits = case.folder / "checkpoint" / "commits"
    wait_for((commits / "1").exists, "two batches are committed")
    first.kill()
    assert 0 < len(case.rows()) < FILES * ROWS

    second = case.submit(QUERIES, **order)
    status = second.wait(LIMIT_S)

    assert status == 0, second.output[-8000:]
    assert case.rows() == case.rows("copy") == Counter(range(FILES * ROWS))
    case.follower.catch_up()
    epoch_starts = [one for one in case.follower.records if one.kind is Kind.EPOCH_STARTED]
    assert len(epoch_starts) == 2
    assert all(one.attributes["endpoint"].startswith("wss://") for one in epoch_starts)
