"""What is asked of a session, and what Spark's errors become; with no session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordlog.errors import EnvironmentSetupError
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration import FileSource, Job, ParquetSink
from coordlog.spark_integration.batches.exactly_once import sinks_of
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.dataframes import coordinated
from coordlog.spark_integration.driver import stage
from coordlog.spark_integration.driver.stage import check_slots, endpoint_host, short_reason

RAISED_IN_A_TASK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "task.py", line 16, in run_task
    raise AttemptError("...") from None
coordlog.errors.AttemptError: attempt 3 of subtask 1 failed with KeyError: 'x'
"""
OF_SPARK = """An error occurred while calling o80.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: lost
\tat org.apache.spark.errors.SparkCoreErrors$.sparkJobCancelled(SparkCoreErrors.scala:180)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            RAISED_IN_A_TASK,
            "coordlog.errors.AttemptError: attempt 3 of subtask 1 failed with KeyError: 'x'",
        ),
        (
            OF_SPARK,
            "org.apache.spark.SparkException: Job aborted due to stage failure: lost",
        ),
        ("[CODE] Something.\nmore", "[CODE] Something."),
        ("", "RuntimeError"),
    ],
    ids=["of a task", "of Spark", "of a call", "none"],
)
def test_of_an_error_of_spark_the_sentence_is_kept(text: str, expected: str) -> None:
    assert short_reason(RuntimeError(text)) == expected


def test_a_reason_has_a_limit() -> None:
    assert len(short_reason(RuntimeError("x" * 10_000))) == 4_000


class FakeSession:
    """A session's settings."""

    def __init__(self, **settings: str) -> None:
        self.conf = {key.replace("_", "."): value for key, value in settings.items()}


@pytest.mark.parametrize(
    "master", ["local", "local[4]", "local[*]", "local[4,1000]", "local[*, 5]"]
)
def test_in_local_mode_the_endpoint_is_reached_from_this_machine_only(master: str) -> None:
    spark = FakeSession(spark_master=master, spark_driver_host="192.0.2.2")
    assert endpoint_host(spark) == "127.0.0.1"  # type: ignore[arg-type]


@pytest.mark.parametrize("master", ["local-cluster[2,3,1024]", "spark://m:7077", "yarn", "k8s://x"])
def test_elsewhere_it_is_reached_where_the_driver_is(master: str) -> None:
    spark = FakeSession(spark_master=master, spark_driver_host="192.0.2.2")
    assert endpoint_host(spark) == "192.0.2.2"  # type: ignore[arg-type]


class DynamicSession(FakeSession):
    """One whose executors come and go; it has no context to be asked."""

    def __init__(self, **settings: str) -> None:
        super().__init__(**settings)
        self.conf["spark.dynamicAllocation.enabled"] = "true"
        self.conf["spark.task.maxFailures"] = "1000"


def check(parallelism: int, **settings: str) -> None:
    spark = DynamicSession(spark_master="spark://m:7077")
    spark.conf.update({f"spark.{key.replace('_', '.')}": v for key, v in settings.items()})
    check_slots(spark, parallelism)  # type: ignore[arg-type]


def test_too_low_dynamic_allocation_bounds_are_refused_by_the_numbers() -> None:
    bounds = {"dynamicAllocation_maxExecutors": "3", "executor_cores": "4"}
    check(12, **bounds)
    with pytest.raises(
        EnvironmentSetupError,
        match=r"13 subtasks .* at most 12: 3 executors .* of 4; allow at least 4 executors, or a "
        r"parallelism of at most 12",
    ):
        check(13, **bounds)
    check(6, **bounds, task_cpus="2")
    with pytest.raises(EnvironmentSetupError, match="at most 6"):
        check(7, **bounds, task_cpus="2")


def test_without_a_bound_dynamic_allocation_gives_what_is_asked_for() -> None:
    check(4096)
    check(4096, executor_cores="1")
    check(4096, dynamicAllocation_maxExecutors="2")


class Jvm:
    """A context's way into its JVM."""

    def __init__(self, *, answer: bool | Exception) -> None:
        self.answer = answer

    def sc(self) -> Jvm:
        return self

    def isStopped(self) -> bool:  # noqa: N802, as Spark has it
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("jvm", "expected"),
    [
        (Jvm(answer=False), None),
        (Jvm(answer=True), "its context has been stopped"),
        (None, "its context has been stopped"),
        (
            Jvm(answer=ConnectionRefusedError("nobody")),
            "its JVM does not respond any more (ConnectionRefusedError: nobody)",
        ),
    ],
)
def test_a_session_that_is_over_is_told_from_a_stage_that_failed(
    jvm: Jvm | None, expected: str | None
) -> None:
    session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=jvm))
    assert stage.lost_session(session) == expected  # type: ignore[arg-type]
    assert stage.lost_session(SimpleNamespace()) is None  # type: ignore[arg-type]


class LostSession:
    """A session whose JVM was killed, as py4j shows it."""

    version = "4.1.1"
    _jsparkSession = None  # noqa: N815, Spark's name

    @property
    def conf(self) -> object:
        raise ConnectionRefusedError(111, "Connection refused")

    @property
    def sparkContext(self) -> object:  # noqa: N802, Spark's name
        def sc() -> object:
            raise ConnectionRefusedError(111, "Connection refused")

        return SimpleNamespace(_jsc=SimpleNamespace(sc=sc))


@pytest.mark.parametrize("kind", ["job", "reads", "batches"])
def test_a_start_on_a_session_whose_jvm_was_killed_names_it(kind: str, tmp_path: Path) -> None:
    session, log = cast("Any", LostSession()), MemoryLog("job")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("a\n1\n", encoding="utf-8")
    source, sink = FileSource(tmp_path / "in"), ParquetSink(tmp_path / "out")
    starts: dict[str, Callable[[], object]] = {
        "job": lambda: Job(job_id="job", log=log, source=source, sink=sink).run(session),
        "reads": lambda: coordinated(session, "job", source, log=log).start(),
        "batches": lambda: BatchService(job_id="job", sinks=sinks_of(sink), log=log).start(session),
    }

    with pytest.raises(
        EnvironmentSetupError, match=r"Spark session has ended: .*does not respond any more"
    ):
        starts[kind]()
    assert log.high_watermark() == 0, "nothing was appended"
