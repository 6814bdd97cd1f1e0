"""A driver of one job: restore, take over, run, end."""

from __future__ import annotations

import enum
import logging
import os
import platform
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from typing import Protocol, cast

from coordlog.api.chain import Chain
from coordlog.errors import (
    DriverAliveError,
    FencedError,
    JobFailedError,
    LogError,
    RequestError,
    SinkError,
    UsageError,
)
from coordlog.kernel.builder import KernelConfig, limits_of
from coordlog.kernel.inputs import DriverStops, StopAsked
from coordlog.kernel.job_end import is_committed_since
from coordlog.kernel.outputs import StopDriver
from coordlog.limits import (
    CALLBACK_TIMEOUT_S,
    CLOCK_AHEAD_S,
    REQUEST_TIMEOUT_S,
    STOP_RECORD_S,
    STOP_TIMEOUT_S,
)
from coordlog.log.appender import Appender, Patience, take_over
from coordlog.log.interface import Log, PrunableLog, UnstoredRecord
from coordlog.payloads.check import check_payloads
from coordlog.payloads.gc import clean_former
from coordlog.payloads.offload import NO_STORE, DriverPayloads, PayloadOptions
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import JobState, Phase, SkippedSplit, sorted_values
from coordlog.restore.destination_claim import (
    claim_destinations,
    former_logs_attributes,
    refuse_unknown_commits,
)
from coordlog.restore.rebuild import (
    Rebuild,
    Restored,
    RestoreMode,
    check_complete,
    check_counts,
    check_fits,
    check_identity,
    describe_operators,
    first_input,
    projection_of,
    rebuild,
)
from coordlog.restore.rollback import branched, going_back_to, refuse_earlier_output
from coordlog.runtime.life.closing import Closing
from coordlog.runtime.life.collector import begin_slower_collector, end_slower_collector
from coordlog.runtime.life.cut_start import TakeOver, cause_of_end, record_end
from coordlog.runtime.life.history_pruning import HistoryPruner, KeptHistory
from coordlog.runtime.life.staging_cleanup import sweep
from coordlog.runtime.mailbox import MachineClock, Mailbox
from coordlog.runtime.ports import Connections, Observer, Stage
from coordlog.runtime.requests import Answer, Requests
from coordlog.runtime.runtime import Runtime, RuntimeOptions, to_unstored
from coordlog.runtime.triggers import CheckpointHandle
from coordlog.schemas.builtin_types import TakeSavepoint
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import NO_CHECKPOINT, JobMode, Kind, Record
from coordlog.schemas.validity import count

__all__ = ["DriverOptions", "JobDriver", "JobResult", "JobStatus", "Surroundings"]

_log = logging.getLogger(__name__)

_STOP_POLL_S = 0.02


class JobStatus(enum.Enum):
    """Outcome of a driver that has ended without an error."""

    FINISHED = "finished"
    STOPPED = "stopped"
    ALREADY_FINISHED = "already finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Result of a driver that has ended without an error."""

    job_id: str
    status: JobStatus
    epoch: int
    restored: Restored
    last_checkpoint: int
    seconds: float
    skipped_splits: tuple[SkippedSplit, ...] = ()
    """All splits that the job has ever skipped, by operator and split id (clause J2: a skip is a fact)."""
    stop_checkpoint: int | None = None
    """Checkpoint that a stop has taken; None if there was no stop, or no checkpoint completed in time."""


