"""Batches into an Iceberg table, in two steps of Iceberg: a staged snapshot, and its publication."""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from coordlog.errors import OptionError, SinkError
from coordlog.log.credentials import refuse_credentials
from coordlog.log.interface import LogIdentity
from coordlog.option_types import check_types
from coordlog.spark_integration.batches.payloads import BatchPart, PartOutcome
from coordlog.spark_integration.batches.sinks import At, Batch, nowhere
from coordlog.spark_integration.batches.tables.claims import class_of, iceberg_keeper
from coordlog.spark_integration.batches.tables.commit_lock import commit_lock
from coordlog.spark_integration.batches.tables.frame_types import check_frame
from coordlog.spark_integration.files.store.log_claims import (
    Claim,
    ClaimKeeper,
    check_held,
    claim_for,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["IcebergTable", "iceberg_settings"]

_WAP_ID: Final = "spark.wap.id"
_STAGES: Final = "write.wap.enabled"
_PUBLISHED: Final = ("DuplicateWAPCommitException", "CherrypickAncestorCommitException")
"""Errors of Iceberg for a staged snapshot that is published already: as a copy, or unchanged."""

_session_locks: Final[defaultdict[str, threading.Lock]] = defaultdict(threading.Lock)
"""Locks by session: `spark.wap.id` is a setting of the session, which two writers would take from each other."""


def iceberg_settings(catalog: str, warehouse: str) -> dict[str, str]:
    """Settings that a session needs besides the jars of `JarSet.ICEBERG`, for a catalog of folders.

    Args:
        catalog: Name of the catalog in SQL.
        warehouse: Folder, or URL, of its tables, without credentials.

    Raises:
        OptionError: `catalog` is no name, or `warehouse` is empty or holds credentials.
        OptionsError: Several arguments have a wrong type.
    """
    check_types(iceberg_settings, locals())
    if not catalog.isidentifier():
        raise OptionError("catalog", catalog, "a name of letters, digits and underscores")
    if not warehouse:
        raise OptionError("warehouse", warehouse, "a folder, or a URL")
    refuse_credentials("warehouse", warehouse)
    return {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        f"spark.sql.catalog.{catalog}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{catalog}.type": "hadoop",
        f"spark.sql.catalog.{catalog}.warehouse": warehouse,
    }


class IcebergTable:
    """A `BatchSink`: an existing Iceberg table, with `write.wap.enabled`.

    Readers see a whole batch or nothing of it. The commit that publishes a batch also sets the table's property
    `coordlog.batch.JOB.SINK.QUERY` to the batch's number, so that a published batch is known as long as the table
    exists, even if its snapshot is expired or the log is lost. Snapshots staged by a dead driver stay in the table's
    metadata until `expire_snapshots` removes them. The table's properties `coordlog.claim.JOB.NUMBER` name, for each
    job, the log that writes there.

    Args:
        name: `catalog.database.table`, each of letters, digits and underscores.

    Raises:
        OptionError: `name` is no such name.
    """

    def __init__(self, name: str) -> None:
        check_types(type(self).__init__, locals())
        parts = name.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):  # noqa: PLR2004
            raise OptionError(
                "name", name, "catalog.database.table, of letters, digits, underscores"
            )
        self._name = name
        self._spark: SparkSession | None = None
        self._held: tuple[ClaimKeeper, Claim] | None = None

    @property
    def destination(self) -> str:
        """See `BatchSink`."""
        return f"iceberg {self._name}"

    def prepare(self, job_id: str, spark: SparkSession) -> None:
        """See `BatchSink`."""
        try:
            rows = spark.sql(f"SHOW TBLPROPERTIES {self._name}").collect()
        except PySparkException as error:
            raise SinkError(
                self.destination,
                f"its properties cannot be read: {_message(error)}",
                "create the table, and the session with query_session(…, jars=resolve(JarSet.ICEBERG), "
                "settings=iceberg_settings(…))",
            ) from error
        self._refuse_unstaged({row["key"]: row["value"] for row in rows}.get(_STAGES))
        self._spark = spark

    def _refuse_unstaged(self, stages: str | None) -> None:
        if stages != "true":
            raise SinkError(
                self.destination,
                "it takes no staged snapshots",
                f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{_STAGES}'='true')",
            )

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """See that no other log of a job of this id writes to the table: its batches would be others.

        Raises:
            SinkError: Another one does; both are named.
        """
        assert self._spark is not None, "prepared"
        keeper = iceberg_keeper(self._spark, job_id, self._name, self.destination)
        self._held = keeper, claim_for(keeper, job_id, log, former)

    def stage(self, frame: DataFrame, batch: Batch) -> BatchPart:
        """See `BatchSink`: a snapshot that is in no branch, under a unique name."""
        key, session = batch.key, frame.sparkSession
        name = f"{batch.job_id}-{key.query_id}-{key.batch_id}-{secrets.token_hex(12)}"
        with (
            self._errors("a snapshot cannot be staged"),
            _session_locks[str(_java(session).sessionUUID())],
            commit_lock(session, str(self._table(session).location()), self.destination),
        ):
            table = self._table(session)
            table.refresh()
            # It would take the rows at once, and again from the next try: the property may have gone since `prepare`.
            self._refuse_unstaged(table.properties().get(_STAGES))
            # After the refresh: another program may have changed the columns.
            check_frame(self.destination, frame.schema, session.table(self._name).schema)
            session.conf.set(_WAP_ID, name)
            try:
                frame.writeTo(self._name).append()
            finally:
                session.conf.unset(_WAP_ID)
        return BatchPart(sink=batch.sink, rows=-1, files=[], details={"wap.id": name})

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        """See `BatchSink`: Iceberg publishes a staged snapshot once, and raises an error for a second time.

        The outcome is not done if the staged snapshot has been expired, so that nothing can publish it any more, or if
        the table's columns do not take its values by now: it is expired then, before the return.
        """
        assert self._spark is not None, "prepared"
        if self._held is not None:
            check_held(*self._held)
        name, details = part.details["wap.id"], dict[str, str]()
        with self._errors(f"staged snapshot {name} cannot be published"):
            table = self._table(self._spark)
            with commit_lock(self._spark, str(table.location()), self.destination):
                table.refresh()  # the catalog caches its metadata for 30 s, and others write to the table too
                if not _has(table, batch):
                    snapshot = _staged(table, name)
                    if snapshot is None:
                        details["refused"] = f"its staged snapshot {name} has been expired"
                    elif unfit := _why_unfit(self._spark, table, snapshot):
                        # So that no slower driver publishes it.
                        _expire(table, snapshot)
                        details["refused"] = (
                            f"the table has changed since the batch was staged: {unfit}"
                        )
                    else:
                        _publish(table, snapshot, batch)
            self._spark.sql(f"REFRESH TABLE {self._name}")
        at("published")
        return PartOutcome(sink=part.sink, is_done=not details, rows=part.rows, details=details)

    # `Any`, here and below: py4j's objects are whatever the JVM has.
    def _table(self, spark: SparkSession) -> Any:  # noqa: ANN401
        session: Any = spark
        util = session._jvm.org.apache.iceberg.spark.Spark3Util  # noqa: SLF001
        return util.loadIcebergTable(_java(spark), self._name)

    @contextmanager
    def _errors(self, problem: str) -> Generator[None]:
        """Errors of Spark and of the JVM as SinkError."""
        try:
            yield
        except (PySparkException, Py4JError, OSError) as error:
            raise SinkError(
                self.destination, f"{problem}: {_message(error)}", "fix the table"
            ) from error

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        """See `BatchSink`: nothing to do; the table owner's `expire_snapshots` removes abandoned snapshots."""


