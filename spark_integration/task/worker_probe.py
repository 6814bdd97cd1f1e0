"""A first task that imports the modules of all tasks: a missing module is reported in one line, before any attempt."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coordlog.causes import text_of
from coordlog.errors import EnvironmentSetupError, UsageError
from coordlog.limits import WORKER_PROBE_TIMEOUT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["WorkerProbe", "use_own_interpreter"]

_log = logging.getLogger(__name__)

_CAUSE_CHARS: Final = 500
_OF_WORKERS: Final = ("PythonException", "Cannot run program")
"""Marks in the errors of a worker that cannot load its task, or cannot be started."""
_OWN_MODULES: Final = ("coordlog", "pyarrow", "pyspark")


class _Missing(NamedTuple):
    """The error of the first task."""

    module: str
    """Name of the missing module; empty for another kind of error."""
    cause: str
    python: str
    host: str


def use_own_interpreter(spark: SparkSession, *, is_local: bool) -> None:
    """In local mode workers run this interpreter, which has what the job needs, unless PYSPARK_PYTHON names another.

    Raises:
        EnvironmentSetupError: PYSPARK_PYTHON is no program: Spark would try to start it at each try of a task.
    """
    context = _context(spark)
    if context is None or not is_local:
        return
    python = os.environ.get("PYSPARK_PYTHON") or sys.executable
    if shutil.which(python) is None:
        raise EnvironmentSetupError(
            f"PYSPARK_PYTHON is {python!r}, and there is no such program on this machine",
            f"set it to a Python that has coordlog (here {sys.executable}), or leave it out",
        )
    context.pythonExec = python


class WorkerProbe:
    """One task that loads `closure`, as every task will; it runs in the background from its creation.

    With Spark Connect no task is run.

    Args:
        spark: The session.
        closure: Object sent to the tasks; by reference, if its classes are in modules.
        what: Name of the job or the format that needs the closure, for messages.
    """

    def __init__(self, spark: SparkSession, closure: object, what: str) -> None:
        self._context, self._closure, self._what = _context(spark), closure, what
        self.tag = f"coordlog-probe-{secrets.token_hex(8)}"
        """Tag of its Spark job."""
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._missing: _Missing | None = None
        self._error: BaseException | None = None
        if self._context is None:
            self._ended.set()
            return
        threading.Thread(target=self._run, name="coordlog-probe", daemon=True).start()

    @property
    def is_void(self) -> bool:
        """Whether the task has ended without a result about the workers: Spark failed, or the task was cancelled."""
        return self._ended.is_set() and self._error is not None

    def check(self, timeout_s: float | None = WORKER_PROBE_TIMEOUT_S) -> None:
        """Wait for the task's end; with None until it ends or is cancelled.

        Raises:
            EnvironmentSetupError: A worker cannot load the closure, with the module, the worker's Python and the next
                step; or the task has not ended in time.
            Exception: Spark's own error, if it cannot run a task at all.
            UsageError: The task was cancelled.
        """
        if not self._ended.wait(timeout_s):
            self.cancel()
            raise EnvironmentSetupError(
                f"{self._what} needs tasks, and the first one of this session has not ended within {timeout_s:g} s",
                "check that executors have come and that one slot is free, then start it again",
            )
        if self._error is not None:
            raise self._error
        if self._missing is not None:
            raise self._unfit(self._missing)

    def cancel(self) -> None:
        """Cancel the task and end all waits for it. Any thread; does not wait for Spark."""
        with self._lock:
            if self._ended.is_set():
                return
            self._error = UsageError(f"the first task of {self._what} was cancelled")
            self._ended.set()
        # A call into the JVM takes milliseconds, or never returns.
        threading.Thread(target=self._cancel, name="coordlog-probe-end", daemon=True).start()

    def _cancel(self) -> None:
        try:
            self._context.cancelJobsWithTag(self.tag)
        except Exception as error:  # noqa: BLE001, whatever a stopped session or a lost JVM raises
            _log.info("the first task cannot be cancelled: %s", error)

    def _run(self) -> None:
        from pyspark import cloudpickle  # noqa: PLC0415, a second, and not for all callers

        missing: _Missing | None = None
        failure: BaseException | None = None
        try:
            self._context.addJobTag(self.tag)
            try:
                content = cloudpickle.dumps(self._closure)  # type: ignore[no-untyped-call]
            except Exception as error:
                raise self._unsendable(error) from error
            missing = _tried(self._context, content)
        except BaseException as error:  # noqa: BLE001, raised where it is waited for
            failure = error
        with self._lock:
            if not self._ended.is_set():
                self._missing, self._error = missing, failure
                self._ended.set()

    def _unsendable(self, error: Exception) -> EnvironmentSetupError:
        from pyspark import cloudpickle  # noqa: PLC0415, as above

        place = self._what
        for link in getattr(self._closure, "links", ()):
            try:
                cloudpickle.dumps(link)  # type: ignore[no-untyped-call]
            except Exception:  # noqa: BLE001, whatever an object raises that does not pickle
                place = f"operator {link.operator_id!r} of {self._what}"
                break
        return EnvironmentSetupError(
            f"{place} cannot be sent to its tasks: {text_of(error)}",
            "make what does not pickle, such as a session, a connection or a lock, in `open` of the operator",
        )

    def _unfit(self, missing: _Missing) -> EnvironmentSetupError:
        what, where = self._what, f"where tasks run (Python {missing.python} on {missing.host})"
        if missing.module in _OWN_MODULES:
            return EnvironmentSetupError(
                f"{what} needs the module {missing.module!r}, which cannot be imported {where}: {missing.cause}",
                f"set PYSPARK_PYTHON to a Python that has it (here {sys.executable}) before the session is made, or "
                "install coordlog there",
            )
        if missing.module:
            return EnvironmentSetupError(
                f"{what} needs the module {missing.module!r}, which cannot be imported {where}: {missing.cause}",
                f"ship it with `--py-files {missing.module.partition('.')[0]}.py` or "
                "`spark.sparkContext.addPyFile(…)`, or put its folder on PYTHONPATH before the session is made",
            )
        return EnvironmentSetupError(
            f"{what} cannot be loaded {where}: {missing.cause}",
            "check that the workers have the same versions of its modules as this process",
        )


def _tried(context: Any, content: bytes) -> _Missing | None:  # noqa: ANN401, a SparkContext with its JVM inside
    try:
        # Through an RDD: a DataFrame's function needs pyarrow before it can tell that there is none.
        answers = context.parallelize([0], 1).map(_loader(content)).collect()
    except Exception as error:
        if not any(mark in str(error) for mark in _OF_WORKERS):
            raise  # Spark's own: a session that was stopped, a lost executor
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The last line of the worker's traceback, why there is no worker, or Spark's own first one.
        raised = [
            line
            for line in lines
            if ("Error: " in line or "Cannot run program" in line) and not line.startswith("at ")
        ]
        cause = (raised[-1:] or lines[:1] or [type(error).__name__])[0]
        return _Missing("", cause[:_CAUSE_CHARS], context.pythonExec, socket.gethostname())
    return None if answers[0] is None else _Missing(*answers[0])


def _loader(content: bytes) -> Callable[[int], tuple[str, str, str, str] | None]:
    """A function that is pickled by value, so that a worker without coordlog can run it."""

    def load(_number: int) -> tuple[str, str, str, str] | None:
        import importlib  # noqa: PLC0415, in the worker
        import pickle  # noqa: PLC0415, in the worker
        import socket  # noqa: PLC0415, in the worker
        import sys  # noqa: PLC0415, in the worker

        try:
            importlib.import_module("pyarrow")
            pickle.loads(content)  # noqa: S301, made by the driver
        except Exception as error:  # noqa: BLE001, reported to the driver
            name = getattr(error, "name", None) if isinstance(error, ImportError) else None
            cause = f"{type(error).__name__}: {error}"[:500]
            return name or "", cause, sys.executable, socket.gethostname()
        return None

    return load


def _context(spark: SparkSession) -> Any:  # noqa: ANN401, a SparkContext with its JVM inside
    """The session's context; None with Spark Connect, which offers none."""
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001, each version raises another
        return None
