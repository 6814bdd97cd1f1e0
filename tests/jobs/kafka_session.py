"""A Spark session that reads Kafka and Avro, one per run: the first JVM decides on the jars."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coordlog.errors import EnvironmentSetupError
from coordlog.log.broker.jars import JarSet, resolve
from coordlog.spark_integration.session import local_session

__all__ = ["shared_session", "spark_with_kafka"]

_SLOTS = 8
"""As many subtasks as a test of the run may want at once."""


def shared_session() -> SparkSession:
    """The session of this run: with the jars of Kafka's source wherever they can be had.

    Every test's session must come from here: whichever is first decides for the whole process.
    """
    _let_workers_import_helpers()
    try:
        jars = resolve(JarSet.SPARK)
    except EnvironmentSetupError:
        jars = ()
    return local_session(_SLOTS, app_name="coordlog tests", jars=jars)


def _let_workers_import_helpers() -> None:
    """Put `tests` on the path of the JVM's workers, as pytest has put it on this process's own.

    A function of a test's module is sent by name: the worker imports the module, and what that imports.
    """
    tests = str(Path(__file__).parents[1])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if tests not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, paths)])


@pytest.fixture(scope="session")
def spark_with_kafka() -> Iterator[SparkSession]:
    """The run's session, where it reads Kafka."""
    session = shared_session()
    if "spark-sql-kafka" not in (session.conf.get("spark.jars", "") or ""):
        pytest.skip("the run's Spark session was made without the jars of Kafka's source")
    yield session
    session.stop()
