"""Batches into a table of a database: executors write a staging table, the driver moves the rows in one transaction.

By Python's DB-API, not JDBC: the driver for PostgreSQL is one `pip install psycopg[binary]`, the driver for SQLite is
part of Python, and both reach executors in the same way as this package; a JDBC driver is a jar that must be on Spark's
class path when its JVM starts.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import os
import secrets
import sqlite3
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from coordlog.errors import OptionError, SinkError
from coordlog.limits import DATABASE_STATEMENT_S, TRANSACTION_IDLE_S
from coordlog.log.credentials import refuse_credentials
from coordlog.log.interface import LogIdentity
from coordlog.option_types import check_all, check_range, check_types
from coordlog.spark_integration.batches.databases.claims import TableClaims
from coordlog.spark_integration.batches.databases.column_types import (
    column_types,
    exact_rows,
    refuse_one_twice,
    table_types,
)
from coordlog.spark_integration.batches.databases.connections import (
    Connect,
    Connection,
    SilentServerError,
    answering,
    begin,
    connect_postgresql,
    connect_sqlite,
    guarded,
    mark_of,
)
from coordlog.spark_integration.batches.payloads import BatchPart, PartOutcome
from coordlog.spark_integration.batches.sinks import (
    At,
    Batch,
    map_numbered,
    nowhere,
    refuse_older,
)
from coordlog.spark_integration.task.worker_archives import keep_archives

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Connection", "DatabaseTable"]

_log = logging.getLogger(__name__)

_MARKERS: Final = "coordlog_batches"
_STAGING: Final = "coordlog_staging"
_CREATION: Final = 0x636F6F72646C6F67
"""Key of PostgreSQL's lock for making tables: "coordlog" in bytes."""
_IDENTITY: Final = """
WITH RECURSIVE parts (oid) AS (
    SELECT %(table)s::regclass::oid
    UNION ALL
    SELECT inhrelid FROM parts JOIN pg_inherits ON inhparent = parts.oid
    JOIN pg_class AS child ON child.oid = inhrelid WHERE child.relispartition
), named AS (
    SELECT relpersistence, relkind, format('%%I.%%I', nspname, relname) AS name FROM parts
    JOIN pg_class ON pg_class.oid = parts.oid JOIN pg_namespace ON pg_namespace.oid = relnamespace
)
SELECT nspname, relname, (SELECT min(name) FROM named WHERE relpersistence <> 'p'),
    (SELECT min(name) FROM named WHERE relkind = 'f')
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = %(table)s::regclass
"""
"""Schema in which PostgreSQL finds a table, the name that it has there; and the names of that table or of a partition
whose rows do not outlive the server, and of one whose rows are another server's."""
_TASK: Final = "coordlog_task"
_ROWS_AT_ONCE: Final = 10_000
_AGAIN: Final = "fix the database, then start the query again"
_OTHER_ROWS: Final = (
    "fix the function that makes the rows, or the table, then start the query again"
)
"""Next step if the table refuses rows or their columns."""
_REFUSALS: Final = frozenset({"IntegrityError", "DataError"})
_PASSING: Final = frozenset({"08", "25", "40", "53", "55", "57", "58", "XX"})
"""Classes of SQLSTATE of errors that may not come again: of the connection, of other transactions, of the server."""
_CANCELLED: Final = "57014"
"""SQLSTATE of a statement that the server has ended at its bound."""


