"""A Spark session that reads Kafka and Avro, one per run: the first JVM decides on the jars."""

from __future__ import annotations

from collections.abc import Iterator

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
    try:
        jars = resolve(JarSet.SPARK)
    except EnvironmentSetupError:
        jars = ()
    return local_session(_SLOTS, app_name="coordlog tests", jars=jars)


@pytest.fixture(scope="session")
def spark_with_kafka() -> Iterator[SparkSession]:
    """The run's session, where it reads Kafka."""
    session = shared_session()
    if "spark-sql-kafka" not in (session.conf.get("spark.jars", "") or ""):
        pytest.skip("the run's Spark session was made without the jars of Kafka's source")
    yield session
    session.stop()
