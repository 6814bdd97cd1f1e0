"""Small worlds searched whole, with the real code; and that a search finds what it looks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from _pytest.mark import ParameterSet

from exhaustive.rules import KERNEL_RULES, PROTOCOL_RULES, Rule
from exhaustive.search import Move, search
from exhaustive.worlds import IN_EACH_RUN

_STATES_MAX = 20_000
"""Of the search for a fault: far above what any takes."""
_QUICK = ("protocol, two drivers, unknown outcomes", "kernel, completions")
"""These two stand for all in the first tier; the other worlds are of the faults."""


def worlds_of(layer: str) -> list[ParameterSet]:
    return [
        pytest.param(name, marks=() if name in _QUICK else pytest.mark.tier("faults"))
        for name in IN_EACH_RUN
        if name.startswith(layer)
    ]


# --- the worlds ------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.clause("K2")
@pytest.mark.clause("K4")
@pytest.mark.parametrize("name", worlds_of("protocol"))
def test_no_order_of_drivers_and_appends_breaks_the_protocol(name: str) -> None:
    found = search(IN_EACH_RUN[name]())
    print(found)
    assert found.fault is None, str(found)
    assert found.is_whole


@pytest.mark.slow
@pytest.mark.clause("D3")
@pytest.mark.clause("D5")
@pytest.mark.clause("E2")
@pytest.mark.clause("G3")
@pytest.mark.clause("I4")
@pytest.mark.parametrize("name", worlds_of("kernel"))
def test_no_order_of_turns_and_failures_breaks_a_job(name: str) -> None:
    found = search(IN_EACH_RUN[name]())
    print(found)
    assert found.fault is None, str(found)
    assert found.is_whole


# --- the rules -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PROTOCOL_RULES)
def test_the_loss_of_a_rule_of_the_protocol_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lose(PROTOCOL_RULES[name], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNEL_RULES)
def test_the_loss_of_a_rule_of_checkpoints_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lose(KERNEL_RULES[name], monkeypatch)


def _lose(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = search(rule.world())
    assert with_it.is_whole, str(with_it)
    rule.drop(monkeypatch)
    without = search(rule.world(), states_max=_STATES_MAX)
    print(without)
    assert without.fault is not None, str(without)
    assert without.fault.startswith(rule.breaks), str(without)


# --- the search itself -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Steps:
    """Numbers, with the steps that lead on from each; one is the end."""

    steps: dict[int, tuple[tuple[int, bool], ...]]
    end: int
    bad: int | None = None
    name: str = "steps"

    def start(self) -> int:
        return 0

    def moves(self, state: int) -> Iterator[Move[int]]:
        for target, is_forced in self.steps.get(state, ()):
            yield Move(f"{state} to {target}", target, is_forced)

    def key(self, state: int) -> int:
        return state

    def fault(self, state: int) -> str | None:
        return "bad" if state == self.bad else None

    def is_end(self, state: int) -> bool:
        return state == self.end


def test_every_state_is_counted_once_and_the_depth_is_the_longest_path() -> None:
    steps = {
        0: ((1, True), (2, True)),
        1: ((3, True),),
        2: ((3, True),),
        3: ((4, True), (0, False)),
    }
    found = search(Steps(steps, end=4))
    assert (found.states, found.moves, found.depth) == (5, 6, 3)
    assert found.is_whole


def test_a_fault_comes_with_a_shortest_way_to_it() -> None:
    steps = {0: ((1, True), (2, True)), 1: ((4, True),), 2: ((3, False),), 4: ((3, True),)}
    found = search(Steps(steps, end=4, bad=3))
    assert found.fault == "bad"
    assert found.trace == ("0 to 2", "2 to 3")


def test_a_state_that_only_a_fault_leads_on_from_is_found() -> None:
    found = search(Steps({0: ((1, True),), 1: ((2, False),)}, end=2))
    assert found.fault == "go on: nothing leads on"
    assert found.trace == ("0 to 1",)


def test_a_circle_without_an_end_is_found() -> None:
    steps = {0: ((1, True), (3, True)), 1: ((2, True),), 2: ((1, True), (3, False))}
    found = search(Steps(steps, end=3))
    assert found.fault == "go on: from here no end can be reached"
    assert found.trace == ("0 to 1",)


def test_what_a_move_raises_is_a_fault() -> None:
    class Raising(Steps):
        def moves(self, state: int) -> Iterator[Move[int]]:
            yield from super().moves(state)
            if state == 1:
                raise AssertionError("no")

    found = search(Raising({0: ((1, True),)}, end=1))
    assert found.fault == "a move from here raises AssertionError: no"
    assert found.trace == ("0 to 1",)


def test_a_bounded_search_is_not_whole() -> None:
    found = search(Steps({n: ((n + 1, True),) for n in range(9)}, end=9), states_max=4)
    assert not found.is_whole
    assert found.states == 4
