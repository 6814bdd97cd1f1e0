"""What two schemas of one source do not have in common, in words."""

from __future__ import annotations

import pyarrow as pa

from coordlog.errors import SourceError

__all__ = ["schema_difference", "schemas_differ"]

_SHOWN_MAX = 8


def schema_difference(found: pa.Schema, settled: pa.Schema) -> str:
    """Which columns only one has, and which differ; empty where none does."""
    only_found = [_shown(one) for one in found if one.name not in settled.names]
    only_settled = [_shown(one) for one in settled if one.name not in found.names]
    other = [
        f"{one.name!r} is {found.field(one.name).type} and not {one.type}"
        for one in settled
        if one.name in found.names and found.field(one.name).type != one.type
    ]
    parts = []
    if only_found:
        parts.append(f"it has {_some(only_found)}, which the source has not")
    if only_settled:
        parts.append(f"it has no {_some(only_settled)}, which the source has")
    if other:
        parts.append(_some(other))
    if not parts and found.names != settled.names:
        parts.append(f"its columns are {found.names}, those of the source are {settled.names}")
    return "; ".join(parts)


def schemas_differ(path: str, of: str, found: pa.Schema, settled: pa.Schema) -> SourceError:
    """The error for a file whose schema is not the source's, which is that of `of`."""
    return SourceError(
        path,
        f"its schema is not that of the source ({of}): {schema_difference(found, settled)}",
        "give the schema that all are to be read with (`schema=`), those files in a source of their "
        "own, or read each with its own (`schemas='each'`, `--schemas each`, with `--widen` for the "
        "sink)",
    )


def _shown(one: pa.Field) -> str:
    return f"{one.name!r} ({one.type})"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN_MAX])
    return shown if len(names) <= _SHOWN_MAX else f"{shown} and {len(names) - _SHOWN_MAX} more"
