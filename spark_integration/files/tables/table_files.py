"""The files of one operator of a job in a table: staged, published, and added by the table's own commits, each once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from coordlog.errors import SinkError, UsageError
from coordlog.limits import TABLE_COMMIT_TRIES, TABLE_COMMIT_WAIT_S, TABLE_MARKS_MISSING
from coordlog.log.interface import LogIdentity
from coordlog.spark_integration.files.names import HIDDEN, escaped
from coordlog.spark_integration.files.payloads import StagedFile
from coordlog.spark_integration.files.sink.destination import Destination
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.sink.writer import FileWriters
from coordlog.spark_integration.files.store.durable import refuse_no_space
from coordlog.spark_integration.files.store.log_claims import Claim, check_held, claim_for
from coordlog.spark_integration.files.store.store import At, nowhere
from coordlog.spark_integration.files.tables.schemas import (
    TableSchemas,
    check_identity,
    check_partitions,
    check_same,
)
from coordlog.spark_integration.files.tables.table import (
    MARKS,
    OpenedTable,
    Table,
    TableCommit,
    TableConflictError,
    TableLook,
    UnclearError,
    has_reached,
)

__all__ = ["Addition", "TableFiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """Files that one commit adds to a table, unless the table knows the addition by its mark."""

    mark: str
    """Name of the mark among those of its operator; empty for the first."""
    number: int
    """Value of the mark, which only grows: a table with this one or a higher one has the files."""
    refusal: int | None = None
    """Value of the mark of refusals: a table with this one or a higher one has none of the files, and never will. None
    if the files are never refused for good."""
    files: Sequence[StagedFile]
    name: str
    """Short name, unique in the operator."""
    subject: str
    """Name in messages: `checkpoint 7`."""
    description: Mapping[str, str]
    """Description of the commit, for people, without the job and the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """The folder of one operator in the table."""

    job_id: str
    root: str
    """Folder or URL of the job's files."""
    files: ParquetSink
    destination: Destination
    of_job: Destination
    """Keeps the claims of the job, which all its operators share: its sink may get another id."""
    writers: FileWriters


class _JobFiles(ParquetSink):
    """The files of one job in a table, with a folder of their own for what is hidden."""

    def __init__(self, path: str, *, area: str, **options: Any) -> None:  # noqa: ANN401, those of `ParquetSink`
        super().__init__(path, **options)
        self._place(self._store.in_area(area))

    def prepare(self, job_id: str) -> None:
        """As in `ParquetSink`, for columns and partitions that the table decides."""
        self._destination.prepare(job_id)


class _PlaceInTable(Destination):
    """A job's hidden files in a table, which has rows of others too."""

    @property
    def release(self) -> str:
        """See `ClaimKeeper`."""
        return "another job id"


