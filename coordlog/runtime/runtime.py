"""Drives the kernel: turns, held and released effects, timers. One thread, no clock of its own.

What is around it (the mailbox's thread, the log's, connections, the stage, workers) is handed in as ports, so that a
simulation runs this very code on simulated time. The one I/O that a turn waits for is the opening of a payload that
stands in the payload store: `DriverPayloads.open`, which bounds its further tries.
"""

from __future__ import annotations

import itertools
import logging
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from coordlog.api.chain import Chain
from coordlog.api.coordinator import OperatorCoordinator
from coordlog.errors import CoordlogError
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import (
    Action,
    CheckpointDue,
    CheckpointReleased,
    CheckpointTimedOut,
    DriverStops,
    FailGlobally,
    Input,
    RegisterType,
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
    RefuseAttempt,
    Settle,
    StartCheckpointTimer,
    Step,
    StopAckTimer,
    TellAttempt,
)
from coordlog.kernel.step import act, is_ready_for_attempts, step
from coordlog.limits import (
    GROUP_BYTES_MAX,
    GROUP_RECORDS_MAX,
    REASON_CHARS_MAX,
    UNRELEASED_TURNS_MAX,
)
from coordlog.log.interface import UnstoredRecord
from coordlog.messages import Refused, Register, UpMessage
from coordlog.payloads.offload import DriverPayloads, HeldPayload
from coordlog.projections.job.state import JobState, Phase, sorted_values
from coordlog.projections.snapshot.codec import SNAPSHOT_TYPE, SnapshotCodec
from coordlog.restore.snapshots import NO_SNAPSHOT, NewestSnapshot, SnapshotTaker, snapshot_answer
from coordlog.runtime.arrivals import input_of, lost_connection, registration_of
from coordlog.runtime.coordinator_host import CallFailure, CoordinatorHost
from coordlog.runtime.effects import Releasing, Workers
from coordlog.runtime.ending import Ending
from coordlog.runtime.losses import Losses
from coordlog.runtime.ports import Connections, Stage
from coordlog.runtime.queries import Looks
from coordlog.runtime.timers import Clock, Timers
from coordlog.runtime.turns import (
    RuntimeOptions,
    Turn,
    check_sizes,
    fitting_act,
    fitting_step,
    to_unstored,
)
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Record

__all__ = ["Clock", "Runtime", "RuntimeOptions", "Workers", "to_unstored"]

_log = logging.getLogger(__name__)


