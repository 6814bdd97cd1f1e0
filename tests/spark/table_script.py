"""Batches into Delta and Iceberg tables, in a JVM with their jars: a program, as the first session decides on jars.

`python table_script.py FOLDER KIND`, `delta` or `iceberg`: drivers stand still in the middle of batches, others take
over; ends with 0 if the table has each row once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from batch_cases import StreamCase
from batch_fakes import Stop
from coordlog.errors import CoordlogError, JobMovedError, SinkError, UsageError
from coordlog.log.broker.jars import JarSet, resolve
from coordlog.log.interface import LogIdentity
from coordlog.log.memory import MemoryLog
from coordlog.schemas.record import Kind
from coordlog.spark_integration import local_session, query_session
from coordlog.spark_integration.batches.exactly_once import ExactlyOnce
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.batches.sinks import Batch, BatchSink
from coordlog.spark_integration.batches.tables import commit_lock
from coordlog.spark_integration.batches.tables.claims import CommitFiles
from coordlog.spark_integration.batches.tables.delta import DELTA_SETTINGS, DeltaTable
from coordlog.spark_integration.batches.tables.iceberg import (
    IcebergTable,
    iceberg_settings,
)


def check(
    spark: SparkSession,
    make_sink: Callable[[], BatchSink],
    places: tuple[str, ...],
    read: Callable[[], list[int]],
) -> None:
    case = StreamCase(spark, make_sink)
    for batch_id, place in enumerate(places):
        start = 10 * batch_id

        def look(upto: int = start + 10) -> None:
            found = read()
            assert found == list(range(upto)), found

        case.dies_at(place, batch_id, spark.range(start, start + 10, 1, 2), look)
    last, end = case.driver(), len(places)
    case.give(last, end, spark.range(0))
    case.give(last, end + 1, spark.range(10 * end, 10 * end + 1))
    last.close()
    assert read() == list(range(10 * end + 1))


def check_two_logs(
    spark: SparkSession, make_sink: Callable[[], BatchSink], read: Callable[[], list[int]]
) -> None:
    """A driver of another log of this job id, as at another broker, is refused while a batch is staged, and after."""
    live, other, before = StreamCase(spark, make_sink), StreamCase(spark, make_sink), read()
    start = max(before) + 1
    other.log = MemoryLog("another.log")
    stop, errors = Stop("before part sink"), list[BaseException]()
    driver = live.driver(stop)

    def refuse_other() -> None:
        second = other.driver()
        with pytest.raises(SinkError, match=r"job 'case' writes there with another log, .*another"):
            other.give(second, 0, spark.range(1000, 1001))
        second.close()
        assert other.log.high_watermark() == 0, "nothing was appended"

    def work() -> None:
        try:
            live.give(driver, 0, spark.range(start, start + 3))
        except BaseException as error:  # noqa: BLE001, shown below
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert stop.reached.wait(120), errors
    refuse_other()
    stop.gone_on.set()
    thread.join(120)
    driver.close()
    assert errors == [], errors
    refuse_other()
    assert read() == [*before, *range(start, start + 3)], read()


def check_adopted(
    spark: SparkSession,
    make_sink: Callable[[], DeltaTable | IcebergTable],
    read: Callable[[], list[int]],
) -> None:
    """A driver of before an adoption publishes nothing more; of logs that claim a table at once one gets it."""

    def claimed(log: LogIdentity, *former: tuple[str, str]) -> DeltaTable | IcebergTable:
        sink = make_sink()
        sink.prepare("moved", spark)
        sink.claim("moved", log, former)
        return sink

    here, there, before_rows = log_of("here"), log_of("there"), read()
    batch = Batch(
        job_id="moved",
        driver_id="d",
        key=BatchKey(query_id="q", batch_id=0),
        sink="sink",
    )
    before = claimed(here)
    claimed(here)
    part = before.stage(spark.range(3000, 3001), batch)
    claimed(there, ("here", "1"))
    with pytest.raises(JobMovedError, match="since this driver began"):
        before.settle(part, batch)
    with pytest.raises(SinkError, match="with another log"):
        claimed(here)
    assert read() == before_rows, read()

    ends, together = list[str](), threading.Barrier(4)

    def claim(cluster: str) -> None:
        sink = make_sink()
        sink.prepare("racing", spark)
        together.wait()
        try:
            sink.claim("racing", log_of(cluster), ())
            ends.append("got it")
        except SinkError as error:
            ends.append("refused" if "with another log" in str(error) else str(error))

    threads = [threading.Thread(target=claim, args=(f"cluster-{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(ends) == ["got it", "refused", "refused", "refused"], ends


def check_held_lock(
    spark: SparkSession,
    make_sink: Callable[[], BatchSink],
    folder: Path,
    read: Callable[[], list[int]],
) -> None:
    """While another process commits to a table on a local disk, none of this one does: one would replace the other."""
    case, before = StreamCase(spark, make_sink), read()
    start, driver = max(before) + 1, case.driver()
    case.give(driver, 0, spark.range(start, start + 1))
    file = folder / "_coordlog" / "commit.lock"
    assert file.read_text() == str(os.getpid()), "the last that has committed"
    with held(file), pytest.MonkeyPatch.context() as limits:
        limits.setattr(commit_lock, "TABLE_LOCK_S", 0.2)
        with pytest.raises(CoordlogError, match=rf"process {os.getpid()} has committed there for"):
            case.give(driver, 1, spark.range(start + 1, start + 2))
        assert read() == [*before, start], read()
    case.give(driver, 1, spark.range(start + 1, start + 2))
    driver.close()
    assert read() == [*before, start, start + 1], read()


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Another process has the lock of a file for the block."""
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.stdin.close()