@dataclass(frozen=True, kw_only=True)
class DriverOptions:
    """Options of a job, checked by the caller."""

    job_id: str
    parallelism: int
    is_batch: bool
    restore: str | None = None
    """`rollback` or `resume`; None for the mode's default."""
    allow_non_restored_state: Sequence[str] = ()
    """Operators that the job no longer has and whose state may be dropped (clause E8: only by name)."""
    from_checkpoint: int | None = None
    """Older checkpoint to roll back to, as a new branch (clauses E5, E6); None: the last one."""
    is_take_over: bool = False
    """Whether to take the place of a live driver."""
    is_again: bool = False
    """Whether to open the job again if it has finished."""
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    callback_timeout_s: float = CALLBACK_TIMEOUT_S
    """Time limit of a coordinator's callback; after it the driver ends (clause A5: no blocking callbacks)."""
    restarts_max: int | None = None
    restart_window_s: float | None = None
    restart_backoff_s: float | None = None
    is_overlap_allowed: bool = False
    patience: Patience | None = None
    history: KeptHistory | None = None
    """History that stays in the log; None: all of it."""
    stop_timeout_s: float = STOP_TIMEOUT_S
    """Time limit of the checkpoint of a stop that a client has requested, and of its commits."""
    payloads: PayloadOptions = NO_STORE
    """Options of payloads that are too large for the log."""
    versions: dict[str, str] = field(default_factory=dict)
    """Further attributes of `EPOCH_STARTED`, such as the version of Spark."""

    @property
    def mode(self) -> JobMode:
        """Mode as in records."""
        return JobMode.BATCH if self.is_batch else JobMode.STREAMING

    @property
    def interval(self) -> dict[str, str]:
        """Attribute with the seconds between periodic checkpoints, if there are any."""
        seconds = None if self.is_batch else self.runtime.checkpoint_interval_s
        return {} if seconds is None else {"checkpoint_interval_s": str(seconds)}


class Surroundings(Protocol):
    """Environment of a job's attempts, for one driver; used from `begin` to `end`."""

    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """Open the endpoint and return its address. Called before anything is appended."""
        ...

    def took_over(self) -> None:
        """Called once this driver's epoch is in force: all drivers before are over."""
        ...

    def connections(self) -> Connections:
        """Connections of attempts; after `begin`."""
        ...

    def stage(self) -> Stage:
        """Stage of the tasks; after `begin`."""
        ...

    def is_driver_alive(self, state: JobState) -> bool:
        """Whether the driver of the epoch in force responds, and proves its identity.

        Raises:
            DriverUnknownError: The driver may be alive.
        """
        ...

    def end(self) -> None:
        """Cancel the stage and close everything, within a time limit. Called once, always, last."""
        ...


