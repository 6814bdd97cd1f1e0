"""One Spark session for the whole run."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from jobs.kafka_session import shared_session


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The session of this run; its JVM ends with the run's process."""
    return shared_session()
