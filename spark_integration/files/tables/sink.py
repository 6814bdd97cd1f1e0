"""What the sinks of tables share: files that are published as those of the Parquet sink, then added by one commit."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from coordlog.api.chain import OperatorSpec
from coordlog.api.coordinator import Sink
from coordlog.api.operator import Operator
from coordlog.errors import SinkError, UsageError
from coordlog.limits import (
    FILES_PER_INTENT,
    PARTITIONED_FILES_PER_INTENT,
    TABLE_COMMIT_TRIES,
    TABLE_COMMIT_WAIT_S,
)
from coordlog.log.interface import LogIdentity
from coordlog.schemas.payload import Payload
from coordlog.spark_integration.casts.given_schema import arrow_schema_of
from coordlog.spark_integration.files.names import HIDDEN, escaped
from coordlog.spark_integration.files.payloads import CommitToTable, FilesPublished
from coordlog.spark_integration.files.sink.destination import Destination, SchemaKeeper
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.sink.writer import ParquetFileWriter, ParquetWriterOptions
from coordlog.spark_integration.files.store.store import At, nowhere
from coordlog.spark_integration.files.tables.commits import TableCommitProvider
from coordlog.spark_integration.files.tables.schemas import (
    TableSchemas,
    check_identity,
    check_partitions,
)
from coordlog.spark_integration.files.tables.table import (
    Table,
    TableCommit,
    TableConflictError,
    TableLook,
    UnclearError,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["TableSink"]


class _TableFiles(ParquetSink):
    """The files of one job in a table, with a folder of their own for what is hidden."""

    def __init__(self, path: str, *, area: str, **options: Any) -> None:  # noqa: ANN401, those of `ParquetSink`
        super().__init__(path, **options)
        self._place(self._store.in_area(area))

    def prepare(self, job_id: str) -> None:
        """As in `ParquetSink`, for columns and partitions that the table decides."""
        self._destination.prepare(job_id)


@dataclass(slots=True)
class _Writers:
    """Makes the writers of a sink. The driver fills it in before it sends the chain to the tasks."""

    options: ParquetWriterOptions | None = None
    schemas: SchemaKeeper | None = None

    def __call__(self) -> Operator:
        assert self.options is not None, "`prepare` comes first"
        return ParquetFileWriter(self.options, schemas=self.schemas)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """The place of one job in the table."""

    job_id: str
    root: str
    """Folder or URL of the job's files."""
    files: ParquetSink
    destination: Destination