class DatabaseTable:
    """A `BatchSink`: an existing table of a SQLite or PostgreSQL database.

    Readers see a whole batch or nothing of it. Further tables in the same schema: `coordlog_batches`, with a row for
    each batch in the table, which must never be deleted; `coordlog_claims`, with the log of each job that writes to the
    table; and a staging table while a batch is in progress.

    Args:
        connect: Opens a connection of `sqlite3`, `psycopg` or `psycopg2`; called on the driver and in tasks, so it
            must pickle, and needs a bound of its own. Autocommit is switched off; a `sqlite3` connection with
            autocommit is refused. Keep passwords out of it: libpq reads them from `PGPASSWORD` or `~/.pgpass`.
        table: Exact name of the table, after its schema and a dot if it has one. The frame's columns must be
            columns of the table; the table's other columns get their defaults.
        where: Name of the database, for people and for the log: no credentials.
        statement_timeout_s: Longest time of one statement of PostgreSQL, in seconds, unless the server has a shorter
            one; then the server is left, and the batch is tried again.

    Raises:
        OptionError: An argument is empty, out of range or of a wrong type, or `where` holds credentials.
        OptionsError: Several arguments are.
    """

    def __init__(
        self,
        connect: Connect,
        table: str,
        *,
        where: str,
        statement_timeout_s: float = DATABASE_STATEMENT_S,
    ) -> None:
        check_types(type(self).__init__, locals())
        check_all(
            lambda: _check_table(table),
            lambda: _check_where(where),
            lambda: check_range("statement_timeout_s", statement_timeout_s, 1, 86_400),
        )
        self._connect, self._table, self._where = connect, table, where
        self._limit_s = statement_timeout_s
        schema, _, self._plain = table.rpartition(".")
        self._job_id = ""
        self._set_schema(schema)

    def _set_schema(self, schema: str) -> None:
        self._schema, self._prefix = schema, f"{_quoted(schema)}." if schema else ""
        self._claims = TableClaims(
            prefix=self._prefix,
            target=self._plain,
            destination=self.destination,
            opened=self._open,
        )

    @classmethod
    def sqlite(cls, path: str | os.PathLike[str], table: str) -> DatabaseTable:
        """A table in a SQLite file, which driver and executors share: one machine.

        Raises:
            OptionError: An argument is empty or of a wrong type, or `path` is not that of a file.
            OptionsError: Several arguments are.
        """
        check_types(cls.sqlite, locals())
        path = os.fspath(path)
        if path in {"", ":memory:"} or path.startswith("file:"):
            raise OptionError("path", path, "that of a file, which driver and executors share")
        absolute = str(Path(path).absolute())
        return cls(partial(connect_sqlite, absolute), table, where=absolute)

    @classmethod
    def postgresql(
        cls,
        conninfo: str,
        table: str,
        *,
        where: str | None = None,
        statement_timeout_s: float = DATABASE_STATEMENT_S,
    ) -> DatabaseTable:
        """A table in a PostgreSQL database, by `psycopg`: `host=db dbname=shop user=loader`, without a password.

        The log knows the database by `where`, or by `conninfo` if None: give the former text as `where` if the
        database is the same and its address or a setting in `conninfo` has changed.

        Raises:
            OptionError: An argument is empty, out of range or of a wrong type, or `conninfo` holds credentials.
            OptionsError: Several arguments are.
        """
        check_types(cls.postgresql, locals())
        if "password" in conninfo or "@" in conninfo.partition("://")[2]:
            raise OptionError(
                "conninfo",
                "(not shown)",
                "without a password or a URL with a user: `host=… dbname=… user=…`; the password "
                "comes from PGPASSWORD or ~/.pgpass, on each machine",
            )
        return cls(
            partial(connect_postgresql, conninfo),
            table,
            where=conninfo if where is None else where,
            statement_timeout_s=statement_timeout_s,
        )

    def apart(self) -> DatabaseTable:
        """A sink of the same table, not prepared: jobs that run at once need one each."""
        sink = copy(self)
        sink._job_id = ""  # noqa: SLF001, of the same class
        sink._set_schema(self._schema)  # noqa: SLF001
        return sink

    @property
    def destination(self) -> str:
        """See `BatchSink`."""
        return f"{self._where} {self._table}"

    def prepare(self, job_id: str, spark: SparkSession) -> None:
        """See `BatchSink`."""
        self._job_id = job_id
        with self._open("it cannot be made ready") as (connection, cursor):
            begin(connection, cursor)
            if not isinstance(connection, sqlite3.Connection):
                self._identify(cursor)
                # Without it, of two jobs that start at once in a new database one would fail.
                cursor.execute(f"SELECT pg_advisory_xact_lock({_CREATION})")
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self._prefix}{_MARKERS} (job VARCHAR(100), "
                "query VARCHAR(100), batch BIGINT, sink VARCHAR(200), row_count BIGINT, "
                "PRIMARY KEY (job, query, batch, sink))"
            )
            cursor.execute(self._claims.statement)
            connection.commit()
            begin(connection, cursor)
            cursor.execute(f"SELECT 1 FROM {self._target} WHERE 1 = 0")  # noqa: S608, names are quoted
            connection.rollback()

    def _identify(self, cursor: Any) -> None:  # noqa: ANN401, each module has its own
        """Find PostgreSQL's own names of the table: one that is too long, or without a schema, has others.

        By the search path the markers could be in another schema at the next start, for another user.

        Raises:
            SinkError: Rows and markers would not be kept together in this table.
        """
        schema, plain, refusal = self._look_up(cursor)
        if refusal is not None:
            raise SinkError(self.destination, *refusal)
        self._plain = plain
        self._set_schema(schema)
        if "%" in self._schema:
            raise SinkError(
                self.destination,
                f"the name of its schema, {self._schema!r}, has a %, which stands for a value in statements",
                "rename the schema, or write to a table in another one",
            )

    def _look_up(self, cursor: Any) -> tuple[str, str, tuple[str, str] | None]:  # noqa: ANN401, as above
        """Schema and name that PostgreSQL has for the table; and why its rows and markers are not kept together.

        The reason comes with the next step; None if they are.
        """
        cursor.execute(_IDENTITY, {"table": self._target})
        schema, plain, unlogged, foreign = cursor.fetchall()[0]
        refusal = None
        if unlogged is not None:
            problem = (
                f"{unlogged} is an unlogged table: PostgreSQL empties it after a crash, and {_MARKERS} would still "
                "have its batches"
            )
            refusal = (problem, f"ALTER TABLE {unlogged} SET LOGGED")
        elif foreign is not None:
            refusal = (
                f"{foreign} is a foreign table: its server commits the rows apart from {_MARKERS}",
                "connect to that server, and write to its table there",
            )
        return str(schema), str(plain), refusal

    def refuse_lost_output(self, job_id: str) -> None:
        """Refuse a database without a trace of the job, which has committed batches there. Called before `claim`.

        Raises:
            SinkError: The database, or its schema, is another one: neither a claim nor a marker is there.
        """
        with self._open("it cannot be looked up") as (connection, cursor):
            begin(connection, cursor)
            if self._claims.is_claimed(connection, cursor, job_id):
                return
            mark = mark_of(connection)
            cursor.execute(
                f"SELECT 1 FROM {self._prefix}{_MARKERS} WHERE job = {mark} LIMIT 1",  # noqa: S608, as below
                (job_id,),
            )
            if cursor.fetchone() is None:
                raise SinkError(
                    self.destination,
                    f"the destination of job {job_id!r} was removed: its log has commits there, and {_MARKERS} "
                    "has none of them",
                    "mount it or put it back as it was; to write all rows again, run another job id with "
                    "another checkpoint",
                )

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """Check that no other log of a job of this id writes to the table: it would remove this job's staged rows.

        Raises:
            SinkError: Another log does; both are named.
        """
        self._claims.claim(job_id, log, former)

    def stage(self, frame: DataFrame, batch: Batch) -> BatchPart:
        """See `BatchSink`: each task inserts its partition's rows, in one transaction, with its own number."""
        staging = self._staging(batch)
        columns = ", ".join(_quoted(name) for name in frame.columns)
        # Qualified by the table: SQLite reads a quoted name without a table that is no column as a text.
        selected = ", ".join(f"target.{_quoted(name)} AS {_quoted(name)}" for name in frame.columns)
        with self._open("a staging table cannot be made", _OTHER_ROWS) as (connection, cursor):
            begin(connection, cursor)
            newest = self._newest(connection, cursor, batch)
            refuse_older(self.destination, batch.key, newest)
            if newest is None and batch.is_first:
                self._refuse_earlier_query(connection, cursor, batch)
            refuse_one_twice(connection, cursor, self.destination, self._target, frame.columns)
            cursor.execute(
                f"CREATE TABLE {self._prefix}{staging} AS SELECT CAST(0 AS BIGINT) AS {_TASK}, "  # noqa: S608, as above
                f"{selected} FROM {self._target} AS target WHERE 1 = 0"
            )
            connection.commit()
        task = _InsertTask(
            connect=self._connect,
            where=self.destination,
            limit_s=self._limit_s,
            table=f"{self._prefix}{staging}",
            columns=tuple(frame.columns),
        )
        counts = map_numbered(frame, task, "task long, row_count long").collect()
        written = sorted((int(row[0]), int(row[1])) for row in counts if row[1])
        part = BatchPart(
            sink=batch.sink,
            rows=sum(count for _, count in written),
            files=[],
            details={
                "staging": staging,
                "tasks": ",".join(str(number) for number, _ in written),
                "columns": columns,
            },
        )
        self._rehearse(part, batch)
        return part

    def _newest(self, connection: Connection, cursor: Any, batch: Batch) -> int | None:  # noqa: ANN401, each module has its own
        """Newest batch of the query that the table has."""
        mark = mark_of(connection)
        cursor.execute(
            f"SELECT max(batch) FROM {self._prefix}{_MARKERS} "  # noqa: S608, as above
            f"WHERE job = {mark} AND query = {mark} AND sink = {mark}",
            (batch.job_id, batch.key.query_id, batch.sink),
        )
        newest = cursor.fetchone()[0]
        return None if newest is None else int(newest)

    def has_query(self, job_id: str, query_id: str) -> bool:
        """Whether the job has batches of this query there; after `prepare`."""
        with self._open("it cannot be looked up") as (connection, cursor):
            begin(connection, cursor)
            mark = mark_of(connection)
            cursor.execute(
                f"SELECT 1 FROM {self._prefix}{_MARKERS} WHERE job = {mark} AND query = {mark} LIMIT 1",  # noqa: S608, as above
                (job_id, query_id),
            )
            return cursor.fetchone() is not None

    def _refuse_earlier_query(self, connection: Connection, cursor: Any, batch: Batch) -> None:  # noqa: ANN401, as above
        """Refuse the first batch of a log if the job's batches are all of other queries.

        Their log is gone, and the sink may have had another name with it.
        """
        mark = mark_of(connection)
        cursor.execute(
            f"SELECT max(query), max(CASE WHEN query = {mark} THEN 1 END) "  # noqa: S608, as above
            f"FROM {self._prefix}{_MARKERS} WHERE job = {mark}",
            (batch.key.query_id, batch.job_id),
        )
        earlier, is_known = cursor.fetchone()
        if earlier is not None and is_known is None:
            raise SinkError(
                self.destination,
                f"{_MARKERS} has batches of query {earlier} of job {batch.job_id!r}, the log has none of them, and "
                "this is another query: rows would be written a second time",
                "use the log that the job had, or the checkpoint of that query; if this query begins after its rows, "
                f"allow it with instead_of={earlier!r}",
            )

    def _rehearse(self, part: BatchPart, batch: Batch) -> None:
        """Move the rows in a transaction that is rolled back: rows that the table refuses fail before the intent.

        Raises:
            SinkError: The table refuses rows; the batch has no record in the log, and its staging table is dropped.
        """
        with self._open(
            "a rehearsal of this batch has failed or was refused; nothing of it is committed",
            _OTHER_ROWS,
        ) as (connection, cursor):
            try:
                if self._set_marker(connection, cursor, part, batch):
                    self._move(connection, cursor, part)
            except Exception:
                with suppress(Exception):  # of a connection that is lost: the first error says why
                    connection.rollback()
                    self._drop(connection, cursor, part.details["staging"])
                raise
            connection.rollback()

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        """See `BatchSink`: the marker's primary key lets only one transaction move the rows.

        The outcome is not done if the table refuses rows that it took at the rehearsal, if its columns have other types
        by now, or if the staging table does not exist or has another number of rows. The staging table is then dropped
        before the return, so that no slower driver moves its rows, and Spark replays the batch.
        """
        staging, refusal = part.details["staging"], ""
        with self._open("a batch cannot be moved") as (connection, cursor):
            if self._set_marker(connection, cursor, part, batch):
                at("marker set")
                try:
                    self._check_staged(connection, cursor, staging)
                    self._move(connection, cursor, part)
                    at("rows moved")
                    connection.commit()
                except Exception as error:
                    if not (isinstance(error, _UnfitError) or _is_refusal(error)):
                        raise
                    refusal = _reason_of(error)
                    connection.rollback()
            else:
                connection.rollback()
            at("committed")
            if refusal:
                self._drop_refused(connection, cursor, staging, refusal)
            else:
                self._drop(connection, cursor, staging)
        details = {"refused": refusal} if refusal else {}
        return PartOutcome(sink=part.sink, is_done=not refusal, rows=part.rows, details=details)

    def _set_marker(
        self,
        connection: Connection,
        cursor: Any,  # noqa: ANN401, each module has its own
        part: BatchPart,
        batch: Batch,
    ) -> bool:
        """Begin the transaction that moves a batch; True if the table does not have the batch yet."""
        key, mark = batch.key, mark_of(connection)
        begin(connection, cursor)
        if not isinstance(connection, sqlite3.Connection):
            idle_ms = round(TRANSACTION_IDLE_S * 1000)
            cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = {idle_ms}")
        self._claims.check_held(connection, cursor)
        cursor.execute(
            f"INSERT INTO {self._prefix}{_MARKERS} (job, query, batch, sink, row_count) VALUES "  # noqa: S608, as above
            f"({mark}, {mark}, {mark}, {mark}, {mark}) ON CONFLICT DO NOTHING",
            (batch.job_id, key.query_id, key.batch_id, part.sink, part.rows),
        )
        if cursor.rowcount == 1:
            return True
        newest = self._newest(connection, cursor, batch)
        if newest is None or newest < key.batch_id:
            raise _UnfitError(
                f"{_MARKERS} takes no marker: a trigger or a rule of it leaves rows out"
            )
        return False

    def _check_staged(self, connection: Connection, cursor: Any, staging: str) -> None:  # noqa: ANN401, as above
        if not self._names_like(connection, cursor, _checked(staging)):
            raise _UnfitError(f"the staging table {staging} is gone")

    def _drop_refused(
        self,
        connection: Connection,
        cursor: Any,  # noqa: ANN401, as above
        staging: str,
        refusal: str,
    ) -> None:
        """Drop the staging table of a refused batch, before its outcome is recorded."""
        begin(connection, cursor)
        cursor.execute(f"DROP TABLE IF EXISTS {self._prefix}{_checked(staging)}")
        connection.commit()
        _log.warning(
            "%s: the batch is not written, and is staged again when Spark replays it: %s",
            self.destination,
            refusal,
        )

    def _drop(self, connection: Connection, cursor: Any, staging: str) -> None:  # noqa: ANN401, each module has its own
        """Drop a staging table whose rows are moved; if that fails, the next start's sweep drops it."""
        drop = f"DROP TABLE IF EXISTS {self._prefix}{_checked(staging)}"
        try:
            begin(connection, cursor)
            cursor.execute(drop)
            connection.commit()
        except Exception as error:
            if not _is_of_database(error):
                raise
            _log.warning(
                "%s: the batch is written, and its staging table %s is left for the next start to drop: %s",
                self.destination,
                staging,
                " ".join(str(error).split()),
            )

    def _move(self, connection: Connection, cursor: Any, part: BatchPart) -> None:  # noqa: ANN401, each module has its own
        staging = f"{self._prefix}{_checked(part.details['staging'])}"
        numbers = part.details["tasks"].split(",")
        tasks = ", ".join(str(int(number)) for number in numbers if number)
        if not tasks:
            return
        self._check_types(connection, cursor, staging)
        columns = part.details["columns"]
        staged = f"FROM {staging} WHERE {_TASK} IN ({tasks})"
        cursor.execute(f"INSERT INTO {self._target} ({columns}) SELECT {columns} {staged}")
        if (moved := cursor.rowcount) != part.rows:
            cursor.execute(f"SELECT count(*) {staged}")
            raise _UnfitError(_why_fewer(part, int(cursor.fetchone()[0]), moved))
        if not isinstance(connection, sqlite3.Connection):
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # also those deferred to the commit
            # After the insert, which does not keep others from adding partitions.
            _, _, refusal = self._look_up(cursor)
            if refusal is not None:
                raise _UnfitError("; ".join(refusal))

    def _check_types(self, connection: Connection, cursor: Any, staging: str) -> None:  # noqa: ANN401, as above
        """Check that the table's columns still have the types in which the values are exact."""
        # In PostgreSQL the read keeps others from changing the columns until the end of the transaction.
        cursor.execute(f"SELECT 1 FROM {self._target} WHERE 1 = 0")  # noqa: S608, names are quoted
        before = table_types(connection, cursor, staging)
        now = table_types(connection, cursor, self._target)
        changed = [
            f"column {name!r} was staged as {kind or 'BLOB'} and is {now.get(name, 'not') or 'BLOB'} in the table"
            for name, kind in before.items()
            if name != _TASK and now.get(name) != kind
        ]
        if changed:
            raise _UnfitError("; ".join(changed))

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        """See `BatchSink`."""
        with self._open("staging tables cannot be removed") as (connection, cursor):
            begin(connection, cursor)
            tables = self._names_like(connection, cursor, self._of_job(self._job_id))
            connection.rollback()
            if not tables or not is_in_force():
                return
            begin(connection, cursor)
            self._claims.check_held(connection, cursor)
            for table in tables:
                cursor.execute(f"DROP TABLE IF EXISTS {self._prefix}{_checked(table)}")
            connection.commit()

    # --- names --------------------------------------------------------------------------------------------------------
    @property
    def _target(self) -> str:
        return f"{self._prefix}{_quoted(self._plain)}"

    def _staging(self, batch: Batch) -> str:
        """Name of a new staging table of one driver's batch (M5: names are never shared); random for each retry."""
        key = batch.key
        name = (
            f"{batch.driver_id}/{key.query_id}/{key.batch_id}/{batch.sink}/{secrets.token_hex(8)}"
        )
        return f"{self._of_job(batch.job_id)}{_digest(name)}"

    def _of_job(self, job_id: str) -> str:
        """Prefix of the names of a job's staging tables, unique to the job: the sweep drops all tables with it."""
        return f"{_STAGING}_{_digest(f'{job_id}/{self._plain}')}_"

    def _names_like(self, connection: Connection, cursor: Any, prefix: str) -> list[str]:  # noqa: ANN401, as above
        """Tables in the schema whose names begin with `prefix`."""
        if isinstance(connection, sqlite3.Connection):
            # Of the table's own file: another one may be attached to the connection.
            cursor.execute(f"SELECT name FROM {self._prefix}sqlite_master WHERE type = 'table'")  # noqa: S608, as above
        else:
            cursor.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = %s",
                (self._schema,),
            )
        names = [str(row[0]) for row in cursor.fetchall()]
        return sorted(name for name in names if name.startswith(prefix))

    @contextmanager
    def _open(self, doing: str, next_step: str = _AGAIN) -> Generator[tuple[Connection, Any]]:
        with _opened(self._connect, self.destination, self._limit_s, doing, next_step) as opened:
            yield opened


