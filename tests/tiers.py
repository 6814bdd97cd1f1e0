"""The tier of a test: which of `make test`, `make test-faults` and `make test-matrix` runs it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import pytest

__all__ = ["Tier", "tier_of", "unknown_tiers"]


class Tier(StrEnum):
    """The tiers, from the one that runs most often."""

    TEST = "test"
    """Units, contracts, properties, a dose of simulation and search, real brokers, each way through Spark once."""
    FAULTS = "faults"
    """Kills, chaos, fencing, clusters, hostile input."""
    MATRIX = "matrix"
    """All else that Spark does, containers, stores, databases, tables; on other versions of Spark and broker too."""


def tier_of(item: pytest.Item) -> Tier:
    """The tier of the closest mark `tier`, or the tier that follows from the other marks.

    Tests that need Docker are of the matrix, tests that kill of the faults, other tests on Spark of the matrix,
    and all others of the first tier.
    """
    mark = item.get_closest_marker("tier")
    if mark is not None:
        return Tier(mark.args[0])
    if item.get_closest_marker("docker") is not None:
        return Tier.MATRIX
    if item.get_closest_marker("kill") is not None:
        return Tier.FAULTS
    return Tier.MATRIX if item.get_closest_marker("spark") is not None else Tier.TEST


def unknown_tiers(items: Iterable[pytest.Item]) -> list[str]:
    """One line for each mark `tier` without the name of a tier."""
    return [
        f"{item.nodeid}: tier{mark.args!r}: a tier is one of {', '.join(Tier)}"
        for item in items
        for mark in item.iter_markers("tier")
        if len(mark.args) != 1 or mark.args[0] not in {*Tier}
    ]
