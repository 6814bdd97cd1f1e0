"""The job whose events are timed: a coordinator that keeps many round trips open, and readers that answer."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.coordinator import (
    CheckpointResult,
    CoordinatorContext,
    CoordinatorProvider,
    EventFuture,
    OperatorCoordinator,
)
from coordlog.api.operator import OperatorContext, Poll, PollStatus, SourceReader
from coordlog.schemas.payload import Payload, event, request, response

__all__ = ["SOURCE", "Begun", "Burst", "Measured", "RoundTrips", "events_chain", "tasks_chain"]

SOURCE = "source"
_TEXT = "x" * 80
_IDLE_S = 3600.0


@event("benchmark.ping", version=1)
class Ping(Payload):
    """An event down, which is answered by a `Pong`."""

    number: int
    text: str


@event("benchmark.pong", version=1)
class Pong(Payload):
    """An event up."""

    number: int
    text: str


@event("benchmark.held", version=1)
class Held(Payload):
    """An event down that a checkpoint holds; it has no answer but its ack."""

    text: str


@event("benchmark.send", version=1)
class SendMany(Payload):
    """An event down that makes a subtask send so many events up."""

    count: int


@request("benchmark.round_trips", version=1)
class RoundTrips(Payload):
    """Make so many round trips, so many at a time."""

    count: int
    outstanding: int


@request("benchmark.burst", version=1)
class Burst(Payload):
    """Let the subtasks send so many events up, all together."""

    count: int


@response("benchmark.begun", version=1)
class Begun(Payload):
    """It has begun."""

    count: int


@dataclass(slots=True, eq=False)
class Measured:
    """Times that the coordinator takes; seconds of `time.perf_counter`. Written on the mailbox."""

    handled_s: list[float] = field(default_factory=list)
    """When each event up was handled, in this order."""
    round_trip_s: list[float] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)
    """For each event sent inside a cut: the time until it was acked."""
    wanted: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    """Set once `wanted` events were handled, or the job has failed."""
    parallelism: int = 0
    is_holding: bool = False
    """Whether the coordinator sends an event to each subtask inside each cut."""
    unacked: int = 0
    """Number of these events that were not acked yet."""
    all_acked: threading.Event = field(default_factory=threading.Event)

    def begin(self, wanted: int) -> None:
        """Forget all times; `done` is set after so many events."""
        self.wanted = wanted
        self.done.clear()
        self.handled_s.clear()
        self.round_trip_s.clear()


class _Coordinator(OperatorCoordinator):
    def __init__(self, context: CoordinatorContext, measured: Measured) -> None:
        super().__init__(context)
        self._measured = measured
        self._sent_s: dict[int, float] = {}
        self._unsent = self._sent = 0

    def handle_coordination_request(self, request: Payload) -> Payload:
        """Begin what is requested; its end is in `Measured.done`."""
        subtasks = sorted(self.context.gateways)
        if isinstance(request, RoundTrips):
            self._measured.begin(request.count)
            self._unsent = request.count
            for n in range(min(request.outstanding, request.count)):
                self._send(subtasks[n % len(subtasks)])
            return Begun(count=request.count)
        assert isinstance(request, Burst), "the other type of the job"
        each = request.count // len(subtasks)
        self._measured.begin(each * len(subtasks))
        for subtask in subtasks:
            self.context.gateways[subtask].send_event(SendMany(count=each))
        return Begun(count=each)

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Pong) -> None:
        """Take the time of the event, and send the next one down."""
        measured, now_s = self._measured, time.perf_counter()
        measured.handled_s.append(now_s)
        sent_s = self._sent_s.pop(event.number, None)
        if sent_s is not None:
            measured.round_trip_s.append(now_s - sent_s)
            if self._unsent:
                self._send(subtask)
        if len(measured.handled_s) == measured.wanted:
            measured.done.set()

    def _send(self, subtask: int) -> None:
        self._unsent -= 1
        self._sent += 1
        self._sent_s[self._sent] = time.perf_counter()
        self.context.gateways[subtask].send_event(Ping(number=self._sent, text=_TEXT))

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Nothing is restored."""

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        """Take the cut; then, if so measured, send an event to each subtask, which the checkpoint holds."""
        result.complete(bytes(100))
        if self._measured.is_holding:
            self._measured.all_acked.clear()
            self._measured.unacked = len(self.context.gateways)
            for gateway in self.context.gateways.values():
                sent_s = time.perf_counter()
                future = gateway.send_event(Held(text=_TEXT))
                future.add_done_callback(partial(self._held, sent_s))

    def _held(self, sent_s: float, acked: EventFuture) -> None:
        acked.result()
        self._measured.held_s.append(time.perf_counter() - sent_s)
        self._measured.unacked -= 1
        if self._measured.unacked == 0:
            self._measured.all_acked.set()


class _Provider(CoordinatorProvider):
    operator_id = SOURCE
    payload_types: tuple[type[Payload], ...] = (
        *(Ping, Pong, Held, SendMany),
        *(RoundTrips, Burst, Begun),
    )

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        """See `CoordinatorProvider`."""
        return _Coordinator(context, self._measured)


class _Answering(SourceReader):
    """Reads nothing, and answers events."""

    def __init__(self) -> None:
        self._context: OperatorContext | None = None

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Keep the context."""
        self._context = context

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """None come."""

    def handle_source_event(self, event: Any) -> None:  # noqa: ANN401, one of the job's events
        """Answer."""
        context = self._context
        assert context is not None, "opened"
        if isinstance(event, Ping):
            context.send_event(Pong(number=event.number, text=event.text))
        elif isinstance(event, SendMany):
            for _ in range(event.count):
                context.send_event(Pong(number=0, text=_TEXT))

    def poll(self) -> Poll:
        """Nothing to read, ever."""
        return Poll(status=PollStatus.WAITING, retry_s=_IDLE_S)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Some bytes."""
        return bytes(100)


def events_chain(measured: Measured) -> Chain:
    """The chain of the job, for its driver."""
    source = SourceSpec(
        operator_id=SOURCE, create_reader=_Answering, coordinator=_Provider(measured)
    )
    return Chain(source=source, operators=[])


def tasks_chain() -> Chain:
    """The chain of the job as tasks build it."""
    return events_chain(Measured())
