"""`make fuzz`: hostile bytes by the hundred thousand.

cd tests && ../.venv/bin/python -m hostile --count 100000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .driver import hostile_run
from .growth import GROWTH_MAX, grown, resident, tracing
from .topic import HostileTopic
from .wire import HostileMessages, hostile_clients

_CLIENTS_PER = 100
_CLIENTS_MIN = 200
_RUN_PER = 5_000
_STRANGERS = 100
_RESIDENT_FROM = 20_000


def main() -> int:
    """Half of the cases are messages, half records; a client for each hundred, 200 at least; a driver for each 5,000.

    Returns:
        1 where something has grown with their number. What else may not be is raised.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    print(
        f"seed {given.seed}; to repeat: make fuzz ARGS='--count {given.count} --seed {given.seed}'"
    )
    logging.disable(logging.CRITICAL)  # each refusal is a line
    chance = random.Random(given.seed)
    began = time.monotonic()
    growths = (
        ("record", _records(given.count // 2, chance)),
        ("message", _messages(given.count // 2, chance)),
        ("client", _clients(max(_CLIENTS_MIN, given.count // _CLIENTS_PER), chance)),
    )
    runs = max(1, given.count // _RUN_PER)
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            hostile_run(Path(folder), chance, _STRANGERS)
    print(f"{runs} drivers with {_STRANGERS} strangers each: every row is there, no attempt failed")
    said = ", ".join(f"{growth:,.0f} bytes a {what}" for what, growth in growths)
    print(f"{time.monotonic() - began:.0f} s; growth, of {GROWTH_MAX:,} at most: {said}")
    return int(any(growth > GROWTH_MAX for _, growth in growths))


def _records(count: int, chance: random.Random) -> float:
    with tempfile.TemporaryDirectory() as folder:
        topic = HostileTopic(Path(folder), chance)
        growth = _growth(topic.case, count)
    print(
        f"{count} records: {topic.refused} refused by offset, {topic.void} void, "
        f"{topic.harmless} harmless"
    )
    return growth


def _messages(count: int, chance: random.Random) -> float:
    messages = HostileMessages(chance)
    growth = _growth(messages.case, count)
    print(
        f"{count} messages, each read three ways: {messages.refused} refused, {messages.taken} taken"
    )
    return growth


def _clients(count: int, chance: random.Random) -> float:
    with hostile_clients(chance) as clients:
        growth = _growth(clients.case, count, clients.settle)
    print(f"{count} clients beside an honest one: it heard all it was told")
    return growth


def _growth(
    case: Callable[[], None], count: int, settle: Callable[[], None] = lambda: None
) -> float:
    """By Python's own account where there are few: what a process takes changes by megabytes for nothing."""
    with contextlib.ExitStack() as stack:
        memory = resident if count >= _RESIDENT_FROM else stack.enter_context(tracing())

        def settled() -> int:
            settle()
            return memory()

        return grown(case, count, settled)


if __name__ == "__main__":
    sys.exit(main())
