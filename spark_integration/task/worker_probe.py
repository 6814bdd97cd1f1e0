"""A first task that loads what all tasks load: tells a module that workers lack in one line, before any attempt."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coordlog.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_workers", "use_own_interpreter"]

_CAUSE_CHARS: Final = 500
_OF_WORKERS: Final = ("PythonException", "Cannot run program")
"""In the errors of a worker that cannot load its task, or cannot be started; other errors show nothing of it."""
_OWN_MODULES: Final = ("coordlog", "pyarrow", "pyspark")


class _Missing(NamedTuple):
    """The error of the first task."""

    module: str
    """Empty if it is an error of another kind than a missing module."""
    cause: str
    python: str
    host: str


def use_own_interpreter(spark: SparkSession, *, is_local: bool) -> None:
    """In local mode workers run this interpreter, which has what the job needs, unless PYSPARK_PYTHON names another."""
    context = _context(spark)
    if context is not None and is_local:
        context.pythonExec = os.environ.get("PYSPARK_PYTHON") or sys.executable


def check_workers(spark: SparkSession, closure: object, what: str) -> None:
    """Load `closure` in one task, as every task will. Blocks; with Spark Connect nothing can be tried.

    Args:
        spark: The session.
        closure: Travels to the tasks; by reference, if its classes are in modules.
        what: The name of what needs it, for the message.

    Raises:
        EnvironmentSetupError: A worker cannot load it, with the module, the worker's Python and the next step.
        Exception: Spark's own, if it cannot run a task at all.
    """
    context = _context(spark)
    if context is None:
        return
    from pyspark import cloudpickle  # noqa: PLC0415, a second, and not for all callers

    missing = _tried(context, cloudpickle.dumps(closure))  # type: ignore[no-untyped-call]
    if missing is None:
        return
    where = f"where tasks run (Python {missing.python} on {missing.host})"
    if missing.module in _OWN_MODULES:
        raise EnvironmentSetupError(
            f"{what} needs the module {missing.module!r}, which cannot be imported {where}: {missing.cause}",
            f"set PYSPARK_PYTHON to a Python that has it (here {sys.executable}) before the session is made, or "
            "install coordlog there",
        )
    if missing.module:
        raise EnvironmentSetupError(
            f"{what} needs the module {missing.module!r}, which cannot be imported {where}: {missing.cause}",
            f"ship it with `--py-files {missing.module.partition('.')[0]}.py` or "
            "`spark.sparkContext.addPyFile(…)`, or put its folder on PYTHONPATH before the session is made",
        )
    raise EnvironmentSetupError(
        f"{what} cannot be loaded {where}: {missing.cause}",
        "see that the workers have the same versions of its modules as this process",
    )


def _tried(context: Any, content: bytes) -> _Missing | None:  # noqa: ANN401, a SparkContext with its JVM inside
    try:
        # Through an RDD: a DataFrame's function needs pyarrow before it can tell that there is none.
        answers = context.parallelize([0], 1).map(_loader(content)).collect()
    except Exception as error:
        if not any(mark in str(error) for mark in _OF_WORKERS):
            raise  # Spark's own: a session that was stopped, a lost executor
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The last line of the worker's traceback, or Spark's own first one.
        raised = [line for line in lines if "Error: " in line and not line.startswith("at ")]
        cause = (raised[-1:] or lines[:1] or [type(error).__name__])[0]
        return _Missing("", cause[:_CAUSE_CHARS], context.pythonExec, socket.gethostname())
    return None if answers[0] is None else _Missing(*answers[0])


def _loader(content: bytes) -> Callable[[int], tuple[str, str, str, str] | None]:
    """A function that travels by value: a worker without coordlog runs it, too."""

    def load(_number: int) -> tuple[str, str, str, str] | None:
        import importlib  # noqa: PLC0415, in the worker
        import pickle  # noqa: PLC0415, in the worker
        import socket  # noqa: PLC0415, in the worker
        import sys  # noqa: PLC0415, in the worker

        try:
            importlib.import_module("pyarrow")
            pickle.loads(content)  # noqa: S301, made by the driver
        except Exception as error:  # noqa: BLE001, told to the driver
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
