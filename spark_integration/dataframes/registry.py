"""Registry of the classes behind `format("coordlog")`: one for each session, with its services."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING

from coordlog.spark_integration.dataframes.ticket import Ticket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["forget_ticket", "register_format", "register_ticket"]

_lock = threading.Lock()
_tickets: weakref.WeakKeyDictionary[SparkSession, dict[str, Ticket]] = weakref.WeakKeyDictionary()


def register_format(spark: SparkSession) -> None:
    """Register the format with the session, for writing. Any thread."""
    with _lock:
        # At each call: a session that was stopped and started again may have lost it.
        _register(spark, _tickets.setdefault(spark, {}))


def register_ticket(spark: SparkSession, ticket: Ticket) -> None:
    """Register a service of reads, for queries created from now on. Any thread."""
    with _lock:
        tickets = _tickets.setdefault(spark, {})
        tickets[ticket.job_id] = ticket
        _register(spark, tickets)


def forget_ticket(spark: SparkSession, ticket: Ticket) -> None:
    """Remove a service for new queries; a newer service of its job stays registered. Any thread."""
    with _lock:
        tickets = _tickets.get(spark, {})
        if tickets.get(ticket.job_id) is ticket:
            del tickets[ticket.job_id]
            _register(spark, tickets)


def _register(spark: SparkSession, tickets: dict[str, Ticket]) -> None:
    from coordlog.spark_integration.dataframes.source import with_tickets  # noqa: PLC0415, it needs Spark

    _show_py_files()
    spark.dataSource.register(with_tickets(tickets))


def _show_py_files() -> None:
    """Add files from `--py-files` to the path of Python processes on this machine.

    Spark plans and commits a stream in another Python process, and searches these files in a folder
    of the query into which it does not copy them (seen on 4.1.1).
    """
    from pyspark import SparkContext, SparkFiles  # noqa: PLC0415, it needs Spark

    context = SparkContext._active_spark_context  # noqa: SLF001, the only access
    if context is None:
        return
    root, environment = SparkFiles.getRootDirectory(), context.environment
    known = environment.get("PYTHONPATH", "").split(os.pathsep)
    shipped = [path for path in sys.path if path.startswith(root + os.sep) and path not in known]
    if shipped:
        environment["PYTHONPATH"] = os.pathsep.join([*shipped, *filter(None, known)])
