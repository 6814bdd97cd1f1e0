"""Batches into a folder of Parquet files: executors stage the files, the driver renames them to their final names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import pyarrow as pa

from coordlog.errors import UsageError
from coordlog.log.interface import LogIdentity
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import NO_CHECKPOINT
from coordlog.spark_integration.batches.payloads import BatchPart, PartOutcome
from coordlog.spark_integration.batches.sinks import At, Batch, BatchSink, map_numbered, nowhere
from coordlog.spark_integration.files.payloads import PublishFiles, StagedFile
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.sink.writer import FileWriters
from coordlog.spark_integration.task.worker_archives import keep_archives

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "FilesSink",
    "FilesTask",
    "ParquetBatches",
    "files_part",
    "refuse_repeated_names",
    "staged_part",
    "writers_name",
]

_STAGED = payload_type_of(StagedFile)
_COLUMN = "staged"


@runtime_checkable
class FilesSink(BatchSink, Protocol):
    """A `BatchSink` whose rows are staged as files, by any of Spark's processes."""

    def file_writers(self) -> FileWriters:
        """Makes the writers of the files, in tasks. Pickles; after `prepare`."""
        ...


def writers_name(job_id: str, sink: str) -> str:
    """Key of a sink's writers among those of a session."""
    return f"{job_id}/{sink}"  # no job's id has a slash


class ParquetBatches:
    """A `BatchSink` of the files of a `ParquetSink`, with the sink's options, owner and schema.

    Readers see a batch file by file, as each file gets its final name.
    """

    def __init__(self, sink: ParquetSink) -> None:
        self._sink = sink

    @property
    def destination(self) -> str:
        """See `BatchSink`."""
        return self._sink.destination

    def file_writers(self) -> FileWriters:
        """See `FilesSink`."""
        return FileWriters(options=self._sink.writer_options)

    def prepare(self, job_id: str, spark: SparkSession) -> None:
        """See `BatchSink`."""
        self._sink.prepare(job_id)

    def refuse_lost_output(self, job_id: str) -> None:
        """See `ParquetSink.refuse_lost_output`."""
        self._sink.refuse_lost_output(job_id)

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """See `ParquetSink.claim`: without the claim, a job whose log was lost would write its last batch again."""
        self._sink.claim(job_id, log, former)

    def stage(self, frame: DataFrame, batch: Batch) -> BatchPart:
        """See `BatchSink`."""
        return staged_part(frame, self.file_writers(), batch)

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        """See `BatchSink`: a file with its final name and this content is done."""
        self._sink.settle(PublishFiles(checkpoint_id=NO_CHECKPOINT, files=part.files), at=at)
        return PartOutcome(
            sink=part.sink,
            is_done=True,
            rows=part.rows,
            details={"files": str(len(part.files))},
        )

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        """See `BatchSink`."""
        self._sink.sweep(is_in_force=is_in_force)


def staged_part(frame: DataFrame, writers: FileWriters, batch: Batch) -> BatchPart:
    """Part of a batch, whose rows are staged here: one file for each partition with rows, or more by the options.

    Raises:
        UsageError: As `refuse_repeated_names`.
    """
    refuse_repeated_names(frame.columns)
    task = replace(FilesTask.of(writers, batch), names=tuple(frame.columns))
    rows = map_numbered(frame, task, f"{_COLUMN} binary").collect()
    return files_part(batch.sink, [bytes(row[0]) for row in rows])


def refuse_repeated_names(columns: Iterable[str]) -> None:
    """Refuse several columns of one name, as Spark's own writers of files do: it would pass them on as `id_0`, `id_1`.

    Raises:
        UsageError: With the names.
    """
    repeated = [name for name, count in Counter(columns).items() if count > 1]
    if repeated:
        raise UsageError(
            f"the frame has several columns of the name {', '.join(map(repr, repeated))}: rename all but one of a "
            "name, or drop them, before the write"
        )


def files_part(sink: str, staged: Iterable[bytes]) -> BatchPart:
    """Part of a batch from its staged files, each encoded by the task that wrote it."""
    files = [cast("StagedFile", _STAGED.decode(content)) for content in staged]
    files.sort(key=lambda file: file.final)
    return BatchPart(sink=sink, rows=sum(file.rows for file in files), files=files, details={})


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTask:
    """Writes one partition's rows to hidden files, in a Spark task; pickles."""

    writers: FileWriters
    job_id: str
    folder: str
    """Folder of the staged files: driver and query."""
    label: str
    """Prefix of the final names: the query."""
    batch_id: int
    names: tuple[str, ...] = ()
    """Names of the columns, for `map_numbered`."""

    @classmethod
    def of(cls, writers: FileWriters, batch: Batch) -> FilesTask:
        """The task of a batch."""
        key = batch.key
        return cls(
            writers=writers,
            job_id=batch.job_id,
            folder=f"{batch.driver_id}.{key.query_id}",
            label=f"{'write' if key.is_write else 'batch'}-{key.query_id[:8]}",
            batch_id=key.batch_id,
        )

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows. For `map_numbered`: returns the encoded files, one per row."""
        staged = self.write(batch.rename_columns(self.names) for batch in batches)
        yield pa.record_batch({_COLUMN: pa.array(staged, pa.binary())})

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[bytes]:
        """Write the rows and return the encoded files, which are durable."""
        from pyspark import TaskContext  # noqa: PLC0415, in a task only

        keep_archives()
        task = TaskContext.get()
        assert task is not None, "in a task"
        writer = self.writers(self.label)
        context = _Context(
            job_id=self.job_id,
            driver_id=self.folder,
            subtask=self.batch_id,
            attempt_number=task.taskAttemptId(),
        )
        writer.open(context, None)
        try:
            for batch in batches:
                # Spark leaves out the offsets of a list of lists without any inner list, a copy has them: pyarrow's
                # `nbytes` would read them all the same, and the worker would die.
                writer.process(pa.concat_batches([batch]))
            return list(writer.final_snapshot().committables)
        finally:
            writer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """Attempt of a writer of files, from which the writer forms the files' names.

    The batch takes the place of the subtask, and a Spark task that of the attempt: its number is unique in the
    session.
    """

    job_id: str
    driver_id: str
    subtask: int
    attempt_number: int
    operator_id: str = "batches"
    parallelism: int = 0
    restored_checkpoint: int = NO_CHECKPOINT
    is_batch: bool = True

    def send_event(self, event: Payload) -> None:
        """Raise UsageError: a batch's task has no coordinator."""
        raise UsageError(f"a {type(event).__name__} cannot be sent from a batch's task")

    def check_alive(self) -> None:
        """Do nothing: Spark ends its tasks itself."""
