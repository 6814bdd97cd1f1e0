"""Python's cycle collector while drivers run: it runs less often, and as before once they have ended."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from coordlog.limits import COLLECTOR_MIDDLE, COLLECTOR_YOUNG
from coordlog.runtime.life import collector
from coordlog.runtime.life.collector import begin_slower_collector, end_slower_collector


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Drivers of earlier tests may not have closed yet.
    monkeypatch.setattr(collector, "_PACE", collector._Pace())
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_the_collector_is_slower_until_the_last_driver_ends() -> None:
    begin_slower_collector()
    begin_slower_collector()
    assert gc.get_threshold() == (COLLECTOR_YOUNG, COLLECTOR_MIDDLE, 10)

    end_slower_collector()
    assert gc.get_threshold() == (COLLECTOR_YOUNG, COLLECTOR_MIDDLE, 10)

    end_slower_collector()
    assert gc.get_threshold() == (700, 10, 10)


def test_higher_thresholds_of_the_program_stay() -> None:
    gc.set_threshold(1_000_000, 30, 10)

    begin_slower_collector()
    assert gc.get_threshold() == (1_000_000, 30, 10)

    end_slower_collector()
    assert gc.get_threshold() == (1_000_000, 30, 10)


def test_a_collector_that_is_switched_off_by_its_threshold_stays_off() -> None:
    gc.set_threshold(0, 10, 10)

    begin_slower_collector()
    assert gc.get_threshold()[0] == 0

    end_slower_collector()
    assert gc.get_threshold() == (0, 10, 10)


def test_thresholds_that_the_program_sets_meanwhile_stay() -> None:
    begin_slower_collector()
    gc.set_threshold(900, 5, 5)

    end_slower_collector()

    assert gc.get_threshold() == (900, 5, 5)
