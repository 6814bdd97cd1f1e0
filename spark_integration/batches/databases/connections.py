"""Connections to a database: their transactions, and the longest time that a server may take to answer.

A connection without bounds would be waited for as long as TCP keeps it: for ever, if the server's processes stand
still and its kernel answers. So there are three: of the connecting, of the network, and of each statement. The last
one is kept by the server, which then undoes the statement, and by this process, which then shuts the connection down.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, cast

from coordlog.errors import SinkError
from coordlog.limits import (
    DATABASE_CONNECT_S,
    DATABASE_GRACE_S,
    DATABASE_LOCK_S,
    DATABASE_NETWORK_S,
)

__all__ = [
    "Connect",
    "Connection",
    "SilentServerError",
    "answering",
    "begin",
    "connect_postgresql",
    "connect_sqlite",
    "guarded",
    "mark_of",
]

_BUSY_S: Final = 60.0
"""Longest wait of a writer for another writer's lock on a SQLite file."""
_PROBES: Final = 3
"""Probes of a silent network within `DATABASE_NETWORK_S`, after a first wait."""


class Connection(Protocol):
    """The used part of a DB-API connection."""

    def cursor(self) -> Any:  # noqa: ANN401, each module has its own
        """A new cursor."""
        ...

    def commit(self) -> None:
        """End the transaction."""
        ...

    def rollback(self) -> None:
        """Undo the transaction."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


Connect = Callable[[], Connection]


class SilentServerError(Exception):
    """A server has not answered within a bound."""


def connect_sqlite(path: str) -> Connection:
    """Open a SQLite file, which is created if it does not exist."""
    return cast("Connection", sqlite3.connect(path, timeout=_BUSY_S))


def connect_postgresql(conninfo: str) -> Connection:
    """Connect by `psycopg`, with bounds for whatever `conninfo` has none for.

    Raises:
        SinkError: `psycopg` is not installed.
        SilentServerError: The server takes no connection within the bound.
    """
    try:
        import psycopg  # noqa: PLC0415, an extra
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415, the same
    except ImportError as error:
        raise SinkError(
            conninfo,
            "the package psycopg is not installed here",
            "pip install 'coordlog[postgresql]', on the driver and on all executors",
        ) from error
    parameters = conninfo_to_dict(conninfo)
    share_s = round(DATABASE_NETWORK_S / (1 + _PROBES))
    bounds: dict[str, int] = {
        "keepalives_idle": share_s,
        "keepalives_interval": share_s,
        "keepalives_count": _PROBES,
        "tcp_user_timeout": round(DATABASE_NETWORK_S * 1000),
    }
    if "PGCONNECT_TIMEOUT" not in os.environ:
        bounds["connect_timeout"] = DATABASE_CONNECT_S
    left = {name: value for name, value in bounds.items() if name not in parameters}
    try:
        return cast("Connection", psycopg.connect(conninfo, **cast("Any", left)))
    except psycopg.errors.ConnectionTimeout as error:
        limit = parameters.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT")
        raise SilentServerError(
            f"the server has taken no connection within {limit or DATABASE_CONNECT_S} s"
        ) from error


def mark_of(connection: Connection) -> str:
    """Placeholder of a value in a statement."""
    return "?" if isinstance(connection, sqlite3.Connection) else "%s"


def begin(connection: Connection, cursor: Any) -> None:  # noqa: ANN401, each module has its own
    """Begin a transaction. SQLite's waits for and takes the writer's lock at once.

    What PostgreSQL is told is for the transaction only: a pooler may give each one another session of the server, and
    that session to another program.
    """
    if isinstance(connection, sqlite3.Connection):
        cursor.execute("BEGIN IMMEDIATE")
        return
    # At another level it would check a table's columns as of its start, and move rows into those of now.
    cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    cursor.execute(
        f"SET LOCAL lock_timeout = {round(DATABASE_LOCK_S * 1000)}; "
        "SET LOCAL array_nulls = on; "  # else a null in an array would be the text NULL
        "SET LOCAL quote_all_identifiers = off; "  # else the types of columns would have other names
        "SET LOCAL standard_conforming_strings = on"  # else psycopg would double a backslash of bytes
    )
    if hasattr(cursor, "copy"):
        # psycopg 3 doubles each byte of a backslash in COPY: in SJIS and BIG5 it may be the half of a character.
        cursor.execute("SET LOCAL client_encoding = 'UTF8'")
    if isinstance(connection, _Guarded):
        # A shorter one, of the database or of its user, stays.
        cursor.execute(
            "SELECT set_config('statement_timeout', %s, true) FROM pg_settings "
            "WHERE name = 'statement_timeout' AND setting::bigint NOT BETWEEN 1 AND %s",
            (str(limit_ms := round(connection.limit_s * 1000)), limit_ms),
        )
    # A record in the log must not outlive its rows: a server that dies loses commits that it did not wait for.
    cursor.execute(
        "SELECT set_config('synchronous_commit', 'on', true) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )


def guarded(connection: Connection, where: str, limit_s: float) -> Connection:
    """A connection in which transactions end at their commit, and whose server is left if it does not answer.

    Args:
        connection: An open one; used through the result alone from now on.
        where: Name of the database, for errors.
        limit_s: Longest time of a statement, in seconds. SQLite has no server: only a lock is waited for.

    Raises:
        SinkError: A connection to SQLite with autocommit.
    """
    _take_transactions(connection, where)
    if isinstance(connection, sqlite3.Connection):
        return connection
    return _Guarded(connection, limit_s)


def _take_transactions(connection: Connection, where: str) -> None:
    """Switch autocommit off, so that a transaction ends at its commit."""
    mode = getattr(connection, "autocommit", None)
    if not isinstance(connection, sqlite3.Connection):
        if mode:
            cast("Any", connection).autocommit = False
        return
    if mode not in (None, -1):  # -1 is LEGACY_TRANSACTION_CONTROL, of Python 3.12
        raise SinkError(
            where,
            f"`connect` opens it with autocommit={mode}, which takes the commit from this sink",
            "leave `autocommit` out of sqlite3.connect",
        )
    connection.isolation_level = None  # transactions begin in `begin`


@contextmanager
def answering(connection: Connection) -> Generator[None]:
    """Within the block, which is one statement, the server answers within its bound.

    Raises:
        SilentServerError: It has not, and the connection was shut down.
    """
    if not isinstance(connection, _Guarded):
        yield
        return
    with connection.answering():
        yield


class _Guarded:
    """A connection to a server. The statements of its cursors, and the ends of its transactions, have a bound.

    The server ends a statement at `limit_s`; if it stands still, this process shuts the connection down a little later.
    """

    def __init__(self, connection: Any, limit_s: float) -> None:  # noqa: ANN401, each module has its own
        self._connection, self.limit_s = connection, limit_s
        # A number of its own: a module may close the connection while a bound runs out, and the system give its number
        # to another file.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._has_ended = False

    @contextmanager
    def answering(self) -> Generator[None]:
        self._raise_ended()
        timer = threading.Timer(self.limit_s + DATABASE_GRACE_S, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:
            self._raise_ended(error)
            raise
        finally:
            timer.cancel()

    def _end(self) -> None:
        self._has_ended = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _raise_ended(self, error: Exception | None = None) -> None:
        if self._has_ended:
            raise SilentServerError(
                f"the server has not answered for {self.limit_s + DATABASE_GRACE_S:g} s"
            ) from error

    def cursor(self) -> _GuardedCursor:
        return _GuardedCursor(self, self._connection.cursor())

    def commit(self) -> None:
        with self.answering():
            self._connection.commit()

    def rollback(self) -> None:
        with self.answering():
            self._connection.rollback()

    def close(self) -> None:
        self._connection.close()
        self._socket.close()


class _GuardedCursor:
    """A cursor; what is not here is that of the module."""

    def __init__(self, connection: _Guarded, cursor: Any) -> None:  # noqa: ANN401, as above
        self._connection, self._cursor = connection, cursor

    def execute(
        self, statement: str, values: Sequence[object] | Mapping[str, object] | None = None
    ) -> None:
        with self._connection.answering():
            self._cursor.execute(statement, values)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401, as above
        return getattr(self._cursor, name)