def _check_table(table: str) -> None:
    schema, dot, plain = table.rpartition(".")
    if not plain.strip() or (dot and not schema.strip()):
        raise OptionError("table", table, "a table's name, with its schema before a dot or without")


def _check_where(where: str) -> None:
    if not where.strip():
        raise OptionError("where", where, "set")
    if "password" in where:
        raise OptionError("where", "(not shown)", "without a password: it is in the log")
    refuse_credentials("where", where)


class _UnfitError(Exception):
    """Staged rows cannot be moved as they are, ever; only Spark can produce them again."""


def _why_fewer(part: BatchPart, staged: int, moved: int) -> str:
    """Why a move does not have as many rows as the part."""
    if staged != part.rows:
        return (
            f"the staging table {part.details['staging']} has {staged:,} rows of the {part.rows:,} that were "
            "staged: another program has changed it, or the server has lost them"
        )
    return f"the table takes {moved:,} of the {part.rows:,} rows: a trigger or a rule of it leaves rows out"


@dataclass(frozen=True, slots=True, kw_only=True)
class _InsertTask:
    """Inserts one partition's rows into the staging table, in a Spark task; pickles."""

    connect: Connect
    where: str
    limit_s: float
    """Longest time of a statement of a server."""
    table: str
    columns: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Insert the rows. For `map_numbered`: returns the task's number and the count of its rows."""
        from pyspark import TaskContext  # noqa: PLC0415, in a task only

        keep_archives()
        context = TaskContext.get()
        assert context is not None, "in a task"
        number, count = int(context.taskAttemptId()), 0
        rest = iter(batches)
        first = next((batch for batch in rest if batch.num_rows), None)
        if first is not None:
            count = self._insert(number, first, rest)
        yield pa.record_batch(
            {"task": pa.array([number], pa.int64()), "row_count": pa.array([count], pa.int64())}
        )

    def _insert(self, number: int, first: pa.RecordBatch, rest: Iterable[pa.RecordBatch]) -> int:
        names = ", ".join([_TASK, *(_quoted(name) for name in self.columns)])
        count = 0
        opening = _opened(
            self.connect, self.where, self.limit_s, "rows cannot be staged", _OTHER_ROWS
        )
        with opening as opened:
            connection, cursor = opened
            write = _copy if hasattr(cursor, "copy") else _insert_many
            is_sqlite = isinstance(connection, sqlite3.Connection)
            # A SQLite file has one writer at a time: its lock is held only while rows are inserted.
            pieces: Iterable[pa.RecordBatch | pa.Table] = (
                [pa.Table.from_batches([first, *rest])] if is_sqlite else chain([first], rest)
            )
            begin(connection, cursor)
            types = column_types(connection, cursor, self.where, self.table, self.columns)
            for batch in pieces:
                exact = exact_rows(self.where, batch, types, is_sqlite=is_sqlite)
                rows = _rows_of(number, exact, is_plain=is_sqlite)
                with answering(connection):
                    write(
                        connection, cursor, f"{self.table} ({names})", len(self.columns) + 1, rows
                    )
                count += batch.num_rows
            connection.commit()
        return count