def check_one_session(
    spark: SparkSession, make_sink: Callable[[], BatchSink], read: Callable[[], list[int]]
) -> None:
    """Two jobs stage frames of one session at once: each snapshot gets the rows and the name of its own batch."""
    before, together, errors = read(), threading.Barrier(2), list[BaseException]()
    start = max(before) + 1

    def meet(place: str) -> None:
        if place == "before staging":
            together.wait(120)

    def work(number: int) -> None:
        case = StreamCase(spark, make_sink, f"job-{number}")
        driver = case.driver(meet)
        try:
            for batch_id in range(3):
                row = start + 2 * batch_id + number
                case.give(driver, batch_id, spark.range(row, row + 1))
        except BaseException as error:  # noqa: BLE001, shown below
            errors.append(error)
            together.abort()
        driver.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert errors == [], errors
    assert read() == [*before, *range(start, start + 6)], read()


def check_expired(spark: SparkSession, read: Callable[[], list[int]]) -> None:
    """A staged snapshot that was expired is staged again; a published one that was expired is not written again."""
    table, before = "ice.db.orders", read()
    start = max(before) + 1

    def expire(place: str) -> None:
        if place == "before part sink":
            newest = f"SELECT max_by(snapshot_id, committed_at) FROM {table}.snapshots"
            ((snapshot,),) = spark.sql(newest).collect()
            spark.sql(
                "CALL ice.system.expire_snapshots(table => 'db.orders', "
                f"snapshot_ids => ARRAY({snapshot}))"
            )

    case = StreamCase(spark, lambda: IcebergTable(table))
    first = case.driver(expire)
    with pytest.raises(UsageError, match=r"its staged snapshot case-.* has been expired"):
        case.give(first, 0, spark.range(start, start + 3))
    first.close()
    assert read() == before, read()
    second = case.driver()
    case.give(second, 0, spark.range(start, start + 3))
    second.close()
    assert read() == [*before, *range(start, start + 3)], read()

    drop_outcomes(case.log)
    spark.sql(f"INSERT INTO {table} VALUES ({start + 3})")
    spark.sql(
        "CALL ice.system.expire_snapshots(table => 'db.orders', retain_last => 1, "
        "older_than => TIMESTAMP '2099-01-01 00:00:00')"
    )
    third = case.driver()
    case.give(third, 0, spark.range(start, start + 3))
    third.close()
    assert read() == [*before, *range(start, start + 4)], read()


def check_unstaged(spark: SparkSession, read: Callable[[], list[int]]) -> None:
    """A table that stages no more takes no batch: its rows would be visible at once, and again at each try."""
    table, before = "ice.db.orders", read()
    start = max(before) + 1
    case = StreamCase(spark, lambda: IcebergTable(table))
    driver = case.driver()
    case.give(driver, 0, spark.range(start, start + 1))
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('write.wap.enabled')")
    with pytest.raises(SinkError, match="it takes no staged snapshots"):
        case.give(driver, 1, spark.range(start + 1, start + 2))
    assert read() == [*before, start], read()
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.wap.enabled'='true')")
    case.give(driver, 1, spark.range(start + 1, start + 2))
    driver.close()
    assert read() == [*before, start, start + 1], read()


