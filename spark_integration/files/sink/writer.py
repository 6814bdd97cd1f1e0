"""The subtask's side of the Parquet sink: hidden files, durable before they are handed over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from coordlog.api.operator import Operator, OperatorContext, Snapshot
from coordlog.errors import DestinationMisfitError, SinkError
from coordlog.limits import INTERVAL_NAMES_BYTES_MAX, OPEN_FILES_MAX
from coordlog.schemas.payload import payload_type_of
from coordlog.spark_integration.files.formats.compatibility import MisfitError, fitted, widened
from coordlog.spark_integration.files.names import StagedName
from coordlog.spark_integration.files.partitions import by_partition
from coordlog.spark_integration.files.payloads import StagedFile
from coordlog.spark_integration.files.sink.destination import (
    Destination,
    SchemaKeeper,
    SettledSchema,
)
from coordlog.spark_integration.files.sink.parquet_output import ParquetOutput
from coordlog.spark_integration.files.store.store import FileStore

__all__ = ["FileWriters", "ParquetFileWriter", "ParquetWriterOptions"]

_COMMITTABLE = payload_type_of(StagedFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetWriterOptions:
    """Options of a writer. Pickles."""

    store: FileStore
    compression: str
    row_group_rows: int
    row_group_bytes: int
    partition_by: tuple[str, ...]
    roll_bytes: int
    roll_rows: int | None
    roll_s: float | None
    widens: bool
    keeps_partition_columns: bool = False
    """Whether files hold the partition columns too, as those of tables do."""
    open_files_max: int = OPEN_FILES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWriters:
    """Makes the writers of a destination's files, in tasks. Pickles."""

    options: ParquetWriterOptions
    schemas: SchemaKeeper | None = None
    """Keeper of the files' schema; None: the destination itself."""

    def __call__(self, label: str = "part") -> ParquetFileWriter:
        """A writer; `label` as in `ParquetFileWriter`."""
        return ParquetFileWriter(self.options, label=label, schemas=self.schemas)


@dataclass(slots=True, eq=False)
class _OpenPartition:
    """The rows of one partition since its last file was closed."""

    folder: str
    since_s: float
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_rows: int = 0
    held_bytes: int = 0
    output: ParquetOutput | None = None
    name: StagedName | None = None

    @property
    def rows(self) -> int:
        """Number of rows, held or in the open file."""
        return self.held_rows + (0 if self.output is None else self.output.rows)


