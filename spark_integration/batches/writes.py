"""`coordinated_writes`: DataFrames and streams written by `format("coordlog")`, made visible once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from coordlog.errors import OptionError
from coordlog.limits import LOG_TIMEOUT_S
from coordlog.log.interface import Log
from coordlog.option_types import check_types
from coordlog.spark_integration.batches.exactly_once import Sinks, sinks_of
from coordlog.spark_integration.batches.parquet import FilesSink
from coordlog.spark_integration.batches.service import BatchService

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["CoordinatedWrites", "coordinated_writes"]

_FORMAT = "coordlog"


class CoordinatedWrites:
    """Driver of a session's writes, from `coordinated_writes`. `start` once and `close` always, or a `with` block.

    From `start` to `close` the session's writers commit through this driver. Writers that are still active at
    `close` fail; their intents in the log are settled by the next start. One job has one stream.
    """

    def __init__(self, spark: SparkSession, service: BatchService) -> None:
        self._spark, self._service = spark, service

    def start(self) -> None:
        """Begin an epoch of the job, settle the last driver's open intents, and register the format.

        Raises:
            CoordlogError: As `BatchService.start`.
        """
        self._service.start(self._spark)
        try:
            for sink in self._service.sinks:
                # Now: a stream that starts before the first write has the formats of its start in `foreachBatch`.
                self._service.options(sink)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the driver. A second call does nothing."""
        self._service.close()

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Close."""
        self.close()

    def options(self, sink: str = "sink") -> dict[str, str]:
        """Options of `format("coordlog")`, without secrets.

        Raises:
            OptionError: There is no such sink.
            UsageError: The driver has not been started.
        """
        return self._service.options(sink)

    def write(self, frame: DataFrame, *, write_id: str | None = None, sink: str = "sink") -> None:
        """Write the whole frame.

        Args:
            frame: The rows.
            write_id: Name of the write, of `[A-Za-z0-9._-]`: a committed write is not written again.
            sink: Name of the sink, if there are several.

        Raises:
            OptionError, UsageError: As `options`.
            pyspark.errors.PySparkException: Spark's error, with the message of the driver or the sink.
        """
        writer: DataFrameWriter = frame.write.format(_FORMAT).mode("append")
        writer = writer.options(**self.options(sink))
        if write_id is not None:
            writer = writer.option("write_id", write_id)
        writer.save()

    def write_stream(self, frame: DataFrame, *, sink: str = "sink") -> DataStreamWriter:
        """Writer `frame.writeStream.format("coordlog")` with these options: set a `checkpointLocation`, and start it.

        Raises:
            OptionError, UsageError: As `options`.
        """
        writer: DataStreamWriter = frame.writeStream.format(_FORMAT)
        return writer.options(**self.options(sink))


def coordinated_writes(
    spark: SparkSession,
    job_id: str,
    sink: Sinks,
    *,
    bootstrap_servers: str | None = None,
    log: Log | None = None,
    instead_of: str = "",
    take_over: bool = False,
    log_timeout_s: float = LOG_TIMEOUT_S,
    payload_store: str | None = None,
) -> CoordinatedWrites:
    """Driver that commits the rows staged by Spark's own writers of this session, for a `with` block.

    Args:
        spark: The session, owned by this process.
        job_id: Id of the job whose log records the writes, `[a-z0-9][a-z0-9-]{0,99}`.
        sink: A `ParquetSink`, a `DeltaSink` or an `IcebergSink`, or several by name.
        bootstrap_servers: Kafka's; the job's topic is created if it does not exist.
        log: Instead of the servers: log of this job and of no other.
        instead_of: Id of the older query that a new one may replace.
        take_over: Take a live driver's place.
        log_timeout_s: Longest wait of a commit for the log before the write fails.
        payload_store: Store of payloads that are too large for the log, as for a `Job`.

    Raises:
        OptionError: An option has a wrong type or is out of range, or a sink does not write files.
        OptionsError: Several options have a wrong type.
    """
    check_types(coordinated_writes, locals())
    sinks = sinks_of(sink)
    for name, target in sinks.items():
        if not isinstance(target, FilesSink):
            raise OptionError(
                "sink",
                f"{name}: {type(target).__name__}",
                "a `ParquetSink`, `DeltaSink` or `IcebergSink`: others are written with `exactly_once`",
            )
    service = BatchService(
        job_id=job_id,
        sinks=sinks,
        bootstrap_servers=bootstrap_servers,
        log=log,
        instead_of=instead_of,
        take_over=take_over,
        log_timeout_s=log_timeout_s,
        payload_store=payload_store,
    )
    return CoordinatedWrites(spark, service)
