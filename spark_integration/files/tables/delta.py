"""`DeltaSink`: rows of a job into a table of Delta Lake."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from coordlog.errors import EnvironmentSetupError, SinkError
from coordlog.limits import ROLL_BYTES, ROW_GROUP_BYTES, ROW_GROUP_ROWS
from coordlog.option_types import check_types
from coordlog.spark_integration.files.sink.sink import Compression, ParquetSink
from coordlog.spark_integration.files.tables.sink import TableSink
from coordlog.spark_integration.files.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DeltaSink"]

_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|\\")
"""In a local path: delta-rs (1.6.6) takes it for an escaped character, or for a slash."""


class DeltaSink(TableSink):
    """Rows of one job into a Delta table, one version for each checkpoint, without a JVM.

    The table may have other writers, other jobs among them. It is made if it does not exist, with the columns of
    the first rows, or `schema`. Each commit has a transaction of the application `coordlog.commits.JOB.OPERATOR` with
    its number, by which it is known as long as the table exists, and describes itself in the table's history.

    Args:
        path: The table's folder: a local path, or `s3://BUCKET/PREFIX`, as that of a `ParquetSink`.
        schema: Columns of a table that does not exist yet. Without it those of the first rows.
        partition_by: Columns to partition a new table by. An existing table keeps its own.
        widen: Columns that the table lacks are added; no column gets a wider type. Otherwise such rows are refused,
            with the difference.
        compression: As those of `ParquetSink`, as are the following.
        row_group_rows: See `ParquetSink`.
        row_group_bytes: See `ParquetSink`.
        roll_bytes: See `ParquetSink`.
        roll_rows: See `ParquetSink`.
        roll_seconds: See `ParquetSink`.

    Raises:
        OptionError: An option is out of range.
        SinkError: `path` has credentials, is in a file system in which files cannot be published, or is a local one
            that delta-rs does not read.
        EnvironmentSetupError: deltalake is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
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
        super().__init__(
            _delta_table(os.fspath(path)),
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


def _delta_table(path: str) -> Table:
    # It refuses what no file could be published in, and opens nothing.
    root = ParquetSink(path.removeprefix("file://") if path.startswith("file:///") else path)
    misread = _MISREAD.search(root.destination) if root.destination.startswith("/") else None
    if misread is not None:
        raise SinkError(
            root.destination,
            f"its path has {misread[0]!r}, and delta-rs looks for the log of the table elsewhere",
            "use a path without it",
        )
    try:
        from coordlog.spark_integration.files.tables.delta_table import (  # noqa: PLC0415, an extra
            DeltaLakeTable,
        )
    except ImportError as error:
        raise EnvironmentSetupError(
            f"Delta tables need deltalake: {error}", "pip install 'coordlog[delta]'"
        ) from error
    return DeltaLakeTable(root.destination)
