"""`exactly_once`: a `foreachBatch` function whose batches become visible once, whatever dies when."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self

from coordlog.errors import OptionError, UsageError
from coordlog.limits import LOG_TIMEOUT_S
from coordlog.log.interface import Log
from coordlog.option_types import check_types
from coordlog.spark_integration.batches.ledger import BatchKey, why_refused
from coordlog.spark_integration.batches.parquet import ParquetBatches
from coordlog.spark_integration.batches.payloads import BatchPart
from coordlog.spark_integration.batches.query import key_of, ranges_of
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.batches.sinks import At, Batch, BatchSink, nowhere
from coordlog.spark_integration.files.sink.sink import ParquetSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["AnySink", "ExactlyOnce", "Sinks", "exactly_once", "sinks_of"]

_log = logging.getLogger(__name__)

AnySink = BatchSink | ParquetSink
Sinks = AnySink | Mapping[str, AnySink]
_ONLY = "sink"
"""The name of a sink that is the only one."""


def exactly_once(
    function: Callable[[DataFrame, int], DataFrame | Mapping[str, DataFrame]] | None = None,
    *,
    job: str,
    sink: Sinks,
    bootstrap_servers: str | None = None,
    log: Log | None = None,
    instead_of: str = "",
    take_over: bool = False,
    log_timeout_s: float = LOG_TIMEOUT_S,
    payload_store: str | None = None,
    at: At = nowhere,
) -> ExactlyOnce:
    """A function for `foreachBatch` that writes what `function` makes of a batch, exactly once.

    `function` gets the batch and its number, and returns what is to be written, without writing it
    itself; it may be called again for the same batch, and must make the same of it. A batch is
    known by the query's id, from its checkpoint, and its number.

    The driver of the job begins with the first batch, in this process, and ends with `close`, or
    the process. Another driver of the job is refused as long as it lives.

    Args:
        function: What a batch becomes; None: itself. With several sinks: a frame for each, by name.
        job: The job's id, `[a-z0-9][a-z0-9-]{0,99}`.
        sink: Where it goes: a `ParquetSink`, a `DatabaseTable`, a `DeltaTable`, an `IcebergTable`, a
            `BatchSink` of your own; or several by name.
        bootstrap_servers: Of Kafka; the job's topic is made where there is none.
        log: Instead of them: the job's log, and no other's.
        instead_of: The id of the query that the job has had, where this is a new one, with another
            checkpoint, that begins after what the older one has done. Without it that is refused.
        take_over: Take a live driver's place, in the first start; once fenced it is refused while the other lives.
        log_timeout_s: How long a batch waits for the log before the query fails.
        payload_store: Where payloads go that are too large for the log, as for a `Job`.
        at: Told each place where a crash would leave something to be found; tests crash there.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several have a wrong type.
    """
    check_types(exactly_once, locals())
    first = iter(
        (take_over,)
    )  # of the first service only: two who take over again never come to an end

    def service() -> BatchService:
        return BatchService(
            job=job,
            sinks=sinks_of(sink),
            bootstrap_servers=bootstrap_servers,
            log=log,
            instead_of=instead_of,
            take_over=next(first, False),
            log_timeout_s=log_timeout_s,
            payload_store=payload_store,
            at=at,
        )

    return ExactlyOnce(function, service=service, at=at)


def sinks_of(sink: Sinks) -> dict[str, BatchSink]:
    """The sinks by name; one alone is called `sink`."""
    named = sink if isinstance(sink, Mapping) else {_ONLY: sink}
    return {
        name: ParquetBatches(one) if isinstance(one, ParquetSink) else one
        for name, one in named.items()
    }


class ExactlyOnce:
    """What `exactly_once` returns: call it, or hand it to `foreachBatch`. Ends with `close`, or a `with` block.

    Args:
        function: As in `exactly_once`.
        service: Makes the driver: once, and again where the query is started again after the driver has ended.
        at: As in `exactly_once`.

    Raises:
        OptionError: As in `exactly_once`.
    """

    def __init__(
        self,
        function: Callable[[DataFrame, int], DataFrame | Mapping[str, DataFrame]] | None,
        *,
        service: Callable[[], BatchService],
        at: At = nowhere,
    ) -> None:
        if function is not None and not callable(function):
            raise OptionError("function", function, "a function of a batch and its number, or None")
        self._function, self._make_service, self._at = function, service, at
        self._lock = threading.Lock()
        self._service = service()
        self._has_begun = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write this batch, unless it is written.

        Raises:
            UsageError: Not called by `foreachBatch`; a query without a checkpoint; another query's job; a batch that
                is committed with other rows; a sink that has not taken its part.
            DriverAliveError, RestoreError: The driver cannot begin.
            SinkError: A sink, while staging.
            JobFailedError: A sink, while settling: the next start settles what is open.
            FencedError: Another driver has taken over; this batch is its.
            LogError: The log.
        """
        key = key_of(frame, batch_id)
        service = self._running(frame)
        ranges = ranges_of(frame, key)
        if why_not := why_refused(service.state, key, service.instead_of, ranges):
            raise UsageError(f"job {service.job_id}: {why_not}")
        standing = service.standing(key)
        if standing.is_done:
            _log.info("job=%s %s is committed already", service.job_id, key)
            return
        if not set(standing.left_sinks) <= set(service.sinks):
            raise UsageError(f"job {service.job_id}: {service.why_not_done(key, standing)}")
        frames = self._frames(frame, batch_id, service)
        self._at("before staging")
        parts = [
            self._staged(frames[name], service, key, name)
            for name in sorted(frames)
            if name not in standing.done_sinks
        ]
        self._at("staged")
        standing = service.commit(key, parts, ranges)
        if not standing.is_done:
            raise UsageError(f"job {service.job_id}: {service.why_not_done(key, standing)}")

    def _running(self, frame: DataFrame) -> BatchService:
        with self._lock:
            if self._has_begun and not self._service.is_running:
                # The query has been started again, after its driver had ended with an error.
                self._service.close()
                self._service, self._has_begun = self._make_service(), False
            if not self._has_begun:
                self._service.start(frame.sparkSession)
                self._has_begun = True
            return self._service

    def _frames(
        self, frame: DataFrame, batch_id: int, service: BatchService
    ) -> Mapping[str, DataFrame]:
        made = frame if self._function is None else self._function(frame, batch_id)
        named = made if isinstance(made, Mapping) else {_ONLY: made}
        if set(named) != set(service.sinks):
            raise UsageError(
                f"the function returned frames for {_listed(named)}, and the sinks are "
                f"{_listed(service.sinks)}: return one for each, by name; an empty one where a sink "
                "gets nothing"
            )
        for name, one in named.items():
            if not hasattr(one, "mapInArrow"):
                raise UsageError(
                    f"the function returned a {type(one).__name__} for sink {name!r}: return the "
                    "DataFrame that is to be written"
                )
        return named

    def _staged(
        self, frame: DataFrame, service: BatchService, key: BatchKey, name: str
    ) -> BatchPart:
        batch = Batch(job_id=service.job_id, driver_id=service.driver_id, key=key, sink=name)
        return service.sinks[name].stage(frame, batch)

    def close(self) -> None:
        """End the driver of the job. Stop the query first; what is open is settled by the next start."""
        with self._lock:
            self._service.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close."""
        self.close()


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(repr(one) for one in sorted(names)) or "none"
