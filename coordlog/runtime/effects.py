"""Effects of released turns on attempts and sinks. On the mailbox only; nothing here blocks.

Effects on the stage and the end of the job are the runtime's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from coordlog.api.chain import Chain
from coordlog.causes import final_of, text_of
from coordlog.errors import SinkError, TooLargeError
from coordlog.kernel.inputs import CommitSettled, Input
from coordlog.kernel.outputs import (
    AcceptAttempt,
    AnswerFinished,
    DeliverEvent,
    FenceAttempt,
    InjectBarrier,
    NotifyAttempt,
    RefuseAttempt,
    Settle,
    StopAckTimer,
)
from coordlog.limits import PAYLOAD_BYTES_MAX, SETTLE_CALL_S
from coordlog.log.local.fork_guard import ForkGuard
from coordlog.messages import (
    Accepted,
    AlreadyFinished,
    CheckpointAborted,
    CheckpointCompleted,
    Fenced,
    Refused,
)
from coordlog.messages import DeliverEvent as DeliverMessage
from coordlog.messages import InjectBarrier as BarrierMessage
from coordlog.projections.job.state import JobState
from coordlog.runtime.life.staging_cleanup import cleaning_of
from coordlog.runtime.ports import Connections
from coordlog.runtime.timers import AckTimers, Timers
from coordlog.schemas.payload import Payload, PayloadTypes

__all__ = ["AttemptEffect", "Releasing", "RuntimePort", "Workers"]

_CLEANINGS_MAX: Final = 2
_CLEANED_ATTEMPTS_MAX: Final = 1_000
"""Attempts that are over whose cleanings are counted. An older one would be cleaned after again, without effect."""

AttemptEffect = (
    AcceptAttempt
    | AnswerFinished
    | RefuseAttempt
    | DeliverEvent
    | InjectBarrier
    | NotifyAttempt
    | FenceAttempt
    | StopAckTimer
)
"""Effects on the connection of one attempt."""


class Workers(Protocol):
    """Threads for blocking work. Any thread; never blocks."""

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` of the driver on a worker; it reports through `post`."""
        ...

    def run_call(self, generation: int, work: Callable[[], None]) -> None:
        """Run `work` of a coordinator object on one of its own workers; it reports through `post`."""
        ...

    def end_calls(self, generation: int) -> None:
        """Begin no further work of a coordinator object that is closed."""
        ...

    def run_closing(self, work: Callable[[], None]) -> None:
        """Run `work`, for which the end of the driver waits a short time (clause A2: coordinators are closed).

        It starts even if all workers are busy, and even while the driver ends.
        """
        ...

    def post(self, thunk: Callable[[], None]) -> None:
        """Run `thunk` on the mailbox, in the order of these calls."""
        ...


class RuntimePort(Protocol):
    """The part of the runtime that effects need."""

    @property
    def state(self) -> JobState:
        """Present job state, including turns that are not released yet."""
        ...

    def handle(self, input_: Input) -> None:
        """Begin a turn with this input."""
        ...


