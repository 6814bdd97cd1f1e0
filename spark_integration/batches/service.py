"""The driver of a job's batches: in the process that owns the Spark session, with no subtasks."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self, cast

from coordlog.errors import (
    ClosedError,
    CoordlogError,
    OptionError,
    RequestUnansweredError,
    TooLargeError,
    UsageError,
)
from coordlog.limits import (
    LOG_TIMEOUT_S,
    RESTART_BACKOFF_S,
    SNAPSHOT_EVERY_RECORDS,
)
from coordlog.log.interface import Log
from coordlog.projections.job.state import JobState
from coordlog.runtime.driver import JobDriver
from coordlog.schemas.record import Record
from coordlog.spark_integration.batches.ledger import (
    BATCHES,
    BatchesState,
    BatchKey,
    BatchProvider,
    Standing,
    standing_of,
)
from coordlog.spark_integration.batches.parquet import ParquetBatches
from coordlog.spark_integration.batches.payloads import BatchPart, CommitBatch
from coordlog.spark_integration.batches.sinks import At, BatchSink, PartsSink, nowhere
from coordlog.spark_integration.dataframes.registry import register_format
from coordlog.spark_integration.driver.log_choice import LogChoice
from coordlog.spark_integration.driver.stageless import (
    StagelessOptions,
    StagelessSurroundings,
    refuse_connect,
    stageless_chain,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BatchService"]

_log = logging.getLogger(__name__)

_LOOK_S = 0.5
"""How often one who waits for an outcome looks whether the driver has ended."""


class BatchService:
    """Commits a job's batches. `start` once, `close` always; or in a `with` block. Any thread.

    Args:
        job: The job's id, `[a-z0-9][a-z0-9-]{0,99}`; it outlives drivers.
        sinks: By name.
        bootstrap_servers: Of Kafka; the job's topic is made where there is none.
        log: Instead of them: the job's log, and no other's.
        instead_of: The id of the older query whose place a new one may take.
        take_over: Take a live driver's place.
        log_timeout_s: How long the job waits for its log before it ends.
        snapshot_every: Records of its log from one snapshot to the next; None for no snapshots.
        payload_store: Where payloads go that are too large for the log, as for a `Job`.
        retry_backoff_s: How long a sink that could not settle is left alone before it is asked again; then twice
            as long, and so on, five times in all.
        at: Told each place where a crash would leave something to be found; tests crash there.

    Raises:
        OptionError: An option is out of range.
    """

    def __init__(
        self,
        *,
        job: str,
        sinks: Mapping[str, BatchSink],
        bootstrap_servers: str | None = None,
        log: Log | None = None,
        instead_of: str = "",
        take_over: bool = False,
        log_timeout_s: float = LOG_TIMEOUT_S,
        snapshot_every: int | None = SNAPSHOT_EVERY_RECORDS,
        payload_store: str | None = None,
        retry_backoff_s: float = RESTART_BACKOFF_S,
        at: At = nowhere,
    ) -> None:
        self._options = StagelessOptions(
            job,
            take_over=take_over,
            log_timeout_s=log_timeout_s,
            snapshot_every=snapshot_every,
            payload_store=payload_store,
            restart_backoff_s=retry_backoff_s,
        )
        if not sinks or not all(sinks):
            raise OptionError("sink", sorted(sinks), "one at least, each with a name")
        self.job_id, self.sinks, self.instead_of = job, dict(sinks), instead_of
        self._log = LogChoice(job, bootstrap_servers, log)
        self._at, self._log_timeout_s = at, log_timeout_s
        self._parts = PartsSink(job, self.sinks, at)
        self._driver: JobDriver | None = None
        self._surroundings: StagelessSurroundings | None = None
        self._spark: SparkSession | None = None
        self._changed = threading.Condition()
        self._released_to = -1
        """The sequence of the newest record that is known to count."""
        self._error: BaseException | None = None

    # --- life ---------------------------------------------------------------------------------------------------------
    def start(self, spark: SparkSession) -> None:
        """Begin an epoch over the job, settle what the last driver left open, and sweep after it.

        Raises:
            DriverAliveError: A live driver holds the job.
            RestoreError: The history does not fit.
            SinkError: A sink cannot be written to, or is not this job's.
            LogError: The log.
            EnvironmentSetupError: No process of this session can have a driver.
            UsageError: It has been started before.
        """
        if self._driver is not None:
            raise UsageError(f"the batches of job {self.job_id} have been started: make new ones")
        refuse_connect(spark, "what commits batches")
        for _, sink in sorted(self.sinks.items()):
            sink.prepare(self.job_id, spark)
        try:
            self._start(spark)
            self._settle_left()
            self._sweep()
        except BaseException:
            self.close()
            raise

    def _start(self, spark: SparkSession) -> None:
        log = self._log.open()
        surroundings = StagelessSurroundings(spark, job_id=self.job_id)
        provider = self._provider()
        driver = JobDriver(
            chain=stageless_chain(provider),
            log=log,
            options=self._options.on(spark, log),
            surroundings=surroundings,
            on_released=self._released,
        )
        self._parts.driver_id = provider.driver_id = driver.driver_id
        self._error, self._released_to = None, -1
        driver.start()
        self._driver, self._surroundings, self._spark = driver, surroundings, spark

    def _provider(self) -> BatchProvider:
        there = [f"{name}={sink.destination}" for name, sink in sorted(self.sinks.items())]
        return BatchProvider(
            sink=self._parts,
            sinks=frozenset(self.sinks),
            destination=" ".join(there),
        )

    def close(self) -> None:
        """End the driver; what is open is settled by the next one. Again: nothing happens."""
        driver, self._driver = self._driver, None
        try:
            if driver is not None:
                driver.stop(with_checkpoint=False, by="close")
                with suppress(CoordlogError):  # whoever has asked it for something has been told
                    driver.wait()
        finally:
            self._log.close()

    def __enter__(self) -> Self:
        """The service; started by `start`."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close."""
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether its driver has been started and has not ended."""
        return self._driver is not None and self._error is None

    @property
    def driver_id(self) -> str:
        """Of the driver; after `start`."""
        return self._parts.driver_id

    @property
    def endpoint(self) -> str:
        """Where clients with the driver's token reach it; after `start`."""
        if self._surroundings is None:
            raise UsageError(f"the batches of job {self.job_id} have not been started")
        return self._surroundings.address

    def options(self, sink: str = "sink") -> dict[str, str]:
        """The options of `format("coordlog")` for one of its sinks, which must be of Parquet files; after `start`.

        From now on the session knows the format.

        The token is not among them: Spark shows options. Its processes on this machine find it in its file.

        Raises:
            OptionError: There is no such sink, or Spark's own writers cannot stage its rows.
            UsageError: It has not been started.
        """
        target = self.sinks.get(sink)
        if not isinstance(target, ParquetBatches):
            files = [n for n, one in sorted(self.sinks.items()) if isinstance(one, ParquetBatches)]
            raise OptionError(
                "sink",
                sink,
                f"one of Parquet files, {', '.join(files) or 'of which there is none'}; others are "
                "written with `exactly_once`",
            )
        endpoint = self.endpoint
        assert self._spark is not None, "it has been started"
        register_format(self._spark)
        return {
            "job": self.job_id,
            "endpoint": endpoint,
            "driver": self.driver_id,
            "sink": sink,
            "instead_of": self.instead_of,
            "files": json.dumps(target.as_options(), sort_keys=True),
        }

    # --- batches ------------------------------------------------------------------------------------------------------
    @property
    def state(self) -> BatchesState:
        """What the log says of the batches, as of now."""
        return cast("BatchesState", self._job_state.projections[BATCHES])

    def standing(self, key: BatchKey, sinks: Collection[str] | None = None) -> Standing:
        """How a batch stands, at these sinks or all, once nothing of it is open any more.

        Raises:
            JobFailedError, FencedError, LogError: The driver has ended.
        """
        asked = self.sinks if sinks is None else sinks
        while (open_intent := standing_of(self.state, key, asked).open_intent) is not None:
            self._wait_for(lambda intent=open_intent: intent not in self._job_state.intents)  # type: ignore[misc]
        last = self._job_state.next_sequence - 1
        self._wait_for(lambda: self._released_to >= last)
        return standing_of(self.state, key, asked)

    def commit(self, key: BatchKey, parts: Sequence[BatchPart], ranges: str = "") -> Standing:
        """Have these parts of a batch made visible; how it stands then. `ranges`: as in `CommitBatch`.

        Raises:
            RequestRefusedError: The batch is of a query that may not commit here.
            UsageError: The parts do not go into one record: they name too many files.
            JobFailedError: A sink could not do it, however often it was tried; it is tried again by the next driver.
            FencedError, LogError: The driver has ended.
        """
        request = CommitBatch(
            query_id=key.query_id,
            batch_id=key.batch_id,
            is_write=key.is_write,
            instead_of=self.instead_of,
            driver_id=self.driver_id,
            parts=list(parts),
            ranges=ranges,
        )
        try:
            self._started().request(BATCHES, request, timeout_s=self._log_timeout_s)
        except TooLargeError as error:
            count = sum(len(one.files) for one in parts)
            raise UsageError(
                f"{key} has {count} files, whose names are too much for one record ({error}): "
                "coalesce the frame to fewer partitions, or partition the files by fewer values"
            ) from error
        except RequestUnansweredError:
            self._raise_end()  # which says more
            raise
        self._at("intent recorded")
        standing = self.standing(key, {one.sink for one in parts} or None)
        self._at("outcome recorded")
        return standing

    def why_not_done(self, key: BatchKey, standing: Standing) -> str:
        """Why a batch that was given is not committed, and what to do."""
        if gone := sorted(set(standing.left_sinks) - set(self.sinks)):
            return (
                f"{key} has a part for sink {', '.join(map(repr, gone))}, which has not taken it, and "
                "the job has no such sink any more: start it with this sink until the batch is "
                "committed, then take it out"
            )
        refusals = self._parts.refusals
        reasons = [
            f"sink {name!r} has not taken its part ({refusals[name]})"
            for name in sorted(self.sinks)
            if name in refusals and name not in standing.done_sinks
        ]
        return (
            f"{key} is not committed: {', '.join(reasons) or 'a sink has not taken its part'}; mend "
            "the function that makes the rows, or the destination, then start the query again: Spark "
            "gives the batch again"
        )

    # --- the driver ---------------------------------------------------------------------------------------------------
    def _started(self) -> JobDriver:
        if self._error is not None:
            raise self._error
        if self._driver is None:
            raise ClosedError(f"the driver of the batches of job {self.job_id}")
        return self._driver

    def _released(self, records: Sequence[Record]) -> None:
        """On the mailbox: a turn counts."""
        with self._changed:
            self._released_to = records[-1].sequence or 0
            self._changed.notify_all()

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        """Until it is so, which records that are released bring about."""
        while True:
            with self._changed:
                if self._changed.wait_for(is_so, _LOOK_S):
                    return
            self._raise_end()

    @property
    def _job_state(self) -> JobState:
        state = self._started().state
        assert state is not None, "started"
        return state

    def _raise_end(self) -> None:
        """Raise why the driver has ended, where it has."""
        driver = self._started()
        try:
            ended = driver.wait(0)
        except CoordlogError as error:
            self._error = error
            raise
        if ended is not None:
            raise ClosedError(f"the driver of the batches of job {self.job_id}")

    def _settle_left(self) -> None:
        """Wait until what the last driver left open is settled."""
        self._wait_for(lambda: not self._job_state.intents)

    def _sweep(self) -> None:
        """Remove what drivers before this one have staged: they are over, and nothing of theirs is open."""
        if self._job_state.epoch == 0:
            return
        for name, sink in sorted(self.sinks.items()):
            try:
                sink.sweep(self._is_in_force)
            except CoordlogError as error:
                # It is hidden, and the next start tries again.
                _log.warning("job=%s sink=%s nothing is swept: %s", self.job_id, name, error)

    def _is_in_force(self) -> bool:
        """Whether this driver's epoch is in force: a request that it has answered is in the log."""
        probe = CommitBatch(
            query_id="",
            batch_id=-1,
            is_write=True,
            instead_of="",
            driver_id=self.driver_id,
            parts=[],
        )
        try:
            self._started().request(BATCHES, probe)
        except CoordlogError as error:
            _log.warning("job=%s not in force: %s", self.job_id, error)
            return False
        return True
