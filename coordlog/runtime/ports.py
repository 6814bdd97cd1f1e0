"""Ports between the runtime and its surroundings: connections of attempts, and the stage that runs them.

On Spark these are a WebSocket endpoint and a stage of long-lived tasks; in memory, queues and threads or a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from coordlog.messages import DownMessage, UpMessage
from coordlog.projections.job.state import JobState
from coordlog.projections.telemetry.metrics import Pulse
from coordlog.schemas.record import Record

__all__ = ["Arrivals", "Connections", "Observer", "Stage", "StageEvents"]


class Arrivals(Protocol):
    """Calls of a connection's owner to the mailbox. Any thread; never blocks."""

    def arrived(self, connection_id: int, message: UpMessage) -> None:
        """Receive a message; messages of one connection come in the order in which they were sent."""
        ...

    def connection_lost(self, connection_id: int, reason: str) -> None:
        """Report a lost connection (clause B8: it ends the attempt). Once, after the last `arrived`."""
        ...


class Connections(Protocol):
    """Connections of attempts, as the mailbox uses them. Any thread; never blocks."""

    def send(self, connection_id: int, message: DownMessage) -> None:
        """Send a message, behind those sent before; it is dropped if the connection is lost."""
        ...

    def close(self, connection_id: int) -> None:
        """Close the connection after its sent messages. `connection_lost` need not follow."""
        ...

    def released(self, connection_id: int, message_count: int) -> None:
        """Allow to read as many further messages: so many more are in the log (clause D2: acks follow events)."""
        ...


class StageEvents(Protocol):
    """Calls of a stage's owner to the mailbox. Any thread; never blocks."""

    def stage_ended(self, stage_run: int, error: str | None) -> None:
        """Report the end of a stage run, with its error, if any. No task of it starts later; some may still send."""
        ...


class Observer(Protocol):
    """Observer of one driver, outside the kernel. It never blocks and never raises, whatever its work."""

    def begin(self, state: JobState, pulse: Callable[[], Pulse]) -> None:
        """Begin with the state of a driver that has taken over; `pulse` may be called on any thread from now on."""
        ...

    def released(self, records: Sequence[Record], state: JobState, append_s: float | None) -> None:
        """Receive a turn in force, and the state after it. On the mailbox, in log order.

        Args:
            records: Records of the turn, one or more.
            state: State after the turn.
            append_s: Time of the append of the turn's group, for its first turn; None for the others.
        """
        ...

    def end(self) -> None:
        """End, within a time limit. May be called twice, and without `begin`."""
        ...


class Stage(Protocol):
    """Long-lived tasks, one per subtask. Any thread; never blocks; calls of one stage run take effect in order."""

    def submit(self, stage_run: int) -> None:
        """Start a task for each subtask. `stage_ended` follows once, in any case."""
        ...

    def cancel(self, stage_run: int, reason: str) -> None:
        """End all tasks of the run. `stage_ended` follows, within a time limit."""
        ...

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """End one task so that another is started for its subtask, without counting it as a failure (best effort)."""
        ...
