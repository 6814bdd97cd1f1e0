"""Statistics over the rows of all subtasks: their sketches go up, the global statistic comes back at a checkpoint.

Each subtask adds its rows to a sketch, and sends it at each barrier. Once the checkpoint has completed, the coordinator
merges the sketches of all subtasks, which are those of one place in the input, and publishes the result as a version
that takes effect at the next checkpoint, on all subtasks at once (see `versions`). Over failures:

- local failover: the new attempt begins with the sketch and the statistic of its checkpoint;
- global failover and restore: likewise on all subtasks; a statistic that was published stays published;
- rescaling: the sketches of removed subtasks are merged with those of the subtasks that get their states;
- batch: there are no checkpoints, and so no statistic but the initial one.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import pyarrow as pa
from immutables import Map

from coordlog.api.chain import OperatorSpec
from coordlog.api.coordinator import CoordinatorContext, CoordinatorProvider, Query
from coordlog.api.operator import OperatorContext, Snapshot
from coordlog.coordinators.versions import (
    VERSION_PAYLOADS,
    ReadVersions,
    Version,
    VersionCoordinator,
    VersionedOperator,
    VersionedState,
    VersionOfRows,
    VersionPublished,
    fold_own_versions,
    keep_own_published,
    newest_state,
    read_versions,
)
from coordlog.errors import OptionError, RequestRefusedError
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import Payload, event
from coordlog.schemas.record import BATCH_COMPLETE, Kind, Record

__all__ = [
    "Sketch",
    "SketchTaken",
    "Statistic",
    "StatisticsCoordinator",
    "StatisticsOperator",
    "StatisticsProvider",
    "StatisticsState",
    "statistics_operator",
]


class Sketch(Protocol):
    """The sketch of one subtask."""

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        ...

    def to_bytes(self) -> bytes:
        """The sketch as bytes, for `Statistic.create` and `Statistic.merge`."""
        ...


class Statistic(ABC):
    """A statistic with mergeable sketches. Pickled to the tasks; `merge` and `describe` run on the driver as well."""

    @abstractmethod
    def create(self, content: bytes | None) -> Sketch:
        """A sketch with this content, or an empty one."""

    @abstractmethod
    def merge(self, contents: Sequence[bytes]) -> bytes:
        """The sketch of all rows of these sketches. On the driver in a callback: quick, and the same each time."""

    @abstractmethod
    def describe(self, content: bytes) -> str:
        """The global statistic as the subtasks get it, from the merged sketch. As quick as `merge`."""

    def apply(self, batch: pa.RecordBatch, version: Version) -> pa.RecordBatch:
        """The rows of a batch, with the use of the global statistic in `version.content`, empty at first."""
        return batch


@event("coordlog.statistics.sketch", version=1)
class SketchTaken(Payload):
    """Up: the sketch of a subtask's rows before a barrier, or of all its rows."""

    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsState(VersionedState):
    """State of the coordinator. Only `_fold` and snapshots create it."""

    sketches: Map[int, tuple[bytes, ...]] = field(default_factory=Map)
    """Newest sketch by subtask; several after a rescaling, until the subtask has sent a merged one."""
    rescaled_to: int | None = None
    """Another parallelism, until an attempt starts: redelivered sketches have the old subtask numbers."""


def _fold(state: StatisticsState, record: Record, value: Payload | None) -> StatisticsState:
    """The state after one more record."""
    state = fold_own_versions(state, record, value)
    match record.kind:
        case Kind.EVENT_TO_COORDINATOR if isinstance(value, SketchTaken):
            sketches = state.sketches.set(record.subtask or 0, (value.content,))
            return replace(state, sketches=sketches)
        case Kind.RESET_TO_CHECKPOINT | Kind.COORDINATORS_STARTED:
            parallelism = record.attributes.get("parallelism")
            return replace(state, rescaled_to=None if parallelism is None else int(parallelism))
        case Kind.ATTEMPT_STARTED if state.rescaled_to is not None:
            sketches = Map[int, tuple[bytes, ...]]()
            for number, contents in sorted(state.sketches.items()):
                target = number % state.rescaled_to
                sketches = sketches.set(target, (*sketches.get(target, ()), *contents))
            return replace(state, sketches=sketches, rescaled_to=None)
        case _:
            return state


