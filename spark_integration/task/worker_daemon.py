"""Spark's daemon of Python workers, with the modules of a job's tasks imported: `python -m` this module.

Spark starts one daemon for a session, and forks a worker from it for each task that runs at once. A worker of Spark's
own daemon imports the modules of its tasks itself: a second of CPU time for each, at a job's start and again for each
process that replaces another.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Final

from coordlog.spark_integration.task.worker_archives import keep_archives

__all__: list[str] = []

_MODULES: Final = (
    "pandas",
    "coordlog.spark_integration.task.task",
    "coordlog.spark_integration.transform",
    "coordlog.spark_integration.files.source.reader",
    "coordlog.spark_integration.files.sink.rejects",
)
"""Modules of which nothing starts a thread when they are imported: a fork has only the thread that forks."""


def _serve() -> None:
    keep_archives()
    for name in _MODULES:
        # A worker that needs a missing module reports it with its place; the daemon has no place to report to.
        with suppress(ImportError):
            importlib.import_module(name)
    # Reads the worker's module from this process's arguments when it is imported.
    from pyspark import daemon  # noqa: PLC0415

    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    _serve()
