"""A call of a chain that does not return is told to the driver, by name and with its stack."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from coordlog.attempt import AttemptRunner
from coordlog.open_chain import Place
from coordlog.spark_integration.task import watched_calls

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

    def never_returned(self, place: Place, seconds: float, stack: str) -> None:
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


def test_calls_that_follow_each_other_are_never_told_however_long_they_take_together() -> None:
    runner = Runner(*range(30), None)

    with watched_calls(cast("AttemptRunner", runner), 0.1):
        assert runner.is_looked_through.wait(LIMIT_S)

    assert runner.told == []
    assert not [one for one in threading.enumerate() if one.name == "coordlog-watch"]