def check_changed(spark: SparkSession) -> None:
    """Columns that another program has changed are compared as they are now: Spark would cut 1.99 to 1."""
    table, other = "ice.db.changed", spark.newSession()  # with a catalog, and its cache, of its own
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, price DOUBLE) USING iceberg "
        "TBLPROPERTIES ('write.wap.enabled'='true')"
    )
    case = StreamCase(spark, lambda: IcebergTable(table))
    driver = case.driver()
    case.give(driver, 0, spark.range(1).selectExpr("id", "1.5D AS price"))
    spark.table(table).collect()  # now the session's catalog has its columns in its cache
    other.sql(f"ALTER TABLE {table} DROP COLUMN price")
    other.sql(f"ALTER TABLE {table} ADD COLUMN price INT")
    with pytest.raises(SinkError, match="column 'price' is double and in the table int"):
        case.give(driver, 1, spark.range(1).selectExpr("id + 1 AS id", "1.99D AS price"))
    case.give(driver, 1, spark.range(1).selectExpr("id + 1 AS id", "2 AS price"))
    driver.close()
    rows = spark.sql(f"SELECT id, price FROM {table} ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(0, None), (1, 2)], rows


def check_replaced(spark: SparkSession) -> None:
    """A batch whose columns were dropped or replaced since goes back: values would be lost, or not be readable."""
    changes = {
        "ALTER TABLE {table} DROP COLUMN price": "'price' was dropped",
        "ALTER TABLE {table} DROP COLUMN price; ALTER TABLE {table} ADD COLUMN price INT": (
            "'price' was dropped or replaced"
        ),
        "CREATE OR REPLACE TABLE {table} (id BIGINT, price STRING) {settings}": (
            "price: int cannot be promoted to string"
        ),
        "ALTER TABLE {table} ALTER COLUMN price TYPE BIGINT; ALTER TABLE {table} ADD COLUMN note STRING": "",
    }
    settings = "USING iceberg TBLPROPERTIES ('write.wap.enabled'='true')"
    for number, (change, reason) in enumerate(changes.items()):
        table = f"ice.db.replaced_{number}"
        spark.sql(f"CREATE TABLE {table} (id BIGINT, price INT) {settings}")
        statements = [one.format(table=table, settings=settings) for one in change.split("; ")]

        def at(place: str, statements: list[str] = statements) -> None:
            while place == "before part sink" and statements:
                spark.sql(statements.pop(0))

        case = StreamCase(spark, partial(IcebergTable, table))
        driver, rows = case.driver(at), spark.range(1).selectExpr("id", "7 AS price")
        if reason:
            with pytest.raises(UsageError, match=f"since the batch was staged: .*{reason}"):
                case.give(driver, 0, rows)
            assert spark.sql(f"SELECT 1 FROM {table}.snapshots").count() == 0, (
                "none can be published"
            )
            kinds = spark.table(table).dtypes
            rows = spark.range(1).selectExpr(
                *(f"CAST(7 AS {kind}) AS {name}" for name, kind in kinds)
            )
        case.give(driver, 0, rows)
        driver.close()
        (found,) = spark.table(table).collect()
        assert [str(one) for one in found if one is not None][-1] == "7", found


def check_other_columns(
    spark: SparkSession, make_sink: Callable[[], BatchSink], read: Callable[[], list[int]]
) -> None:
    """A batch of other columns than the table's is given back, and written once its function is corrected."""
    case, before = StreamCase(spark, make_sink), read()
    start, driver = max(before) + 1, case.driver()
    for batch_id, wrong in enumerate(("id, 1 AS price", "CAST(id AS STRING) AS id")):
        rows = spark.range(start + batch_id, start + batch_id + 1)
        with pytest.raises(UsageError, match=r"refused its part \(.*DELTA_.*runs the batch again"):
            case.give(driver, batch_id, rows.selectExpr(*wrong.split(", ")))
        case.give(driver, batch_id, rows)
    driver.close()
    assert read() == [*before, start, start + 1], read()


def check_lasting(spark: SparkSession, path: str, read: Callable[[], list[int]]) -> None:
    """A batch whose tasks fail for good is given back at its first try, and written once its function is corrected."""
    case, before = StreamCase(spark, lambda: DeltaTable(path)), read()
    start, driver = max(before) + 1, case.driver()

    def fail(batches: Iterable[Any]) -> Iterable[Any]:
        raise ValueError(f"no rows of {batches}")

    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT counted CHECK (id >= 0)")
    for batch_id, (wrong, reason) in enumerate(
        (
            (spark.range(-1, 0), "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"),
            (spark.range(1).mapInArrow(fail, "id long"), "ValueError"),
        )
    ):
        with pytest.raises(UsageError, match=rf"refused its part \(.*{reason}"):
            case.give(driver, batch_id, wrong)
        case.give(driver, batch_id, spark.range(start + batch_id, start + batch_id + 1))
    driver.close()
    kinds = [one.record().kind for one in case.log.read(0, case.log.high_watermark())]
    assert kinds.count(Kind.COMMIT_OUTCOME) == kinds.count(Kind.COMMIT_INTENT) == 4, kinds
    spark.sql(f"ALTER TABLE delta.`{path}` DROP CONSTRAINT counted")
    assert read() == [*before, start, start + 1], read()


def check_rolled_back(spark: SparkSession, read: Callable[[], list[int]]) -> None:
    """A rollback takes what it takes, and each later batch arrives once."""
    before = read()
    start = max(before) + 1
    case = StreamCase(spark, lambda: IcebergTable("ice.db.orders"))

    def roll_back(place: str) -> None:
        if place == "before part sink" and start + 1 in read():
            history = "SELECT snapshot_id FROM ice.db.orders.history ORDER BY made_current_at"
            snapshot = spark.sql(history).collect()[-2][0]
            spark.sql(f"CALL ice.system.rollback_to_snapshot('db.orders', {snapshot})")

    driver = case.driver(roll_back)
    for number in range(4):
        case.give(driver, number, spark.range(start + number, start + number + 1))
    driver.close()
    assert read() == [*before, start, start + 2, start + 3], read()


def drop_outcomes(log: MemoryLog) -> None:
    """Cut the log before the outcome that settles its last intent, as if the driver had died there."""
    stored = list(log.read(0, log.high_watermark()))
    intents = [one.offset for one in stored if one.record().kind is Kind.COMMIT_INTENT]
    outcomes = [one.offset for one in stored if one.record().kind is Kind.COMMIT_OUTCOME]
    del log._partition.records[next(one for one in outcomes if one > intents[-1]) :]


def check_commit_files(spark: SparkSession, path: str) -> None:
    """The files of claims that are not on a local disk: what is written stays."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    folder = jvm.org.apache.hadoop.fs.Path(log.dataPath(), "_coordlog/elsewhere")
    files = CommitFiles(jvm, log, folder)
    assert files.read("case.0") is None
    for content in (b'{"a": 1}', b'{"a": 2}'):
        files.write_once("case.0", content)
    assert files.read("case.0") == b'{"a": 1}'


def log_of(cluster: str) -> LogIdentity:
    return LogIdentity(cluster_id=cluster, topic_id="1", name=f"log at {cluster}", topic="log")


def ids(spark: SparkSession, table: str) -> list[int]:
    return [row[0] for row in spark.sql(f"SELECT id FROM {table} ORDER BY id").collect()]


SMALL_DELTA_LOG: Final = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}
"""Delta reads its log with 50 tasks otherwise, after each commit."""


def delta(folder: Path) -> None:
    settings = {**DELTA_SETTINGS, **SMALL_DELTA_LOG, "spark.ui.enabled": "false"}
    spark = query_session(2, jars=resolve(JarSet.DELTA), settings=settings)
    path = str(folder / "delta")
    places = ("looked", "written")
    check(spark, lambda: DeltaTable(path), places, lambda: ids(spark, f"delta.`{path}`"))
    assert spark.sql(f"DESCRIBE HISTORY delta.`{path}`").count() == len(places) + 2
    check_two_logs(spark, lambda: DeltaTable(path), lambda: ids(spark, f"delta.`{path}`"))
    check_adopted(spark, lambda: DeltaTable(path), lambda: ids(spark, f"delta.`{path}`"))
    check_held_lock(
        spark, lambda: DeltaTable(path), Path(path), lambda: ids(spark, f"delta.`{path}`")
    )
    check_other_columns(spark, lambda: DeltaTable(path), lambda: ids(spark, f"delta.`{path}`"))
    check_lasting(spark, path, lambda: ids(spark, f"delta.`{path}`"))
    check_commit_files(spark, path)
    os.chdir(folder)
    relative = StreamCase(spark, lambda: DeltaTable("relative"))
    for batch_id in range(2):
        driver = relative.driver()
        relative.give(driver, batch_id, spark.range(batch_id, batch_id + 1))
        driver.close()
    assert ids(spark, f"delta.`{folder / 'relative'}`") == [0, 1]


def iceberg(folder: Path) -> None:
    settings = iceberg_settings("ice", str(folder / "ice"))
    spark = local_session(2, jars=resolve(JarSet.ICEBERG), settings=settings)
    spark.sql("CREATE TABLE ice.db.orders (id BIGINT) USING iceberg")
    with pytest.raises(SinkError, match=r"write\.wap\.enabled"):
        IcebergTable("ice.db.orders").prepare("case", spark)
    spark.sql("ALTER TABLE ice.db.orders SET TBLPROPERTIES ('write.wap.enabled'='true')")
    check(
        spark,
        lambda: IcebergTable("ice.db.orders"),
        ("staged", "published"),
        lambda: ids(spark, "ice.db.orders"),
    )
    lost = StreamCase(spark, lambda: IcebergTable("ice.db.orders"))
    for start in (
        100,
        110,
    ):  # the second batch is given again after its log was lost, and is published
        with_log = lost.driver()
        lost.give(with_log, start, spark.range(start, start + 5, 1, 2))
        with_log.close()
    lost.log = MemoryLog()
    again = lost.driver()
    lost.give(again, 110, spark.range(110, 115, 1, 2))
    lost.give(again, 111, spark.range(120, 125, 1, 2))
    again.close()
    found = [one for one in ids(spark, "ice.db.orders") if one >= 100]
    assert found == [*range(100, 105), *range(110, 115), *range(120, 125)], found
    cut = StreamCase(spark, lambda: IcebergTable("ice.db.orders"))  # a log that has lost its end
    whole = cut.driver()
    for batch_id in range(2):
        cut.give(whole, batch_id, spark.range(300 + batch_id, 301 + batch_id))
    whole.close()
    stored = list(cut.log.read(0, cut.log.high_watermark()))
    outcomes = [one.offset for one in stored if one.record().kind is Kind.COMMIT_OUTCOME]
    del cut.log._partition.records[outcomes[0] :]
    again = cut.driver()
    for batch_id in range(1, 3):
        cut.give(again, batch_id, spark.range(300 + batch_id, 301 + batch_id))
    again.close()
    found = [one for one in ids(spark, "ice.db.orders") if one >= 300]
    assert found == [300, 301, 302], found
    one, other = IcebergTable("ice.db.orders"), IcebergTable("ice.db.orders")
    both = ExactlyOnce(
        lambda frame, _batch_id: {"one": frame, "other": frame.selectExpr("id + 10 AS id")},
        service=lambda: BatchService(
            job_id="both", log=MemoryLog(), sinks={"one": one, "other": other}
        ),
    )
    lost.give(both, 0, spark.range(200, 203))
    both.close()
    found = [one for one in ids(spark, "ice.db.orders") if one >= 200]
    assert found == [200, 201, 202, 210, 211, 212, 300, 301, 302], found
    check_two_logs(
        spark, lambda: IcebergTable("ice.db.orders"), lambda: ids(spark, "ice.db.orders")
    )
    check_adopted(spark, lambda: IcebergTable("ice.db.orders"), lambda: ids(spark, "ice.db.orders"))
    check_one_session(
        spark, lambda: IcebergTable("ice.db.orders"), lambda: ids(spark, "ice.db.orders")
    )
    check_held_lock(
        spark,
        lambda: IcebergTable("ice.db.orders"),
        folder / "ice" / "db" / "orders",
        lambda: ids(spark, "ice.db.orders"),
    )
    check_changed(spark)
    check_replaced(spark)
    for check_rows in (check_unstaged, check_rolled_back, check_expired):
        check_rows(spark, lambda: ids(spark, "ice.db.orders"))


if __name__ == "__main__":
    {"delta": delta, "iceberg": iceberg}[sys.argv[2]](Path(sys.argv[1]))
