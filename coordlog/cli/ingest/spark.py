"""The Spark session of one command, which ends with its JVM before the command does."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from coordlog.spark_integration.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_session"]

_logging = logging.getLogger(__name__)

_JVM_END_S: Final = 10.0


@contextmanager
def spark_session(master: str | None, slots: int) -> Iterator[SparkSession]:
    """A session with that many slots, for the block; its JVM ends with it."""
    spark = local_session(slots, app_name="coordlog ingest", master=master)
    try:
        yield spark
    finally:
        try:
            spark.stop()
        except Exception as error:  # noqa: BLE001, the job is over: Spark's end changes nothing of it
            _logging.warning("Spark could not be stopped, its JVM has probably ended: %r", error)
        finally:
            _end_jvm()


def _end_jvm() -> None:
    """Wait until the JVM has ended; it ends when its standard input is closed."""
    from pyspark import SparkContext  # noqa: PLC0415, a second

    gateway: Any = SparkContext._gateway  # noqa: SLF001, there is no other way to it
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return
    gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_JVM_END_S)
    except subprocess.TimeoutExpired:
        _logging.warning("the JVM (process %d) did not end in time and is killed", process.pid)
        process.kill()
        process.wait(_JVM_END_S)
