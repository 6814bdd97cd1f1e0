"""Sinks of batches, their tasks run here: Parquet files and SQLite tables, with drivers that stand still anywhere."""

from __future__ import annotations

import datetime as dt
import socket
import sqlite3
from collections import Counter
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.errors import OptionError, SinkError, UsageError
from coordlog.log.interface import LogIdentity
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit_records
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.batches import service
from coordlog.spark_integration.batches.databases.connections import Connection
from coordlog.spark_integration.batches.databases.database import DatabaseTable
from coordlog.spark_integration.batches.exactly_once import AnySink, exactly_once
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.payloads import BatchPart
from coordlog.spark_integration.batches.sinks import Batch
from coordlog.spark_integration.files.sink.sink import ParquetSink
from fakes.batch_fakes import ArrowFrame
from jobs.batch_cases import BatchCase

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    monkeypatch.setattr(service, "_END_CHECK_S", 0.02)  # how soon the end of a driver is seen


def frame_of(*partitions: list[int], batch_id: int = 0) -> Any:  # noqa: ANN401, it stands for a DataFrame
    tables = [
        pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([f"n{i}" for i in ids])})
        for ids in partitions
    ]
    return ArrowFrame(tables, batch_id=batch_id)


def rows_in(folder: Path) -> Counter[int]:
    found: Counter[int] = Counter()
    for path in sorted(folder.glob("*.parquet")):
        found.update(pq.ParquetFile(path).read().column("id").to_pylist())
    return found


FILE = "batch-q-1-00000-"
TABLES = {"orders", "coordlog_batches", "coordlog_claims"}


@pytest.mark.clause("H3")
@pytest.mark.parametrize(
    "place", ["staged", "before link", "after link", "after fsync", "after part sink"]
)
def test_files_are_published_once_whatever_driver_stands_still_where(
    tmp_path: Path, place: str
) -> None:
    case = BatchCase(lambda: ParquetSink(tmp_path / "out"))

    def look() -> None:
        assert rows_in(tmp_path / "out") == Counter(range(5))

    case.dies_at(place, 0, frame_of([0, 1], [], [2, 3, 4]), look)
    names = [one.name for one in sorted((tmp_path / "out").glob("*.parquet"))]
    assert len(names) == 2
    assert all(one.startswith(FILE) for one in names)
    left = [one for one in (tmp_path / "out" / ".coordlog" / "staging").rglob("*") if one.is_file()]
    assert left == []


def test_files_of_another_log_of_the_job_are_not_written_beside(tmp_path: Path) -> None:
    case = BatchCase(lambda: ParquetSink(tmp_path / "out"))
    first = case.driver()
    first(frame_of([1]), 0)
    first.close()
    case.log = MemoryLog("another.log")
    with pytest.raises(SinkError, match="with another log"):
        case.driver()(frame_of([1]), 0)
    assert rows_in(tmp_path / "out") == Counter([1])


def test_files_do_not_take_several_columns_of_one_name(tmp_path: Path) -> None:
    """As after a join: Spark passes them on in Arrow as `id_0` and `id_1`, and no name of the frame is in the files."""
    rows = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], ["id", "n", "id"])
    frame = cast("Any", ArrowFrame([rows]))
    driver = BatchCase(lambda: ParquetSink(tmp_path / "out")).driver()
    with pytest.raises(UsageError, match="several columns of the name 'id'"):
        driver(frame, 0)
    driver.close()
    assert list((tmp_path / "out").glob("*.parquet")) == []