class ParquetFileWriter(Operator):
    """Writes files, one partition's rows each, and closes all of them at the end of an interval.

    An interval ends at a barrier, at the end of a split or of several small ones, or at the end of the input;
    an interval without rows makes no file. A file is closed earlier if it is long or old, or if too many are
    open. The writer keeps no state: a name is made of the attempt and a count, so that two attempts
    never share a name. `close` removes unfinished files, if it is still called.

    Args:
        options: Sent to the task.
        clock: Seconds; used for the age of a file alone.
        label: Prefix of the files' final names: letters, digits, hyphens.
        schemas: Keeper of the files' schema; None: the destination itself.
    """

    def __init__(
        self,
        options: ParquetWriterOptions,
        clock: Callable[[], float] = time.monotonic,
        *,
        label: str = "part",
        schemas: SchemaKeeper | None = None,
    ) -> None:
        self._options, self._clock, self._label = options, clock, label
        self._destination = Destination(options.store)
        self._schemas: SchemaKeeper = schemas or self._destination
        self._context: OperatorContext | None = None
        self._settled: SettledSchema | None = None
        self._count = 0
        self._open: dict[str, _OpenPartition] = {}
        """Open partitions by folder, the least recently used first."""
        self._finished: list[bytes] = []

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Check that the destination is this job's, as seen from this machine too."""
        self._context = context
        self._destination.check_owner(context.job_id)
        self._options.store.make_staging(context.driver_id)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Write `batch`; emits no rows."""
        if batch.num_rows:
            options = self._options
            rows = self._fitted(batch)
            for folder, piece in by_partition(
                self._destination.where,
                rows,
                options.partition_by,
                keeps_columns=options.keeps_partition_columns,
            ):
                self._take(folder, piece)
        self._finish_old()
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """Close this interval's files."""
        return self._end_interval()

    def end_of_split(self, split_id: str) -> Snapshot:
        """Close this split's files."""
        return self._end_interval()

    def takes_more_splits(self) -> bool:
        """Whether no file is closed yet. Else many splits of many partitions would have too many files for a record."""
        return not self._finished

    def discard_split(self, split_id: str) -> None:
        """Hand over none of this split's files: all open and rolled files are of this split.

        Rolled files keep their hidden names until the attempt's files are cleaned.
        """
        self.close()
        self._finished = []

    def final_snapshot(self) -> Snapshot:
        """Close the last files."""
        return self._end_interval()

    def close(self) -> None:
        """Remove files that were not handed over."""
        partitions, self._open = self._open, {}
        for partition in partitions.values():
            if partition.output is not None:
                partition.output.discard()

    # --- one schema -----------------------------------------------------------------------------
    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        widens, schemas = self._options.widens, self._schemas
        if self._settled is None:
            self._settled = schemas.settle_schema(batch.schema, self._options.partition_by)
        while True:  # each round has a schema of a higher version
            settled = self._settled
            try:
                return fitted(batch, settled.columns, fills_missing=widens)
            except MisfitError as error:
                newest = schemas.settled_schema(settled)
                if newest is None and widens:
                    newest = self._widened(settled, batch.schema)
                if newest is None:
                    raise self._misfit(str(error)) from error
            for folder in list(self._open):
                self._finish(folder)  # a file has one schema
            self._settled = newest

    def _widened(self, settled: SettledSchema, other: pa.Schema) -> SettledSchema | None:
        try:
            columns = widened(settled.columns, other)
        except MisfitError as error:
            raise self._misfit(str(error)) from error
        if columns.equals(settled.columns):
            return None
        for column in settled.partition_by:
            if columns.field(column).type != settled.columns.field(column).type:
                raise self._misfit(
                    f"partition column {column!r} is {other.field(column).type} and in the files "
                    f"{settled.columns.field(column).type}"
                )
        return self._schemas.widen(settled, columns)

    def _misfit(self, differences: str) -> DestinationMisfitError:
        wider = "" if self._options.widens else "let the sink widen its schema (`widen=True`), "
        return DestinationMisfitError(
            self._destination.where,
            f"a batch is not compatible with the files there: {differences}",
            "read all files with one schema (`schemas='one'`, or `schema=` of the source), "
            f"{wider}cast the column in the transform, or write to another destination; if nothing has "
            f"been published yet, {self._schemas.settling_anew}",
        )

    # --- partitions and files -------------------------------------------------------------------
    def _take(self, folder: str, rows: pa.RecordBatch) -> None:
        options = self._options
        while rows.num_rows:
            partition = self._open.pop(folder, None) or self._begin(folder)
            self._open[folder] = partition  # the last used is last
            room = (
                rows.num_rows if options.roll_rows is None else options.roll_rows - partition.rows
            )
            piece, rows = rows.slice(0, room), rows.slice(room)
            partition.held.append(piece)
            partition.held_rows += piece.num_rows
            partition.held_bytes += piece.nbytes
            if partition.rows == options.roll_rows:
                self._finish(folder)
            elif partition.held_rows >= options.row_group_rows or partition.held_bytes >= min(
                options.row_group_bytes, options.roll_bytes
            ):
                self._write_row_group(partition)
        # The limit of a row group holds for all partitions together.
        while sum(each.held_bytes for each in self._open.values()) >= options.row_group_bytes:
            self._write_row_group(max(self._open.values(), key=lambda each: each.held_bytes))

    def _begin(self, folder: str) -> _OpenPartition:
        if len(self._open) >= self._options.open_files_max:
            self._finish(next(iter(self._open)))
        return _OpenPartition(folder=folder, since_s=self._clock())

    def _write_row_group(self, partition: _OpenPartition) -> None:
        assert self._settled is not None, "rows are held only once there is a schema"
        if partition.output is None:
            self._destination.check_reserve()
            partition.name = self._name(partition.folder)
            self._options.store.check_final(partition.name.final)
            self._count += 1
            partition.output = ParquetOutput(
                self._options.store.stage(partition.name.staged),
                where=f"{self._destination.where}/{partition.name.staged}",
                schema=partition.held[0].schema,
                compression=self._options.compression,
            )
        partition.output.write(pa.Table.from_batches(partition.held))
        partition.held, partition.held_rows, partition.held_bytes = [], 0, 0
        if partition.output.size_bytes >= self._options.roll_bytes:
            self._finish(partition.folder)
        else:
            self._destination.check_reserve()

    def _finish(self, folder: str) -> None:
        """Close the file of this partition, and make it a committable."""
        partition = self._open[folder]
        if partition.held:
            self._write_row_group(partition)  # may close the file itself, if it is long enough
        if self._open.get(folder) is not partition:
            return
        assert partition.output is not None, "an open partition has rows"
        assert partition.name is not None, "an open file has a name"
        size_bytes, checksum = partition.output.finish()
        del self._open[folder]
        staged = StagedFile(
            staged=partition.name.staged,
            final=partition.name.final,
            size_bytes=size_bytes,
            checksum=checksum,
            rows=partition.output.rows,
        )
        self._finished.append(_COMMITTABLE.encode(staged))
        size = sum(map(len, self._finished))
        if size > INTERVAL_NAMES_BYTES_MAX:
            raise SinkError(
                self._destination.where,
                f"{len(self._finished)} files since the last checkpoint or split: their names have "
                f"{size:,} bytes, and the log takes {INTERVAL_NAMES_BYTES_MAX:,} at a time",
                "partition by columns with fewer values, sort by them before, roll later, or take "
                "checkpoints more often",
            )

    def _finish_old(self) -> None:
        limit_s = self._options.roll_s
        if limit_s is None:
            return
        now_s = self._clock()
        for partition in list(self._open.values()):
            if now_s - partition.since_s >= limit_s:
                self._finish(partition.folder)

    def _end_interval(self) -> Snapshot:
        for folder in sorted(self._open):
            self._finish(folder)
        committables, self._finished = tuple(self._finished), []
        return Snapshot(committables=committables)

    def _name(self, folder: str) -> StagedName:
        context = self._context
        assert context is not None, "`open` comes first"
        return StagedName(
            job_id=context.job_id,
            driver_id=context.driver_id,
            subtask=context.subtask,
            attempt_number=context.attempt_number,
            count=self._count,
            folder=folder,
            label=self._label,
        )
