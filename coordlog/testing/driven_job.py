"""A job whose attempts a test drives by hand: it registers them, sends, acks, fails, and inspects messages and log.

Kernel, runtime, appender and folds are the real ones, on an in-memory log and the caller's thread. The job acts only in
calls of this module, so that a test fixes each interleaving.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, TypeVar

from coordlog.api.chain import Chain
from coordlog.history import History
from coordlog.kernel.builder import KernelConfig, limits_of
from coordlog.kernel.inputs import RequestArrived
from coordlog.kernel.job_end import BEFORE
from coordlog.kernel.outputs import AnswerRequest
from coordlog.log.appender import Appender, Patience, take_over
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.messages import (
    Accepted,
    AckCheckpoint,
    AckEvent,
    Complete,
    DeliverEvent,
    DownMessage,
    Fail,
    FinishSplit,
    Marker,
    Register,
    SendEvent,
    SkipSplit,
    UpMessage,
)
from coordlog.payloads.check import check_payloads
from coordlog.payloads.offload import NO_STORE, AttemptPayloads, DriverPayloads, PayloadOptions
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import JobState
from coordlog.restore.rebuild import (
    Rebuild,
    check_complete,
    check_counts,
    check_fits,
    describe_operators,
    first_input,
    projection_of,
    rebuild,
)
from coordlog.restore.rollback import branched, going_back_to, refuse_earlier_output
from coordlog.runtime.driver import DriverOptions
from coordlog.runtime.requests import Answer, Requests, answer_of, encoded_request
from coordlog.runtime.runtime import Runtime, RuntimeOptions, to_unstored
from coordlog.schemas.builtin_types import (
    AttemptSnapshot,
    Committable,
    OperatorState,
    SplitFinished,
)
from coordlog.schemas.payload import Payload, PayloadTypes, payload_type_of
from coordlog.schemas.record import JobMode, Kind, Record

__all__ = [
    "FakeAttempt",
    "FakeClock",
    "FakeRequest",
    "FakeStage",
    "HandDrivenJob",
    "MayFail",
    "UnexpectedFailureError",
]

M = TypeVar("M")
P = TypeVar("P", bound=Payload)

MayFail = bool | str | Sequence[str]
"""Whether a job may fail. A text, or several: only for a reason that contains one of them."""


class UnexpectedFailureError(AssertionError):
    """The job failed, for example because a callback raised, and `may_fail` does not allow it."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason

    def __str__(self) -> str:
        return (
            f"the job has failed ({self.kind}): {self.reason}\n"
            "if the test expects this, pass may_fail=True to HandDrivenJob, or may_fail= with a part of the reason"
        )


@dataclass(slots=True)
class FakeClock:
    """A clock that only the test advances. Starts at an arbitrary second."""

    seconds: float = 1_000_000.0

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return int(self.seconds * 1_000_000)

    def monotonic_s(self) -> float:
        """Seconds."""
        return self.seconds


@dataclass(slots=True)
class FakeStage:
    """A stage that only stores the calls to it."""

    submitted: list[int] = field(default_factory=list)
    cancelled: list[tuple[int, str]] = field(default_factory=list)
    killed: list[tuple[int, int, str]] = field(default_factory=list)

    def submit(self, stage_run: int) -> None:
        """Store the call."""
        self.submitted.append(stage_run)

    def cancel(self, stage_run: int, reason: str) -> None:
        """Store the call; the test ends the stage with `stage_ends`."""
        self.cancelled.append((stage_run, reason))

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """Store the call."""
        self.killed.append((stage_run, task_attempt_id, reason))


