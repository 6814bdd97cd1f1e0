"""A coordinator and subtasks that keep count of every row and event, for random runs of a whole job."""

# No `from __future__ import annotations` here: payloads are declared below.
# What their methods do is their contract's to say.

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from coordlog.api.coordinator import (
    CheckpointResult,
    CoordinatorContext,
    CoordinatorProvider,
    OperatorCoordinator,
    SubtaskGateway,
)
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.builtin_types import AttemptSnapshot, Committable, OperatorState
from coordlog.schemas.payload import Payload, event, fact, payload
from coordlog.schemas.record import Kind, Record


@event("machine.row", version=1)
class Row(Payload):
    """Up: the subtask has worked on this row."""

    n: int


@event("machine.work", version=1)
class Work(Payload):
    """Down."""

    n: int


@fact("machine.made", version=1)
class Made(Payload):
    subtask: int
    n: int


@fact("machine.undone", version=1)
class Undone(Payload):
    subtask: int
    up: list[int]
    down: list[int]


@payload("machine.rows", version=1)
class Rows(Payload):
    names: list[str]


@dataclass(frozen=True, slots=True)
class Count:
    """What the coordinator knows of one subtask."""

    handled: tuple[int, ...] = ()
    made: int = 0
    owed: tuple[int, ...] = ()
    """Made and not sent, for want of a gateway."""


Counts = tuple[Count, ...]


def undone(count: Count, up: list[int], down: list[int]) -> Count:
    """What is left after a failover has lost these."""
    return replace(
        count,
        handled=tuple(n for n in count.handled if n not in up),
        owed=(*down, *count.owed),
    )


def _apply(state: Counts, record: Record, value: Payload | None) -> Counts:
    def put(subtask: int, count: Count) -> Counts:
        return (*state[:subtask], count, *state[subtask + 1 :])

    if record.kind is Kind.EVENT_TO_COORDINATOR and isinstance(value, Row):
        subtask = record.subtask or 0
        count = state[subtask]
        return put(subtask, replace(count, handled=(*count.handled, value.n)))
    if record.kind is Kind.EVENT_TO_SUBTASK and isinstance(value, Work):
        subtask = record.subtask or 0
        count = state[subtask]
        return put(subtask, replace(count, owed=tuple(n for n in count.owed if n != value.n)))
    if isinstance(value, Made):
        count = state[value.subtask]
        return put(value.subtask, replace(count, made=value.n, owed=(*count.owed, value.n)))
    if isinstance(value, Undone):
        return put(value.subtask, undone(state[value.subtask], value.up, value.down))
    return state


class Counting(OperatorCoordinator):
    """Numbers its events per subtask, and undoes what a failover loses. Does `provider.plan` at each tick."""

    def __init__(self, context: CoordinatorContext, provider: "CountingProvider") -> None:
        self.context, self.provider = context, provider
        self.own: list[Count] = [Count() for _ in range(provider.parallelism)]
        self.gateways: dict[int, SubtaskGateway] = {}
        self.results: dict[int, CheckpointResult] = {}

    @property
    def is_folded(self) -> bool:
        return self.provider.projection is not None

    def counts(self) -> Counts:
        if not self.is_folded:
            return tuple(self.own)
        state: Counts = self.context.state
        return state

    def start(self) -> None:
        self.context.schedule(1.0, self._tick)

    def _tick(self) -> None:
        plan, self.provider.plan = self.provider.plan, []
        for act in plan:
            act(self)
        self.context.schedule(1.0, self._tick)

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        if state is not None:
            self.own = [
                Count(tuple(handled), made, tuple(owed))
                for handled, made, owed in json.loads(state)
            ]

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        assert isinstance(event, Row)
        count = self.own[subtask]
        self.own[subtask] = replace(count, handled=(*count.handled, event.n))

    def make(self, subtask: int) -> None:
        n = self.counts()[subtask].made + 1
        if self.is_folded:
            self.context.record(Made(subtask=subtask, n=n))
        count = self.own[subtask]
        self.own[subtask] = replace(count, made=n, owed=(*count.owed, n))
        self._flush(subtask)

    def _flush(self, subtask: int) -> None:
        gateway = self.gateways.get(subtask)
        if gateway is None:
            return
        for n in self.counts()[subtask].owed:
            gateway.send_event(Work(n=n))
        self.own[subtask] = replace(self.own[subtask], owed=())

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        self.gateways[subtask] = gateway
        self._flush(subtask)

    def execution_attempt_failed(self, subtask: int, attempt_number: int, reason: str) -> None:
        self.gateways.pop(subtask, None)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        lost = self.context.lost_events(subtask)
        up = [one.n for one in lost.to_coordinator if isinstance(one, Row)]
        down = [one.n for one in lost.to_subtask if isinstance(one, Work)]
        if self.is_folded:
            self.context.record(Undone(subtask=subtask, up=up, down=down))
        self.own[subtask] = undone(self.own[subtask], up, down)

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        self.results[checkpoint_id] = result
        if self.provider.is_cut_at_once:
            self.cut(checkpoint_id)

    def cut(self, checkpoint_id: int) -> None:
        content = [[one.handled, one.made, one.owed] for one in self.own]
        self.results.pop(checkpoint_id).complete(json.dumps(content).encode())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        names = [
            name
            for one in self.context.committables(checkpoint_id)
            for name in json.loads(one.content)
        ]
        if names:
            self.context.commit(checkpoint_id, Rows(names=names))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.results.pop(checkpoint_id, None)


