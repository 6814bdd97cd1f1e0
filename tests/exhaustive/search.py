"""A breadth-first search of a small world: every state once, each looked at, none without a way on.

A world has no chance in it: `moves` of equal states are the same moves in the same order. That is
what lets a trace be found again from two numbers for each state.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Found", "Move", "World", "search"]

S = TypeVar("S")

_NOBODY = 0xFFFFFFFF


class Move(NamedTuple, Generic[S]):
    """One step of a world."""

    label: str
    state: S
    is_forced: bool
    """The world takes it by itself, sooner or later. False: a fault, or something that may happen."""


class World(Protocol[S]):
    """What can be searched."""

    @property
    def name(self) -> str:
        """For people: its size."""
        ...

    def start(self) -> S:
        """The first state."""
        ...

    def moves(self, state: S) -> Iterator[Move[S]]:
        """What may come next, the same for equal states."""
        ...

    def key(self, state: S) -> Hashable:
        """Equal for two states of which only one need be searched; short, for there are many."""
        ...

    def fault(self, state: S) -> str | None:
        """Which invariant the state breaks."""
        ...

    def is_end(self, state: S) -> bool:
        """Whether a world may rest here: nothing is waited for, nothing held, nothing lost."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search came to."""

    name: str
    states: int
    moves: int
    depth: int
    seconds: float
    is_whole: bool
    fault: str | None = None
    trace: tuple[str, ...] = ()
    """The labels of a shortest way to the fault."""

    def __str__(self) -> str:
        """One line, and under it the trace where there is one."""
        if self.fault is not None:
            verdict = f"FAULT after {len(self.trace)} moves: {self.fault}"
        else:
            verdict = "whole, all holds" if self.is_whole else "in part, all holds so far"
        rate = self.states / max(self.seconds, 1e-9)
        line = (
            f"{self.name}: {self.states:,} states, {self.moves:,} moves, depth {self.depth}, "
            f"{self.seconds:.1f} s, {rate:,.0f} states/s: {verdict}"
        )
        return "\n".join([line, *(f"    {n + 1:3} {one}" for n, one in enumerate(self.trace))])


@dataclass(slots=True)
class _Graph:
    """Each state's number, how it was first reached, and the forced moves between states."""

    parents: array[int] = field(default_factory=lambda: array("I"))
    ordinals: array[int] = field(default_factory=lambda: array("H"))
    ends: bytearray = field(default_factory=bytearray)
    sources: array[int] = field(default_factory=lambda: array("I"))
    targets: array[int] = field(default_factory=lambda: array("I"))

    def add(self, parent: int, ordinal: int, *, is_end: bool) -> None:
        """One more state; its number is how many there were."""
        self.parents.append(parent)
        self.ordinals.append(ordinal)
        self.ends.append(is_end)

    def way_to(self, number: int) -> list[int]:
        """Which move to take at each state, from the start."""
        way: list[int] = []
        while self.parents[number] != _NOBODY:
            way.append(self.ordinals[number])
            number = self.parents[number]
        return way[::-1]

    def first_without_end(self) -> int | None:
        """The first state from which forced moves lead to no end; None where there is none."""
        count = len(self.parents)
        starts = array("I", bytes(4 * (count + 1)))
        for target in self.targets:
            starts[target + 1] += 1
        for n in range(count):
            starts[n + 1] += starts[n]
        into = array("I", bytes(4 * len(self.targets)))
        places = starts[:]
        for source, target in zip(self.sources, self.targets, strict=True):
            into[places[target]] = source
            places[target] += 1
        reached = bytearray(self.ends)
        left = [n for n in range(count) if reached[n]]
        while left:
            n = left.pop()
            for at in range(starts[n], starts[n + 1]):
                source = into[at]
                if not reached[source]:
                    reached[source] = 1
                    left.append(source)
        found = reached.find(0)
        return None if found == -1 else found


def search(world: World[S], *, states_max: int | None = None) -> Found:
    """Look at every state, nearest first, up to `states_max`; stop at the first fault.

    Where the search is whole, every state must also lead to an end by forced moves alone. A state
    that has none, and is no end, is a fault as soon as it is reached.
    """
    began, graph, first = time.perf_counter(), _Graph(), world.start()
    known: dict[Hashable, int] = {world.key(first): 0}
    graph.add(_NOBODY, 0, is_end=world.is_end(first))
    level: list[tuple[int, S]] = [(0, first)]
    depth = moves = 0

    def found(*, is_whole: bool, fault: str | None = None, at: int = 0) -> Found:
        way = () if fault is None else labels_on(world, graph.way_to(at))
        return Found(
            name=world.name,
            states=len(known),
            moves=moves,
            depth=depth,
            seconds=time.perf_counter() - began,
            is_whole=is_whole,
            fault=fault,
            trace=way,
        )

    fault = world.fault(first)
    if fault is not None:
        return found(is_whole=False, fault=fault)
    number, is_within = 0, True
    try:
        while level and is_within:
            following: list[tuple[int, S]] = []
            for number, state in level:
                is_stuck = True
                for ordinal, move in enumerate(world.moves(state)):
                    moves += 1
                    key = world.key(move.state)
                    target = known.get(key)
                    if target is None:
                        target = known[key] = len(graph.parents)
                        graph.add(number, ordinal, is_end=world.is_end(move.state))
                        fault = world.fault(move.state)
                        if fault is not None:
                            depth += 1
                            return found(is_whole=False, fault=fault, at=target)
                        following.append((target, move.state))
                    if move.is_forced:
                        is_stuck = False
                        graph.sources.append(number)
                        graph.targets.append(target)
                if is_stuck and not graph.ends[number]:
                    return found(is_whole=False, fault="go on: nothing leads on", at=number)
                is_within = states_max is None or len(known) < states_max
                if not is_within:
                    break
            level, depth = following, depth + bool(following)
    except Exception as error:  # noqa: BLE001, whatever the code in the world raises is a finding
        fault = f"a move from here raises {type(error).__name__}: {error}"
        return found(is_whole=False, fault=fault, at=number)
    if not is_within:
        return found(is_whole=False)
    lost = graph.first_without_end()
    if lost is not None:
        return found(is_whole=False, fault="go on: from here no end can be reached", at=lost)
    return found(is_whole=True)


def labels_on(world: World[S], way: Sequence[int]) -> tuple[str, ...]:
    """The labels of the moves of these numbers, one after the other from the start."""
    state, labels = world.start(), []
    for ordinal in way:
        move = list(world.moves(state))[ordinal]
        labels.append(move.label)
        state = move.state
    return tuple(labels)
