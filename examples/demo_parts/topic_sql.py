"""The demo's two tables by Spark SQL over the topics."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from coordlog.spark_integration import create_views, history_session

from .tables import ATTEMPTS_SQL, THROWN_SQL, Row

__all__ = ["tables_in_sql"]


def tables_in_sql(
    job_ids: Sequence[str], servers: str, output: Path
) -> list[tuple[list[Row], list[Row]]]:
    """The attempts and the thrown-away splits of each job.

    Args:
        job_ids: Ids of the jobs.
        servers: Addresses of their broker.
        output: File for the output of Spark.
    """
    with _output_to(output):
        spark = history_session(app_name="coordlog demo")
        try:
            return [_tables(spark, job_id, servers) for job_id in job_ids]
        finally:
            spark.stop()


def _tables(spark: SparkSession, job_id: str, servers: str) -> tuple[list[Row], list[Row]]:
    prefix = job_id.replace("-", "_") + "_"
    create_views(spark, job_id, bootstrap_servers=servers, prefix=prefix)
    attempts = spark.sql(ATTEMPTS_SQL.format(prefix=prefix)).collect()
    thrown = spark.sql(THROWN_SQL.format(prefix=prefix)).collect()
    return [tuple(row) for row in attempts], [tuple(row) for row in thrown]


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Redirects the output of this process and its JVM to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for number, old in zip((1, 2), saved, strict=True):
            os.dup2(old, number)
            os.close(old)
