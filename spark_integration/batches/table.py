"""Batches into a table: executors stage Parquet files, the driver adds those of a batch by one commit of the table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from coordlog.errors import DestinationMisfitError, FilesGoneError, SinkError
from coordlog.log.interface import LogIdentity
from coordlog.spark_integration.batches.parquet import staged_part
from coordlog.spark_integration.batches.payloads import BatchPart, PartOutcome
from coordlog.spark_integration.batches.sinks import At, Batch, nowhere, refuse_older
from coordlog.spark_integration.files.sink.writer import FileWriters
from coordlog.spark_integration.files.tables.sink import TableSink
from coordlog.spark_integration.files.tables.table_files import Addition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TableBatches", "addition_of"]

_WRITE: Final = "write."
"""Prefix of the marks of batch writes."""


class TableBatches:
    """A `BatchSink` of the table of an `IcebergSink` or a `DeltaSink`, with the sink's options.

    Readers see a whole batch or nothing of it. The table's mark of a query has the number of its newest batch, so
    that a batch is known as long as the table exists, also without the log. Batch writes may be settled at once: each
    has the mark of its place among the open intents, with its intent's number.

    Args:
        sink: The table and its options.
        name: Name of the sink in the job: the operator of the commits.
    """

    def __init__(self, sink: TableSink, name: str) -> None:
        self._sink, self._files = sink, sink.files_of(name)

    @property
    def destination(self) -> str:
        """See `BatchSink`."""
        return self._files.where

    def file_writers(self) -> FileWriters:
        """See `FilesSink`."""
        return self._files.writers

    def prepare(self, job_id: str, spark: SparkSession) -> None:
        """See `BatchSink`."""
        self._files.prepare(job_id)

    def refuse_lost_names(self, job_id: str, names: Collection[str]) -> None:
        """See `TableSink.refuse_lost_output`: each name has a folder of its own."""
        for name in sorted(names):
            files = self._sink.files_of(name)
            files.prepare(job_id)
            files.refuse_lost_output(job_id)

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """See that no other log of a job of this id writes to the table: its batches would be others.

        Raises:
            SinkError: Another one does; both are named. Or it is gone, and has written by a sink of another name.
        """
        self._files.claim(
            job_id, log, former, refuse_earlier_output=lambda: self.refuse_writes_above(job_id, 0)
        )

    def refuse_writes_above(self, job_id: str, number: int) -> None:
        """Refuse a table with batch writes that the log has not: it is gone, or an older copy.

        Raises:
            SinkError: The mark of a batch write is above `number`, that of the log's newest intent, 0 for none.
        """
        marks = self._files.settled_in_turn(f"{_WRITE}{place}" for place in itertools.count())
        unknown = {mark: newest for mark, newest in marks.items() if newest > number}
        if unknown:
            named = ", ".join(
                f"mark {self._files.mark(mark)} is {newest}" for mark, newest in unknown.items()
            )
            known = f"the log's newest intent is number {number}" if number else "the log has none"
            raise SinkError(
                self.destination,
                f"it has batch writes of job {job_id!r} that its log has not: {named}, and {known}; a write with a "
                "name would be written a second time",
                "use the log that the job had, or another job id",
            )

    def stage(self, frame: DataFrame, batch: Batch) -> BatchPart:
        """See `BatchSink`."""
        if not batch.key.is_write:
            newest = self._files.settled(batch.key.query_id)
            refuse_older(self.destination, batch.key, newest)
            if newest is None and batch.is_first and self._files.begins_anew:
                raise SinkError(
                    self.destination,
                    f"job {batch.job_id!r} has begun there with a log that is gone, and the table has no batch of "
                    "this query: rows of an earlier query would be written a second time",
                    "use the log that the job had, or the checkpoint of the earlier query; if this query begins after "
                    "its rows, allow it with instead_of= and that query's id, as in `metadata` in its checkpoint; if "
                    "no table has rows of the job, use another job id",
                )
        return staged_part(frame, self.file_writers(), batch)

    def has_query(self, _job_id: str, query_id: str) -> bool:
        """Whether the table has a batch of this query; after `prepare`."""
        return self._files.settled(query_id) is not None

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        """See `BatchSink`: one commit adds the files and sets the mark.

        The outcome is not done if columns or partitions of the table were changed so that it does not take the files,
        or if files are gone.
        A commit without files has recorded this in the table before, so that no slower driver adds them.
        """
        details = {"files": str(len(part.files))}
        if part.files:
            addition = addition_of(part, batch)
            is_done, reason = False, "the table has refused it before"
            try:
                is_done = self._files.add(addition, at=at)
            except (DestinationMisfitError, FilesGoneError) as error:
                is_done, reason = not self._files.refuse(addition, at=at), error.problem
            if not is_done:
                details["refused"] = reason
        return PartOutcome(
            sink=part.sink, is_done="refused" not in details, rows=part.rows, details=details
        )

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        """See `BatchSink`."""
        self._files.sweep(is_in_force=is_in_force)


def addition_of(part: BatchPart, batch: Batch) -> Addition:
    """Files of a part, with the marks by which the table knows them."""
    key = batch.key
    named = (
        {"coordlog.write": key.query_id}
        if key.is_write
        else {"coordlog.query": key.query_id, "coordlog.batch": str(key.batch_id)}
    )
    return Addition(
        mark=f"{_WRITE}{batch.place}" if key.is_write else key.query_id,
        number=batch.number if key.is_write else key.batch_id,
        refusal=batch.number,
        files=part.files,
        name=str(key),
        subject=str(key),
        description={"coordlog.epoch": str(batch.epoch), **named},
    )