class Shop:
    """A SQLite file with a table `orders`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run("CREATE TABLE orders (id BIGINT, name TEXT, source TEXT DEFAULT 'x')")

    def sink(self) -> DatabaseTable:
        return DatabaseTable.sqlite(self.path, "orders")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path)
        try:
            rows = connection.execute(statement).fetchall()
            connection.commit()
        finally:
            connection.close()
        return rows

    def tables(self) -> set[str]:
        return {row[0] for row in self.run("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


def test_jobs_with_one_object_of_a_table_keep_their_staged_rows_apart(
    shop: Shop,
) -> None:
    target = shop.sink()
    first, second = BatchCase(lambda: target, "first"), BatchCase(lambda: target, "second")
    driver, unfit = first.driver(), frame_of([3], batch_id=1)
    unfit.columns = ["colour"]

    def fail_beside(place: str) -> None:
        if place == "staged":
            with pytest.raises(SinkError, match="colour"):
                driver(unfit, 1)

    driver(frame_of([1]), 0)
    other = second.driver(fail_beside)
    other(frame_of([2]), 0)
    other.close()
    driver.close()

    assert shop.run("SELECT id FROM orders ORDER BY id") == [(1,), (2,)]


@pytest.mark.clause("H3")
@pytest.mark.parametrize("place", ["staged", "before part sink", "committed", "after part sink"])
def test_rows_are_moved_once_whatever_driver_stands_still_where(shop: Shop, place: str) -> None:
    case = BatchCase(shop.sink)

    def look() -> None:
        assert shop.run("SELECT id, name, source FROM orders ORDER BY id") == [
            (n, f"n{n}", "x") for n in range(5)
        ]

    case.dies_at(place, 0, frame_of([0, 1], [], [2, 3, 4]), look)
    assert shop.run("SELECT job, query, batch, sink, row_count FROM coordlog_batches") == [
        ("case", "q-1", 0, "sink", 5)
    ]
    assert shop.tables() == TABLES


@pytest.mark.clause("H3")
@pytest.mark.parametrize("place", ["marker set", "rows moved"])
def test_a_transaction_that_is_cut_off_leaves_nothing_and_is_done_again(
    shop: Shop, place: str
) -> None:
    seen: list[str] = []

    def at(here: str) -> None:
        seen.append(here)
        if here == place and seen.count(place) == 1:
            raise SinkError("the database", "its connection is gone", "try again")

    driver = BatchCase(shop.sink).driver(at)
    driver(frame_of([0, 1], [2]), 0)
    driver.close()
    assert seen.count(place) == 2
    assert shop.run("SELECT id FROM orders ORDER BY id") == [(0,), (1,), (2,)]


def test_what_a_task_has_staged_that_was_not_the_one_counted_is_not_moved(shop: Shop) -> None:
    """Spark runs a task again, or a copy of it: the rows of the attempt whose result came are the ones."""
    sink = shop.sink()
    sink.prepare("case", cast("Any", None))
    batch = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=3), sink="sink")
    part = sink.stage(frame_of([1, 2]), batch)
    shop.run(f"INSERT INTO {part.details['staging']} VALUES (999, 1, 'of a copy')")
    assert sink.settle(part, batch).is_done
    assert shop.run("SELECT id, name FROM orders ORDER BY id") == [(1, "n1"), (2, "n2")]


def test_a_batch_whose_staging_failed_is_staged_again_by_the_same_driver(shop: Shop) -> None:
    sink = shop.sink()
    sink.prepare("case", cast("Any", None))
    batch = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=0), sink="sink")
    failing = cast("Any", ArrowFrame([pa.table({"id": [1]}), pa.table({"id": [2], "name": ["n"]})]))
    with pytest.raises(SinkError, match="rows cannot be staged"):
        sink.stage(failing, batch)
    part = sink.stage(frame_of([1, 2]), batch)
    assert len(shop.tables()) == len(TABLES) + 2
    assert sink.settle(part, batch).is_done
    assert shop.run("SELECT id FROM orders ORDER BY id") == [(1,), (2,)]
    sink.sweep(lambda: True)
    assert shop.tables() == TABLES, "what the failed one had made is gone"


def test_what_a_batch_has_staged_is_removed_once_its_staging_has_failed(
    shop: Shop, tmp_path: Path
) -> None:
    """A program that starts its query again and again would fill the disks."""
    sinks: dict[str, AnySink] = {"files": ParquetSink(tmp_path / "out"), "table": shop.sink()}

    def both(frame: Any, _batch_id: int) -> Any:  # noqa: ANN401, what stands for DataFrames
        return dict.fromkeys(sinks, frame)

    driver = exactly_once(both, job_id="case", log=MemoryLog(), sink=sinks)
    shop.run("ALTER TABLE orders RENAME COLUMN name TO title")
    for _ in range(2):
        with pytest.raises(SinkError, match="a staging table cannot be made"):
            driver(frame_of([1, 2]), 0)
        assert list((tmp_path / "out").rglob("*.parquet")) == []
    shop.run("ALTER TABLE orders RENAME COLUMN title TO name")
    driver(frame_of([1, 2]), 0)
    driver.close()
    assert rows_in(tmp_path / "out") == Counter([1, 2])


def test_the_staging_table_of_a_batch_that_a_task_refuses_is_dropped(shop: Shop) -> None:
    driver = BatchCase(shop.sink).driver()
    failing = ArrowFrame([pa.table({"id": [1]}), pa.table({"id": [2], "name": ["n"]})])
    with pytest.raises(SinkError, match="rows cannot be staged"):
        driver(cast("Any", failing), 0)
    assert shop.tables() == TABLES
    driver.close()


def test_a_column_that_the_table_lacks_is_refused_before_rows_are_staged(shop: Shop) -> None:
    sink = shop.sink()
    sink.prepare("case", cast("Any", None))
    batch = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=0), sink="sink")
    frame = cast("Any", ArrowFrame([pa.table({"id": [1], "colour": ["red"]})]))
    with pytest.raises(SinkError, match=r"a staging table cannot be made: .*colour"):
        sink.stage(frame, batch)
    assert shop.tables() == TABLES


@pytest.mark.clause("H3")
@pytest.mark.parametrize(
    ("change", "reason", "rows"),
    [
        ("DROP TABLE {staging}", "is gone", [0, 1, 2]),
        ("DELETE FROM {staging} WHERE id = 2", "has 2 rows of the 3 that were staged", [0, 1, 2]),
        ("INSERT INTO {staging} SELECT * FROM {staging}", "has 6 rows of the 3", [0, 1, 2]),
        ("ALTER TABLE orders DROP name", "'name' was staged as TEXT and is not in", [0, 1, 2]),
        ("ALTER TABLE orders RENAME name TO title", "'name' was staged as TEXT", [0, 1, 2]),
        (
            "DROP TABLE orders; CREATE TABLE orders (id TEXT, name TEXT)",
            "'id' was staged as INT and is TEXT in the table",
            ["0", "1", "2"],
        ),
        ("CREATE INDEX a ON orders (json_extract(name, '$.a'))", "malformed JSON", [0, 1, 2]),
    ],
)
def test_staged_rows_that_cannot_be_moved_as_they_are_are_staged_again(
    shop: Shop, change: str, reason: str, rows: list[object]
) -> None:
    """By Spark, and by a function that was corrected; else the job would fail at each start."""
    changed: list[str] = []

    def at(place: str) -> None:
        if place == "before part sink" and not changed:
            (name,) = shop.tables() - TABLES
            changed.append(name)
            for statement in change.format(staging=name).split("; "):
                shop.run(statement)

    case = BatchCase(shop.sink)
    first = case.driver(at)
    with pytest.raises(UsageError, match=rf"refused its part \(.*{reason}.*runs the batch again"):
        first(frame_of([0, 1], [2]), 0)
    first.close()
    assert shop.run("SELECT count(*) FROM orders") == [(0,)]
    assert shop.run("SELECT count(*) FROM coordlog_batches") == [(0,)]
    second = case.driver()
    columns = {"id": [str(n) if "0" in rows else n for n in range(3)]}
    second(cast("Any", ArrowFrame([pa.table(columns)])), 0)
    second.close()
    assert shop.run("SELECT id FROM orders ORDER BY id") == [(one,) for one in rows]
    assert shop.tables() == TABLES


def test_a_trigger_that_leaves_rows_out_is_named_by_the_rehearsal(shop: Shop) -> None:
    shop.run(
        "CREATE TRIGGER skip BEFORE INSERT ON orders WHEN NEW.id = 1 BEGIN SELECT RAISE(IGNORE); END"
    )
    driver = BatchCase(shop.sink).driver()
    with pytest.raises(SinkError, match=r"takes 2 of the 3 rows: a trigger or a rule of it leaves"):
        driver(frame_of([0, 1], [2]), 0)
    driver.close()
    assert shop.tables() == TABLES


def test_names_of_columns_in_another_case_are_those_of_sqlites_table(shop: Shop) -> None:
    driver = BatchCase(shop.sink).driver()
    driver(cast("Any", ArrowFrame([pa.table({"NAME": ["n"], "ID": [1]})])), 0)
    driver.close()
    assert shop.run("SELECT id, name FROM orders") == [(1, "n")]


@pytest.mark.parametrize("names", [("id", "rowid"), ("oid", "id"), ("name", "NAME"), ("id", "id")])
def test_two_names_of_one_column_of_sqlite_are_refused(shop: Shop, names: tuple[str, str]) -> None:
    """SQLite would take the last value of a row."""
    shop.run("DROP TABLE orders")
    shop.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, name INTEGER)")
    driver = BatchCase(shop.sink).driver()
    with pytest.raises(SinkError, match=f"columns '{names[0]}' and '{names[1]}' are one column"):
        driver(cast("Any", ArrowFrame([pa.table([[1], [2]], names=names)])), 0)
    driver.close()
    assert shop.run("SELECT id FROM orders") == []


def test_a_column_that_is_called_as_a_row_number_is_another_one(shop: Shop) -> None:
    shop.run("DROP TABLE orders")
    shop.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, oid TEXT)")
    driver = BatchCase(shop.sink).driver()
    driver(cast("Any", ArrowFrame([pa.table({"id": [1], "oid": ["x"]})])), 0)
    driver.close()
    assert shop.run("SELECT id, oid FROM orders") == [(1, "x")]


@pytest.mark.skipif(
    sqlite3.sqlite_version_info < (3, 37), reason="this SQLite has no strict tables"
)
def test_a_strict_table_takes_any_value_in_a_column_of_any(shop: Shop) -> None:
    for values in (pa.array(["01"]), pa.array([1]), pa.array([b"1"])):
        shop.run("DROP TABLE orders")
        shop.run("CREATE TABLE orders (x ANY) STRICT")
        driver = BatchCase(shop.sink).driver()
        driver(cast("Any", ArrowFrame([pa.table({"x": values})])), 0)
        driver.close()
        assert shop.run("SELECT x FROM orders") == [(values[0].as_py(),)]
        shop.run("DELETE FROM coordlog_batches")


def in_sqlite(shop: Shop, column: str, values: pa.Array, table: str = "orders") -> list[object]:
    """What a column gives back after a batch with these values."""
    shop.run("DROP TABLE orders")
    shop.run(f"CREATE TABLE orders (x {column})")
    driver = BatchCase(lambda: DatabaseTable.sqlite(shop.path, table)).driver()
    try:
        driver(cast("Any", ArrowFrame([pa.table({"x": values})])), 0)
    finally:
        driver.close()
    return [row[0] for row in shop.run("SELECT x FROM orders")]


IN_NEW_YORK = pa.timestamp("s", "America/New_York")
"""The type of a moment in a session of that zone."""


@pytest.mark.parametrize(
    ("column", "value", "kind", "expected"),
    [
        ("TEXT", Decimal("0.0000001"), pa.decimal128(38, 18), "0.000000100000000000"),
        ("TEXT", Decimal(0), pa.decimal128(38, 18), "0.000000000000000000"),
        ("NUMERIC(10, 2)", Decimal("1.50"), pa.decimal128(10, 2), 1.5),
        ("INTEGER", Decimal(7), pa.decimal128(38, 0), 7),
        ("REAL", Decimal("1.2345678901234567"), pa.decimal128(17, 16), 1.2345678901234567),
        ("NUMERIC", "a\v", pa.string(), "a\v"),
        ("TIMESTAMP", dt.datetime.fromisoformat("2024-07-01T12:00"), None, "2024-07-01T12:00:00"),
        ("TEXT", 1_719_835_200, IN_NEW_YORK, "2024-07-01T12:00:00+00:00"),
    ],
)
def test_sqlite_takes_a_value_as_it_is(
    shop: Shop, column: str, value: object, kind: pa.DataType, expected: object
) -> None:
    (stored,) = in_sqlite(shop, column, pa.array([value], kind))
    assert (stored, type(stored)) == (expected, type(expected))


@pytest.mark.parametrize("text", ["5", " 5 ", "5\v", "\v5.10", "\f-5e3\r\n"])
def test_a_text_of_which_sqlite_would_make_a_number_is_refused(shop: Shop, text: str) -> None:
    with pytest.raises(SinkError, match="SQLite makes a number of it"):
        pytest.fail(str(in_sqlite(shop, "NUMERIC", pa.array([text]))))


@pytest.mark.parametrize("number", ["12345678901234567890.1", "0.12345678901234567"])
def test_a_decimal_whose_digits_a_double_loses_is_refused(shop: Shop, number: str) -> None:
    values = pa.array([Decimal("0.5"), None, Decimal(number)])
    with pytest.raises(SinkError, match=r"row 3 .*a double does not keep its digits"):
        pytest.fail(str(in_sqlite(shop, "NUMERIC", values)))


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ([[1], None], pa.list_(pa.int32()), "list<item: int32> and .*SQLite has no such type"),
        ([5, None], pa.duration("us"), "SQLite has no such type"),
        ([None, 3_000_000], pa.date32(), "row 2 .*'x' is date32.*within 1 to 9999"),
        ([0, 2**61], pa.timestamp("us", "UTC"), "row 2 .*within 1 to 9999"),
    ],
)
def test_a_value_without_a_type_in_sqlite_is_refused_by_its_column(
    shop: Shop, value: list[object], kind: pa.DataType, said: str
) -> None:
    with pytest.raises(SinkError, match=said):
        in_sqlite(shop, "TEXT", pa.array(value, kind))


def test_a_sqlite_table_may_have_a_schema_in_its_name(shop: Shop) -> None:
    assert in_sqlite(shop, "BIGINT", pa.array([1, 2]), "main.orders") == [1, 2]


def test_another_spelling_of_a_sqlite_table_is_claimed_by_the_same_log(shop: Shop) -> None:
    """SQLite's names have no case: two brokers, each with a job of this id, would write each row twice."""
    logs = [
        LogIdentity(cluster_id=cluster, topic_id="1", name="log", topic="log") for cluster in "ab"
    ]
    sinks = [DatabaseTable.sqlite(shop.path, name) for name in ("orders", "ORDERS")]
    for sink in sinks:
        sink.prepare("case", cast("Any", None))
    sinks[0].claim("case", logs[0], ())
    with pytest.raises(SinkError, match="writes there with another log") as caught:
        sinks[1].claim("case", logs[1], ())
    shop.run(caught.value.next_step.partition("gone for good: ")[2].removesuffix(")"))
    sinks[1].claim("case", logs[1], ())


