"""Records that are left out because their values cannot be decoded: what is kept of each, and their schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from coordlog.spark_integration.files.formats.bad_rows import marked
from coordlog.spark_integration.kafka.cluster import Partition

__all__ = ["KAFKA_REJECTS_SCHEMA", "BadRecord", "rejects_batch"]

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
