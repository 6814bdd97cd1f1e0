"""Where the first of two drivers stands still, and what came of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chaos.topic_reader import History

__all__ = ["LOSER_ENDS_S", "FencingError", "Outcome", "Plan", "fenced_faults"]

LOSER_ENDS_S = 30.0
"""From SIGCONT: it looks every 5 s, and closing its connections and threads has bounds of its own."""

_FENCED = re.compile(
    r"error: job \S+: this driver's epoch is (\d+), in force is epoch (\d+) of driver (\w+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where the first driver stands still."""

    step: str | None
    """None: anywhere, by SIGSTOP from outside."""
    times_max: int = 1
    """It is one of the first so many times."""
    command: str | None = None
    """Not a driver stands there, but this command."""
    is_slow: bool = False
    """Until then the job takes its time: the step comes as often only while it runs."""

    @property
    def shown(self) -> str:
        """In words."""
        where = self.step or "anywhere"
        return where if self.command is None else f"{self.command} {where}"


class FencingError(Exception):
    """What must not be: each fault a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a round."""

    plan: Plan
    has_stood: bool
    """Whether the first driver came to the step."""
    loser: str
    """How the first driver ended: `fenced`, `finished before`, `refused`."""
    loser_took_s: float
    records: int
    late: int
    """Records of the first driver behind the second's take-over: all void."""


def fenced_faults(who: str, error: str, history: History, epoch: int | None) -> list[str]:
    """What is wrong with the line by which a fenced process ends. `epoch`: its own, where it ever had one."""
    told = _FENCED.search(error)
    if told is None:
        return [f"{who} was fenced and says: {error}"]
    in_force = int(told[2])
    is_so = (
        in_force < len(history.epoch_starts) and history.epoch_starts[in_force].driver_id == told[3]
    )
    if not is_so or (epoch is not None and (int(told[1]) != epoch or in_force <= epoch)):
        return [f"{who} says what the topic does not: {told[0]}"]
    return []
