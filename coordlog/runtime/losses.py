"""Which attempts are lost together."""

from __future__ import annotations

from coordlog.limits import LOST_TOGETHER_S

__all__ = ["Losses"]


class Losses:
    """Tells attempts that another one has taken with it from one that is lost by itself. On the mailbox.

    A worker of Spark's that is killed takes the other workers of its executor with it, and a machine
    all that is on it: one cause, which the restart policy counts once, or a job of many subtasks
    would be over at its first. The first that is noticed stands for all.
    """

    def __init__(self) -> None:
        self._count = 0
        self._begun: dict[int, tuple[str, int]] = {}
        """By connection: the machine, and when in the order of what this was told."""
        self._broke: dict[str, tuple[float, int]] = {}
        """By machine: when the first broke, in seconds and in that order."""

    def began(self, connection_id: int, host: str) -> None:
        """A connection's attempt runs on `host`."""
        self._count += 1
        self._begun[connection_id] = host, self._count

    def ended(self, connection_id: int) -> None:
        """The connection of an attempt is gone that was over before."""
        self._begun.pop(connection_id, None)

    def broke(self, connection_id: int, now_s: float) -> bool:
        """The connection of a live attempt is gone: whether another one of its machine took it along."""
        self._count += 1
        host, begun = self._begun.pop(connection_id, ("", self._count))
        first_s, place = self._broke.get(host, (0.0, -1))
        if begun < place and now_s - first_s <= LOST_TOGETHER_S:
            return True
        self._broke[host] = now_s, self._count
        return False
