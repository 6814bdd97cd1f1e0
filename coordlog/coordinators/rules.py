"""Rules that all subtasks change at one checkpoint: which version judged which row follows from the history.

A client publishes a version with a `PublishVersion`. Over failures:

- local failover: the new attempt begins with the version of its checkpoint, and the version that waits is sent again;
- global failover and restore: a published version stays published, and takes effect at the next checkpoint again;
  after a restore to the start (no checkpoint) the newest version judges all rows;
- rescaling: an added subtask begins with the version in force, before its first row;
- batch: the initial version judges all rows, and a publication is refused.

A checkpoint that brings a version into force stops the reading of each subtask from its barrier to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from coordlog.api.chain import OperatorSpec
from coordlog.api.coordinator import CoordinatorContext, CoordinatorProvider, Query
from coordlog.coordinators.versions import (
    VERSION_PAYLOADS,
    VERSIONS,
    ReadVersions,
    Version,
    VersionCoordinator,
    VersionedOperator,
    VersionsState,
    check_initial,
    newest_state,
    read_versions,
)
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.schemas.payload import Payload

__all__ = ["Judge", "RulesOperator", "RulesProvider", "rules_operator"]

Judge = Callable[[pa.RecordBatch, Version], pa.RecordBatch]
"""Applies the rules of a version to a batch. Sent to the tasks by its name, so it is a function of a module."""


class RulesOperator(VersionedOperator):
    """Passes each batch through `judge`, with the version in force."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The judged batch."""
        yield self._judge(batch, self.in_force)


class RulesProvider(CoordinatorProvider):
    """Makes the coordinators of rules.

    Args:
        operator_id: Id of the operator.
        initial: Content of version 1. Used for a log without versions only; a later change is published.

    Raises:
        OptionError: `initial` is too large.
    """

    payload_types: tuple[type[Payload], ...] = VERSION_PAYLOADS
    projection: OperatorProjection[Any] | None = VERSIONS
    queries: Mapping[type[Payload], Query] = MappingProxyType({ReadVersions: read_versions})

    def __init__(self, operator_id: str, initial: str) -> None:
        self.operator_id, self._initial = operator_id, check_initial(initial)

    def create(self, context: CoordinatorContext) -> VersionCoordinator[VersionsState]:
        """A new coordinator."""
        return VersionCoordinator(context, self._initial)


def rules_operator(judge: Judge, *, initial: str, operator_id: str = "rules") -> OperatorSpec:
    """An operator that applies rules, as a link of a chain.

    Args:
        judge: Applies the rules of a version to a batch. A function of a module that the workers import.
        initial: Content of version 1, in force from the first row.
        operator_id: Id of the operator, to which clients send a `PublishVersion`.

    Raises:
        OptionError: `initial` is too large.
    """
    return OperatorSpec(
        operator_id=operator_id,
        create_operator=partial(RulesOperator, judge),
        coordinator=RulesProvider(operator_id, initial),
        merge_states=newest_state,
    )
