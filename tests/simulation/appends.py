"""Appends of simulated drivers: when the log has their records, in how many parts, and what the driver hears of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from coordlog.log.interface import UnstoredRecord
from simulation.agenda import Agenda, Weather
from simulation.driver import SimulatedDriver
from simulation.log import SimulatedLog

__all__ = ["Appends"]


class Appends:
    """The way from drivers to the log. Faults have the rates of the weather, while `is_stormy` holds."""

    def __init__(
        self, agenda: Agenda, weather: Weather, log: SimulatedLog, is_stormy: Callable[[], bool]
    ) -> None:
        self._agenda, self._weather, self._log = agenda, weather, log
        self._is_stormy = is_stormy

    def append(self, driver: SimulatedDriver, records: Sequence[UnstoredRecord]) -> None:
        """Send records to the log; `stored` or `unheard` of the driver follows."""
        weather, agenda = self._weather, self._agenda
        is_stormy = self._is_stormy()
        if is_stormy and agenda.happens(weather.append_fails):
            driver.later(weather.append_s, driver.unheard)
            return
        if is_stormy and agenda.happens(weather.append_unknown):
            for record in records:
                if agenda.chance.random() < 0.7:
                    agenda.later(weather.late_s, partial(self._land, record))
            driver.later(weather.append_s, driver.unheard)
            return
        span = (
            weather.late_s
            if is_stormy and agenda.happens(weather.append_slow)
            else weather.append_s
        )
        is_heard = not (is_stormy and agenda.happens(weather.append_unheard))
        cut = len(records)
        if is_stormy and agenda.happens(weather.append_split):
            cut = agenda.chance.randint(1, len(records))
        agenda.later(span, lambda: self._store(driver, records, cut, is_heard))

    def _land(self, record: UnstoredRecord) -> None:
        self._log.store([record])

    def _store(
        self,
        driver: SimulatedDriver,
        records: Sequence[UnstoredRecord],
        cut: int,
        is_heard: bool,  # noqa: FBT001
    ) -> None:
        """The first part arrives, and then the rest: unless its sender has died in between."""
        offsets = self._log.store(records[:cut])

        def rest() -> None:
            if not driver.is_over:
                offsets.extend(self._log.store(records[cut:]))
                answer()

        def answer() -> None:
            if is_heard:
                driver.later(self._weather.append_s, lambda: driver.stored(offsets))
            else:
                driver.later(self._weather.append_s, driver.unheard)

        if cut < len(records):
            self._agenda.later(self._weather.append_s, rest)
        else:
            answer()
