"""A value whose new versions take effect at one checkpoint, on all subtasks at once: the base of rules and schemas.

A version is sent to all subtasks in one turn, so that it is before the cut of a checkpoint for all of them or for none.
At the barrier of the first checkpoint after it each subtask stops reading, until this checkpoint completes or aborts.
If it completes, the version is in force for the rows behind the barrier; if not, the version stays staged, and the next
checkpoint tries again. So the rows of an aborted checkpoint, which some subtasks may read again, have one version only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Final, TypeVar

import pyarrow as pa
from immutables import Map

from coordlog.api.coordinator import (
    CoordinatorContext,
    EventSourcedCoordinator,
    SubtaskGateway,
)
from coordlog.api.operator import Operator, OperatorContext, PollStatus, Snapshot, Waiting
from coordlog.errors import OptionError, RequestRefusedError, UsageError
from coordlog.limits import VERSION_BYTES_MAX
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import Payload, event, fact, request, response
from coordlog.schemas.record import BATCH_COMPLETE, NO_CHECKPOINT, Kind, Record

__all__ = [
    "VERSIONS",
    "VERSION_PAYLOADS",
    "BeginVersion",
    "PublishVersion",
    "ReadVersions",
    "StageVersion",
    "Version",
    "VersionAccepted",
    "VersionCoordinator",
    "VersionOfRows",
    "VersionPublished",
    "VersionedOperator",
    "VersionedState",
    "VersionsNow",
    "VersionsState",
    "check_initial",
    "fold_own_versions",
    "keep_own_published",
    "newest_state",
    "read_versions",
]


@request("coordlog.version.publish", version=1)
class PublishVersion(Payload):
    """Request for a new version; the response is a `VersionAccepted`."""

    content: str


@response("coordlog.version.accepted", version=1)
class VersionAccepted(Payload):
    """The number of the published version. A request with the newest content gets the newest number."""

    version: int


@request("coordlog.version.read", version=1)
class ReadVersions(Payload):
    """Query for the versions; the response is a `VersionsNow`. Answered by the driver, and not recorded."""


@response("coordlog.version.now", version=1)
class VersionsNow(Payload):
    """The version in force for new rows, and the newest one, which may still wait for its checkpoint."""

    in_force: int
    in_force_content: str
    newest: int
    newest_content: str


@fact("coordlog.version.published", version=1)
class VersionPublished(Payload):
    """A new version. Its predecessor stays in force until a checkpoint completes."""

    version: int
    content: str


@fact("coordlog.version.of_rows", version=1)
class VersionOfRows(Payload):
    """The version of all rows between the completed checkpoint before `checkpoint_id` and this one, on all subtasks."""

    checkpoint_id: int
    """-1: all rows of a batch job."""
    version: int
    next_version: int
    """Version of the rows behind the checkpoint."""


@event("coordlog.version.begin", version=1)
class BeginVersion(Payload):
    """Down, once to each attempt: the version in force at the checkpoint from which it begins."""

    version: int
    content: str


@event("coordlog.version.stage", version=1)
class StageVersion(Payload):
    """Down: a version that takes effect at the next checkpoint."""

    version: int
    content: str


VERSION_PAYLOADS: Final[tuple[type[Payload], ...]] = (
    PublishVersion,
    VersionAccepted,
    ReadVersions,
    VersionsNow,
    VersionPublished,
    VersionOfRows,
    BeginVersion,
    StageVersion,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of the value."""

    number: int
    """1 is the initial version, 0 none."""
    content: str


_NONE: Final = Version(number=0, content="")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsState:
    """The versions of one value: the whole state of a coordinator of rules. Only `_fold` and snapshots create it."""

    in_force: Version = _NONE
    """Version of the rows behind the last completed checkpoint."""
    newest: Version = _NONE
    """Newest published version."""
    at_cuts: Map[int, Version] = field(default_factory=Map)
    """Newest version at this coordinator's cut, by pending checkpoint."""
    unreported: Map[int, int] = field(default_factory=Map)
    """Version of the rows before each completed checkpoint without a `VersionOfRows`."""
    at_reset: Version = _NONE
    """Newest version at the cut to which a reset goes back, between `_keep_published` and the reset's record."""
    completed: int = NO_CHECKPOINT
    """Newest checkpoint that has completed in this state. That of a cut has not, except if the job was opened again."""

    @property
    def versions(self) -> VersionsState:
        """This state, so that `VersionCoordinator` reads it like a `VersionedState`."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedState:
    """Base of a coordinator's state that has more than versions."""

    versions: VersionsState = field(default_factory=VersionsState)


