"""A call of a chain that does not return is told to the driver, by name and with its stack; else heartbeats stop."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from coordlog.task.attempt import AttemptRunner
from coordlog.task.call_watch import MainThread, watched_calls
from coordlog.task.operator_chain import Place
from fakes.attempt_fakes import Note, World, deliver, opened, polled

LIMIT_S = 10.0
PLACE = Place(operator_id="transform", callback="process", split_id="in/3.csv")

pytestmark = pytest.mark.slow


class Runner:
    """Says where it is; each look finds the next of `numbers`, the last again and again."""

    def __init__(self, *numbers: int | None) -> None:
        self._numbers = list(numbers)
        self.told: list[tuple[Place, float, str]] = []
        self.is_told, self.is_looked_through = threading.Event(), threading.Event()

    @property
    def calling(self) -> tuple[Place, int] | None:
        number = self._numbers.pop(0) if len(self._numbers) > 1 else self._numbers[0]
        if len(self._numbers) == 1:
            self.is_looked_through.set()
        return None if number is None else (PLACE, number)

    def report_hanging_call(self, place: Place, seconds: float, stack: str) -> None:
        self.told.append((place, seconds, stack))
        self.is_told.set()


def test_one_that_does_not_return_is_told_once_with_its_stack() -> None:
    runner = Runner(7)

    def stuck() -> None:
        assert runner.is_told.wait(LIMIT_S)

    with watched_calls(cast("AttemptRunner", runner), 0.1):
        stuck()

    ((place, seconds, stack),) = runner.told
    assert place == PLACE
    assert seconds > 0.1
    assert "in stuck" in stack


def test_successive_short_calls_are_never_reported_however_long_in_total() -> None:
    runner = Runner(*range(30), None)

    with watched_calls(cast("AttemptRunner", runner), 0.1):
        assert runner.is_looked_through.wait(LIMIT_S)

    assert runner.told == []
    assert not [one for one in threading.enumerate() if one.name == "coordlog-watch"]


# --- a main thread that stands still, though no call of it is watched -------------------------------------------------
class Time:
    """A clock by hand."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.clause("C4")
def test_an_attempt_idle_outside_any_call_loses_its_lease_after_the_bound() -> None:
    clock, runner = Time(), opened(World())
    assert runner.calling is None
    main_thread = MainThread(
        lambda: runner.progress, call_timeout_s=600, send_timeout_s=180, clock=clock
    )

    clock.now_s += 780
    assert main_thread.is_moving(), (
        "a call that takes its whole time, and a message that waits to leave"
    )
    clock.now_s += 1
    assert not main_thread.is_moving()
    clock.now_s += 1
    assert not main_thread.is_moving()


@pytest.mark.clause("C4")
def test_an_attempt_that_waits_reads_and_handles_keeps_its_lease() -> None:
    clock = Time()
    world = World(polls=[polled(1), polled(2)])
    runner = opened(world)
    main_thread = MainThread(
        lambda: runner.progress, call_timeout_s=600, send_timeout_s=180, clock=clock
    )
    do = [
        runner.step,
        lambda: runner.handle(deliver("sink", Note(text="hello"))),
        runner.step,
        runner.step,  # it waits for input
        runner.step,
    ]

    for one in do:
        clock.now_s += 700
        one()
        assert main_thread.is_moving()


@pytest.mark.clause("C4")
def test_each_call_inside_a_call_of_many_batches_counts() -> None:
    """As of an operator that gives batch after batch when it finishes, without a message in between."""
    clock = Time()
    answers: list[bool] = []
    watching: list[MainThread] = []

    class Slow(World):
        def call(self, who: str, what: str, detail: object = "") -> None:
            super().call(who, what, detail)
            if watching:
                clock.now_s += 500
                answers.append(watching[0].is_moving())

    runner = opened(Slow(polls=[polled(n) for n in range(4)]))
    watching.append(
        MainThread(lambda: runner.progress, call_timeout_s=600, send_timeout_s=180, clock=clock)
    )
    for _ in range(4):
        runner.step()

    assert len(answers) > 4
    assert all(answers)
