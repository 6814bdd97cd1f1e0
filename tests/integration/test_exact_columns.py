"""A real PostgreSQL takes each value as it is, or the batch is refused: it would change some without a word."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from zoneinfo import ZoneInfo

import psycopg
import pyarrow as pa
import pytest

from coordlog.errors import SinkError
from coordlog.spark_integration.batches.databases.database import _InsertTask
from postgres_server import postgres_server

NOON = dt.datetime.fromisoformat("2024-07-01T12:00:00")
NOON_IN_BERLIN = NOON.replace(tzinfo=ZoneInfo("Europe/Berlin"))
BERLIN = pa.timestamp("us", "Europe/Berlin")
NAIVE = pa.timestamp("us")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with postgres_server() as given:
        yield given


def stored(conninfo: str, column: str, value: object, kind: pa.DataType) -> object:
    """What a column gives back after a task has inserted the value."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS s")
        connection.execute(f"CREATE TABLE s (coordlog_task BIGINT, x {column})".encode())
        task = _InsertTask(
            connect=partial(psycopg.connect, conninfo), where="s", table='"s"', columns=("x",)
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
    ],
)
def test_a_value_that_would_be_another_one_is_refused(
    conninfo: str, column: str, value: object, kind: pa.DataType
) -> None:
    with pytest.raises(SinkError, match="column 'x' is") as caught:
        pytest.fail(str(stored(conninfo, column, value, kind)))
    assert "cast the column in the frame" in caught.value.next_step
