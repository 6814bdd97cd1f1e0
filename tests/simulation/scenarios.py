"""The exactly-once scenarios as runs of one seed each; every run validates what has come through, both ways."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.messages import AckCheckpoint, DownMessage, UpMessage
from coordlog.messages import AckEvent as AckMessage
from coordlog.messages import DeliverEvent as EventMessage
from simulation.agenda import Span, Weather
from simulation.log import SimulatedLog
from simulation.talk import (
    Book,
    FailBetween,
    FailOnce,
    FailOverlapped,
    Link,
    NotExactlyOnceError,
    Script,
    TalkerProvider,
    TalkingOperator,
    TalkingReader,
    Traffic,
)
from simulation.tasks import Wire
from simulation.world import CLEAR, World

FAST = Traffic(down=200, every_s=0.001, up=100)
SLOW = Traffic(down=10, every_s=0.1, up=20, stride=10)
SILENT = Traffic(down=0, every_s=0.001, up=0)
STREAM = Traffic(down=100, every_s=0.01, up=50, stride=3)
HOW = ("call", "raise", "thread")


@dataclass(eq=False)
class Talk:
    """Coordinators and links that number what they send each other, in one world."""

    world: World
    providers: dict[str, TalkerProvider] = field(default_factory=dict)
    fail_above: dict[str, list[int]] = field(default_factory=dict)

    def add(self, operator_id: str, traffic: Traffic, *, is_told: bool = False) -> TalkerProvider:
        """One more operator, behind those before; the first is the source."""
        chance = self.world.chance
        provider = TalkerProvider(
            operator_id,
            traffic,
            self.world.book,
            parallelism=self.world.parallelism,
            is_cut_first=chance.random() < 0.5,
            is_told=is_told,
        )
        self.providers[operator_id] = provider
        self.fail_above[operator_id] = []
        return provider

    def _link(self, operator_id: str) -> Link:
        link = Link(
            operator_id,
            self.providers[operator_id].traffic,
            self.world.book,
            self.fail_above[operator_id],
        )
        self.world.opened[operator_id] = link
        return link

    def _reader(self) -> TalkingReader:
        return TalkingReader(self._link(next(iter(self.providers))), self.world.opened)

    def run(self, *, losses: int = 0, crashes: int = 0, horizon_s: float = 1.0) -> Talk:
        """Run it to its end, and validate it; see `World.run`."""
        source, *others = self.providers
        self.world.run(
            Chain(
                source=SourceSpec(
                    operator_id=source,
                    create_reader=self._reader,
                    coordinator=self.providers[source],
                ),
                operators=[
                    OperatorSpec(
                        operator_id=one,
                        create_operator=lambda one=one: TalkingOperator(self._link(one)),  # type: ignore[misc]
                        coordinator=self.providers[one],
                    )
                    for one in others
                ],
            ),
            losses=losses,
            crashes=crashes,
            horizon_s=horizon_s,
        )
        self._validate()
        return self

    def _validate(self) -> None:
        state = self.world.state
        for subtask in range(self.world.parallelism):
            completion = state.subtasks[subtask].completion
            assert completion is not None
            links = self.world.links[subtask, completion.attempt_number]
            for name, provider in self.providers.items():
                down, up = provider.traffic.down, provider.traffic.up
                heard = provider.made[-1].heard[subtask]
                if links[name].got != list(range(down)) or heard != list(range(up)):
                    raise NotExactlyOnceError(name, subtask, links[name].got, heard)


def _fail_point(chance: random.Random, traffic: Traffic) -> int:
    return traffic.down * 2 // 3 + chance.randrange(max(1, traffic.down // 6))


def two_coordinators(
    seed: int,
    *,
    is_overlapping: bool = False,
    weather: Weather | None = None,
    log: SimulatedLog | None = None,
    losses: int | None = None,
    crashes: int = 0,
    shrink: int = 1,
) -> Talk:
    """A fast coordinator and a slow one; each fails the job once, and connections break at random."""
    chance = random.Random(f"{seed}/weather")
    if weather is None:
        weather = replace(
            CLEAR,
            interval_s=0.03 if is_overlapping else 0.01,
            is_overlapping=is_overlapping,
            store_s=(0.0, 0.06) if is_overlapping else (0.0, 0.005),
        )
    if losses is None:
        losses = chance.randrange(4)
    parallelism = chance.choice((1, 1, 1, 2))
    talk = Talk(World(seed, weather=weather, book=Book(), parallelism=parallelism, log=log))
    fast = replace(FAST, down=FAST.down // shrink, up=FAST.up // shrink)
    slow = replace(SLOW, every_s=0.02 if is_overlapping else SLOW.every_s / shrink)
    for name, traffic in (("fast", fast), ("slow", slow)):
        provider = talk.add(name, traffic, is_told=chance.random() < 0.3)
        provider.script = FailOnce(_fail_point(chance, traffic), chance.choice(HOW))
    return talk.run(losses=losses, crashes=crashes, horizon_s=1.0 if shrink == 1 else 0.4)


class KeptUntil(Wire):
    """The acks of barriers wait for something."""

    def __init__(self, is_there: Callable[[], bool]) -> None:
        self.is_there = is_there

    def is_kept(self, message: UpMessage) -> bool:
        """See `Wire`."""
        return isinstance(message, AckCheckpoint) and not self.is_there()


def stream_operator(
    seed: int,
    *,
    is_subtask_failing: bool,
    wire_s: Span = (0.0, 0.002),
) -> Talk:
    """A recipient behind a silent source; its snapshot is stored once it is owed something after the first cut."""
    chance = random.Random(f"{seed}/weather")
    weather = replace(CLEAR, interval_s=0.1, wire_s=wire_s)
    talk = Talk(World(seed, weather=weather, book=Book()))
    talk.add("source", SILENT)
    middle = talk.add("middle", STREAM, is_told=chance.random() < 0.5)
    script = FailBetween(1 + chance.randrange(STREAM.down // 6), chance.choice(HOW))
    middle.script = script
    talk.world.wire = KeptUntil(lambda: middle.completed >= 0 or middle.sent_after_cut > 0)
    if is_subtask_failing:
        above = STREAM.down // 3 + chance.randrange(STREAM.down // 6)
        talk.fail_above["middle"].append(above)
    talk.run()
    assert script.has_failed, "the failure really happened"
    assert not talk.fail_above["middle"], "the subtask's failure really happened"
    return talk


def overlapping(seed: int) -> Talk:
    """Two checkpoints at once, forced; the job fails after the second cut."""
    chance = random.Random(f"{seed}/weather")
    weather = replace(CLEAR, interval_s=0.05, is_overlapping=True)
    talk = Talk(World(seed, weather=weather, book=Book()))
    talk.add("source", SILENT)
    middle = talk.add("middle", STREAM, is_told=chance.random() < 0.5)
    burst, how = 1 + chance.randrange(STREAM.down // 6), chance.choice(HOW)
    script = FailOverlapped(burst, how, is_first_completed=chance.random() < 0.5)
    middle.script = script

    def is_stored() -> bool:
        return script.has_failed or (len(middle.cuts) >= 2 and script.is_first_completed)

    talk.world.wire = KeptUntil(is_stored)
    talk.run()
    assert script.has_failed, "the failure really happened"
    return talk


class Faulty(Wire):
    """Loses, or delays, what is said about some events down, by their count over the whole run, 1 first."""

    def __init__(
        self,
        *,
        is_chosen: Callable[[int], bool],
        counted: tuple[str, ...] = (),
        loses_event: bool = False,
        ack_s: float | None = None,
    ) -> None:
        self._is_chosen, self._counted = is_chosen, counted
        self.loses_event, self._ack_s = loses_event, ack_s
        self._acks: set[int] = set()
        self.count = self.hit = 0

    def is_lost(self, message: DownMessage) -> bool:
        """See `Wire`."""
        if not isinstance(message, EventMessage):
            return False
        if self._counted and not message.payload_type.startswith(self._counted):
            return False
        self.count += 1
        if not self._is_chosen(self.count):
            return False
        self.hit += 1
        if not self.loses_event:
            self._acks.add(message.event_id)
        return self.loses_event

    def delay_s(self, message: UpMessage) -> float | None:
        """See `Wire`."""
        is_hit = isinstance(message, AckMessage) and message.event_id in self._acks
        return self._ack_s if is_hit else 0.0


def storms(seed: int) -> Talk:
    """All at once: broken connections, drivers that die, appends of unknown outcome, events and acks lost and late."""
    chance = random.Random(f"{seed}/weather")
    weather = replace(
        CLEAR,
        is_overlapping=chance.random() < 0.5,
        interval_s=chance.choice((0.01, 0.03)),
        store_s=chance.choice(((0.0, 0.005), (0.0, 0.06))),
        wire_s=chance.choice(((0.0, 0.002), (0.0, 0.02))),
        append_unknown=chance.choice((0.0, 0.0, 0.02)),
        ack_timeout_s=0.08,
    )
    losses, crashes = chance.randrange(4), chance.randrange(3)
    talk = Talk(World(seed, weather=weather, book=Book(), parallelism=chance.choice((1, 2))))
    rate = chance.choice((0.0, 0.01, 0.03))
    dice = random.Random(f"{seed}/wire")
    wire = talk.world.wire = Faulty(
        is_chosen=lambda _: dice.random() < rate,
        loses_event=chance.random() < 0.4,
        ack_s=chance.choice((None, 0.05, 0.2)),
    )
    talk.world.book.is_lossy = wire.loses_event
    for name, traffic in (
        ("fast", replace(FAST, down=100)),
        ("slow", replace(SLOW, every_s=0.02)),
    ):
        provider: TalkerProvider = talk.add(name, traffic, is_told=chance.random() < 0.3)
        script: Script = FailOnce(_fail_point(chance, traffic), chance.choice(HOW))
        provider.script = script
        if chance.random() < 0.3:
            talk.fail_above[name].append(chance.randrange(traffic.down - 1))
    return talk.run(losses=losses, crashes=crashes, horizon_s=0.6)
