"""Batches into tables of SQLite and PostgreSQL: staged by executors, moved by the driver in one transaction."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from coordlog.errors import SinkError
from coordlog.spark_integration.batches.databases import database as sinks_in_databases
from coordlog.spark_integration.batches.databases.database import DatabaseTable
from data.sql_statements import executed
from jobs.batch_cases import StreamCase
from servers.postgres_server import postgres_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.any_spark]

PLACES = ("staged", "before part", "committed")


class Database:
    """A database with a table `orders`, looked at past the sink."""

    def __init__(self, make_sink: Callable[[], DatabaseTable], connect: Callable[[], Any]) -> None:
        self.make_sink, self._connect = make_sink, connect
        self.run("CREATE TABLE orders (id BIGINT, name TEXT, source TEXT DEFAULT 'x')")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return executed(self._connect, statement)

    def ids(self) -> list[int]:
        return [int(row[0]) for row in self.run("SELECT id FROM orders ORDER BY id")]


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with postgres_server() as given:
        yield given


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        path = tmp_path / "shop.db"
        return Database(lambda: DatabaseTable.sqlite(path, "orders"), lambda: sqlite3.connect(path))
    return in_postgresql(request.getfixturevalue("conninfo"))


def in_postgresql(given: str) -> Database:
    """A new table there."""

    def connect() -> Any:  # noqa: ANN401, psycopg's
        return psycopg.connect(given)

    with psycopg.connect(given) as connection:
        connection.execute("DROP TABLE IF EXISTS orders, coordlog_batches, coordlog_claims")
    return Database(lambda: DatabaseTable.postgresql(given, "orders"), connect)


@pytest.mark.clause("H3")
@pytest.mark.clause("K2")
def test_a_batch_is_in_the_table_once_whatever_driver_stands_still_where(
    spark: SparkSession, database: Database
) -> None:
    case = StreamCase(spark, database.make_sink)
    for batch_id, place in enumerate(PLACES):
        start = 10 * batch_id
        frame = spark.range(start, start + 10, 1, 3).selectExpr("id", "concat('n', id) AS name")

        def look(upto: int = start + 10) -> None:
            assert database.ids() == list(range(upto))

        case.dies_at(place, batch_id, frame, look)
    last = case.driver()
    try:
        case.give(last, len(PLACES), spark.range(30, 31).selectExpr("id", "'last' AS name"))
        empty = spark.range(0).selectExpr("id", "'none' AS name")
        case.give(last, len(PLACES) + 1, empty)
    finally:
        last.close()
    assert database.ids() == list(range(31))
    assert database.run("SELECT DISTINCT source FROM orders") == [("x",)], "its default"
    counts = database.run("SELECT batch, row_count FROM coordlog_batches ORDER BY batch")
    assert counts == [(0, 10), (1, 10), (2, 10), (3, 1), (4, 0)]


def test_a_driver_that_stands_still_in_its_transaction_holds_up_no_other(
    spark: SparkSession, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends it. A killed driver's has ended with its connection."""
    monkeypatch.setattr(sinks_in_databases, "TRANSACTION_IDLE_S", 0.5)
    database = in_postgresql(conninfo)
    case = StreamCase(spark, database.make_sink)

    def look() -> None:
        assert database.ids() == list(range(10))

    case.dies_at("rows moved", 0, spark.range(10).selectExpr("id", "'n' AS name"), look)


def test_a_databases_refusal_is_reported_and_no_row_of_the_batch_is_there(
    spark: SparkSession, database: Database
) -> None:
    case = StreamCase(spark, database.make_sink)
    refused = case.driver()
    try:
        with pytest.raises(SinkError, match=r"a staging table cannot be made: .*colour"):
            case.give(refused, 0, spark.range(3).selectExpr("id", "'red' AS colour"))
    finally:
        refused.close()
    database.run("CREATE UNIQUE INDEX one_each ON orders (id)")
    doubled = case.driver()
    try:
        with pytest.raises(SinkError, match=r"nothing of it is committed: .*(UNIQUE|duplicate)"):
            case.give(doubled, 0, spark.range(3).selectExpr("id % 2 AS id", "'n' AS name"))
    finally:
        doubled.close()
    assert database.ids() == []
    mended = case.driver()
    try:
        case.give(mended, 0, spark.range(3).selectExpr("id", "'n' AS name"))
    finally:
        mended.close()
    assert database.ids() == [0, 1, 2]


def test_a_constraint_that_waits_for_the_commit_is_seen_by_the_rehearsal(
    spark: SparkSession, conninfo: str
) -> None:
    database = in_postgresql(conninfo)
    database.run("ALTER TABLE orders ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
    case = StreamCase(spark, database.make_sink)
    refused = case.driver()
    try:
        with pytest.raises(SinkError, match=r"nothing of it is committed: .*duplicate key"):
            case.give(refused, 0, spark.range(3).selectExpr("id % 2 AS id", "'n' AS name"))
    finally:
        refused.close()
    assert not database.run(
        "SELECT 1 FROM information_schema.tables WHERE table_name LIKE 'coordlog_staging%'"
    )


def test_times_and_decimals_are_kept_as_each_database_has_them(
    spark: SparkSession, database: Database
) -> None:
    database.run("DROP TABLE orders")
    database.run("CREATE TABLE orders (day DATE, at TIMESTAMP, price NUMERIC(10, 2), note TEXT)")
    case = StreamCase(spark, database.make_sink)
    frame = spark.sql(
        "SELECT DATE'2026-01-02' AS day, TIMESTAMP_NTZ'2026-01-02 03:04:05.678901' AS at, "
        "CAST(1.50 AS DECIMAL(10, 2)) AS price, 'tab\\tand \\\\ and \"' AS note"
    )
    driver = case.driver()
    try:
        case.give(driver, 0, frame)
    finally:
        driver.close()
    ((day, at, price, note),) = database.run("SELECT day, at, price, note FROM orders")
    assert str(day) == "2026-01-02"
    naive = dt.datetime.fromisoformat(str(at)).replace(tzinfo=None)
    assert naive.isoformat() == "2026-01-02T03:04:05.678901"
    assert Decimal(str(price)) == Decimal("1.5")
    assert note == 'tab\tand \\ and "'
