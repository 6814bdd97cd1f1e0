"""Coordinators that are ready to be used, and their base: `EventSourcedCoordinator`.

May import `api` and what is below it.
Read first: `splits.SplitCoordinator`.
"""

from __future__ import annotations

from coordlog.api.coordinator import CoordinatorProvider, EventSourcedCoordinator
from coordlog.coordinators.commits import CommitCoordinator, CommitCoordinatorProvider
from coordlog.coordinators.enumerator import EnumeratorContext, SplitEnumerator
from coordlog.coordinators.splits import (
    DefaultEnumerator,
    SplitCoordinator,
    SplitCoordinatorProvider,
)
from coordlog.coordinators.watching import SplitWatch, WatchingEnumerator
from coordlog.projections.operators.operator_projection import OperatorProjection, StateCodec
from coordlog.projections.operators.state_schema import DerivedCodec

__all__ = [
    "CommitCoordinator",
    "CommitCoordinatorProvider",
    "CoordinatorProvider",
    "DefaultEnumerator",
    "DerivedCodec",
    "EnumeratorContext",
    "EventSourcedCoordinator",
    "OperatorProjection",
    "SplitCoordinator",
    "SplitCoordinatorProvider",
    "SplitEnumerator",
    "SplitWatch",
    "StateCodec",
    "WatchingEnumerator",
]
