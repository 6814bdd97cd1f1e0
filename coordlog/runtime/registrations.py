"""Registration of tasks as attempts, lost connections, and subtasks without an attempt. Mailbox only."""

from __future__ import annotations

from typing import Protocol

from coordlog.api.chain import SourceSpec
from coordlog.kernel.inputs import AttemptLost, AttemptRegistered, FailGlobally, Input
from coordlog.kernel.outputs import DelayNextAttempt
from coordlog.messages import Refused, Register
from coordlog.projections.job.state import JobState, Phase, sorted_values
from coordlog.runtime.effects import Releasing
from coordlog.runtime.losses import Losses, lost_connection
from coordlog.runtime.ports import Connections
from coordlog.runtime.stage_control import StageControl
from coordlog.runtime.timers import Clock, Timers

__all__ = ["Registrations"]


class _RuntimePort(Protocol):
    """The part of the runtime that registrations use."""

    @property
    def state(self) -> JobState:
        """The present job state, un-released turns included."""
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
        self._stages, self._source, self._losses = stages, source, Losses()
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
        """Whether a task waits for its answer because of the backoff."""
        return connection_id in self._delayed

    def connection_lost(self, connection_id: int, reason: str) -> None:
        """End the attempt of a lost connection (clause B8: nothing reconnects)."""
        self._delayed.pop(connection_id, None)
        key = self._releasing.connection_lost(connection_id)
        state = self._runtime.state
        if key is None or state.attempt(*key) is None:
            self._losses.ended(connection_id)
            return
        is_together = self._losses.broke(connection_id, self._clock.monotonic_s())
        lost = lost_connection(state, self._source, key, reason, is_with_another=is_together)
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
            reason = "its connection asked to become another attempt"
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
        else:
            self._losses.began(connection_id, message.host)

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
                    f"{state.parallelism} free slots?), or the task cannot reach the driver"
                )
                self._runtime.handle(FailGlobally(reason=reason, subtask=subtask.subtask))
                return
