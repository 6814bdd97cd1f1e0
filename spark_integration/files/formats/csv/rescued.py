"""Columns of CSV files that the schema lacks, as one column of JSON objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from coordlog.spark_integration.files.rescued import unmarked, without_rescued

__all__ = ["rescued_rows"]

_ESCAPED: Final = r'["\\\x00-\x1f]'
"""Characters that JSON has as escapes."""


def rescued_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a file in `schema`: if this has a column for further ones, they are in it, as texts.

    Args:
        batch: Rows in the schema that `file_schema` has for the file.
        schema: Columns of the source.
    """
    known = without_rescued(schema)
    if known is schema:
        return batch
    names = [name for name in batch.schema.names if name not in known.names]
    rescued = (
        _objects([(name, batch.column(name)) for name in names])
        if names
        else pa.nulls(batch.num_rows, pa.string())
    )
    return pa.RecordBatch.from_arrays(
        [*(batch.column(name) for name in known.names), rescued], schema=unmarked(schema)
    )


def _objects(columns: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """The text of an object for each row, with these fields."""
    parts: list[str | pa.Array] = []
    for name, values in columns:
        parts += [f"{',' if parts else '{'}{_text(name)}:", _texts(values)]
    return _joined(*parts, "}")


def _texts(values: pa.Array) -> pa.Array:
    """Each string as JSON."""
    options = pc.MatchSubstringOptions(_ESCAPED)
    is_escaped = pc.call_function("match_substring_regex", [values], options)
    if pc.call_function("any", [is_escaped]).as_py():
        written = [None if value is None else _text(value) for value in values.to_pylist()]
        texts = pa.array(written, pa.string())
    else:
        texts = _joined('"', values, '"')
    return pc.fill_null(texts, "null")


def _joined(*parts: str | pa.Array) -> pa.Array:
    """The parts of each row as one string; null if one is null."""
    columns = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
    return pc.call_function("binary_join_element_wise", [*columns, pa.scalar("")])


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
