"""Tables of a real PostgreSQL that cannot keep rows and markers together, and tables of which it has another name."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest

from coordlog.errors import SinkError
from coordlog.log.interface import LogIdentity
from coordlog.spark_integration.batches.databases.database import DatabaseTable
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.sinks import Batch
from data.sql_statements import executed
from fakes.batch_fakes import ArrowFrame
from servers.postgres_server import postgres_server

pytestmark = pytest.mark.slow

BATCH = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=0), sink="sink")
HERE = LogIdentity(cluster_id="here", topic_id="1", name="here", topic="case.log")
THERE = LogIdentity(cluster_id="there", topic_id="2", name="there", topic="case.log")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as given:
        yield given


@pytest.fixture
def conninfo(server: str) -> str:
    """A database of the test's own."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
        connection.execute("CREATE DATABASE shop")
    return server.replace("dbname=postgres", "dbname=shop")


def run(conninfo: str, *statements: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for statement in statements:
        rows = executed(partial(psycopg.connect, conninfo), statement)
    return rows


def ready(conninfo: str, table: str = "orders") -> DatabaseTable:
    sink = DatabaseTable.postgresql(conninfo, table)
    sink.prepare("case", cast("Any", None))
    return sink


def write(sink: DatabaseTable, column: str, kind: pa.DataType, *rows: object) -> bool:
    frame = ArrowFrame([pa.table({column: pa.array(rows, kind)})])
    return sink.settle(sink.stage(cast("Any", frame), BATCH), BATCH).is_done


@pytest.mark.parametrize(
    ("statements", "table", "why_not"),
    [
        (("CREATE UNLOGGED TABLE orders (id BIGINT)",), "orders", "unlogged.*SET LOGGED"),
        (
            (
                "CREATE FOREIGN DATA WRAPPER elsewhere",
                "CREATE SERVER other FOREIGN DATA WRAPPER elsewhere",
                "CREATE FOREIGN TABLE orders (id BIGINT) SERVER other",
            ),
            "orders",
            "a foreign table",
        ),
        (
            (
                "CREATE TABLE orders (id BIGINT) PARTITION BY RANGE (id)",
                "CREATE TABLE high PARTITION OF orders DEFAULT PARTITION BY RANGE (id)",
                "CREATE UNLOGGED TABLE rest PARTITION OF high DEFAULT",
            ),
            "orders",
            "rest is an unlogged.*ALTER TABLE public.rest SET LOGGED",
        ),
        (
            (
                "CREATE FOREIGN DATA WRAPPER elsewhere",
                "CREATE SERVER other FOREIGN DATA WRAPPER elsewhere",
                "CREATE TABLE orders (id BIGINT) PARTITION BY RANGE (id)",
                "CREATE FOREIGN TABLE rest PARTITION OF orders DEFAULT SERVER other",
            ),
            "orders",
            "rest is a foreign table",
        ),
        (
            ('CREATE SCHEMA "50%"', 'CREATE TABLE "50%".orders (id BIGINT)'),
            "50%.orders",
            "has a %",
        ),
    ],
)
def test_a_table_that_keeps_no_rows_with_their_markers_is_refused(
    conninfo: str, statements: tuple[str, ...], table: str, why_not: str
) -> None:
    run(conninfo, *statements)
    with pytest.raises(SinkError, match=why_not):
        ready(conninfo, table)
    assert run(conninfo, "SELECT 1 FROM pg_tables WHERE tablename LIKE 'coordlog%'") == []


@pytest.mark.parametrize(
    ("statements", "why_not"),
    [
        (
            (
                "ALTER TABLE orders DETACH PARTITION rest",
                "CREATE UNLOGGED TABLE fast PARTITION OF orders DEFAULT",
            ),
            r"fast is an unlogged.*ALTER TABLE public\.fast SET LOGGED",
        ),
        (("ALTER TABLE rest SET UNLOGGED",), r"rest is an unlogged"),
        (
            (
                "DROP TABLE orders",
                "CREATE UNLOGGED TABLE orders (id BIGINT)",
            ),
            r"orders is an unlogged",
        ),
    ],
)
@pytest.mark.parametrize("moment", ["staged", "marker set"])
def test_rows_do_not_move_into_a_table_that_has_come_to_lose_them(
    conninfo: str, statements: tuple[str, ...], why_not: str, moment: str
) -> None:
    run(
        conninfo,
        "CREATE TABLE orders (id BIGINT) PARTITION BY RANGE (id)",
        "CREATE TABLE rest PARTITION OF orders DEFAULT",
    )
    sink = ready(conninfo)
    part = sink.stage(cast("Any", ArrowFrame([pa.table({"id": [1, 2]})])), BATCH)

    def at(place: str) -> None:
        if place == moment:
            run(conninfo, *statements)

    at("staged")
    outcome = sink.settle(part, BATCH, at=at)

    assert not outcome.is_done
    assert re.search(why_not, outcome.details["refused"])
    assert run(conninfo, "SELECT id FROM orders") == []
    assert run(conninfo, "SELECT batch FROM coordlog_batches") == []


def test_a_table_has_one_owner_though_its_name_is_given_too_long(conninfo: str) -> None:
    """PostgreSQL cuts names to 63 bytes."""
    name = "o" * 63
    run(conninfo, f"CREATE TABLE {name} (id BIGINT)")
    ready(conninfo, name).claim("case", HERE, ())
    with pytest.raises(SinkError, match="writes there with another log"):
        ready(conninfo, f"{name}-new").claim("case", THERE, ())


def test_a_batch_without_its_marker_is_not_taken_for_written(conninfo: str) -> None:
    run(conninfo, "CREATE TABLE orders (id BIGINT)")
    sink = ready(conninfo)
    run(
        conninfo,
        "CREATE RULE none AS ON INSERT TO coordlog_batches DO INSTEAD NOTHING",
    )
    with pytest.raises(SinkError, match="coordlog_batches takes no marker"):
        write(sink, "id", pa.int64(), 1)


def test_a_null_in_an_array_stays_one_whatever_the_session_says(conninfo: str) -> None:
    run(conninfo, "CREATE TABLE orders (names TEXT[])", "ALTER DATABASE shop SET array_nulls = off")
    assert write(ready(conninfo), "names", pa.list_(pa.string()), ["a", None])
    assert run(conninfo, "SELECT names[2] IS NULL FROM orders") == [(True,)]


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("DATE", pa.date32(), dt.date(2026, 11, 27)),
        ("BYTEA", pa.binary(), b"\0"),
        ("JSONB", pa.int64(), 5),
    ],
)
def test_types_are_known_whatever_names_the_session_quotes(
    conninfo: str, column: str, kind: pa.DataType, value: object
) -> None:
    run(
        conninfo,
        f"CREATE TABLE orders (x {column})",
        "ALTER DATABASE shop SET quote_all_identifiers = on",
    )
    assert write(ready(conninfo), "x", kind, value)
    assert run(conninfo, "SELECT x FROM orders") == [(value,)]


