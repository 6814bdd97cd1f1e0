"""One driver of one job: restore, take over, run, end."""

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
from typing import Protocol

from coordlog.api.chain import Chain
from coordlog.errors import DriverAliveError, JobFailedError, LogError, UsageError
from coordlog.kernel.builder import KernelConfig, limits_of
from coordlog.kernel.finishing import left_of
from coordlog.kernel.inputs import DriverStops, StopAsked
from coordlog.limits import (
    CALLBACK_TIMEOUT_S,
    CLOCK_AHEAD_S,
    CLOSE_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    STOP_RECORD_S,
    STOP_TIMEOUT_S,
)
from coordlog.log.appender import Appender, Patience, take_over
from coordlog.log.interface import Log, UnstoredRecord
from coordlog.payloads.check import check_payloads
from coordlog.payloads.gc import clean_former
from coordlog.payloads.offload import NO_STORE, DriverPayloads, PayloadOptions
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import JobState, Phase, SkippedSplit, sorted_values
from coordlog.restore.destination_claim import claim_destinations, former_logs, said_of_former_logs
from coordlog.restore.rebuild import (
    Rebuild,
    Restored,
    check_counts,
    check_fits,
    check_identity,
    describe_operators,
    first_input,
    projection_of,
    rebuild,
)
from coordlog.restore.rollback import branched, going_back_to, refuse_earlier_output
from coordlog.runtime.mailbox import MachineClock, Mailbox
from coordlog.runtime.ports import Connections, Stage
from coordlog.runtime.requests import Answer, Requests
from coordlog.runtime.runtime import Runtime, RuntimeOptions, to_unstored
from coordlog.runtime.staging_cleanup import sweep
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record
from coordlog.schemas.validity import count

__all__ = ["DriverOptions", "JobDriver", "JobResult", "JobStatus", "Surroundings"]

_log = logging.getLogger(__name__)

_STOP_LOOK_S = 0.02


class JobStatus(enum.Enum):
    """How a driver ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    ALREADY_FINISHED = "already finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What `run` gives back."""

    job_id: str
    status: JobStatus
    epoch: int
    restored: Restored
    last_checkpoint: int
    seconds: float
    skipped_splits: tuple[SkippedSplit, ...] = ()
    """All that the job has ever skipped, by operator and split id (clause J2)."""
    stop_checkpoint: int | None = None
    """The checkpoint that a stop has taken; None where there was no stop, or it could take none in time."""


@dataclass(frozen=True, kw_only=True)
class DriverOptions:
    """A job's options, checked by whoever makes them."""

    job_id: str
    parallelism: int
    is_batch: bool
    restore: str | None = None
    """`rollback` or `resume`; None for the mode's default."""
    allow_non_restored_state: Sequence[str] = ()
    """Operators that the job no longer has and whose state may go (clause E8)."""
    from_checkpoint: int | None = None
    """An older checkpoint to go back to, as a new branch (clauses E5, E6); None: the last one."""
    is_take_over: bool = False
    """Take a live driver's place."""
    is_again: bool = False
    """Open the job again, where it has finished."""
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    callback_timeout_s: float = CALLBACK_TIMEOUT_S
    """Time that a coordinator's callback may take; past it the driver ends (clause A5)."""
    restarts_max: int | None = None
    restart_window_s: float | None = None
    restart_backoff_s: float | None = None
    is_overlap_allowed: bool = False
    patience: Patience | None = None
    payloads: PayloadOptions = NO_STORE
    """Where payloads go that are too large for the log."""
    versions: dict[str, str] = field(default_factory=dict)
    """More attributes of `EPOCH_STARTED`, such as Spark's version."""


class Surroundings(Protocol):
    """What runs a job's attempts: made for one driver, used from `begin` to `end`."""

    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """Open the endpoint; its address. Before anything is appended."""
        ...

    def took_over(self) -> None:
        """This driver's epoch is in force: whoever was before is over."""
        ...

    def connections(self) -> Connections:
        """After `begin`."""
        ...

    def stage(self) -> Stage:
        """After `begin`."""
        ...

    def is_driver_alive(self, state: JobState) -> bool:
        """Whether the driver of the epoch in force answers, and proves itself.

        Raises:
            DriverUnknownError: It may live.
        """
        ...

    def end(self) -> None:
        """Cancel what runs and close everything, within a bound; nothing is left behind. Once, always, last."""
        ...