class Releasing:
    """Carries out the effects of released turns on attempts and sinks, in log order."""

    def __init__(
        self,
        *,
        runtime: RuntimePort,
        chain: Chain,
        connections: Connections,
        workers: Workers,
        timers: Timers,
        ack_timeout_s: float,
        stalled_s: Callable[[], float],
    ) -> None:
        self._runtime, self._connections = runtime, connections
        self._workers, self._timers = workers, timers
        self._types = chain.payload_types
        self._sinks = {provider.operator_id: provider.sink for provider in chain.coordinators}
        self.acks = AckTimers(
            runtime=runtime,
            connections=connections,
            timers=timers,
            timeout_s=ack_timeout_s,
            stalled_s=stalled_s,
        )
        self.attempt_of: dict[int, tuple[int, int]] = {}
        """Subtask and attempt number of each open connection, by its id; the attempt may be un-released."""
        self._connection_of: dict[tuple[int, int], int] = {}
        self._cleanings: dict[tuple[str, int, int], int] = {}
        """Number of cleanings after attempts that are over, by driver, subtask and attempt number; the newest last."""
        self._settling: dict[int, int] = {}
        """Timer that abandons a settlement in progress, by the sequence of its intent."""

    def connection_lost(self, connection_id: int) -> tuple[int, int] | None:
        """Forget a connection. Returns its attempt, if any."""
        self.acks.forget(connection_id)
        key = self.attempt_of.pop(connection_id, None)
        if key is not None and self._connection_of.get(key) == connection_id:
            del self._connection_of[key]
        return key

    def do(self, effect: AttemptEffect, after: JobState) -> None:
        """Carry out one effect. `after` is the state at the end of its turn."""
        match effect:
            case DeliverEvent():
                self._deliver(effect)
            case StopAckTimer():
                self.acks.stop(effect.event_id)
            case AcceptAttempt():
                self._accept(effect, after)
            case AnswerFinished():
                self._connections.send(
                    effect.connection_id, AlreadyFinished(attempt_number=effect.attempt_number)
                )
                self._connections.close(effect.connection_id)
            case RefuseAttempt():
                self._connections.send(effect.connection_id, Refused(reason=effect.reason))
                self._connections.close(effect.connection_id)
            case InjectBarrier():
                connection = self._connection_of.get((effect.subtask, effect.attempt_number))
                if connection is not None:
                    self._connections.send(
                        connection, BarrierMessage(checkpoint_id=effect.checkpoint_id)
                    )
            case NotifyAttempt():
                self._tell(effect)
            case FenceAttempt():
                self._fence(effect, after)

    # --- attempts -----------------------------------------------------------------------------
    def _accept(self, effect: AcceptAttempt, after: JobState) -> None:
        key = (effect.subtask, effect.attempt_number)
        if self.attempt_of.get(effect.connection_id) != key:
            return
        self._connection_of[key] = effect.connection_id
        self._connections.send(
            effect.connection_id,
            Accepted(
                driver_id=after.driver_id,
                epoch=effect.epoch,
                attempt_number=effect.attempt_number,
                restored_checkpoint=effect.restored_checkpoint,
                parallelism=after.parallelism,
                is_batch=after.is_batch,
                states=effect.states,
                skipped_splits=effect.skipped_splits,
            ),
        )

    def _deliver(self, effect: DeliverEvent) -> None:
        event = effect.event
        connection = self._connection_of.get((event.subtask, event.attempt_number))
        if connection is None:
            return
        self._connections.send(
            connection,
            DeliverMessage(
                operator_id=event.operator_id,
                event_id=event.event_id,
                payload_type=event.payload_type,
                payload=event.payload,
            ),
        )
        if not event.is_loss_tolerant:
            self.acks.delivered(connection, event)

    def _tell(self, effect: NotifyAttempt) -> None:
        connection = self._connection_of.get((effect.subtask, effect.attempt_number))
        if connection is None:
            return
        if effect.is_completed:
            self._connections.send(
                connection, CheckpointCompleted(checkpoint_id=effect.checkpoint_id)
            )
        else:
            self._connections.send(
                connection, CheckpointAborted(checkpoint_id=effect.checkpoint_id)
            )

    def _fence(self, effect: FenceAttempt, after: JobState) -> None:
        connection = self._connection_of.pop((effect.subtask, effect.attempt_number), None)
        if connection is not None:
            self._connections.send(
                connection, Fenced(reason=effect.reason, is_finished=effect.is_finished)
            )
            self._connections.close(connection)
        is_over = after.attempt(effect.subtask, effect.attempt_number) is None
        if is_over and not effect.is_finished:
            # Clean at the end of the attempt, and once more at its next message, because it may have staged files
            # in between. Files that it stages after that are swept at the end of the job.
            key = (effect.driver_id, effect.subtask, effect.attempt_number)
            cleanings = self._cleanings.pop(key, 0) + 1
            self._cleanings[key] = cleanings  # the last, as the newest
            if len(self._cleanings) > _CLEANED_ATTEMPTS_MAX:
                del self._cleanings[next(iter(self._cleanings))]
            if cleanings <= _CLEANINGS_MAX:
                self._clean(effect, after)

    def _clean(self, effect: FenceAttempt, after: JobState) -> None:
        # Use the state of the released turn. A later state may have abandoned more names, and its turn may never
        # count.
        for work in cleaning_of(
            after,
            self._types,
            self._sinks,
            driver_id=effect.driver_id,
            subtask=effect.subtask,
            attempt_number=effect.attempt_number,
        ):
            self._workers.run(work)

    # --- commits ------------------------------------------------------------------------------
    def settle(self, effect: Settle) -> None:
        """Let the operator's sink settle an intent, after its delay, unless its settlement is in progress."""
        if effect.sequence in self._settling:
            return
        timer = self._timers.call_later(
            effect.delay_s + SETTLE_CALL_S, lambda: self._settled(_timed_out(effect), timer)
        )
        self._settling[effect.sequence] = timer

        def run() -> None:
            settled = self._settled_by_sink(effect)
            self._workers.post(lambda: self._settled(settled, timer))

        if effect.delay_s > 0:
            self._timers.call_later(effect.delay_s, lambda: self._workers.run(run))
        else:
            self._workers.run(run)

    def _settled_by_sink(self, effect: Settle) -> CommitSettled:
        """Result of the settlement, or its error, for the outcome (clause H3: intent, act, outcome). On a worker."""
        key: str | None = None
        encoded: bytes | None = None
        failure: str | None = None
        final = ""
        guard = ForkGuard()
        try:
            outcome = self._settle_by_sink(effect)
            if outcome is not None:
                key, encoded = encoded_within_limit(self._types, outcome)
        except BaseException as error:  # noqa: BLE001, also a library's panic: recorded, and tried again
            key, encoded, failure = None, None, text_of(error)
            final = final_of(error)
        guard.end_copy()
        return CommitSettled(
            sequence=effect.sequence,
            payload_type=key,
            payload=encoded,
            error=failure,
            final=final,
        )

    def _settle_by_sink(self, effect: Settle) -> Payload | None:
        sink = self._sinks.get(effect.operator_id)
        if sink is None:
            raise SinkError(
                f"operator {effect.operator_id!r}",
                "it has committed an intent and has no sink",
                "name the sink that settles its intents in its provider",
            )
        return sink.settle(self._types.decode(effect.payload_type, effect.payload))

    def _settled(self, settled: CommitSettled, timer: int) -> None:
        """Handle the outcome of a settlement, unless it was abandoned."""
        if self._settling.get(settled.sequence) != timer:
            return
        del self._settling[settled.sequence]
        self._timers.cancel(timer)
        self._runtime.handle(settled)


def _timed_out(effect: Settle) -> CommitSettled:
    """Outcome of a settlement that hangs; its late effect is harmless (clause H3: `settle` is idempotent)."""
    return CommitSettled(
        sequence=effect.sequence,
        payload_type=None,
        payload=None,
        error=f"its sink has not returned within {SETTLE_CALL_S:g} s",
    )


def encoded_within_limit(types: PayloadTypes, value: Payload) -> tuple[str, bytes]:
    """Type and bytes of a payload in a record.

    Raises:
        PayloadTypeError: The type is not registered, or the payload is incompatible with its schema.
        TooLargeError: The payload is above its size limit (clause K6: sizes are checked).
    """
    declared = types.of(value)
    encoded = declared.encode(value)
    if len(encoded) > PAYLOAD_BYTES_MAX:
        raise TooLargeError(f"a {declared.key}", len(encoded), PAYLOAD_BYTES_MAX)
    return declared.key, encoded
