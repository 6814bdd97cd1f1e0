"""`IcebergSink`: rows of a job into a table of Apache Iceberg."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from coordlog.errors import EnvironmentSetupError, OptionError
from coordlog.limits import ROLL_BYTES, ROW_GROUP_BYTES, ROW_GROUP_ROWS
from coordlog.option_types import check_all, check_types
from coordlog.spark_integration.files.sink.sink import Compression
from coordlog.spark_integration.files.tables.sink import TableSink
from coordlog.spark_integration.files.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["IcebergSink"]

_CATALOG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class IcebergSink(TableSink):
    """Rows of one job into an Iceberg table, one snapshot for each checkpoint, without a JVM.

    The table may have other writers, other jobs among them. It is made if it does not exist, with the columns of
    the first rows, or `schema`. Each commit sets the property `coordlog.commits.JOB.OPERATOR` to its number, by which
    it is known as long as the table exists, and describes itself in the snapshot's summary. Tasks write the data files;
    they ask the catalog only when the first rows add the columns of a new table, and when `widen` adds some.

    Args:
        table: `NAMESPACE.TABLE`.
        catalog: Name of a catalog of pyiceberg: in `.pyiceberg.yaml`, or in variables `PYICEBERG_CATALOG__NAME__…`.
        properties: Properties of the catalog, such as `uri`, added to those under its name. They are sent to the tasks.
        schema: Columns of a table that does not exist yet. Without it those of the first rows.
        partition_by: Columns to partition a new table by, by their values. An existing table keeps its own.
        widen: Columns that the table lacks are added, and narrower ones are widened as Iceberg does: int to long,
            float to double, a decimal to more digits. Otherwise such rows are refused, with the difference.
        compression: As those of `ParquetSink`, as are the following.
        row_group_rows: See `ParquetSink`.
        row_group_bytes: See `ParquetSink`.
        roll_bytes: See `ParquetSink`.
        roll_rows: See `ParquetSink`.
        roll_seconds: See `ParquetSink`.

    Raises:
        OptionError: An option is out of range.
        EnvironmentSetupError: pyiceberg is not installed.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str,
        properties: Mapping[str, str] = _NO_PROPERTIES,
        schema: pa.Schema | StructType | str | None = None,
        partition_by: Sequence[str] = (),
        widen: bool = False,
        compression: Compression = "zstd",
        row_group_rows: int = ROW_GROUP_ROWS,
        row_group_bytes: int = ROW_GROUP_BYTES,
        roll_bytes: int = ROLL_BYTES,
        roll_rows: int | None = None,
        roll_seconds: float | None = None,
    ) -> None:
        check_types(type(self).__init__, locals())
        check_all(lambda: _check_name(table), lambda: _check_catalog(catalog))
        super().__init__(
            _iceberg_table(table, catalog, properties),
            schema=schema,
            partition_by=partition_by,
            widen=widen,
            compression=compression,
            row_group_rows=row_group_rows,
            row_group_bytes=row_group_bytes,
            roll_bytes=roll_bytes,
            roll_rows=roll_rows,
            roll_seconds=roll_seconds,
        )


def _iceberg_table(name: str, catalog: str, properties: Mapping[str, str]) -> Table:
    try:
        # The library takes a second to import.
        from coordlog.spark_integration.files.tables.iceberg_table import (  # noqa: PLC0415
            IcebergTable,
        )
    except ImportError as error:
        raise EnvironmentSetupError(
            f"Iceberg tables need pyiceberg: {error}", "pip install 'coordlog[iceberg]'"
        ) from error
    return IcebergTable(name, catalog, properties)


def _check_name(name: str) -> None:
    parts = name.split(".")
    if len(parts) < 2 or not all(parts) or set("/?#@ ") & set(name):  # noqa: PLR2004
        raise OptionError("table", name, "NAMESPACE.TABLE")


def _check_catalog(name: str) -> None:
    if not _CATALOG.fullmatch(name):
        raise OptionError("catalog", name, "a name of letters, digits, hyphens and underscores")
