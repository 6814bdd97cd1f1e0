"""A real PostgreSQL takes each value as it is, or the batch is refused: it would change some without a word."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import psycopg
import pyarrow as pa
import pytest

from coordlog.errors import SinkError, UsageError
from coordlog.spark_integration.batches.databases import connections
from coordlog.spark_integration.batches.databases.database import DatabaseTable, _InsertTask
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.sinks import Batch
from fakes.batch_fakes import ArrowFrame
from jobs.batch_cases import BatchCase
from servers.postgres_server import postgres_server

NOON = dt.datetime.fromisoformat("2024-07-01T12:00:00")
NOON_IN_BERLIN = NOON.replace(tzinfo=ZoneInfo("Europe/Berlin"))
BERLIN = pa.timestamp("us", "Europe/Berlin")
NAIVE = pa.timestamp("us")
LISTS = pa.list_(pa.list_(pa.int64()))
BATCH = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=0), sink="sink")
DOMAINS = {"price": "numeric(10, 2)", "discount": "price", "label": "varchar(3)"}
RAISED = b"""CREATE OR REPLACE FUNCTION raised() RETURNS BIGINT LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION 'the period is closed' USING ERRCODE = 'BK001'; END$$"""
BIG = b"""CREATE OR REPLACE FUNCTION big() RETURNS TEXT LANGUAGE sql AS
$$SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) AS n$$"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with postgres_server() as given:
        yield given


