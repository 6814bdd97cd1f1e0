"""Searches every world, the small ones first: `make exhaustive`."""

from __future__ import annotations

import argparse
import sys

from exhaustive.search import search
from exhaustive.worlds import IN_EACH_RUN, LARGER


def main() -> int:
    """One line for each world; a fault ends it, with its trace."""
    parser = argparse.ArgumentParser(prog="make exhaustive", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="worlds whose name has TEXT in it"
    )
    parser.add_argument(
        "--states-max", type=int, metavar="N", help="end each search after so many states"
    )
    options = parser.parse_args()
    states = moves = 0
    seconds = 0.0
    are_whole = True
    for name, make in {**IN_EACH_RUN, **LARGER}.items():
        if options.only not in name:
            continue
        print(f"{name} …", flush=True)
        found = search(make(), states_max=options.states_max)
        print(f"  {found}", flush=True)
        if found.fault is not None:
            return 1
        states, moves, seconds = states + found.states, moves + found.moves, seconds + found.seconds
        are_whole = are_whole and found.is_whole
    verdict = "whole" if are_whole else "in part"
    print(f"in all {states:,} states, {moves:,} moves, {seconds:,.0f} s: {verdict}, all holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
