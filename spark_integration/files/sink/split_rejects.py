"""Rejects of a source that queries read: a file for each split with bad rows, published once.

Queries have no checkpoints, and a split may be read again, by tasks that are tried again or by other queries. So the
name of a file follows from its split alone, and so does its content: who reads the split first, publishes it, and
each later reader finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import pyarrow as pa

from coordlog.coordinators.query_rejects import TaskName
from coordlog.errors import SinkError
from coordlog.limits import SPLIT_REJECTS_GROUP_ROWS
from coordlog.log.interface import LogIdentity
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.files.names import HIDDEN, STAGING
from coordlog.spark_integration.files.payloads import StagedFile
from coordlog.spark_integration.files.sink.parquet_output import ParquetOutput
from coordlog.spark_integration.files.sink.rejects import RejectsSink
from coordlog.spark_integration.files.store.store import At, FileStore, nowhere

__all__ = ["SplitRejects", "SplitRejectsPlace", "SplitRejectsWriter", "name_of"]

_log = logging.getLogger(__name__)

_RULES: Final = f"{HIDDEN}/read-as.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRejectsPlace:
    """Folder of the rejects, as tasks use it. Pickles."""

    store: FileStore
    schema: pa.Schema
    service_id: str
    """Random id of the service: staged names of two services differ."""

    def writer(self, task: TaskName) -> SplitRejectsWriter:
        """A writer for one task."""
        return SplitRejectsWriter(self, task)


class SplitRejects:
    """The folder of a source's rejects, in the process of the service.

    Args:
        sink: Sink of the source's option `bad_rows`.
        schema: Columns of the rejects.
        rules: Options of the source that decide which rows are bad, as text.
    """

    def __init__(self, sink: RejectsSink, schema: pa.Schema, rules: str) -> None:
        self._sink, self._schema, self._rules = sink, schema, rules

    @property
    def destination(self) -> str:
        """The folder: an absolute path, or a URL without credentials."""
        return self._sink.destination

    def prepare(self, job_id: str) -> None:
        """Make the folder the job's, or check that it is, and that its rejects are of the same rules.

        Raises:
            SinkError: It is another job's, cannot be written, or has rejects of other options.
        """
        self._sink.prepare(job_id)
        store = self._sink.writer_options.store
        store.write_once(_RULES, self._rules.encode())
        recorded = (store.read(_RULES) or b"").decode()
        if recorded != self._rules:
            raise SinkError(
                self.destination,
                f"its rejects are of a source that was read with {recorded}; this one is read with {self._rules}, so "
                "that other rows are bad",
                "use the options of before, or another folder",
            )

    def claim(
        self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]], service_id: str
    ) -> SplitRejectsPlace:
        """Check that no other log of this job writes there; then remove what killed tasks have left.

        Call it once the service's epoch is in force: tasks of an earlier service get no more splits.

        Raises:
            SinkError: Another log of a job of this id writes there.
        """
        self._sink.claim(job_id, log, former)
        self._sink.sweep()
        return SplitRejectsPlace(
            store=self._sink.writer_options.store, schema=self._schema, service_id=service_id
        )


class SplitRejectsWriter:
    """Writes the rejects of the splits of one task, one split after the other. One thread.

    Call `add` for the rejects of a split, then `publish` at its end; `discard` in any case after the last split.
    """

    def __init__(self, place: SplitRejectsPlace, task: TaskName) -> None:
        self._place, self._task = place, task
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._output: ParquetOutput | None = None
        self._count = 0

    def add(self, rejects: pa.RecordBatch) -> None:
        """Take rejects of the present split; memory holds those of one row group."""
        self._held.append(rejects.replace_schema_metadata(None))
        self._held_rows += rejects.num_rows
        while self._held_rows >= SPLIT_REJECTS_GROUP_ROWS:
            self._write_group(SPLIT_REJECTS_GROUP_ROWS)

    def publish(self, split: Split, *, at: At = nowhere) -> None:
        """Publish the rejects of the split, which was read to its end; nothing if it has none.

        If the split has rejects already, those stay: they differ if a topic was compacted meanwhile, or if another
        version of the Parquet library has written them.

        Raises:
            SinkError: The store refuses.
        """
        if self._held_rows:
            self._write_group(self._held_rows)
        if self._output is None:
            return
        output, staged = self._output, self._staged
        size_bytes, checksum = output.finish()
        self._output = None
        self._count += 1
        file = StagedFile(
            staged=staged,
            final=name_of(split),
            size_bytes=size_bytes,
            checksum=checksum,
            rows=output.rows,
        )
        try:
            self._place.store.publish([file], at=at)
        except SinkError:
            if self._place.store.read(file.final) is None:
                raise
            _log.warning("%s: an earlier read has other rejects, which stay", split.split_id)
            self._place.store.clean(
                driver_id=self._place.service_id,
                subtask=self._task.task_attempt_id,
                attempt_number=self._task.attempt_number,
                keep=frozenset(),
            )

    def discard(self) -> None:
        """Remove the rejects of a split that was not read to its end."""
        self._held, self._held_rows = [], 0
        output, self._output = self._output, None
        if output is not None:
            output.discard()

    def _write_group(self, rows: int) -> None:
        """Write so many rows as a row group: batches of any size make the same file."""
        held = pa.Table.from_batches(self._held).combine_chunks()
        rest = held.slice(rows)
        self._held, self._held_rows = rest.to_batches(), rest.num_rows
        if self._output is None:
            store = self._place.store
            store.make_staging(self._place.service_id)
            self._output = ParquetOutput(
                store.stage(self._staged),
                where=f"{store.where}/{self._staged}",
                schema=self._place.schema,
                compression="zstd",
            )
        # A copy: the slice of a table would be written with the offsets of its place.
        self._output.write(held.slice(0, rows).take(pa.array(range(rows), pa.int64())))

    @property
    def _staged(self) -> str:
        task = self._task
        numbers = f"{task.task_attempt_id}-{task.attempt_number}-{self._count}"
        return f"{STAGING}/{self._place.service_id}/{numbers}.parquet"


def name_of(split: Split) -> str:
    """Name of the file of a split's rejects: a changed file, and another cut of it, is another split."""
    content = len(split.split_id).to_bytes(4) + split.split_id.encode() + split.content
    return f"rejects-{blake2b(content, digest_size=16).hexdigest()}.parquet"
