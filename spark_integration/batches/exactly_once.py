"""`exactly_once`: a `foreachBatch` function whose batches become visible once, even after a crash."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from coordlog.errors import OptionError, UsageError
from coordlog.limits import LOG_TIMEOUT_S
from coordlog.log.interface import Log
from coordlog.option_types import check_types
from coordlog.spark_integration.batches.databases.database import DatabaseTable
from coordlog.spark_integration.batches.ledger import BatchKey, why_refused
from coordlog.spark_integration.batches.parquet import ParquetBatches
from coordlog.spark_integration.batches.payloads import BatchPart
from coordlog.spark_integration.batches.query import key_of, ranges_of, run_for_state, run_of
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.batches.sinks import At, Batch, BatchSink, have_query, nowhere
from coordlog.spark_integration.batches.table import TableBatches
from coordlog.spark_integration.driver.stage import name_lost_session
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.tables.delta import DeltaSink
from coordlog.spark_integration.files.tables.iceberg import IcebergSink
from coordlog.spark_integration.files.tables.sink import TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["AnySink", "ExactlyOnce", "Sinks", "exactly_once", "sinks_of"]

_log = logging.getLogger(__name__)

AnySink = BatchSink | ParquetSink | DeltaSink | IcebergSink
Sinks = AnySink | Mapping[str, AnySink]
_ONLY = "sink"
"""Name of a sink without others."""
_WRITTEN: Final[dict[tuple[str, str], tuple[str | None, BatchKey]]] = {}
"""By job's log: run and batch of the last call of any object here that has returned. A run has each batch once."""


