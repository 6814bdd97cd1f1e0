"""What the sinks of tables share: files that are published as those of the Parquet sink, then added by one commit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from coordlog.api.chain import OperatorSpec
from coordlog.api.coordinator import Sink
from coordlog.api.operator import Operator
from coordlog.errors import SinkError
from coordlog.limits import FILES_PER_INTENT
from coordlog.log.interface import LogIdentity
from coordlog.schemas.payload import Payload
from coordlog.spark_integration.casts.given_schema import arrow_schema_of
from coordlog.spark_integration.files.payloads import CommitToTable, FilesPublished
from coordlog.spark_integration.files.sink.writer import FileWriters
from coordlog.spark_integration.files.store.store import At, nowhere
from coordlog.spark_integration.files.tables.commits import TableCommitProvider
from coordlog.spark_integration.files.tables.table import Table
from coordlog.spark_integration.files.tables.table_files import Addition, TableFiles

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["TableSink"]


@dataclass(slots=True)
class _Writers:
    """Makes the writers of a sink. The driver fills it in before it sends the chain to the tasks."""

    writers: FileWriters | None = None

    def __call__(self) -> Operator:
        assert self.writers is not None, "`prepare` comes first"
        return self.writers()


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
        **files: Any,  # noqa: ANN401, typed by the sinks of each format
    ) -> None:
        self._files = TableFiles(
            table,
            operator_id="sink",
            columns=arrow_schema_of("schema", schema),
            partition_by=partition_by,
            options={"widen": widen, **files},
        )
        self._writers = _Writers()

    @property
    def destination(self) -> str:
        """The table, as a URL without credentials."""
        return self._files.where

    def files_of(self, operator_id: str) -> TableFiles:
        """The files of another operator in the same table, with the same options; not prepared."""
        return self._files.of_operator(operator_id)

    def apart(self) -> Self:
        """A sink of the same table and options, not prepared: jobs that run at once need one each."""
        sink = copy(self)
        sink._files, sink._writers = self.files_of(self._files.operator_id), _Writers()  # noqa: SLF001, of the same class
        return sink

    def spec(self, operator_id: str = "sink") -> OperatorSpec:
        """The sink as a link of a chain. It keeps nothing across splits."""
        self._files.operator_id = operator_id
        return OperatorSpec(
            operator_id=operator_id,
            create_operator=self._writers,
            coordinator=TableCommitProvider(
                operator_id,
                sink=self,
                files_per_intent=FILES_PER_INTENT,
                destination=self.destination,
                refuse_commits_from=self._refuse_commits_from,
            ),
            keeps_state_across_splits=False,
            takes_all_rows=True,
        )

    def prepare(self, job_id: str) -> None:
        """Make the table, if it does not exist, and the job's folder in it, or check that both are this job's.

        Before any attempt starts.

        Raises:
            SinkError: The table cannot be read or made, is partitioned in another way, or was replaced by another of
                its name; or its location cannot be written.
            OutOfSpaceError: The folder would be new, and has less than 1 GiB free.
        """
        self._files.prepare(job_id)
        self._writers.writers = self._files.writers

    def refuse_earlier_output(self, job_id: str) -> None:
        """Refuse a table with commits of an earlier history at the start of a job.

        Raises:
            SinkError: The table has rows that the job would write a second time.
        """
        self._files.refuse_earlier_output(job_id)
        self._refuse_commits_from(job_id, 0)

    def _refuse_commits_from(self, job_id: str, following: int) -> None:
        """Refuse a table with commits that the log has not: those of the next checkpoints would be taken for done.

        Args:
            job_id: The job.
            following: Number of the next commit by the log.
        """
        # Each part has its own: a driver may have died after any of them.
        marks = self._files.settled_in_turn(map(_mark, itertools.count()))
        unknown = {mark: number for mark, number in marks.items() if number >= following}
        if unknown:
            newest = max(unknown.values())
            named = ", ".join(
                f"mark {self._files.mark(mark)} is {number}" for mark, number in unknown.items()
            )
            raise SinkError(
                self.destination,
                f"it has {newest + 1 - following} commits of job {job_id!r} that its log has not: "
                f"{named}, and the log's next commit is number {following}; rows "
                "would be written a second time, or be taken for committed and be lost",
                "use the log that the job had, or another job id with another table",
            )

    def refuse_lost_output(self, job_id: str) -> None:
        """Refuse a table without a trace of the job, to which the job has committed. Before `claim`.

        Raises:
            SinkError: The table was removed, and made again.
        """
        self._files.refuse_lost_output(job_id)

    def refuse_lost_commits(self, operator_id: str) -> None:
        """Refuse a table without a mark of another operator of the job, which has committed to it. Before `claim`.

        Raises:
            SinkError: The table was removed, and made again.
        """
        self._files.refuse_lost_commits(operator_id)

    def claim(
        self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]] = ()
    ) -> None:
        """Check that no other log of a job of this id writes here, and store `log` as the writer: see `ParquetSink`.

        Raises:
            SinkError: Another log writes here; both are named. Or it is gone, and the table has its rows.
        """
        self._files.claim(
            job_id, log, former, refuse_earlier_output=lambda: self._refuse_commits_from(job_id, 0)
        )

    def is_taken(self, job_id: str) -> bool:
        """Whether the table exists, and this job has begun to write there.

        Raises:
            SinkError: The table cannot be read.
        """
        return self._files.is_of(job_id)

    def jobs(self) -> frozenset[str]:
        """Ids of the jobs that have committed to the table.

        Raises:
            SinkError: The table cannot be read.
        """
        return self._files.jobs()

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
        self._files.add(_addition(intent), at=at)
        return FilesPublished(
            checkpoint_id=intent.checkpoint_id,
            file_count=len(intent.files),
            rows=sum(file.rows for file in intent.files),
            size_bytes=sum(file.size_bytes for file in intent.files),
        )

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


def _addition(intent: CommitToTable) -> Addition:
    name = f"{intent.number}.{intent.part}"
    return Addition(
        mark=_mark(intent.part),
        number=intent.number,
        files=intent.files,
        name=name,
        subject=f"checkpoint {intent.checkpoint_id}",
        description={
            "coordlog.epoch": str(intent.epoch),
            "coordlog.checkpoint": str(intent.checkpoint_id),
            "coordlog.intent": name,
        },
    )


def _mark(part: int) -> str:
    """Name of the mark of the intents with this number in their checkpoints.

    Those of one checkpoint are settled at once, in any order, and those of the next only afterwards: so each of
    these marks grows.
    """
    return str(part) if part else ""
