"""A sink of Parquet files, in a local folder or an object store, published exactly once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq

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
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.spark_integration.casts.given_schema import arrow_schema_of
from coordlog.spark_integration.files.formats.compatibility import MisfitError, widened
from coordlog.spark_integration.files.payloads import FilesPublished, PublishFiles, StagedFile
from coordlog.spark_integration.files.sink.destination import Destination
from coordlog.spark_integration.files.sink.writer import ParquetFileWriter, ParquetWriterOptions
from coordlog.spark_integration.files.store.local import LocalStore
from coordlog.spark_integration.files.store.log_claims import Claim
from coordlog.spark_integration.files.store.s3 import S3Store
from coordlog.spark_integration.files.store.store import At, FileStore, nowhere

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["ParquetSink"]

Compression = Literal["zstd", "snappy", "gzip", "lz4", "none"]
_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
_COMMITTABLE = payload_type_of(StagedFile)
_S3: Final = ("s3://", "s3a://")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class ParquetSink(Sink):
    """Parquet files below one root of one job, which the driver and all executors share.

    A file gets its final name once, after the checkpoint that holds it has completed; a reader sees
    file by file, never a part of one. All files have one schema: that of the first rows written, or
    `schema`; or one that only gets wider.

    The driver calls, in this order: `prepare` before any attempt starts; `settle` for each intent;
    `clean` for an attempt that is over, after the record that gave its names up is released;
    `sweep` when the job has finished and no attempt lives. Each may be called again, and by two
    drivers at once.

    Args:
        path: A local path, made where it does not exist; or `s3://BUCKET/PREFIX`, with endpoint and
            credentials as Amazon's own tools take them (`AWS_ENDPOINT_URL_S3`, `AWS_PROFILE`, …).
        schema: Of all files. Without it, that of the first rows: then they must have a type in
            every column.
        compression: Of the columns.
        row_group_rows: Rows after which a row group is written.
        row_group_bytes: Bytes, as Arrow holds them, after which one is written: about what a writer
            takes of memory.
        partition_by: Columns of strings, integers, booleans or dates: their values become folders,
            `a=1/b=x/`, as Spark writes and reads them.
        roll_bytes: A file that has as many is closed, and the next begun: it is at most one row
            group longer.
        roll_rows: A file never has more rows.
        roll_seconds: A file whose first row is as old is closed with the next batch. Every
            checkpoint, and in batch every end of a split, closes all files anyway.
        widen: A batch with a new column, without a column, or with a wider type is written, and
            later files have the wider schema. Otherwise it is refused, with the difference by name.

    Raises:
        OptionError: An option is out of range.
        SinkError: `path` is in a file system that cannot be published in, or has credentials.
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
        given = arrow_schema_of("schema", schema)
        check_all(
            lambda: _check_positive(
                row_group_rows=row_group_rows,
                row_group_bytes=row_group_bytes,
                roll_bytes=roll_bytes,
                roll_rows=roll_rows,
            ),
            lambda: _check_seconds(roll_seconds),
            lambda: _partition_columns(partition_by, given),
            lambda: _check_schema(given),
        )
        columns = _partition_columns(partition_by, given)
        self._store = _store(os.fspath(path))
        self._options = ParquetWriterOptions(
            store=self._store,
            compression=compression,
            row_group_rows=row_group_rows,
            row_group_bytes=row_group_bytes,
            partition_by=columns,
            roll_bytes=roll_bytes,
            roll_rows=roll_rows,
            roll_s=roll_seconds,
            widens=widen,
        )
        self._destination = Destination(self._store)
        self._claim: Claim | None = None
        self._schema = given

    @property
    def destination(self) -> str:
        """Where the files are: an absolute path, or a URL without credentials."""
        return self._store.where

    @property
    def path(self) -> Path:
        """The destination, absolute, where it is local.

        Raises:
            UsageError: It is in an object store; `destination` names it.
        """
        if not isinstance(self._store, LocalStore):
            raise UsageError(f"{self.destination} has no path on this machine; see `destination`")
        return self._store.root

    @property
    def writer_options(self) -> ParquetWriterOptions:
        """All that a writer of its files needs; pickles."""
        return self._options

    def spec(self, operator_id: str = "sink") -> OperatorSpec:
        """The sink as a link of a chain. It keeps nothing across splits."""
        per_intent = (
            PARTITIONED_FILES_PER_INTENT if self._options.partition_by else FILES_PER_INTENT
        )
        return OperatorSpec(
            operator_id=operator_id,
            create_operator=partial(ParquetFileWriter, self._options),
            coordinator=CommitCoordinatorProvider(
                operator_id,
                sink=self,
                make_intent=self.make_intent,
                payload_types=(StagedFile, PublishFiles, FilesPublished),
                committables_per_intent=per_intent,
                destination=self.destination,
            ),
            keeps_state_across_splits=False,
        )

    def prepare(self, job_id: str) -> None:
        """Take the destination for `job_id`, or find that it has it already.

        Before any attempt starts.

        Raises:
            SinkError: It is another's, is not a folder, cannot be written, or cannot publish
                without replacing; or what stands there has another schema or other partitions.
            OutOfSpaceError: It would be new, and has less than 1 GiB free.
        """
        destination, columns = self._destination, self._options.partition_by
        destination.prepare(job_id)
        if self._schema is None:
            if (settled := destination.settled_schema()) is not None:
                destination.settle_schema(settled.columns, columns)
            return
        given = pa.schema([pa.field(one.name, one.type) for one in self._schema])
        settled = destination.settle_schema(given, columns)
        wanted = settled.columns
        if self._options.widens:
            try:
                wanted = widened(settled.columns, given)
            except MisfitError as error:
                raise SinkError(
                    self.destination,
                    f"`schema=` does not fit the files there: {error}",
                    "give one that does, or another destination",
                ) from error
            if not wanted.equals(settled.columns):
                destination.widen(settled, wanted)
        elif not wanted.equals(given):
            raise SinkError(
                self.destination,
                f"`schema=` is {_in_line(given)}; all files here have {_in_line(wanted)}",
                "give that one, or another destination",
            )

    def refuse_earlier_output(self, job_id: str) -> None:
        """For a job that begins at this destination: refuse one in which it has published before.

        Raises:
            SinkError: There is something, which the job would write a second time.
        """
        self._destination.refuse_earlier_output(job_id)

    def claim(
        self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]] = ()
    ) -> None:
        """See that no other log of a job of this id writes here, and hold that this one does.

        After `prepare`, before anything is appended.

        Args:
            job_id: The job.
            log: The one that it writes.
            former: Cluster id and topic id of each that it has left, by `coordlog adopt`.

        Raises:
            SinkError: Another one does; both are named.
        """
        self._claim = self._destination.claim(job_id, log, former)

    def is_taken(self) -> bool:
        """Whether a job has made the destination ready.

        Raises:
            SinkError: It cannot be looked at.
        """
        return self._destination.has_owner()

    def make_intent(
        self, checkpoint_id: int, committables: Sequence[CommittableOf]
    ) -> PublishFiles:
        """The intent that publishes these committables, in their order."""
        files = [cast("StagedFile", _COMMITTABLE.decode(one.content)) for one in committables]
        return PublishFiles(checkpoint_id=checkpoint_id, files=files)

    def settle(self, intent: Payload, *, at: At = nowhere) -> FilesPublished:
        """Publish what of `intent` is not published yet. Any thread; may run twice at once.

        `at` is told each place where a crash would leave something to be found; tests crash there.

        Raises:
            SinkError: A file is gone, damaged, or its name is taken by other content.
            JobMovedError: The job was adopted since `claim`, and another log writes here.
        """
        assert isinstance(intent, PublishFiles), "intents are made by `make_intent`"
        self._check_held()
        self._store.publish(intent.files, at=at)
        return FilesPublished(
            checkpoint_id=intent.checkpoint_id,
            file_count=len(intent.files),
            rows=sum(one.rows for one in intent.files),
            size_bytes=sum(one.size_bytes for one in intent.files),
        )

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """Delete the staged files of an attempt that is over, but `keep` (see `staged_names`).

        Raises:
            SinkError: The operating system, or the store, refuses.
            JobMovedError: As in `settle`: what is staged may be the other one's to publish.
        """
        self._check_held()
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

        Only when no attempt of the job lives, of any driver: `is_in_force` is asked for the last
        time between the listing and the first deletion, and says whether that is so.

        Raises:
            SinkError: The operating system, or the store, refuses.
            JobMovedError: As in `clean`.
        """

        def may_sweep() -> bool:
            self._check_held()
            return is_in_force()

        self._store.sweep(keep=keep, is_in_force=may_sweep)

    def _check_held(self) -> None:
        if self._claim is not None:
            self._destination.check_held(self._claim)

    def staged_names(self, committables: Sequence[bytes]) -> frozenset[str]:
        """What `clean` and `sweep` must keep as long as the log holds these committables."""
        return frozenset(
            cast("StagedFile", _COMMITTABLE.decode(one)).staged for one in committables
        )

    def intent_names(self, intent: Payload) -> frozenset[str]:
        """What `clean` and `sweep` must keep as long as the intent has no outcome."""
        return frozenset(one.staged for one in cast("PublishFiles", intent).files)


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
    if "://" in path or "::" in path:
        scheme = path.partition("://")[0].partition("::")[0] + "://"
        why = (
            "its files are in the memory of one process, and tasks run in others"
            if scheme == "memory://"
            else "the sink has no way there to publish a file without replacing one"
        )
        raise SinkError(
            scheme,
            why,
            "give a local path, or s3://BUCKET/PREFIX; copy the files elsewhere once the job has "
            "finished",
        )
    # Not resolved: a link in the path may be set to lead elsewhere between two runs.
    return LocalStore(Path(os.path.abspath(Path(path).expanduser())))  # noqa: PTH100


def _checked_s3(url: str) -> str:
    """The URL as `s3://BUCKET/PREFIX`. What is refused is not shown: it may hold a secret."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if "@" in bucket or "?" in url or "#" in url or (":" in bucket and "@" in url):
        raise SinkError(
            "s3://",
            "a URL with credentials or a query: a URL is shown and recorded",
            "give s3://BUCKET/PREFIX alone, and credentials as AWS_PROFILE or AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY",
        )
    if not _BUCKET.fullmatch(bucket):
        raise OptionError("path", url, "s3://BUCKET/PREFIX, with a bucket's name")
    prefix = prefix.rstrip("/")
    if prefix and any(one in ("", ".", "..") for one in prefix.split("/")):
        raise OptionError("path", url, "s3://BUCKET/PREFIX, with no part that is empty, . or ..")
    return f"s3://{bucket}/{prefix}"


def _partition_columns(given: Sequence[str], schema: pa.Schema | None) -> tuple[str, ...]:
    if isinstance(given, str):
        raise OptionError("partition_by", given, "a list of columns")
    columns = tuple(given)
    if len(set(columns)) < len(columns) or not all(columns):
        raise OptionError("partition_by", columns, "names of columns, each once")
    for one in columns:
        if one.startswith("."):
            raise OptionError("partition_by", one, "a name that does not begin with a dot: hidden")
        if schema is not None and one not in schema.names:
            raise OptionError("partition_by", one, f"one of {', '.join(schema.names)}")
    return columns


def _check_schema(schema: pa.Schema | None) -> None:
    if schema is None:
        return
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowNotImplementedError as error:
        raise OptionError("schema", str(schema), f"of types that Parquet has ({error})") from error


def _in_line(schema: pa.Schema) -> str:
    return ", ".join(f"{one.name}: {one.type}" for one in schema)