class TableSink(Sink):
    """Files in a folder of one job below a table's location, which the table's own commits add: see `IcebergSink`.

    Called as a `ParquetSink`, in the same order. Settling first looks for the mark of the intent in the table; so it
    may be repeated by any driver, at any time.

    Args:
        table: The table.
        schema: Columns of a table that does not exist yet.
        partition_by: Columns to partition a table by that has no columns yet.
        widen: Whether the table's columns are widened for the rows.
        files: Options of the files: those of a `ParquetSink`.
        pause: Called with the seconds to wait after a commit of another writer.

    Raises:
        OptionError: An option is out of range.
    """

    def __init__(
        self,
        table: Table,
        *,
        schema: pa.Schema | StructType | str | None,
        partition_by: Sequence[str],
        widen: bool,
        pause: Callable[[float], None] = time.sleep,
        **files: Any,  # noqa: ANN401, typed by the sinks of each format
    ) -> None:
        self._table, self._pause = table, pause
        self._columns = arrow_schema_of("schema", schema)
        self._make_files = partial(_TableFiles, widen=widen, **files)
        # It refuses what is out of range, and opens nothing.
        checked = ParquetSink(".", schema=self._columns, partition_by=partition_by, **files)
        self._partition_by = checked.writer_options.partition_by
        self._operator_id = "sink"
        self._writers = _Writers()
        self._prepared: _Prepared | None = None
        self._identity: str | None = None
        self._lock = threading.Lock()

    @property
    def destination(self) -> str:
        """The table, as a URL without credentials."""
        return self._table.where

    def spec(self, operator_id: str = "sink") -> OperatorSpec:
        """The sink as a link of a chain. It keeps nothing across splits."""
        self._operator_id = operator_id
        return OperatorSpec(
            operator_id=operator_id,
            create_operator=self._writers,
            coordinator=TableCommitProvider(
                operator_id,
                sink=self,
                files_per_intent=PARTITIONED_FILES_PER_INTENT
                if self._partition_by
                else FILES_PER_INTENT,
                destination=self.destination,
            ),
            keeps_state_across_splits=False,
        )

    def prepare(self, job_id: str) -> None:
        """Make the table, if it does not exist, and the job's folder in it, or check that both are this job's.

        Before any attempt starts.

        Raises:
            SinkError: The table cannot be read or made, is partitioned in another way, or was replaced by another of
                its name; or its location cannot be written.
            OutOfSpaceError: The folder would be new, and has less than 1 GiB free.
        """
        table = self._table.open(self._columns, self._partition_by)
        if self._partition_by and table.partition_by != self._partition_by:
            raise SinkError(
                self.destination,
                f"it is partitioned by {', '.join(table.partition_by) or 'nothing'}, the job by "
                f"{', '.join(self._partition_by)}",
                "leave `partition_by` out: files are written as the table has it",
            )
        # No job's id has a dot.
        place = f"{job_id}.{escaped(self._operator_id)}"
        check_partitions(self._table, table)
        if table.has_own_folders:
            root, area = f"{table.files_root}/coordlog-{place}", HIDDEN
        else:
            root, area = table.files_root, f"{HIDDEN}/{place}"
        files = self._make_files(path=root, area=area, partition_by=table.partition_by)
        files.prepare(job_id)
        destination = Destination(files.writer_options.store)
        check_identity(self._table, destination, table.identity)
        settled = destination.settled_schema()
        if table.columns is not None and (
            settled is None
            or settled.partition_by != table.partition_by
            or not settled.columns.equals(table.columns, check_metadata=True)
        ):
            destination.follow(settled, table.columns, table.partition_by)
        self._prepared = _Prepared(job_id=job_id, root=root, files=files, destination=destination)
        self._writers.schemas = TableSchemas(self._table, destination)
        keeps = self._table.keeps_partition_columns
        self._writers.options = replace(files.writer_options, keeps_partition_columns=keeps)

    def refuse_earlier_output(self, job_id: str) -> None:
        """Refuse a table with commits of an earlier history at the start of a job.

        Raises:
            SinkError: The table has rows that the job would write a second time.
        """
        self._files.refuse_earlier_output(job_id)
        number = self._look().settled(self._mark(0))
        if number is not None:
            raise SinkError(
                self.destination,
                f"it has {number + 1} commits of an earlier history of job {job_id!r} (mark "
                f"{self._mark(0)}), and the start of the job has none of them: rows would be written a second time",
                "use the log that the job had, or another job id",
            )

    def refuse_lost_output(self, job_id: str) -> None:
        """Refuse a table without a trace of the job, to which the job has committed. Before `claim`.

        Raises:
            SinkError: The table was removed, and made again.
        """
        self._files.refuse_lost_output(job_id)

    def claim(
        self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]] = ()
    ) -> None:
        """Check that no other log of a job of this id writes here, and store `log` as the writer: see `ParquetSink`.

        Raises:
            SinkError: Another log writes here; both are named.
        """
        self._files.claim(job_id, log, former)

    def is_taken(self) -> bool:
        """Whether the table exists.

        Raises:
            SinkError: The catalog cannot be read.
        """
        return self._table.exists()

    def settle(self, intent: Payload, *, at: At = nowhere) -> Payload:
        """Publish the files of the intent, and add them by one commit, unless the table has the mark of the intent.

        Any thread; may run twice at once, also in two drivers. `at` is called at each place at which a crash would
        leave files; tests crash there.

        Raises:
            SinkError: A file is gone or damaged, the table does not take it, or other writers have been faster each
                time.
            JobMovedError: The job was adopted since `claim`, and another log writes here.
        """
        assert isinstance(intent, CommitToTable), "intents are made by its coordinator"
        self._files.check_held()
        if not self._is_settled(intent):
            try:
                self._files.publish_files(intent.files, at=at)
            except SinkError:
                # Another driver has settled it meanwhile, and the table's owner has rewritten the files since.
                if not self._is_settled(intent):
                    raise
            else:
                with self._lock:  # commits of one process need not overtake each other
                    self._commit(intent, at)
        return FilesPublished(
            checkpoint_id=intent.checkpoint_id,
            file_count=len(intent.files),
            rows=sum(file.rows for file in intent.files),
            size_bytes=sum(file.size_bytes for file in intent.files),
        )

    def _look(self) -> TableLook:
        """The newest state of the table that the job's files belong to.

        Raises:
            SinkError: It was removed, or another has its name since.
        """
        look = self._table.look()
        if look.identity is None or look.identity != self._identity:
            check_identity(self._table, self._here.destination, look.identity)
            self._identity = look.identity
        return look

    def _is_settled(self, intent: CommitToTable) -> bool:
        number = self._look().settled(self._mark(intent.part))
        return number is not None and number >= intent.number

    def _commit(self, intent: CommitToTable, at: At) -> None:
        """Look, commit on what was seen, and look again until the mark is there.

        An unclear commit that is made later, after its look, is made before any other commit, or never: so the next
        look either sees it, or the commit on that look prevents it.
        """
        prepared, mark = self._here, self._mark(intent.part)
        commit = TableCommit(
            mark=mark,
            number=intent.number,
            root=prepared.root,
            files=intent.files,
            properties={
                "coordlog.job": prepared.job_id,
                "coordlog.operator": self._operator_id,
                "coordlog.epoch": str(intent.epoch),
                "coordlog.checkpoint": str(intent.checkpoint_id),
                "coordlog.intent": f"{intent.number}.{intent.part}",
            },
        )
        last: Exception | None = None
        for tries in range(TABLE_COMMIT_TRIES):
            look = self._look()
            number = look.settled(mark)
            if number is not None and number >= intent.number:
                return
            at(f"before commit {intent.number}.{intent.part}")
            try:
                look.commit(commit, at=at)
            except (TableConflictError, UnclearError) as error:
                last = error
                longest_s = min(TABLE_COMMIT_WAIT_S, 0.05 * 2**tries)
                self._pause(random.uniform(0, longest_s))  # noqa: S311, so that two writers do not meet again
            else:
                at(f"after commit {intent.number}.{intent.part}")
                return
        if self._is_settled(intent):
            return
        raise SinkError(
            self.destination,
            f"{TABLE_COMMIT_TRIES} tries to commit checkpoint {intent.checkpoint_id} have failed, the last with: "
            f"{' '.join(str(last).split())[:500]}",
            "see which other programs write to the table, and whether its catalog answers",
        ) from last

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """Delete the staged files of an attempt that is over, but `keep`: see `ParquetSink.clean`."""
        self._files.clean(
            driver_id=driver_id, subtask=subtask, attempt_number=attempt_number, keep=keep
        )

    def sweep(
        self,
        *,
        keep: AbstractSet[str] = frozenset(),
        is_in_force: Callable[[], bool] = lambda: True,
    ) -> None:
        """Delete all staged files of the job but those in `keep`: see `ParquetSink.sweep`."""
        self._files.sweep(keep=keep, is_in_force=is_in_force)

    def staged_names(self, committables: Sequence[bytes]) -> frozenset[str]:
        """Names that `clean` and `sweep` must keep as long as the log holds these committables."""
        return self._files.staged_names(committables)

    def intent_names(self, intent: Payload) -> frozenset[str]:
        """Names that `clean` and `sweep` must keep as long as the intent has no outcome."""
        return frozenset(file.staged for file in cast("CommitToTable", intent).files)

    def _mark(self, part: int) -> str:
        """Name of the mark of the intents with this number in their checkpoints.

        Those of one checkpoint are settled at once, in any order, and those of the next only afterwards: so each of
        these marks grows.
        """
        end = f"/{part}" if part else ""
        return f"coordlog.commits.{self._here.job_id}.{escaped(self._operator_id)}{end}"

    @property
    def _here(self) -> _Prepared:
        if self._prepared is None:
            raise UsageError(f"{self.destination}: `prepare` comes first")
        return self._prepared

    @property
    def _files(self) -> ParquetSink:
        return self._here.files