def _rows_of(
    number: int, batch: pa.RecordBatch | pa.Table, *, is_plain: bool
) -> Iterator[tuple[object, ...]]:
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        piece = batch.slice(start, _ROWS_AT_ONCE)
        columns = [piece.column(n).to_pylist() for n in range(piece.num_columns)]
        for row in zip(*columns, strict=True):
            yield (number, *(map(_plain, row) if is_plain else row))


def _plain(value: object) -> object:
    """A value in a type of SQLite, which has no times and no decimals."""
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return f"{value:f}" if isinstance(value, Decimal) else value


def _copy(
    _connection: Connection,
    cursor: Any,  # noqa: ANN401, psycopg's
    into: str,
    _width: int,
    rows: Iterable[Sequence[object]],
) -> None:
    with cursor.copy(f"COPY {into} FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def _insert_many(
    connection: Connection,
    cursor: Any,  # noqa: ANN401, sqlite3's, psycopg2's
    into: str,
    width: int,
    rows: Iterable[Sequence[object]],
) -> None:
    marks = ", ".join([mark_of(connection)] * width)
    cursor.executemany(f"INSERT INTO {into} VALUES ({marks})", rows)  # noqa: S608, names are quoted


# --- connections ------------------------------------------------------------------------------------------------------
@contextmanager
def _opened(
    connect: Connect, where: str, limit_s: float, doing: str, next_step: str = _AGAIN
) -> Generator[tuple[Connection, Any]]:
    """A connection and a cursor; errors of the database become SinkError, and uncommitted changes are undone."""
    try:
        connection = connect()
        try:
            connection = guarded(connection, where, limit_s)
            yield connection, connection.cursor()
        finally:
            connection.close()
    except SinkError:
        raise
    except Exception as error:
        if not (_is_of_database(error) or isinstance(error, _UnfitError)):
            raise
        if _is_late(error):
            next_step = (
                "see that the server runs and can be reached, then start the query again; statements that need more "
                f"than {limit_s:g} s need a longer statement_timeout_s"
            )
        elif not (isinstance(error, _UnfitError) or _is_refusal(error)):
            next_step = _AGAIN
        raise SinkError(where, f"{doing}: {_reason_of(error)}", next_step) from error