@pytest.mark.parametrize("column", ["MONEY", "NAME"])
def test_types_that_change_values_are_refused_whatever_names_are_quoted(
    conninfo: str, column: str
) -> None:
    run(
        conninfo,
        f"CREATE TABLE orders (x {column})",
        "ALTER DATABASE shop SET quote_all_identifiers = on",
    )
    with pytest.raises(SinkError, match="would change values"):
        write(ready(conninfo), "x", pa.string(), "1.239")


@pytest.mark.parametrize(
    ("column", "kind"), [("BYTEA", pa.binary()), ("BYTEA[]", pa.list_(pa.binary()))]
)
def test_bytes_stay_the_same_whatever_a_backslash_means_to_the_session(
    conninfo: str, column: str, kind: pa.DataType
) -> None:
    run(
        conninfo,
        f"CREATE TABLE orders (x {column})",
        "ALTER DATABASE shop SET standard_conforming_strings = off",
    )
    value = b"\\\xa6\0" if column == "BYTEA" else [b"\\\xa6\0"]
    assert write(ready(conninfo), "x", kind, value)
    assert run(conninfo, "SELECT x FROM orders") == [(value,)]


@pytest.mark.parametrize("encoding", ["SJIS", "BIG5", "LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize(
    ("column", "kind"), [("TEXT", pa.string()), ("TEXT[]", pa.list_(pa.string()))]
)
def test_texts_stay_the_same_whatever_encoding_the_session_has(
    conninfo: str, column: str, kind: pa.DataType, encoding: str
) -> None:
    """The last byte of these characters is that of a backslash in SJIS and in BIG5."""
    run(
        conninfo,
        f"CREATE TABLE orders (x {column})",
        f"ALTER DATABASE shop SET client_encoding = {encoding}",
    )
    text = "ソn功nä€"
    value = text if column == "TEXT" else [text]
    sink = ready(conninfo)
    sink.claim("case", HERE, ())
    assert write(sink, "x", kind, value)
    sink.claim("case", HERE, ())
    utf8 = f"{conninfo} client_encoding=UTF8"
    assert run(utf8, "SELECT x FROM orders") == [(value,)]


def test_a_server_that_is_away_at_the_rehearsal_is_not_blamed_on_the_rows(conninfo: str) -> None:
    run(conninfo, "CREATE TABLE orders (id BIGINT)")
    steps = iter(["prepare", "stage", "insert"])

    def connect() -> Any:  # noqa: ANN401, psycopg's
        return psycopg.connect(conninfo if next(steps, "") else "host=/nowhere")

    sink = DatabaseTable(connect, "orders", where="shop")
    sink.prepare("case", cast("Any", None))
    with pytest.raises(SinkError, match=r"rehearsal .* failed.*/nowhere.*; fix the database"):
        write(sink, "id", pa.int64(), 1)


@pytest.mark.parametrize(
    ("column", "name", "text"),
    [("mood", "x", "SAD"), ("text", "x", "a\0b"), ("positive", "x", "-1"), ("text", "y", "a")],
    ids=["no label", "a character", "a domain", "no column"],
)
def test_rows_that_a_column_does_not_take_are_blamed_on_their_function(
    conninfo: str, column: str, name: str, text: str
) -> None:
    run(
        conninfo,
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE DOMAIN positive AS JSONB CHECK (VALUE > '0')",
        f"CREATE TABLE orders (x {column})",
    )
    with pytest.raises(SinkError, match=r"staged|staging") as caught:
        write(ready(conninfo), name, pa.string(), text)
    assert caught.value.next_step.startswith("fix the function that makes the rows, or the table")


def test_a_column_whose_name_is_given_too_long_is_refused(conninfo: str) -> None:
    name = "x" * 64
    run(conninfo, f"CREATE TABLE orders ({name} BIGINT)")
    with pytest.raises(SinkError, match="longer than the names of PostgreSQL"):
        write(ready(conninfo), name, pa.int64(), 1)
