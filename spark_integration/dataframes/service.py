"""The service behind `format("coordlog")`: a driver without subtasks, in the process that owns the Spark session."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Collection
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, cast, runtime_checkable
from uuid import uuid4

import pyarrow as pa

from coordlog.api.chain import Chain, SourceSpec
from coordlog.coordinators.query_rejects import RejectsPlace
from coordlog.coordinators.query_source import CoordinatedSource, ReadsProvider
from coordlog.errors import (
    CoordinatorRestartingError,
    OptionError,
    SourceError,
    UsageError,
)
from coordlog.limits import (
    LISTING_TIMEOUT_S,
    LOG_TIMEOUT_S,
    SNAPSHOT_EVERY_RECORDS,
)
from coordlog.log.interface import Log
from coordlog.option_types import check_all, check_range, check_types
from coordlog.projections.splits.query_reads import ReadsState
from coordlog.runtime.driver import JobDriver
from coordlog.schemas.reads import QueryReads, ReadsSeen
from coordlog.spark_integration.dataframes.query_end import end_stage, end_stages
from coordlog.spark_integration.dataframes.registry import (
    forget_ticket,
    make_active,
    register_ticket,
)
from coordlog.spark_integration.dataframes.ticket import OPERATOR_ID, Ticket
from coordlog.spark_integration.driver.endpoint_options import EndpointOptions
from coordlog.spark_integration.driver.log_choice import LogChoice
from coordlog.spark_integration.driver.stage import (
    is_local_session,
    name_lost_session,
    warn_of_many_tries,
)
from coordlog.spark_integration.driver.stageless import (
    StagelessOptions,
    StagelessSurroundings,
    refuse_connect,
)
from coordlog.spark_integration.files.places import check_apart
from coordlog.spark_integration.task.worker_probe import WorkerProbe, use_own_interpreter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

__all__ = ["CoordinatedReads", "Readable", "coordinated"]

_log = logging.getLogger(__name__)

_POLL_S = 0.02
_PARTITIONS_MAX = 10_000
_STAGES_MAX = 1_000


@runtime_checkable
class Readable(Protocol):
    """A source that queries can read, for example `FileSource`."""

    def coordinated(self) -> CoordinatedSource:
        """The source as its coordinator lists it and tasks read it.

        Raises:
            OptionError: An option has no meaning in a query.
        """
        ...


class CoordinatedReads:
    """One service of reads, from `coordinated`. `start` once and `close` always, or a `with` block.

    From `start` to `close` queries of the session read the source; queries that still run at `close`
    fail. Each split is recorded in the job's log before a task receives it.
    """

    def __init__(
        self,
        spark: SparkSession,
        job_id: str,
        source: Readable,
        *,
        log: LogChoice,
        partitions: int | None,
        splits_per_batch: int | None,
        abandoned: Collection[str],
        listing_timeout_s: float,
        take_over: bool,
        log_timeout_s: float,
        snapshot_every: int | None,
        payload_store: str | None,
        endpoint: EndpointOptions | None,
    ) -> None:
        self._options = StagelessOptions(
            job_id,
            take_over=take_over,
            log_timeout_s=log_timeout_s,
            snapshot_every=snapshot_every,
            payload_store=payload_store,
        )
        check_all(
            lambda: check_range("partitions", partitions, 1, _PARTITIONS_MAX),
            lambda: check_range("splits_per_batch", splits_per_batch, 1, 1_000_000),
            lambda: check_range("listing_timeout_s", listing_timeout_s, 0, 86_400),
        )
        self.job_id, self._spark, self._log = job_id, spark, log
        self._source = source.coordinated()
        self._partitions, self._splits_max = partitions, splits_per_batch or 0
        self._abandoned = _names("abandoned", abandoned)
        self._listing_timeout_s, self._log_timeout_s = listing_timeout_s, log_timeout_s
        self._endpoint = endpoint
        self._driver: JobDriver | None = None
        self._ticket: Ticket | None = None
        self._stages: deque[int] = deque(maxlen=_STAGES_MAX)
        """Newest stages whose tasks have requested splits."""

    # --- life -------------------------------------------------------------------------------------
    def start(self) -> None:
        """Restore the job, list the source, and register the format with the session.

        If the source has an end, this returns after the whole source has been listed.

        Raises:
            SourceError: The source cannot be listed, or has no content from which to infer the schema.
            OptionError: Spark has no type for a column.
            EnvironmentSetupError: No process of this session can run a service, or its tasks cannot
                import the source.
            RestoreError: The history is of another kind of job, or incompatible.
            DriverAliveError: A live driver holds the job.
            LogError: The log failed.
        """
        if self._driver is not None:
            raise UsageError(f"the reads of job {self.job_id} were started before: create new ones")
        try:
            with name_lost_session(self._spark):
                self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        refuse_connect(self._spark, 'format("coordlog")')
        use_own_interpreter(self._spark, is_local=is_local_session(self._spark))
        probe = WorkerProbe(self._spark, self._source.create_reader, 'format("coordlog")')
        try:
            self._start_driver(probe)
        finally:
            probe.cancel()

    def _start_driver(self, probe: WorkerProbe) -> None:
        log = self._log.open()
        if log.high_watermark() == 0:
            # Fails at once: the service itself would retry for a while, because a store may recover.
            self._source.settle_schema(None)
        partitions = self._partitions or max(1, int(self._spark.sparkContext.defaultParallelism))
        surroundings = StagelessSurroundings(
            self._spark, job_id=self.job_id, endpoint=self._endpoint, on_end=self._end_queries
        )
        probe.check()
        rejects = self._source.rejects
        if rejects is not None:
            rejects.prepare(self.job_id)
        driver = self._new_driver(surroundings, log)
        driver.start()
        self._driver = driver
        ticket = Ticket(
            job_id=self.job_id,
            endpoint=surroundings.address,
            token=surroundings.token,
            certificate=surroundings.certificate,
            create_reader=self._source.create_reader,
            rejects=self._claimed(driver, log),
            readers=self._source.readers,
            schema_json=_spark_schema(self.job_id, self._settled_schema(driver)),
            partitions=partitions,
            splits_max=self._splits_max,
            locations=_locations(self._source.location),
        )
        register_ticket(self._spark, ticket)
        self._ticket = ticket
        warn_of_many_tries(self._spark)

    def _claimed(self, driver: JobDriver, log: Log) -> RejectsPlace | None:
        """The place of rejects, once the driver's epoch is in force."""
        rejects, state = self._source.rejects, driver.state
        if rejects is None:
            return None
        assert state is not None, "started"
        former = state.launch_info.former_logs
        return rejects.claim(self.job_id, log.identity, former, f"reads-{uuid4().hex}")

    def _new_driver(self, surroundings: StagelessSurroundings, log: Log) -> JobDriver:
        provider = ReadsProvider(
            OPERATOR_ID,
            self._source,
            listing_timeout_s=self._listing_timeout_s,
            abandoned=self._abandoned,
            end_query=partial(end_stage, self._spark),
            on_stage=self._note_stage,
        )
        spec = SourceSpec(
            operator_id=OPERATOR_ID,
            options=self._source.options,
            location=self._source.location,
            inputs=self._source.inputs,
            archive=self._source.archive,
            allows_other_location=self._source.allows_other_location,
            create_reader=self._source.create_reader,
            coordinator=provider,
            is_unbounded=self._source.is_unbounded,
        )
        chain = Chain(source=spec, operators=())
        check_apart(chain)
        return JobDriver(
            chain=chain,
            log=log,
            options=self._options.on(self._spark, log),
            surroundings=surroundings,
        )

    def _settled_schema(self, driver: JobDriver) -> pa.Schema:
        """Schema of the known splits, after the whole listing if the source has an end."""
        until = time.monotonic() + self._listing_timeout_s + self._log_timeout_s
        while True:
            seen = self._query(driver)
            if seen is not None and seen.problem:
                raise SourceError(f"source of job {self.job_id}", seen.problem, "fix that")
            if seen is not None and (seen.is_listed or self._source.is_unbounded):
                break
            if time.monotonic() > until:
                raise SourceError(
                    f"source of job {self.job_id}",
                    "its listing has not ended in time",
                    "set a longer `listing_timeout_s`",
                )
            if driver.wait(_POLL_S) is not None:
                raise UsageError(f"the driver of job {self.job_id} has ended while it started")
        state = driver.state
        assert state is not None, "started"
        reads = cast("ReadsState", state.projections[OPERATOR_ID])
        for _, entry in sorted(reads.splits.items())[:1]:
            return self._source.schema_of(entry.split)
        return self._source.settle_schema(reads.kept)

    def _query(self, driver: JobDriver) -> ReadsSeen | None:
        try:
            answer = driver.request(OPERATOR_ID, QueryReads(after=-1, splits_max=0))
        except CoordinatorRestartingError:
            return None
        assert isinstance(answer.response, ReadsSeen), "a query has one type of answer"
        return answer.response

    def close(self) -> None:
        """End the service; queries that still read fail. A second call does nothing.

        Raises:
            CoordlogError: The error that ended the service before this call.
        """
        driver, self._driver = self._driver, None
        try:
            if driver is not None:
                self._end_queries()
                driver.stop(with_checkpoint=False, by="close")
                driver.wait()
        finally:
            self._log.close()

    def _note_stage(self, stage_id: int) -> None:
        if stage_id not in self._stages:
            self._stages.append(stage_id)

    def _end_queries(self) -> None:
        """End the queries of this service, and its registration; only logged if the session has been stopped.

        At `close`, and on the driver's thread if the driver ends before.
        """
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        reason = (
            f"the service of job {self.job_id} has ended: start it again with coordinated(...), then create the "
            "DataFrame and run the query again"
        )
        try:
            forget_ticket(self._spark, ticket, reason)
            end_stages(self._spark, set(self._stages), reason)
        except Exception as error:  # noqa: BLE001, any error of a stopped session or a lost JVM
            _log.info("job=%s the session cannot forget its service: %s", self.job_id, error)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; an error of the block takes precedence, with the service's own error as a note."""
        try:
            self.close()
        except Exception as own:
            if error is None:
                raise
            error.add_note(f"the reads of job {self.job_id} had ended: {own}")

    # --- queries ----------------------------------------------------------------------------------
    def options(self) -> dict[str, str]:
        """Options for `spark.read` and `spark.readStream`, without secrets. Call it on the thread that uses them."""
        make_active(self._spark)
        return {"job": self.job_id}

    def read(self) -> DataFrame:
        """`spark.read.format("coordlog")` with these options, loaded."""
        return self._spark.read.format("coordlog").options(**self.options()).load()

    def read_stream(self) -> DataFrame:
        """`spark.readStream.format("coordlog")` with these options, loaded."""
        stream: DataStreamReader = self._spark.readStream
        return stream.format("coordlog").options(**self.options()).load()


