"""The first task of a session: an error of a worker that cannot load it, and errors of Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from coordlog.errors import EnvironmentSetupError, UsageError
from coordlog.spark_integration.task.worker_probe import WorkerProbe, use_own_interpreter
from fakes.endpoint_parts import wait_for

WAIT_S = 20.0


class Session:
    """As much of a SparkSession as is needed: its first task is `collect`; notes the tags of cancelled jobs."""

    pythonExec = "python3"  # noqa: N815, Spark's name

    def __init__(self, collect: Callable[[], list[None]]) -> None:
        self.collect, self.tags, self.cancelled = collect, list[str](), list[str]()
        self.sparkContext: Any = self

    def parallelize(self, _numbers: list[int], _slices: int) -> Any:  # noqa: ANN401, an RDD
        return SimpleNamespace(map=lambda _load: SimpleNamespace(collect=self.collect))

    def addJobTag(self, tag: str) -> None:  # noqa: N802, Spark's name
        self.tags.append(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802, Spark's name
        self.cancelled.append(tag)


def probe(session: Session) -> WorkerProbe:
    spark: Any = session
    return WorkerProbe(spark, None, "job j")


def failing(text: str) -> Session:
    """A session whose first task fails."""

    def collect() -> list[None]:
        raise RuntimeError(text)

    return Session(collect)


def test_an_operator_that_does_not_pickle_is_named_before_any_task() -> None:
    """The job went through all restarts of its policy, and its failure named no operator."""
    spark: Any = Session(lambda: [None])
    pickling = SimpleNamespace(operator_id="source", create=print)
    locked = SimpleNamespace(operator_id="enrich", create=threading.Lock())
    first = WorkerProbe(spark, SimpleNamespace(links=(pickling, locked)), "job j")

    with pytest.raises(
        EnvironmentSetupError,
        match=r"operator 'enrich' of job j cannot be sent to its tasks: TypeError: cannot pickle .*lock.* in `open`",
    ):
        first.check(WAIT_S)


@pytest.mark.parametrize(
    "text",
    [
        "Job 0 cancelled because SparkContext was shut down",
        "Lost task 0.3 in stage 0.0: ExecutorLostFailure (executor 1 exited)",
    ],
)
def test_an_error_of_spark_itself_says_nothing_of_the_workers(text: str) -> None:
    first = probe(failing(text))

    with pytest.raises(RuntimeError, match=r"SparkContext|ExecutorLost"):
        first.check(WAIT_S)
    assert first.is_void


def test_a_worker_that_cannot_load_its_task_is_named_with_its_error() -> None:
    text = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\nAttributeError: no 'f'"
    first = probe(failing(text))

    with pytest.raises(EnvironmentSetupError, match="AttributeError: no 'f'"):
        first.check(WAIT_S)
    assert not first.is_void


@pytest.fixture
def stuck() -> Iterator[Session]:
    """A session whose first task gets no slot."""
    goes_on = threading.Event()

    def collect() -> list[None]:
        assert goes_on.wait(WAIT_S)
        return [None]

    yield Session(collect)
    goes_on.set()


def test_a_first_task_that_gets_no_slot_is_cancelled_and_named(stuck: Session) -> None:
    first = probe(stuck)

    with pytest.raises(EnvironmentSetupError, match=r"has not ended within 0\.1 s; .*slot is free"):
        first.check(0.1)
    wait_for(lambda: stuck.cancelled == stuck.tags != [], "its Spark job is cancelled")
    assert first.is_void


def test_nobody_waits_any_more_for_a_first_task_that_was_cancelled(stuck: Session) -> None:
    first = probe(stuck)
    first.cancel()

    with pytest.raises(UsageError, match="was cancelled"):
        first.check(None)


def test_workers_that_can_load_their_task_are_waited_for_and_not_named() -> None:
    first = probe(Session(lambda: [None]))
    first.check(WAIT_S)
    first.cancel()
    first.check(None)

    assert not first.is_void


def test_a_python_that_is_no_program_is_refused_before_any_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark would try to start it as often as it tries a task, which is a thousand times."""
    session: Any = Session(lambda: [None])
    monkeypatch.setenv("PYSPARK_PYTHON", "/nonexistent/python")

    with pytest.raises(EnvironmentSetupError, match="PYSPARK_PYTHON is '/nonexistent/python'"):
        use_own_interpreter(session, is_local=True)
    use_own_interpreter(session, is_local=False)  # executors may have it
    assert session.pythonExec == "python3"


def test_a_worker_that_cannot_be_started_is_named_with_its_program() -> None:
    text = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        'java.io.IOException: Cannot run program "/opt/python": error=2, No such file\n'
        "\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)"
    )
    first = probe(failing(text))

    with pytest.raises(EnvironmentSetupError, match='Cannot run program "/opt/python": error=2'):
        first.check(WAIT_S)