OwnStateT = TypeVar("OwnStateT", bound=VersionedState)
StateT = TypeVar("StateT", bound=VersionsState | VersionedState)


def _fold(state: VersionsState, record: Record, value: Payload | None) -> VersionsState:
    """The state after one more record."""
    number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
    match record.kind:
        case Kind.FACT if isinstance(value, VersionPublished):
            newest = Version(number=value.version, content=value.content)
            is_first = not state.in_force.number
            return replace(state, newest=newest, in_force=newest if is_first else state.in_force)
        case Kind.FACT if isinstance(value, VersionOfRows):
            reported = {k: v for k, v in state.unreported.items() if k != value.checkpoint_id}
            return replace(state, unreported=Map(reported))
        case Kind.COORDINATOR_CHECKPOINTED:
            return replace(state, at_cuts=state.at_cuts.set(number, state.newest))
        case Kind.CHECKPOINT_COMPLETED:
            # Without a cut the operator is newer than the checkpoint.
            at_cut = state.at_cuts.get(number)
            return state if at_cut is None else _taken_effect(state, number, at_cut)
        case Kind.CHECKPOINT_ABORTED:
            at_cuts = {k: v for k, v in state.at_cuts.items() if k != number}
            return replace(state, at_cuts=Map(at_cuts))
        case Kind.RESET_TO_CHECKPOINT:
            at_reset = state.at_reset
            state = replace(state, at_cuts=Map(), at_reset=_NONE)
            if number == NO_CHECKPOINT or not at_reset.number:
                return replace(state, in_force=state.newest)
            return state if state.completed == number else _taken_effect(state, number, at_reset)
        case _:
            return state


def _taken_effect(state: VersionsState, checkpoint_id: int, version: Version) -> VersionsState:
    later = {k: v for k, v in state.at_cuts.items() if k > checkpoint_id}
    unreported = state.unreported.set(checkpoint_id, state.in_force.number)
    return replace(
        state,
        in_force=version,
        at_cuts=Map(later),
        unreported=unreported,
        completed=checkpoint_id,
    )


def _keep_published(before: VersionsState, at_cut: VersionsState) -> VersionsState:
    """The state before a reset's record: each published version survives, and takes effect at a later checkpoint.

    After a reset to the start the newest version is in force for all rows, which are all read again; likewise after one
    to a checkpoint that is older than the operator, which has seen none of the rows before.
    """
    newest = max(before.newest, at_cut.newest, key=attrgetter("number"))
    return replace(at_cut, newest=newest, at_reset=at_cut.newest)


def fold_own_versions(state: OwnStateT, record: Record, value: Payload | None) -> OwnStateT:
    """The state with its versions after one more record; the same object if they are unchanged."""
    versions = _fold(state.versions, record, value)
    return state if versions is state.versions else replace(state, versions=versions)


def keep_own_published(before: OwnStateT, at_cut: OwnStateT) -> OwnStateT:
    """`after_reset` of a projection: the state at the cut, in which each published version survives."""
    return replace(at_cut, versions=_keep_published(before.versions, at_cut.versions))


VERSIONS: Final = OperatorProjection(
    name="coordlog.versions",
    version=1,
    initial=VersionsState(),
    apply=_fold,
    codec=DerivedCodec(VersionsState),
    after_reset=_keep_published,
    reads=(VersionPublished, VersionOfRows),
)


