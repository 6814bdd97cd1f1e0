"""A task's side of a read: requests its partition's splits, and passes their rows to Spark."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from coordlog.api.operator import Poll, PollStatus, SourceReader
from coordlog.coordinators.query_rejects import RejectsWriter
from coordlog.errors import CoordlogError, SourceError
from coordlog.limits import DATAFRAME_BATCH_BYTES, DATAFRAME_BATCH_ROWS, REASON_CHARS_MAX
from coordlog.schemas.payload import Payload
from coordlog.schemas.reads import (
    EndQuery,
    NextSplits,
    ReadFailed,
    ReadFailureNoted,
    SplitRead,
    SplitsGiven,
)
from coordlog.schemas.source_types import RequestSplit, Split
from coordlog.spark_integration.casts.exact_cast import InexactError, exact_cast
from coordlog.spark_integration.dataframes.query_end import CANCEL_WAIT_S, is_same_again
from coordlog.spark_integration.dataframes.ticket import OPERATOR_ID, ServiceClient, Ticket
from coordlog.spark_integration.files.formats.bad_rows import are_rejects
from coordlog.spark_integration.task.worker_archives import keep_archives

__all__ = ["ReadPartition", "read_partition"]

_PAUSE_MAX_S: Final = 0.05


@dataclass(frozen=True)
class ReadPartition(InputPartition):
    """One partition of a read; Spark sends it to a task."""

    read_id: str
    number: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Identity of the requesting task."""

    task_attempt_id: int
    attempt_number: int
    stage_id: int

    @classmethod
    def of_spark(cls) -> _Task:
        """This task. Its ids are read once: the worker's process may run another task later."""
        context = TaskContext.get()
        assert context is not None, "Spark reads in a task"
        return cls(
            task_attempt_id=context.taskAttemptId(),
            attempt_number=context.attemptNumber(),
            stage_id=context.stageId(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """See `OperatorContext`: the calls of a reader. Here no state is restored and no attempt is fenced."""

    job_id: str
    subtask: int
    parallelism: int
    attempt_number: int
    operator_id: str = OPERATOR_ID
    driver_id: str = ""
    restored_checkpoint: int = -1
    is_batch: bool = True

    def send_event(self, event: Payload) -> None:
        """Ignore a request for another split, and refuse other events: splits are requested by `_Rows`."""
        if not isinstance(event, RequestSplit):
            raise SourceError(
                f'format("coordlog"), job {self.job_id}',
                f"its reader sends {type(event).__name__}, and a query has no coordinator for it",
                "read this source with a `Job`",
            )

    def check_alive(self) -> None:
        """Do nothing: Spark ends its tasks itself."""


def read_partition(
    ticket: Ticket, partition: ReadPartition, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows of one partition's splits, in the types of `schema`, in batches of a size that suits Spark.

    Raises:
        SourceError: A split cannot be read, or the service has ended.
        RequestRefusedError: The read has ended.
    """
    keep_archives()
    task = _Task.of_spark()
    reader = ticket.create_reader()
    with ServiceClient(ticket) as client:
        try:
            reader.open(
                _Context(
                    job_id=ticket.job_id,
                    subtask=partition.number,
                    parallelism=partition.count,
                    attempt_number=task.attempt_number,
                ),
                None,
            )
            rejects = None if ticket.rejects is None else ticket.rejects.writer(task)
            with _Rows(client, reader, partition, task, rejects) as rows:
                yield from _merged(rows.batches(), schema)
        except Exception as error:
            _report(client, _failure(partition, task, reader, error))
            if is_same_again(error):
                _end_query(client, task, error)
            raise
        finally:
            reader.close()


def _report(client: ServiceClient, failed: ReadFailed) -> None:
    with contextlib.suppress(CoordlogError):  # the reader's own error is more important
        client.ask(failed, ReadFailureNoted, retry_s=0.0)


def _end_query(client: ServiceClient, task: _Task, error: Exception) -> None:
    """Request the end of the query, and wait for it: else Spark would start the next try first."""
    try:
        client.ask(
            EndQuery(stage_id=task.stage_id, reason=_reason(error)), ReadFailureNoted, retry_s=0.0
        )
    except CoordlogError:
        return
    time.sleep(CANCEL_WAIT_S)  # the task is cancelled meanwhile


class _Rows:
    """Requests splits and polls the reader, one split after the other. Requests run on an own thread; a `with` block.

    After several splits in one answer the next request is sent when half of them are read: an answer is an append to
    the log, which takes longer than the read of a small split. A single split is read before the next request.
    """

    def __init__(
        self,
        client: ServiceClient,
        reader: SourceReader,
        partition: ReadPartition,
        task: _Task,
        rejects: RejectsWriter | None = None,
    ) -> None:
        self._client, self._reader, self._rejects = client, reader, rejects
        self._partition, self._task = partition, task
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._finished: list[SplitRead] = []
        self._requests = ThreadPoolExecutor(1, "asks-for-splits")

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Wait for an open request: the connection is for one thread. Bad rows of a split that is not read whole go."""
        if self._rejects is not None:
            self._rejects.discard()
        self._requests.shutdown()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches of all splits of this partition, also of those that it gets later."""
        position = 0
        answer = self._request(position)
        while splits := answer.result():
            position += len(splits)
            half = len(splits) // 2 or len(splits)
            for split in splits[:half]:
                yield from self._read(split)
            answer = self._request(position)
            for split in splits[half:]:
                yield from self._read(split)
        if self._finished:  # finished after the last request, whose answer was empty
            self._request(position).result()

    def _request(self, position: int) -> Future[list[Split]]:
        finished, self._finished = self._finished, []
        return self._requests.submit(self._next, position, finished)

    def _next(self, position: int, finished: list[SplitRead]) -> list[Split]:
        request = NextSplits(
            read_id=self._partition.read_id,
            partition=self._partition.number,
            position=position,
            task_attempt_id=self._task.task_attempt_id,
            spark_attempt_number=self._task.attempt_number,
            stage_id=self._task.stage_id,
            host=self._host,
            pid=self._pid,
            finished=finished,
        )
        return self._client.ask(request, SplitsGiven).splits

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        reader = self._reader
        reader.add_splits([split.content])
        while True:
            poll = reader.poll()
            if poll.status is PollStatus.BATCH:
                yield from self._passed_on(poll)
            elif poll.status is PollStatus.SPLIT_FINISHED:
                assert poll.finished is not None, "the status has one"
                if self._rejects is not None:
                    self._rejects.publish(split)
                self._finished.append(
                    SplitRead(
                        split_id=poll.finished.split_id,
                        rows=poll.finished.rows,
                        rejected=poll.finished.rejected,
                        bytes_read=poll.finished.bytes_read,
                    )
                )
                return
            elif poll.status is PollStatus.WAITING:
                if poll.retry_s:
                    time.sleep(min(poll.retry_s, _PAUSE_MAX_S))
            else:
                raise SourceError(
                    split.split_id,
                    f"its reader returns {poll.status.value} before its end",
                    "a query reads every split whole: let the reader raise its error",
                )

    def _passed_on(self, poll: Poll) -> Iterator[pa.RecordBatch]:
        """The rows of a poll; its rejects go to their writer."""
        assert poll.batch is not None, "the status has one"
        for batch in (poll.rejects, poll.batch):
            if batch is None:
                continue
            if are_rejects(batch):
                assert self._rejects is not None, "a reader emits rejects only if they have a place"
                self._rejects.add(batch)
            else:
                yield batch


def _failure(
    partition: ReadPartition, task: _Task, reader: SourceReader, error: Exception
) -> ReadFailed:
    return ReadFailed(
        read_id=partition.read_id,
        partition=partition.number,
        task_attempt_id=task.task_attempt_id,
        split_id=reader.current_split() or "",
        reason=_reason(error),
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]


def _merged(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Small batches concatenated, because each costs a transfer to the JVM."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for unfitted in batches:
        batch = _fitting(unfitted, schema)
        held.append(batch)
        rows += batch.num_rows
        size += batch.get_total_buffer_size()
        if rows >= DATAFRAME_BATCH_ROWS or size >= DATAFRAME_BATCH_BYTES:
            yield _concatenated(held)
            held, rows, size = [], 0, 0
    if held:
        yield _concatenated(held)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _fitting(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in Arrow's types for Spark's: times in microseconds, texts with 32-bit offsets."""
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        raise SourceError(
            'format("coordlog")',
            f"a split has the columns {batch.schema.names}, and the DataFrame {schema.names}: its schema was settled "
            "before the split was listed",
            "set the source's `schema=`, or start the service again",
        )
    columns: list[pa.Array] = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            columns.append(exact_cast(column, field.type))
        except InexactError as error:
            raise SourceError(
                'format("coordlog")',
                f"column {field.name!r} cannot be passed to Spark unchanged: {error}",
                "set a type for the column that Spark has (`schema=`)",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
