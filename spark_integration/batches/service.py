"""Driver of a job that commits batches. It has no subtasks and runs in the process that owns the Spark session."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self, cast

from coordlog.errors import (
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
from coordlog.spark_integration.batches.parquet import FilesSink, writers_name
from coordlog.spark_integration.batches.payloads import BatchPart, CommitBatch
from coordlog.spark_integration.batches.sinks import At, BatchSink, PartsSink, nowhere
from coordlog.spark_integration.dataframes.registry import register_format
from coordlog.spark_integration.driver.log_choice import LogChoice
from coordlog.spark_integration.driver.stage import (
    lost_session,
    name_lost_session,
    warn_of_many_tries,
)
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

_END_CHECK_S = 0.5
"""Seconds between two checks, while waiting for an outcome, whether the driver has ended."""


class BatchService:
    """Commits a job's batches. Call `start` once, and `close` at the end or use a `with` block. Thread-safe.

    Args:
        job_id: Id of the job, which outlives drivers; `[a-z0-9][a-z0-9-]{0,99}`.
        sinks: Sinks by name.
        bootstrap_servers: Addresses of Kafka; the job's topic is created if it does not exist.
        log: Log of this job and of no other job, instead of `bootstrap_servers`.
        instead_of: Id of an older query that a new query may replace; empty for none.
        take_over: Take a live driver's place.
        log_timeout_s: Longest time without an answer of the log, in seconds; then the job ends.
        snapshot_every: Number of records from one snapshot to the next; None for no snapshots.
        payload_store: Store of payloads that are too large for the log, as for a `Job`.
        retry_backoff_s: Seconds before the first of five retries of a sink that could not settle; doubled for each
            further one.
        at: For tests: called with the name of each place at which a crash leaves unfinished work.

    Raises:
        OptionError: An option is out of range.
    """

    def __init__(
        self,
        *,
        job_id: str,
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
            job_id,
            take_over=take_over,
            log_timeout_s=log_timeout_s,
            snapshot_every=snapshot_every,
            payload_store=payload_store,
            restart_backoff_s=retry_backoff_s,
        )
        if not sinks or not all(sinks):
            raise OptionError("sink", sorted(sinks), "one at least, each with a name")
        self.job_id, self.sinks, self.instead_of = job_id, dict(sinks), instead_of
        self._log = LogChoice(job_id, bootstrap_servers, log)
        self._at, self._log_timeout_s = at, log_timeout_s
        self._parts = PartsSink(job_id, self.sinks, at)
        self._driver: JobDriver | None = None
        self._surroundings: StagelessSurroundings | None = None
        self._spark: SparkSession | None = None
        self._log_id = ("", "")
        self._changed = threading.Condition()
        self._released_to = -1
        """Sequence of the newest released record."""
        self._error: BaseException | None = None

    # --- start and end ------------------------------------------------------------------------------------------------
    def start(self, spark: SparkSession) -> None:
        """Begin an epoch of the job, settle the last driver's open intents, and remove its staged data.

        Raises:
            DriverAliveError: A live driver holds the job.
            RestoreError: The history is incompatible.
            SinkError: A sink cannot be written to, or belongs to another job.
            LogError: The log failed.
            EnvironmentSetupError: No process of this session can run a driver.
            UsageError: The service was started before.
        """
        if self._driver is not None:
            raise UsageError(
                f"the batch service of job {self.job_id} was started before: create a new one"
            )
        refuse_connect(spark, "the batch service")
        try:
            with name_lost_session(spark):
                self._start(spark)
                self._settle_open()
                self._sweep()
            self._warn_of_former()
        except BaseException:
            self.close()
            raise

    def _warn_of_former(self) -> None:
        if self.instead_of in self.state.former:
            _log.warning(
                "job=%s remove instead_of=%r: query %s has taken its place already. If log and checkpoint are both "
                "lost later, it would allow another query, which writes rows again",
                self.job_id,
                self.instead_of,
                self.state.query_id,
            )

    def _start(self, spark: SparkSession) -> None:
        warn_of_many_tries(spark)
        for _, sink in sorted(self.sinks.items()):
            sink.prepare(self.job_id, spark)
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
        self._parts.spark = spark
        self._parts.driver_id = provider.driver_id = driver.driver_id
        self._error, self._released_to = None, -1
        driver.start()
        self._driver, self._surroundings, self._spark = driver, surroundings, spark
        self._log_id = (log.identity.cluster_id, log.identity.topic_id)

    def _provider(self) -> BatchProvider:
        return BatchProvider(
            sink=self._parts,
            sinks=frozenset(self.sinks),
            destination=self._parts.destination,
            refuse_writes_above=self._parts.refuse_writes_above,
        )

    def close(self) -> None:
        """End the driver; the next one settles its open intents. A second call does nothing."""
        driver, self._driver = self._driver, None
        try:
            if driver is not None:
                driver.stop(with_checkpoint=False, by="close")
                with suppress(CoordlogError):  # threads that wait for an outcome raise the error
                    driver.wait()
        finally:
            self._log.close()

    def __enter__(self) -> Self:
        """Return the service; does not start it."""
        return self

    def __exit__(self, *_error: object) -> None:
        """See `close`."""
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether the driver has been started and has not ended, and its Spark session has not ended either."""
        if self._driver is None or self._error is not None or self._spark is None:
            return False
        return lost_session(self._spark) is None

    @property
    def driver_id(self) -> str:
        """Id of the driver; after `start`."""
        return self._parts.driver_id

    @property
    def log_id(self) -> tuple[str, str]:
        """Ids of the log's cluster and topic; after `start`."""
        return self._log_id

    @property
    def endpoint(self) -> str:
        """Address of the driver for clients that have its token; after `start`."""
        if self._surroundings is None:
            raise UsageError(
                f"the batch service of job {self.job_id} has not been started: call `start` first"
            )
        return self._surroundings.address

    def options(self, sink: str = "sink") -> dict[str, str]:
        """Options of `format("coordlog")` for a sink that writes files.

        Call it after `start`, on the thread that writes: it registers the format, which Spark finds by the active
        session of the thread.

        The token is not among the options, because Spark shows them. Spark's processes read it from its file on this
        machine.

        Raises:
            OptionError: There is no such sink, or it does not write files.
            UsageError: The service has not been started.
        """
        target = self.sinks.get(sink)
        if not isinstance(target, FilesSink):
            names = sorted(self.sinks)
            files = [name for name in names if isinstance(self.sinks[name], FilesSink)]
            raise OptionError(
                "sink",
                sink,
                f"a sink of files or of a table's ({', '.join(files) or 'this service has none'}); write to other "
                "sinks with `exactly_once`",
            )
        endpoint = self.endpoint
        assert self._spark is not None, "it has been started"
        register_format(self._spark, {writers_name(self.job_id, sink): target.file_writers()})
        return {
            "job": self.job_id,
            "endpoint": endpoint,
            "driver": self.driver_id,
            "sink": sink,
            "instead_of": self.instead_of,
        }

    # --- batches ------------------------------------------------------------------------------------------------------
    @property
    def state(self) -> BatchesState:
        """State of the batches, folded from the log."""
        return cast("BatchesState", self._job_state.projections[BATCHES])

    def standing(self, key: BatchKey, sinks: Collection[str] | None = None) -> Standing:
        """Progress of a batch at `sinks`, or at all sinks if None. Waits until its open intents there are settled.

        Raises:
            JobFailedError, FencedError, LogError: The driver has ended.
        """
        names = self.sinks if sinks is None else sinks
        while (open_intent := standing_of(self.state, key, names).open_intent) is not None:
            self._wait_for(lambda intent=open_intent: intent not in self._job_state.intents)  # type: ignore[misc]
        last = self._job_state.next_sequence - 1
        self._wait_for(lambda: self._released_to >= last)
        return standing_of(self.state, key, names)

    def commit(self, key: BatchKey, parts: Sequence[BatchPart], ranges: str = "") -> Standing:
        """Make these parts of a batch visible and return its progress. `ranges`: as in `CommitBatch`.

        Raises:
            RequestRefusedError: The batch is of a query that may not commit here.
            UsageError: The names of the files are too large for one record.
            JobFailedError: A sink failed at every retry; the next driver tries again.
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
            count = sum(len(part.files) for part in parts)
            raise UsageError(
                f"{key} has {count} files, whose names are too large for one record ({error}): "
                "coalesce the frame to fewer partitions, or partition the files by fewer values"
            ) from error
        except RequestUnansweredError:
            self._raise_end()  # the error of an ended driver is more precise
            raise
        self._at("intent recorded")
        standing = self.standing(key, {part.sink for part in parts} or None)
        self._at("outcome recorded")
        return standing

    def why_not_done(self, key: BatchKey, standing: Standing) -> str:
        """Text with the reason why a batch is not committed, and the next step."""
        if removed := sorted(set(standing.left_sinks) - set(self.sinks)):
            return (
                f"{key} has an uncommitted part for sink {', '.join(map(repr, removed))}, which the job "
                "does not have any more: start the job with this sink, and remove the sink after the "
                "batch is committed"
            )
        refusals = self._parts.refusals
        reasons = [
            f"sink {name!r} refused its part ({refusals[name]})"
            for name in sorted(self.sinks)
            if name in refusals and name not in standing.done_sinks
        ]
        return (
            f"{key} is not committed: {', '.join(reasons) or 'a sink has not committed its part'}. Fix the "
            "function that makes the rows, or the destination, then start the query again: Spark runs "
            "the batch again"
        )

    # --- the driver ---------------------------------------------------------------------------------------------------
    def _started(self) -> JobDriver:
        if self._error is not None:
            raise self._error
        if self._driver is None:
            raise self._why_closed()
        return self._driver

    def _why_closed(self) -> UsageError:
        return UsageError(
            f"the batches of job {self.job_id} were closed while one was being written: stop the query before the "
            "end of the `with` block; the next start settles the batch, or Spark repeats it"
        )

    def _released(self, records: Sequence[Record]) -> None:
        """Note the newest released record. Runs on the mailbox."""
        with self._changed:
            self._released_to = records[-1].sequence or 0
            self._changed.notify_all()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, checking it after each released turn. Raises if the driver has ended."""
        while True:
            with self._changed:
                if self._changed.wait_for(condition, _END_CHECK_S):
                    return
            self._raise_end()

    @property
    def _job_state(self) -> JobState:
        state = self._started().state
        assert state is not None, "started"
        return state

    def _raise_end(self) -> None:
        """If the driver has ended, raise its error, or ClosedError."""
        driver = self._started()
        try:
            ended = driver.wait(0)
        except CoordlogError as error:
            self._error = error
            raise
        if ended is not None:
            raise self._why_closed()

    def _settle_open(self) -> None:
        """Wait until the last driver's open intents are settled."""
        self._wait_for(lambda: not self._job_state.intents)

    def _sweep(self) -> None:
        """Remove the staged data of earlier drivers. No open intent needs them: all are settled."""
        if self._job_state.epoch > 0:
            self._sweep_all()

    def drop_staged(self) -> None:
        """Remove all staged data, if no intent needs them. Only while no batch is being written.

        For a batch whose staging has failed: else the data of each try would stay until the next driver's start. An
        error is logged only, and nothing is removed if the driver has ended.
        """
        try:
            if not self._job_state.intents:
                self._sweep_all()
        except Exception as error:  # noqa: BLE001, also of a user's sink: the error of the staging is more important
            _log.warning("job=%s staged data were not removed: %s", self.job_id, error)

    def _sweep_all(self) -> None:
        for name, sink in sorted(self.sinks.items()):
            try:
                sink.sweep(self._is_in_force)
            except CoordlogError as error:
                # Staged data are invisible to readers, and the next start tries again.
                _log.warning(
                    "job=%s sink=%s staged data were not removed: %s", self.job_id, name, error
                )

    def _is_in_force(self) -> bool:
        """Whether this driver's epoch is in force. An answered request proves it: answers wait for the log."""
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
            _log.warning("job=%s the epoch of this driver is not in force: %s", self.job_id, error)
            return False
        return True
