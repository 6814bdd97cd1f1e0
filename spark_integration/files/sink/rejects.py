"""Rejects of a source: the rows that it left out, in Parquet files, published with the checkpoint of its other rows."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from coordlog.api.chain import OperatorSpec
from coordlog.api.operator import Operator, OperatorContext, Snapshot
from coordlog.errors import OptionError
from coordlog.schemas.payload import Payload
from coordlog.spark_integration.files.formats.bad_rows import REJECTS_SCHEMA, are_rejects
from coordlog.spark_integration.files.payloads import RejectsPublished
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.sink.writer import ParquetFileWriter, ParquetWriterOptions
from coordlog.spark_integration.files.store.store import At, nowhere

__all__ = ["FAIL", "REJECTS", "SKIP", "RejectsSink", "rejects_sink"]

REJECTS: Final = "rejects"
"""Id of the operator that writes them."""
FAIL: Final = "fail"
"""Value of `bad_rows`: a bad row fails its attempt."""
SKIP: Final = "skip"
"""Value of `bad_rows`: bad rows are counted and left out."""


class RejectsSink(ParquetSink):
    """A Parquet sink of the batches of rejects that pass through a chain; other batches go on.

    Its outcomes are of a type of their own, so that rejects are not among the rows that a job has published.

    Args:
        path: As that of a `ParquetSink`.
        schema: Columns of the rejects, as their source has them.

    Raises:
        OptionError, SinkError: As a `ParquetSink`.
    """

    def __init__(self, path: str | os.PathLike[str], *, schema: pa.Schema = REJECTS_SCHEMA) -> None:
        super().__init__(path, schema=schema)

    def spec(self, operator_id: str = REJECTS) -> OperatorSpec:
        """The sink as a link of a chain, directly after its source. It keeps nothing across splits."""
        return replace(
            super().spec(operator_id),
            create_operator=partial(_RejectsWriter, self.writer_options),
            takes_all_rows=False,
        )

    def settle(self, intent: Payload, *, at: At = nowhere) -> Payload:
        """As `ParquetSink.settle`."""
        published = self.publish(intent, at=at)
        return RejectsPublished(
            checkpoint_id=published.checkpoint_id,
            reject_file_count=published.file_count,
            rejects=published.rows,
            reject_bytes=published.size_bytes,
        )


def rejects_sink(
    bad_rows: str | os.PathLike[str], schema: pa.Schema = REJECTS_SCHEMA
) -> RejectsSink | None:
    """The sink of a source's option `bad_rows`; None if the value is no folder or URL.

    Raises:
        OptionError: The value is empty.
        SinkError: As `RejectsSink`.
    """
    if bad_rows in (FAIL, SKIP):
        return None
    if not os.fspath(bad_rows):
        raise OptionError("bad_rows", bad_rows, "fail, skip, a folder, or s3://BUCKET/PREFIX")
    return RejectsSink(bad_rows, schema=schema)


class _RejectsWriter(Operator):
    """Writes batches of rejects, and passes others on."""

    def __init__(self, options: ParquetWriterOptions) -> None:
        self._writer = ParquetFileWriter(options, label="rejects")

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self._writer.open(context, state)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        if not are_rejects(batch):
            return (batch,)
        return self._writer.process(batch.replace_schema_metadata(None))

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        return self._writer.snapshot_state(checkpoint_id)

    def end_of_split(self, split_id: str) -> Snapshot:
        return self._writer.end_of_split(split_id)

    def discard_split(self, split_id: str) -> None:
        self._writer.discard_split(split_id)

    def final_snapshot(self) -> Snapshot:
        return self._writer.final_snapshot()

    def close(self) -> None:
        self._writer.close()
