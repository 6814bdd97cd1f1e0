"""Batches into an Iceberg table, in two steps of Iceberg: a staged snapshot, and its publication."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from coordlog.errors import OptionError, SinkError
from coordlog.log.credentials import refuse_credentials
from coordlog.log.interface import LogIdentity
from coordlog.option_types import check_types
from coordlog.spark_integration.batches.payloads import BatchPart, PartOutcome
from coordlog.spark_integration.batches.sinks import At, Batch, nowhere
from coordlog.spark_integration.batches.tables.claims import iceberg_keeper
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
_PUBLISHED: Final = "DuplicateWAPCommitException"
"""Error of Iceberg for a staged snapshot that is published already."""

_PUBLISHED_AS: Final = """
SELECT coalesce(s.summary['published-wap-id'], s.summary['wap.id']) AS name
FROM {table}.history h JOIN {table}.snapshots s ON h.snapshot_id = s.snapshot_id
WHERE h.is_current_ancestor
    AND startswith(coalesce(s.summary['published-wap-id'], s.summary['wap.id']), '{prefix}')
"""
"""Query for a batch's published snapshot. Iceberg publishes a snapshot that follows the table's newest unchanged, any
other as a copy with the staged name in `published-wap-id`."""


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

    Readers see a whole batch or nothing of it. A driver searches the table's history for its first batches, until a
    batch is missing there: the log may have lost the record of a published batch, which is found as long as the table
    keeps its snapshot. Snapshots staged by a dead driver stay in the table's metadata until `expire_snapshots` removes
    them. The table's properties `coordlog.claim.JOB.NUMBER` name, for each job, the log that writes
    there.

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
        self._name, self._catalog, self._in_catalog = name, parts[0], ".".join(parts[1:])
        self._spark: SparkSession | None = None
        self._known_missing: set[str] = set()
        """Queries of which this driver has published a batch that the table did not have."""
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
                "create the table, and the session with local_session(…, jars=resolve(JarSet.ICEBERG), "
                "settings=iceberg_settings(…))",
            ) from error
        if {row["key"]: row["value"] for row in rows}.get("write.wap.enabled") != "true":
            raise SinkError(
                self.destination,
                "it takes no staged snapshots",
                f"ALTER TABLE {self._name} SET TBLPROPERTIES ('write.wap.enabled'='true')",
            )
        self._spark = spark
        self._known_missing.clear()

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
        check_frame(self.destination, frame.schema, frame.sparkSession.table(self._name).schema)
        name = f"{_prefix(batch)}{batch.driver_id}-{secrets.token_hex(4)}"
        conf = frame.sparkSession.conf
        conf.set(_WAP_ID, name)
        try:
            frame.writeTo(self._name).append()
        except PySparkException as error:
            raise SinkError(
                self.destination,
                f"a snapshot cannot be staged: {_message(error)}",
                "fix the table",
            ) from error
        finally:
            conf.unset(_WAP_ID)
        return BatchPart(sink=batch.sink, rows=-1, files=[], details={"wap.id": name})

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        """See `BatchSink`: Iceberg publishes a staged snapshot once, and raises an error for a second time."""
        assert self._spark is not None, "prepared"
        if self._held is not None:
            check_held(*self._held)
        name = part.details["wap.id"].replace("'", "")
        published = self._published(batch) if batch.key.query_id not in self._known_missing else ""
        if published:
            details = {} if published == name else {"published-wap-id": published}
            return PartOutcome(sink=part.sink, is_done=True, rows=part.rows, details=details)
        try:
            self._spark.sql(
                f"CALL {self._catalog}.system.publish_changes('{self._in_catalog}', '{name}')"
            ).collect()
        except (PySparkException, Py4JJavaError) as error:
            if _PUBLISHED not in str(error):
                raise SinkError(
                    self.destination,
                    f"staged snapshot {name} cannot be published: {_message(error)}",
                    "check that it has not been expired",
                ) from error
        at("published")
        self._known_missing.add(batch.key.query_id)
        return PartOutcome(sink=part.sink, is_done=True, rows=part.rows, details={})

    def _published(self, batch: Batch) -> str:
        """Name of the snapshot with which this batch was published; empty if it was not."""
        assert self._spark is not None, "prepared"
        try:
            # The catalog caches its metadata for 30 s, and other programs write to the table too.
            self._spark.sql(f"REFRESH TABLE {self._name}")
            names = self._spark.sql(_PUBLISHED_AS.format(table=self._name, prefix=_prefix(batch)))
            row = names.first()
        except (PySparkException, Py4JJavaError) as error:
            raise SinkError(
                self.destination, f"its history cannot be read: {_message(error)}", "fix the table"
            ) from error
        return "" if row is None else str(row["name"])

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        """See `BatchSink`: nothing to do; the table owner's `expire_snapshots` removes abandoned snapshots."""


def _prefix(batch: Batch) -> str:
    """Prefix of the names of all snapshots of a batch's part, of any driver."""
    key, sink = batch.key, hashlib.sha256(batch.sink.encode()).hexdigest()[:8]
    return f"{batch.job_id}-{key.query_id}-{key.batch_id}-{sink}-".replace("'", "")


def _message(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
