"""Records that are left out because their values cannot be decoded: what is kept of each, and their schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from coordlog.spark_integration.files.formats.bad_rows import marked, shown_text
from coordlog.spark_integration.files.rejected_rows import row_texts
from coordlog.spark_integration.kafka.cluster import Partition

__all__ = ["KAFKA_REJECTS_SCHEMA", "BadRecord", "rejects_batch", "rejects_of_records"]

KAFKA_REJECTS_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("row", pa.string()),
    ]
)
"""Columns of rejects of topics, as the files of rejects have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that was left out."""

    offset: int
    reason: str
    text: str | None
    """Text of the value, see `shown_text`; None if there is no value."""


def rejects_batch(partition: Partition, records: Sequence[BadRecord]) -> pa.RecordBatch:
    """The records of one partition as a batch of rejects."""
    topic, number = partition
    return pa.RecordBatch.from_arrays(
        [
            pa.array([topic] * len(records), pa.string()),
            pa.array([number] * len(records), pa.int32()),
            pa.array([record.offset for record in records], pa.int64()),
            pa.array([record.reason for record in records], pa.string()),
            pa.array([record.text for record in records], pa.string()),
        ],
        schema=marked(KAFKA_REJECTS_SCHEMA),
    )


def rejects_of_records(rows: pa.RecordBatch, reasons: Sequence[str]) -> pa.RecordBatch:
    """Rows of one partition, which an operator has left out, as rejects; the text is that of the value."""
    value = rows.schema.get_field_index("value")
    if pa.types.is_struct(rows.schema.field(value).type):
        texts = _texts_of_objects(rows.column(value))
    else:
        texts = [_text(each) for each in rows.column(value).to_pylist()]
    # These columns alone: Python has no times beyond the year 9999.
    topics, partitions, offsets = (
        rows.column(rows.schema.get_field_index(name)).to_pylist()
        for name in ("topic", "partition", "offset")
    )
    return rejects_batch(
        (topics[0], partitions[0]),
        [
            BadRecord(offset=offset, reason=reason, text=text)
            for offset, reason, text in zip(offsets, reasons, texts, strict=True)
        ],
    )


def _text(value: bytes | str | None) -> str | None:
    if value is None:
        return None
    return shown_text(value if isinstance(value, bytes) else value.encode())


def _texts_of_objects(values: pa.StructArray) -> list[str | None]:
    objects = row_texts(pa.RecordBatch.from_struct_array(values))
    return [
        text if is_valid else None
        for text, is_valid in zip(objects, values.is_valid().to_pylist(), strict=True)
    ]
