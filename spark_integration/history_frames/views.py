"""The tables of a job's history as Spark rows, by the same folds as elsewhere.

One pass over the log, in its order, on one partition, returns the rows of all tables: each row of
`tables_of` has one column that is not NULL, a struct with the columns of the view of that name.
The columns are those of `coordlog.projections.tables.columns`, as with `--json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from coordlog.errors import RecordError
from coordlog.projections.tables.audit import Audit, AuditFold, audit_records, state_at_beginning
from coordlog.projections.tables.columns import TABLES, Columns, ColumnType, ListOf
from coordlog.projections.tables.events import EventFold, EventRow
from coordlog.projections.tables.values import TableRow, values_of
from coordlog.schemas.header import Header, decode_header
from coordlog.spark_integration.history_frames.folds import LogOrder

__all__ = ["UNREADABLE", "tables_of", "tables_schema"]

_BATCH_ROWS: Final = 4_096

UNREADABLE: Final = "unreadable"
"""Column of a counted record that cannot be read; the tables end with it."""

_UNREADABLE: Final[Columns] = {
    "offset": ColumnType.LONG,
    "kind": ColumnType.TEXT,
    "problem": ColumnType.TEXT,
}
_ARROW_TYPES: Final = {
    ColumnType.INT: pa.int32(),
    ColumnType.LONG: pa.int64(),
    ColumnType.TEXT: pa.string(),
    ColumnType.FLAG: pa.bool_(),
    ColumnType.TIME: pa.timestamp("us", tz="UTC"),
    ColumnType.MILLISECONDS: pa.float64(),
}


def _arrow_type(kind: ColumnType | ListOf) -> pa.DataType:
    if isinstance(kind, ColumnType):
        return _ARROW_TYPES[kind]
    if isinstance(kind.item, ColumnType):
        return pa.list_(_arrow_type(kind.item))
    return pa.list_(_arrow_struct(kind.item))


def _arrow_struct(columns: Columns) -> pa.DataType:
    return pa.struct([(name, _arrow_type(kind)) for name, kind in columns.items()])


_COLUMNS: Final = {**TABLES, UNREADABLE: _UNREADABLE}
_STRUCTS: Final = {name: _arrow_struct(columns) for name, columns in _COLUMNS.items()}


def tables_schema() -> str:
    """Schema of the rows of `tables_of`, as Spark's DDL."""
    return ", ".join(f"{name} {_struct_ddl(columns)}" for name, columns in _COLUMNS.items())


def tables_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of all tables, of a whole log; the function of a `mapInArrow`.

    A counted record that cannot be read becomes a row of `UNREADABLE`: a task that raised would be
    retried, in a job's session a thousand times.

    Args:
        batches: `offset: int64`, `key`, `value` and `header: binary`, in log order.
    """
    try:
        yield from _rows_of_log(batches)
    except RecordError as error:
        row: dict[str, object] = {
            "offset": error.offset,
            "kind": error.kind,
            "problem": error.problem,
        }
        yield _batch(UNREADABLE, [row])


def _rows_of_log(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    audit_fold, event_fold = AuditFold(), EventFold()
    waiting: list[EventRow] = []
    for audited in audit_records(_entries(batches)):
        audit_fold.apply(audited)
        state = state_at_beginning(audited)
        if state is not None:
            event_fold.begin(state)
        if audited.counts and audited.record is not None:
            waiting += event_fold.apply(audited.record)
            if len(waiting) >= _BATCH_ROWS:
                yield _batch("events", [values_of(row) for row in waiting])
                waiting.clear()
    waiting += event_fold.rows()
    yield _batch("events", [values_of(row) for row in waiting])
    yield from _tables(audit_fold.audit())


def _tables(audit: Audit) -> Iterator[pa.RecordBatch]:
    thrown_away = [row for split in audit.splits for row in split.thrown_away]
    yield from _batches("attempts", audit.attempts)
    yield from _batches("splits", audit.splits)
    yield from _batches("thrown_away", thrown_away)
    yield from _batches("checkpoints", audit.checkpoints)
    yield from _batches("commits", audit.commits)
    yield from _batches("failures", audit.failures)
    yield from _batches("epochs", audit.epochs)


def _batches(name: str, rows: Iterable[TableRow]) -> Iterator[pa.RecordBatch]:
    values = [values_of(row) for row in rows]
    for first in range(0, len(values), _BATCH_ROWS):
        yield _batch(name, values[first : first + _BATCH_ROWS])


def _batch(name: str, rows: list[dict[str, object]]) -> pa.RecordBatch:
    columns = [
        pa.array(rows, struct) if column == name else pa.nulls(len(rows), struct)
        for column, struct in _STRUCTS.items()
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(_STRUCTS))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record as a row of Spark's Kafka source."""

    offset: int
    key: bytes | None
    value: bytes | None
    header_bytes: bytes | None
    timestamp_ms: int = 0

    @property
    def header(self) -> Header | None:
        return decode_header(self.header_bytes)


def _entries(batches: Iterable[pa.RecordBatch]) -> Iterator[_Entry]:
    order = LogOrder()
    for batch in batches:
        order.check(batch.column("offset"))
        names = ("offset", "key", "value", "header")
        columns = [batch.column(name).to_pylist() for name in names]
        for offset, key, value, header in zip(*columns, strict=True):
            yield _Entry(offset, key, value, header)


def _struct_ddl(columns: Columns) -> str:
    return f"STRUCT<{', '.join(f'{name}: {_ddl(kind)}' for name, kind in columns.items())}>"


def _ddl(kind: ColumnType | ListOf) -> str:
    if isinstance(kind, ColumnType):
        return kind.value
    return (
        f"ARRAY<{_ddl(kind.item) if isinstance(kind.item, ColumnType) else _struct_ddl(kind.item)}>"
    )
