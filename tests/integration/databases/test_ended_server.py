"""A real PostgreSQL whose processes are killed between the staging of a batch and its move."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest

from coordlog.errors import JobFailedError, RestoreError
from coordlog.spark_integration.batches.databases.database import DatabaseTable
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.payloads import BatchPart
from coordlog.spark_integration.batches.sinks import Batch
from data.sql_statements import executed
from fakes.batch_fakes import ArrowFrame
from jobs.batch_cases import BatchCase
from servers.postgres_server import postgres_server

pytestmark = [pytest.mark.slow, pytest.mark.kill]

BATCH = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=0), sink="sink")
LIMIT_S = 60.0


@pytest.fixture
def conninfo() -> Iterator[str]:
    """A server whose commits do not wait for its disk, and reach it late."""
    with postgres_server() as given:
        with psycopg.connect(given, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (id BIGINT)")
            connection.execute("ALTER SYSTEM SET synchronous_commit = off")
            connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("CHECKPOINT")
        yield given


def staged(sink: DatabaseTable) -> BatchPart:
    sink.prepare("case", cast("Any", None))
    return sink.stage(cast("Any", ArrowFrame([pa.table({"id": [1, 2, 3]})])), BATCH)


def end_server(conninfo: str) -> None:
    """Kill a process of the server, which then ends all others and recovers from its disk."""
    victim = psycopg.connect(conninfo)
    # Another process ends only once the server has seen the death: until then it accepts new connections.
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(conninfo) as witness:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        witness.execute("SELECT pg_sleep(%s)", (LIMIT_S,))
        pytest.fail("a process of the server has outlived its crash")
    victim.close()
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            psycopg.connect(conninfo).close()
        except psycopg.OperationalError:
            assert time.monotonic() < until, "it recovers"
            time.sleep(0.05)
        else:
            return


def rows(conninfo: str) -> list[tuple[Any, ...]]:
    return executed(lambda: psycopg.connect(conninfo), "SELECT id FROM orders ORDER BY id")


def test_staged_rows_outlive_a_server_that_loses_late_commits(conninfo: str) -> None:
    sink = DatabaseTable.postgresql(conninfo, "orders")
    part = staged(sink)
    end_server(conninfo)

    assert sink.settle(part, BATCH).is_done

    assert rows(conninfo) == [(1,), (2,), (3,)]


def test_an_open_batch_is_settled_at_a_server_that_has_another_address(conninfo: str) -> None:
    """As that of a replica, after the server has died in the middle of a settlement."""

    def dies(place: str) -> None:
        if place == "marker set":
            raise OSError("the server is gone")

    case = BatchCase(lambda: DatabaseTable.postgresql(conninfo, "orders"))
    frame = ArrowFrame([pa.table({"id": [1, 2, 3]})])
    with pytest.raises(JobFailedError):
        case.driver(dies)(cast("Any", frame), 0)
    moved = f"{conninfo} application_name=moved"
    case.make_sink = lambda: DatabaseTable.postgresql(moved, "orders")
    with pytest.raises(RestoreError, match="the same place under another name"):
        case.driver()(cast("Any", frame), 0)
    assert rows(conninfo) == []
    case.make_sink = lambda: DatabaseTable.postgresql(moved, "orders", where=conninfo)
    with case.driver() as driver:
        driver(cast("Any", frame), 0)

    assert rows(conninfo) == [(1,), (2,), (3,)]