def connect_attached(folder: Path) -> Connection:
    """A connection to one file, to which another one is attached."""
    connection = sqlite3.connect(folder / "main.db")
    connection.execute("ATTACH ? AS shop", (str(folder / "shop.db"),))
    return cast("Connection", connection)


def test_a_batch_goes_into_a_table_of_an_attached_sqlite_file(shop: Shop) -> None:
    """Its staging table is in the attached file too, where it is found, and swept by the next start."""
    connect = partial(connect_attached, shop.path.parent)
    case = BatchCase(lambda: DatabaseTable(connect, "shop.orders", where="shop"))
    driver = case.driver()
    driver(frame_of([0, 1], [2]), 0)
    driver.close()
    assert shop.run("SELECT id FROM orders ORDER BY id") == [(0,), (1,), (2,)]
    sink = DatabaseTable(connect, "shop.orders", where="shop")
    sink.prepare("case", cast("Any", None))
    key = BatchKey(query_id="q-1", batch_id=1)
    sink.stage(frame_of([3]), Batch(job_id="case", driver_id="d", key=key, sink="sink"))
    assert shop.tables() > TABLES
    sink.sweep(lambda: True)
    assert shop.tables() == TABLES


def doubled() -> Any:  # noqa: ANN401, it stands for a DataFrame
    return frame_of([1, 2], [2])


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("id BIGINT PRIMARY KEY, name TEXT", "UNIQUE constraint failed"),
        ("id BIGINT CHECK (id < 2), name TEXT", "CHECK constraint failed"),
        ("id BIGINT, name TEXT, price BIGINT NOT NULL", "NOT NULL constraint failed"),
    ],
)
def test_rows_that_the_table_refuses_fail_before_the_intent(
    shop: Shop, column: str, reason: str
) -> None:
    shop.run("DROP TABLE orders")
    shop.run(f"CREATE TABLE orders ({column})")
    case = BatchCase(shop.sink)
    refused = case.driver()
    with pytest.raises(SinkError, match=rf"refused; nothing of it is committed.*{reason}"):
        refused(doubled(), 0)
    kinds = [record.kind for record in records_of(case.log)]
    assert Kind.COMMIT_INTENT not in kinds
    assert shop.tables() == TABLES, "its staging table is gone"
    refused.close()
    if "price" in column:
        return  # the table has to be mended
    mended = case.driver()
    mended(frame_of([1]), 0)
    mended.close()
    assert shop.run("SELECT id FROM orders") == [(1,)]