def _is_of_database(error: Exception) -> bool:
    """Whether a database raised the error, which has one base class in PEP 249, or has not answered."""
    named = any(base.__name__ == "Error" for base in type(error).__mro__)
    return named or isinstance(error, SilentServerError)


def _is_late(error: Exception) -> bool:
    """Whether the server has not answered, or has ended a statement at its bound."""
    return isinstance(error, SilentServerError) or _state_of(error) == _CANCELLED


def _state_of(error: Exception) -> str:
    """SQLSTATE of an error of psycopg or psycopg2; empty if it has none."""
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def _reason_of(error: Exception) -> str:
    """Reason of a refusal, in one line."""
    is_own = isinstance(error, _UnfitError | SilentServerError)
    kind = "" if is_own else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())


def _is_refusal(error: Exception) -> bool:
    """Whether the table refuses the rows, as it would at each retry; by its code, else by the names of PEP 249."""
    if state := _state_of(error):
        return state[:2] not in _PASSING
    # SQLite has no other code for a statement that fails for its own sake, such as one of an index on an expression.
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        return True
    return any(kind.__name__ in _REFUSALS for kind in type(error).__mro__)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _checked(staging: str) -> str:
    """A staging table's name from the log, checked before it is put into a statement."""
    if not staging.startswith(_STAGING) or not staging.replace("_", "").isalnum():
        raise SinkError(
            staging, "it is no staging table of ours", "find the version that wrote this intent"
        )
    return staging


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
