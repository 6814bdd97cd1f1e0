"""A Spark session that reads Kafka and Avro, one per run: the first JVM decides on the jars."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from coordlog.errors import EnvironmentSetupError
from coordlog.spark_integration.history import spark_jars

__all__ = ["jar_settings", "spark_with_kafka"]


def jar_settings() -> dict[str, str]:
    """The settings that every session of the tests is made with; none where no jars can be had.

    All of them must be made with these: whichever is first decides for the whole process.
    """
    try:
        return {"spark.jars": spark_jars()}
    except EnvironmentSetupError:
        return {}


@pytest.fixture(scope="session")
def spark_with_kafka() -> Iterator[SparkSession]:
    """A session with Kafka's source and Avro's functions: the run's own where it has one."""
    active = SparkSession.getActiveSession()
    if active is not None:
        if "spark-sql-kafka" not in (active.conf.get("spark.jars", "") or ""):
            pytest.skip("the run's Spark session was made without the jars of Kafka's source")
        yield active
        return
    settings = jar_settings()
    if not settings:
        pytest.skip("the jars of Kafka's source cannot be fetched here")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("coordlog tests")
    settings |= {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
