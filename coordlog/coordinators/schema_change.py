"""A change of the output's schema: writers flush, the change is applied once, writers go on.

A client publishes the new schema with a `PublishVersion`. At the barrier of the next checkpoint the writers behind this
operator flush their rows of the old schema, and all subtasks stop reading. Once the checkpoint has completed, the
coordinator applies the change outside, on a worker of the driver; once that is recorded, all subtasks go on, with the
new schema. The first schema is applied in the same way, before the first row. Over failures:

- local failover: the new attempt waits too, if the change is not applied;
- global failover, restore, death of the driver: a change that is in force and not recorded as applied is applied again,
  so that `apply` first checks whether it is done; one that is recorded is never repeated, also not after a rollback;
- a restore to an older checkpoint: its rows have the older schema again, and the newest one takes effect at the next
  checkpoint; the outside keeps the newer schema meanwhile;
- rescaling: an added subtask begins with the schema in force;
- batch: the initial schema is applied before the first row, and a change is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from coordlog.api.chain import OperatorSpec
from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    Query,
    SubtaskGateway,
)
from coordlog.api.operator import PollStatus, Waiting
from coordlog.coordinators.versions import (
    VERSION_PAYLOADS,
    ReadVersions,
    Version,
    VersionCoordinator,
    VersionedOperator,
    VersionedState,
    VersionOfRows,
    VersionPublished,
    check_initial,
    fold_own_versions,
    keep_own_published,
    newest_state,
    read_versions,
)
from coordlog.limits import SCHEMA_CHANGE_RETRY_S, SCHEMA_CHANGE_TRIES_MAX
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import Payload, event, fact
from coordlog.schemas.record import Kind, Record

__all__ = [
    "ApplySchema",
    "Convert",
    "GoOn",
    "SchemaApplied",
    "SchemaChangeOperator",
    "SchemaChangeProvider",
    "SchemaCoordinator",
    "SchemaState",
    "schema_change_operator",
]

ApplySchema = Callable[[Version], None]
"""Applies a schema outside, for example by ALTER TABLE. Runs on a worker of the driver; must be safe to repeat."""

Convert = Callable[[pa.RecordBatch, Version], pa.RecordBatch]
"""The rows of a batch in the schema of a version. Sent to the tasks by its name, so it is a function of a module."""


@fact("coordlog.schema.applied", version=1)
class SchemaApplied(Payload):
    """The outside has the schema of this version."""

    version: int


@event("coordlog.schema.go_on", version=1)
class GoOn(Payload):
    """Down: the schema of this version is applied; its rows may be written."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState(VersionedState):
    """State of the coordinator. Only `_fold` and snapshots create it."""

    applied: int = 0
    """Highest version that was applied. No reset changes it: it describes the outside."""


def _fold(state: SchemaState, record: Record, value: Payload | None) -> SchemaState:
    """The state after one more record."""
    if record.kind is Kind.FACT and isinstance(value, SchemaApplied):
        return replace(state, applied=max(state.applied, value.version))
    return fold_own_versions(state, record, value)


def _after_reset(before: SchemaState, at_cut: SchemaState) -> SchemaState:
    return replace(keep_own_published(before, at_cut), applied=before.applied)


_SCHEMAS: Final = OperatorProjection(
    name="coordlog.schemas",
    version=1,
    initial=SchemaState(),
    apply=_fold,
    codec=DerivedCodec(SchemaState),
    after_reset=_after_reset,
    reads=(VersionPublished, VersionOfRows, SchemaApplied),
)


class SchemaCoordinator(VersionCoordinator[SchemaState]):
    """Applies the schema in force, once, and then lets the subtasks go on."""

    def __init__(self, context: CoordinatorContext, initial: str, apply: ApplySchema) -> None:
        super().__init__(context, initial)
        self._apply = apply
        self._is_applying, self._failed_tries = False, 0

    def start(self) -> None:
        """Publish the initial schema if the log has none; apply the one in force if that is not recorded."""
        super().start()
        self._apply_due()

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Send the schema in force, and whether it is applied."""
        super().execution_attempt_ready(subtask, attempt_number, gateway)
        gateway.send_event(GoOn(version=self.state.applied))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Apply a schema that has come into force: all rows of the older one are flushed."""
        super().notify_checkpoint_complete(checkpoint_id)
        self._apply_due()

    def _apply_due(self) -> None:
        version = self.versions.in_force
        if self._is_applying or version.number <= self.state.applied:
            return
        self._is_applying = True
        apply = self._apply

        def work() -> SchemaApplied:
            apply(version)
            return SchemaApplied(version=version.number)

        self.context.call_async(work, self._on_applied)

    def _on_applied(self, result: Payload | None, error: str | None) -> None:
        self._is_applying = False
        if result is None:
            self._failed_tries += 1
            if self._failed_tries >= SCHEMA_CHANGE_TRIES_MAX:
                number = self.versions.in_force.number
                self.context.fail_job(f"schema version {number} cannot be applied: {error}")
                return
            self.context.schedule(SCHEMA_CHANGE_RETRY_S, self._apply_due)
            return
        self._failed_tries = 0
        for gateway in self.context.gateways.values():
            gateway.send_event(GoOn(version=self.state.applied))
        self._apply_due()


class SchemaChangeProvider(CoordinatorProvider):
    """Makes the coordinators; the arguments are those of `schema_change_operator`."""

    payload_types: tuple[type[Payload], ...] = (*VERSION_PAYLOADS, SchemaApplied, GoOn)
    projection: OperatorProjection[Any] | None = _SCHEMAS
    queries: Mapping[type[Payload], Query] = MappingProxyType({ReadVersions: read_versions})

    def __init__(self, operator_id: str, initial: str, apply: ApplySchema) -> None:
        self.operator_id, self._initial, self._apply = operator_id, check_initial(initial), apply

    def create(self, context: CoordinatorContext) -> SchemaCoordinator:
        """A new coordinator."""
        return SchemaCoordinator(context, self._initial, self._apply)


class SchemaChangeOperator(VersionedOperator):
    """Converts each batch to the schema in force, once that is applied outside."""

    def __init__(self, convert: Convert) -> None:
        self._convert, self._applied = convert, 0

    def handle_event(self, event: Payload) -> None:
        """Handle a version, or go on with it."""
        if isinstance(event, GoOn):
            self._applied = event.version
        else:
            super().handle_event(event)

    def emit_held(self) -> Iterable[pa.RecordBatch | Waiting] | Waiting:
        """Wait until the schema in force is applied."""
        waiting = super().emit_held()
        is_applied = waiting is PollStatus.WAITING or self.in_force.number <= self._applied
        return waiting if is_applied else PollStatus.WAITING

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows in the schema in force."""
        yield self._convert(batch, self.in_force)


def schema_change_operator(
    convert: Convert, apply: ApplySchema, *, initial: str, operator_id: str = "schema"
) -> OperatorSpec:
    """An operator that changes the schema of the rows at a checkpoint, as a link of a chain, ahead of the writer.

    Args:
        convert: Converts a batch to the schema of a version.
        apply: Applies a schema outside. Called on the driver until it returns; must be safe to repeat.
        initial: Content of version 1, in force from the first row.
        operator_id: Id of the operator, to which clients send a `PublishVersion`.

    Raises:
        OptionError: `initial` is too large.
    """
    return OperatorSpec(
        operator_id=operator_id,
        create_operator=partial(SchemaChangeOperator, convert),
        coordinator=SchemaChangeProvider(operator_id, initial, apply),
        merge_states=newest_state,
    )
