"""The ports between the runtime and what surrounds it: connections of attempts, and the stage that runs them.

On Spark these are a WebSocket endpoint and a stage of long-lived tasks; in memory, queues and threads or a simulation.
"""

from __future__ import annotations

from typing import Protocol

from coordlog.messages import DownMessage, UpMessage

__all__ = ["Arrivals", "Connections", "Stage", "StageEvents"]


class Arrivals(Protocol):
    """What a connection's owner tells the mailbox. Any thread; never blocks."""

    def arrived(self, connection_id: int, message: UpMessage) -> None:
        """A message came; those of one connection in the order in which they were sent."""
        ...

    def connection_lost(self, connection_id: int, reason: str) -> None:
        """Nothing comes or goes any more (clause B8). Once, after the last `arrived`."""
        ...


class Connections(Protocol):
    """The connections of attempts, as the mailbox uses them. Any thread; never blocks."""

    def send(self, connection_id: int, message: DownMessage) -> None:
        """Put a message on its way, behind those sent before; dropped where the connection is gone."""
        ...

    def close(self, connection_id: int) -> None:
        """End the connection after what was sent. `connection_lost` need not follow."""
        ...

    def released(self, connection_id: int, message_count: int) -> None:
        """So many more of its messages are in the log: it may be read on (clause D2)."""
        ...


class StageEvents(Protocol):
    """What the owner of a stage tells the mailbox. Any thread; never blocks."""

    def stage_ended(self, stage_run: int, error: str | None) -> None:
        """A stage run is over: well, or with an error. No task of it starts any more; some may still talk."""
        ...


class Stage(Protocol):
    """The long-lived tasks, one per subtask. Any thread; never blocks; calls of one stage run take effect in order."""

    def submit(self, stage_run: int) -> None:
        """Start a task for each subtask. `stage_ended` follows once, whatever happens."""
        ...

    def cancel(self, stage_run: int, reason: str) -> None:
        """End all of its tasks. `stage_ended` follows, within a bound."""
        ...

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """End one task so that another is started for its subtask, without counting it as a failure (best effort)."""
        ...
