"""A sink of Parquet files, in a local folder or an object store, published exactly once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import pyarrow as pa

from coordlog.api.chain import OperatorSpec
from coordlog.api.coordinator import CommittableOf, Sink
from coordlog.coordinators.commits import CommitCoordinatorProvider
from coordlog.errors import OptionError, SinkError, UsageError
from coordlog.limits import (
    FILES_PER_INTENT,
    PARTITIONED_FILES_PER_INTENT,
    ROLL_BYTES,
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
)
from coordlog.log.interface import LogIdentity
from coordlog.option_types import check_all, check_types
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.spark_integration.casts.given_schema import arrow_schema_of
from coordlog.spark_integration.files.formats.compatibility import MisfitError, widened
from coordlog.spark_integration.files.payloads import (
    SINK_PAYLOADS,
    FilesPublished,
    PublishFiles,
    StagedFile,
)
from coordlog.spark_integration.files.places import absolute
from coordlog.spark_integration.files.sink.destination import Destination
from coordlog.spark_integration.files.sink.parquet_output import refused_columns
from coordlog.spark_integration.files.sink.table_commits import TABLE_COMMITS
from coordlog.spark_integration.files.sink.writer import ParquetFileWriter, ParquetWriterOptions
from coordlog.spark_integration.files.store.local import LocalStore
from coordlog.spark_integration.files.store.log_claims import Claim
from coordlog.spark_integration.files.store.s3 import S3Store
from coordlog.spark_integration.files.store.store import At, FileStore, nowhere

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["ParquetSink"]

Compression = Literal["zstd", "snappy", "gzip", "lz4", "none"]
_COMMITTABLE = payload_type_of(StagedFile)
_S3: Final = ("s3://", "s3a://")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class _PublishProvider(CommitCoordinatorProvider):
    """Keeps the numbers of commits to a table, so that a sink of tables and this one may follow each other."""

    projection: OperatorProjection[Any] | None = TABLE_COMMITS


class ParquetSink(Sink):
    """Parquet files below one root of one job, which the driver and all executors share.

    A file gets its final name once, after the checkpoint that holds it has completed; a reader sees
    whole files alone. All files have one schema: that of the first rows written, or `schema`; with
    `widen` one that only gets wider.

    The driver calls, in this order: `prepare` before any attempt starts; `settle` for each intent;
    `clean` for an attempt that is over, after the record that abandoned its names is released;
    `sweep` when the job has finished and no attempt lives. Each may be called again, and by two
    drivers at once.

    Args:
        path: A local path, made if it does not exist; or `s3://BUCKET/PREFIX`, with endpoint and
            credentials as Amazon's own tools take them (`AWS_ENDPOINT_URL_S3`, `AWS_PROFILE`, …).
        schema: Schema of all files. Without it that of the first rows, which must have a type in
            every column.
        compression: Compression of the columns.
        row_group_rows: Rows after which a row group is written.
        row_group_bytes: Bytes, as Arrow holds them, after which a row group is written: about the
            memory of a writer.
        partition_by: Columns of strings, integers, booleans or dates: their values become folders,
            `a=1/b=x/`, as Spark writes and reads them.
        roll_bytes: Bytes after which a file is closed, and the next begun: a file is at most one row
            group longer.
        roll_rows: Greatest number of rows of a file.
        roll_seconds: Age of the first row after which a file is closed, with the next batch. Every
            checkpoint, and in batch every end of a split, or of several small ones, closes all files anyway.
        widen: A batch with a new column, without a column, or with a wider type is written, and
            later files have the wider schema. Otherwise it is refused, with the difference.

    Raises:
        OptionError: An option is out of range.
        SinkError: `path` has credentials, or is in a file system in which files cannot be published.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | StructType | str | None = None,
        compression: Compression = "zstd",
        row_group_rows: int = ROW_GROUP_ROWS,
        row_group_bytes: int = ROW_GROUP_BYTES,
        partition_by: Sequence[str] = (),
        roll_bytes: int = ROLL_BYTES,
        roll_rows: int | None = None,
        roll_seconds: float | None = None,
        widen: bool = False,
    ) -> None:
        check_types(type(self).__init__, locals())
        arrow_schema = arrow_schema_of("schema", schema)
        check_all(
            lambda: _check_positive(
                row_group_rows=row_group_rows,
                row_group_bytes=row_group_bytes,
                roll_bytes=roll_bytes,
                roll_rows=roll_rows,
            ),
            lambda: _check_seconds(roll_seconds),
            lambda: _partition_columns(partition_by, arrow_schema),
            lambda: _check_schema(arrow_schema),
        )
        columns = _partition_columns(partition_by, arrow_schema)
        store = _store(os.fspath(path))
        self._options = ParquetWriterOptions(
            store=store,
            compression=compression,
            row_group_rows=row_group_rows,
            row_group_bytes=row_group_bytes,
            partition_by=columns,
            roll_bytes=roll_bytes,
            roll_rows=roll_rows,
            roll_s=roll_seconds,
            widens=widen,
        )
        self._place(store)
        self._claim: Claim | None = None
        self._schema = arrow_schema

    def _place(self, store: FileStore) -> None:
        self._store, self._destination = store, Destination(store)
        self._options = replace(self._options, store=store)

    @property
    def destination(self) -> str:
        """The destination: an absolute path, or a URL without credentials."""
        return self._store.where

    @property
    def path(self) -> Path:
        """The absolute path of a local destination.

        Raises:
            UsageError: The destination is in an object store; `destination` names it.
        """
        if not isinstance(self._store, LocalStore):
            raise UsageError(f"{self.destination} has no path on this machine; see `destination`")
        return self._store.root

    @property
    def writer_options(self) -> ParquetWriterOptions:
        """Options of a writer of the files. Pickles."""
        return self._options

    def spec(self, operator_id: str = "sink") -> OperatorSpec:
        """The sink as a link of a chain. It keeps nothing across splits."""
        per_intent = (
            PARTITIONED_FILES_PER_INTENT if self._options.partition_by else FILES_PER_INTENT
        )
        return OperatorSpec(
            operator_id=operator_id,
            create_operator=partial(ParquetFileWriter, self._options),
            coordinator=_PublishProvider(
                operator_id,
                sink=self,
                make_intent=self.make_intent,
                payload_types=SINK_PAYLOADS,
                committables_per_intent=per_intent,
                destination=self.destination,
            ),
            keeps_state_across_splits=False,
            takes_all_rows=True,
            groups_splits=True,
        )

    def prepare(self, job_id: str) -> None:
        """Make the destination `job_id`'s, or check that it is already.

        Before any attempt starts.

        Raises:
            SinkError: It is another job's, is not a folder, cannot be written, or cannot publish
                without replacing; or its files have another schema or other partitions.
            OutOfSpaceError: It would be new, and has less than 1 GiB free.
        """
        destination, columns = self._destination, self._options.partition_by
        destination.prepare(job_id)
        if self._schema is None:
            if (settled := destination.settled_schema()) is not None:
                destination.settle_schema(settled.columns, columns)
            return
        plain = pa.schema([pa.field(column.name, column.type) for column in self._schema])
        settled = destination.settle_schema(plain, columns)
        wanted = settled.columns
        if self._options.widens:
            try:
                wanted = widened(settled.columns, plain)
            except MisfitError as error:
                raise SinkError(
                    self.destination,
                    f"`schema=` is not compatible with the files there: {error}",
                    "use one that is, or another destination",
                ) from error
            if not wanted.equals(settled.columns):
                destination.widen(settled, wanted)
        elif not wanted.equals(plain):
            raise SinkError(
                self.destination,
                f"`schema=` is {_in_line(plain)}; all files here have {_in_line(wanted)}",
                "use that one, or another destination",
            )

    def refuse_earlier_output(self, job_id: str) -> None:
        """Refuse files of an earlier history at the start of a job.

        Raises:
            SinkError: The destination has files, whose rows the job would write a second time.
        """
        self._destination.refuse_earlier_output(job_id)

    def refuse_lost_output(self, job_id: str) -> None:
        """Refuse a destination without a trace of the job, to which the job has committed. Before `claim`.

        Raises:
            SinkError: The destination was removed, or its file system is not mounted.
        """
        self._destination.refuse_lost_output(job_id)

    def claim(
        self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]] = ()
    ) -> None:
        """Check that no other log of a job of this id writes here, and store `log` as the writer.

        After `prepare`, before anything is appended.

        Args:
            job_id: The job.
            log: The job's log.
            former: Cluster id and topic id of each log that the job has left, by `coordlog adopt`.

        Raises:
            SinkError: Another log writes here; both are named.
        """
        self._claim = self._destination.claim(job_id, log, former)

    def is_taken(self, job_id: str) -> bool:
        """Whether this job has made the destination ready.

        Raises:
            SinkError: The destination cannot be read.
        """
        return self._destination.owner() == job_id

    def make_intent(
        self, checkpoint_id: int, committables: Sequence[CommittableOf]
    ) -> PublishFiles:
        """The intent that publishes these committables, in their order."""
        files = [
            cast("StagedFile", _COMMITTABLE.decode(committable.content))
            for committable in committables
        ]
        return PublishFiles(checkpoint_id=checkpoint_id, files=files)

    def settle(self, intent: Payload, *, at: At = nowhere) -> Payload:
        """Carry out the intent, as `publish`; the outcome is recorded. Any thread; may run twice at once."""
        return self.publish(intent, at=at)

    def publish(self, intent: Payload, *, at: At = nowhere) -> FilesPublished:
        """Publish the files of `intent` that are not published yet. Any thread; may run twice at once.

        `at` is called at each place at which a crash would leave files; tests crash there.

        Raises:
            SinkError: A file is gone or damaged, or its name is taken by other content.
            JobMovedError: The job was adopted since `claim`, and another log writes here.
        """
        assert isinstance(intent, PublishFiles), "intents are made by `make_intent`"
        self.check_held()
        self.publish_files(intent.files, at=at)
        return FilesPublished(
            checkpoint_id=intent.checkpoint_id,
            file_count=len(intent.files),
            rows=sum(file.rows for file in intent.files),
            size_bytes=sum(file.size_bytes for file in intent.files),
        )

    def publish_files(self, files: Sequence[StagedFile], *, at: At = nowhere) -> None:
        """As `publish`, for files whose claim the caller has checked.

        Raises:
            SinkError: A file is gone or damaged, or its name is taken by other content.
        """
        self._store.publish(files, at=at)

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """Delete the staged files of an attempt that is over, but `keep` (see `staged_names`).

        Raises:
            SinkError: The operating system, or the store, refuses.
            JobMovedError: As in `settle`: the other log may have to publish the staged files.
        """
        self.check_held()
        self._store.clean(
            driver_id=driver_id, subtask=subtask, attempt_number=attempt_number, keep=keep
        )

    def sweep(
        self,
        *,
        keep: AbstractSet[str] = frozenset(),
        is_in_force: Callable[[], bool] = lambda: True,
    ) -> None:
        """Delete all staged files but those in `keep`.

        Only when no attempt of the job lives, of any driver: `is_in_force` checks that, for the last
        time between the listing and the first deletion.

        Raises:
            SinkError: The operating system, or the store, refuses.
            JobMovedError: As in `clean`.
        """

        def may_sweep() -> bool:
            self.check_held()
            return is_in_force()

        self._store.sweep(keep=keep, is_in_force=may_sweep)

    def check_held(self) -> None:
        """Check that no other log has claimed the destination since `claim`.

        Raises:
            JobMovedError: The job has been adopted by another log.
        """
        if self._claim is not None:
            self._destination.check_held(self._claim)

    def staged_names(self, committables: Sequence[bytes]) -> frozenset[str]:
        """Names that `clean` and `sweep` must keep as long as the log holds these committables."""
        return frozenset(
            cast("StagedFile", _COMMITTABLE.decode(content)).staged for content in committables
        )

    def intent_names(self, intent: Payload) -> frozenset[str]:
        """Names that `clean` and `sweep` must keep as long as the intent has no outcome."""
        return frozenset(file.staged for file in cast("PublishFiles", intent).files)


