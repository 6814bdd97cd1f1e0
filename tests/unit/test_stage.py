"""What is asked of a session, and what Spark's errors become; with no session."""

from __future__ import annotations

import pytest

from coordlog.spark_integration.stage import endpoint_host, short_reason

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
