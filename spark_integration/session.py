"""A Spark session that fits a job: local, quiet, with Kafka's source where its jars are at hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordlog.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TASK_FAILURES_MAX", "local_session"]

TASK_FAILURES_MAX = 1000
"""Spark's own bound, which adds up over a job's life; how often a subtask may fail is the restart policy's to say."""


def local_session(
    slots: int,
    *,
    app_name: str = "coordlog",
    master: str | None = None,
    jars: Sequence[Path | str] = (),
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session in this process's JVM, or the one that is there.

    `local[N]` alone retries no task; this one does. Workers run this interpreter. The JVM writes to this process's own
    standard output and error.

    Args:
        slots: Tasks that may run at once: at least a job's parallelism.
        app_name: Spark's name for it.
        master: Another master than the local one.
        jars: On the class path; decided when the first JVM of the process starts.
        settings: More of Spark's settings; they win.

    Raises:
        OptionError: `slots` is out of range.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415, a second, and not for everybody

    if not 1 <= slots <= 4096:  # noqa: PLR2004
        raise OptionError("slots", slots, "between 1 and 4096")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": str(TASK_FAILURES_MAX),
        "spark.python.task.killTimeout": "100ms",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.session.timeZone": "UTC",
    }
    if master is None:
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
    if jars:
        chosen["spark.jars"] = ",".join(str(jar) for jar in jars)
    chosen.update(settings or {})
    builder = SparkSession.builder.appName(app_name)
    builder = builder.master(master or f"local[{slots},{TASK_FAILURES_MAX}]")
    for name, value in sorted(chosen.items()):
        builder = builder.config(name, value)
    return builder.getOrCreate()