class FoldedCounting(Counting):
    """With a projection: its part of a checkpoint is its cut."""

    checkpoint_coordinator = OperatorCoordinator.checkpoint_coordinator


class RowsSink:
    """Notes the rows that were committed; settling again adds nothing."""

    def __init__(self) -> None:
        self.committed: list[str] = []
        self._done: set[tuple[str, ...]] = set()

    def settle(self, intent: Payload) -> Payload | None:
        assert isinstance(intent, Rows)
        names = tuple(intent.names)
        if names not in self._done:
            self._done.add(names)
            self.committed.extend(names)
        return None

    def of(self, subtask: int) -> list[int]:
        """The rows of one subtask, in the order in which they were committed."""
        found = [name.split("/") for name in self.committed]
        return [int(n) for s, n in found if int(s) == subtask]


@dataclass(eq=False)
class CountingProvider(CoordinatorProvider):
    parallelism: int = 1
    is_folded: bool = False
    operator_id: str = "source"
    plan: list[Callable[[Counting], None]] = field(default_factory=list)
    made: list[Counting] = field(default_factory=list)
    is_cut_at_once: bool = True
    sink: RowsSink = field(default_factory=RowsSink)  # type: ignore[mutable-override]  # pyright: ignore[reportIncompatibleVariableOverride]
    payload_types: tuple[type[Payload], ...] = (Row, Work, Made, Undone, Rows)
    projection: OperatorProjection[Any] | None = None

    def __post_init__(self) -> None:
        if self.is_folded:
            initial: Counts = tuple(Count() for _ in range(self.parallelism))
            self.projection = OperatorProjection(
                name="machine.counts",
                version=1,
                initial=initial,
                apply=_apply,
                codec=DerivedCodec(Counts),
            )

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        kind = FoldedCounting if self.is_folded else Counting
        self.made.append(kind(context, self))
        return self.made[-1]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a subtask keeps in its snapshots."""

    rows: int = 0
    got: tuple[int, ...] = ()

    def snapshot(self, subtask: int, rows: list[int]) -> AttemptSnapshot:
        names = [f"{subtask}/{n}" for n in rows]
        committables = [Committable(operator_id="source", content=json.dumps(names).encode())]
        content = json.dumps([self.rows, self.got]).encode()
        return AttemptSnapshot(
            states=[OperatorState(operator_id="source", state=content)],
            committables=committables if rows else [],
        )


def kept_in(states: tuple[OperatorState, ...]) -> Kept:
    """What a snapshot says."""
    if not states:
        return Kept()
    rows, got = json.loads(states[0].state or b"")
    return Kept(rows, tuple(got))
