"""`Job`: a chain of operators on a Spark session, recorded in a log."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.errors import OptionError, UsageError
from coordlog.limits import (
    CLOSE_TIMEOUT_S,
    HISTORY_MIN_S,
    PARALLELISM_MAX,
    PAYLOAD_BYTES_MAX,
    REQUEST_TIMEOUT_S,
    SNAPSHOT_EVERY_RECORDS,
    STOP_RECORD_S,
)
from coordlog.log.appender import Patience
from coordlog.log.interface import Log
from coordlog.log.job_id import check_job_id, check_log_of_job
from coordlog.option_types import check_all, check_range, check_types
from coordlog.runtime.driver import DriverOptions, JobDriver, JobResult, JobStatus
from coordlog.runtime.life.cut_start import cause_of_end
from coordlog.runtime.life.history_pruning import KeptHistory
from coordlog.runtime.requests import Answer
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.runtime.triggers import CheckpointHandle
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import NO_CHECKPOINT
from coordlog.spark_integration.driver.endpoint_options import EndpointOptions
from coordlog.spark_integration.driver.environment import SparkSurroundings
from coordlog.spark_integration.driver.jvm_end import told_of_jvm_end
from coordlog.spark_integration.driver.payload_options import PayloadChoice
from coordlog.spark_integration.driver.stage import name_lost_session
from coordlog.spark_integration.files.places import check_apart
from coordlog.spark_integration.job_options import (
    Callbacks,
    RestartPolicy,
    Start,
    Telemetry,
    Timeouts,
    check_duration,
)
from coordlog.spark_integration.session import plain_interrupts
from coordlog.spark_integration.transform import TransformFunction, transform_spec
from coordlog.telemetry.opening import JobTelemetry, open_telemetry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Job", "Operators", "check_job_options", "prepare_sinks"]

_log = logging.getLogger(__name__)

_STATUS_BASE = 128
"""Exit status of a process that a signal has ended, less the signal's number."""


@runtime_checkable
class _SourceLike(Protocol):
    def spec(self, operator_id: str = "source") -> SourceSpec: ...


@runtime_checkable
class _OperatorLike(Protocol):
    def spec(self, operator_id: str = "sink") -> OperatorSpec: ...


@runtime_checkable
class _Preparing(Protocol):
    """A sink that makes its destination ready before any attempt starts."""

    def prepare(self, job_id: str) -> None: ...


Operators = Sequence[SourceSpec | OperatorSpec | _SourceLike | _OperatorLike]


def check_job_options(options: Mapping[str, object]) -> None:
    """Check the values of options of `Job` that need no log: its id, ranges and the payload store.

    Raises:
        OptionError: One value is wrong.
        OptionsError: Several are.
    """
    check_all(*_checks(options))


