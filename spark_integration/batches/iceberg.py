"""Batches into an Iceberg table, in two steps of its own: a staged snapshot, and its publication."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from coordlog.errors import OptionError, SinkError
from coordlog.log.credentials import refuse_credentials
from coordlog.option_types import check_types
from coordlog.spark_integration.batches.frame_types import check_frame
from coordlog.spark_integration.batches.payloads import BatchPart, PartOutcome
from coordlog.spark_integration.batches.sinks import At, Batch, nowhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["IcebergTable", "iceberg_settings"]

_WAP_ID: Final = "spark.wap.id"
_PUBLISHED: Final = "DuplicateWAPCommitException"
"""What Iceberg raises for a staged snapshot that is published already."""

_PUBLISHED_AS: Final = """
SELECT coalesce(s.summary['published-wap-id'], s.summary['wap.id']) AS name
FROM {table}.history h JOIN {table}.snapshots s ON h.snapshot_id = s.snapshot_id
WHERE h.is_current_ancestor
    AND startswith(coalesce(s.summary['published-wap-id'], s.summary['wap.id']), '{prefix}')
"""
"""One that follows the table's newest is published as it is, any other as a copy that names it."""


def iceberg_settings(catalog: str, warehouse: str) -> dict[str, str]:
    """What a session needs beside the jars of `JarSet.ICEBERG`, for a catalog of folders.

    Args:
        catalog: Its name in SQL.
        warehouse: The folder, or URL, of its tables, without credentials.

    Raises:
        OptionError: `catalog` is no name, or `warehouse` is empty or holds credentials.
        OptionsError: Several have a wrong type.
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
    """A `BatchSink`: an Iceberg table that is there already, with `write.wap.enabled`.

    A batch is seen whole, or not at all. A driver looks for its first batches in the table's history, until one is
    not there: its log may have lost what the table has, which is found as long as the table keeps its snapshot. What
    a dead driver has staged stays in the table's metadata until `expire_snapshots` removes it.

    Args:
        name: `catalog.database.table`, each of letters, digits and underscores.

    Raises:
        OptionError: `name` is no such name.
    """

    def __init__(self, name: str) -> None:
        check_types(type(self).__init__, locals())
        parts = name.split(".")
        if len(parts) < 2 or not all(one.isidentifier() for one in parts):  # noqa: PLR2004
            raise OptionError(
                "name", name, "catalog.database.table, of letters, digits, underscores"
            )
        self._name, self._catalog, self._in_catalog = name, parts[0], ".".join(parts[1:])
        self._spark: SparkSession | None = None
        self._looked_for: set[str] = set()
        """Queries of which this driver has published a batch that the table did not have."""

    @property
    def destination(self) -> str:
        """See `BatchSink`."""
        return f"iceberg {self._name}"

    def prepare(self, job_id: str, spark: SparkSession) -> None:
        """See `BatchSink`."""
        try:
            found = spark.sql(f"SHOW TBLPROPERTIES {self._name}").collect()
        except PySparkException as error:
            raise SinkError(
                self.destination,
                f"it cannot be looked at: {_said(error)}",
                "make the table, and the session with local_session(…, jars=resolve(JarSet.ICEBERG), "
                "settings=iceberg_settings(…))",
            ) from error
        if {row["key"]: row["value"] for row in found}.get("write.wap.enabled") != "true":
            raise SinkError(
                self.destination,
                "it takes no staged snapshots",
                f"ALTER TABLE {self._name} SET TBLPROPERTIES ('write.wap.enabled'='true')",
            )
        self._spark = spark
        self._looked_for.clear()

    def stage(self, frame: DataFrame, batch: Batch) -> BatchPart:
        """See `BatchSink`: a snapshot that no branch has, under a name that nothing else gets."""
        check_frame(self.destination, frame.schema, frame.sparkSession.table(self._name).schema)
        name = f"{_prefix(batch)}{batch.driver_id}-{secrets.token_hex(4)}"
        conf = frame.sparkSession.conf
        conf.set(_WAP_ID, name)
        try:
            frame.writeTo(self._name).append()
        except PySparkException as error:
            raise SinkError(
                self.destination, f"a snapshot cannot be staged: {_said(error)}", "mend it"
            ) from error
        finally:
            conf.unset(_WAP_ID)
        return BatchPart(sink=batch.sink, rows=-1, files=[], details={"wap.id": name})

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        """See `BatchSink`: Iceberg publishes a staged snapshot once, and says so where it has."""
        assert self._spark is not None, "prepared"
        name = part.details["wap.id"].replace("'", "")
        there = self._published(batch) if batch.key.query_id not in self._looked_for else ""
        if there:
            details = {} if there == name else {"published-wap-id": there}
            return PartOutcome(sink=part.sink, is_done=True, rows=part.rows, details=details)
        try:
            self._spark.sql(
                f"CALL {self._catalog}.system.publish_changes('{self._in_catalog}', '{name}')"
            ).collect()
        except (PySparkException, Py4JJavaError) as error:
            if _PUBLISHED not in str(error):
                raise SinkError(
                    self.destination,
                    f"staged snapshot {name} cannot be published: {_said(error)}",
                    "see that it has not been expired",
                ) from error
        at("published")
        self._looked_for.add(batch.key.query_id)
        return PartOutcome(sink=part.sink, is_done=True, rows=part.rows, details={})

    def _published(self, batch: Batch) -> str:
        """The snapshot by which the table has this batch already; empty where it has not."""
        assert self._spark is not None, "prepared"
        try:
            # The catalog keeps what it has read for 30 s, and others write there too.
            self._spark.sql(f"REFRESH TABLE {self._name}")
            found = self._spark.sql(_PUBLISHED_AS.format(table=self._name, prefix=_prefix(batch)))
            row = found.first()
        except (PySparkException, Py4JJavaError) as error:
            raise SinkError(
                self.destination, f"its history cannot be read: {_said(error)}", "mend it"
            ) from error
        return "" if row is None else str(row["name"])

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        """See `BatchSink`: `expire_snapshots`, which the table's owner runs anyway, removes what is staged and left."""


def _prefix(batch: Batch) -> str:
    """What the names of all snapshots of a batch's part begin with, whichever driver has staged them."""
    key, sink = batch.key, hashlib.sha256(batch.sink.encode()).hexdigest()[:8]
    return f"{batch.job_id}-{key.query_id}-{key.batch_id}-{sink}-".replace("'", "")


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