class Runtime:
    """One driver's turns. Every method is called on the mailbox, but `fail_job`.

    The owner must hand over what `take_group` gives to the log, and call `acknowledged` once it counts; call
    `fire_timers` no later than `next_timer_s` says; and stop when `outcome` is set.
    """

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
        on_answer: Callable[[AnswerRequest], None] | None = None,
        payloads: DriverPayloads | None = None,
    ) -> None:
        self.state = state
        self.outcome: EndJob | None = None
        self.refused_connections = 0
        """By the endpoint, so far; set from any thread, and told by the next checkpoint's first record."""
        self._refused_recorded = 0
        self.payloads = payloads or DriverPayloads()
        self.host = CoordinatorHost(
            chain.coordinators,
            chain.payload_types,
            self,
            held_events_max=config.held_events_max,
            payloads=self.payloads,
        )
        self._timers, self._looks = Timers(clock), Looks(chain)
        self._releasing = Releasing(
            runtime=self,
            chain=chain,
            connections=connections,
            workers=workers,
            timers=self._timers,
            ack_timeout_s=options.ack_timeout_s,
        )
        self._ending = Ending(
            runtime=self, config=config, timers=self._timers, open_work=self.host.open_work
        )
        self._config, self._options, self._clock = config, options, clock
        self._source, self._losses = chain.source, Losses()
        self._connections, self._stage, self._workers = connections, stage, workers
        self._on_released, self._on_answer = on_released, on_answer
        self._snapshots = SnapshotTaker(
            SnapshotCodec(config.projection),
            options.snapshot_every,
            newest_snapshot,
            checkpoint_offset,
            self.payloads,
        )
        self._turn: Turn | None = None
        self._calls: deque[Call] = deque()
        self._failed_inside: tuple[str, str, str] | None = None
        self._waiting: deque[Turn] = deque()
        self._in_flight = 0
        self._in_flight_since_s = 0.0
        self._stalled_s = 0.0
        self._registering: dict[int, Register] = {}
        self._not_before_s: dict[int, float] = {}
        self._vacant_since: dict[int, float] = {}
        self._stage_run = 0
        self._is_stage_running = False
        self._is_stage_cancelled = False
        self._is_stopping = self._is_sealed = False
        self.last_released_checkpoint: int | None = None

    # --- TurnPort, for the host -----------------------------------------------------------------
    @property
    def now_us(self) -> int:
        """The turn's time; outside a turn, the last one's."""
        return self.state.timestamp_us if self._turn is None else self._turn.now_us

    @property
    def turn_sequence(self) -> int:
        """Where the turn began."""
        assert self._turn is not None, "inside a turn"
        return self._turn.sequence

    def act(self, action: Action) -> None:
        """An action of a coordinator's code."""
        turn = self._turn
        assert turn is not None, "inside a turn"
        made = fitting_act(self._config, self.state, action, turn.clock_us)
        turn.add_acted(made.records)  # before it is taken: what raises appends nothing
        self._take(turn, made)

    def next_call_number(self) -> int:
        """0, 1, 2 … within the turn."""
        turn = self._turn
        assert turn is not None, "inside a turn"
        return turn.next_call()

    def start_work(
        self, operator_id: str, generation: int, call_number: int, work: Callable[[], Payload]
    ) -> None:
        """Run `work` after release; its result comes as a `WorkDone`."""
        turn = self._turn
        assert turn is not None, "inside a turn"
        sequence = turn.sequence

        def run() -> None:
            result: object = None
            failure: str | None = None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001, clause A6: its exception enters as text
                failure = f"{type(error).__name__}: {error}"
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

        turn.effects.append(lambda: self._workers.run(run))

    def start_timer(
        self, operator_id: str, generation: int, call_number: int, delay_s: float
    ) -> None:
        """Fire once, `delay_s` after release."""
        turn = self._turn
        assert turn is not None, "inside a turn"
        fired = WorkDone(
            operator_id=operator_id,
            generation=generation,
            turn_sequence=turn.sequence,
            call_number=call_number,
            is_timer=True,
        )

        def fire() -> None:
            if self.host.generation(operator_id) == generation:
                self._work_done(fired)

        def begin() -> None:
            self._timers.call_later(delay_s, fire)

        turn.effects.append(begin)

    def _work_done(self, given: WorkDone) -> None:
        is_orphan = self.host.generation(given.operator_id) != given.generation
        self.handle(replace(given, is_orphan=True) if is_orphan else given)

    def fail_job(
        self, operator_id: str, reason: str, *, generation: int | None = None, final: str = ""
    ) -> None:
        """Fail globally. Any thread; inside a turn as if the callback had raised on its return.

        Args:
            operator_id: Whose coordinator asks.
            reason: Why.
            generation: Of the coordinator object that asks; where it has been closed by the time
                that its turn comes, nothing happens (clause A1).
            final: Why no restart is to be tried.
        """
        try:
            self.host.check_inside("fail_job")
        except CoordlogError:
            given = FailGlobally(reason=reason, operator_id=operator_id, final=final)
            self._workers.post(lambda: self._fail_from_outside(given, generation))
            return
        if self._failed_inside is None:
            self._failed_inside = (operator_id, reason, final)

    def _fail_from_outside(self, given: FailGlobally, generation: int | None) -> None:
        assert given.operator_id is not None, "a coordinator asks"
        if generation is None or self.host.generation(given.operator_id) == generation:
            self.handle(given)

    def close_coordinator(self, coordinator: OperatorCoordinator) -> None:
        """`close`, on a worker; nobody waits."""

        def close() -> None:
            try:
                coordinator.close()
            except Exception:  # noqa: BLE001, clause A2: nobody waits for it
                _log.exception("close of %s raised", type(coordinator).__name__)

        self._workers.run_closing(close)

    # --- turns ----------------------------------------------------------------------------------
    def begin(self, given: Input) -> None:
        """The first thing of an epoch: start, resume, roll back or conclude."""
        self.handle(given)
        self.start_checkpoints()

    def handle(self, given: Input, *, connection_id: int | None = None) -> None:
        """One turn for this input, and those that are due after it; none once the driver has stopped."""
        if self._is_sealed:
            return
        seen = self._looks.answer(given, self.state)
        if seen is not None:
            self._waiting.append(self._turn_of_effects())
            self._waiting[-1].effects.append(seen)
            self._release_ready()
            return
        if self._snapshots.asks(given):
            self._take_asked()
            return
        self._run_turn(given, connection_id)
        following = self._ending.following()
        while following is not None and self.outcome is None:
            self._run_turn(following, None)
            following = self._ending.following()
        if self._snapshots.is_due(self.state):
            self._take_snapshot()
        self._start_stage_if_ready()
        if self.outcome is None:
            self._ending.watch()
        self._release_ready()

    def _take_asked(self) -> None:
        """The snapshots that clients want; each is answered once it counts."""
        while (asked := self._snapshots.next_asked()) is not None:
            self._take_snapshot(asked.request_id)
        self._release_ready()

    def _take_snapshot(self, request_id: int | None = None) -> None:
        """A turn of its own: its type is in the log before."""
        key = SNAPSHOT_TYPE.key
        if key not in self.state.types:
            self._run_turn(RegisterType(payload_type=key), None)
        place, is_asked = self.state.next_sequence, request_id is not None
        payload = self._snapshots.take(self.state, is_asked=is_asked)
        if payload is not None:
            self._run_turn(TakeSnapshot(payload_type=key, payload=payload), None)
        if request_id is not None:
            if payload is None:
                self._waiting.append(self._turn_of_effects())
            # The newest turn that waits is the snapshot's, or that without records.
            answer = snapshot_answer(request_id, place, payload, self._snapshots.why_not)
            self._waiting[-1].effects.append(answer)

    def _turn_of_effects(self) -> Turn:
        """A turn without records, for effects that must not overtake what waits for the log."""
        return Turn(
            sequence=self.state.next_sequence, now_us=self.state.timestamp_us, after=self.state
        )

    def _run_turn(self, given: Input, connection_id: int | None) -> None:
        clock_us = self._clock.now_us()
        turn = Turn(
            sequence=self.state.next_sequence,
            now_us=max(clock_us, self.state.timestamp_us),
            clock_us=clock_us,
            after=self.state,
            connection_id=connection_id,
        )
        first = fitting_step(self._config, self.state, given, clock_us)
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

    def _take(self, turn: Turn, made: Step) -> None:
        self.state = made.state
        turn.records.extend(made.records)
        turn.effects.extend(made.effects)
        self._calls.extend(made.calls)

    def _make_calls(self) -> None:
        while self._calls:
            call = self._calls.popleft()
            self.host.make(call)
            if self._failed_inside is not None:
                operator_id, reason, final = self._failed_inside
                cause = RuntimeError(reason)
                raise CallFailure(operator_id, "fail_job", None, cause, final=final)

    def _fail_turn(self, turn: Turn, first: Step, failure: CallFailure) -> None:
        """Clause A3: of this turn the kernel's records stay, all that coordinators did in it goes."""
        self.state = first.state
        turn.records[:] = first.records
        turn.effects[:] = first.effects
        self._calls.clear()
        self.host.forget(turn.sequence)
        if failure.callback == "fail_job":
            what = f"operator {failure.operator_id!r} failed the job: {failure.cause}"
        else:
            about = "" if failure.subtask is None else f" for subtask {failure.subtask}"
            trace = "".join(traceback.format_exception(failure.cause))
            what = f"{failure.callback} of operator {failure.operator_id!r}{about} raised "
            what += f"{type(failure.cause).__name__}: {failure.cause}\n{trace}"[:REASON_CHARS_MAX]
        for call in first.calls:
            if isinstance(call, CallRequest):
                self._take(turn, self._answer_failed(call, what, turn.now_us))
        given = FailGlobally(
            reason=what[:REASON_CHARS_MAX],
            operator_id=failure.operator_id,
            subtask=failure.subtask,
            event=failure.event,
            final=failure.final,
        )
        self._take(turn, step(self._config, self.state, given, turn.clock_us))
        self._calls.clear()

    def _answer_failed(self, call: CallRequest, what: str, now_us: int) -> Step:
        """No request is left open (clause J1)."""
        answer = Respond(
            request_id=call.request_id,
            operator_id=call.operator_id,
            cause=call.sequence,
            outcome=RequestOutcome.FAILED,
            reason=what,
        )
        return act(self._config, self.state, answer, now_us)

    def _close_turn(self, turn: Turn) -> None:
        if not turn.records and not turn.effects and turn.connection_id is None:
            return
        turn.after = self.state
        check_sizes(turn.records)
        count = len(turn.records)
        turn.records = [
            evolve(record, turn_remaining=count - 1 - n) if count - 1 - n else record
            for n, record in enumerate(turn.records)
        ]
        newest = self._snapshots.offset
        turn.unstored = [to_unstored(record, snapshot_offset=newest) for record in turn.records]
        turn.payloads = self.payloads.take() if turn.records else ()
        turn.watched = [n for n, one in enumerate(turn.records) if SnapshotTaker.is_watched(one)]
        for _ in turn.watched:
            self._snapshots.closed()
        self._waiting.append(turn)

    # --- the log --------------------------------------------------------------------------------
    @property
    def unreleased_turns(self) -> int:
        """Turns that wait for the log."""
        return len(self._waiting)

    @property
    def is_backed_up(self) -> bool:
        """Whether so many turns wait, or so much for the payload store, that only acknowledgements should be taken."""
        return len(self._waiting) >= UNRELEASED_TURNS_MAX or self.payloads.is_full

    def take_group(self) -> list[UnstoredRecord]:
        """The records of the next append: whole turns, in order. Empty while one is in flight, or nothing waits."""
        if self._in_flight:
            return []
        group: list[UnstoredRecord] = []
        size = 0
        for turn in self._waiting:
            turn_bytes = sum(one.size_bytes for one in turn.unstored)
            turn_bytes += sum(one.address.length for one in turn.payloads)
            is_full = (
                len(group) + len(turn.unstored) > GROUP_RECORDS_MAX
                or size + turn_bytes > GROUP_BYTES_MAX
            )
            if group and is_full:
                break
            group.extend(turn.unstored)
            size += turn_bytes
            self._in_flight += 1
        if not group:
            self._in_flight = 0
        self._in_flight_since_s = self._clock.monotonic_s()
        return group

    def group_payloads(self) -> list[HeldPayload]:
        """What is to be stored before the group in flight is appended."""
        turns = itertools.islice(self._waiting, self._in_flight)
        return [one for turn in turns for one in turn.payloads]

    def acknowledged(self, offsets: Sequence[int]) -> None:
        """The group in flight counts, at these offsets: release its effects, in log order."""
        self._stalled_s = self.stalled_s()
        turns = [self._waiting.popleft() for _ in range(self._in_flight)]
        assert len(offsets) == sum(len(turn.unstored) for turn in turns), "one for each record"
        self._in_flight = first = 0
        for turn in turns:
            for n in turn.watched:
                self._snapshots.released(turn.records[n], offsets[first + n])
            first += len(turn.unstored)
            self._release(turn)
        self._take_asked()

    def stalled_s(self) -> float:
        """For how long, in all, the log has not acknowledged what it was handed."""
        if not self._in_flight:
            return self._stalled_s
        since_s = self._clock.monotonic_s() - self._in_flight_since_s
        return self._stalled_s + max(0.0, since_s - self._options.append_stall_s)

    def _release_ready(self) -> None:
        """Release turns without records that nothing before them holds."""
        while self._waiting and not self._in_flight and not self._waiting[0].unstored:
            self._release(self._waiting.popleft())

    def _release(self, turn: Turn) -> None:
        if self._on_released is not None and turn.records:
            self._on_released(turn.records)
        for effect in turn.effects:
            if callable(effect):
                effect()
            else:
                self._do(effect, turn.after)
        if turn.payloads:
            self.payloads.release(turn.payloads)
        if turn.connection_id is not None:
            self._connections.released(turn.connection_id, 1)

    # --- effects --------------------------------------------------------------------------------
    def _do(self, effect: Effect, after: JobState) -> None:
        match effect:
            case (
                AcceptAttempt()
                | AnswerFinished()
                | RefuseAttempt()
                | DeliverEvent()
                | InjectBarrier()
                | TellAttempt()
                | FenceAttempt()
                | StopAckTimer()
            ):
                self._releasing.do(effect, after)
            case KillTask():
                if effect.stage_run == self._stage_run and self._is_stage_running:
                    self._stage.kill_task(effect.stage_run, effect.task_attempt_id, effect.reason)
            case DelayNextAttempt():
                until_s = self._clock.monotonic_s() + effect.delay_s
                self._not_before_s[effect.subtask] = until_s
            case CancelStage():
                self._cancel_stage(effect)
            case Settle():
                self._releasing.settle(effect)
            case CompletedReleased():
                self.last_released_checkpoint = effect.checkpoint_id
                released = CheckpointReleased(checkpoint_id=effect.checkpoint_id)
                self._workers.post(lambda: self.handle(released))
            case StartCheckpointTimer():
                self._start_checkpoint_timer(effect.checkpoint_id)
            case AnswerRequest():
                if self._on_answer is not None:
                    self._on_answer(effect)
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
        if self._is_stage_running or self._is_stopping or self.outcome is not None:
            return
        if not is_ready_for_attempts(self.state):
            return
        self._is_stage_running = True
        self._stage_run += 1
        stage_run = self._stage_run
        now = self._clock.monotonic_s()
        self._vacant_since = {
            one.subtask: now for one in sorted_values(self.state.subtasks) if one.completion is None
        }
        self._not_before_s.clear()
        turn = self._turn_of_effects()
        turn.effects.append(lambda: self._stage.submit(stage_run))
        self._waiting.append(turn)

    def stage_ended(self, stage_run: int, error: str | None, *, final: str = "") -> None:
        """A stage run is over; `final` says why no other one can help."""
        if stage_run != self._stage_run or not self._is_stage_running:
            return
        is_asked_for = self._is_stage_cancelled
        self._is_stage_running = self._is_stage_cancelled = False
        state = self.state
        if state.phase is Phase.RUNNING and not self._is_stopping and not is_asked_for:
            left = [s.subtask for s in sorted_values(state.subtasks) if s.completion is None]
            if left:
                why = error or "all its tasks ended"
                reason = (
                    f"Spark ended stage run {stage_run} although the subtasks "
                    f"{', '.join(map(str, left))} have not completed: {why}"
                )
                self.handle(FailGlobally(reason=why if final else reason, final=final))
                return
        self._start_stage_if_ready()
        self._release_ready()

    def _cancel_stage(self, effect: CancelStage) -> None:
        if self._is_stage_running and not self._is_stage_cancelled:
            self._is_stage_cancelled = True
            self._stage.cancel(self._stage_run, effect.reason)
        if effect.backoff_s is not None:
            self._timers.call_later(effect.backoff_s, self._roll_back)

    def _roll_back(self) -> None:
        if self.state.phase is Phase.FAILING:
            self.handle(Rollback(checkpoint_id=self.state.last_checkpoint, is_failover=True))

    @property
    def is_stage_running(self) -> bool:
        """Whether a stage run is submitted and has not ended."""
        return self._is_stage_running

    def watch_registrations(self) -> None:
        """Fail where a subtask has had no live attempt for too long. Called every second or so."""
        if not self._is_stage_running or self.state.phase is not Phase.RUNNING:
            return
        now = self._clock.monotonic_s()
        held = {message.subtask for message in self._registering.values()}
        for subtask in sorted_values(self.state.subtasks):
            is_vacant = subtask.attempt is None and subtask.completion is None
            if not is_vacant or subtask.subtask in held:
                self._vacant_since.pop(subtask.subtask, None)
                continue
            since = self._vacant_since.setdefault(subtask.subtask, now)
            if now - since > self._options.registration_timeout_s:
                self._vacant_since.clear()
                self.handle(
                    FailGlobally(
                        reason=f"subtask {subtask.subtask} of {self.state.parallelism} has had no "
                        f"attempt for {now - since:.0f} s: Spark has started no task for it (are "
                        f"there {self.state.parallelism} free slots?), or the task cannot reach "
                        "the driver",
                        subtask=subtask.subtask,
                    )
                )
                return

    # --- from attempts --------------------------------------------------------------------------
    def arrived(self, connection_id: int, message: UpMessage) -> None:
        """A message of an attempt's connection, in order."""
        if isinstance(message, Register):
            self._register(connection_id, message)
            return
        key = self._releasing.attempt_of.get(connection_id)
        if key is None or self._releasing.is_marker(connection_id, message):
            # It was refused as an attempt and has been told so, or this is no input.
            self._connections.released(connection_id, 1)
            return
        self.handle(input_of(key[0], key[1], message), connection_id=connection_id)

    def _register(self, connection_id: int, message: Register) -> None:
        if message.driver_id != self.state.driver_id:
            self._connections.send(
                connection_id,
                Refused(
                    reason=f"the task belongs to driver {message.driver_id}, this is "
                    f"{self.state.driver_id}"
                ),
            )
            self._connections.close(connection_id)
            return
        key = self._releasing.attempt_of.get(connection_id)
        if key is not None:
            self.handle(input_of(key[0], key[1], message), connection_id=connection_id)
            return
        wait_s = self._not_before_s.get(message.subtask, 0.0) - self._clock.monotonic_s()
        if wait_s <= 0:
            self._register_now(connection_id, message)
            return
        # The restart policy's backoff: the task waits for its answer.
        self._registering[connection_id] = message

        def register() -> None:
            if self._registering.pop(connection_id, None) is not None:
                self._register_now(connection_id, message)

        self._timers.call_later(wait_s, register)

    def _register_now(self, connection_id: int, message: Register) -> None:
        before = self.state.subtasks.get(message.subtask)
        next_number = -1 if before is None else before.next_attempt_number
        attempt_of = self._releasing.attempt_of
        attempt_of[connection_id] = (message.subtask, next_number)
        is_current_run = (
            message.stage_run == self._stage_run
            and self._is_stage_running
            and not self._is_stage_cancelled
        )
        self.handle(
            registration_of(connection_id, message, is_current_run=is_current_run),
            connection_id=connection_id,
        )
        if self.state.attempt(message.subtask, next_number) is None:
            attempt_of.pop(connection_id, None)
        else:
            self._losses.began(connection_id, message.host)

    def is_registration_delayed(self, connection_id: int) -> bool:
        """Whether a task waits for its answer because of the restart policy's backoff."""
        return connection_id in self._registering

    def connection_lost(self, connection_id: int, reason: str) -> None:
        """Clause B8: a connection that is lost ends its attempt."""
        self._registering.pop(connection_id, None)
        key = self._releasing.connection_lost(connection_id)
        if key is None or self.state.attempt(*key) is None:
            self._losses.ended(connection_id)
            return
        together = self._losses.broke(connection_id, self._clock.monotonic_s())
        given = lost_connection(self.state, self._source, key, reason, is_with_another=together)
        self.handle(given)

    # --- checkpoints and the end ----------------------------------------------------------------
    def start_checkpoints(self) -> None:
        """Begin the periodic checkpoints, where an interval is set."""
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
        """Trigger a checkpoint now; its id, or None where none may start now."""
        before = self.state.next_checkpoint_id
        return before if self._trigger() else None

    def _trigger(self) -> bool:
        before, refused = self.state.next_checkpoint_id, self.refused_connections
        self.handle(CheckpointDue(refused_connections=refused - self._refused_recorded))
        if self.state.next_checkpoint_id == before:
            return False
        self._refused_recorded = refused
        return True

    @property
    def is_stopping(self) -> bool:
        """Whether the driver has been told to stop."""
        return self._is_stopping

    def stop(self, given: StopAsked | DriverStops, released: Callable[[], None]) -> None:
        """No new stage or periodic checkpoint, and no turn after `DriverStops`; `released` once the log has it."""
        self._is_stopping = True
        if self.outcome is None and not self.state.is_over and not self._is_sealed:
            self._run_turn(given, None)
        self._is_sealed |= isinstance(given, DriverStops)
        self.when_released(lambda _state: released())

    def when_released(self, tell: Callable[[JobState], None]) -> None:
        """Hand over the state as it is now once the log has all that led to it."""
        turn = self._turn_of_effects()
        turn.effects.append(lambda: tell(turn.after))
        self._waiting.append(turn)
        self._release_ready()

    # --- timers ---------------------------------------------------------------------------------
    def next_timer_s(self) -> float | None:
        """When the next timer is due, on the monotonic clock."""
        return self._timers.next_s()

    def fire_timers(self) -> None:
        """Run what is due."""
        self._timers.fire()
