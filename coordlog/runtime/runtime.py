"""Driver of the kernel: turns, held and released effects, timers. One thread, no clock of its own.

Its surroundings (the threads of mailbox and log, connections, the stage, workers) are ports, so that a simulation runs
this same code on simulated time. A turn waits for only one kind of I/O: the read of a payload in the payload store
(`DriverPayloads.open`, which has a time limit).
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from coordlog.api.chain import Chain
from coordlog.api.coordinator import OperatorCoordinator
from coordlog.causes import encodable, text_of
from coordlog.errors import CoordlogError
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import (
    Action,
    AttemptLost,
    CheckpointDue,
    CheckpointReleased,
    CheckpointTimedOut,
    DriverStops,
    FailGlobally,
    FromAttempt,
    Input,
    RegisterType,
    RequestArrived,
    RequestOutcome,
    Respond,
    Rollback,
    StopAsked,
    TakeSnapshot,
    WorkDone,
)
from coordlog.kernel.outputs import (
    AcceptAttempt,
    AnswerFinished,
    AnswerRequest,
    Call,
    CallRequest,
    CancelStage,
    CompletedReleased,
    DelayNextAttempt,
    DeliverEvent,
    Effect,
    EndJob,
    FenceAttempt,
    InjectBarrier,
    KillTask,
    NotifyAttempt,
    QueueCheckpoint,
    RefuseAttempt,
    Settle,
    StartCheckpointTimer,
    Step,
    StopAckTimer,
    StopDriver,
)
from coordlog.kernel.refusals import is_handled
from coordlog.kernel.step import act, is_ready_for_attempts, step
from coordlog.limits import REASON_CHARS_MAX
from coordlog.log.local.fork_guard import ForkGuard
from coordlog.messages import Marker, Register, SendEvent, UpMessage
from coordlog.payloads.check import read_event
from coordlog.payloads.offload import DriverPayloads
from coordlog.projections.job.state import JobState, Phase
from coordlog.projections.snapshot.codec import SNAPSHOT_TYPE, SnapshotCodec
from coordlog.projections.tables.failures import survived_failures
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.restore.snapshots import NO_SNAPSHOT, NewestSnapshot, SnapshotTaker, snapshot_answer
from coordlog.runtime.effects import Releasing, Workers
from coordlog.runtime.host.coordinator_host import CallFailure, CoordinatorHost
from coordlog.runtime.life.ending import Ending
from coordlog.runtime.ports import Connections, Observer, Stage
from coordlog.runtime.queries import Queries
from coordlog.runtime.registrations import Registrations, StageControl
from coordlog.runtime.timers import Clock, Timers
from coordlog.runtime.triggers import CheckpointHandle, Triggers
from coordlog.runtime.turns import (
    RuntimeOptions,
    Turn,
    check_sizes,
    fitting_act,
    fitting_step,
    to_unstored,
)
from coordlog.runtime.waiting_turns import WaitingTurns
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Record

__all__ = ["Clock", "Runtime", "RuntimeOptions", "Workers", "to_unstored"]

_log = logging.getLogger(__name__)


class Runtime:
    """Turns of one driver. All methods but `fail_job` are called on the mailbox.

    The owner must append the records of `turns.take_group` to the log, as a rule at `turns.append_due_s`, and call
    `acknowledged` once they count, call `fire_timers` no later than at `next_timer_s`, and stop when `outcome` is set.
    """

    last_offset: int | None = None
    """Offset of the newest record of this driver in force, or None before the first turn. Read on any thread."""

    def __init__(
        self,
        *,
        chain: Chain,
        config: KernelConfig,
        options: RuntimeOptions,
        state: JobState,
        clock: Clock,
        connections: Connections,
        stage: Stage,
        workers: Workers,
        newest_snapshot: NewestSnapshot = NO_SNAPSHOT,
        checkpoint_offset: int | None = None,
        on_released: Callable[[Sequence[Record]], None] | None = None,
        observer: Observer | None = None,
        on_answer: Callable[[AnswerRequest], None] | None = None,
        on_stop: Callable[[StopDriver], None] | None = None,
        payloads: DriverPayloads | None = None,
    ) -> None:
        self.state = state
        self.outcome: EndJob | None = None
        self.refused_connections = 0
        """Connections that the endpoint has refused so far. Set from any thread; recorded by the next checkpoint."""
        self.payloads = payloads or DriverPayloads()
        self.turns = WaitingTurns(clock, self.payloads, append_stall_s=options.append_stall_s)
        self.host = CoordinatorHost(
            chain.coordinators,
            chain.payload_types,
            self,
            held_events_max=config.held_events_max,
            payloads=self.payloads,
        )
        self._timers, self._queries = Timers(clock), Queries(chain)
        self._releasing = Releasing(
            runtime=self,
            chain=chain,
            connections=connections,
            workers=workers,
            timers=self._timers,
            ack_timeout_s=options.ack_timeout_s,
            stalled_s=self.turns.stalled_s,
        )
        self._ending = Ending(
            runtime=self, config=config, timers=self._timers, open_work=self.host.open_work
        )
        self.triggers = Triggers(self._trigger, state, is_overlap=config.is_overlap_allowed)
        self._config, self._options, self._clock, self._observer = config, options, clock, observer
        self._connections, self._stages, self._workers = connections, StageControl(stage), workers
        self._on_released, self._on_answer, self._on_stop = on_released, on_answer, on_stop
        self.registrations = Registrations(
            runtime=self,
            connections=connections,
            releasing=self._releasing,
            stages=self._stages,
            source=chain.source,
            timers=self._timers,
            clock=clock,
            timeout_s=options.registration_timeout_s,
        )
        self._snapshots = SnapshotTaker(
            SnapshotCodec(config.projection),
            options.snapshot_every,
            newest_snapshot,
            checkpoint_offset,
            self.payloads,
        )
        self._turn: Turn | None = None
        self._calls, self._refused_recorded = deque[Call](), 0
        self._failed_inside: tuple[str, str, str] | None = None
        self._is_stopping = self._is_sealed = False

    # --- TurnPort, for the host -----------------------------------------------------------------
    @property
    def now_us(self) -> int:
        """Time of the turn; outside a turn, that of the last one."""
        return self.state.timestamp_us if self._turn is None else self._turn.now_us

    @property
    def turn_sequence(self) -> int:
        """Sequence of the first record of the turn."""
        assert self._turn is not None, "inside a turn"
        return self._turn.sequence

    def act(self, action: Action) -> None:
        """Carry out an action of a coordinator's code within the turn."""
        turn = self._turn
        assert turn is not None, "inside a turn"
        result = fitting_act(self._config, self.state, action, turn.clock_us)
        # First: if this raises, no record of the action may be appended.
        turn.add_acted(result.records)
        self._take(turn, result)

    def next_call_number(self) -> int:
        """Next number of a call or timer in the turn; 0 first."""
        turn = self._turn
        assert turn is not None, "inside a turn"
        return turn.next_call()

    def start_work(
        self, operator_id: str, generation: int, call_number: int, work: Callable[[], Payload]
    ) -> None:
        """Run `work` after release; its result arrives as a `WorkDone`."""
        turn = self._turn
        assert turn is not None, "inside a turn"
        sequence = turn.sequence

        def run() -> None:
            result: object = None
            failure: str | None = None
            guard = ForkGuard()
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001, clause A6: also a library's panic enters as text
                failure = text_of(error)
            guard.end_copy()
            self._workers.post(lambda: done(result, failure))

        def done(result: object, failure: str | None) -> None:
            key, encoded = None, None
            if failure is None:
                key, encoded, failure = self.host.encode_result(result)
            self._work_done(
                WorkDone(
                    operator_id=operator_id,
                    generation=generation,
                    turn_sequence=sequence,
                    call_number=call_number,
                    is_timer=False,
                    payload_type=key,
                    payload=encoded,
                    error=failure,
                )
            )

        def begin() -> None:
            if self.host.generation(operator_id) == generation:
                self._workers.run_call(generation, run)

        turn.effects.append(begin)

    def start_timer(
        self, operator_id: str, generation: int, call_number: int, delay_s: float
    ) -> None:
        """Start a timer that fires once, `delay_s` after release."""
        turn = self._turn
        assert turn is not None, "inside a turn"
        timer_done = WorkDone(
            operator_id=operator_id,
            generation=generation,
            turn_sequence=turn.sequence,
            call_number=call_number,
            is_timer=True,
        )

        def fire() -> None:
            if self.host.generation(operator_id) == generation:
                self._work_done(timer_done)

        def begin() -> None:
            self._timers.call_later(delay_s, fire)

        turn.effects.append(begin)

    def _work_done(self, done: WorkDone) -> None:
        is_orphan = self.host.generation(done.operator_id) != done.generation
        self.handle(replace(done, is_orphan=True) if is_orphan else done)

    def fail_job(
        self, operator_id: str, reason: str, *, generation: int | None = None, final: str = ""
    ) -> None:
        """Fail the job globally. Any thread; within a callback: at its end, as if the callback had raised.

        Args:
            operator_id: Operator of the coordinator that fails the job.
            reason: Reason in words.
            generation: Generation of the calling coordinator object. If the object is closed before the turn of this
                failure, nothing happens (clause A1: new object after reset).
            final: Reason why a restart cannot succeed, or empty.
        """
        try:
            self.host.check_inside("fail_job")
        except CoordlogError:
            failure = FailGlobally(reason=reason, operator_id=operator_id, final=final)
            self._workers.post(lambda: self._fail_from_outside(failure, generation))
            return
        if self._failed_inside is None:
            self._failed_inside = (operator_id, reason, final)

    def _fail_from_outside(self, failure: FailGlobally, generation: int | None) -> None:
        assert failure.operator_id is not None, "a coordinator fails the job"
        if generation is None or self.host.generation(failure.operator_id) == generation:
            self.handle(failure)

    def close_coordinator(self, coordinator: OperatorCoordinator | None, generation: int) -> None:
        """Call `close` on a worker, without waiting for it; begin no further call of the object."""
        self._workers.end_calls(generation)
        if coordinator is None:
            return

        def close() -> None:
            try:
                coordinator.close()
            except Exception:  # noqa: BLE001, clause A2: no caller waits for it
                _log.exception("close of %s raised", type(coordinator).__name__)

        self._workers.run_closing(close)

    @property
    def calling(self) -> tuple[str | None, int]:
        """The callback or query that runs, in words, or None; and the number of both so far. Any thread."""
        number = self.host.call_count + self._queries.call_count
        return self.host.calling or self._queries.calling, number

    # --- turns ----------------------------------------------------------------------------------
    def begin(self, input_: Input) -> None:
        """Handle the first input of an epoch: start, resume, roll back or conclude."""
        self.handle(input_)
        self.start_checkpoints()

    def handle(self, input_: Input, *, connection_id: int | None = None) -> None:
        """Run a turn for this input, and the turns that are due after it; none once the driver has stopped."""
        if self._is_sealed:
            return
        if isinstance(input_, RequestArrived):
            answer = self._queries.answer(input_, self.state)
            if answer is not None:
                self._queue(answer)
                self._release_ready()
                return
            if self._snapshots.queue_request(input_):
                self._take_requested()
                return
        self._run_turn(input_, connection_id)
        following = self._ending.following()
        while following is not None and self.outcome is None:
            self._run_turn(following, None)
            following = self._ending.following()
        if self._snapshots.is_due(self.state):
            self._take_snapshot(is_standing=self._options.is_log_pruned)
        self._start_stage_if_ready()
        if self.outcome is None:
            self._ending.watch()
            self.triggers.watch(self.state)
        self._release_ready()

    def _take_requested(self) -> None:
        """Take the snapshots that clients have requested; each is answered once it counts."""
        while (request := self._snapshots.next_request()) is not None:
            self._take_snapshot(request, is_standing=True)
        self._release_ready()

    def take_last_snapshot(self, released: Callable[[], None]) -> None:
        """Begin no further turn than that of a snapshot; `released` is called once the log has all records.

        The driver's last act at each orderly end: a log can be pruned up to this snapshot while no driver runs.
        """
        self._is_sealed = True
        if self._snapshots.is_owed_at_end(self.state):
            self._take_snapshot(is_standing=True)
        self.when_released(lambda _state: released())

    def _take_snapshot(
        self, request: RequestArrived | None = None, *, is_standing: bool = False
    ) -> None:
        """Take a snapshot in a turn of its own; its payload type is registered before."""
        key = SNAPSHOT_TYPE.key
        if key not in self.state.types:
            self._run_turn(RegisterType(payload_type=key), None)
        sequence = self.state.next_sequence
        payload = self._snapshots.take(self.state, is_standing=is_standing)
        if payload is not None:
            asked_by = None if request is None else request.asked_by
            self._run_turn(TakeSnapshot(payload_type=key, payload=payload, asked_by=asked_by), None)
        if request is not None:
            answer = snapshot_answer(request.request_id, sequence, payload, self._snapshots.why_not)
            if payload is None:
                self._queue(answer)
            else:
                self.turns.newest.effects.append(answer)  # the turn of the snapshot

    def _turn_of_effects(self) -> Turn:
        """A turn without records, for effects that must not overtake turns that wait for the log."""
        return Turn(
            sequence=self.state.next_sequence, now_us=self.state.timestamp_us, after=self.state
        )

    def _queue(self, effect: Effect | Callable[[], None]) -> None:
        """Queue an effect until the log has all records before it."""
        turn = self._turn_of_effects()
        turn.effects.append(effect)
        self.turns.add(turn)

    def _run_turn(self, input_: Input, connection_id: int | None) -> None:
        clock_us = self._clock.now_us()
        turn = Turn(
            sequence=self.state.next_sequence,
            now_us=max(clock_us, self.state.timestamp_us),
            clock_us=clock_us,
            connection_id=connection_id,
        )
        first = fitting_step(self._config, self.state, input_, clock_us)
        self._turn = turn
        try:
            self._take(turn, first)
            self._make_calls()
        except CallFailure as failure:
            self._fail_turn(turn, first, failure)
        finally:
            self._turn = None
            self._calls.clear()
            self._failed_inside = None
        self._close_turn(turn)

    def _take(self, turn: Turn, result: Step) -> None:
        self.state = result.state
        turn.records.extend(result.records)
        turn.effects.extend(result.effects)
        self._calls.extend(result.calls)

    def _make_calls(self) -> None:
        while self._calls:
            call = self._calls.popleft()
            self.host.make(call)
            if self._failed_inside is not None:
                operator_id, reason, final = self._failed_inside
                cause = RuntimeError(reason)
                raise CallFailure(operator_id, None, None, cause, final=final)

    def _fail_turn(self, turn: Turn, first: Step, failure: CallFailure) -> None:
        """Keep only the kernel's records of the turn, no actions of coordinators (clause A3: error fails globally)."""
        self.state = first.state
        turn.records[:] = first.records
        turn.effects[:] = first.effects
        self._calls.clear()
        self.host.forget(turn.sequence)
        if failure.callback is None:
            reason = f"operator {failure.operator_id!r} failed the job: {failure.cause}"
        else:
            about = "" if failure.subtask is None else f" for subtask {failure.subtask}"
            trace = "".join(traceback.format_exception(failure.cause))
            reason = f"{failure.callback} of operator {failure.operator_id!r}{about} raised "
            reason += f"{text_of(failure.cause)}\n{trace}"
        reason = encodable(reason)[:REASON_CHARS_MAX]
        for call in first.calls:
            if isinstance(call, CallRequest):
                answered = self._answer_failed(call, reason, turn.now_us)
                check_sizes(answered.records)
                self._take(turn, answered)
        global_failure = FailGlobally(
            reason=reason,
            operator_id=failure.operator_id,
            subtask=failure.subtask,
            event=failure.event,
            final=failure.final,
        )
        failed = step(self._config, self.state, global_failure, turn.clock_us)
        check_sizes(failed.records)
        self._take(turn, failed)
        self._calls.clear()

    def _answer_failed(self, call: CallRequest, reason: str, now_us: int) -> Step:
        """Answer of a request whose handler failed (clause J1: each is answered)."""
        answer = Respond(
            request_id=call.request_id,
            operator_id=call.operator_id,
            cause=call.sequence,
            outcome=RequestOutcome.FAILED,
            reason=reason,
        )
        return act(self._config, self.state, answer, now_us)

    def _close_turn(self, turn: Turn) -> None:
        if not turn.records and not turn.effects and turn.connection_id is None:
            return
        if self._observer is not None or turn.reads_state:
            turn.after = self.state
        count = len(turn.records)
        if count > 1:
            turn.records = [
                evolve(record, turn_remaining=count - 1 - n) if count - 1 - n else record
                for n, record in enumerate(turn.records)
            ]
        newest = self._snapshots.offset
        turn.unstored = [to_unstored(record, snapshot_offset=newest) for record in turn.records]
        turn.payloads = self.payloads.take() if turn.records else ()
        turn.watched = [
            n for n, record in enumerate(turn.records) if SnapshotTaker.is_watched(record)
        ]
        for _ in turn.watched:
            self._snapshots.closed()
        self.turns.add(turn)

    # --- the log --------------------------------------------------------------------------------
    def acknowledged(self, offsets: Sequence[int]) -> None:
        """Release the effects of the group in flight, in log order; its records count, at these offsets."""
        append_s: float | None = self.turns.append_pending_s()
        first = 0
        handled: dict[int, int] = {}
        self.last_offset = offsets[-1] if offsets else self.last_offset
        for turn in self.turns.take_acknowledged(offsets):
            for n in turn.watched:
                self._snapshots.released(turn.records[n], offsets[first + n])
            first += len(turn.unstored)
            self._release(turn)
            if turn.connection_id is not None:
                handled[turn.connection_id] = handled.get(turn.connection_id, 0) + 1
            if self._observer is not None and turn.records:
                assert turn.after is not None, "an observer reads it"
                self._observer.released(turn.records, turn.after, append_s)
                append_s = None
        for connection_id, count in handled.items():
            self._connections.released(connection_id, count)
        self._take_requested()

    def _release_ready(self) -> None:
        """Release the first turns in the queue while they have no records and no append is in flight."""
        while (turn := self.turns.take_ready()) is not None:
            self._release(turn)
            if turn.connection_id is not None:
                self._connections.released(turn.connection_id, 1)

    def _release(self, turn: Turn) -> None:
        self.triggers.released(turn.records)
        for record, failure, cause in survived_failures(turn.records):
            _log.warning(
                "job=%s %s: %s", record.job_id, failure, on_one_line(cause, REASON_CHARS_MAX)
            )
        if self._on_released is not None and turn.records:
            self._on_released(turn.records)
        # Effects of a turn without its state read none.
        after = self.state if turn.after is None else turn.after
        for effect in turn.effects:
            if callable(effect):
                effect()
            else:
                self._do(effect, after)
        if turn.payloads:
            self.payloads.release(turn.payloads)

    # --- effects --------------------------------------------------------------------------------
    def _do(self, effect: Effect, after: JobState) -> None:
        match effect:
            case (
                DeliverEvent()
                | StopAckTimer()
                | AcceptAttempt()
                | AnswerFinished()
                | RefuseAttempt()
                | InjectBarrier()
                | NotifyAttempt()
                | FenceAttempt()
            ):
                self._releasing.do(effect, after)
            case KillTask():
                self._stages.kill(effect)
            case DelayNextAttempt():
                self.registrations.delay(effect)
            case CancelStage():
                self._stages.cancel(effect.reason)
                if effect.backoff_s is not None:
                    self._timers.call_later(effect.backoff_s, self._roll_back)
            case Settle():
                self._releasing.settle(effect)
            case CompletedReleased():
                released = CheckpointReleased(checkpoint_id=effect.checkpoint_id)
                self._workers.post(lambda: self.handle(released))
            case StartCheckpointTimer():
                self._start_checkpoint_timer(effect.checkpoint_id)
            case AnswerRequest():
                if self._on_answer is not None:
                    self._on_answer(effect)
            case QueueCheckpoint():
                # Its handle is not waited for: the client follows the log.
                self.trigger_when_possible(CheckpointHandle(after.job_id, lambda: True))
            case StopDriver():
                self._is_stopping = True
                if self._on_stop is not None:
                    self._on_stop(effect)
            case EndJob():
                self.outcome = effect

    def _start_checkpoint_timer(self, checkpoint_id: int) -> None:
        timeout_s = self._options.checkpoint_timeout_s

        def timed_out() -> None:
            if checkpoint_id in self.state.pending:
                self.handle(CheckpointTimedOut(checkpoint_id=checkpoint_id, timeout_s=timeout_s))

        self._timers.call_later(timeout_s, timed_out)

    # --- the stage ------------------------------------------------------------------------------
    def _start_stage_if_ready(self) -> None:
        if self._stages.is_running or self._is_stopping or self.outcome is not None:
            return
        if not is_ready_for_attempts(self.state):
            return
        submit = self._stages.begin()
        self.registrations.stage_began()
        self._queue(submit)

    def stage_ended(self, stage_run: int, error: str | None, *, final: str = "") -> None:
        """Handle the end of a stage run; `final` is the reason why another run cannot succeed, or empty."""
        if not self._stages.is_current(stage_run):
            return
        failure = self._stages.ended(self.state, error, final)
        if failure is not None and not self._is_stopping:
            self.handle(failure)
            return
        self._start_stage_if_ready()
        self._release_ready()

    def _roll_back(self) -> None:
        if self.state.phase is Phase.FAILING:
            self.handle(Rollback(checkpoint_id=self.state.last_checkpoint, is_failover=True))

    @property
    def snapshot_offset(self) -> int:
        """Offset of the newest snapshot that counts, or -1. Any thread."""
        return self._snapshots.offset

    @property
    def is_stage_running(self) -> bool:
        """Whether a stage run is submitted and has not ended."""
        return self._stages.is_running

    # --- from attempts --------------------------------------------------------------------------
    def arrived(self, connection_id: int, message: UpMessage) -> None:
        """Handle a message of a connection; the messages of one connection come in order."""
        if isinstance(message, Register):
            self.registrations.arrived(connection_id, message)
            return
        key = self._releasing.attempt_of.get(connection_id)
        if key is None or isinstance(message, Marker):
            # No turn: either the registration of this connection was refused, or the message is a marker.
            if key is not None:
                self._releasing.acks.marker_returned(connection_id)
            self._connections.released(connection_id, 1)
            return
        subtask, attempt_number = key
        input_: Input = FromAttempt(subtask=subtask, attempt_number=attempt_number, message=message)
        if isinstance(message, SendEvent) and is_handled(self.state, subtask, attempt_number):
            # Read here, and not in the step: the payload may be in the payload store.
            read = read_event(self._config.projection.types, message)
            if isinstance(read, str):
                input_ = AttemptLost(subtask=subtask, attempt_number=attempt_number, reason=read)
            elif read is not None:
                self.host.arriving = message.payload_type, message.payload, read
        self.handle(input_, connection_id=connection_id)
        self.host.arriving = None

    def connection_lost(self, connection_id: int, reason: str) -> None:
        """Handle the loss of a connection."""
        self.registrations.connection_lost(connection_id, reason)

    # --- checkpoints and the end ----------------------------------------------------------------
    def start_checkpoints(self) -> None:
        """Begin the periodic checkpoints, if an interval is set."""
        interval_s = self._options.checkpoint_interval_s
        if interval_s is not None and not self.state.is_batch:
            self._timers.call_later(interval_s, self._checkpoint_due)

    def _checkpoint_due(self) -> None:
        interval_s = self._options.checkpoint_interval_s
        assert interval_s is not None, "the timer runs only with an interval"
        is_triggered = not self._is_stopping and self._trigger()
        self._timers.call_later(
            interval_s if is_triggered else interval_s / 10, self._checkpoint_due
        )

    def trigger_checkpoint(self) -> int | None:
        """Trigger a checkpoint now. Returns its id, or None if none may start now."""
        before = self.state.next_checkpoint_id
        return before if self._trigger() else None

    def trigger_when_possible(self, handle: CheckpointHandle) -> None:
        """Trigger a checkpoint as soon as one may start. Any thread."""
        self.triggers.add(handle)
        self._workers.post(lambda: self.triggers.queue(handle, self.state))

    def _trigger(self) -> bool:
        before, refused = self.state.next_checkpoint_id, self.refused_connections
        self.handle(CheckpointDue(refused_connections=refused - self._refused_recorded))
        if self.state.next_checkpoint_id == before:
            return False
        self._refused_recorded = refused
        return True

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._is_stopping

    def stop(self, input_: StopAsked | DriverStops, released: Callable[[], None]) -> None:
        """Begin no further stage or periodic checkpoint; after `DriverStops` no further turn either.

        `released` is called once the log has all records up to the stop.
        """
        self._is_stopping = True
        if self.outcome is None and not self.state.is_over and not self._is_sealed:
            self._run_turn(input_, None)
        self._is_sealed |= isinstance(input_, DriverStops)
        self.when_released(lambda _state: released())

    def when_released(self, callback: Callable[[JobState], None]) -> None:
        """Call `callback` with the present state once the log has all records up to it."""
        self._queue(partial(callback, self.state))
        self._release_ready()

    # --- timers ---------------------------------------------------------------------------------
    def next_timer_s(self) -> float | None:
        """Time of the next timer on the monotonic clock, or None."""
        return self._timers.next_s()

    def fire_timers(self) -> None:
        """Run the callbacks that are due."""
        self._timers.fire()
