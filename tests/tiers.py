"""The tier of a test: which of `make test`, `make test-faults` and `make test-matrix` runs it; and shares of a tier."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import pytest

__all__ = ["Share", "Tier", "in_parts", "tier_of", "unknown_tiers"]


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


def in_parts(count: int) -> pytest.MarkDecorator:
    """A long search as `count` tests, each one a `part`: the first in the first tier, the others in the faults."""
    others = (pytest.param(part, marks=pytest.mark.tier(Tier.FAULTS)) for part in range(1, count))
    return pytest.mark.parametrize("part", [0, *others])


def unknown_tiers(items: Iterable[pytest.Item]) -> list[str]:
    """One line for each mark `tier` without the name of a tier."""
    return [
        f"{item.nodeid}: tier{mark.args!r}: a tier is one of {', '.join(Tier)}"
        for item in items
        for mark in item.iter_markers("tier")
        if len(mark.args) != 1 or mark.args[0] not in {*Tier}
    ]


class Share(NamedTuple):
    """One of several parts of the test files, which together are all of them."""

    number: int
    """From 1."""
    parts: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """The share that a text like `2/3` names.

        Raises:
            ValueError: It names none.
        """
        match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError(f"{text!r} is no share: the second of three is 2/3")
        return cls(int(match[1]), int(match[2]))

    def has(self, item: pytest.Item) -> bool:
        """Whether the test is in it: the tests of one file are in one share."""
        return zlib.crc32(item.path.name.encode()) % self.parts == self.number - 1
