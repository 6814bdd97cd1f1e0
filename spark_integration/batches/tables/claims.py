"""Claims of Delta and Iceberg tables: entries that are written as the table's own commits are."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from coordlog.errors import SinkError
from coordlog.spark_integration.batches.tables.commit_lock import commit_lock
from coordlog.spark_integration.files.store.local import LocalStore
from coordlog.spark_integration.files.store.log_claims import ClaimKeeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CommitFiles", "class_of", "delta_keeper", "iceberg_keeper"]

_FOLDER: Final = "_coordlog/claims"
"""In a Delta table's folder. VACUUM leaves a name alone that begins with an underscore; a store that keeps commits in a
database takes the folder above for the table, which must not be the Delta table itself."""
_COMMIT_TRIES: Final = 10
"""Commits of a claim, each but the last overtaken by another writer's."""


def delta_keeper(spark: SparkSession, job_id: str, path: str, where: str) -> ClaimKeeper:
    """The keeper of a job's claims: files in a Delta table's folder, which may not exist yet."""
    with _java_errors(where):
        jvm, session = _java_side(spark)
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, path)
        folder = jvm.org.apache.hadoop.fs.Path(log.dataPath(), _FOLDER)
        uri = folder.toUri()
        # Between two processes Hadoop's rename on a local disk is not exclusive.
        entries: _Entries = (
            LocalStore(Path(str(uri.getPath())))
            if uri.getScheme() == "file"
            else CommitFiles(jvm, log, folder)
        )
        prefix = f"{job_id}."
        return _Keeper(
            where=where, entries=entries, prefix=prefix, removal=f"remove {folder}/{prefix}0"
        )


def iceberg_keeper(spark: SparkSession, job_id: str, name: str, where: str) -> ClaimKeeper:
    """The keeper of a job's claims: properties of an Iceberg table."""
    with _java_errors(where):
        jvm, session = _java_side(spark)
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, name)
        prefix = f"coordlog.claim.{job_id}."
        return _Keeper(
            where=where,
            entries=_Properties(
                jvm, table.operations(), lambda: commit_lock(spark, str(table.location()), where)
            ),
            prefix=prefix,
            removal=f"ALTER TABLE {name} UNSET TBLPROPERTIES ('{prefix}0')",
        )


class _Entries(Protocol):
    """Contents by name."""

    def read(self, relative: str, /) -> bytes | None:
        """The content of this name; None if there is none."""
        ...

    def write_once(self, relative: str, content: bytes, /) -> object:
        """Write it; if the name is there already it stays as it is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keeper:
    """A `ClaimKeeper`. Many jobs may write to a table, so that names of entries hold the job."""

    where: str
    entries: _Entries
    prefix: str
    """Name of an entry, up to its number."""
    removal: str
    """How a person removes the first entry."""

    @property
    def release(self) -> str:
        """See `ClaimKeeper`."""
        return f"if the other log is gone for good: {self.removal}, and each higher number"

    def read_claim(self, number: int) -> bytes | None:
        """See `ClaimKeeper`."""
        with _java_errors(self.where):
            return self.entries.read(f"{self.prefix}{number}")

    def write_claim(self, number: int, content: bytes) -> None:
        """See `ClaimKeeper`."""
        with _java_errors(self.where):
            self.entries.write_once(f"{self.prefix}{number}", content)

    def claim_path(self, number: int) -> str:
        """See `ClaimKeeper`."""
        return f"{self.prefix}{number} of {self.where}"

    def refuse_earlier_output(self, _job_id: str) -> None:
        """See `ClaimKeeper`: the table has each batch by name."""


# `Any`, here and below: py4j's objects are whatever the JVM has.
class CommitFiles:
    """Files of a folder, by the store of a Delta table's commits, which writes a name once."""

    def __init__(self, jvm: Any, log: Any, folder: Any) -> None:  # noqa: ANN401
        self._jvm, self._folder = jvm, folder
        self._store, self._conf = log.store(), log.newDeltaHadoopConf()

    def read(self, name: str) -> bytes | None:
        """The file's content; None if there is none."""
        path = self._path(name)
        if not path.getFileSystem(self._conf).exists(path):
            return None
        return str(self._store.read(path, self._conf).mkString("\n")).encode()

    def write_once(self, name: str, content: bytes) -> None:
        """Write the file, unless it is there."""
        self._folder.getFileSystem(self._conf).mkdirs(self._folder)
        lines = self._jvm.java.util.List.of(content.decode()).iterator()
        scala_lines = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(lines)
        is_replacing = False
        try:
            self._store.write(self._path(name), scala_lines, is_replacing, self._conf)
        except Py4JJavaError as error:
            if class_of(error) != "java.nio.file.FileAlreadyExistsException":
                raise

    def _path(self, name: str) -> Any:  # noqa: ANN401
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, name)


class _Properties:
    """Properties of an Iceberg table. Not by SQL, which sets a property whatever is there."""

    def __init__(
        self,
        jvm: Any,  # noqa: ANN401
        operations: Any,  # noqa: ANN401
        alone: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._jvm, self._operations, self._alone = jvm, operations, alone

    def read(self, name: str) -> bytes | None:
        """The property, as the catalog has it now."""
        content = self._operations.refresh().properties().get(name)
        return None if content is None else str(content).encode()

    def write_once(self, name: str, content: bytes) -> None:
        """Set it by a commit on what was read, which fails if another commit has come first."""
        for tries_left in reversed(range(_COMMIT_TRIES)):
            metadata = self._operations.refresh()
            properties = self._jvm.java.util.HashMap(metadata.properties())
            if properties.putIfAbsent(name, content.decode()) is not None:
                return
            try:
                with self._alone():
                    self._operations.commit(metadata, metadata.replaceProperties(properties))
            except Py4JJavaError as error:
                # A commit whose outcome is unknown is found by the next look, if it was made.
                is_again = class_of(error).startswith("org.apache.iceberg.exceptions.Commit")
                if not is_again or not tries_left:
                    raise
            else:
                return


@contextmanager
def _java_errors(where: str) -> Generator[None]:
    """Errors of the JVM, and of the way to it, as SinkError."""
    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        reason = " ".join(str(error).split())[:500]
        problem = f"which log writes there cannot be looked up or kept: {reason}"
        raise SinkError(where, problem, "fix it, and start the job again") from error


def _java_side(spark: SparkSession) -> tuple[Any, Any]:
    return spark._jvm, spark._jsparkSession  # noqa: SLF001, no other way to a table's own store


def class_of(error: Py4JJavaError) -> str:
    """Full name of the class of an error of the JVM."""
    return str(error.java_exception.getClass().getName())
