"""Spark sessions on this machine: one for jobs (`local_session`), one for queries (`query_session`)."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from coordlog.errors import OptionError, SessionLostError
from coordlog.limits import PARALLELISM_MAX, STAGE_END_TIMEOUT_S
from coordlog.option_types import check_types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "QUERY_TASK_FAILURES_MAX",
    "TASK_FAILURES_MAX",
    "end_session",
    "local_session",
    "plain_interrupts",
    "query_session",
]

_log = logging.getLogger(__name__)

TASK_FAILURES_MAX = 1000
"""Spark's own bound, counted over a job's whole life; the restart policy limits the failures of a subtask."""

QUERY_TASK_FAILURES_MAX = 4
"""Spark's own default on a cluster; plain `local[N]` retries no task."""


_WORKER_DAEMON: Final = "coordlog.spark_integration.task.worker_daemon"
_JVM_END_S: Final = 5.0
"""Time from the first failed call into a JVM until its process has ended, at most."""


def local_session(
    slots: int,
    *,
    app_name: str = "coordlog",
    master: str | None = None,
    jars: Sequence[Path | str] = (),
    settings: Mapping[str, str] | None = None,
    log_file: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """A session for jobs in this process's JVM, or the existing one.

    `local[N]` alone retries no task; this session does, a thousand times: a job's restart policy counts
    instead. It starts fast and has no UI. For DataFrames take `query_session`. Workers run this interpreter.

    Args:
        slots: Tasks that may run at once: at least a job's parallelism.
        app_name: Name of the application in Spark.
        master: Another master than the local one.
        jars: Jars of the class path; fixed when the first JVM of the process starts.
        settings: More of Spark's settings, which override those of this function.
        log_file: File to which the output of Spark, its JVM and its workers is appended, if this call
            starts the JVM. Else they print to this process's own output and error.

    Raises:
        OptionError: `slots` is out of range.
        SessionLostError: The JVM ended while the session was made.
    """
    check_types(local_session, locals())
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.task.killTimeout": "100ms",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    if master is None and _is_installed():
        chosen["spark.python.daemon.module"] = _WORKER_DAEMON
        # With it the tasks of a job would not share the daemon and the worker that the first task has started.
        chosen["spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"] = "false"
    return _session(
        chosen,
        slots=slots,
        failures_max=TASK_FAILURES_MAX,
        app_name=app_name,
        master=master,
        jars=jars,
        settings=settings,
        log_file=log_file,
    )


def query_session(
    slots: int,
    *,
    app_name: str = "coordlog queries",
    master: str | None = None,
    jars: Sequence[Path | str] = (),
    settings: Mapping[str, str] | None = None,
    log_file: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """A session for DataFrames and SQL in this process's JVM, or the existing one.

    Spark's own settings, as on a cluster: a task is tried four times, the UI runs, shuffles have their
    usual partitions, and the JVM compiles frequent code. Only the time zone is UTC. Workers run this
    interpreter. A job warns of such a session: it needs `local_session`.

    Args:
        slots: Tasks that may run at once.
        app_name: Name of the application in Spark.
        master: Another master than the local one.
        jars: Jars of the class path; fixed when the first JVM of the process starts.
        settings: More of Spark's settings, which override those of this function.
        log_file: As of `local_session`.

    Raises:
        OptionError: `slots` is out of range.
        SessionLostError: As of `local_session`.
    """
    check_types(query_session, locals())
    return _session(
        {},
        slots=slots,
        failures_max=QUERY_TASK_FAILURES_MAX,
        app_name=app_name,
        master=master,
        jars=jars,
        settings=settings,
        log_file=log_file,
    )


def _session(
    defaults: Mapping[str, str],
    *,
    slots: int,
    failures_max: int,
    app_name: str,
    master: str | None,
    jars: Sequence[Path | str],
    settings: Mapping[str, str] | None,
    log_file: str | os.PathLike[str] | None,
) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415, an import of a second, not needed by all

    if not 1 <= slots <= PARALLELISM_MAX:
        raise OptionError("slots", slots, f"between 1 and {PARALLELISM_MAX:,}")
    if _has_jvm_died():
        _forget_jvm()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    chosen = {
        **defaults,
        "spark.task.maxFailures": str(failures_max),
        "spark.sql.session.timeZone": "UTC",
    }
    if master is None:
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
    if jars:
        chosen["spark.jars"] = ",".join(str(jar) for jar in jars)
    chosen.update(settings or {})
    chosen["spark.app.name"] = app_name
    chosen["spark.master"] = master or f"local[{slots},{failures_max}]"
    with _naming_dead_jvm():
        _start_jvm(chosen, None if log_file is None else Path(log_file))
        builder = SparkSession.builder
        for name, value in sorted(chosen.items()):
            builder = builder.config(name, value)
        return builder.getOrCreate()


@contextmanager
def _naming_dead_jvm() -> Generator[None, None, None]:
    """Replace errors of py4j by SessionLostError if the JVM ends within the block: killed, or without memory."""
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415, as all of Spark

    try:
        yield
    except Exception as error:
        # A process that is killed closes its sockets a moment before it counts as ended.
        is_cut_off = isinstance(error, (OSError, Py4JNetworkError))
        # An error of PySpark: the JVM has ended before it had a gateway.
        has_not_begun = "[JAVA_GATEWAY_EXITED]" in str(error)
        if not has_not_begun and not _has_jvm_died(_JVM_END_S if is_cut_off else 0.0):
            raise
        _forget_jvm()
        raise SessionLostError(
            f"Spark's JVM has ended while the session was made ({type(error).__name__}: {error})",
            "see its output for the cause, such as a lack of memory, then start again",
        ) from error


def _is_installed() -> bool:
    """Whether each process of this interpreter can import coordlog: it is not only on this process's path."""
    with suppress(PackageNotFoundError):
        return bool(version("coordlog"))
    return False


def end_session(spark: SparkSession) -> None:
    """Stop a session and end the JVM that this process started for it, within a bound.

    The JVM may have died, or stand still: then it is killed.
    """
    from pyspark import SparkContext  # noqa: PLC0415, as above

    if _has_jvm_died():
        _forget_jvm()
        return
    context: Any = SparkContext  # there is no other way to its JVM
    gateway = context._gateway  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    # A call into a JVM that stands still never returns, so a thread of its own makes these calls.
    stopping = threading.Thread(
        target=_stop,
        args=(spark, None if process is None else gateway),
        name="coordlog-end",
        daemon=True,
    )
    stopping.start()
    try:
        stopping.join(STAGE_END_TIMEOUT_S)
        if stopping.is_alive():
            _log.warning("the JVM has not stopped Spark within %g s", STAGE_END_TIMEOUT_S)
            if process is not None:
                process.kill()  # the calls into it fail
                stopping.join(STAGE_END_TIMEOUT_S)
    finally:
        context._gateway = context._jvm = None  # noqa: SLF001
        if process is not None:
            _end_process(process)


def _stop(spark: SparkSession, gateway: Any) -> None:  # noqa: ANN401, py4j's
    """Stop the context, then the gateway if not None."""
    try:
        spark.stop()
    except Exception as error:  # noqa: BLE001, the work is over: the end of Spark changes nothing of it
        _log.warning("Spark could not be stopped, its JVM has probably ended: %r", error)
    if gateway is not None:
        gateway.shutdown()


def _has_jvm_died(within_s: float = 0.0) -> bool:
    """Whether the JVM that this process started ends within that time without a request: killed, or out of memory."""
    from pyspark import SparkContext  # noqa: PLC0415, as above

    context: Any = SparkContext
    process: subprocess.Popen[bytes] | None = getattr(context._gateway, "proc", None)  # noqa: SLF001
    if process is None:
        return False
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _forget_jvm() -> None:
    """Drop session and context of a JVM that has died: Spark keeps them and would return them as live ones."""
    from pyspark import SparkContext  # noqa: PLC0415, as above
    from pyspark.sql import SparkSession  # noqa: PLC0415, as above

    context: Any = SparkContext
    if context._active_spark_context is not None:  # noqa: SLF001
        context._active_spark_context._jsc = None  # noqa: SLF001, so that `stop` calls nothing in the JVM
        context._active_spark_context.stop()  # noqa: SLF001
    context._gateway = context._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001


@contextmanager
def plain_interrupts() -> Generator[None, None, None]:
    """Within the block Ctrl-C raises KeyboardInterrupt, and does nothing else.

    A SparkContext replaces Python's handler by its own, which first cancels all jobs of the session:
    a job could then no longer be stopped with a checkpoint. Only the main thread may set handlers; on
    other threads nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_jvm(settings: Mapping[str, str], log_file: Path | None) -> None:
    """Start the JVM unless this process has one; its output goes to `log_file` if not None.

    Some settings (class path, options of the JVM) take effect only at this start. The JVM has its own
    process group, so that a SIGTERM to this process's group (by `timeout`, or a shell) reaches only the
    driver, which needs the JVM for its last checkpoint. The JVM ends when its standard input is closed.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415, as above
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415, as above

    context: Any = SparkContext  # there is no other way to its JVM
    if context._gateway is not None:  # noqa: SLF001
        return
    conf = SparkConf(loadDefaults=False).setAll(sorted(settings.items()))
    with ExitStack() as stack:
        options: dict[str, object] = {"process_group": 0}
        if log_file is not None:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            options["stdout"] = options["stderr"] = stack.enter_context(log_file.open("ab"))
        try:
            gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        except BaseException:
            # By now the folder is gone to which this JVM was to write its port: it would run on for ever.
            _kill_starting_jvms()
            raise
    context._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001


def _kill_starting_jvms() -> None:
    """Kill the JVMs that `launch_gateway` has started in this process; only if there is no session."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.cmdline()[-1:] == ["pyspark-shell"]:
                child.kill()


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End the JVM by closing its standard input; kill it after a limit."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STAGE_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _log.warning("the JVM (process %d) does not end, and is killed", process.pid)
        process.kill()
        process.wait(STAGE_END_TIMEOUT_S)
