"""Columns of CSV files that the schema lacks, as one column of JSON objects."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa

from coordlog.spark_integration.files.rescued import unmarked, without_rescued

__all__ = ["rescued_rows"]

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


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
    columns = [batch.column(name).to_pylist() for name in names]
    rescued = (
        pa.array(
            [
                _ENCODER.encode(dict(zip(names, values, strict=True)))
                for values in zip(*columns, strict=True)
            ],
            pa.string(),
        )
        if names
        else pa.nulls(batch.num_rows, pa.string())
    )
    return pa.RecordBatch.from_arrays(
        [*(batch.column(name) for name in known.names), rescued], schema=unmarked(schema)
    )
