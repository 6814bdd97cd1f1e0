"""The time from the delivery of an event to its ack (clause C4). Mailbox only.

An event without an ack in time is not missing yet: the ack may wait in a queue of the driver, on its connection, or
behind a long call of the attempt. So the driver sends a marker behind the event, and the attempt returns it in order.
An ack that exists comes before the marker, wherever it waits. If the marker comes first, there is none.

The wait for the marker has the bounds of the attempt itself: each call of its chain (`call_timeout_s`), and its lease,
which a main thread that stands still outside any call does not renew (`call_watch.MainThread`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coordlog.kernel.inputs import AttemptLost, Input
from coordlog.messages import Marker
from coordlog.projections.job.state import DownEvent, JobState
from coordlog.runtime.ports import Connections
from coordlog.runtime.timers import Timers

__all__ = ["AckTimers"]


class _RuntimePort(Protocol):
    """The part of the runtime that the timers use."""

    @property
    def state(self) -> JobState:
        """The job state as of now, un-released turns included."""
        ...

    def handle(self, given: Input) -> None:
        """Begin a turn."""
        ...

    def stalled_s(self) -> float:
        """Seconds, in all, for which the log has not acknowledged."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery:
    """An event that was sent to its attempt."""

    event: DownEvent
    connection_id: int
    number: int
    """Its place among all deliveries and markers."""


@dataclass(slots=True, eq=False)
class _Check:
    """The marker in flight on a connection."""

    number: int
    """Its place among all deliveries and markers."""
    late: list[_Delivery]
    """Deliveries whose time has run out."""


class AckTimers:
    """Fails an attempt that has returned a marker and not acked an event before it.

    At most one marker is in flight on a connection, however many events wait there.

    Args:
        runtime: Its state says which events are not acked.
        connections: Take the markers.
        timers: The runtime's.
        timeout_s: Time from delivery to the marker; it stands still while the log does not acknowledge.
    """

    def __init__(
        self, *, runtime: _RuntimePort, connections: Connections, timers: Timers, timeout_s: float
    ) -> None:
        self._runtime, self._connections = runtime, connections
        self._timers, self._timeout_s = timers, timeout_s
        self._running: dict[int, int] = {}
        """Timers by event id."""
        self._checks: dict[int, _Check] = {}
        """By connection."""
        self._count = 0
        """Deliveries and markers so far."""

    def delivered(self, connection_id: int, event: DownEvent) -> None:
        """Start the time of an event that was sent on this connection."""
        self._count += 1
        delivery = _Delivery(event=event, connection_id=connection_id, number=self._count)
        self._start(delivery, self._timeout_s)

    def stop(self, event_id: int) -> None:
        """The event is acked, or has failed."""
        timer = self._running.pop(event_id, None)
        if timer is not None:
            self._timers.cancel(timer)

    def forget(self, connection_id: int) -> None:
        """The connection is gone: no marker returns."""
        self._checks.pop(connection_id, None)

    def marker_returned(self, connection_id: int) -> None:
        """Everything before the marker is handled, and its acks are in: fail the attempt if one is missing."""
        check = self._checks.pop(connection_id, None)
        if check is None:
            return
        late = [delivery for delivery in check.late if self._is_unacked(delivery.event)]
        missing = next((one.event for one in late if one.number < check.number), None)
        if missing is not None:
            self._runtime.handle(self._lost(missing))
        elif late:
            self._send_marker(connection_id, late)

    def _start(self, delivery: _Delivery, delay_s: float) -> None:
        stalled_s = self._runtime.stalled_s()
        self._running[delivery.event.event_id] = self._timers.call_later(
            delay_s, lambda: self._expired(delivery, stalled_s)
        )

    def _expired(self, delivery: _Delivery, stalled_before_s: float) -> None:
        self._running.pop(delivery.event.event_id, None)
        if not self._is_unacked(delivery.event):
            return
        stalled_s = self._runtime.stalled_s() - stalled_before_s
        if stalled_s > 0:
            self._start(delivery, stalled_s)
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
