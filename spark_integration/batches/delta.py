"""Batches into a Delta table, by its application transactions: one step that is safe to do again.

Delta has no prepared commit: what can be made visible later is the rows themselves, and these Spark gives again. So a
batch is written once its intent is in the log, with the query as `txnAppId` and the batch as `txnVersion`, which the
table takes once.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, PySparkException

from coordlog.errors import OptionError, SinkError
from coordlog.log.credentials import refuse_credentials
from coordlog.option_types import check_types
from coordlog.spark_integration.batches.payloads import BatchPart, PartOutcome
from coordlog.spark_integration.batches.sinks import At, Batch, nowhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DELTA_SETTINGS", "DeltaTable"]

DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What a session needs beside the jars of `JarSet.DELTA`."""

_COMMITS_LOOKED_AT: Final = 1000
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class DeltaTable:
    """A `BatchSink`: a Delta table in a folder; made by the first batch where it does not exist.

    A batch is seen whole, or not at all.

    Args:
        path: The table's folder, or URL, without credentials. A relative one is meant from where this process is now:
            SQL and writers of Spark take it for two different folders.

    Raises:
        OptionError: `path` is no path, is empty, has a backquote, or holds credentials.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_types(type(self).__init__, locals())
        path = os.fspath(path)
        if not path or "`" in path:
            raise OptionError("path", path, "a table's folder, without backquotes")
        refuse_credentials("path", path)
        # Not resolved: a link in the path may be set to lead elsewhere between two runs.
        self._path = path if _URL.match(path) else os.path.abspath(Path(path).expanduser())  # noqa: PTH100
        self._lock = threading.Lock()
        self._frames: dict[tuple[str, str], DataFrame] = {}
        """The rows of batches under way in this process, by transaction."""
        self._spark: SparkSession | None = None

    @property
    def destination(self) -> str:
        """See `BatchSink`."""
        return f"delta {self._path}"

    def prepare(self, job_id: str, spark: SparkSession) -> None:
        """See `BatchSink`."""
        if "Delta" not in (spark.conf.get("spark.sql.extensions", "") or ""):
            raise SinkError(
                self.destination,
                "this Spark session does not know Delta",
                "make it with local_session(…, jars=resolve(JarSet.DELTA), settings=DELTA_SETTINGS)",
            )
        self._spark = spark

    def stage(self, frame: DataFrame, batch: Batch) -> BatchPart:
        """See `BatchSink`: nothing is written yet."""
        key = batch.key
        application = f"coordlog/{batch.job_id}/{batch.sink}/{key.query_id}"
        with self._lock:
            self._frames[application, str(key.batch_id)] = frame
        return BatchPart(
            sink=batch.sink,
            rows=-1,
            files=[],
            details={"txnAppId": application, "txnVersion": str(key.batch_id)},
        )

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        """See `BatchSink`: the table's history has the transaction, or takes it; without the rows it is not done."""
        name = part.details["txnAppId"], part.details["txnVersion"]
        with self._lock:
            frame = self._frames.get(name)
        is_done = self._has(name)
        at("looked")
        if not is_done and frame is not None:
            try:
                (
                    frame.write.format("delta")
                    .mode("append")
                    .option("txnAppId", name[0])
                    .option("txnVersion", name[1])
                    .option("userMetadata", "/".join(name))
                    .save(self._path)
                )
            except PySparkException as error:
                raise SinkError(
                    self.destination, f"it takes no batch: {_said(error)}", "mend it"
                ) from error
            at("written")
            is_done = True
        if is_done:
            with self._lock:
                self._frames.pop(name, None)
        return PartOutcome(sink=part.sink, is_done=is_done, rows=part.rows, details={})

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        """See `BatchSink`: nothing is staged."""

    def _has(self, name: tuple[str, str]) -> bool:
        """Whether the table's history, which is cut in time, shows the transaction; a write looks again."""
        assert self._spark is not None, "prepared"
        try:
            history = self._spark.sql(
                f"DESCRIBE HISTORY delta.`{self._path}` LIMIT {_COMMITS_LOOKED_AT}"
            )
            return bool(history.where(history.userMetadata == "/".join(name)).limit(1).collect())
        except AnalysisException:
            return False  # there is no table yet


def _said(error: PySparkException) -> str:
    return " ".join(str(error).split())[:500]