def test_a_batch_already_in_the_table_is_not_checked_against_its_own_rows(shop: Shop) -> None:
    """Its log is gone: Spark gives the last batch again, and its marker is there."""
    shop.run("CREATE UNIQUE INDEX only_once ON orders (id)")
    sink = shop.sink()
    sink.prepare("case", cast("Any", None))
    batch = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=0), sink="sink")
    for _ in range(2):
        part = sink.stage(frame_of([1, 2]), batch)
        assert sink.settle(part, batch).is_done
    assert shop.run("SELECT id FROM orders ORDER BY id") == [(1,), (2,)]


@pytest.mark.clause("H3")
def test_a_number_below_the_tables_newest_batch_is_not_taken_for_written(shop: Shop) -> None:
    """Log and checkpoint are older copies: Spark plans the batch again, with rows that came since."""
    case, ends = BatchCase(shop.sink), list[int]()
    driver = case.driver()
    for number in range(3):
        driver(frame_of([number], batch_id=number), number)
        ends.append(case.log.high_watermark())
    driver.close()
    case.log.lose_from(ends[0])
    driver = case.driver()
    for _ in range(2):
        with pytest.raises(SinkError, match="the table has batch 2 of query q-1"):
            driver(frame_of([1, 2, 3], batch_id=1), 1)
    for number in (2, 3):  # the newest checkpoint is back
        driver(frame_of([number], batch_id=number), number)
    driver.close()

    assert shop.run("SELECT id FROM orders ORDER BY id") == [(number,) for number in range(4)]
    assert shop.tables() == TABLES