def reset_domains(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    for name, base in DOMAINS.items():
        connection.execute(f"DROP DOMAIN IF EXISTS {name} CASCADE".encode())
        connection.execute(f"CREATE DOMAIN {name} AS {base}".encode())


def reset(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute("DROP TABLE IF EXISTS orders, coordlog_batches, coordlog_claims CASCADE")


def stored(conninfo: str, column: str, value: object, kind: pa.DataType) -> object:
    """What a column gives back after a task has inserted the value."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS s")
        reset_domains(connection)
        connection.execute(f"CREATE TABLE s (coordlog_task BIGINT, x {column})".encode())
        task = _InsertTask(
            connect=partial(psycopg.connect, conninfo),
            where="s",
            limit_s=60,
            table='"s"',
            columns=("x",),
        )
        task._insert(1, pa.record_batch({"x": pa.array([value], kind)}), iter(()))
        (row,) = connection.execute("SELECT x FROM s", prepare=False).fetchall()
    return row[0]


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        ("timestamp", NOON, NAIVE),
        ("timestamptz", NOON_IN_BERLIN, BERLIN),
        ("timestamp(0)", NOON, NAIVE),
        ("numeric(10, 2)", Decimal("1.50"), pa.decimal128(12, 3)),
        ("numeric", Decimal("1.255"), pa.decimal128(10, 3)),
        ("integer", 2, pa.float64()),
        ("real", 0.5, pa.float64()),
        ("varchar(10)", "007", pa.string()),
        ("date", NOON.date(), pa.date32()),
        ("bytea", b"\xff\x00", pa.binary()),
        ("json", '{"a": 1}', pa.string()),
        ("price", Decimal("1.50"), pa.decimal128(12, 3)),
        ("label", "äöü", pa.string()),
        ("varchar(3)", None, pa.string()),
        ("numeric(10, 2)[]", [Decimal("1.50"), None], pa.list_(pa.decimal128(12, 3))),
        ("integer[]", [[1, 2], [3, 4]], pa.list_(pa.list_(pa.int64()))),
        ("varchar(3)[]", ["abc"], pa.list_(pa.string())),
        ("text[]", None, pa.list_(pa.string())),
        ("numeric(2, 4)", Decimal("0.0012"), pa.decimal128(10, 4)),
        ("numeric(200, 3)", Decimal("1.255"), pa.decimal128(38, 18)),
        ("numeric(200, 100)", Decimal("12.5"), pa.decimal128(38, 18)),
        ("interval", dt.timedelta(seconds=1.6), pa.duration("us")),
        ("integer[]", [], LISTS),
        ("interval[]", [dt.timedelta(seconds=1.6)], pa.list_(pa.duration("us"))),
        ("jsonb", 5, pa.int64()),
        ("uuid", None, pa.null()),
        ("oid", 2**32 - 1, pa.int64()),
    ],
)
def test_a_value_that_fits_is_taken_as_it_is(
    conninfo: str, column: str, value: object, kind: pa.DataType
) -> None:
    expected = {"a": 1} if column == "json" else value

    assert stored(conninfo, column, value, kind) == expected


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        pytest.param("timestamp", NOON_IN_BERLIN, BERLIN, id="a zone that would be dropped"),
        pytest.param("timestamptz", NOON, NAIVE, id="a zone that would be the session's"),
        pytest.param(
            "timestamp(0)", NOON.replace(microsecond=9), NAIVE, id="a fraction of a second"
        ),
        pytest.param("numeric(10, 2)", Decimal("1.255"), pa.decimal128(10, 3), id="a third digit"),
        pytest.param("real", 0.1, pa.float64(), id="a double for a float"),
        pytest.param("real", 2**24 + 1, pa.int64(), id="an integer for a float"),
        pytest.param("double precision", 2**53 + 1, pa.int64(), id="an integer for a double"),
        pytest.param("integer", "007", pa.string(), id="a text for a number"),
        pytest.param("date", NOON, NAIVE, id="a time for a date"),
        pytest.param("price", Decimal("1.255"), pa.decimal128(10, 3), id="a digit of a domain"),
        pytest.param("discount", 1.255, pa.float64(), id="a domain of a domain"),
        pytest.param(
            "numeric(10, 2)[]", [Decimal("1.255")], pa.list_(pa.decimal128(10, 3)), id="in an array"
        ),
        pytest.param("timestamp[]", [NOON_IN_BERLIN], pa.list_(BERLIN), id="zones in an array"),
        pytest.param(
            "real[]", [[0.5], [0.1]], pa.list_(pa.list_(pa.float64())), id="an array of arrays"
        ),
        pytest.param("numeric(2, 4)", Decimal("0.00123"), pa.decimal128(10, 5), id="below a scale"),
        pytest.param("numeric(5, -2)", 12345, pa.int64(), id="hundreds"),
        pytest.param("varchar(3)", "abc ", pa.string(), id="a blank at the end"),
        pytest.param("char(3)", "abc ", pa.string(), id="a blank beyond a char"),
        pytest.param("label[]", ["a", "abc "], pa.list_(pa.string()), id="a blank in an array"),
        pytest.param("money", "1.555", pa.string(), id="a fraction of a cent"),
        pytest.param("name", "a" * 64, pa.string(), id="a long name"),
        pytest.param("numeric(200, 2)", Decimal("1.255"), pa.decimal128(10, 3), id="a wide number"),
        pytest.param(
            "interval(0)", dt.timedelta(seconds=1.6), pa.duration("us"), id="a duration's fraction"
        ),
        pytest.param(
            "interval day", dt.timedelta(hours=25), pa.duration("us"), id="hours of a duration"
        ),
        pytest.param(
            "interval(0)[]",
            [dt.timedelta(seconds=1.6)],
            pa.list_(pa.duration("us")),
            id="an array of durations",
        ),
        pytest.param(
            "time with time zone", NOON.time(), pa.time64("us"), id="a time that would get a zone"
        ),
        pytest.param("timetz(0)", "12:00:00.6+02", pa.string(), id="a fraction of a zoned time"),
        pytest.param("oid", -1, pa.int64(), id="below zero"),
        pytest.param("jsonb", [], pa.list_(pa.int64()), id="a list that would be an object"),
        pytest.param("jsonb", [], pa.map_(pa.string(), pa.int64()), id="a map"),
        pytest.param("integer[]", [[], []], LISTS, id="empty lists that would be one"),
        pytest.param("integer[]", [None], LISTS, id="a null list that would be a null number"),
        pytest.param("jsonb[]", [[]], LISTS, id="an empty list of JSON"),
        pytest.param("interval", 5, pa.int64(), id="a number that would be seconds"),
        pytest.param("interval", NOON.time(), pa.time64("us"), id="a time of day as a duration"),
        pytest.param("xid", -1, pa.int64(), id="a number that would wrap"),
        pytest.param("bit(3)", 101, pa.int64(), id="digits that would be bits"),
        pytest.param("tsvector", b"ab", pa.binary(), id="bytes that would be a word"),
        pytest.param("date[]", [3_000_000], pa.list_(pa.date32()), id="a year beyond Python's"),
    ],
)
def test_a_value_that_would_be_another_one_is_refused(
    conninfo: str, column: str, value: object, kind: pa.DataType
) -> None:
    with pytest.raises(SinkError, match="column 'x' is") as caught:
        pytest.fail(str(stored(conninfo, column, value, kind)))
    assert "cast the column in the frame" in caught.value.next_step


@pytest.mark.parametrize("now", ["numeric(10, 0)", "integer", "text", "discount"])
def test_staged_values_do_not_move_into_a_column_of_another_type(conninfo: str, now: str) -> None:
    """As if the table was changed while its driver was down, with an intent in the log."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        reset_domains(connection)
        connection.execute("DROP TABLE IF EXISTS orders")
        connection.execute("CREATE TABLE orders (x numeric(10, 3))")
        sink = DatabaseTable.postgresql(conninfo, "orders")
        sink.prepare("case", cast("Any", None))
        rows = pa.table({"x": pa.array([Decimal("1.255")])})
        part = sink.stage(cast("Any", ArrowFrame([rows])), BATCH)
        connection.execute(f"ALTER TABLE orders ALTER x TYPE {now}".encode())

        outcome = sink.settle(part, BATCH)

        assert not outcome.is_done
        assert "'x' was staged as numeric(10,3) and is" in outcome.details["refused"]
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM coordlog_batches").fetchone() == (0,)


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_a_column_that_changes_in_the_moves_transaction_is_seen(conninfo: str, level: str) -> None:
    """A transaction of a higher level reads the catalog as of its start, and writes to the table of now."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        reset(connection)
        connection.execute("CREATE TABLE orders (x numeric(10, 3))")
        options = "-c default_transaction_isolation=" + level.replace(" ", "\\ ")
        connect = partial(psycopg.connect, conninfo, options=options)
        sink = DatabaseTable(cast("Any", connect), "orders", where="here")
        sink.prepare("case", cast("Any", None))
        rows = pa.table({"x": pa.array([Decimal("1.255")])})
        part = sink.stage(cast("Any", ArrowFrame([rows])), BATCH)

        def at(place: str) -> None:
            if place == "marker set":
                connection.execute("ALTER TABLE orders ALTER x TYPE numeric(10, 0)")

        outcome = sink.settle(part, BATCH, at=at)

        assert "'x' was staged as numeric(10,3) and is" in outcome.details.get("refused", "")
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("ALTER x ADD GENERATED ALWAYS AS IDENTITY", id="an identity"),
        pytest.param(
            "DROP x, ADD x BIGINT GENERATED ALWAYS AS (7) STORED", id="a generated column"
        ),
        pytest.param("ADD y BIGINT DEFAULT raised()", id="an error with a code of its own"),
        pytest.param("ADD y TEXT DEFAULT big() UNIQUE", id="a row too large for an index"),
    ],
)
def test_rows_that_the_table_has_come_to_refuse_go_back_to_spark(
    conninfo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Whatever PostgreSQL's class of the error is: else each start would fail, also with a corrected function."""
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    with psycopg.connect(conninfo, autocommit=True) as connection:
        reset(connection)
        connection.execute("CREATE TABLE orders (x BIGINT NOT NULL, id BIGINT)")
        connection.execute(RAISED)
        connection.execute(BIG)
        changed: list[str] = []

        def at(place: str) -> None:
            if place == "before part sink" and not changed:
                changed.append(change)
                connection.execute(f"ALTER TABLE orders {change}".encode())

        case = BatchCase(lambda: DatabaseTable.postgresql(conninfo, "orders"))
        first = case.driver(at)
        with pytest.raises(UsageError, match=r"'sink' refused its part.*runs the batch again"):
            first(cast("Any", ArrowFrame([pa.table({"x": [1], "id": [5]})])), 0)
        first.close()
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
        connection.execute("ALTER TABLE orders DROP COLUMN IF EXISTS y")
        mended = case.driver()
        rows = {"id": [5], **({} if "GENERATED" in change else {"x": [1]})}
        mended(cast("Any", ArrowFrame([pa.table(rows)])), 0)
        mended.close()
        assert connection.execute("SELECT id FROM orders").fetchall() == [(5,)]


def test_a_batch_is_known_to_a_user_with_another_search_path(conninfo: str) -> None:
    """The markers are in the schema of the table, wherever else the next user's tables would be made."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        reset(connection)
        connection.execute("CREATE TABLE orders (x BIGINT)")
        connection.execute("CREATE SCHEMA loader")
        sinks = [
            DatabaseTable.postgresql(f"{conninfo} options='-c search_path={path}'", "orders")
            for path in ("public", "loader,public")
        ]
        for sink in sinks:
            sink.prepare("case", cast("Any", None))
            part = sink.stage(cast("Any", ArrowFrame([pa.table({"x": [1]})])), BATCH)
            assert sink.settle(part, BATCH).is_done

        assert connection.execute("SELECT x FROM orders").fetchall() == [(1,)]


class Pooled(psycopg.Connection[Any]):
    """As a pooler in transaction mode: what one transaction sets for the session is not there for the next."""

    def commit(self) -> None:
        super().commit()
        self.autocommit = True
        self.execute("DISCARD ALL")
        self.autocommit = False


def test_a_lock_is_waited_for_within_its_bound_behind_a_pooler(
    conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "DATABASE_LOCK_S", 0.2)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        reset(connection)
        connection.execute("CREATE TABLE orders (x BIGINT)")
        connect = partial(Pooled.connect, conninfo, options="-c statement_timeout=20s")
        sink = DatabaseTable(cast("Any", connect), "orders", where="here")
        sink.prepare("case", cast("Any", None))
        part = sink.stage(cast("Any", ArrowFrame([pa.table({"x": [1]})])), BATCH)
        with connection.transaction():
            connection.execute("LOCK TABLE orders")
            with pytest.raises(SinkError, match="LockNotAvailable"):
                sink.settle(part, BATCH)
        assert sink.settle(part, BATCH).is_done


def test_jobs_that_start_at_once_in_a_new_database_all_start(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS orders, coordlog_batches, coordlog_claims")
        connection.execute("CREATE TABLE orders (id BIGINT)")
    together = threading.Barrier(4)

    def start(number: int) -> None:
        together.wait(60)
        DatabaseTable.postgresql(conninfo, "orders").prepare(f"job-{number}", cast("Any", None))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(start, range(4))) == [None] * 4
