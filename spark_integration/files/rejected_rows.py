"""Rows of files that a later operator left out: their rejects, and their numbers by split."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from coordlog.schemas.payload import decode_versioned, encode_versioned
from coordlog.spark_integration.files.formats.bad_rows import (
    BadRow,
    file_of,
    rejects_batch,
    shown_text,
    unplaced,
)
from coordlog.spark_integration.files.payloads import RowsLeftOut, SplitLeftOut

__all__ = ["decode_counts", "encode_counts", "merge_counts", "rejects_of_rows", "row_texts"]


def rejects_of_rows(rows: pa.RecordBatch, reasons: Sequence[str]) -> pa.RecordBatch:
    """The rows, of one file, as rejects. Their lines are unknown: rows of a block are not counted line by line."""
    texts = row_texts(unplaced(rows))
    return rejects_batch(
        file_of(rows),
        [
            BadRow(line=None, offset=None, reason=reason, text=text)
            for reason, text in zip(reasons, texts, strict=True)
        ],
    )


def row_texts(rows: pa.RecordBatch) -> list[str]:
    """Each row as the text of a JSON object, up to the length of a reject's text."""
    return [
        shown_text(
            json.dumps(
                {
                    name: _plain(column[index])
                    for name, column in zip(rows.schema.names, rows.columns, strict=True)
                },
                default=_shown,
                ensure_ascii=False,
            ).encode("utf-8", "surrogatepass")
        )
        for index in range(rows.num_rows)
    ]


def _plain(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (ValueError, OverflowError, ImportError):
        return str(value.cast(pa.string()))  # a time that Python's types cannot hold


def _shown(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


def encode_counts(counts: Mapping[str, int]) -> bytes:
    """Numbers of rows that were left out, by split, as the state of an operator."""
    splits = [SplitLeftOut(split_id=name, rows=rows) for name, rows in sorted(counts.items())]
    return encode_versioned(RowsLeftOut(splits=splits))


def decode_counts(state: bytes) -> dict[str, int]:
    """The numbers in `state`. Raises ValueError if it is none that this version knows."""
    return {each.split_id: each.rows for each in decode_versioned(RowsLeftOut, state).splits}


def merge_counts(states: Sequence[bytes]) -> bytes:
    """The state of one operator that continues several (clause E7: restore with other parallelism)."""
    merged: dict[str, int] = {}
    for state in states:
        for split_id, rows in decode_counts(state).items():
            merged[split_id] = merged.get(split_id, 0) + rows
    return encode_counts(merged)
