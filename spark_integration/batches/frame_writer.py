"""`format("coordlog")` for writing: a Python data source whose commit is a request to the driver of the job's batches.

Spark runs this code in its own processes, and creates a new writer for a stream's commits. So the coordinator is
reached by its endpoint, with the driver's token from its file or `COORDLOG_TOKEN`: no option contains the token.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from coordlog.errors import (
    CoordinatorRestartingError,
    OptionError,
    RequestUnansweredError,
    UsageError,
)
from coordlog.limits import BATCH_COMMIT_S, BATCH_SILENCE_S
from coordlog.schemas.payload import payload_type_of
from coordlog.spark_integration.batches.ledger import BATCHES, BatchKey, unnamed_write
from coordlog.spark_integration.batches.parquet import (
    FilesTask,
    files_part,
    refuse_repeated_names,
    writers_name,
)
from coordlog.spark_integration.batches.payloads import BatchPart, BatchStanding, CommitBatch
from coordlog.spark_integration.batches.query import (
    BATCH_ID,
    QUERY_ID,
    fingerprint_of,
)
from coordlog.spark_integration.batches.sinks import Batch
from coordlog.spark_integration.driver.requests import request_coordinator, why_over
from coordlog.spark_integration.files.names import STAGED_NAME
from coordlog.spark_integration.files.payloads import StagedFile
from coordlog.spark_integration.files.sink.writer import FileWriters

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["frame_writer", "stream_writer"]

_STAGED = payload_type_of(StagedFile)
_WRITE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OPTIONS: Final = ("job", "endpoint", "driver", "sink", "instead_of", "write_id")
"""Options of a batch write. Others are refused: a misspelled `write_id` would double the rows of a repeated write."""
_LOCATION: Final = re.compile(r"(?:([^/:]+):)?(?://[^/]*)?(.*)", re.DOTALL)
"""Scheme and path of a checkpoint, as Hadoop reads them: it decodes nothing, so that `%20` stays three characters."""
_FIRST_POLL_S: Final = 0.01
_LONGEST_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Driver and sink of a write, from its options."""

    job_id: str
    endpoint: str
    driver_id: str
    sink: str
    instead_of: str
    writers: FileWriters

    @classmethod
    def of(cls, options: Mapping[str, str], writers: Mapping[str, FileWriters]) -> _Target:
        required = ("job", "endpoint", "driver", "sink")
        missing = [name for name in required if not options.get(name)]
        if missing:
            raise OptionError(
                ", ".join(missing),
                None,
                'given: start a `BatchService`, then .options(**service.options("sink"))',
            )
        job_id, endpoint = options["job"], options["endpoint"]
        if why_over(job_id, endpoint) is not None:
            # Before a row is staged: a commit would come too late.
            raise UsageError(
                f"the driver that commits the batches of job {job_id} has ended: start one again, "
                "and pass its options to the write"
            )
        sink = options["sink"]
        if (name := writers_name(job_id, sink)) not in writers:
            raise UsageError(
                f"this session does not know sink {sink!r} of job {job_id}: take the options from its "
                "`BatchService` in this session"
            )
        return cls(
            job_id=job_id,
            endpoint=endpoint,
            driver_id=options["driver"],
            sink=sink,
            instead_of=options.get("instead_of", ""),
            writers=writers[name],
        )

    def task(self, key: BatchKey) -> FilesTask:
        batch = Batch(job_id=self.job_id, driver_id=self.driver_id, key=key, sink=self.sink)
        return FilesTask.of(self.writers, batch)

    def commit(self, key: BatchKey, staged: Iterable[bytes], ranges: str = "") -> None:
        """Make the files visible and wait for the outcome; delete them if the batch is committed already.

        Args:
            key: The batch.
            staged: Its files, encoded.
            ranges: As in `CommitBatch`.

        Raises:
            RequestError: The driver refuses the batch, has ended, or did not commit within the limit.
        """
        part = files_part(self.sink, staged)
        standing = self._ask(key, [part], ranges)
        if standing.is_done:
            self._discard(part.files)
            return
        until, pause_s = time.monotonic() + BATCH_COMMIT_S, _FIRST_POLL_S
        silent_since: float | None = None
        while standing.is_open and self.sink not in standing.done_sinks:
            if time.monotonic() > until:
                raise RequestUnansweredError(
                    BATCHES,
                    f"{key} is not settled after {BATCH_COMMIT_S:g} s; its intent is in the log, so it "
                    "will be settled: follow it with `coordlog history`",
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)
            try:
                standing, silent_since = self._ask(key, []), None
            except (RequestUnansweredError, CoordinatorRestartingError) as error:
                now = time.monotonic()
                silent_since = now if silent_since is None else silent_since
                is_over = why_over(self.job_id, self.endpoint) is not None
                if now - silent_since < BATCH_SILENCE_S and not is_over:
                    continue  # the connection has dropped: the next request opens another
                raise RequestUnansweredError(
                    BATCHES,
                    f"{key}: its driver has not answered for {BATCH_SILENCE_S:g} s ({error}); its "
                    "intent is in the log, and the next start of the job settles it",
                ) from error
        if not standing.is_done and self.sink not in standing.done_sinks:
            raise UsageError(
                f"{key} is not committed: sink {self.sink!r} refused its part, with the reason in the outcome "
                f"(`coordlog history {self.job_id}`). Fix the rows or the destination, then write again"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete staged files that no intent names.

        If every task has sent its message, the commit was tried and an intent may name the files: they are kept, and
        the sweep of the next start removes the unused ones.
        """
        if not all(message is not None for message in messages):
            self._discard(files_part(self.sink, _staged_of(messages)).files)

    def _ask(self, key: BatchKey, parts: list[BatchPart], ranges: str = "") -> BatchStanding:
        request = CommitBatch(
            query_id=key.query_id,
            batch_id=key.batch_id,
            is_write=key.is_write,
            instead_of=self.instead_of,
            driver_id=self.driver_id,
            parts=parts,
            ranges=ranges,
        )
        answer = request_coordinator(
            BATCHES,
            request,
            job_id=self.job_id,
            endpoint=self.endpoint,
            response_types=(BatchStanding,),
        )
        return cast("BatchStanding", answer.response)

    def _discard(self, files: Iterable[StagedFile]) -> None:
        for file in files:
            folder, _, name = file.staged.rpartition("/")
            numbers = STAGED_NAME.fullmatch(name)
            assert numbers is not None, "a task has named it"
            self.writers.options.store.clean(
                driver_id=folder.rpartition("/")[2],
                subtask=int(numbers[1]),
                attempt_number=int(numbers[2]),
                keep=frozenset(),
            )


@dataclass
class _Message(WriterCommitMessage):
    """Files that a task has staged; for a stream with the batch that the task belongs to."""

    staged: list[bytes]
    query_id: str = ""
    batch_id: int = -1


def _staged_of(messages: Iterable[WriterCommitMessage | None]) -> list[bytes]:
    return [
        file for message in messages if isinstance(message, _Message) for file in message.staged
    ]


class _FrameWriter(DataSourceArrowWriter):
    """Writer of one batch write; pickles, and its copies write and commit."""

    def __init__(self, target: _Target, write_id: str) -> None:
        self._target = target
        self._key = BatchKey(query_id=write_id, batch_id=0, is_write=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a partition."""
        return _Message(self._target.task(self._key).write(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Intent, publication, outcome."""
        self._target.commit(self._key, _staged_of(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged files of tasks if not all tasks have succeeded."""
        self._target.abort(messages)


class _StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a stream; Spark creates a new one in each process that needs it."""

    def __init__(self, target: _Target, checkpoint: str) -> None:
        self._target, self._checkpoint = target, checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a partition."""
        from pyspark import TaskContext  # noqa: PLC0415, in a task only

        context = TaskContext.get()
        assert context is not None, "in a task"
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        if not query_id or not batch_id:
            raise UsageError("Spark has not set the batch and the query that this task belongs to")
        key = BatchKey(query_id=query_id, batch_id=int(batch_id))
        return _Message(self._target.task(key).write(iterator), query_id, int(batch_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, Spark's name
        """Intent, publication, outcome."""
        results = [message for message in messages if isinstance(message, _Message)]
        if not results:
            return  # no task, so that there are no rows
        (query_id, batch_id), *others = sorted(
            {(result.query_id, result.batch_id) for result in results}
        )
        if others or batch_id != batchId:
            raise UsageError(
                f"tasks of batch {batchId} belong to batch {batch_id} of query {query_id}"
                + "".join(f", to {number} of query {name}" for name, number in others)
            )
        key = BatchKey(query_id=query_id, batch_id=batchId)
        self._target.commit(key, _staged_of(results), _ranges(self._checkpoint, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, as above
        """Delete the staged files of tasks if not all tasks have succeeded."""
        self._target.abort(messages)


def frame_writer(
    options: Mapping[str, str],
    schema: StructType,
    writers: Mapping[str, FileWriters],
    *,
    overwrite: bool,
) -> DataSourceArrowWriter:
    """Writer of `df.write.format("coordlog")`, which appends. For `DataSource.writer`.

    Args:
        options: Options of the write.
        schema: Columns of its rows.
        writers: Writers of the session's sinks, by `writers_name`.
        overwrite: Whether Spark is to replace the rows.

    A write with the option `write_id` is done once for each value of the option and each sink in the life of the job.

    Raises:
        UsageError: The write is to overwrite, several columns have one name, the driver has ended, or the session does
            not know the sink.
        OptionError: An option is missing or unknown.
    """
    _refuse_overwrite(schema, overwrite=overwrite)
    refuse_repeated_names(schema.names)
    for name, value in sorted(options.items()):
        if name.lower() not in _OPTIONS:
            known = ", ".join(map(repr, _OPTIONS))
            raise OptionError(
                name, value, f"one of {known}; options of the files belong to the sink"
            )
    write_id = options.get("write_id")
    if not write_id:
        return _FrameWriter(_Target.of(options, writers), unnamed_write(secrets.token_hex(8)))
    if not _WRITE_ID.fullmatch(write_id):
        raise OptionError(
            "write_id", write_id, "letters, digits, dots, hyphens and underscores, at most 64"
        )
    return _FrameWriter(_Target.of(options, writers), write_id)


def stream_writer(
    options: Mapping[str, str],
    schema: StructType,
    writers: Mapping[str, FileWriters],
    *,
    overwrite: bool,
) -> DataSourceStreamArrowWriter:
    """Writer of `df.writeStream.format("coordlog")`, which appends. For `DataSource.streamWriter`.

    Raises:
        UsageError, OptionError: As `frame_writer`.
    """
    _refuse_overwrite(schema, overwrite=overwrite)
    refuse_repeated_names(schema.names)
    # Spark passes names of options in lower case.
    lower = {name.lower(): value for name, value in options.items()}
    return _StreamWriter(_Target.of(options, writers), lower.get("checkpointlocation", ""))


def _ranges(checkpoint: str, batch_id: int) -> str:
    """`ranges_of` a batch, from a checkpoint on a disk of this machine; else empty: no JVM is at hand here."""
    location = _LOCATION.fullmatch(checkpoint)
    assert location is not None, "it matches any text"
    scheme, path = location.groups()
    if not path or scheme not in (None, "file"):
        return ""

    def read(name: str, end_bytes: int | None) -> bytes | None:
        file = Path(path, name)
        return file.read_bytes()[-(end_bytes or 0) :] if file.is_file() else None

    return fingerprint_of(batch_id, read)


def _refuse_overwrite(schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise UsageError(
            f"{len(schema.fields)} columns are to replace the existing rows, and committed rows stay: "
            'write with .mode("append"), a stream with .outputMode("append")'
        )
