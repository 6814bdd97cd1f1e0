"""The differences of two schemas of one source, in words."""

from __future__ import annotations

import pyarrow as pa

from coordlog.errors import SourceError
from coordlog.spark_integration.files.rescued import is_rescued

__all__ = ["schema_difference", "schemas_differ"]

_SHOWN_MAX = 8


def schema_difference(actual: pa.Schema, settled: pa.Schema) -> str:
    """Columns that one schema lacks, and columns of different types; empty if there are none."""
    only_actual = [_shown(column) for column in actual if column.name not in settled.names]
    only_settled = [_shown(column) for column in settled if column.name not in actual.names]
    other = [
        f"{column.name!r} is {_type(actual.field(column.name))} and not {_type(column)}"
        for column in settled
        if column.name in actual.names and _differ(actual.field(column.name), column)
    ]
    parts = []
    if only_actual:
        parts.append(f"it has {_some(only_actual)}, which the source has not")
    if only_settled:
        parts.append(f"it has no {_some(only_settled)}, which the source has")
    if other:
        parts.append(_some(other))
    if not parts and actual.names != settled.names:
        parts.append(f"its columns are {actual.names}, those of the source are {settled.names}")
    return "; ".join(parts)


def schemas_differ(path: str, of: str, actual: pa.Schema, settled: pa.Schema) -> SourceError:
    """Error of a file whose schema is not that of the source, which comes from `of`."""
    return SourceError(
        path,
        f"its schema is not that of the source ({of}): {schema_difference(actual, settled)}",
        "set the schema that all are to be read with (`schema=`), those files in a source of their "
        "own, or read each with its own (`schemas='each'`, with `widen=True` for the "
        "sink)",
    )


def _shown(column: pa.Field) -> str:
    return f"{column.name!r} ({_type(column)})"


def _type(column: pa.Field) -> str:
    return f"{column.type}, for rescued fields" if is_rescued(column) else str(column.type)


def _differ(column: pa.Field, other: pa.Field) -> bool:
    return bool(column.type != other.type) or is_rescued(column) != is_rescued(other)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN_MAX])
    return shown if len(names) <= _SHOWN_MAX else f"{shown} and {len(names) - _SHOWN_MAX} more"