def _check_positive(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < 1:
            raise OptionError(name, value, "at least 1")


def _check_seconds(roll_seconds: float | None) -> None:
    if roll_seconds is not None and not roll_seconds > 0:
        raise OptionError("roll_seconds", roll_seconds, "above 0")


def _store(path: str) -> FileStore:
    if not path:
        raise OptionError("path", path, "a path, or s3://BUCKET/PREFIX")
    path = path.removeprefix("file://")
    if path.startswith(_S3) and "::" not in path:
        return S3Store(_checked_s3(path))
    if "://" in path:
        scheme = path.partition("://")[0].partition("::")[0] + "://"
        why = (
            "its files are in the memory of one process, and tasks run in others"
            if scheme == "memory://"
            else "the sink has no way there to publish a file without replacing one"
        )
        raise SinkError(
            scheme,
            why,
            "use a local path, or s3://BUCKET/PREFIX; copy the files elsewhere once the job has "
            "finished",
        )
    # Not resolved: the target of a link in the path may change between two runs.
    return LocalStore(Path(absolute(path)))


def _checked_s3(url: str) -> str:
    """The URL as `s3://BUCKET/PREFIX`. A refused URL is not shown: it may hold a secret."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if "@" in bucket or "?" in url or "#" in url or (":" in bucket and "@" in url):
        raise SinkError(
            "s3://",
            "a URL with credentials or a query: a URL is shown and recorded",
            "use s3://BUCKET/PREFIX alone, and credentials as AWS_PROFILE or AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY",
        )
    if not _BUCKET.fullmatch(bucket):
        raise OptionError("path", url, "s3://BUCKET/PREFIX, with a bucket's name")
    prefix = prefix.rstrip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise OptionError("path", url, "s3://BUCKET/PREFIX, with no part that is empty, . or ..")
    return f"s3://{bucket}/{prefix}"


def _partition_columns(names: Sequence[str], schema: pa.Schema | None) -> tuple[str, ...]:
    if isinstance(names, str):
        raise OptionError("partition_by", names, "a list of columns")
    columns = tuple(names)
    if len(set(columns)) < len(columns) or not all(columns):
        raise OptionError("partition_by", columns, "names of columns, each once")
    for column in columns:
        if column.startswith("."):
            raise OptionError(
                "partition_by", column, "a name that does not begin with a dot: hidden"
            )
        if schema is not None and column not in schema.names:
            raise OptionError("partition_by", column, f"one of {', '.join(schema.names)}")
    return columns


def _check_schema(schema: pa.Schema | None) -> None:
    if schema is None:
        return
    if refused := refused_columns(schema):
        raise OptionError("schema", str(schema), f"of types that Parquet has ({refused[0]})")


def _in_line(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)