@pytest.mark.clause("H3")
def test_an_intent_whose_rows_the_table_has_come_to_refuse_jams_no_job(shop: Shop) -> None:
    """Another writer has put a row of the same key there since they were rehearsed."""
    shop.run("CREATE UNIQUE INDEX only_once ON orders (id)")
    seen: list[str] = []

    def at(place: str) -> None:
        seen.append(place)
        if place == "before part sink" and seen.count(place) == 1:
            shop.run("INSERT INTO orders (id, name) VALUES (2, 'of another writer')")

    case = BatchCase(shop.sink)
    first = case.driver(at)
    with pytest.raises(UsageError, match=r"'sink' refused its part \(IntegrityError: UNIQUE"):
        first(frame_of([1, 2]), 0)
    first.close()
    (outcome,) = [one for one in records_of(case.log) if one.kind is Kind.COMMIT_OUTCOME]
    assert b"UNIQUE constraint failed" in (outcome.payload or b"")
    mended = case.driver()
    mended(frame_of([1]), 0)
    mended.close()
    assert shop.run("SELECT id, name FROM orders ORDER BY id") == [
        (1, "n1"),
        (2, "of another writer"),
    ]
    assert shop.tables() == TABLES, "no slower driver can move what was refused"


def test_a_constraint_that_sqlite_checks_at_the_commit_jams_no_job(shop: Shop) -> None:
    """No statement before the commit finds it, so that the rehearsal cannot."""
    shop.run("DROP TABLE orders")
    shop.run("CREATE TABLE customers (id BIGINT PRIMARY KEY)")
    shop.run(
        "CREATE TABLE orders (id BIGINT REFERENCES customers (id) DEFERRABLE INITIALLY DEFERRED, "
        "name TEXT)"
    )
    shop.run("INSERT INTO customers VALUES (1)")

    def connect() -> Connection:
        connection = sqlite3.connect(shop.path)
        connection.execute("PRAGMA foreign_keys = ON")
        return cast("Connection", connection)

    case = BatchCase(lambda: DatabaseTable(connect, "orders", where="here"))
    refused = case.driver()
    with pytest.raises(UsageError, match=r"refused its part \(IntegrityError: FOREIGN KEY"):
        refused(frame_of([1, 2]), 0)
    refused.close()
    mended = case.driver()
    mended(frame_of([1]), 0)
    mended.close()
    assert shop.run("SELECT id FROM orders") == [(1,)]