class TableFiles:
    """Files in a folder of one job below a table's location, which the table's own commits add.

    `prepare` comes first, then `claim`. An addition may be repeated by any driver, at any time: the table is searched
    for its mark first.

    Args:
        table: The table.
        operator_id: Id of the operator that writes; may be changed until `prepare`.
        columns: Columns of a table that does not exist yet; None for those of the first rows.
        partition_by: Columns to partition a table by that has no columns yet.
        options: Options of the files: those of a `ParquetSink`, and `widen`.
        pause: Called with the seconds to wait after a commit of another writer.

    Raises:
        OptionError: An option is out of range.
    """

    def __init__(
        self,
        table: Table,
        *,
        operator_id: str,
        columns: pa.Schema | None,
        partition_by: Sequence[str],
        options: Mapping[str, Any],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.operator_id, self.pause = operator_id, pause
        self._table, self._columns = table, columns
        self._make_files = partial(_JobFiles, **options)
        # It refuses what is out of range, and opens nothing.
        checked = ParquetSink(".", schema=columns, partition_by=partition_by, **options)
        self.partition_by = checked.writer_options.partition_by
        """Columns to partition a new table by."""
        self._again = partial(
            TableFiles, table, columns=columns, partition_by=self.partition_by, options=options
        )
        self._prepared: _Prepared | None = None
        self._identity: str | None = None
        self._lock = threading.Lock()
        self._held: Claim | None = None
        self._begins_anew = False

    def of_operator(self, operator_id: str) -> TableFiles:
        """The files of another operator, with the same options; not prepared."""
        return self._again(operator_id=operator_id, pause=self.pause)

    @property
    def where(self) -> str:
        """The table, as a URL without credentials."""
        return self._table.where

    @property
    def writers(self) -> FileWriters:
        """Makes the writers of the files, in tasks. Pickles; after `prepare`."""
        return self._here.writers

    def prepare(self, job_id: str) -> None:
        """Make the table, if it does not exist, and the operator's folder in it, or check that both are this job's.

        Raises:
            SinkError: The table cannot be read or made, is partitioned in another way, or was replaced by another of
                its name; or its location cannot be written.
            OutOfSpaceError: The folder would be new, and has less than 1 GiB free.
        """
        table = self._table.open(self._columns, self.partition_by)
        if self.partition_by and table.partition_by != self.partition_by:
            raise SinkError(
                self.where,
                f"it is partitioned by {', '.join(table.partition_by) or 'nothing'}, the job by "
                f"{', '.join(self.partition_by)}",
                "leave `partition_by` out: files are written as the table has it",
            )
        check_partitions(self._table, table)
        root, area = self._folders(table, job_id)
        files = self._make_files(path=root, area=area, partition_by=table.partition_by)
        files.prepare(job_id)
        destination = _PlaceInTable(files.writer_options.store)
        check_identity(self._table, destination, table.identity)
        self._identity = table.identity
        settled = destination.settled_schema()
        if table.columns is not None and (
            settled is None
            or settled.partition_by != table.partition_by
            or not settled.columns.equals(table.columns, check_metadata=True)
        ):
            destination.follow(settled, table.columns, table.partition_by)
        of_job = self._make_files(path=table.files_root, area=f"{HIDDEN}/{job_id}").writer_options
        keeps = self._table.keeps_partition_columns
        writers = FileWriters(
            options=replace(files.writer_options, keeps_partition_columns=keeps),
            schemas=TableSchemas(self._table, destination),
        )
        self._prepared = _Prepared(
            job_id=job_id,
            root=root,
            files=files,
            destination=destination,
            of_job=_PlaceInTable(of_job.store),
            writers=writers,
        )

    def _folders(self, table: OpenedTable, job_id: str) -> tuple[str, str]:
        """Folder of the operator's files, and name of that of its hidden ones."""
        # No job's id has a dot.
        place = f"{job_id}.{escaped(self.operator_id)}"
        if table.has_own_folders:
            return f"{table.files_root}/coordlog-{place}", HIDDEN
        return table.files_root, f"{HIDDEN}/{place}"

    def is_of(self, job_id: str) -> bool:
        """Whether the table exists, and the operator of this job has a folder in it. May be called before `prepare`.

        Raises:
            SinkError: The table cannot be read.
        """
        if not self._table.exists():
            return False
        root, area = self._folders(self._table.open(None, ()), job_id)
        return Destination(self._make_files(path=root, area=area).writer_options.store).has_owner()

    def jobs(self) -> frozenset[str]:
        """Ids of the jobs that have committed to the table. May be called before `prepare`.

        Raises:
            SinkError: The table cannot be read.
        """
        return self._table.look().jobs() if self._table.exists() else frozenset()

    def mark(self, name: str) -> str:
        """Full name of a mark of this operator."""
        end = f"/{name}" if name else ""
        return self._mark_of(self.operator_id) + end

    def _mark_of(self, operator_id: str) -> str:
        return f"{MARKS}{self._here.job_id}.{escaped(operator_id)}"

    def settled(self, mark: str) -> int | None:
        """Value of a mark of this operator; None if the table has none of this name.

        Raises:
            SinkError: The table cannot be read, or is another one.
        """
        return self._look().settled(self.mark(mark))

    def settled_in_turn(self, marks: Iterable[str]) -> dict[str, int]:
        """Values of the marks that the table has, in one look, up to `TABLE_MARKS_MISSING` missing ones in a row.

        Raises:
            SinkError: The table cannot be read, or is another one.
        """
        look, numbers, missing = self._look(), dict[str, int](), 0
        for mark in marks:
            number = look.settled(self.mark(mark))
            if number is not None:
                numbers[mark], missing = number, 0
            elif (missing := missing + 1) == TABLE_MARKS_MISSING:
                break
        return numbers

    def claim(
        self,
        job_id: str,
        log: LogIdentity,
        former: Collection[tuple[str, str]],
        *,
        refuse_earlier_output: Callable[[], None],
    ) -> None:
        """Check that no other log of a job of this id writes here, and store `log` as the writer: see `ParquetSink`.

        Args:
            job_id: The job.
            log: The job's log.
            former: Cluster id and topic id of each log that the job has left, by `coordlog adopt`.
            refuse_earlier_output: Called if the log's topic was made again: raises SinkError if this operator has
                written with the former one, because its rows would be written twice.

        Raises:
            SinkError: Another log writes here; both are named. Or it is gone, and has written by another operator.
        """

        def refuse_output() -> None:
            self._refuse_other_operators(job_id)
            refuse_earlier_output()

        held, own = (
            claim_for(keeper, job_id, log, former, refuse_earlier_output=refuse_output)
            for keeper in (self._here.of_job, self._here.destination)
        )
        self._held, self._begins_anew = held, own.begins_anew

    def _refuse_other_operators(self, job_id: str) -> None:
        """Refuse a table to which other operators of the job alone have written, with a log that is gone.

        Raises:
            SinkError: This operator has not claimed its folder.
        """
        if self._here.destination.read_claim(0) is None:
            raise SinkError(
                self.where,
                f"job {job_id!r} has written there by a sink of another id than {self.operator_id!r}, with a log that "
                "is gone: rows would be written a second time",
                "use the log that the job had, or another job id with another table",
            )

    def check_held(self) -> None:
        """Check that no other log has claimed the job's place in the table since `claim`.

        Raises:
            JobMovedError: The job has been adopted by another log.
        """
        if self._held is not None:
            check_held(self._here.of_job, self._held)

    @property
    def begins_anew(self) -> bool:
        """Whether the operator has written here with a log that is gone; after `claim`."""
        return self._begins_anew

    def refuse_earlier_output(self, job_id: str) -> None:
        """Refuse files of an earlier history: see `ParquetSink`."""
        self._here.files.refuse_earlier_output(job_id)

    def refuse_lost_output(self, job_id: str) -> None:
        """Refuse a table without a trace of the job, to which the job has committed: see `ParquetSink`."""
        self._here.files.refuse_lost_output(job_id)

    def refuse_lost_commits(self, operator_id: str) -> None:
        """Refuse a table without the mark of another operator of the job, which has committed to it.

        Raises:
            SinkError: The table was removed, and made again; or it cannot be read.
        """
        if self._look().settled(self._mark_of(operator_id)) is None:
            raise SinkError(
                self.where,
                f"the table of job {self._here.job_id!r} was removed: its log has commits of operator {operator_id!r} "
                "there, and the table has none of them",
                "put it back as it was; to write all rows again, run another job id with another table",
            )

    def add(self, addition: Addition, *, at: At = nowhere) -> bool:
        """Publish the files and add them by one commit, unless the table has the mark; False if they were refused.

        Any thread; may run twice at once, also in two drivers. `at` is called at each place at which a crash would
        leave files; tests crash there.

        Raises:
            DestinationMisfitError: The table has changed, and does not take the files.
            FilesGoneError: A file is neither staged nor published.
            SinkError: A file is damaged, or other writers have been faster each time.
            JobMovedError: The job was adopted since `claim`, and another log writes here.
        """
        self.check_held()
        if (known := self._known(self._look(), addition)) is not None:
            return known
        try:
            self._here.files.publish_files(addition.files, at=at)
        except SinkError:
            # Another driver has added them meanwhile, and the table's owner has rewritten the files since.
            if (known := self._known(self._look(), addition)) is None:
                raise
            return known
        return self._commit(addition, self._commit_of(addition), at)

    def refuse(self, addition: Addition, *, at: At = nowhere) -> bool:
        """Ensure that no driver will add the files, by a commit without files; False if the table has them already.

        Raises:
            SinkError: The table cannot be read or changed.
        """
        assert addition.refusal is not None, "it may be refused for good"
        commit = replace(
            self._commit_of(addition),
            mark=self._refusals(addition),
            number=addition.refusal,
            files=(),
        )
        return not self._commit(addition, commit, at)

    def _commit(self, addition: Addition, commit: TableCommit, at: At) -> bool:
        """Look, commit on what was seen, and look again until the mark is there. Whether the table has the files.

        An unclear commit that is made later, after its look, is made before any other commit, or never: so the next
        look either sees it, or the commit on that look prevents it.
        """
        last: Exception | None = None
        with self._lock:  # commits of one process need not overtake each other
            for tries in range(TABLE_COMMIT_TRIES):
                look = self._look()
                if (known := self._known(look, addition)) is not None:
                    return known
                at(f"before commit {addition.name}")
                try:
                    look.commit(commit, at=at)
                except (TableConflictError, UnclearError) as error:
                    refuse_no_space(self.where, f"{addition.subject} cannot be committed", error)
                    last = error
                    longest_s = min(TABLE_COMMIT_WAIT_S, 0.05 * 2**tries)
                    self.pause(random.uniform(0, longest_s))  # noqa: S311, so that two writers do not meet again
                else:
                    at(f"after commit {addition.name}")
                    return bool(commit.files)
            if (known := self._known(self._look(), addition)) is not None:
                return known
        raise SinkError(
            self.where,
            f"{TABLE_COMMIT_TRIES} tries to commit {addition.subject} have failed, the last with: "
            f"{' '.join(str(last).split())[:500]}",
            "see which other programs write to the table, and whether its catalog answers",
        ) from last

    def _commit_of(self, addition: Addition) -> TableCommit:
        here = self._here
        names = {"coordlog.job": here.job_id, "coordlog.operator": self.operator_id}
        return TableCommit(
            mark=self.mark(addition.mark),
            number=addition.number,
            root=here.root,
            files=addition.files,
            properties={**names, **addition.description},
        )

    def _known(self, look: TableLook, addition: Addition) -> bool | None:
        """Whether the table has the files or has refused them for good; None if neither."""
        if has_reached(look, self.mark(addition.mark), addition.number):
            return True
        if addition.refusal is None:
            return None
        is_refused = has_reached(look, self._refusals(addition), addition.refusal)
        return False if is_refused else None

    def _refusals(self, addition: Addition) -> str:
        return f"{self.mark(addition.mark)}/refused"

    def _look(self) -> TableLook:
        """The newest state of the table that the job's files belong to.

        Raises:
            SinkError: It was removed, or another has its name since.
        """
        look = self._table.look()
        if self._identity is None:
            check_identity(self._table, self._here.destination, look.identity)
            self._identity = look.identity
        else:
            # Not the folder's copy: who removes a table may remove the job's folder with it.
            check_same(self._table, self._here.destination, self._identity, look.identity)
        return look

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """Delete the staged files of an attempt that is over, but `keep`: see `ParquetSink.clean`."""
        self.check_held()
        self._here.files.clean(
            driver_id=driver_id, subtask=subtask, attempt_number=attempt_number, keep=keep
        )

    def sweep(
        self,
        *,
        keep: AbstractSet[str] = frozenset(),
        is_in_force: Callable[[], bool] = lambda: True,
    ) -> None:
        """Delete all staged files of the operator but those in `keep`: see `ParquetSink.sweep`."""

        def may_sweep() -> bool:
            self.check_held()
            return is_in_force()

        self._here.files.sweep(keep=keep, is_in_force=may_sweep)

    def staged_names(self, committables: Sequence[bytes]) -> frozenset[str]:
        """Names that `clean` and `sweep` must keep as long as the log holds these committables."""
        return self._here.files.staged_names(committables)

    @property
    def _here(self) -> _Prepared:
        if self._prepared is None:
            raise UsageError(f"{self.where}: `prepare` comes first")
        return self._prepared
