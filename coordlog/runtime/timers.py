"""Timers on a clock that is a parameter, so that a simulation runs them on simulated time; and the limit of acks.

The time from the delivery of an event to its ack is limited (clause C4: a late ack fails the attempt). A late ack may
still exist: in a queue of the driver, on its connection, or behind a long call of the attempt. So the driver sends a
marker behind the event, and the attempt returns the marker in order. An ack that exists arrives before the marker. If
the marker arrives first, there is no ack.

The wait for the marker is limited by the attempt itself: by the time limit of each call of its chain
(`call_timeout_s`), and by its lease, which a hanging main thread does not renew (`call_watch.MainThread`).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple, Protocol

from coordlog.errors import OptionError
from coordlog.kernel.inputs import AttemptLost, Input
from coordlog.messages import Marker
from coordlog.projections.job.state import DownEvent, JobState
from coordlog.runtime.ports import Connections

__all__ = ["AckTimers", "Clock", "Timers", "check_delay"]


class Clock(Protocol):
    """Clock of the runtime."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC: for records."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back: for timers."""
        ...


def check_delay(delay_s: object) -> None:
    """Refuse what is no finite number of seconds: its timer would begin once its turn is in the log.

    By then an error would end the driver, and a NaN, which is neither before nor after other times, would hold up all
    timers.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(delay_s, Real) or not math.isfinite(delay_s):
        raise OptionError("delay_s", delay_s, "a finite number of seconds")


class Timers:
    """Callbacks to be called later. The owner calls `fire` no later than at `next_s`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._count = 0

    def now_s(self) -> float:
        """The monotonic clock, in seconds."""
        return self._clock.monotonic_s()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> int:
        """Call `callback` once, after `delay_s`. Returns the timer's number, for `cancel`."""
        return self.call_at(self._clock.monotonic_s() + delay_s, callback)

    def call_at(self, due_s: float, callback: Callable[[], None]) -> int:
        """Call `callback` once, at `due_s` of the monotonic clock. Returns the timer's number, for `cancel`."""
        self._count += 1
        self._callbacks[self._count] = callback
        heapq.heappush(self._heap, (due_s, self._count))
        return self._count

    def cancel(self, number: int) -> None:
        """Forget a timer; does nothing if it has fired."""
        self._callbacks.pop(number, None)

    def next_s(self) -> float | None:
        """Time of the next timer on the monotonic clock, or None."""
        while self._heap and self._heap[0][1] not in self._callbacks:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def fire(self) -> None:
        """Call the callbacks that are due, by time, then by the order of `call_later`."""
        now_s = self._clock.monotonic_s()
        while self._heap and self._heap[0][0] <= now_s:
            callback = self._callbacks.pop(heapq.heappop(self._heap)[1], None)
            if callback is not None:
                callback()


class _RuntimePort(Protocol):
    """The part of the runtime that the timers use."""

    @property
    def state(self) -> JobState:
        """The present job state, un-released turns included."""
        ...

    def handle(self, input_: Input) -> None:
        """Begin a turn."""
        ...


class _Delivery(NamedTuple):
    """An event that was sent to its attempt. A tuple: there is one for each event."""

    event: DownEvent
    connection_id: int
    number: int
    """Position among all deliveries and markers."""
    due_s: float
    """Monotonic time at which its time limit passes, seconds."""
    stalled_s: float
    """Seconds for which the log had not acknowledged, up to its delivery."""


@dataclass(slots=True, eq=False)
class _Check:
    """The marker in flight on a connection."""

    number: int
    """Position among all deliveries and markers."""
    late: list[_Delivery]
    """Deliveries whose time limit has passed."""


