"""Which classes Spark knows as `format("coordlog")`: one for each session, with its services."""

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
    """Let the session know the format, for writing. Any thread."""
    with _lock:
        # Each time: a session that was stopped and begun anew may have forgotten it.
        _register(spark, _tickets.setdefault(spark, {}))


def register_ticket(spark: SparkSession, ticket: Ticket) -> None:
    """Let queries made from now on find a service that reads. Any thread."""
    with _lock:
        tickets = _tickets.setdefault(spark, {})
        tickets[ticket.job_id] = ticket
        _register(spark, tickets)


def forget_ticket(spark: SparkSession, ticket: Ticket) -> None:
    """Let no query find it any more; a newer service of its job stays. Any thread."""
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
    """Let processes of this machine find what came by `--py-files`.

    Spark has a stream planned and committed by a Python of its own, and looks for these files in a
    folder of the query's that it does not put them into (seen on 4.1.1).
    """
    from pyspark import SparkContext, SparkFiles  # noqa: PLC0415, it needs Spark

    context = SparkContext._active_spark_context  # noqa: SLF001, there is no other way to ask
    if context is None:
        return
    root, environment = SparkFiles.getRootDirectory(), context.environment
    known = environment.get("PYTHONPATH", "").split(os.pathsep)
    shipped = [one for one in sys.path if one.startswith(root + os.sep) and one not in known]
    if shipped:
        environment["PYTHONPATH"] = os.pathsep.join([*shipped, *filter(None, known)])
