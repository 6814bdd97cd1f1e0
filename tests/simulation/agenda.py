"""Simulated time: what happens when, in one order that one seed decides; and how bad the weather is."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from coordlog.limits import REMEMBERED_EVENTS_BYTES_MAX

__all__ = ["Agenda", "Span", "Weather"]

Span = tuple[float, float]
"""From and to, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How fast things are, and how often they break. Rates are per event of the simulation, but where it says else."""

    wire_s: Span = (0.0005, 0.004)
    """A message's way, each of the two."""
    store_s: Span = (0.0, 0.0)
    """From a barrier to its ack, which later messages of the attempt overtake; none: it is sent at once, in order."""
    append_s: Span = (0.0005, 0.004)
    """Until an append is stored, and again until it is acknowledged."""
    step_s: Span = (0.001, 0.004)
    """Between two batches."""
    begin_s: Span = (0.001, 0.02)
    """Until a task has begun, a stage has ended, a driver has started."""
    notice_s: Span = (0.0, 0.02)
    """Until a lost connection is noticed, at each of its ends."""
    pause_s: Span = (0.01, 0.3)
    """How long a driver is paused."""
    late_s: Span = (0.0, 0.3)
    """How late a record of an append of unknown outcome lands."""
    kills: float = 0.0
    """A driver dies."""
    pauses: float = 0.0
    """A driver stands still, and goes on."""
    rivals: float = 0.0
    """One more driver starts, up to three at once."""
    cuts: float = 0.0
    """A connection breaks: what is on its way is lost."""
    task_kills: float = 0.0
    """A task dies: what it has sent arrives."""
    twins: float = 0.0
    """A second task is started for a subtask."""
    stage_aborts: float = 0.0
    """The stage ends with an error."""
    rescales: float = 0.0
    """Per start of a driver: it is to have another parallelism."""
    restores: float = 0.0
    """Per start of a driver: it is told how to restore, and not left to choose."""
    clock_jumps: float = 0.0
    """The clock of a driver's machine jumps, to and fro."""
    append_slow: float = 0.0
    """Per append: it takes long."""
    append_fails: float = 0.0
    """Per append: nothing of it is stored, and its outcome is unknown."""
    append_unknown: float = 0.0
    """Per append: its records land late, in part, in any order or never; its outcome is unknown."""
    append_unheard: float = 0.0
    """Per append: it is stored, and its outcome is unknown."""
    append_split: float = 0.0
    """Per append: others may come between two of its records."""
    sink_fails: float = 0.0
    """Per settling, before and after."""
    coordinator_fails: float = 0.0
    """Per step of a coordinator: it raises."""
    is_cut_late: float = 0.3
    """Per checkpoint: the coordinator cuts in a later callback."""
    wire_slow: float = 0.0
    """Per message: it takes long, and with it all behind it on its connection."""
    faults_until: int = 150
    """Events after which nothing breaks any more."""
    interval_s: float = 0.025
    """Between checkpoints."""
    checkpoint_timeout_s: float = 0.25
    gathers_s: float = 0.0
    """How long tasks gather the messages of a frame: acks of events that come in this time are one."""
    ack_timeout_s: float = 0.4
    is_overlapping: bool = False
    snapshot_every: int | None = None
    """Records from one snapshot of a driver's to the next; None: no snapshots."""
    remembered_bytes_max: int = REMEMBERED_EVENTS_BYTES_MAX
    """Bytes of events that drivers remember: a few events' worth makes most failovers global ones."""


class Agenda:
    """What is to happen, by time, then by the order in which it was asked for."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.now_s = 1_000.0
        self.event_count = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        """Do this then."""
        self._asked += 1
        heapq.heappush(self._heap, (when_s, self._asked, act))

    def later(self, span: Span, act: Callable[[], None]) -> None:
        """Do this after a while."""
        self.at(self.now_s + self.draw(span), act)

    def draw(self, span: Span) -> float:
        """Some time within the span, seconds."""
        low, high = span
        return low + (high - low) * self.chance.random()

    def happens(self, rate: float) -> bool:
        """Whether it does, this time."""
        return rate > 0 and self.chance.random() < rate

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to happen any more."""
        return not self._heap

    def step(self) -> None:
        """The next event."""
        when_s, _, act = heapq.heappop(self._heap)
        self.now_s = max(self.now_s, when_s)
        self.event_count += 1
        act()