class JobDriver:
    """Driver of a job until it ends, is stopped, or fails. `start` and `wait` once each; `stop` from any thread."""

    def __init__(
        self,
        *,
        chain: Chain,
        log: Log,
        options: DriverOptions,
        surroundings: Surroundings,
        on_restored: Callable[[Restored], None] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        on_released: Callable[[Sequence[Record]], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.driver_id = secrets.token_hex(8)
        self._payloads = DriverPayloads(options.payloads)
        chain = chain.opening(self._payloads.open)
        self._chain, self._job_log, self._options = chain, log, options
        self._surroundings = surroundings
        self._on_restored, self._on_progress = on_restored, on_progress
        self._on_released, self._observer = on_released, observer
        self._requests = Requests(chain.payload_types)
        self._mailbox = Mailbox(
            requests=self._requests, callback_timeout_s=options.callback_timeout_s
        )
        self._runtime: Runtime | None = None
        self._rebuilt: Rebuild | None = None
        self._taking_over: TakeOver | None = None
        self._appender: Appender | None = None
        self._restored: Restored | None = None
        self._began_s = time.monotonic()
        self._closing = Closing(options.job_id, self._wait_for_end, self._close_all)
        self._starting = threading.Lock()
        """Held during the start, so that nothing is closed that is not there yet."""
        self._stop_checkpoint: int | None = None
        self._state: JobState | None = None
        self._is_begun, self._endpoint = False, ""
        self._is_collector_slower = False

    # --- life ---------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Restore and begin. On return the driver runs, or the job has finished already.

        Raises:
            RestoreError, RecordError: Refused; nothing was appended.
            DriverAliveError: A live driver holds the job.
            DriverUnknownError: A live driver may hold the job: its end is not proved.
            LogError: The log cannot be read or written.
        """
        self._closing.begin()  # first: without a thread for the end, nothing begins
        # Before the restore: the state of a million files takes three times as long at the collector's own pace.
        begin_slower_collector()
        self._is_collector_slower = True
        try:
            with self._starting:
                self._begin()
        except BaseException as error:
            try:
                self._record_cut_start(error)
            finally:
                self._close()
            raise

    def _record_cut_start(self, error: BaseException) -> None:
        """Record the end of a driver whose start is cut off, if its epoch has begun; waits a moment at most.

        An error behind the first turn is not recorded: it is a crash, which the restart policy counts.
        """
        by, runtime = cause_of_end(error), self._runtime
        if runtime is not None and self._mailbox.is_started:
            if not isinstance(error, Exception):
                self._record_end(runtime, by)
            return
        if self._appender is None and self._taking_over is not None:
            self._appender = self._taking_over.cut()
        rebuilt, appender = self._rebuilt, self._appender
        if rebuilt is not None and appender is not None and not rebuilt.state.is_over:
            config = self._config(rebuilt.projection, rebuilt.state)
            record_end(self._job_log, appender, config, rebuilt, by)

    def _begin(self) -> None:
        began_s = time.monotonic()
        projection = projection_of(self._chain)
        while True:
            rebuilt = self._read_history(projection)
            if self._has_finished(rebuilt.state):
                self._end_at_once(RestoreMode.FINISHED, rebuilt, began_s)
                return
            operators = rebuilt.state.launch.get("operators")
            appender = self._take_over(rebuilt, self._config(projection, rebuilt.state))
            if appender is not None:
                break
        self._check_still_fits(rebuilt.state, operators)
        mode, first = first_input(
            rebuilt.state,
            self._chain,
            restore=self._options.restore,
            is_again=self._options.is_again,
            from_checkpoint=self._options.from_checkpoint,
        )
        if first is None:
            # Another driver has ended the job since this one read the log.
            self._end_at_once(mode, rebuilt, began_s)
            return
        self._report_restored(mode, rebuilt, began_s)
        self._runtime = self._make_runtime(rebuilt, self._config(projection, rebuilt.state))
        if self._observer is not None:
            self._observer.begin(rebuilt.state, self._mailbox.pulse)
        self._mailbox.start(self._runtime, appender, partial(self._runtime.begin, first))
        self._rebuilt = None  # its folds are large, and no longer needed
        self._clean_former(appender.epoch, rebuilt.end_offset)
        self._prune_history(self._runtime)

    def _read_history(self, projection: JobProjection, *, is_second: bool = False) -> Rebuild:
        """The state folded from the log, once history and surroundings are checked: this job may continue it."""
        rebuilt = rebuild(self._job_log, self._chain, projection, on_progress=self._on_progress)
        self._rebuilt = rebuilt
        try:
            self._check_history(rebuilt)
            if not self._has_finished(rebuilt.state):
                self._check_surroundings(rebuilt.state)
        except SinkError:
            if is_second or self._job_log.high_watermark() == rebuilt.end_offset:
                raise
            # Another driver has worked since the reading: its output is not that of a log which is gone.
            return self._read_history(projection, is_second=True)
        return rebuilt

    def _has_finished(self, state: JobState) -> bool:
        return state.phase is Phase.FINISHED and not self._options.is_again

    def _check_history(self, rebuilt: Rebuild) -> None:
        """Refuse a log from which this job cannot be restored (clause E9: before anything is appended)."""
        job_id = self._options.job_id
        check_counts(job_id, rebuilt)
        check_identity(job_id, rebuilt.state, self._job_log.identity)
        check_complete(job_id, rebuilt)
        new_outputs = self._check_fits(rebuilt.state)
        refuse_earlier_output(self._chain, job_id, new_outputs)

    def _check_surroundings(self, state: JobState) -> None:
        """Refuse lost payloads, a live driver and a destination of another log; nothing is appended yet."""
        options = self._options
        going_back = branched(state, options.from_checkpoint)
        check_payloads(options.job_id, going_back, options.payloads, self._chain)
        self._refuse_live_driver(state)
        former_logs = state.launch_info.former_logs
        identity, committed = self._job_log.identity, set(state.last_intents)
        claim_destinations(self._chain, options.job_id, identity, former_logs, committed)
        ahead_s = state.timestamp_us / 1e6 - time.time()
        if ahead_s > CLOCK_AHEAD_S:
            _log.warning(
                "job=%s: its last record is %.0f s ahead of this machine's clock, and its times do not "
                "advance for as long: check that the machines' clocks agree",
                options.job_id,
                ahead_s,
            )

    def _end_at_once(self, mode: RestoreMode, rebuilt: Rebuild, began_s: float) -> None:
        """End without a runtime: the job has ended before."""
        self._report_restored(mode, rebuilt, began_s)
        self._state = rebuilt.state
        self._mailbox.end()

    def _make_runtime(self, rebuilt: Rebuild, config: KernelConfig) -> Runtime:
        branch = branched(rebuilt.state, self._options.from_checkpoint)
        return Runtime(
            chain=self._chain,
            config=config,
            options=replace(self._options.runtime, is_log_pruned=self._options.history is not None),
            state=rebuilt.state,
            clock=MachineClock(),
            connections=self._surroundings.connections(),
            stage=self._surroundings.stage(),
            workers=self._mailbox,
            newest_snapshot=rebuilt.newest_snapshot,
            checkpoint_offset=rebuilt.offset_of(branch.last_checkpoint),
            on_released=self._on_released,
            observer=self._observer,
            on_answer=self._requests.answered,
            on_stop=self._stop_requested,
            payloads=self._payloads,
        )

    def _clean_former(self, epoch: int, end_offset: int) -> None:
        """Remove payloads that earlier drivers have stored without appending their records.

        On a daemon thread: the end of the interpreter waits for workers, and an object store may be slow.
        """
        store = self._options.payloads.store
        if store is None or epoch == 0:
            return

        def work() -> None:
            try:
                count = clean_former(
                    self._job_log,
                    store,
                    epoch=epoch,
                    end_offset=end_offset,
                    is_over=lambda: self._mailbox.wait(0),
                )
            except LogError as error:
                _log.warning("former drivers' payloads stay: job=%s: %s", store.job_id, error)
                return
            if count:
                _log.info("removed %d left-over payloads job=%s", count, store.job_id)

        self._mailbox.run_closing(work)

    def _prune_history(self, runtime: Runtime) -> None:
        """Remove records that are older than the job's history, on a daemon thread, until this driver ends."""
        kept, job_log = self._options.history, self._job_log
        if kept is None:
            return
        pruner = HistoryPruner(
            cast("PrunableLog", job_log),
            self._options.job_id,
            kept,
            lambda: runtime.snapshot_offset,
            MachineClock(),
        )
        self._mailbox.run_closing(lambda: pruner.run(self._mailbox.wait))

    def _report_restored(self, mode: RestoreMode, rebuilt: Rebuild, began_s: float) -> None:
        last = branched(rebuilt.state, self._options.from_checkpoint).last_checkpoint
        checkpoint = NO_CHECKPOINT if mode is RestoreMode.START else last
        self._restored = Restored(
            mode=mode,
            checkpoint_id=checkpoint,
            checkpoint_offset=rebuilt.offset_of(checkpoint),
            snapshot_offset=rebuilt.started_at,
            record_count=rebuilt.record_count,
            void_count=rebuilt.void_count,
            seconds=time.monotonic() - began_s,
        )
        if self._on_restored is not None:
            self._on_restored(self._restored)

    def _refuse_live_driver(self, state: JobState) -> None:
        if state.epoch == -1 or self._options.is_take_over:
            return
        if self._surroundings.is_driver_alive(state):
            raise DriverAliveError(
                self._options.job_id,
                state.epoch,
                state.driver_id,
                state.launch_info.endpoint or "an unknown address",
            )

    def _config(self, projection: JobProjection, state: JobState) -> KernelConfig:
        options, identity = self._options, self._job_log.identity
        config = KernelConfig(
            projection=projection,
            operators=state.operators,
            is_batch=options.is_batch,
            keeps_finished_splits=options.is_batch and not self._chain.keeps_state_across_splits,
            cluster_id=identity.cluster_id,
            topic_id=identity.topic_id,
            is_overlap_allowed=options.is_overlap_allowed,
        )
        return _with_policy(config, options)

    def _take_over(self, rebuilt: Rebuild, config: KernelConfig) -> Appender | None:
        """Begin an epoch: from here on only this driver appends, until a newer one begins its epoch.

        Returns None if a command, such as `coordlog savepoint`, has begun its epoch since the reading: it has ended.
        """
        if not self._is_begun:
            self._is_begun = True
            self._endpoint = self._surroundings.begin(self.driver_id, self._mailbox)

        def epoch_started(epoch: int) -> UnstoredRecord:
            record = Record(
                epoch=epoch,
                driver_id=self.driver_id,
                sequence=None,
                kind=Kind.EPOCH_STARTED,
                timestamp_us=max(time.time_ns() // 1000, rebuilt.state.timestamp_us),
                job_id=self._options.job_id,
                attributes=self._launch_attributes(rebuilt.state, config),
            )
            return to_unstored(record, snapshot_offset=rebuilt.newest_snapshot.offset)

        self._taking_over = TakeOver(
            lambda patience: take_over(
                self._job_log,
                job_id=self._options.job_id,
                place=rebuilt.place,
                make_epoch_started=epoch_started,
                reading=rebuilt.feed,
                patience=patience,
            ),
            self._options.patience or Patience(),
        )
        try:
            appender = self._taking_over.run()
        except FencedError as error:
            state = rebuilt.state
            if state.launch_info.is_command and state.epoch == error.epoch_in_force:
                return None
            raise
        self._appender = appender  # from here on `_close` closes it in any case
        rebuilt.catch_up(self._job_log, appender.end_offset)
        self._payloads.begin(appender.epoch, self.driver_id)
        self._surroundings.took_over()
        return appender

    def _launch_attributes(self, state: JobState, config: KernelConfig) -> dict[str, str]:
        options, identity = self._options, self._job_log.identity
        return {
            "endpoint": self._endpoint,
            "host": socket.gethostname(),
            "pid": str(os.getpid()),
            "coordlog_version": metadata.version("coordlog"),
            "python_version": platform.python_version(),
            "parallelism": str(options.parallelism),
            "mode": options.mode,
            "cluster_id": identity.cluster_id,
            "topic_id": identity.topic_id,
            "operators": describe_operators(self._chain),
            "take_over": str(options.is_take_over).lower(),
            "allow_non_restored_state": ",".join(options.allow_non_restored_state),
            **going_back_to(options.from_checkpoint),
            **former_logs_attributes(state.launch_info.former_logs),
            **options.payloads.attributes,
            **limits_of(config),
            **options.interval,
            **options.versions,
        }

    def _check_still_fits(self, state: JobState, operators: str | None) -> None:
        # Between the first reading and the take-over another driver of this very job may have appended,
        # and its destinations are those of `operators`, from before this driver's own `EPOCH_STARTED`.
        assert state.driver_id == self.driver_id, "the epoch in force is this driver's"
        if operators is not None:
            state = replace(state, launch=state.launch.set("operators", operators))
        self._check_fits(state)
        # Only now: a driver that lived until the take-over may have committed after the first reading.
        refuse_unknown_commits(self._chain, self._options.job_id, state)

    def _check_fits(self, state: JobState) -> tuple[str, ...]:
        options = self._options
        return check_fits(
            options.job_id,
            state,
            self._chain,
            parallelism=options.parallelism,
            mode=options.mode,
            restore=options.restore,
            is_again=options.is_again,
            allow_non_restored_state=options.allow_non_restored_state,
            from_checkpoint=options.from_checkpoint,
        )

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        """Wait for the end; None if it has not come within `timeout_s`.

        Raises:
            JobFailedError: The job has ended as failed.
            FencedError: Another driver has taken over.
            LogError: The log could not be read or written in time.
            UsageError: Called on the mailbox, which would wait for itself.
        """
        self._mailbox.refuse_this_thread("wait")
        if self._runtime is not None and not self._mailbox.wait(timeout_s):
            return None
        try:
            return self._result()
        finally:
            self._close()

    def _result(self) -> JobResult:
        assert self._restored is not None, "started"
        runtime = self._runtime
        state = self._state if runtime is None else runtime.state
        assert state is not None, "started"
        status = JobStatus.ALREADY_FINISHED
        if runtime is not None:
            if self._mailbox.error is not None:
                raise self._mailbox.error
            end = runtime.outcome
            if end is not None and not end.is_finished:
                raise JobFailedError(
                    self._options.job_id, end.reasons, end.where, end.final, end.skip_command
                )
            status = JobStatus.FINISHED if end is not None else JobStatus.STOPPED
        return JobResult(
            job_id=self._options.job_id,
            status=status,
            epoch=state.epoch,
            restored=self._restored,
            last_checkpoint=state.last_checkpoint,
            skipped_splits=tuple(sorted_values(state.skipped_splits)),
            seconds=time.monotonic() - self._began_s,
            stop_checkpoint=self._stop_checkpoint,
        )

    def request(
        self, operator_id: str, request: Payload, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Answer:
        """Send a request to an operator's coordinator and wait for its answer. Any thread but the mailbox.

        Raises:
            RequestError: There is no answer; the subclass is the reason.
            PayloadTypeError: The request's type is not registered with the job.
            TooLargeError: The request is above its limit.
            UsageError: Called on the mailbox, which would wait for itself.
        """
        self._mailbox.refuse_this_thread("request")
        return self._requests.request(operator_id, request, timeout_s=timeout_s)

    def trigger_checkpoint(self) -> CheckpointHandle:
        """Trigger a checkpoint as soon as one may start. Any thread.

        Raises:
            UsageError: The job is a batch, which takes no checkpoints.
        """
        if self._options.is_batch:
            raise UsageError(
                f"job {self._options.job_id} is a batch and takes no checkpoints: the results of a "
                "split are durable when it finishes"
            )
        handle = CheckpointHandle(self._options.job_id, self._mailbox.is_this_thread)
        runtime = self._runtime
        if runtime is None:
            handle.resolve("the job had finished before")
        else:
            runtime.trigger_when_possible(handle)
        return handle

    def stop(
        self, *, with_checkpoint: bool, timeout_s: float = STOP_TIMEOUT_S, by: str = "stop"
    ) -> None:
        """End the driver, optionally after a checkpoint and its commits. Any thread but the mailbox.

        `wait` then returns.

        Args:
            with_checkpoint: Whether to take a checkpoint first; a batch takes none.
            timeout_s: Time limit of that checkpoint and its commits.
            by: Cause of the stop for the history, such as a signal's name.

        Raises:
            UsageError: Called on the mailbox, which would wait for itself.
        """
        self._mailbox.refuse_this_thread("stop")
        runtime = self._runtime
        if runtime is None:
            return
        is_wanted = with_checkpoint and not self._options.is_batch
        until = time.monotonic() + timeout_s
        self._record_stop(runtime, by, is_wanted=is_wanted, is_at_once=False)
        if is_wanted:
            self._take_stop_checkpoint(runtime, until)
        self._record_end(runtime, by)
        self._mailbox.end()

    def _stop_requested(self, stop: StopDriver) -> None:
        """Begin a stop that a client has requested, and that is recorded. On the mailbox; another thread ends it."""
        runtime = self._runtime
        assert runtime is not None, "its effect"
        work = partial(self._stop_as_requested, runtime, stop)
        threading.Thread(target=work, name="coordlog-stopping", daemon=True).start()

    def _stop_as_requested(self, runtime: Runtime, stop: StopDriver) -> None:
        if stop.with_checkpoint:
            self._take_stop_checkpoint(runtime, time.monotonic() + self._options.stop_timeout_s)
        if stop.savepoint is not None and self._stop_checkpoint is not None:
            savepoint = TakeSavepoint(name=stop.savepoint, checkpoint=self._stop_checkpoint)
            try:
                self._requests.request("", savepoint, asked_by=stop.asked_by)
            except RequestError as error:
                # The job is stopped all the same: its client finds no savepoint in the log.
                _log.warning("job=%s no savepoint at its stop: %s", self._options.job_id, error)
        self._record_end(runtime, stop.by)
        self._mailbox.end()

    def _take_stop_checkpoint(self, runtime: Runtime, until: float) -> None:
        """Wait for a checkpoint that begins after the stop, and for its commits, until that time at most."""
        # A checkpoint that began before may have an old cut; it serves if time runs out.
        before, first = runtime.state.last_checkpoint, runtime.state.next_checkpoint_id
        while time.monotonic() < until and not self._mailbox.wait(_STOP_POLL_S):
            state = runtime.state
            if state.last_checkpoint > before:
                # This state may be in the middle of a turn, or not in the log yet.
                released = self._released_state(runtime, until)
                if released is not None and is_committed_since(before, *released):
                    self._stop_checkpoint = before = released[0].last_checkpoint
                    if before >= first:
                        break
            is_vacant = state.live_count + state.finished_count < state.parallelism
            if is_vacant and not runtime.is_stage_running:
                break  # no attempt can ack a barrier, and no stage will be started
            if not state.pending and state.last_checkpoint < first:
                self._mailbox.post(lambda: _ignored(runtime.trigger_checkpoint()))

    def _released_state(
        self, runtime: Runtime, until: float
    ) -> tuple[JobState, Mapping[str, int]] | None:
        """State at the end of a turn that the log has, and the open work then; None if that takes too long."""
        released: list[tuple[JobState, Mapping[str, int]]] = []

        def note(state: JobState) -> None:
            released.append((state, runtime.host.open_work()))

        self._mailbox.post(lambda: runtime.when_released(note))
        while not released and time.monotonic() < until and not self._mailbox.wait(_STOP_POLL_S):
            pass
        return released[0] if released else None

    def end_at_once(self, *, by: str) -> None:
        """End the driver without a checkpoint, even during a `stop`; `wait` then returns. Threads as of `stop`."""
        self._mailbox.refuse_this_thread("end_at_once")
        runtime = self._runtime
        if runtime is not None:
            self._record_stop(runtime, by, is_wanted=False, is_at_once=True)
            self._record_end(runtime, by)
            self._mailbox.end()

    def close(self) -> None:
        """End the driver without a record, even during a stop; does nothing if it has ended."""
        self._close()

    def _record_stop(self, runtime: Runtime, by: str, *, is_wanted: bool, is_at_once: bool) -> None:
        """Record a stop and wait for the log, at most `STOP_RECORD_S`."""
        stop = StopAsked(by=by, with_checkpoint=is_wanted, is_at_once=is_at_once)
        self._wait_for_record(lambda released: runtime.stop(stop, released))

    def _record_end(self, runtime: Runtime, by: str) -> None:
        """Record the driver's end, a proof on any machine, then a snapshot; each waits at most `STOP_RECORD_S`."""
        self._wait_for_record(lambda released: runtime.stop(DriverStops(by=by), released))
        self._wait_for_record(runtime.take_last_snapshot)

    def _wait_for_record(self, post: Callable[[Callable[[], None]], None]) -> None:
        recorded = threading.Event()
        self._mailbox.post(lambda: post(recorded.set))
        until = time.monotonic() + STOP_RECORD_S
        while time.monotonic() < until and not self._mailbox.wait(0):
            if recorded.wait(_STOP_POLL_S):
                return

    @property
    def state(self) -> JobState | None:
        """Present state of the job; immutable. Any thread."""
        return self._state if self._runtime is None else self._runtime.state

    @property
    def place(self) -> tuple[str, int | None, int | None]:
        """Job id, epoch and offset of the newest record in force, None for what is not known. Any thread."""
        state, runtime = self.state, self._runtime
        offset = None if runtime is None else runtime.last_offset
        return self._options.job_id, None if state is None else state.epoch, offset

    def _close(self) -> None:
        """End the driver, and wait until everything is closed, within `DRIVER_CLOSE_TIMEOUT_S`."""
        self._mailbox.end()
        self._closing.begin()
        self._closing.wait()

    def _wait_for_end(self) -> None:
        self._mailbox.wait()
        with self._starting:
            pass

    def _close_all(self) -> None:
        try:
            if self._is_collector_slower:
                end_slower_collector()
            self._mailbox.close()
            if not self._mailbox.is_started and self._appender is not None:
                self._appender.close()
        finally:
            if self._observer is not None:
                self._observer.end()
            if self._is_begun:
                self._surroundings.end()
        runtime = self._runtime
        if runtime is not None and runtime.outcome is not None and runtime.outcome.is_finished:
            sinks = {provider.operator_id: provider.sink for provider in self._chain.coordinators}
            sweep(runtime.state, self._chain.payload_types, sinks, is_in_force=self._is_in_force)

    def _is_in_force(self) -> bool:
        """Whether no other driver has begun an epoch, by all records in the log now; the log thread is over."""
        appender = self._appender
        assert appender is not None, "taken over"
        counting = appender.counting
        try:
            end = self._job_log.high_watermark()
            for record in self._job_log.read(appender.end_offset, end):
                counting, _ = count(counting, record.header)
        except LogError as error:
            _log.warning("job=%s nothing is swept: %s", self._options.job_id, error)
            return False
        return counting.epoch == appender.epoch


def _with_policy(config: KernelConfig, options: DriverOptions) -> KernelConfig:
    """Config with the restart policy of the options."""
    if options.restarts_max is not None:
        config = replace(config, restarts_max=options.restarts_max)
    if options.restart_window_s is not None:
        config = replace(config, restart_window_s=options.restart_window_s)
    if options.restart_backoff_s is not None:
        config = replace(config, restart_backoff_s=options.restart_backoff_s)
    return config


def _ignored(_value: object) -> None:
    """Drop a value: the thunks of the mailbox return None."""