@dataclass(slots=True, eq=False)
class FakeAttempt:
    """A Spark task's connection, driven by hand."""

    job: HandDrivenJob
    connection_id: int
    subtask: int
    inbox: list[DownMessage] = field(default_factory=list)
    is_closed: bool = False
    last_barrier: int = -1
    event_count: int = 0
    returns_markers: bool = True
    """Whether markers are returned at once. If not, they stay in the inbox, as during a long call."""

    @property
    def accepted(self) -> Accepted:
        """The answer to its registration. Fails the test if the registration was refused."""
        first = self.inbox[0]
        assert isinstance(first, Accepted), f"answered {first}"
        return first

    @property
    def payloads(self) -> AttemptPayloads:
        """The attempt's access to the payload store."""
        state = self.job.runtime.state
        return AttemptPayloads(self.job.payloads.options, state.epoch, state.driver_id)

    def got(self, kind: type[M]) -> list[M]:
        """Received messages of one type, in order."""
        return [message for message in self.inbox if isinstance(message, kind)]

    def events(self, payload_class: type[P]) -> list[P]:
        """Delivered events of one type, in order."""
        types = self.job.chain.payload_types
        delivered = self.got(DeliverEvent)
        values = [types.decode(message.payload_type, message.payload) for message in delivered]
        return [value for value in values if isinstance(value, payload_class)]

    def send(self, operator_id: str, event: Payload) -> None:
        """Send an operator event to the driver; a large one is first stored in the job's payload store, if any."""
        declared = payload_type_of(event)
        encoded = declared.encode(event)
        if self.job.payloads.options.is_kept(declared.key, len(encoded)):
            encoded = self.payloads.seal(f"a {declared.key}", declared.key, encoded)
        self.say(
            SendEvent(
                operator_id=operator_id,
                event_id=self.event_count,
                last_barrier=self.last_barrier,
                payload_type=declared.key,
                payload=encoded,
            )
        )
        self.event_count += 1

    def ack(self, operator_id: str, event_id: int, *also: int) -> None:
        """Ack an event, or several in one message."""
        self.say(
            AckEvent(
                operator_id=operator_id,
                event_id=event_id,
                last_barrier=self.last_barrier,
                also=also,
            )
        )

    def ack_checkpoint(
        self,
        checkpoint_id: int,
        *,
        states: dict[str, bytes] | None = None,
        committables: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Ack a barrier; large states are first stored in the job's payload store, if any."""
        self.last_barrier = checkpoint_id
        self.say(
            AckCheckpoint(
                checkpoint_id=checkpoint_id,
                last_barrier=checkpoint_id,
                snapshot=_snapshot(self._sealed(states), committables),
            )
        )

    def finish_split(
        self,
        operator_id: str,
        split_id: str,
        *,
        rows: int = 1,
        committables: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Report that a split was read to its end."""
        finished = SplitFinished(
            split_id=split_id,
            rows=rows,
            bytes_read=rows,
            committables=[Committable(operator_id=o, content=c) for o, c in committables],
        )
        self.say(
            FinishSplit(operator_id=operator_id, last_barrier=self.last_barrier, finished=finished)
        )

    def skip_split(
        self, operator_id: str, split_id: str, *, rows: int = 0, reason: str = "scripted"
    ) -> None:
        """Report that the reader has stopped reading a skipped split."""
        self.say(
            SkipSplit(
                operator_id=operator_id,
                last_barrier=self.last_barrier,
                split_id=split_id,
                rows=rows,
                reason=reason,
            )
        )

    def complete(
        self,
        *,
        states: dict[str, bytes] | None = None,
        committables: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Report that the subtask has finished."""
        self.say(
            Complete(
                last_barrier=self.last_barrier,
                snapshot=_snapshot(self._sealed(states), committables),
            )
        )

    def fail(
        self, reason: str = "scripted", *, split_id: str | None = None, final: str = ""
    ) -> None:
        """Report that a call of the chain raised. `final` is why a restart cannot help: the job fails too."""
        self.say(
            Fail(
                operator_id="source",
                callback="poll",
                reason=reason,
                split_id=split_id,
                final=final,
            )
        )

    def return_marker(self) -> None:
        """Return the oldest marker in the inbox, as an attempt does once all messages before it are handled."""
        marker = next(message for message in self.inbox if isinstance(message, Marker))
        self.inbox.remove(marker)
        self.say(marker)

    def lose(self, reason: str = "connection lost") -> None:
        """Break the connection."""
        self.is_closed = True
        runtime = self.job.runtime
        self.job.run(lambda: runtime.connection_lost(self.connection_id, reason))

    def _sealed(self, states: dict[str, bytes] | None) -> dict[str, bytes]:
        options, payloads = self.job.payloads.options, self.payloads
        return {
            operator_id: payloads.store(state) if options.is_kept(None, len(state)) else state
            for operator_id, state in (states or {}).items()
        }

    def say(self, message: UpMessage) -> None:
        """Send any message to the driver. The other methods use it."""
        runtime = self.job.runtime
        self.job.run(lambda: runtime.arrived(self.connection_id, message))


@dataclass(slots=True, eq=False)
class FakeRequest:
    """A request that `HandDrivenJob.ask` has sent, and its answer."""

    types: PayloadTypes
    operator_id: str
    payload_type: str
    answers: list[AnswerRequest] = field(default_factory=list)
    """Empty, or the one answer."""

    @property
    def is_open(self) -> bool:
        """Whether the request waits for its answer."""
        return not self.answers

    def answer(self) -> Answer:
        """The answer. Raises the error that a client would raise."""
        (effect,) = self.answers
        return answer_of(effect, self.types, self.operator_id, self.payload_type)


def _snapshot(
    states: dict[str, bytes] | None, committables: Sequence[tuple[str, bytes]]
) -> AttemptSnapshot:
    return AttemptSnapshot(
        states=[OperatorState(operator_id=o, state=s) for o, s in sorted((states or {}).items())],
        committables=[Committable(operator_id=o, content=c) for o, c in committables],
    )


class HandDrivenJob:
    """A driver of a job in memory. `crash` leaves the log as it is; create another job on the same log to restore.

    Args:
        chain: Chain of the job.
        parallelism: Number of subtasks.
        is_batch: Whether the job runs without checkpoints.
        log: Log of an earlier driver, to restore from it; None for a new one.
        again: Whether to reopen a finished job.
        from_checkpoint: Id of the checkpoint to go back to.
        is_held: Whether appends wait until `release`. The test can then inspect a state that is not in the log yet.
        payloads: Store of large payloads; without it they are refused.
        may_fail: Whether the job as a whole may fail: see `MayFail`. If it may not, the call that fails the job raises
            UnexpectedFailureError with the traceback of the callback. Attempts may always fail.
    """

    may_fail_by_default: ClassVar[MayFail] = False
    """Value of `may_fail` if the argument is missing."""

    def __init__(
        self,
        chain: Chain,
        *,
        parallelism: int = 1,
        is_batch: bool = False,
        job_id: str = "job",
        log: MemoryLog | None = None,
        clock: FakeClock | None = None,
        options: RuntimeOptions | None = None,
        configure: Callable[[KernelConfig], KernelConfig] | None = None,
        restore: str | None = None,
        allow_non_restored_state: Sequence[str] = (),
        again: bool = False,
        from_checkpoint: int | None = None,
        is_held: bool = False,
        driver_id: str | None = None,
        payloads: PayloadOptions = NO_STORE,
        may_fail: MayFail | None = None,
    ) -> None:
        self.may_fail: MayFail = self.may_fail_by_default if may_fail is None else may_fail
        self._failure: UnexpectedFailureError | None = None
        self.clock, self.stage = clock or FakeClock(), FakeStage()
        self.payloads = DriverPayloads(payloads, clock=self.clock.monotonic_s, sleep=self._sleep)
        chain = chain.opening(self.payloads.open)
        self.chain, self.log = chain, log or MemoryLog(job_id)
        self.is_held = is_held
        self.is_crashed = False
        self.attempts: dict[int, FakeAttempt] = {}
        self.works: deque[Callable[[], None]] = deque()
        self.is_work_held = False
        self._posted: deque[Callable[[], None]] = deque()
        self._task_count = 0
        self.requests = Requests(chain.payload_types)
        self.requests.begin(self._requested)
        self._driver = DriverOptions(
            job_id=job_id,
            parallelism=parallelism,
            is_batch=is_batch,
            allow_non_restored_state=allow_non_restored_state,
            is_again=again,
            from_checkpoint=from_checkpoint,
            runtime=options or RuntimeOptions(),
        )
        self._open(configure, restore, driver_id)

    def _open(
        self,
        configure: Callable[[KernelConfig], KernelConfig] | None,
        restore: str | None,
        driver_id: str | None,
    ) -> None:
        driver = self._driver
        projection = projection_of(self.chain)
        rebuilt = rebuild(self.log, self.chain, projection)
        mode = JobMode.BATCH if driver.is_batch else JobMode.STREAMING
        check_counts(driver.job_id, rebuilt)
        check_complete(driver.job_id, rebuilt)
        self._check_fits(rebuilt.state, mode, restore)
        name = driver_id or f"driver-{rebuilt.state.epoch + 1}"

        config = self._config(projection, rebuilt.state.operators)
        if configure is not None:
            config = configure(config)

        self.appender: Appender = take_over(
            self.log,
            job_id=driver.job_id,
            place=rebuilt.place,
            make_epoch_started=partial(self._epoch_started, rebuilt, config, name),
            reading=rebuilt.feed,
            patience=Patience(clock=self.clock.monotonic_s, sleep=self._sleep),
        )
        rebuilt.catch_up(self.log, self.appender.end_offset)
        self.payloads.begin(self.appender.epoch, name)
        self.runtime = Runtime(
            chain=self.chain,
            config=replace(config, operators=rebuilt.state.operators),
            options=driver.runtime,
            state=rebuilt.state,
            clock=self.clock,
            connections=self,
            stage=self.stage,
            workers=_InlineWorkers(self),
            newest_snapshot=rebuilt.newest_snapshot,
            checkpoint_offset=rebuilt.offset_of(
                branched(rebuilt.state, driver.from_checkpoint).last_checkpoint
            ),
            on_released=self._released,
            on_answer=self.requests.answered,
            payloads=self.payloads,
        )
        self.mode, begin_input = first_input(
            rebuilt.state,
            self.chain,
            restore=restore,
            is_again=driver.is_again,
            from_checkpoint=driver.from_checkpoint,
        )
        if begin_input is not None:
            self.run(partial(self.runtime.begin, begin_input))

    def _epoch_started(
        self, rebuilt: Rebuild, config: KernelConfig, name: str, epoch: int
    ) -> UnstoredRecord:
        record = Record(
            epoch=epoch,
            driver_id=name,
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=max(self.clock.now_us(), rebuilt.state.timestamp_us),
            job_id=self._driver.job_id,
            attributes={
                "parallelism": str(self._driver.parallelism),
                "mode": JobMode.BATCH if self._driver.is_batch else JobMode.STREAMING,
                "operators": describe_operators(self.chain),
                **going_back_to(self._driver.from_checkpoint),
                "cluster_id": self.log.identity.cluster_id,
                "topic_id": self.log.identity.topic_id,
                **self.payloads.options.attributes,
                **self._driver.interval,
                **limits_of(config),
            },
        )
        return to_unstored(record, snapshot_offset=rebuilt.newest_snapshot.offset)

    def _check_fits(self, state: JobState, mode: JobMode, restore: str | None) -> None:
        going_back = branched(state, self._driver.from_checkpoint)
        check_payloads(self._driver.job_id, going_back, self.payloads.options, self.chain)
        elsewhere = check_fits(
            self._driver.job_id,
            state,
            self.chain,
            parallelism=self._driver.parallelism,
            mode=mode,
            restore=restore,
            is_again=self._driver.is_again,
            allow_non_restored_state=self._driver.allow_non_restored_state,
            from_checkpoint=self._driver.from_checkpoint,
        )
        refuse_earlier_output(self.chain, self._driver.job_id, elsewhere)

    def _config(self, projection: JobProjection, operators: tuple[str, ...]) -> KernelConfig:
        is_batch = self._driver.is_batch
        return KernelConfig(
            projection=projection,
            operators=operators,
            is_batch=is_batch,
            keeps_finished_splits=is_batch and not self.chain.keeps_state_across_splits,
            cluster_id=self.log.identity.cluster_id,
            topic_id=self.log.identity.topic_id,
        )

    def _sleep(self, seconds: float) -> None:
        self.clock.seconds += seconds

    # --- clients ------------------------------------------------------------------------------------------------------
    def _requested(self, arrived: RequestArrived) -> None:
        self.run(lambda: self.runtime.handle(arrived))

    def ask(self, operator_id: str, request: Payload) -> FakeRequest:
        """Send a request to a coordinator. The answer arrives once its turn is released."""
        types = self.chain.payload_types
        payload_type, payload = encoded_request(types, request)
        client = FakeRequest(types, operator_id, payload_type)
        self.requests.ask(operator_id, payload_type, payload, client.answers.append)
        return client

    # --- Connections --------------------------------------------------------------------------------------------------
    def send(self, connection_id: int, message: DownMessage) -> None:
        """See `Connections`."""
        attempt = self.attempts.get(connection_id)
        if attempt is None or attempt.is_closed:
            return
        if isinstance(message, Marker) and attempt.returns_markers:
            self._posted.append(lambda: self.runtime.arrived(connection_id, message))
        else:
            attempt.inbox.append(message)

    def close(self, connection_id: int) -> None:
        """See `Connections`."""
        self.attempts[connection_id].is_closed = True

    def released(self, connection_id: int, message_count: int) -> None:
        """See `Connections`."""

    # --- time and the log ---------------------------------------------------------------------------------------------
    def run(self, act: Callable[[], None]) -> None:
        """Run `act` on the mailbox, then `pump`. Does nothing after `crash`."""
        if self.is_crashed:
            return
        act()
        self.pump()

    def pump(self) -> None:
        """Run posted calls, workers' calls and appends until none is left. Held ones stay."""
        while True:
            if self._posted:
                self._posted.popleft()()
            elif self.works and not self.is_work_held:
                self.works.popleft()()
            elif not self.is_held and self._append():
                continue
            else:
                break
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _released(self, records: Sequence[Record]) -> None:
        for record in records:
            reason = record.reason or ""
            is_failure = record.kind in (Kind.GLOBAL_FAILURE, Kind.JOB_FAILED)
            if is_failure and self._failure is None and not self._is_expected(reason):
                self._failure = UnexpectedFailureError(record.kind.value, reason)

    def _is_expected(self, reason: str) -> bool:
        if isinstance(self.may_fail, bool):
            return self.may_fail
        texts = (self.may_fail,) if isinstance(self.may_fail, str) else self.may_fail
        newest, _, _ = reason.partition(BEFORE)
        return any(text in newest for text in texts)

    def _append(self) -> bool:
        group = self.runtime.turns.take_group()
        if not group:
            return False
        self.payloads.keep(self.runtime.turns.group_payloads())
        self.runtime.acknowledged(self.appender.append(group))
        return True

    def release(self) -> None:
        """Append the held records once, and release their effects."""
        held, self.is_held = self.is_held, False
        self.pump()
        self.is_held = held

    def advance(self, seconds: float) -> None:
        """Advance the clock, firing each timer at its time."""
        until = self.clock.seconds + seconds
        while True:
            due = self.runtime.next_timer_s()
            if due is None or due > until:
                break
            self.clock.seconds = max(self.clock.seconds, due)
            self.run(self.runtime.fire_timers)
        self.clock.seconds = until

    def crash(self) -> None:
        """End the driver as a killed process does: it does nothing from now on."""
        self.is_crashed = True
        self.requests.end()
        self.appender.close()

    # --- attempts -----------------------------------------------------------------------------------------------------
    def register(
        self,
        subtask: int,
        *,
        stage_run: int | None = None,
        task_attempt_id: int | None = None,
        is_patient: bool = True,
    ) -> FakeAttempt:
        """Connect and register a Spark task, by default of the newest stage run.

        If the restart policy's backoff delays the answer, the clock advances to it, unless `is_patient` is False.
        """
        self._task_count += 1
        connection_id = self._task_count
        attempt = FakeAttempt(self, connection_id, subtask)
        self.attempts[connection_id] = attempt
        if stage_run is None:
            stage_run = self.stage.submitted[-1] if self.stage.submitted else 0
        message = Register(
            driver_id=self.runtime.state.driver_id,
            subtask=subtask,
            stage_run=stage_run,
            task_attempt_id=connection_id if task_attempt_id is None else task_attempt_id,
            spark_attempt_number=0,
            host="memory",
            pid=0,
        )
        self.run(lambda: self.runtime.arrived(connection_id, message))
        while is_patient and self.runtime.registrations.is_delayed(connection_id):
            due = self.runtime.next_timer_s()
            assert due is not None, "a timer sends the answer"
            self.clock.seconds = max(self.clock.seconds, due)
            self.run(self.runtime.fire_timers)
        if attempt.inbox and isinstance(attempt.inbox[0], Accepted):
            attempt.last_barrier = attempt.inbox[0].restored_checkpoint
        return attempt

    def register_all(self) -> list[FakeAttempt]:
        """Register a task for every unfinished subtask, in order."""
        state = self.runtime.state
        return [
            self.register(n)
            for n in range(state.parallelism)
            if state.subtasks[n].completion is None
        ]

    def stage_ends(self, error: str | None = None) -> None:
        """End the newest stage run."""
        run = self.stage.submitted[-1]
        self.run(lambda: self.runtime.stage_ended(run, error))

    def trigger(self) -> int | None:
        """Trigger a checkpoint. Returns its id, or None if none could start."""
        triggered: list[int | None] = []
        self.run(lambda: triggered.append(self.runtime.trigger_checkpoint()))
        return triggered[0]

    # --- the log ------------------------------------------------------------------------------------------------------
    def history(self, *kinds: Kind) -> list[Record]:
        """Valid records of these kinds, or of all kinds, in log order."""
        records = [entry.record() for turn in History(self.log).turns() for entry in turn.entries]
        return [record for record in records if not kinds or record.kind in kinds]


class _InlineWorkers:
    """Workers that run on the caller's thread, in `HandDrivenJob.pump`."""

    def __init__(self, job: HandDrivenJob) -> None:
        self._job = job

    def run(self, work: Callable[[], None]) -> None:
        """See `Workers`."""
        self._job.works.append(work)

    def run_call(self, generation: int, work: Callable[[], None]) -> None:
        """See `Workers`."""
        self.run(work)

    def end_calls(self, generation: int) -> None:
        """Does nothing: each work counts as begun."""

    def run_closing(self, work: Callable[[], None]) -> None:
        """See `Workers`."""
        self.run(work)

    def post(self, thunk: Callable[[], None]) -> None:
        """See `Workers`."""
        self._job._posted.append(thunk)  # noqa: SLF001, a class of the same module
