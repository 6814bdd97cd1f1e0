"""Registry of the classes behind `format("coordlog")`: one for each session, with its services."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from coordlog.spark_integration.dataframes.query_end import PlanSeal
from coordlog.spark_integration.dataframes.ticket import Ticket
from coordlog.spark_integration.files.sink.writer import FileWriters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["forget_ticket", "register_format", "register_ticket"]

_lock = threading.Lock()
_registered: weakref.WeakKeyDictionary[SparkSession, _Registered] = weakref.WeakKeyDictionary()


class _Registered:
    """Services of one session, and seals of the plans that may still refer to them."""

    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.writers: dict[str, FileWriters] = {}
        self.seals: list[tuple[PlanSeal, list[Ticket]]] = []
        """Seal of each registered class with services, and those of its services that have not ended."""


def register_format(spark: SparkSession, writers: Mapping[str, FileWriters]) -> None:
    """Register the format with the session, for writing, with these writers and the earlier ones. Any thread."""
    with _lock:
        # At each call: a session that was stopped and started again may have lost it.
        registered = _registered.setdefault(spark, _Registered())
        registered.writers.update(writers)
        _register(spark, registered)


def register_ticket(spark: SparkSession, ticket: Ticket) -> None:
    """Register a service of reads, for queries created from now on. Any thread."""
    with _lock:
        registered = _registered.setdefault(spark, _Registered())
        registered.tickets[ticket.job_id] = ticket
        _register(spark, registered)


def forget_ticket(spark: SparkSession, ticket: Ticket, reason: str) -> None:
    """Remove a service for new queries; a newer service of its job stays registered. Any thread.

    Plans of this service fail with the reason from now on, those that may be of other services once these have ended.
    """
    with _lock:
        registered = _registered.setdefault(spark, _Registered())
        if registered.tickets.get(ticket.job_id) is ticket:
            del registered.tickets[ticket.job_id]
            _register(spark, registered)
        for seal, tickets in list(registered.seals):
            tickets[:] = [other for other in tickets if other is not ticket]
            if not tickets:
                registered.seals.remove((seal, tickets))
                seal.destroy(reason)


def _register(spark: SparkSession, registered: _Registered) -> None:
    from coordlog.spark_integration.dataframes.source import with_tickets  # noqa: PLC0415, it needs Spark

    _show_py_files()
    seal = _seal_of(spark, registered)
    with _active(spark):
        spark.dataSource.register(with_tickets(registered.tickets, registered.writers, seal))


def _seal_of(spark: SparkSession, registered: _Registered) -> PlanSeal:
    """Seal for plans of the present services: one for all registrations of the same services."""
    tickets = list(registered.tickets.values())
    if not tickets:
        return PlanSeal()
    for seal, others in registered.seals:
        if list(map(id, others)) == list(map(id, tickets)):
            return seal
    seal = PlanSeal(spark)
    registered.seals.append((seal, tickets))
    return seal


@contextmanager
def _active(spark: SparkSession) -> Generator[None]:
    """Make the session the active one of this thread: Spark looks the format up there before it registers it.

    So `newSession()` would be refused if the active session has the format, of which it has none. Afterwards the
    thread has its former active session again, if it had one: without any, it would not find the format.
    """
    sessions = _sessions(spark)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001, as above
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())


def make_active(spark: SparkSession) -> None:
    """Make the session the active one of this thread if it has none: Spark looks the format up there. Any thread.

    Only the thread that made a session has it as its active one.
    """
    sessions = _sessions(spark)
    if not sessions.getActiveSession().isDefined():
        sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001, as above


def _sessions(spark: SparkSession) -> Any:  # noqa: ANN401, py4j's
    jvm: Any = spark._jvm  # noqa: SLF001, as above
    return spark._get_j_spark_session_class(jvm)  # noqa: SLF001, as above


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
