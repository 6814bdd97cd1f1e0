"""`coordinated_writes`: DataFrames and streams written by `format("coordlog")`, made visible once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from coordlog.errors import OptionError
from coordlog.limits import LOG_TIMEOUT_S
from coordlog.log.interface import Log
from coordlog.option_types import check_types
from coordlog.spark_integration.batches.exactly_once import Sinks, sinks_of
from coordlog.spark_integration.batches.parquet import ParquetBatches
from coordlog.spark_integration.batches.service import BatchService

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["CoordinatedWrites", "coordinated_writes"]

_FORMAT = "coordlog"


class CoordinatedWrites:
    """The driver of what is written; made by `coordinated_writes`. `start` once and `close` always, or a `with` block.

    From `start` to `close` writers of the session commit through it; those that still write when it closes
    fail, and what of theirs is in the log is settled by the next start. One job has one stream.
    """

    def __init__(self, spark: SparkSession, service: BatchService) -> None:
        self._spark, self._service = spark, service

    def start(self) -> None:
        """Begin an epoch over the job, and settle what the last driver left open.

        Raises:
            CoordlogError: As `BatchService.start`.
        """
        self._service.start(self._spark)

    def close(self) -> None:
        """End the driver. Again: nothing."""
        self._service.close()

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Close."""
        self.close()

    def options(self, sink: str = "sink") -> dict[str, str]:
        """For `format("coordlog")`; they hold no secret.

        Raises:
            OptionError: There is no such sink.
            UsageError: It has not been started.
        """
        return self._service.options(sink)

    def write(self, frame: DataFrame, *, write_id: str | None = None, sink: str = "sink") -> None:
        """Write the frame, as a whole.

        Args:
            frame: The rows.
            write_id: Of `[A-Za-z0-9._-]`: what was written under it once is not written again.
            sink: Its name, where there are several.

        Raises:
            OptionError, UsageError: As `options`.
            pyspark.errors.PySparkException: Spark's, with what the driver or the sink has said.
        """
        writer: DataFrameWriter = frame.write.format(_FORMAT).mode("append")
        writer = writer.options(**self.options(sink))
        if write_id is not None:
            writer = writer.option("write_id", write_id)
        writer.save()

    def write_stream(self, frame: DataFrame, *, sink: str = "sink") -> DataStreamWriter:
        """`frame.writeStream.format("coordlog")` with these options: give it a `checkpointLocation`, and start it.

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
    """What commits the rows that Spark's own writers of this session stage, for a `with` block.

    Args:
        spark: The session; this process owns it.
        job_id: Of the log that has what was written, `[a-z0-9][a-z0-9-]{0,99}`.
        sink: A `ParquetSink`, or several by name.
        bootstrap_servers: Of Kafka; the job's topic is made where there is none.
        log: Instead of them: the job's log, and no other's.
        instead_of: The id of the older query whose place a new one may take.
        take_over: Take a live driver's place.
        log_timeout_s: How long a commit waits for the log before the write fails.
        payload_store: Where payloads go that are too large for the log, as for a `Job`.

    Raises:
        OptionError: An option has a wrong type or is out of range, or a sink is not one of files.
        OptionsError: Several have a wrong type.
    """
    check_types(coordinated_writes, locals())
    sinks = sinks_of(sink)
    for name, one in sinks.items():
        if not isinstance(one, ParquetBatches):
            raise OptionError(
                "sink",
                f"{name}: {type(one).__name__}",
                "a `ParquetSink`: others are written with `exactly_once`",
            )
    service = BatchService(
        job=job_id,
        sinks=sinks,
        bootstrap_servers=bootstrap_servers,
        log=log,
        instead_of=instead_of,
        take_over=take_over,
        log_timeout_s=log_timeout_s,
        payload_store=payload_store,
    )
    return CoordinatedWrites(spark, service)
