"""Events between the rules operator and its coordinator."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog import Payload, event

__all__ = ["RuleApplied", "RuleUpdate", "RulesFinished"]


@event("rules.update", version=1)
class RuleUpdate(Payload):
    """Down: from here on prices are amounts times `factor`."""

    number: int
    """1, 2, 3 …, the same rule for every subtask."""
    factor: int


@event("rules.applied", version=1)
class RuleApplied(Payload):
    """Up: this rule is in force at the subtask."""

    number: int


@event("rules.finished", version=1)
class RulesFinished(Payload):
    """Up: the subtask has no more rows, and needs no more rules."""

    number: int
    """Number of the last rule in force, 0 for none."""
    rows: int
    """Number of all rows that it has emitted."""
