"""What released turns ask for, towards attempts and sinks. Mailbox only; nothing here blocks.

The stage, the job's end and the turns themselves are the runtime's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from coordlog.api.chain import Chain
from coordlog.causes import final_of
from coordlog.errors import SinkError, TooLargeError
from coordlog.kernel.inputs import CommitSettled, Input
from coordlog.kernel.outputs import (
    AcceptAttempt,
    AnswerFinished,
    DeliverEvent,
    FenceAttempt,
    InjectBarrier,
    RefuseAttempt,
    Settle,
    StopAckTimer,
    TellAttempt,
)
from coordlog.limits import PAYLOAD_BYTES_MAX, SETTLE_CALL_S
from coordlog.messages import (
    Accepted,
    AlreadyFinished,
    CheckpointAborted,
    CheckpointCompleted,
    Fenced,
    Marker,
    Refused,
    UpMessage,
)
from coordlog.messages import DeliverEvent as DeliverMessage
from coordlog.messages import InjectBarrier as BarrierMessage
from coordlog.projections.job.state import JobState
from coordlog.runtime.ack_timers import AckTimers
from coordlog.runtime.ports import Connections
from coordlog.runtime.staging_cleanup import cleaning_of
from coordlog.runtime.timers import Timers
from coordlog.schemas.payload import Payload, PayloadTypes

__all__ = ["AttemptEffect", "Releasing", "RuntimePort", "Workers"]

_CLEANINGS_MAX: Final = 2

AttemptEffect = (
    AcceptAttempt
    | AnswerFinished
    | RefuseAttempt
    | DeliverEvent
    | InjectBarrier
    | TellAttempt
    | FenceAttempt
    | StopAckTimer
)
"""The effects that concern one connection."""


class Workers(Protocol):
    """Threads for what may block. Any thread; never blocks."""

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` some time soon; it reports through `post`."""
        ...

    def run_closing(self, work: Callable[[], None]) -> None:
        """Run what a driver's end waits for, but not long, such as the closing of a coordinator (clause A2).

        Even where every worker is busy, or the driver ends.
        """
        ...

    def post(self, thunk: Callable[[], None]) -> None:
        """Run `thunk` on the mailbox, in the order of these calls."""
        ...


class RuntimePort(Protocol):
    """What is asked of the runtime."""

    @property
    def state(self) -> JobState:
        """The job state as of now, un-released turns included."""
        ...

    def handle(self, given: Input) -> None:
        """Begin a turn."""
        ...

    def stalled_s(self) -> float:
        """For how long, in all, the log has not acknowledged."""
        ...


