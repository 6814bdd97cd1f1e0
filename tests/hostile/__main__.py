"""`make fuzz`: hostile bytes by the hundred thousand.

cd tests && ../.venv/bin/python -m hostile --count 100000 --seed 1
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from .driver import hostile_run
from .topic import HostileTopic
from .wire import HostileMessages, hostile_clients

_CLIENTS_PER = 100
_RUN_PER = 5_000
_STRANGERS = 100


def main() -> int:
    """Half of the cases are messages, half are records; a client for each hundred, a driver for each 5,000."""
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
    with tempfile.TemporaryDirectory() as folder:
        topic = HostileTopic(Path(folder), chance)
        messages = HostileMessages(chance)
        memory = _megabytes()
        for _ in range(given.count // 2):
            topic.case()
            messages.case()
    print(
        f"{given.count // 2} records: {topic.refused} refused by offset, {topic.void} void, "
        f"{topic.harmless} harmless; {given.count // 2} messages, each read three ways: "
        f"{messages.refused} refused, {messages.taken} taken"
    )
    with hostile_clients(chance) as clients:
        for _ in range(given.count // _CLIENTS_PER):
            clients.case()
        print(
            f"{given.count // _CLIENTS_PER} clients beside an honest one: it heard all it was told"
        )
    runs = max(1, given.count // _RUN_PER)
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            hostile_run(Path(folder), chance, _STRANGERS)
    print(f"{runs} drivers with {_STRANGERS} strangers each: every row is there, no global failure")
    print(f"{time.monotonic() - began:.0f} s; {_megabytes() - memory} MB more at most")
    return 0


def _megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
