"""The sink that a destination names: a folder, a prefix of a bucket, or a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coordlog.errors import OptionError
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.tables.delta import DeltaSink
from coordlog.spark_integration.files.tables.iceberg import IcebergSink
from coordlog.spark_integration.files.tables.sink import TableSink

__all__ = ["sink_of"]

_ICEBERG: Final = "iceberg://"
_DELTA: Final = "delta+"


def sink_of(destination: str, keywords: Mapping[str, Any]) -> ParquetSink | TableSink:
    """The sink of DEST.

    Args:
        destination: A path, `s3://BUCKET/PREFIX`, `iceberg://CATALOG/NAMESPACE.TABLE`, `delta+file:///PATH` or
            `delta+s3://BUCKET/PREFIX`.
        keywords: Options of a `ParquetSink`, which all of them have.

    Raises:
        OptionError, OptionsError: DEST or an option is wrong.
        SinkError: DEST has credentials, or is in a file system in which files cannot be published.
        EnvironmentSetupError: The library of the table's format is not installed.
    """
    if destination.startswith(_ICEBERG):
        catalog, _, table = destination.removeprefix(_ICEBERG).partition("/")
        return IcebergSink(table, catalog=catalog, **keywords)
    if destination.startswith(_DELTA):
        folder = destination.removeprefix(_DELTA)
        if not folder.startswith(("file:///", "s3://", "s3a://")):
            raise OptionError("DEST", destination, "delta+file:///PATH or delta+s3://BUCKET/PREFIX")
        return DeltaSink(folder, **keywords)
    return ParquetSink(destination, **keywords)
