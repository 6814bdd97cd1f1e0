"""Coordinators that are ready to be used, and the base that they stand on: `EventSourcedCoordinator`."""

from __future__ import annotations

from coordlog.coordinator import CoordinatorProvider, EventSourcedCoordinator
from coordlog.projections.operator_projection import OperatorProjection, StateCodec
from coordlog.projections.state_codec import DerivedCodec

from .commits import CommitCoordinator, CommitCoordinatorProvider
from .enumerator import EnumeratorContext, SplitEnumerator
from .splits import DefaultEnumerator, SplitCoordinator, SplitCoordinatorProvider
from .watching import SplitWatch, WatchingEnumerator

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
