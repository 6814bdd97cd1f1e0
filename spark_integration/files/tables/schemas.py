"""The schema of a job's files: that of its table, with a copy in the job's folder, which the writers read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from coordlog.errors import DestinationMisfitError, SinkError
from coordlog.spark_integration.files.formats.compatibility import MisfitError
from coordlog.spark_integration.files.names import HIDDEN
from coordlog.spark_integration.files.sink.destination import (
    Destination,
    SettledSchema,
    can_partition,
)
from coordlog.spark_integration.files.tables.table import OpenedTable, Table

__all__ = ["TableSchemas", "check_identity", "check_partitions", "check_same"]

_IDENTITY: Final = f"{HIDDEN}/table.json"


@dataclass(frozen=True, slots=True)
class TableSchemas:
    """A `SchemaKeeper`, which asks the table only if its copy does not suffice. Pickles."""

    table: Table
    files: Destination

    @property
    def settling_anew(self) -> str:
        """See `SchemaKeeper`."""
        return f"dropping {self.table.where} and {self.files.where} settles it anew"

    def settled_schema(self, after: SettledSchema | None = None) -> SettledSchema | None:
        """See `SchemaKeeper`."""
        return self.files.settled_schema(after)

    def settle_schema(self, schema: pa.Schema, partition_by: tuple[str, ...]) -> SettledSchema:
        """See `SchemaKeeper`: the first rows make the columns of a table that has none."""
        settled = self.files.settled_schema()
        if settled is not None:
            return settled
        self.files.check_first(schema, partition_by)
        table = self.table.settle(schema, partition_by)
        if table.partition_by != partition_by:
            raise SinkError(
                self.table.where,
                f"another program has made it since the start of the job, partitioned by "
                f"{', '.join(table.partition_by) or 'nothing'}; the job's files are by "
                f"{', '.join(partition_by) or 'nothing'}",
                "run the same command again, without `partition_by`",
            )
        assert table.columns is not None, "it has columns now"
        check_partitions(self.table, table)
        check_identity(self.table, self.files, table.identity)
        return self.files.follow(None, table.columns, partition_by)

    def widen(self, settled: SettledSchema, columns: pa.Schema) -> SettledSchema | None:
        """See `SchemaKeeper`: a column that must have values is not widened for nulls."""
        try:
            wider = self.table.widened_columns(columns)
        except MisfitError as error:
            raise DestinationMisfitError(
                self.table.where,
                f"a batch is not compatible with the table: {error}",
                "cast the column in the transform",
            ) from error
        if wider.equals(settled.columns, check_metadata=True):
            return None
        return self.files.follow(settled, wider, settled.partition_by)


def check_partitions(table: Table, opened: OpenedTable) -> None:
    """Refuse partitions whose values a folder's name does not show exactly.

    Raises:
        SinkError: A partition column has another type, or is a part of a nested column.
    """
    columns = opened.columns
    if columns is None:
        return
    for name in opened.partition_by:
        kind = columns.field(name).type if name in columns.names else None
        if kind is None or not (can_partition(kind) or pa.types.is_decimal(kind)):
            raise SinkError(
                table.where,
                f"it is partitioned by {name!r}, of {kind or 'a nested column'}; this sink writes partitions of "
                "strings, integers, booleans, dates and decimals",
                "use a table that is partitioned by such columns, or by nothing",
            )


def check_identity(table: Table, files: Destination, identity: str | None) -> None:
    """Keep which table a job's folder belongs to, or check it. None: the table does not exist.

    Raises:
        SinkError: It belongs to another table, which had the name before, or was removed.
    """
    content = files.store.read(_IDENTITY)
    if content is None and identity is not None:
        files.store.write_once(_IDENTITY, json.dumps({"table": identity}).encode())
        content = files.store.read(_IDENTITY)
    if content is not None or identity is not None:
        former = None if content is None else json.loads(content).get("table")
        check_same(table, files, former, identity)


def check_same(table: Table, files: Destination, former: str | None, identity: str | None) -> None:
    """Check that the table is still the one that the job has written to, whatever the job's folder has by now.

    Raises:
        SinkError: It is another one, or was removed.
    """
    if identity is None:
        raise SinkError(
            table.where,
            "it does not exist any more, and this job has written to it",
            "put it back; or run another job id, which writes all rows again",
        )
    if identity != former:
        raise SinkError(
            table.where,
            f"it is not the table that this job has written to: the job's files in {files.where} belong to another, "
            f"which had its name before; this one has the id {identity}",
            "drop it, and put the former table back; or run another job id, which writes all rows again",
        )
