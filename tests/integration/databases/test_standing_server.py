"""A real PostgreSQL whose processes stand still: its kernel takes bytes, and nothing answers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import psutil
import psycopg
import pyarrow as pa
import pytest

from coordlog.errors import SinkError
from coordlog.log.interface import LogIdentity
from coordlog.spark_integration.batches.databases import connections
from coordlog.spark_integration.batches.databases.database import DatabaseTable
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.payloads import BatchPart
from coordlog.spark_integration.batches.sinks import Batch
from data.sql_statements import executed
from fakes.batch_fakes import ArrowFrame
from servers.postgres_server import postgres_server

pytestmark = pytest.mark.slow

BATCH = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=0), sink="sink")
LOG = LogIdentity(cluster_id="here", topic_id="1", name="log", topic="log")


class Server:
    """The processes of a server, and a sink whose connections a test counts."""

    def __init__(self, conninfo: str, folder: Path) -> None:
        self.conninfo = conninfo
        self._first = int((folder / "postmaster.pid").read_text().splitlines()[0])
        self._stopped: list[psutil.Process] = []
        self.connections, self.stops_after = 0, 0
        self.sink = DatabaseTable(self.connect, "orders", where="host=db", statement_timeout_s=1)

    def connect(self) -> Any:  # noqa: ANN401, psycopg's
        """Connect, and let the server stand still after the connection of the number that the test sets."""
        connection = psycopg.connect(self.conninfo)
        self.connections += 1
        if self.connections == self.stops_after:
            self.stand_still()
        return connection

    def stand_still(self, _place: str = "") -> None:
        first = psutil.Process(self._first)
        self._stopped = [first, *first.children(recursive=True)]
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)
        self._stopped = []

    def _signal(self, number: signal.Signals) -> None:
        for process in self._stopped:
            with suppress(psutil.NoSuchProcess):  # a connection's process that was at its end
                process.send_signal(number)

    def stage(self) -> BatchPart:
        frame = ArrowFrame([pa.table({"id": [1, 2, 3]})])
        return self.sink.stage(cast("Any", frame), BATCH)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return executed(lambda: psycopg.connect(self.conninfo), statement)


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with postgres_server() as given:
        yield given


@pytest.fixture
def server(conninfo: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(connections, "DATABASE_GRACE_S", 0.5)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS orders, coordlog_batches, coordlog_claims")
        connection.execute("CREATE TABLE orders (id BIGINT)")
        (folder,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    made = Server(conninfo, Path(str(folder)))
    try:
        yield made
    finally:
        made.go_on()


@contextmanager
def refused(server: Server) -> Iterator[None]:
    with pytest.raises(
        SinkError, match=r"host=db orders: .*has not answered for 1.5 s; .*longer"
    ) as raised:
        yield
    server.go_on()
    assert raised.value.__cause__ is not None


STEPS: dict[str, Callable[[DatabaseTable], None]] = {
    "prepare": lambda sink: sink.prepare("case", cast("Any", None)),
    "claim": lambda sink: sink.claim("case", LOG, ()),
    "sweep": lambda sink: sink.sweep(lambda: True),
}


@pytest.mark.parametrize("step", STEPS)
def test_no_step_of_a_start_waits_for_a_server_that_stands_still(server: Server, step: str) -> None:
    server.sink.prepare("case", cast("Any", None))
    server.stops_after = server.connections + 1
    with refused(server):
        STEPS[step](server.sink)
    STEPS[step](server.sink)


@pytest.mark.parametrize("connection", [1, 2, 3])
def test_no_step_of_staging_waits_for_a_server_that_stands_still(
    server: Server, connection: int
) -> None:
    """Connections of the staging table, of the task and of the rehearsal."""
    server.sink.prepare("case", cast("Any", None))
    server.stops_after = server.connections + connection
    with refused(server):
        server.stage()
    assert server.sink.settle(server.stage(), BATCH).is_done
    assert server.run("SELECT id FROM orders ORDER BY id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("place", ["marker set", "rows moved", "committed"])
def test_a_batch_whose_server_stands_still_in_its_move_is_there_once(
    server: Server, place: str
) -> None:
    server.sink.prepare("case", cast("Any", None))
    part = server.stage()

    def at(here: str) -> None:
        if here == place:
            server.stand_still()

    if place == "committed":  # what is left is to drop the staging table
        assert server.sink.settle(part, BATCH, at=at).is_done
        server.go_on()
    else:
        with refused(server):
            server.sink.settle(part, BATCH, at=at)
    assert server.sink.settle(part, BATCH).is_done
    assert server.run("SELECT id FROM orders ORDER BY id") == [(1,), (2,), (3,)]


def test_a_connection_to_a_server_that_stands_still_has_a_bound(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "DATABASE_CONNECT_S", 2)
    sink = DatabaseTable.postgresql(server.conninfo, "orders")
    server.stand_still()
    with pytest.raises(SinkError, match="has taken no connection within 2 s; see that the server"):
        sink.prepare("case", cast("Any", None))


def test_a_server_ends_a_long_statement_and_undoes_it(server: Server) -> None:
    server.run(
        "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(60); RETURN NEW; END'"
    )
    server.sink.prepare("case", cast("Any", None))
    part = server.stage()
    server.run("CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION slow()")
    with pytest.raises(
        SinkError, match=r"QueryCanceled: .*than 1 s need a longer statement_timeout_s"
    ):
        server.sink.settle(part, BATCH)
    server.run("DROP TRIGGER slow ON orders")
    assert server.sink.settle(part, BATCH).is_done


def sleep_in(sink: DatabaseTable, seconds: float) -> None:
    with sink._open("it sleeps") as (connection, cursor):
        connections.begin(connection, cursor)
        cursor.execute("SELECT pg_sleep(%s)", (seconds,))


def test_a_shorter_bound_of_the_server_stays(server: Server) -> None:
    sleep_in(server.sink, 0.7)
    server.run("ALTER DATABASE postgres SET statement_timeout = '200ms'")
    try:
        with pytest.raises(SinkError, match="QueryCanceled"):
            sleep_in(server.sink, 0.7)
    finally:
        server.run("ALTER DATABASE postgres RESET statement_timeout")
