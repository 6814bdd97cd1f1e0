"""The schema of a job's files: that of its table, with a copy in the job's folder, which the writers read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from coordlog.errors import DestinationMisfitError, SinkError
from coordlog.spark_integration.files.formats.compatibility import MisfitError
from coordlog.spark_integration.files.names import HIDDEN
from coordlog.spark_integration.files.sink.destination import Destination, SettledSchema
from coordlog.spark_integration.files.tables.table import Table

__all__ = ["TableSchemas", "check_identity"]

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
        columns, identity = self.table.settled_columns(schema, partition_by)
        check_identity(self.table, self.files, identity)
        return self.files.follow(None, columns, partition_by)

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


def check_identity(table: Table, files: Destination, identity: str) -> None:
    """Keep which table a job's folder belongs to, or check it.

    Raises:
        SinkError: It belongs to another table, which had the name before.
    """
    files.store.write_once(_IDENTITY, json.dumps({"table": identity}).encode())
    content = files.store.read(_IDENTITY)
    if content is None or json.loads(content) != {"table": identity}:
        raise SinkError(
            table.where,
            f"it is not the table that this job has written to: the job's files in {files.where} belong to another, "
            f"which had its name before; this one has the id {identity}",
            "put the former table back; or run another job id, which writes all rows again",
        )
