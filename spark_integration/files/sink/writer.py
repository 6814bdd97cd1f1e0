"""The subtask's side of the Parquet sink: hidden files, there to stay before they are handed over."""

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
from coordlog.spark_integration.files.sink.destination import Destination, SettledSchema
from coordlog.spark_integration.files.sink.parquet_output import ParquetOutput
from coordlog.spark_integration.files.store.store import FileStore

__all__ = ["ParquetFileWriter", "ParquetWriterOptions"]

_COMMITTABLE = payload_type_of(StagedFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetWriterOptions:
    """All that a writer needs; pickles."""

    store: FileStore
    compression: str
    row_group_rows: int
    row_group_bytes: int
    partition_by: tuple[str, ...]
    roll_bytes: int
    roll_rows: int | None
    roll_s: float | None
    widens: bool
    open_files_max: int = OPEN_FILES_MAX


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
        """Held, or in its file."""
        return self.held_rows + (0 if self.output is None else self.output.rows)


class ParquetFileWriter(Operator):
    """Writes files, one partition's rows each, and closes all of them where an interval ends.

    An interval goes up to a barrier, the end of a split, or the end; one without rows makes no
    file. A file is closed earlier when it is long, old, or one of too many that are open. The
    writer keeps no state: a name is made of the attempt and a count, and an attempt's names are
    never another's. What is unfinished is removed by `close`, where that is still called.

    Args:
        options: Travel to the task.
        clock: Seconds; tells how old a file is, and decides nothing else.
        label: What its files' final names begin with: letters, digits, hyphens.
    """

    def __init__(
        self,
        options: ParquetWriterOptions,
        clock: Callable[[], float] = time.monotonic,
        *,
        label: str = "part",
    ) -> None:
        self._options, self._clock, self._label = options, clock, label
        self._destination = Destination(options.store)
        self._context: OperatorContext | None = None
        self._settled: SettledSchema | None = None
        self._count = 0
        self._open: dict[str, _OpenPartition] = {}
        """By folder, the longest unused first."""
        self._finished: list[bytes] = []

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """See that the destination is this job's, from this machine too."""
        self._context = context
        self._destination.check_owner(context.job_id)
        self._options.store.make_staging(context.driver_id)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Write `batch`; nothing goes on to a next operator."""
        if batch.num_rows:
            options = self._options
            rows = self._fitted(batch)
            for folder, piece in by_partition(self._destination.where, rows, options.partition_by):
                self._take(folder, piece)
        self._finish_old()
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """Close this interval's files."""
        return self._end_interval()

    def end_of_split(self, split_id: str) -> Snapshot:
        """Close this split's files."""
        return self._end_interval()

    def discard_split(self, split_id: str) -> None:
        """Hand over none of this split's files: all that are open or rolled are its own.

        Rolled ones keep their hidden names until the attempt's are cleaned.
        """
        self.close()
        self._finished = []

    def final_snapshot(self) -> Snapshot:
        """Close the last files."""
        return self._end_interval()

    def close(self) -> None:
        """Remove files that were not handed over."""
        partitions, self._open = self._open, {}
        for one in partitions.values():
            if one.output is not None:
                one.output.discard()

    # --- one schema -----------------------------------------------------------------------------
    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        widens, destination = self._options.widens, self._destination
        if self._settled is None:
            self._settled = destination.settle_schema(batch.schema, self._options.partition_by)
        while True:  # each round has a schema of a higher version
            settled = self._settled
            try:
                return fitted(batch, settled.columns, fills_missing=widens)
            except MisfitError as error:
                newest = destination.settled_schema(settled)
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
        for one in settled.partition_by:
            if columns.field(one).type != settled.columns.field(one).type:
                raise self._misfit(
                    f"partition column {one!r} is {other.field(one).type} and in the files "
                    f"{settled.columns.field(one).type}"
                )
        return self._destination.widen(settled, columns)

    def _misfit(self, differences: str) -> DestinationMisfitError:
        wider = "" if self._options.widens else "let the sink widen what can be (`--widen`), "
        return DestinationMisfitError(
            self._destination.where,
            f"a batch does not fit the files there: {differences}",
            "read all files with one schema (`--schemas one`, or `schema=` of the source), "
            f"{wider}cast the column in the transform, or write to another destination; if nothing has "
            f"been published yet, removing {self._destination.schema_file} settles it anew",
        )

    # --- partitions and files -------------------------------------------------------------------
    def _take(self, folder: str, rows: pa.RecordBatch) -> None:
        options = self._options
        while rows.num_rows:
            one = self._open.pop(folder, None) or self._begin(folder)
            self._open[folder] = one  # the last used stands last
            room = rows.num_rows if options.roll_rows is None else options.roll_rows - one.rows
            piece, rows = rows.slice(0, room), rows.slice(room)
            one.held.append(piece)
            one.held_rows += piece.num_rows
            one.held_bytes += piece.nbytes
            if one.rows == options.roll_rows:
                self._finish(folder)
            elif one.held_rows >= options.row_group_rows or one.held_bytes >= min(
                options.row_group_bytes, options.roll_bytes
            ):
                self._write_row_group(one)
        # What all partitions hold together is bounded as one row group is.
        while sum(one.held_bytes for one in self._open.values()) >= options.row_group_bytes:
            self._write_row_group(max(self._open.values(), key=lambda one: one.held_bytes))

    def _begin(self, folder: str) -> _OpenPartition:
        if len(self._open) >= self._options.open_files_max:
            self._finish(next(iter(self._open)))
        return _OpenPartition(folder=folder, since_s=self._clock())

    def _write_row_group(self, one: _OpenPartition) -> None:
        assert self._settled is not None, "rows are held only once there is a schema"
        if one.output is None:
            self._destination.check_reserve()
            one.name = self._name(one.folder)
            self._options.store.check_final(one.name.final)
            self._count += 1
            one.output = ParquetOutput(
                self._options.store.stage(one.name.staged),
                where=f"{self._destination.where}/{one.name.staged}",
                schema=one.held[0].schema,
                compression=self._options.compression,
            )
        one.output.write(pa.Table.from_batches(one.held))
        one.held, one.held_rows, one.held_bytes = [], 0, 0
        if one.output.size_bytes >= self._options.roll_bytes:
            self._finish(one.folder)
        else:
            self._destination.check_reserve()

    def _finish(self, folder: str) -> None:
        """Close the file of this partition; from here on it is a committable."""
        one = self._open[folder]
        if one.held:
            self._write_row_group(one)  # which may be the one after which it is closed
        if self._open.get(folder) is not one:
            return
        assert one.output is not None, "an open partition has rows"
        assert one.name is not None, "its file has a name"
        size_bytes, checksum = one.output.finish()
        del self._open[folder]
        staged = StagedFile(
            staged=one.name.staged,
            final=one.name.final,
            size_bytes=size_bytes,
            checksum=checksum,
            rows=one.output.rows,
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
        for one in list(self._open.values()):
            if now_s - one.since_s >= limit_s:
                self._finish(one.folder)

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
