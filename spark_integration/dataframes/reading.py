"""A task's side of a read: asks for its partition's splits, and gives their rows to Spark."""

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

from coordlog.api.operator import PollStatus, SourceReader
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
from coordlog.schemas.source_events import RequestSplit, Split
from coordlog.spark_integration.casts.exact_cast import InexactError, exact_cast
from coordlog.spark_integration.dataframes.query_end import CANCEL_WAIT_S, is_same_again
from coordlog.spark_integration.dataframes.ticket import OPERATOR_ID, ServiceClient, Ticket
from coordlog.spark_integration.task.worker_archives import keep_archives

__all__ = ["ReadPartition", "read_partition"]

_PAUSE_MAX_S: Final = 0.05


@dataclass(frozen=True)
class ReadPartition(InputPartition):
    """One partition of a read, as Spark carries it to a task."""

    read_id: str
    number: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Who asks."""

    task_attempt_id: int
    attempt_number: int
    stage_id: int

    @classmethod
    def of_spark(cls) -> _Task:
        """This task. Its ids are read once: the worker's process may serve another one later."""
        context = TaskContext.get()
        assert context is not None, "Spark reads in a task"
        return cls(
            task_attempt_id=context.taskAttemptId(),
            attempt_number=context.attemptNumber(),
            stage_id=context.stageId(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """See `OperatorContext`: what a reader may call. Nothing is restored here, and nobody is fenced."""

    job_id: str
    subtask: int
    parallelism: int
    attempt_number: int
    operator_id: str = OPERATOR_ID
    driver_id: str = ""
    restored_checkpoint: int = -1
    is_batch: bool = True

    def send_event(self, event: Payload) -> None:
        """A reader's wish for another split is known; nothing else can be said."""
        if not isinstance(event, RequestSplit):
            raise SourceError(
                f'format("coordlog"), job {self.job_id}',
                f"its reader sends {type(event).__name__}, and a query has nobody who takes it",
                "read this source with a `Job`",
            )

    def check_alive(self) -> None:
        """Spark ends its tasks itself."""


def read_partition(
    ticket: Ticket, partition: ReadPartition, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of one partition's splits, as `schema` has them, in batches of a size that suits Spark.

    Raises:
        SourceError: A split cannot be read, or the service is gone.
        RequestRefusedError: The read is over.
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
            with _Rows(client, reader, partition, task) as rows:
                yield from _merged(rows.batches(), schema)
        except Exception as error:
            _report(client, _failure(partition, task, reader, error))
            if is_same_again(error):
                _end_query(client, task, error)
            raise
        finally:
            reader.close()


def _report(client: ServiceClient, failed: ReadFailed) -> None:
    with contextlib.suppress(CoordlogError):  # the reader's own error matters more
        client.ask(failed, ReadFailureNoted, retry_s=0.0)


def _end_query(client: ServiceClient, task: _Task, error: Exception) -> None:
    """Have the query ended, and wait for that: else Spark would start the next try first."""
    try:
        client.ask(
            EndQuery(stage_id=task.stage_id, reason=_reason(error)), ReadFailureNoted, retry_s=0.0
        )
    except CoordlogError:
        return
    time.sleep(CANCEL_WAIT_S)  # the task is cancelled meanwhile


class _Rows:
    """Asks, and polls the reader, one split after the other. Asks on a thread of its own, in a `with` block.

    Where it was given several splits at once it asks for the next when it has read half of them: an answer is an
    append to the log, and small splits are read in less. One that was given alone is read before.
    """

    def __init__(
        self, client: ServiceClient, reader: SourceReader, partition: ReadPartition, task: _Task
    ) -> None:
        self._client, self._reader = client, reader
        self._partition, self._task = partition, task
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._finished: list[SplitRead] = []
        self._asking = ThreadPoolExecutor(1, "asks-for-splits")

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Wait for a question that is open: the connection is for one thread."""
        self._asking.shutdown()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Those of all splits that this partition has, and will have."""
        position = 0
        answer = self._ask(position)
        while splits := answer.result():
            position += len(splits)
            half = len(splits) // 2 or len(splits)
            for one in splits[:half]:
                yield from self._read(one)
            answer = self._ask(position)
            for one in splits[half:]:
                yield from self._read(one)
        if self._finished:  # after it had asked for more, and there was none
            self._ask(position).result()

    def _ask(self, position: int) -> Future[list[Split]]:
        finished, self._finished = self._finished, []
        return self._asking.submit(self._next, position, finished)

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
                assert poll.batch is not None, "the status has one"
                yield poll.batch
            elif poll.status is PollStatus.SPLIT_FINISHED:
                assert poll.finished is not None, "the status has one"
                self._finished.append(
                    SplitRead(
                        split_id=poll.finished.split_id,
                        rows=poll.finished.rows,
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
                    f"its reader says {poll.status.value} before its end",
                    "a query reads every split whole: let the reader raise what is wrong",
                )


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
    """Small batches put together: each costs a hand-over to the JVM."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for one in batches:
        batch = _fitting(one, schema)
        held.append(batch)
        rows += batch.num_rows
        size += batch.get_total_buffer_size()
        if rows >= DATAFRAME_BATCH_ROWS or size >= DATAFRAME_BATCH_BYTES:
            yield _one(held)
            held, rows, size = [], 0, 0
    if held:
        yield _one(held)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _fitting(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in Arrow's types for Spark's: times in microseconds, texts with 32-bit offsets."""
    if batch.schema.equals(schema):
        return batch
    columns: list[pa.Array] = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            columns.append(exact_cast(column, field.type))
        except InexactError as error:
            raise SourceError(
                'format("coordlog")',
                f"column {field.name!r} cannot be handed to Spark as it is: {error}",
                "give the column a type that Spark has (`schema=`)",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