def records_of(log: MemoryLog) -> list[Record]:
    audited = audit_records(log.read(0, log.high_watermark()))
    return [one.record for one in audited if one.counts and one.record is not None]


class Committing(sqlite3.Connection):
    """As Python 3.12 opens it with `autocommit=True`: its `commit` does nothing."""

    autocommit = True

    def commit(self) -> None:
        """Nothing."""


def test_a_sqlite_connection_in_autocommit_is_refused(shop: Shop) -> None:
    def connect() -> Connection:
        return cast("Connection", sqlite3.connect(shop.path, factory=Committing))

    sink = DatabaseTable(connect, "orders", where="here")
    with pytest.raises(SinkError, match=r"autocommit=True.*leave `autocommit` out"):
        sink.prepare("case", cast("Any", None))
    assert shop.tables() == {"orders"}


class Server:
    """Stands for a connection to PostgreSQL: notes what it is told."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.autocommit = True
        self.told: list[str] = []
        self.refuses, self.rowcount = "", 1

    def fileno(self) -> int:
        return self.socket.fileno()

    def cursor(self) -> Server:
        return self

    def execute(self, statement: str, _values: object = None) -> None:
        assert not self.autocommit, "each statement would be committed by itself"
        self.told.append(statement)
        if self.refuses and statement.startswith(self.refuses):
            raise sqlite3.OperationalError("canceling statement due to lock timeout")

    def fetchall(self) -> list[tuple[object, ...]]:
        if "nspname" in self.told[-1]:
            return [("public", "orders", None, None)]
        return [("coordlog_staging_1_2", "bigint")]

    def commit(self) -> None:
        self.told.append("COMMIT")

    def rollback(self) -> None:
        self.told.append("ROLLBACK")

    def close(self) -> None:
        self.told.append("CLOSE")
        self.socket.close()


def test_autocommit_of_another_connection_is_switched_off() -> None:
    server = Server()
    DatabaseTable(lambda: server, "orders", where="here").prepare("case", cast("Any", None))
    assert any(one.startswith("CREATE TABLE") for one in server.told)


def test_no_lock_of_a_server_is_waited_for_for_ever() -> None:
    server = Server()
    DatabaseTable(lambda: server, "orders", where="here").prepare("case", cast("Any", None))
    assert any(one.startswith("SET LOCAL lock_timeout = 30000") for one in server.told[:3])


def test_a_staging_table_that_cannot_be_dropped_is_no_failure_of_its_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    server.refuses = "DROP TABLE"
    sink = DatabaseTable(lambda: server, "orders", where="here")
    batch = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=0), sink="sink")
    details = {"staging": "coordlog_staging_1_2", "tasks": "7", "columns": '"id"'}
    part = BatchPart(sink="sink", rows=1, files=[], details=details)
    assert sink.settle(part, batch).is_done
    assert "coordlog_staging_1_2 is left for the next start" in caplog.text
    assert "lock timeout" in caplog.text


def test_a_connection_has_a_bound_for_whatever_its_user_gives_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    given: list[dict[str, int]] = []

    def connect(_conninfo: str, **bounds: int) -> Server:
        given.append(bounds)
        return Server()

    monkeypatch.setattr(psycopg, "connect", connect)
    for conninfo in ("host=db", "connect_timeout=5 keepalives_idle=9 tcp_user_timeout=0"):
        DatabaseTable.postgresql(conninfo, "orders").prepare("case", cast("Any", None))
    network = {"keepalives_interval": 15, "keepalives_count": 3}
    assert given == [
        {"connect_timeout": 30, "keepalives_idle": 15, "tcp_user_timeout": 60_000, **network},
        network,
    ]


def test_names_that_are_no_names_of_ours_are_not_put_into_a_statement(shop: Shop) -> None:
    sink = shop.sink()
    sink.prepare("case", cast("Any", None))
    batch = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=0), sink="sink")
    part = sink.stage(frame_of([1]), batch)
    part.details["staging"] = "orders; DROP TABLE orders"
    with pytest.raises(SinkError, match="no staging table of ours"):
        sink.settle(part, batch)


def test_only_what_was_listed_is_swept_and_only_by_the_driver_in_force(shop: Shop) -> None:
    sink = shop.sink()
    sink.prepare("case", cast("Any", None))
    batch = Batch(job_id="case", driver_id="d", key=BatchKey(query_id="q", batch_id=0), sink="sink")
    staging = sink.stage(frame_of([1]), batch).details["staging"]
    assert len(staging) == 17 + 20 + 1 + 20, "both digests whole, and within PostgreSQL's 63"
    sink.sweep(lambda: False)
    assert staging in shop.tables()
    other = DatabaseTable.sqlite(shop.path, "orders")
    other.prepare("another", cast("Any", None))
    other.sweep(lambda: True)
    assert staging in shop.tables(), "it is of another job"
    sink.sweep(lambda: True)
    assert staging not in shop.tables()


def test_a_table_that_is_not_there_is_refused_before_anything_is_staged(tmp_path: Path) -> None:
    sink = DatabaseTable.sqlite(tmp_path / "empty.db", "orders")
    with pytest.raises(SinkError, match="it cannot be made ready: OperationalError: no such table"):
        sink.prepare("case", cast("Any", None))


def test_a_destination_shows_no_password() -> None:
    for given in ("host=db password=secret", "postgresql://me:secret@db/shop"):
        with pytest.raises(OptionError) as raised:
            DatabaseTable.postgresql(given, "orders")
        assert "secret" not in str(raised.value)
    with pytest.raises(OptionError, match="table"):
        DatabaseTable.sqlite("shop.db", " ")
    assert DatabaseTable.sqlite("/x/shop.db", "orders").destination == "/x/shop.db orders"