class VersionCoordinator(EventSourcedCoordinator[StateT]):
    """Publishes versions, and records which rows had which version.

    Args:
        context: See `CoordinatorContext`.
        initial: Content of version 1, in force from the first row. Used for a log without versions only.
    """

    def __init__(self, context: CoordinatorContext, initial: str) -> None:
        super().__init__(context)
        self._initial = initial

    @property
    def versions(self) -> VersionsState:
        """The versions as of now."""
        return self.state.versions

    def start(self) -> None:
        """Publish the initial version, unless the log has versions."""
        if not self.versions.newest.number:
            self.publish(self._initial)

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Always raise NotImplementedError: the operator sends no events."""
        raise NotImplementedError(
            f"operator {self.context.operator_id!r} sent a {type(event).__name__}"
        )

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Send the version in force, which an attempt without a state needs, and a newer one to stage."""
        state = self.versions
        current, newest = state.in_force, state.newest
        gateway.send_event(BeginVersion(version=current.number, content=current.content))
        if newest.number > current.number:
            gateway.send_event(StageVersion(version=newest.number, content=newest.content))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Record the version of the rows before the checkpoint."""
        state = self.versions
        if checkpoint_id == BATCH_COMPLETE:
            number = state.in_force.number
            self._report(BATCH_COMPLETE, number, number)
            return
        completed = sorted(state.unreported.items())
        spans = pairwise([*completed, (BATCH_COMPLETE, state.in_force.number)])
        for (completed_id, number), (_, next_number) in spans:
            self._report(completed_id, number, next_number)

    def _report(self, checkpoint_id: int, version: int, next_version: int) -> None:
        self.context.record(
            VersionOfRows(checkpoint_id=checkpoint_id, version=version, next_version=next_version)
        )

    def handle_coordination_request(self, request: Payload) -> Payload:
        """Publish a version."""
        if not isinstance(request, PublishVersion):
            raise RequestRefusedError(f"{type(request).__name__} is not answered")
        size = len(request.content.encode())
        if size > VERSION_BYTES_MAX:
            raise RequestRefusedError(f"the version has {size} bytes of {VERSION_BYTES_MAX}")
        if self.context.is_batch:
            raise RequestRefusedError(
                "a batch job has no checkpoint at which a version could take effect: "
                "start the job with it"
            )
        if request.content != self.versions.newest.content:
            self.publish(request.content)
        return VersionAccepted(version=self.versions.newest.number)

    def publish(self, content: str) -> None:
        """Record a new version, and stage it on all subtasks in this turn."""
        number = self.versions.newest.number + 1
        self.context.record(VersionPublished(version=number, content=content))
        for gateway in self.context.gateways.values():
            gateway.send_event(StageVersion(version=number, content=content))


def read_versions(state: VersionsState | VersionedState, _request: Payload) -> Payload:
    """The response to a `ReadVersions`."""
    versions = state.versions
    return VersionsNow(
        in_force=versions.in_force.number,
        in_force_content=versions.in_force.content,
        newest=versions.newest.number,
        newest_content=versions.newest.content,
    )


class VersionedOperator(Operator):
    """The subtask's side: has one version in force, and changes it at a checkpoint. A subclass processes the rows."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Begin with the version of the restored checkpoint."""
        self.context = context
        self._in_force = None if state is None else Version(**json.loads(state))
        self._staged: Version | None = None
        self._at_barriers: dict[int, Version] = {}
        """Staged versions at the barriers of checkpoints that have neither completed nor aborted."""

    @property
    def in_force(self) -> Version:
        """The version for the next row."""
        if self._in_force is None:
            raise UsageError(f"operator {self.context.operator_id!r} got rows before its version")
        return self._in_force

    def handle_event(self, event: Payload) -> None:
        """Begin with a version, or stage one. A known version changes nothing."""
        assert isinstance(event, BeginVersion | StageVersion)
        version = Version(number=event.version, content=event.content)
        if isinstance(event, StageVersion):
            if version.number > self._newest_number():
                self._staged = version
        elif self._in_force is None or self._in_force.number < version.number:
            # Newer than the state: the subtask had finished before, and its job is opened again.
            self._in_force = version
        elif self._in_force.number > version.number:
            raise UsageError(
                f"operator {self.context.operator_id!r} was restored with version "
                f"{self._in_force.number}, and version {version.number} is in force"
            )

    def emit_held(self) -> Iterable[pa.RecordBatch | Waiting] | Waiting:
        """Wait for the first version, and between the barrier and the end of a checkpoint with a new one."""
        return PollStatus.WAITING if self._in_force is None or self._at_barriers else ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """The version of the rows behind the barrier, if the checkpoint completes."""
        if self._staged is not None:
            self._at_barriers[checkpoint_id] = self._staged
        return self.final_snapshot()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Bring the version that was staged at the barrier into force."""
        version = self._at_barriers.get(checkpoint_id)
        self._at_barriers = {k: v for k, v in self._at_barriers.items() if k > checkpoint_id}
        if version is None:
            return
        self._in_force = version
        if self._staged == version:
            self._staged = None

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Leave the version staged."""
        self._at_barriers.pop(checkpoint_id, None)

    def final_snapshot(self) -> Snapshot:
        """The newest version."""
        newest = self._staged or self._in_force
        if newest is None:
            return Snapshot()
        return Snapshot(
            state=json.dumps({"number": newest.number, "content": newest.content}).encode()
        )

    def _newest_number(self) -> int:
        newest = self._staged or self._in_force
        return 0 if newest is None else newest.number


def newest_state(states: Sequence[bytes]) -> bytes:
    """`merge_states` of a `VersionedOperator`."""
    return max(states, key=lambda state: int(json.loads(state)["number"]))


def check_initial(initial: str) -> str:
    """`initial` again. Raises OptionError if it is too large."""
    size = len(initial.encode())
    if size > VERSION_BYTES_MAX:
        raise OptionError("initial", f"{size} bytes", f"at most {VERSION_BYTES_MAX} bytes")
    return initial