class Releasing:
    """Does the effects of released turns that concern attempts and sinks, in log order."""

    def __init__(
        self,
        *,
        runtime: RuntimePort,
        chain: Chain,
        connections: Connections,
        workers: Workers,
        timers: Timers,
        ack_timeout_s: float,
    ) -> None:
        self._runtime, self._connections = runtime, connections
        self._workers, self._timers = workers, timers
        self._types = chain.payload_types
        self._sinks = {one.operator_id: one.sink for one in chain.coordinators}
        self.acks = AckTimers(
            runtime=runtime, connections=connections, timers=timers, timeout_s=ack_timeout_s
        )
        self.attempt_of: dict[int, tuple[int, int]] = {}
        """Subtask and attempt number by connection: as of now, released or not."""
        self._connection_of: dict[tuple[int, int], int] = {}
        self._cleanings: dict[tuple[str, int, int], int] = {}
        """Cleanings by driver, subtask and number of an attempt that is over."""
        self._settling: dict[int, int] = {}
        """By the sequence of an intent that a sink has in hand: the timer that gives this try up."""

    def connection_lost(self, connection_id: int) -> tuple[int, int] | None:
        """Forget a connection; the attempt that it was, if any."""
        self.acks.forget(connection_id)
        key = self.attempt_of.pop(connection_id, None)
        if key is not None and self._connection_of.get(key) == connection_id:
            del self._connection_of[key]
        return key

    def is_marker(self, connection_id: int, message: UpMessage) -> bool:
        """Whether the message is a marker that has come back; the timers of acks take it."""
        if isinstance(message, Marker):
            self.acks.marker_returned(connection_id)
            return True
        return False

    def do(self, effect: AttemptEffect, after: JobState) -> None:
        """Do one effect. `after` is the state at the end of the turn that asked for it."""
        match effect:
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
            case DeliverEvent():
                self._deliver(effect)
            case InjectBarrier():
                connection = self._connection_of.get((effect.subtask, effect.attempt_number))
                if connection is not None:
                    self._connections.send(
                        connection, BarrierMessage(checkpoint_id=effect.checkpoint_id)
                    )
            case TellAttempt():
                self._tell(effect)
            case FenceAttempt():
                self._fence(effect, after)
            case StopAckTimer():
                self.acks.stop(effect.event_id)

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

    def _tell(self, effect: TellAttempt) -> None:
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
            # At its end, and once more when it is heard of later, since it may have staged something in between.
            # What it stages after that is swept at the job's end.
            key = (effect.driver_id, effect.subtask, effect.attempt_number)
            self._cleanings[key] = self._cleanings.get(key, 0) + 1
            if self._cleanings[key] <= _CLEANINGS_MAX:
                self._clean(effect, after)

    def _clean(self, effect: FenceAttempt, after: JobState) -> None:
        # By the state of the turn that ended the attempt. A later one may have given up more, and
        # nothing says yet that it will count.
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
        """Have the operator's sink settle an intent; one that is being settled is left alone."""
        if effect.sequence in self._settling:
            return
        timer = self._timers.call_later(
            effect.delay_s + SETTLE_CALL_S, lambda: self._settled(_not_back(effect), timer)
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
        """On a worker. What the sink raises enters as an outcome (clause H3)."""
        key: str | None = None
        encoded: bytes | None = None
        failure: str | None = None
        final = ""
        try:
            outcome = self._ask_sink(effect)
            if outcome is not None:
                key, encoded = encoded_within_limit(self._types, outcome)
        except Exception as error:  # noqa: BLE001, it is recorded and tried again
            key, encoded, failure = None, None, f"{type(error).__name__}: {error}"
            final = final_of(error)
        return CommitSettled(
            sequence=effect.sequence,
            payload_type=key,
            payload=encoded,
            error=failure,
            final=final,
        )

    def _ask_sink(self, effect: Settle) -> Payload | None:
        sink = self._sinks.get(effect.operator_id)
        if sink is None:
            raise SinkError(
                f"operator {effect.operator_id!r}",
                "it has given an intent and has no sink",
                "name the sink that settles its intents in its provider",
            )
        return sink.settle(self._types.decode(effect.payload_type, effect.payload))

    def _settled(self, given: CommitSettled, timer: int) -> None:
        """What became of a try; of one that was given up nothing is heard any more."""
        if self._settling.get(given.sequence) != timer:
            return
        del self._settling[given.sequence]
        self._timers.cancel(timer)
        self._runtime.handle(given)


def _not_back(effect: Settle) -> CommitSettled:
    """A try that hangs: what it does late has the effect of once, as `settle` is safe when two do it (clause H3)."""
    return CommitSettled(
        sequence=effect.sequence,
        payload_type=None,
        payload=None,
        error=f"its sink has not come back within {SETTLE_CALL_S:g} s",
    )


def encoded_within_limit(types: PayloadTypes, value: Payload) -> tuple[str, bytes]:
    """A payload as a record holds it.

    Raises:
        PayloadTypeError: Its type is not registered, or it does not fit its schema.
        TooLargeError: It is above its limit (clause K6).
    """
    declared = types.of(value)
    encoded = declared.encode(value)
    if len(encoded) > PAYLOAD_BYTES_MAX:
        raise TooLargeError(f"a {declared.key}", len(encoded), PAYLOAD_BYTES_MAX)
    return declared.key, encoded
