"""Registration of tasks as attempts, lost connections, subtasks without an attempt, and stage runs. Mailbox only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from coordlog.api.chain import SourceSpec
from coordlog.kernel.inputs import AttemptLost, AttemptRegistered, FailGlobally, Input
from coordlog.kernel.outputs import DelayNextAttempt, KillTask
from coordlog.kernel.restart_policy import is_of_one_cause
from coordlog.messages import Refused, Register
from coordlog.projections.job.state import JobState, Phase, sorted_values
from coordlog.projections.splits.fold import Assigned, SplitsState
from coordlog.runtime.effects import Releasing
from coordlog.runtime.ports import Connections, Stage
from coordlog.runtime.timers import Clock, Timers

__all__ = ["Registrations", "StageControl", "lost_attempt"]


def lost_attempt(
    state: JobState, source: SourceSpec, key: tuple[int, int], reason: str, *, is_with_another: bool
) -> AttemptLost:
    """Kernel input that ends an attempt after the loss of its connection (clause B8: nothing reconnects).

    The attempt can no longer report the split that it was reading, so the split is derived from the state.

    Args:
        state: State before the loss.
        source: Source of the job.
        key: Subtask and attempt number.
        reason: Reason of the loss, in words.
        is_with_another: Whether another attempt was lost at the same time, as at the end of an executor or a machine.
            If so, the input names no split.
    """
    subtask, attempt_number = key
    return AttemptLost(
        subtask=subtask,
        attempt_number=attempt_number,
        reason=reason,
        split_id=None if is_with_another else _split_in_progress(state, source, subtask),
        is_with_another=is_with_another,
    )


def _split_in_progress(state: JobState, source: SourceSpec, subtask: int) -> str | None:
    """Split that a subtask was reading; None if it had no split, or several of which any may be the one."""
    splits = state.projections.get(source.operator_id)
    if not isinstance(splits, SplitsState):
        return None
    places = {split_id: splits.splits.place(split_id) for split_id in splits.reader(subtask).splits}
    assigned = {
        split_id: place.sequence
        for split_id, place in places.items()
        if isinstance(place, Assigned)
    }
    gateway = state.gateways.get((source.operator_id, subtask))
    in_flight = set[int]()
    if gateway is not None:
        in_flight = {event.sequence for event in sorted_values(gateway.unacked)}
    # A subtask acks an assignment before it reads the split: assignments without an ack are the last choice.
    acked = [split_id for split_id, sequence in assigned.items() if sequence not in in_flight]
    candidates = acked or list(assigned)
    # The end of a split may be reported with that of a later one.
    is_exact = source.reads_in_order and not (state.is_batch and source.groups_splits)
    is_known = len(candidates) == 1 or (bool(candidates) and is_exact)
    return candidates[0] if is_known else None


class _RuntimePort(Protocol):
    """The part of the runtime that registrations use."""

    @property
    def state(self) -> JobState:
        """The present job state, including turns that the log does not have yet."""
        ...

    def handle(self, input_: Input, *, connection_id: int | None = None) -> None:
        """Begin a turn."""
        ...


class Registrations:
    """Registers tasks: at once, or after the backoff of the restart policy.

    Args:
        runtime: Runtime that handles the registrations.
        connections: Connections to which refusals are sent.
        releasing: Holder of the attempt of each connection.
        stages: Holder of the stage run whose tasks may register.
        source: Source of the job.
        timers: Timers of the runtime.
        clock: Clock of the runtime.
        timeout_s: Time limit of a subtask without an attempt while its stage runs.
    """

    def __init__(
        self,
        *,
        runtime: _RuntimePort,
        connections: Connections,
        releasing: Releasing,
        stages: StageControl,
        source: SourceSpec,
        timers: Timers,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._runtime, self._connections, self._releasing = runtime, connections, releasing
        self._stages, self._source = stages, source
        self._timers, self._clock, self._timeout_s = timers, clock, timeout_s
        self._delayed: dict[int, Register] = {}
        """Registrations that wait for the backoff, by connection."""
        self._not_before_s: dict[int, float] = {}
        """End of the backoff, by subtask."""
        self._vacant_since_s: dict[int, float] = {}
        """Beginning of the time without an attempt, by subtask."""

    def stage_began(self) -> None:
        """Begin a stage run: end all backoffs, and count each unfinished subtask as one without an attempt."""
        now_s = self._clock.monotonic_s()
        subtasks = sorted_values(self._runtime.state.subtasks)
        self._vacant_since_s = {
            subtask.subtask: now_s for subtask in subtasks if subtask.completion is None
        }
        self._not_before_s.clear()

    def delay(self, effect: DelayNextAttempt) -> None:
        """Delay the next registration of a subtask."""
        self._not_before_s[effect.subtask] = self._clock.monotonic_s() + effect.delay_s

    def is_delayed(self, connection_id: int) -> bool:
        """Whether the registration of this connection waits for the backoff."""
        return connection_id in self._delayed

    def connection_lost(self, connection_id: int, reason: str) -> None:
        """End the attempt of a lost connection (clause B8: nothing reconnects)."""
        self._delayed.pop(connection_id, None)
        key = self._releasing.connection_lost(connection_id)
        state = self._runtime.state
        attempt = None if key is None else state.attempt(*key)
        if key is None or attempt is None:
            return
        is_together = is_of_one_cause(state, attempt, self._clock.now_us())
        lost = lost_attempt(state, self._source, key, reason, is_with_another=is_together)
        self._runtime.handle(lost)

    def arrived(self, connection_id: int, message: Register) -> None:
        """Handle the registration of a task, at once or after the backoff of its subtask."""
        driver_id = self._runtime.state.driver_id
        if message.driver_id != driver_id:
            reason = f"the task belongs to driver {message.driver_id}, this is {driver_id}"
            self._connections.send(connection_id, Refused(reason=reason))
            self._connections.close(connection_id)
            return
        key = self._releasing.attempt_of.get(connection_id)
        if key is not None:
            reason = "its connection registered a second time"
            lost = AttemptLost(subtask=key[0], attempt_number=key[1], reason=reason)
            self._runtime.handle(lost, connection_id=connection_id)
            return
        wait_s = self._not_before_s.get(message.subtask, 0.0) - self._clock.monotonic_s()
        if wait_s <= 0:
            self._register(connection_id, message)
            return
        self._delayed[connection_id] = message

        def register() -> None:
            if self._delayed.pop(connection_id, None) is not None:
                self._register(connection_id, message)

        self._timers.call_later(wait_s, register)

    def _register(self, connection_id: int, message: Register) -> None:
        subtask = self._runtime.state.subtasks.get(message.subtask)
        next_number = -1 if subtask is None else subtask.next_attempt_number
        attempt_of = self._releasing.attempt_of
        attempt_of[connection_id] = (message.subtask, next_number)
        registered = AttemptRegistered(
            connection_id=connection_id,
            message=message,
            is_current_run=self._stages.accepts(message.stage_run),
        )
        self._runtime.handle(registered, connection_id=connection_id)
        if self._runtime.state.attempt(message.subtask, next_number) is None:
            attempt_of.pop(connection_id, None)

    def watch(self) -> None:
        """Fail the job if a subtask has had no live attempt for too long. Called every second or so."""
        state = self._runtime.state
        if not self._stages.is_running or state.phase is not Phase.RUNNING:
            return
        now_s = self._clock.monotonic_s()
        delayed = {message.subtask for message in self._delayed.values()}
        for subtask in sorted_values(state.subtasks):
            is_vacant = subtask.attempt is None and subtask.completion is None
            if not is_vacant or subtask.subtask in delayed:
                self._vacant_since_s.pop(subtask.subtask, None)
                continue
            vacant_s = now_s - self._vacant_since_s.setdefault(subtask.subtask, now_s)
            if vacant_s > self._timeout_s:
                self._vacant_since_s.clear()
                reason = (
                    f"subtask {subtask.subtask} of {state.parallelism} has had no attempt for "
                    f"{vacant_s:.0f} s: Spark has started no task for it (are there "
                    f"{state.parallelism} free slots?), its task cannot reach the driver, or its workers end before "
                    "they register, as with too little memory in spark.executor.pyspark.memory (do tasks fail in "
                    "Spark's log?)"
                )
                self._runtime.handle(FailGlobally(reason=reason, subtask=subtask.subtask))
                return


class StageControl:
    """At most one stage run at a time; each has its own number, 1 first.

    Args:
        stage: Stage that runs them.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._run = 0
        self._is_cancelled = False
        self.is_running = False
        """Whether a run is submitted, or about to be, and has not ended."""

    def accepts(self, stage_run: int) -> bool:
        """Whether tasks of this run may become attempts."""
        return self.is_current(stage_run) and not self._is_cancelled

    def is_current(self, stage_run: int) -> bool:
        """Whether this run is the newest, and has not ended."""
        return self.is_running and stage_run == self._run

    def begin(self) -> Callable[[], None]:
        """Begin the next run. Returns its submission, to be called once the log has all records before it."""
        assert not self.is_running, "one run at a time"
        self.is_running = True
        self._run += 1
        return partial(self._stage.submit, self._run)

    def kill(self, effect: KillTask) -> None:
        """Kill a task, if its run has not ended."""
        if self.is_current(effect.stage_run):
            self._stage.kill_task(effect.stage_run, effect.task_attempt_id, effect.reason)

    def cancel(self, reason: str) -> None:
        """Cancel the present run, if there is one that is not cancelled yet."""
        if self.is_running and not self._is_cancelled:
            self._is_cancelled = True
            self._stage.cancel(self._run, reason)

    def ended(self, state: JobState, error: str | None, final: str) -> FailGlobally | None:
        """Note the end of the newest run. Returns the failure of the job if unfinished subtasks needed the run.

        Args:
            state: State of the job.
            error: Error of the run; None if all its tasks ended without one.
            final: Reason why another run cannot succeed, or empty.
        """
        is_cancelled, self.is_running, self._is_cancelled = self._is_cancelled, False, False
        unfinished = [
            subtask.subtask
            for subtask in sorted_values(state.subtasks)
            if subtask.completion is None
        ]
        if state.phase is not Phase.RUNNING or is_cancelled or not unfinished:
            return None
        cause = error or "all its tasks ended"
        reason = (
            f"Spark ended stage run {self._run} although the subtasks "
            f"{', '.join(map(str, unfinished))} have not completed: {cause}"
        )
        return FailGlobally(reason=cause if final else reason, final=final)