class Job:
    """One logical pipeline with its log. `run` once, or `start` and then `wait`.

    Args:
        job_id: Id of the job, which outlives drivers; `[a-z0-9][a-z0-9-]{0,99}`.
        log: Log of this job and of no other.
        source: Source of the rows; short for the first of `operators`.
        transform: Function that each batch passes through.
        sink: Destination of the rows.
        operators: Instead of these three: a source first, then operators, each with the provider of its coordinator.
        parallelism: Number of subtasks; as many free slots are needed. A job restored by rollback may
            have another number than before.
        checkpoint_interval_s: Seconds between checkpoints, in streaming.
        batch: No checkpoints; after a stop or a kill, finished splits stay finished. The output becomes visible at
            the end.
        take_over: Take the place of a driver that is alive, or that cannot be proved dead from here.
        start: State with which this start of the job begins.
        restart_policy: Failures that the job survives.
        timeouts: Longest durations of the job's steps.
        snapshot_every: Records of the log from one snapshot to the next, about as many as a restore
            has to fold; None for no snapshots.
        history: Age up to which records stay in the log: the driver removes older ones while the job runs, up to a
            snapshot. With `forever` all stay.
        history_archive: Folder for files of the removed records; None: they are not archived.
        payload_store: Store of payloads that are too large for the log: a folder, or a URL of fsspec
            that all machines of the cluster reach. Without it a folder in `COORDLOG_HOME`, if session
            and broker are on this machine; else such a payload is refused.
        payload_limit_bytes: Size above which a payload goes to the store.
        endpoint: Address at which the driver listens for its tasks and for clients, and its encryption.
        telemetry: Reports to systems outside: metrics, health, traces, lineage.
        callbacks: Functions that the job calls while it runs.

    Raises:
        OptionError: An option is out of range, or source and destination are the same or within one another.
        PayloadTypeError: A payload type has no name, or is registered twice.
    """

    _driver: JobDriver | None = None
    _opened: JobTelemetry | None = None
    _is_jvm_ending = False

    def __init__(  # noqa: PLR0913, the options of a job
        self,
        *,
        job_id: str,
        log: Log,
        source: SourceSpec | _SourceLike | None = None,
        transform: TransformFunction | None = None,
        sink: OperatorSpec | _OperatorLike | None = None,
        operators: Operators | None = None,
        parallelism: int = 4,
        checkpoint_interval_s: float = 10.0,
        batch: bool = False,
        take_over: bool = False,
        start: Start | None = None,
        restart_policy: RestartPolicy | None = None,
        timeouts: Timeouts | None = None,
        snapshot_every: int | None = SNAPSHOT_EVERY_RECORDS,
        history: Literal["forever"] | timedelta = "forever",
        history_archive: str | None = None,
        payload_store: str | None = None,
        payload_limit_bytes: int = PAYLOAD_BYTES_MAX,
        endpoint: EndpointOptions | None = None,
        telemetry: Telemetry | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        check_types(type(self).__init__, locals())
        check_all(partial(check_log_of_job, job_id, log), *_checks(locals()))
        start, timeouts = start or Start(), timeouts or Timeouts()
        restart_policy = restart_policy or RestartPolicy()
        self._payloads = PayloadChoice(job_id, payload_store, payload_limit_bytes)
        self.job_id, self.log, self.parallelism, self.is_batch = job_id, log, parallelism, batch
        self._timeouts, self._callbacks = timeouts, callbacks or Callbacks()
        sink = _own(sink)
        operators = None if operators is None else [_own(link) for link in operators]
        self.chain = _chain(source, transform, sink, operators)
        _check_mode(self.chain, is_batch=batch)
        self._options = DriverOptions(
            job_id=job_id,
            parallelism=parallelism,
            is_batch=batch,
            restore=start.restore,
            allow_non_restored_state=tuple(start.allow_non_restored_state),
            from_checkpoint=start.from_checkpoint,
            is_take_over=take_over,
            is_again=start.again,
            restarts_max=restart_policy.restarts_max,
            restart_window_s=restart_policy.restart_window_s,
            runtime=RuntimeOptions(
                checkpoint_interval_s=None if batch else checkpoint_interval_s,
                checkpoint_timeout_s=timeouts.checkpoint_timeout_s,
                ack_timeout_s=timeouts.ack_timeout_s,
                registration_timeout_s=timeouts.registration_timeout_s,
                snapshot_every=snapshot_every,
            ),
            callback_timeout_s=timeouts.callback_timeout_s,
            stop_timeout_s=timeouts.stop_timeout_s,
            patience=_patience(timeouts.log_timeout_s, self._callbacks.on_waiting),
            history=_kept_history(history, history_archive),
        )
        self._endpoint, self._telemetry = endpoint, telemetry or Telemetry()

    def run(self, spark: SparkSession) -> JobResult:
        """Run to the end, or until a stop is requested.

        Ctrl-C, a notebook's interrupt and SIGTERM stop the job, in streaming with a checkpoint, within
        `stop_timeout_s`; a second signal ends it at once. Both are in the history. Only on the main thread.

        Raises:
            KeyboardInterrupt: Ctrl-C, or a notebook's interrupt, has stopped the job.
            SystemExit: SIGTERM has stopped the job; with status 143.
            JobFailedError: The job has ended as failed.
            RestoreError: The restore was refused, before anything was appended.
            DriverAliveError: A live driver holds the job.
            DriverUnknownError: A driver may hold the job: it cannot be proved dead from here.
            FencedError: Another driver has taken over.
            LogError: The log failed.
            EnvironmentSetupError: Too few slots, or a Spark that cannot run the job.
        """
        # Spark's own handler of Ctrl-C would cancel the stage before the stop could take its checkpoint.
        ended = threading.Event()

        def jvm_ends() -> None:
            self._is_jvm_ending = True
            ended.wait(limit_s)

        limit_s = self._timeouts.stop_timeout_s + STOP_RECORD_S + CLOSE_TIMEOUT_S
        with plain_interrupts(), _terminable(), told_of_jvm_end(spark, jvm_ends, limit_s=limit_s):
            try:
                return self._run_until_stopped(spark)
            finally:
                ended.set()

    def _end_with_jvm(self) -> None:
        """Raise SystemExit if the JVM is ending: under `spark-submit` the JVM receives the signal."""
        if self._is_jvm_ending:
            raise SystemExit(_STATUS_BASE + signal.SIGTERM)

    def _run_until_stopped(self, spark: SparkSession) -> JobResult:
        self._check_new()  # the driver of another call is not this one's to close
        try:
            self.start(spark)
            while True:
                result = self.wait(0.5)
                if result is not None:
                    return result
                self._end_with_jvm()
        except (KeyboardInterrupt, SystemExit) as interrupt:
            if self._driver is None:
                raise  # the start was cut off, and has ended its driver
            by = cause_of_end(interrupt)
            _log.warning(
                "job %s stops because of %s; the same signal again ends it at once", self.job_id, by
            )
            try:
                self.stop(with_checkpoint=not self.is_batch, by=by)
            except (KeyboardInterrupt, SystemExit) as again:
                self._started().end_at_once(by=cause_of_end(again))
            result = self.wait()
            assert result is not None, "without a limit it waits for the end"
            _log.warning("%s", _stopped(result, is_batch=self.is_batch))
            raise
        finally:
            # A third signal may have cut off any step above: a notebook's process would keep running the job.
            if self._driver is not None:
                self._driver.close()

    def start(self, spark: SparkSession) -> None:
        """Restore the job and start its driver; returns once the driver runs. Raises as `run`."""
        self._check_new()
        with name_lost_session(spark):
            self._start(spark)

    def _check_new(self) -> None:
        if self._driver is not None:
            raise UsageError(
                f"job {self.job_id}: this object has been started before; make a new one"
            )

    def log_place(self) -> tuple[str, int | None, int | None]:
        """Job id, epoch and newest offset in force, for `JobLogFilter`; None for what is not known. Any thread."""
        return (self.job_id, None, None) if self._driver is None else self._driver.place

    @property
    def metrics_url(self) -> str | None:
        """Address of `/metrics` and `/healthz` of a started job, as `http://127.0.0.1:9464`; None without a port."""
        return None if self._opened is None else self._opened.url

    def _start(self, spark: SparkSession) -> None:
        telemetry = open_telemetry(
            metrics_port=self._telemetry.metrics_port,
            metrics_host=self._telemetry.metrics_host,
            stuck_intervals=self._telemetry.stuck_intervals,
            otel=self._telemetry.otel,
            openlineage=self._telemetry.openlineage,
        )
        self._opened = telemetry
        try:
            self._start_driver(spark, telemetry)
        except BaseException:
            if telemetry is not None:
                telemetry.end()
            raise

    def _start_driver(self, spark: SparkSession, telemetry: JobTelemetry | None) -> None:
        prepare_sinks(self.chain, self.job_id)
        payloads = self._payloads.on(spark, self.log)
        surroundings = SparkSurroundings(
            spark,
            chain=self.chain,
            job_id=self.job_id,
            parallelism=self.parallelism,
            call_timeout_s=self._timeouts.call_timeout_s,
            payloads=payloads,
            endpoint=self._endpoint,
        )
        driver = JobDriver(
            chain=self.chain,
            log=self.log,
            options=surroundings.with_versions(replace(self._options, payloads=payloads)),
            surroundings=surroundings,
            on_restored=self._callbacks.on_restored,
            on_progress=self._callbacks.on_progress,
            on_released=self._callbacks.on_released,
            observer=telemetry,
        )
        try:
            driver.start()
            self._driver = driver
        except BaseException as error:
            # A signal may have come when the driver ran already, and was not known to this object yet.
            try:
                driver.end_at_once(by=cause_of_end(error))
            finally:
                driver.close()
            raise

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        """Result of the job; None if it has not ended within `timeout_s`. Raises as `run`."""
        return self._started().wait(timeout_s)

    def request(
        self, operator_id: str, request: Payload, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Answer:
        """Send a request to an operator's coordinator and return the answer once it is in the log.

        Any thread; raises as `JobDriver.request`. Another process calls `request_coordinator`.
        """
        return self._started().request(operator_id, request, timeout_s=timeout_s)

    def trigger_checkpoint(self) -> CheckpointHandle:
        """Trigger a checkpoint as soon as one may start; the handle waits for it. Any thread.

        Raises:
            UsageError: The job has not been started, or is a batch, which takes no checkpoints.
        """
        return self._started().trigger_checkpoint()

    def stop(
        self, *, with_checkpoint: bool = True, timeout_s: float | None = None, by: str = "stop"
    ) -> None:
        """End the driver, first with a checkpoint and its commits if requested; `wait` then returns.

        Any thread but the mailbox, which calls coordinators and `Callbacks.on_released`.

        Args:
            with_checkpoint: Whether to take a checkpoint first; a batch takes none.
            timeout_s: Longest wait for the checkpoint; None for the job's `stop_timeout_s`.
            by: Name of the caller, for the history.

        Raises:
            UsageError: The job has not been started, or the caller is the mailbox, which would wait for itself.
        """
        limit_s = self._timeouts.stop_timeout_s if timeout_s is None else timeout_s
        self._started().stop(with_checkpoint=with_checkpoint, timeout_s=limit_s, by=by)

    def end_at_once(self, *, by: str = "stop") -> None:
        """End the driver without a checkpoint, even during a `stop`; `wait` then returns. Raises as `stop`."""
        self._started().end_at_once(by=by)

    def _started(self) -> JobDriver:
        if self._driver is None:
            raise UsageError(f"job {self.job_id} has not been started: call `start` or `run` first")
        return self._driver


def prepare_sinks(chain: Chain, job_id: str) -> None:
    """Make all destinations of a chain ready, before any attempt starts."""
    for provider in chain.coordinators:
        if isinstance(provider.sink, _Preparing):
            provider.sink.prepare(job_id)


@contextmanager
def _terminable() -> Generator[None, None, None]:
    """Within the block SIGTERM raises SystemExit, if it has no other handler; on the main thread only."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(_STATUS_BASE + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stopped(result: JobResult, *, is_batch: bool) -> str:
    """Line of the log about a stop: its outcome and the next step."""
    if result.status is not JobStatus.STOPPED:
        return f"job {result.job_id} had ended before the stop"
    if is_batch:
        outcome = "stopped: finished splits stay finished"
    elif result.stop_checkpoint is not None:
        outcome = f"stopped with checkpoint {result.stop_checkpoint}"
    else:
        last = result.last_checkpoint
        since = "the start" if last == NO_CHECKPOINT else f"checkpoint {last}"
        outcome = f"stopped without a checkpoint: rows read since {since} are read again"
    return f"job {result.job_id} {outcome}; run it again to continue"


def _checks(options: Mapping[str, Any]) -> Iterator[Callable[[], object]]:
    yield partial(check_job_id, options["job_id"])
    yield partial(check_range, "parallelism", options["parallelism"], 1, PARALLELISM_MAX)
    yield partial(check_duration, "checkpoint_interval_s", options["checkpoint_interval_s"])
    yield partial(check_range, "snapshot_every", options.get("snapshot_every"), 1, 10_000_000)
    yield partial(_check_history, options.get("history", "forever"), options.get("history_archive"))
    yield partial(PayloadChoice, "job", options["payload_store"], options["payload_limit_bytes"])


def _check_history(history: Literal["forever"] | timedelta, archive: str | None) -> None:
    if isinstance(history, timedelta):
        if history.total_seconds() < HISTORY_MIN_S:
            raise OptionError("history", history, f"'forever', or {HISTORY_MIN_S:g} s or more")
    elif archive is not None:
        raise OptionError(
            "history_archive", archive, "None: no record is removed with history='forever'"
        )


def _kept_history(
    history: Literal["forever"] | timedelta, archive: str | None
) -> KeptHistory | None:
    if not isinstance(history, timedelta):
        return None
    return KeptHistory(age=history, archive=None if archive is None else Path(archive))


def _check_mode(chain: Chain, *, is_batch: bool) -> None:
    if is_batch and chain.source.is_unbounded:
        raise OptionError("batch", is_batch, "False: the source has no end, and a batch has one")


def _patience(log_timeout_s: float, on_waiting: Callable[[float, str], None] | None) -> Patience:
    if on_waiting is None:
        return Patience(log_timeout_s=log_timeout_s)
    return Patience(log_timeout_s=log_timeout_s, on_waiting=on_waiting)


def _own(link: Any) -> Any:  # noqa: ANN401, any link
    """The link, or one like it if it holds what belongs to one job: a program may give several jobs one object."""
    return link.apart() if hasattr(link, "apart") else link


def _chain(
    source: SourceSpec | _SourceLike | None,
    transform: TransformFunction | None,
    sink: OperatorSpec | _OperatorLike | None,
    operators: Operators | None,
) -> Chain:
    if operators is not None:
        if source is not None or transform is not None or sink is not None:
            raise OptionError(
                "operators", "set", "alone: `source`, `transform` and `sink` are short for it"
            )
        links: list[object] = list(operators)
    else:
        if source is None:
            raise OptionError("source", None, "set: a `FileSource`, or a `SourceSpec`")
        links = [source]
        if transform is not None:
            links.append(transform_spec(transform))
        if sink is not None:
            links.append(sink)
    if not links:
        raise OptionError("operators", "empty", "a source and a chain of operators")
    specs: list[object] = [
        link.spec() if isinstance(link, (_SourceLike, _OperatorLike)) else link for link in links
    ]
    first, rest = specs[0], specs[1:]
    if not isinstance(first, SourceSpec):
        raise OptionError("the first operator", type(first).__name__, "a source")
    followers: list[OperatorSpec] = []
    for spec in rest:
        if not isinstance(spec, OperatorSpec):
            raise OptionError("an operator", type(spec).__name__, "an `OperatorSpec`, or a sink")
        followers.append(spec)
    chain = Chain(source=first, operators=followers)
    check_apart(chain)
    return chain