def exactly_once(
    function: Callable[[DataFrame, int], DataFrame | Mapping[str, DataFrame]] | None = None,
    *,
    job_id: str,
    sink: Sinks,
    bootstrap_servers: str | None = None,
    log: Log | None = None,
    instead_of: str = "",
    take_over: bool = False,
    log_timeout_s: float = LOG_TIMEOUT_S,
    payload_store: str | None = None,
    at: At = nowhere,
) -> ExactlyOnce:
    """A function for `foreachBatch` that writes the result of `function` for each batch exactly once.

    `function` receives the batch and its number and returns the rows to write, without writing them;
    it may be called again for the same batch, and must then return the same rows. A batch is
    identified by the query's id, from its checkpoint, and its number. If a query with a state runs a committed
    batch again, the batch is run for the state, and its rows are dropped.

    The driver of the job starts with the first batch, in this process, and ends with `close`, or with
    the process. Another driver of the job is refused while this one is alive.

    Args:
        function: Function from a batch to the rows to write; None writes the batch itself. With several
            sinks it returns a frame for each, by name.
        job_id: Id of the job, `[a-z0-9][a-z0-9-]{0,99}`.
        sink: Destination: a `ParquetSink`, a `DeltaSink`, an `IcebergSink`, a `DatabaseTable`, a `BatchSink` of
            your own; or several by name.
        bootstrap_servers: Kafka's; the job's topic is created if it does not exist.
        log: Instead of the servers: log of this job and of no other.
        instead_of: Id of the job's earlier query, if this is a new query with another checkpoint that
            begins after the earlier query's rows. Without it such a query is refused.
        take_over: Take a live driver's place, at the first start only; after being fenced this driver is
            refused while the other is alive.
        log_timeout_s: Longest wait of a batch for the log before the query fails.
        payload_store: Store of payloads that are too large for the log, as for a `Job`.
        at: Called with the name of each place at which a crash would leave unfinished work; tests crash there.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several options have a wrong type.
    """
    check_types(exactly_once, locals())
    # For the first service only: two drivers that take over again and again would never finish.
    first = iter((take_over,))

    def service() -> BatchService:
        return BatchService(
            job_id=job_id,
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
    """The sinks by name; a sink without others is called `sink`."""
    named = sink if isinstance(sink, Mapping) else {_ONLY: sink}
    return {name: _of_batches(name, target) for name, target in named.items()}


def _of_batches(name: str, target: AnySink) -> BatchSink:
    if isinstance(target, ParquetSink):
        return ParquetBatches(target)
    if isinstance(target, DatabaseTable):
        return target.apart()
    return TableBatches(target, name) if isinstance(target, TableSink) else target


class ExactlyOnce:
    """Result of `exactly_once`: call it, or pass it to `foreachBatch`. Ends with `close`, or a `with` block.

    Args:
        function: As in `exactly_once`.
        service: Creates the driver: once, and again if the query is restarted after the driver has ended.
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
        self._has_begun = self._is_closed = False
        self._calls = 0
        """Batches that are being written: the thread of a query that was stopped may be late."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write this batch, unless it is committed already.

        Raises:
            UsageError: Called after `close`, or twice for a batch; not called by `foreachBatch`; a query without a
                checkpoint; another query's job; a batch that is committed with other rows; a sink that has not taken
                its part.
            DriverAliveError, RestoreError: The driver cannot start.
            SinkError: A sink failed while staging.
            SessionLostError: The Spark session ended while a sink staged.
            JobFailedError: A sink failed while settling: the next start settles the open intents.
            FencedError: Another driver has taken over, and commits this batch.
            LogError: The log failed.
        """
        key = key_of(frame, batch_id)
        service = self._running(frame)
        run = run_of(frame, key)
        if run is not None and _WRITTEN.get(service.log_id) == (run, key):
            raise UsageError(
                f"{key} has been written by an earlier call, and one call writes a whole batch: the rows of this call "
                "are not written, nor will they be if the query is started again. Pass exactly_once a function that "
                "returns a frame for each sink, with sink={name: sink, ...}"
            )
        self._write(frame, batch_id, key, service)
        _WRITTEN[service.log_id] = (run, key)

    def _write(self, frame: DataFrame, batch_id: int, key: BatchKey, service: BatchService) -> None:
        ranges = ranges_of(frame, key)
        if why_not := why_refused(service.state, key, service.instead_of, ranges):
            raise UsageError(f"job {service.job_id}: {why_not}")
        standing = service.standing(key)
        if standing.is_done:
            _log.info("job=%s %s is committed already", service.job_id, key)
            with name_lost_session(frame.sparkSession):
                run_for_state(frame, key)
            return
        if not set(standing.left_sinks) <= set(service.sinks):
            raise UsageError(f"job {service.job_id}: {service.why_not_done(key, standing)}")
        frames = self._frames(frame, batch_id, service)
        left = {name: frames[name] for name in sorted(frames) if name not in standing.done_sinks}
        with self._counted():
            self._at("before staging")
            parts = self._staged_parts(left, service, key)
            self._at("staged")
            standing = service.commit(key, parts, ranges)
        if not standing.is_done:
            raise UsageError(f"job {service.job_id}: {service.why_not_done(key, standing)}")

    @contextmanager
    def _counted(self) -> Generator[None]:
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    def _running(self, frame: DataFrame) -> BatchService:
        with self._lock:
            if self._is_closed:
                raise UsageError(
                    f"the batches of job {self._service.job_id} are closed, and a query still runs: stop the query "
                    "before the end of the `with` block, and start it again with another exactly_once(...)"
                )
            if self._has_begun and not self._service.is_running:
                # The query was restarted, after its driver had ended with an error or its session had ended.
                self._service.close()
                self._service, self._has_begun = self._make_service(), False
            if not self._has_begun:
                self._service.start(frame.sparkSession)
                self._has_begun = True
            return self._service

    def _frames(
        self, frame: DataFrame, batch_id: int, service: BatchService
    ) -> Mapping[str, DataFrame]:
        result = frame if self._function is None else self._function(frame, batch_id)
        named = result if isinstance(result, Mapping) else {_ONLY: result}
        if set(named) != set(service.sinks):
            raise UsageError(
                f"the function returned frames for {_listed(named)}, and the sinks are "
                f"{_listed(service.sinks)}: return one for each, by name; an empty frame if a sink "
                "gets no rows"
            )
        for name, value in named.items():
            if not hasattr(value, "mapInArrow"):
                raise UsageError(
                    f"the function returned a {type(value).__name__} for sink {name!r}: return the "
                    "DataFrame that is to be written"
                )
        return named

    def _staged_parts(
        self, frames: Mapping[str, DataFrame], service: BatchService, key: BatchKey
    ) -> list[BatchPart]:
        """A part for each frame; if one fails, what was staged is removed, because Spark may run the batch often."""
        try:
            return [self._staged(frame, service, key, name) for name, frame in frames.items()]
        except Exception:
            # Under the lock, so that no other batch begins meanwhile.
            with self._lock:
                if self._calls == 1:
                    service.drop_staged()
            raise

    def _staged(
        self, frame: DataFrame, service: BatchService, key: BatchKey, name: str
    ) -> BatchPart:
        batch = Batch(
            job_id=service.job_id,
            driver_id=service.driver_id,
            key=key,
            sink=name,
            is_first=not (key.batch_id or service.state.query_id)
            and not have_query(service.sinks.values(), service.job_id, service.instead_of),
        )
        with name_lost_session(frame.sparkSession):
            return service.sinks[name].stage(frame, batch)

    def close(self) -> None:
        """End the driver of the job, for good. Stop the query first; the next start settles the open intents."""
        with self._lock:
            self._is_closed = True
            self._service.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close."""
        self.close()


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"
