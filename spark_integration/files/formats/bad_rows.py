"""Rows that are left out as bad: what is kept of each, and the schemas of their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from coordlog.limits import BAD_ROW_TEXT_BYTES

__all__ = [
    "REJECTS_SCHEMA",
    "BadRow",
    "are_rejects",
    "file_of",
    "marked",
    "placed",
    "rejects_batch",
    "shown_text",
    "split_of",
    "unplaced",
]

_MARK: Final = {b"coordlog.rejects": b"1"}
_SPLIT: Final = b"coordlog.split"
_FILE: Final = b"coordlog.file"

REJECTS_SCHEMA: Final = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("row", pa.string()),
    ]
)
"""Columns of rejects of files, as the files of rejects have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that was left out."""

    line: int | None
    """Line of the file in which the row begins, from 1; None in a split that begins later in the file."""
    offset: int | None
    """First byte of the row in the unpacked file; None if the file is not in UTF-8."""
    reason: str
    text: str
    """Text of the row without its line end, see `shown_text`."""


def shown_text(row: bytes) -> str:
    """The text of a row: other bytes than UTF-8 in hexadecimal, and only the first of a very long row."""
    return row[:BAD_ROW_TEXT_BYTES].rstrip(b"\r\n").decode("utf-8", "backslashreplace")


def rejects_batch(path: str, rows: Sequence[BadRow]) -> pa.RecordBatch:
    """The rows as a batch of rejects, which `are_rejects` tells from rows of the source."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([path] * len(rows), pa.string()),
            pa.array([row.line for row in rows], pa.int64()),
            pa.array([row.offset for row in rows], pa.int64()),
            pa.array([row.reason for row in rows], pa.string()),
            pa.array([row.text for row in rows], pa.string()),
        ],
        schema=marked(REJECTS_SCHEMA),
    )


def marked(schema: pa.Schema) -> pa.Schema:
    """The schema of batches that `are_rejects` tells from rows of the source."""
    return schema.with_metadata(_MARK)


def are_rejects(batch: pa.RecordBatch) -> bool:
    """Whether the schema of a batch is one of `marked`."""
    return (batch.schema.metadata or {}).items() >= _MARK.items()


def placed(batch: pa.RecordBatch, split_id: str, file: str = "") -> pa.RecordBatch:
    """The batch with the place of its rows, for an operator that may leave out some of them."""
    place = {_SPLIT: split_id.encode(), _FILE: file.encode("utf-8", "surrogateescape")}
    return batch.replace_schema_metadata({**(batch.schema.metadata or {}), **place})


def unplaced(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without the place of its rows, as its source has it."""
    metadata = batch.schema.metadata or {}
    rest = {key: value for key, value in metadata.items() if key not in (_SPLIT, _FILE)}
    return batch.replace_schema_metadata(rest or None)


def split_of(batch: pa.RecordBatch) -> str:
    """Id of the split of a `placed` batch."""
    return _place(batch, _SPLIT).decode()


def file_of(batch: pa.RecordBatch) -> str:
    """File of a `placed` batch."""
    return _place(batch, _FILE).decode("utf-8", "surrogateescape")


def _place(batch: pa.RecordBatch, key: bytes) -> bytes:
    value: bytes = (batch.schema.metadata or {})[key]
    return value