class AckTimers:
    """Fails an attempt that returns a marker without an ack of an event before it.

    At most one marker is in flight on a connection, however many events wait there.

    Args:
        runtime: Runtime whose state has the events without an ack.
        connections: Connections to which the markers are sent.
        timers: Timers of the runtime.
        timeout_s: Time from delivery to the marker; suspended while the log does not acknowledge.
        stalled_s: Total time for which the log has not acknowledged, in seconds.
    """

    def __init__(
        self,
        *,
        runtime: _RuntimePort,
        connections: Connections,
        timers: Timers,
        timeout_s: float,
        stalled_s: Callable[[], float],
    ) -> None:
        self._runtime, self._connections = runtime, connections
        self._timers, self._timeout_s, self._stalled_s = timers, timeout_s, stalled_s
        self._queue: deque[_Delivery] = deque()
        """Deliveries whose time runs, by due time, the first one without an ack; behind it also some with an ack."""
        self._running: set[int] = set()
        """Ids of the events in the queue without an ack."""
        self._timer: int | None = None
        """Timer that fires no later than the first of the queue is due; None without a queue."""
        self._longer: dict[int, int] = {}
        """Timers of events whose time limit was extended because the log had not acknowledged, by event id."""
        self._checks: dict[int, _Check] = {}
        """Marker in flight, by connection."""
        self._count = 0
        """Number of deliveries and markers so far."""

    def delivered(self, connection_id: int, event: DownEvent) -> None:
        """Start the time limit of an event that was sent on this connection."""
        self._count += 1
        due_s = self._timers.now_s() + self._timeout_s
        stalled_s = self._stalled_s()
        self._queue.append(_Delivery(event, connection_id, self._count, due_s, stalled_s))
        self._running.add(event.event_id)
        if self._timer is None:
            self._timer = self._timers.call_at(due_s, self._look)

    def stop(self, event_id: int) -> None:
        """Stop the time limit of an event that is acked, or has failed."""
        self._running.discard(event_id)
        self._drop_acked()
        if self._timer is not None and not self._queue:
            self._timers.cancel(self._timer)
            self._timer = None
        timer = self._longer.pop(event_id, None)
        if timer is not None:
            self._timers.cancel(timer)

    def forget(self, connection_id: int) -> None:
        """Forget a lost connection: no marker returns."""
        self._checks.pop(connection_id, None)

    def marker_returned(self, connection_id: int) -> None:
        """Fail the attempt if an ack before the marker is missing: all messages before it are handled."""
        check = self._checks.pop(connection_id, None)
        if check is None:
            return
        late = [delivery for delivery in check.late if self._is_unacked(delivery.event)]
        missing = next(
            (delivery.event for delivery in late if delivery.number < check.number), None
        )
        if missing is not None:
            self._runtime.handle(self._lost(missing))
        elif late:
            self._send_marker(connection_id, late)

    def _drop_acked(self) -> None:
        queue = self._queue
        while queue and queue[0].event.event_id not in self._running:
            queue.popleft()

    def _look(self) -> None:
        """Take the deliveries whose time limit has passed from the queue, and wait for the next one."""
        now_s = self._timers.now_s()
        due: list[_Delivery] = []
        while self._queue and self._queue[0].due_s <= now_s:
            due.append(self._queue.popleft())
            self._drop_acked()
        self._timer = None
        if self._queue:
            self._timer = self._timers.call_at(self._queue[0].due_s, self._look)
        for delivery in due:
            self._running.discard(delivery.event.event_id)
            self._expired(delivery)

    def _expired(self, delivery: _Delivery) -> None:
        self._longer.pop(delivery.event.event_id, None)
        if not self._is_unacked(delivery.event):
            return
        stalled_s = self._stalled_s()
        more_s = stalled_s - delivery.stalled_s
        if more_s > 0:
            longer = delivery._replace(stalled_s=stalled_s)
            timer = self._timers.call_later(more_s, lambda: self._expired(longer))
            self._longer[delivery.event.event_id] = timer
            return
        check = self._checks.get(delivery.connection_id)
        if check is None:
            self._send_marker(delivery.connection_id, [delivery])
        else:
            check.late.append(delivery)

    def _send_marker(self, connection_id: int, late: list[_Delivery]) -> None:
        self._count += 1
        self._checks[connection_id] = _Check(self._count, late)
        self._connections.send(connection_id, Marker(number=self._count))

    def _is_unacked(self, event: DownEvent) -> bool:
        gateway = self._runtime.state.gateways.get((event.operator_id, event.subtask))
        return gateway is not None and event.event_id in gateway.unacked

    def _lost(self, event: DownEvent) -> AttemptLost:
        return AttemptLost(
            subtask=event.subtask,
            attempt_number=event.attempt_number,
            operator_id=event.operator_id,
            event_id=event.event_id,
            reason=f"no ack of event {event.event_id} ({event.payload_type}) to operator "
            f"{event.operator_id!r} within {self._timeout_s:g} s",
        )
