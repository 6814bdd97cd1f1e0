"""Runs simulations for as long as it is told to: `make simulate ARGS="--seconds 600"`."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from random import SystemRandom

from simulation.schedule import SimulationError, simulate

__all__ = ["main"]

_PROGRESS_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 where every schedule was as it must be, else 1."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, help="run this one schedule and show what came of it")
    parser.add_argument(
        "--first", type=int, help="the first seed; the others follow (default: chance)"
    )
    parser.add_argument(
        "--short", action="store_true", help="small jobs, cut off after a few events"
    )
    given = parser.parse_args(arguments)
    try:
        if given.seed is not None:
            _say(str(simulate(given.seed, is_short=given.short)))
        else:
            first = SystemRandom().randrange(2**40) if given.first is None else given.first
            _run(first, given.seconds, is_short=given.short)
    except SimulationError as error:
        _say(str(error))
        return 1
    return 0


def _run(first: int, seconds: float, *, is_short: bool) -> None:
    began_s, cpu_s = time.monotonic(), time.process_time()
    told_s, schedules, events = began_s, 0, 0
    gc.freeze()  # what the modules hold is not looked at again and again
    gc.set_threshold(50_000, 20, 100)
    while not schedules or time.monotonic() - began_s < seconds:
        events += simulate(first + schedules, is_short=is_short).event_count
        schedules += 1
        if time.monotonic() - told_s > _PROGRESS_S:
            told_s = time.monotonic()
            _tell(first, schedules, events, told_s - began_s, time.process_time() - cpu_s)
    _tell(first, schedules, events, time.monotonic() - began_s, time.process_time() - cpu_s)


def _tell(first: int, schedules: int, events: int, took_s: float, cpu_s: float) -> None:
    _say(
        f"seeds {first} to {first + schedules - 1}: {schedules} schedules of {events / schedules:.0f} "
        f"events in {took_s:.0f} s, {schedules / took_s:.1f} a second; per second of one core "
        f"{schedules / cpu_s:.1f}, or {events / cpu_s / 200:.1f} of 200 events"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
