"""Coordinators that are ready to be used, and their base: `EventSourcedCoordinator`.

May import `api` and what is below it.
Read first: `splits.SplitCoordinator`; of those between a source and a sink, `rules.rules_operator`.
Names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordlog.api.coordinator import CoordinatorProvider, EventSourcedCoordinator
    from coordlog.coordinators.commits import CommitCoordinator, CommitCoordinatorProvider
    from coordlog.coordinators.enumerator import EnumeratorContext, SplitEnumerator
    from coordlog.coordinators.quota import quota_operator
    from coordlog.coordinators.quota_state import Counting, QuotaNow, RaiseQuota, ReadQuota
    from coordlog.coordinators.rounds import Iteration, RoundEnded, rounds_operator
    from coordlog.coordinators.rules import Judge, rules_operator
    from coordlog.coordinators.schema_change import SchemaApplied, schema_change_operator
    from coordlog.coordinators.splits import (
        DefaultEnumerator,
        SplitCoordinator,
        SplitCoordinatorProvider,
    )
    from coordlog.coordinators.statistics import Sketch, Statistic, statistics_operator
    from coordlog.coordinators.versions import (
        PublishVersion,
        ReadVersions,
        Version,
        VersionAccepted,
        VersionOfRows,
        VersionPublished,
        VersionsNow,
    )
    from coordlog.coordinators.watching import SplitWatch, WatchingEnumerator
    from coordlog.coordinators.watermarks import watermark_operator
    from coordlog.projections.operators.operator_projection import OperatorProjection, StateCodec
    from coordlog.projections.operators.state_schema import DerivedCodec
    from coordlog.schemas.source_types import RequestSplit, Split, SplitsDiscovered

__all__ = [
    "CommitCoordinator",
    "CommitCoordinatorProvider",
    "CoordinatorProvider",
    "Counting",
    "DefaultEnumerator",
    "DerivedCodec",
    "EnumeratorContext",
    "EventSourcedCoordinator",
    "Iteration",
    "Judge",
    "OperatorProjection",
    "PublishVersion",
    "QuotaNow",
    "RaiseQuota",
    "ReadQuota",
    "ReadVersions",
    "RequestSplit",
    "RoundEnded",
    "SchemaApplied",
    "Sketch",
    "Split",
    "SplitCoordinator",
    "SplitCoordinatorProvider",
    "SplitEnumerator",
    "SplitWatch",
    "SplitsDiscovered",
    "StateCodec",
    "Statistic",
    "Version",
    "VersionAccepted",
    "VersionOfRows",
    "VersionPublished",
    "VersionsNow",
    "WatchingEnumerator",
    "quota_operator",
    "rounds_operator",
    "rules_operator",
    "schema_change_operator",
    "statistics_operator",
    "watermark_operator",
]

_HOMES = {
    "SplitsDiscovered": "coordlog.schemas.source_types",
    "Split": "coordlog.schemas.source_types",
    "RequestSplit": "coordlog.schemas.source_types",
    "SchemaApplied": "coordlog.coordinators.schema_change",
    "Sketch": "coordlog.coordinators.statistics",
    "Statistic": "coordlog.coordinators.statistics",
    "schema_change_operator": "coordlog.coordinators.schema_change",
    "statistics_operator": "coordlog.coordinators.statistics",
    "Iteration": "coordlog.coordinators.rounds",
    "RoundEnded": "coordlog.coordinators.rounds",
    "rounds_operator": "coordlog.coordinators.rounds",
    "watermark_operator": "coordlog.coordinators.watermarks",
    "quota_operator": "coordlog.coordinators.quota",
    "ReadQuota": "coordlog.coordinators.quota_state",
    "RaiseQuota": "coordlog.coordinators.quota_state",
    "QuotaNow": "coordlog.coordinators.quota_state",
    "Counting": "coordlog.coordinators.quota_state",
    "CommitCoordinator": "coordlog.coordinators.commits",
    "CommitCoordinatorProvider": "coordlog.coordinators.commits",
    "CoordinatorProvider": "coordlog.api.coordinator",
    "DefaultEnumerator": "coordlog.coordinators.splits",
    "DerivedCodec": "coordlog.projections.operators.state_schema",
    "EnumeratorContext": "coordlog.coordinators.enumerator",
    "EventSourcedCoordinator": "coordlog.api.coordinator",
    "Judge": "coordlog.coordinators.rules",
    "OperatorProjection": "coordlog.projections.operators.operator_projection",
    "PublishVersion": "coordlog.coordinators.versions",
    "ReadVersions": "coordlog.coordinators.versions",
    "SplitCoordinator": "coordlog.coordinators.splits",
    "SplitCoordinatorProvider": "coordlog.coordinators.splits",
    "SplitEnumerator": "coordlog.coordinators.enumerator",
    "SplitWatch": "coordlog.coordinators.watching",
    "StateCodec": "coordlog.projections.operators.operator_projection",
    "Version": "coordlog.coordinators.versions",
    "VersionAccepted": "coordlog.coordinators.versions",
    "VersionOfRows": "coordlog.coordinators.versions",
    "VersionPublished": "coordlog.coordinators.versions",
    "VersionsNow": "coordlog.coordinators.versions",
    "WatchingEnumerator": "coordlog.coordinators.watching",
    "rules_operator": "coordlog.coordinators.rules",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
