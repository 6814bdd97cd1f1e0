"""Claims of a database's table: rows of another table, whose primary key lets only one log write each row."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, Final

from coordlog.log.interface import LogIdentity
from coordlog.spark_integration.batches.databases.connections import Connection, begin, mark_of
from coordlog.spark_integration.files.store.log_claims import Claim, check_held, claim_for

__all__ = ["CLAIMS", "TableClaims"]

CLAIMS: Final = "coordlog_claims"
"""Name of the table of claims, in the schema of the table that is written to."""


class TableClaims:
    """The claims of one job's rows in one table.

    Several jobs may write to one table, so claims are by job. A job whose topic was deleted and created again may
    continue: a marker for each batch in the table prevents that it is written again.

    Args:
        prefix: Schema, quoted, with its dot; or empty.
        target: Name of the table, without the schema.
        destination: Table as shown in messages.
        opened: Opens a connection with a cursor; the caller commits the transaction.
    """

    def __init__(
        self,
        *,
        prefix: str,
        target: str,
        destination: str,
        opened: Callable[[str], AbstractContextManager[tuple[Connection, Any]]],
    ) -> None:
        self._table, self._target, self._destination = f"{prefix}{CLAIMS}", target, destination
        self._opened = opened
        self._claim: Claim | None = None
        self._job_id = ""

    @property
    def statement(self) -> str:
        """Statement that creates the table of claims if it does not exist."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self._table} (job VARCHAR(100), target VARCHAR(200), "
            "number BIGINT, content TEXT, PRIMARY KEY (job, target, number))"
        )

    def is_claimed(self, connection: Connection, cursor: Any, job_id: str) -> bool:  # noqa: ANN401, as above
        """Whether a log of the job has claimed the table; within the caller's transaction."""
        return self._keeper(connection, cursor, job_id).read_claim(0) is not None

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """Claim the table, see `claim_for`; from now on `check_held` compares with this claim."""
        self._job_id = job_id
        with self._opened("the log that writes there cannot be looked up") as (connection, cursor):
            begin(connection, cursor)
            keeper = self._keeper(connection, cursor, job_id)
            self._claim = claim_for(keeper, job_id, log, former)

    def check_held(self, connection: Connection, cursor: Any) -> None:  # noqa: ANN401, as above
        """Raise JobMovedError if another log has claimed the table since; within the caller's transaction."""
        if self._claim is not None:
            check_held(self._keeper(connection, cursor, self._job_id), self._claim)

    def _keeper(self, connection: Connection, cursor: Any, job_id: str) -> _Keeper:  # noqa: ANN401, as above
        return _Keeper(connection, cursor, self._table, (job_id, self._target), self._destination)


class _Keeper:
    """A `ClaimKeeper` on an open connection."""

    def __init__(
        self,
        connection: Connection,
        cursor: Any,  # noqa: ANN401, as above
        table: str,
        key: tuple[str, str],
        destination: str,
    ) -> None:
        self._connection, self._cursor = connection, cursor
        self._table, self._key = table, key
        self._mark = mark_of(connection)
        # SQLite's names have no case: each spelling is the same table.
        is_sqlite = isinstance(connection, sqlite3.Connection)
        self._named = "lower(target) = lower({})" if is_sqlite else "target = {}"
        self.where = destination

    @property
    def release(self) -> str:
        """See `ClaimKeeper`."""
        job_id, target = self._key
        return (
            "if the other log is gone for good: DELETE FROM "  # noqa: S608, for people
            f"{self._table} WHERE job = '{job_id}' AND " + self._named.format(f"'{target}'")
        )

    def read_claim(self, number: int) -> bytes | None:
        """See `ClaimKeeper`."""
        mark = self._mark
        self._cursor.execute(
            f"SELECT content FROM {self._table} WHERE job = {mark} "  # noqa: S608, a name of ours
            f"AND {self._named.format(mark)} AND number = {mark}",
            (*self._key, number),
        )
        row = self._cursor.fetchone()
        return None if row is None else str(row[0]).encode()

    def write_claim(self, number: int, content: bytes) -> None:
        """See `ClaimKeeper`: a second insert of the same key waits for the first, and changes nothing."""
        mark = self._mark
        self._connection.rollback()
        begin(self._connection, self._cursor)
        self._cursor.execute(
            f"INSERT INTO {self._table} (job, target, number, content) "  # noqa: S608, as above
            f"VALUES ({mark}, {mark}, {mark}, {mark}) ON CONFLICT DO NOTHING",
            (*self._key, number, content.decode()),
        )
        self._connection.commit()
        begin(self._connection, self._cursor)

    def claim_path(self, number: int) -> str:
        """See `ClaimKeeper`."""
        return f"{self._table} number {number} beside {self.where}"

    def refuse_earlier_output(self, _job_id: str) -> None:
        """See `ClaimKeeper`: not needed, because markers prevent that a batch is written twice."""