def _java(spark: SparkSession) -> Any:  # noqa: ANN401
    session: Any = spark
    return session._jsparkSession  # noqa: SLF001, no other way to a table's commits


def _marker(batch: Batch) -> str:
    """Property of the table with the number of the query's last published batch."""
    return f"coordlog.batch.{batch.job_id}.{batch.sink}.{batch.key.query_id}"


def _has(table: Any, batch: Batch) -> bool:  # noqa: ANN401
    """Whether a batch is published: batches of a query are published in their order."""
    last = table.properties().get(_marker(batch))
    return last is not None and int(last) >= batch.key.batch_id


def _staged(table: Any, name: str) -> int | None:  # noqa: ANN401
    """Id of a staged snapshot; None if the table does not have it."""
    snapshots = table.snapshots()
    for index in reversed(range(len(snapshots))):
        if snapshots[index].summary().get("wap.id") == name:
            return int(snapshots[index].snapshotId())
    return None


def _why_unfit(spark: SparkSession, table: Any, snapshot: int) -> str:  # noqa: ANN401
    """Why the table has no column any more for a value of a staged snapshot; empty if it has one for each.

    Iceberg would publish the snapshot: the values of a column that was dropped, or replaced by another of its name,
    would be lost, and with a column of another type no reader could read the table.
    """
    session: Any = spark
    types = session._jvm.org.apache.iceberg.types  # noqa: SLF001
    staged, now = table.schemas().get(table.snapshot(snapshot).schemaId()), table.schema()
    gone = set(types.TypeUtil.getProjectedIds(staged)) - set(types.TypeUtil.getProjectedIds(now))
    names = [repr(str(staged.findColumnName(number))) for number in sorted(gone)]
    reasons = [str(one) for one in types.CheckCompatibility.writeCompatibilityErrors(now, staged)]
    if names:
        reasons.insert(0, f"{', '.join(names)} was dropped or replaced")
    return "; ".join(reasons)


def _expire(table: Any, snapshot: int) -> None:  # noqa: ANN401
    """Remove one snapshot from the table's metadata, and none for its age."""
    expiry = table.expireSnapshots().expireOlderThan(0).expireSnapshotId(snapshot)
    expiry.cleanExpiredFiles(False).commit()  # noqa: FBT003, a method of Java


def _publish(table: Any, snapshot: int, batch: Batch) -> None:  # noqa: ANN401
    """Publish a staged snapshot and set the batch's marker, in one commit."""
    transaction = table.newTransaction()
    try:
        transaction.manageSnapshots().cherrypick(snapshot).commit()
        marker = transaction.updateProperties().set(_marker(batch), str(batch.key.batch_id))
        marker.commit()
        transaction.commitTransaction()
    except Py4JJavaError as error:
        if not class_of(error).endswith(_PUBLISHED):
            raise


def _message(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