def coordinated(
    spark: SparkSession,
    job_id: str,
    source: Readable,
    *,
    bootstrap_servers: str | None = None,
    log: Log | None = None,
    partitions: int | None = None,
    splits_per_batch: int | None = None,
    abandoned: Collection[str] = (),
    listing_timeout_s: float = LISTING_TIMEOUT_S,
    take_over: bool = False,
    log_timeout_s: float = LOG_TIMEOUT_S,
    snapshot_every: int | None = SNAPSHOT_EVERY_RECORDS,
    payload_store: str | None = None,
    endpoint: EndpointOptions | None = None,
) -> CoordinatedReads:
    """A service that assigns the splits of `source` to queries of this session, for a `with` block.

    Args:
        spark: The session, owned by this process.
        job_id: Id of the job whose log records the reads; `[a-z0-9][a-z0-9-]{0,99}`. A stream continues
            only under the id that it started with.
        source: A `FileSource`. With `watch`, streams also read files that arrive later.
        bootstrap_servers: Kafka's; the job's topic is created if it does not exist.
        log: Instead of the servers: the job's log.
        partitions: Tasks of a read; by default as many as the session runs at once. They share the
            splits of the read: each requests its next split after the last.
        splits_per_batch: Most splits of one batch of a stream; by default no limit.
        abandoned: Names of abandoned streams, as `coordlog reads` lists them: ranges of topics are forgotten
            without waiting for these streams. If one continues later at forgotten ranges, it is refused.
        listing_timeout_s: Longest time of failing listings before queries get the error.
        take_over: Take a live driver's place.
        log_timeout_s: Longest time without an answer of the log before the service ends.
        snapshot_every: Records of the log from one snapshot to the next; None for no snapshots.
        payload_store: Store of payloads that are too large for the log, as for a `Job`.
        endpoint: Address at which the service listens, and its encryption, as for a `Job`.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several options have a wrong type.
    """
    check_types(coordinated, locals())
    return CoordinatedReads(
        spark,
        job_id,
        source,
        log=LogChoice(job_id, bootstrap_servers, log),
        partitions=partitions,
        splits_per_batch=splits_per_batch,
        abandoned=abandoned,
        listing_timeout_s=listing_timeout_s,
        take_over=take_over,
        log_timeout_s=log_timeout_s,
        snapshot_every=snapshot_every,
        payload_store=payload_store,
        endpoint=endpoint,
    )


def _locations(location: str | None) -> tuple[str, ...]:
    """Spellings of the source's path that a query may use: absolute, or relative to the current folder."""
    if location is None:
        return ()
    if "://" in location:
        return (location,)
    relative = os.path.relpath(location)
    return (relative, f"{relative}/", f"{location}/", location)


def _spark_schema(job_id: str, schema: pa.Schema) -> str:
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415, as above

    for field in schema:
        try:
            from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True)
        except Exception as error:
            raise OptionError(
                f"column {field.name!r} of job {job_id}",
                str(field.type),
                "of a type that Spark has: set another `schema` of the source",
            ) from error
    return str(from_arrow_schema(schema, prefer_timestamp_ntz=True).json())


def _names(option: str, value: Collection[str]) -> frozenset[str]:
    names: object = value  # untyped callers may pass anything
    is_list = isinstance(names, Collection) and not isinstance(names, str)
    if not is_list or not all(isinstance(name, str) and name for name in value):
        raise OptionError(option, value, 'a list of names, such as ["5f1c09ab"]')
    return frozenset(value)
