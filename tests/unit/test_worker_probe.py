"""The first task of a session: an error of a worker that cannot load it, and errors of Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordlog.errors import EnvironmentSetupError
from coordlog.spark_integration.task.worker_probe import check_workers


def session(error: Exception) -> Any:  # noqa: ANN401, a SparkSession of which little is there
    """A session whose first task ends with `error`."""

    def collect() -> None:
        raise error

    tasks = SimpleNamespace(map=lambda _load: SimpleNamespace(collect=collect))
    context = SimpleNamespace(parallelize=lambda _numbers, _slices: tasks, pythonExec="python3")
    return SimpleNamespace(sparkContext=context)


@pytest.mark.parametrize(
    "text",
    [
        "Job 0 cancelled because SparkContext was shut down",
        "Lost task 0.3 in stage 0.0: ExecutorLostFailure (executor 1 exited)",
    ],
)
def test_an_error_of_spark_itself_says_nothing_of_the_workers(text: str) -> None:
    with pytest.raises(RuntimeError, match=r"SparkContext|ExecutorLost"):
        check_workers(session(RuntimeError(text)), None, "job j")


def test_a_worker_that_cannot_load_its_task_is_named_with_its_error() -> None:
    text = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\nAttributeError: no 'f'"

    with pytest.raises(EnvironmentSetupError, match="AttributeError: no 'f'"):
        check_workers(session(RuntimeError(text)), None, "job j")
