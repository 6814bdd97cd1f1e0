"""Batches into a Delta table, by its application transactions: one step that is safe to repeat.

Delta has no prepared commit: only the rows themselves can be written later, and Spark replays these. So a batch is
written once its intent is in the log, with the query as `txnAppId` and the batch as `txnVersion`, which the table
accepts once.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, PythonException

from coordlog.errors import OptionError, SinkError
from coordlog.log.credentials import refuse_credentials
from coordlog.log.interface import LogIdentity
from coordlog.option_types import check_types
from coordlog.spark_integration.batches.payloads import BatchPart, PartOutcome
from coordlog.spark_integration.batches.sinks import At, Batch, nowhere
from coordlog.spark_integration.batches.tables.claims import delta_keeper
from coordlog.spark_integration.batches.tables.commit_lock import commit_lock
from coordlog.spark_integration.files.store.log_claims import (
    Claim,
    ClaimKeeper,
    check_held,
    claim_for,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DELTA_SETTINGS", "DeltaTable"]

DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings that a session needs besides the jars of `JarSet.DELTA`."""

_COMMITS_READ: Final = 1000
_CAUSES_READ: Final = 20
_CONSTRAINT: Final = "InvariantViolationException"
"""End of the name of Delta's error of a row that breaks a constraint of the table."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class DeltaTable:
    """A `BatchSink`: a Delta table in a folder; created by the first batch if it does not exist.

    Readers see a whole batch or nothing of it. The files `_coordlog/claims/JOB.NUMBER` in its folder name, for each
    job, the log that writes there.

    Args:
        path: The table's folder, or URL, without credentials. A relative path is resolved against this process's
            current folder, because Spark's SQL and Spark's writers would resolve it to two different folders.

    Raises:
        OptionError: `path` is no path, is empty, has a backquote, or holds credentials.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_types(type(self).__init__, locals())
        path = os.fspath(path)
        if not path or "`" in path:
            raise OptionError("path", path, "a table's folder, without backquotes")
        refuse_credentials("path", path)
        # Links are not resolved: a link in the path may lead to another folder in the next run.
        self._path = path if _URL.match(path) else os.path.abspath(Path(path).expanduser())  # noqa: PTH100
        self._lock = threading.Lock()
        self._frames: dict[tuple[str, str], tuple[str, DataFrame]] = {}
        """Driver and rows of the batches in progress in this process, by transaction."""
        self._spark: SparkSession | None = None
        self._held: tuple[ClaimKeeper, Claim] | None = None

    @property
    def destination(self) -> str:
        """See `BatchSink`."""
        return f"delta {self._path}"

    def prepare(self, job_id: str, spark: SparkSession) -> None:
        """See `BatchSink`."""
        if "Delta" not in (spark.conf.get("spark.sql.extensions", "") or ""):
            raise SinkError(
                self.destination,
                "this Spark session is set up without Delta",
                "make it with query_session(…, jars=resolve(JarSet.DELTA), settings=DELTA_SETTINGS)",
            )
        self._spark = spark

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """See that no other log of a job of this id writes to the table: its batches would be others.

        Raises:
            SinkError: Another one does; both are named.
        """
        assert self._spark is not None, "prepared"
        keeper = delta_keeper(self._spark, job_id, self._path, self.destination)
        self._held = keeper, claim_for(keeper, job_id, log, former)

    def stage(self, frame: DataFrame, batch: Batch) -> BatchPart:
        """See `BatchSink`: nothing is written yet."""
        key = batch.key
        application = f"coordlog/{batch.job_id}/{batch.sink}/{key.query_id}"
        with self._lock:
            self._frames[application, str(key.batch_id)] = batch.driver_id, frame
        return BatchPart(
            sink=batch.sink,
            rows=-1,
            files=[],
            details={"txnAppId": application, "txnVersion": str(key.batch_id)},
        )

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        """See `BatchSink`: write the rows unless the table's history has the transaction.

        The outcome is not done without the rows, or if a retry would fail, too: their columns are incompatible with
        the table's, they break one of its constraints, or Python code that makes them has raised an error. The rows
        that an earlier driver of this process staged are not used: their session may have been stopped.
        """
        name = part.details["txnAppId"], part.details["txnVersion"]
        if self._held is not None:
            check_held(*self._held)
        with self._lock:
            driver_id, frame = self._frames.get(name, ("", None))
        is_done, details = self._has(name), dict[str, str]()
        at("looked")
        if not is_done and frame is not None and driver_id == batch.driver_id:
            try:
                with commit_lock(frame.sparkSession, self._path, self.destination):
                    (
                        frame.write.format("delta")
                        .mode("append")
                        .option("txnAppId", name[0])
                        .option("txnVersion", name[1])
                        .option("userMetadata", "/".join(name))
                        .save(self._path)
                    )
            except (PySparkException, Py4JError, OSError) as error:
                if not _is_refusal(error):
                    raise SinkError(
                        self.destination, f"it takes no batch: {_message(error)}", "fix the table"
                    ) from error
                # Should the table have the rows, it skips them when Spark replays the batch.
                columns = frame.schema.simpleString()[:500]
                details["refused"] = f"{_message(error)}; the batch has {columns}"
            else:
                at("written")
                is_done = True
        if is_done or details:
            with self._lock:
                self._frames.pop(name, None)
        return PartOutcome(sink=part.sink, is_done=is_done, rows=part.rows, details=details)

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        """See `BatchSink`: nothing is staged."""

    def _has(self, name: tuple[str, str]) -> bool:
        """Whether the newest part of the table's history shows the transaction; a write checks again."""
        assert self._spark is not None, "prepared"
        try:
            history = self._spark.sql(
                f"DESCRIBE HISTORY delta.`{self._path}` LIMIT {_COMMITS_READ}"
            )
            return bool(history.where(history.userMetadata == "/".join(name)).limit(1).collect())
        except AnalysisException:
            return False  # the table does not exist yet


def _is_refusal(error: Exception) -> bool:
    """Whether each retry would fail: Spark has tried each task several times."""
    # The error in the JVM, as PySpark keeps it for errors of known types, and py4j for others.
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    for _ in range(_CAUSES_READ):
        if cause is None:
            break
        if str(cause.getClass().getSimpleName()).endswith(_CONSTRAINT):
            return True
        cause = cause.getCause()
    return isinstance(error, AnalysisException | PythonException)


def _message(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
