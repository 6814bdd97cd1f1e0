"""A Spark session that fits a job: local, quiet, with Kafka's source where its jars are at hand."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordlog.errors import OptionError
from coordlog.limits import STAGE_END_TIMEOUT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TASK_FAILURES_MAX", "end_session", "local_session", "plain_interrupts"]

_log = logging.getLogger(__name__)

TASK_FAILURES_MAX = 1000
"""Spark's own bound, which adds up over a job's life; how often a subtask may fail is the restart policy's to say."""


def local_session(
    slots: int,
    *,
    app_name: str = "coordlog",
    master: str | None = None,
    jars: Sequence[Path | str] = (),
    settings: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> SparkSession:
    """A session in this process's JVM, or the one that is there.

    `local[N]` alone retries no task; this one does. Workers run this interpreter.

    Args:
        slots: Tasks that may run at once: at least a job's parallelism.
        app_name: Spark's name for it.
        master: Another master than the local one.
        jars: On the class path; decided when the first JVM of the process starts.
        settings: More of Spark's settings; they win.
        log_file: Takes, at its end, all that Spark, its JVM and its workers print, if this starts
            the JVM. Else they print to this process's own output and error.

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
    chosen["spark.app.name"] = app_name
    chosen["spark.master"] = master or f"local[{slots},{TASK_FAILURES_MAX}]"
    if log_file is not None:
        _start_jvm(chosen, log_file)
    builder = SparkSession.builder
    for name, value in sorted(chosen.items()):
        builder = builder.config(name, value)
    return builder.getOrCreate()


def end_session(spark: SparkSession) -> None:
    """Stop a session and end the JVM that this process has started for it, within a bound."""
    from pyspark import SparkContext  # noqa: PLC0415, as above

    try:
        spark.stop()
    finally:
        context: Any = SparkContext  # there is no other way to its JVM
        gateway = context._gateway  # noqa: SLF001
        context._gateway = context._jvm = None  # noqa: SLF001
        process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
        if process is not None:
            gateway.shutdown()
            _end_process(process)


@contextmanager
def plain_interrupts() -> Generator[None, None, None]:
    """Within the block Ctrl-C raises KeyboardInterrupt, and does nothing else.

    A SparkContext puts a handler of its own in Python's place, which first cancels all jobs of the
    session: a job could then no longer be stopped with a checkpoint. Outside the main thread, which
    alone may set handlers, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_jvm(settings: Mapping[str, str], log_file: Path) -> None:
    """Start the JVM with its output in a file, where this process has none yet.

    It starts with the settings, some of which (class path, options of the JVM) count only then.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415, as above
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415, as above

    context: Any = SparkContext  # there is no other way to its JVM
    if context._gateway is not None:  # noqa: SLF001
        return
    conf = SparkConf(loadDefaults=False).setAll(sorted(settings.items()))
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as file:
        gateway = launch_gateway(conf, {"stdout": file, "stderr": file})  # type: ignore[no-untyped-call]
    context._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """The JVM ends by itself once nobody holds its standard input."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STAGE_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _log.warning("the JVM (process %d) does not end, and is killed", process.pid)
        process.kill()
        process.wait(STAGE_END_TIMEOUT_S)