_STATISTICS: Final = OperatorProjection(
    name="coordlog.statistics",
    version=1,
    initial=StatisticsState(),
    apply=_fold,
    codec=DerivedCodec(StatisticsState),
    after_reset=keep_own_published,
    reads=(VersionPublished, VersionOfRows, SketchTaken),
)


class StatisticsCoordinator(VersionCoordinator[StatisticsState]):
    """Merges the sketches of a completed checkpoint, and publishes the result."""

    def __init__(self, context: CoordinatorContext, statistic: Statistic, every: int) -> None:
        super().__init__(context, "")
        self._statistic, self._every = statistic, every

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Do nothing: the projection has the sketch."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Publish the statistic of the rows before the checkpoint, if it has changed."""
        super().notify_checkpoint_complete(checkpoint_id)
        contents = [part for _, parts in sorted(self.state.sketches.items()) for part in parts]
        if checkpoint_id == BATCH_COMPLETE or checkpoint_id % self._every or not contents:
            return
        described = self._statistic.describe(self._statistic.merge(contents))
        if described != self.versions.newest.content:
            self.publish(described)

    def handle_coordination_request(self, request: Payload) -> Payload:
        """Always refuse: the statistic is computed."""
        raise RequestRefusedError(f"{type(request).__name__} is not answered")


class StatisticsProvider(CoordinatorProvider):
    """Makes the coordinators. Raises OptionError if `every` is below 1."""

    payload_types: tuple[type[Payload], ...] = (*VERSION_PAYLOADS, SketchTaken)
    projection: OperatorProjection[Any] | None = _STATISTICS
    queries: Mapping[type[Payload], Query] = MappingProxyType({ReadVersions: read_versions})

    def __init__(self, operator_id: str, statistic: Statistic, every: int) -> None:
        if every < 1:
            raise OptionError("every", every, "at least 1")
        self.operator_id, self._statistic, self._every = operator_id, statistic, every

    def create(self, context: CoordinatorContext) -> StatisticsCoordinator:
        """A new coordinator."""
        return StatisticsCoordinator(context, self._statistic, self._every)


class StatisticsOperator(VersionedOperator):
    """Adds each row to the sketch of its subtask, and applies the global statistic in force to it."""

    def __init__(self, statistic: Statistic) -> None:
        self._statistic = statistic

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Begin with the sketch and the statistic of the restored checkpoint."""
        version, sketch = (None, None) if state is None else _parts(state)
        super().open(context, version)
        self._sketch = self._statistic.create(sketch)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows, with the statistic applied."""
        self._sketch.update(batch)
        yield self._statistic.apply(batch, self.in_force)

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """Sketch and statistic; the sketch is sent ahead of the barrier."""
        self._send()
        return super().snapshot_state(checkpoint_id)

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Send the sketch of all rows."""
        self._send()
        return ()

    def final_snapshot(self) -> Snapshot:
        """Sketch and statistic."""
        version = super().final_snapshot().state
        sketch = b64encode(self._sketch.to_bytes()).decode()
        parts = [None if version is None else version.decode(), sketch]
        return Snapshot(state=json.dumps(parts).encode())

    def _send(self) -> None:
        self.context.send_event(SketchTaken(content=self._sketch.to_bytes()))


def _parts(state: bytes) -> tuple[bytes | None, bytes]:
    version, sketch = json.loads(state)
    return None if version is None else version.encode(), b64decode(sketch)


def _merged(merge: Callable[[Sequence[bytes]], bytes], states: Sequence[bytes]) -> bytes:
    parts = [_parts(state) for state in states]
    versions = [version for version, _ in parts if version is not None]
    sketch = b64encode(merge([sketch for _, sketch in parts])).decode()
    return json.dumps([newest_state(versions).decode() if versions else None, sketch]).encode()


def statistics_operator(
    statistic: Statistic, *, every: int = 1, operator_id: str = "statistics"
) -> OperatorSpec:
    """An operator that computes a statistic over all subtasks, and applies it, as a link of a chain.

    Args:
        statistic: The statistic; its class is in a module that the workers can import.
        every: The statistic is renewed at each checkpoint number that is a multiple of this. A renewal stops the
            reading of all subtasks for the duration of the next checkpoint.
        operator_id: Id of the operator.

    Raises:
        OptionError: `every` is below 1.
    """
    return OperatorSpec(
        operator_id=operator_id,
        create_operator=partial(StatisticsOperator, statistic),
        coordinator=StatisticsProvider(operator_id, statistic, every),
        merge_states=partial(_merged, statistic.merge),
    )