class JobDriver:
    """Drives a job until it ends, is stopped, or fails. `start` and `wait` once each; `stop` from any thread."""

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
    ) -> None:
        self.driver_id = secrets.token_hex(8)
        self._payloads = DriverPayloads(options.payloads)
        chain = chain.opening(self._payloads.open)
        self._chain, self._job_log, self._options = chain, log, options
        self._surroundings = surroundings
        self._on_restored, self._on_progress = on_restored, on_progress
        self._on_released = on_released
        self._requests = Requests(chain.payload_types)
        self._mailbox = Mailbox(
            requests=self._requests, callback_timeout_s=options.callback_timeout_s
        )
        self._runtime: Runtime | None = None
        self._appender: Appender | None = None
        self._restored: Restored | None = None
        self._began_s = time.monotonic()
        self._closing: threading.Thread | None = None
        self._closed = threading.Event()
        self._close_error: BaseException | None = None
        self._stop_checkpoint: int | None = None
        self._state: JobState | None = None
        self._is_begun = False

    # --- life ---------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Restore and begin. On return the driver runs, or has nothing to do.

        Raises:
            RestoreError, RecordError: Refused; nothing was appended.
            DriverAliveError: A live driver holds the job.
            DriverUnknownError: One may: that it is gone is not proved.
            LogError: The log.
        """
        try:
            self._begin()
        except BaseException:
            self._close()
            raise

    def _begin(self) -> None:
        options = self._options
        began_s = time.monotonic()
        projection = projection_of(self._chain)
        made = rebuild(self._job_log, self._chain, projection, on_progress=self._on_progress)
        mode = "batch" if options.is_batch else "streaming"
        check_counts(options.job_id, made)
        check_identity(options.job_id, made.state, self._job_log.identity)
        elsewhere = self._check_fits(made.state, mode)
        operators = made.state.launch.get("operators")
        refuse_earlier_output(self._chain, options.job_id, elsewhere)
        if made.state.phase is Phase.FINISHED and not options.is_again:
            self._tell_restored("finished", made, began_s)
            self._state = made.state
            return
        going_back = branched(made.state, options.from_checkpoint)
        check_payloads(options.job_id, going_back, options.payloads)
        self._refuse_live_driver(made.state)
        former = former_logs(made.state.launch)
        claim_destinations(self._chain, options.job_id, self._job_log.identity, former)
        ahead_s = made.state.timestamp_us / 1e6 - time.time()
        if ahead_s > CLOCK_AHEAD_S:
            _log.warning(
                "job=%s: its last record is %.0f s ahead of this machine's clock; its times stand "
                "still for as long: see that the machines' clocks agree",
                options.job_id,
                ahead_s,
            )
        self._is_begun = True
        endpoint = self._surroundings.begin(self.driver_id, self._mailbox)
        appender = self._take_over(made, endpoint, mode, self._config(projection, made.state))
        self._appender = appender  # from here on `_close` ends it, whatever comes
        made.catch_up(self._job_log, appender.end_offset)
        self._payloads.begin(appender.epoch, self.driver_id)
        self._surroundings.took_over()
        self._check_still_fits(made, mode, operators)
        restore, given = first_input(
            made.state,
            self._chain,
            restore=options.restore,
            is_again=options.is_again,
            from_checkpoint=options.from_checkpoint,
        )
        self._tell_restored(restore, made, began_s)
        if given is None:
            # Another driver has ended it since this one read the log.
            self._state = made.state
            return
        branch = branched(made.state, options.from_checkpoint)
        runtime = Runtime(
            chain=self._chain,
            config=self._config(projection, made.state),
            options=options.runtime,
            state=made.state,
            clock=MachineClock(),
            connections=self._surroundings.connections(),
            stage=self._surroundings.stage(),
            workers=self._mailbox,
            newest_snapshot=made.newest_snapshot,
            checkpoint_offset=made.offset_of(branch.last_checkpoint),
            on_released=self._on_released,
            on_answer=self._requests.answered,
            payloads=self._payloads,
        )
        self._runtime = runtime
        self._mailbox.start(runtime, appender, partial(runtime.begin, given))
        self._clean_former(appender.epoch, made.end_offset)

    def _clean_former(self, epoch: int, end_offset: int) -> None:
        """What drivers before this one have stored and could not append any more goes.

        On a daemon thread: the interpreter's end waits for workers, and an object store may be slow.
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

    def _tell_restored(self, mode: str, made: Rebuild, began_s: float) -> None:
        last = branched(made.state, self._options.from_checkpoint).last_checkpoint
        checkpoint = NO_CHECKPOINT if mode == "start" else last
        self._restored = Restored(
            mode=mode,
            checkpoint_id=checkpoint,
            checkpoint_offset=made.offset_of(checkpoint),
            snapshot_offset=made.started_at,
            record_count=made.record_count,
            void_count=made.void_count,
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
                state.launch.get("endpoint", "an unknown address"),
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

    def _take_over(self, made: Rebuild, endpoint: str, mode: str, config: KernelConfig) -> Appender:
        options, identity = self._options, self._job_log.identity

        def epoch_started(epoch: int) -> UnstoredRecord:
            return to_unstored(
                Record(
                    epoch=epoch,
                    driver_id=self.driver_id,
                    sequence=None,
                    kind=Kind.EPOCH_STARTED,
                    timestamp_us=max(time.time_ns() // 1000, made.state.timestamp_us),
                    job_id=options.job_id,
                    attributes={
                        "endpoint": endpoint,
                        "host": socket.gethostname(),
                        "pid": str(os.getpid()),
                        "coordlog_version": metadata.version("coordlog"),
                        "python_version": platform.python_version(),
                        "parallelism": str(options.parallelism),
                        "mode": mode,
                        "cluster_id": identity.cluster_id,
                        "topic_id": identity.topic_id,
                        "operators": describe_operators(self._chain),
                        "take_over": str(options.is_take_over).lower(),
                        "allow_non_restored_state": ",".join(options.allow_non_restored_state),
                        **going_back_to(options.from_checkpoint),
                        **said_of_former_logs(former_logs(made.state.launch)),
                        **options.payloads.attributes,
                        **limits_of(config),
                        **options.versions,
                    },
                ),
                snapshot_offset=made.newest_snapshot.offset,
            )

        return take_over(
            self._job_log,
            job_id=options.job_id,
            place=made.place,
            make_epoch_started=epoch_started,
            reading=made.feed,
            patience=options.patience,
        )

    def _check_still_fits(self, made: Rebuild, mode: str, operators: str | None) -> None:
        # What stood between the first reading and the take-over was another driver's of this very job,
        # which wrote where `operators`, of before this driver's own `EPOCH_STARTED`, says.
        state = made.state
        assert state.driver_id == self.driver_id, "the epoch in force is this driver's"
        if operators is not None:
            state = replace(state, launch=state.launch.set("operators", operators))
        self._check_fits(state, mode)

    def _check_fits(self, state: JobState, mode: str) -> tuple[str, ...]:
        options = self._options
        return check_fits(
            options.job_id,
            state,
            self._chain,
            parallelism=options.parallelism,
            mode=mode,
            restore=options.restore,
            is_again=options.is_again,
            allow_non_restored_state=options.allow_non_restored_state,
            from_checkpoint=options.from_checkpoint,
        )

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        """Wait for the end; None where it has not come within `timeout_s`.

        Raises:
            JobFailedError: The job has ended as failed.
            FencedError: Another driver has taken over.
            LogError: The log has failed this driver.
        """
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
            if runtime.outcome is not None and not runtime.outcome.is_finished:
                end = runtime.outcome
                raise JobFailedError(self._options.job_id, end.reasons, end.where, end.final)
            status = JobStatus.FINISHED if runtime.outcome is not None else JobStatus.STOPPED
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
        """Ask an operator's coordinator, and wait for its answer to be in the log. Any thread but the mailbox.

        Raises:
            RequestError: There is no answer; the leaf says why.
            PayloadTypeError: The request's type is not registered with the job.
            TooLargeError: It is above its limit.
            UsageError: Called on the mailbox, which would wait for itself.
        """
        if self._mailbox.is_this_thread():
            raise UsageError(
                "`request` was called on the mailbox, which would wait for itself: ask from another thread"
            )
        return self._requests.request(operator_id, request, timeout_s=timeout_s)

    def trigger_checkpoint(self) -> None:
        """Ask for a checkpoint now. Any thread; nothing happens where none may start."""
        runtime = self._runtime
        if runtime is not None:
            self._mailbox.post(lambda: _ignored(runtime.trigger_checkpoint()))

    def stop(
        self, *, with_checkpoint: bool, timeout_s: float = STOP_TIMEOUT_S, by: str = "stop"
    ) -> None:
        """End the driver, after a checkpoint and its commits where asked for; any thread. `wait` then returns.

        Args:
            with_checkpoint: Whether to take one first; in batch there is none.
            timeout_s: A checkpoint that is not whole by then is not waited for.
            by: Who asks, for the history: a signal's name.
        """
        runtime = self._runtime
        if runtime is None:
            return
        is_wanted = with_checkpoint and not self._options.is_batch
        until = time.monotonic() + timeout_s
        self._record_stop(runtime, by, is_wanted=is_wanted, is_at_once=False)
        if is_wanted:
            # One that was begun before may have been cut long before; it is taken where time runs out.
            before, first = runtime.state.last_checkpoint, runtime.state.next_checkpoint_id
            while time.monotonic() < until and not self._mailbox.wait(_STOP_LOOK_S):
                state = runtime.state
                if state.last_checkpoint > before:
                    # That may be in the middle of a turn, or not in the log yet.
                    released = self._released_state(runtime, until)
                    if released is not None and _is_committed(*released, before):
                        self._stop_checkpoint = before = released[0].last_checkpoint
                        if before >= first:
                            break
                is_vacant = state.live_count + state.finished_count < state.parallelism
                if is_vacant and not runtime.is_stage_running:
                    break  # nobody is there to ack a barrier, and no stage will be started
                if not state.pending and state.last_checkpoint < first:
                    self.trigger_checkpoint()
        self._record_end(runtime, by)
        self._mailbox.end()

    def _released_state(
        self, runtime: Runtime, until: float
    ) -> tuple[JobState, Mapping[str, int]] | None:
        """The state at the end of a turn that the log has, and the open work; None where it takes too long."""
        found: list[tuple[JobState, Mapping[str, int]]] = []

        def note(state: JobState) -> None:
            found.append((state, runtime.host.open_work()))

        self._mailbox.post(lambda: runtime.when_released(note))
        while not found and time.monotonic() < until and not self._mailbox.wait(_STOP_LOOK_S):
            pass
        return found[0] if found else None

    def end_at_once(self, *, by: str) -> None:
        """End the driver without a checkpoint, whatever `stop` waits for. Any thread; `wait` then returns."""
        runtime = self._runtime
        if runtime is not None:
            self._record_stop(runtime, by, is_wanted=False, is_at_once=True)
            self._record_end(runtime, by)
            self._mailbox.end()

    def _record_stop(self, runtime: Runtime, by: str, *, is_wanted: bool, is_at_once: bool) -> None:
        """Have it in the history, unless the log takes too long."""
        given = StopAsked(by=by, with_checkpoint=is_wanted, is_at_once=is_at_once)
        self._recorded(lambda released: runtime.stop(given, released))

    def _record_end(self, runtime: Runtime, by: str) -> None:
        """Have it in the history that the driver is over, unless the log takes too long: a proof on any machine."""
        self._recorded(lambda released: runtime.stop(DriverStops(by=by), released))

    def _recorded(self, post: Callable[[Callable[[], None]], None]) -> None:
        recorded = threading.Event()
        self._mailbox.post(lambda: post(recorded.set))
        until = time.monotonic() + STOP_RECORD_S
        while time.monotonic() < until and not self._mailbox.wait(0):
            if recorded.wait(_STOP_LOOK_S):
                return

    @property
    def state(self) -> JobState | None:
        """The job's state as of now; immutable. Any thread."""
        return self._state if self._runtime is None else self._runtime.state

    def _close(self) -> None:
        """End everything, once; another call waits for the first one's end.

        On a thread of its own: a second Ctrl-C ends the wait for it, and not the closing itself,
        which would leave threads and the log's writer behind.
        """
        if self._closing is None:
            self._closing = threading.Thread(
                target=self._close_on_thread, name="coordlog-closing", daemon=True
            )
            self._closing.start()
        # An event first: a `join` that a signal cuts off takes the thread for ended.
        self._closed.wait()
        self._closing.join(CLOSE_TIMEOUT_S)
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def _close_on_thread(self) -> None:
        try:
            self._close_all()
        except BaseException as error:  # noqa: BLE001, raised where the end is waited for
            self._close_error = error
        finally:
            self._closed.set()

    def _close_all(self) -> None:
        try:
            self._mailbox.close()
            if self._runtime is None and self._appender is not None:
                self._appender.close()
        finally:
            if self._is_begun:
                self._surroundings.end()
        runtime = self._runtime
        if runtime is not None and runtime.outcome is not None and runtime.outcome.is_finished:
            sinks = {one.operator_id: one.sink for one in self._chain.coordinators}
            sweep(
                runtime.state,
                self._chain.payload_types,
                sinks,
                is_in_force=self._is_in_force,
            )

    def _is_in_force(self) -> bool:
        """Whether no other driver has begun an epoch, by all that stands in the log now; the log thread is over."""
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


def _is_committed(state: JobState, open_work: Mapping[str, int], before: int) -> bool:
    """Whether a checkpoint after `before` is whole, and nothing is to come of what it allows to be committed.

    That is an outcome, or the intent of an operator whose call or timer is open (clause I3: the job's end waits too).
    """
    if state.last_checkpoint <= before or state.owed_complete is not None:
        return False
    left = left_of(state, open_work)
    return not left.is_awaited


def _with_policy(config: KernelConfig, options: DriverOptions) -> KernelConfig:
    """The config with the restart policy that the user gave."""
    if options.restarts_max is not None:
        config = replace(config, restarts_max=options.restarts_max)
    if options.restart_window_s is not None:
        config = replace(config, restart_window_s=options.restart_window_s)
    if options.restart_backoff_s is not None:
        config = replace(config, restart_backoff_s=options.restart_backoff_s)
    return config


def _ignored(_value: object) -> None:
    """The mailbox's thunks return nothing."""
