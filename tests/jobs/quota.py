"""A user's own event-sourced coordinator: subtasks report what they have used, and are granted as much again."""

# No `from __future__ import annotations` here: events are declared below.
# What their methods do is their contract's to say.

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from immutables import Map

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.coordinator import CoordinatorContext, SubtaskGateway
from coordlog.coordinators import (
    CoordinatorProvider,
    DerivedCodec,
    EventSourcedCoordinator,
    OperatorProjection,
)
from coordlog.messages import DeliverEvent, InjectBarrier
from coordlog.schemas.payload import Payload, event
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import IdleReader


@event("test.used", version=1)
class Used(Payload):
    """A subtask has used so much."""

    n: int


@event("test.granted", version=1)
class Granted(Payload):
    """It may use as much again."""

    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One report, or one grant."""

    sequence: int
    subtask: int
    last_barrier: int
    """Of a report."""
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Each list in log order."""

    used: tuple[Entry, ...] = ()
    granted: tuple[Entry, ...] = ()
    cuts: Mapping[int, int] = field(default_factory=Map)
    last_cut: int = -1

    def totals(self, subtask: int) -> tuple[int, int]:
        """What a subtask has used, and what it was granted."""
        used = sum(one.n for one in self.used if one.subtask == subtask)
        return used, sum(one.n for one in self.granted if one.subtask == subtask)


def _apply(state: Quota, record: Record, value: Payload | None) -> Quota:
    sequence, subtask = record.sequence or 0, record.subtask or 0
    checkpoint_id = -1 if record.checkpoint_id is None else record.checkpoint_id
    match record.kind:
        case Kind.EVENT_TO_COORDINATOR | Kind.EVENT_TO_SUBTASK:
            assert isinstance(value, Used | Granted)
            last_barrier = -1 if record.last_barrier is None else record.last_barrier
            one = Entry(sequence=sequence, subtask=subtask, last_barrier=last_barrier, n=value.n)
            if isinstance(value, Used):
                return replace(state, used=(*state.used, one))
            return replace(state, granted=(*state.granted, one))
        case Kind.COORDINATOR_CHECKPOINTED:
            return replace(state, cuts=Map({**state.cuts, checkpoint_id: sequence}))
        case Kind.CHECKPOINT_COMPLETED:
            return replace(state, last_cut=state.cuts[checkpoint_id])
        case Kind.RESET_TO_CHECKPOINT:
            return replace(state, last_cut=sequence)
        case Kind.SUBTASK_RESET:
            return replace(
                state,
                used=tuple(
                    one
                    for one in state.used
                    if one.subtask != subtask or one.last_barrier < checkpoint_id
                ),
                granted=tuple(
                    one
                    for one in state.granted
                    if one.subtask != subtask or one.sequence < state.last_cut
                ),
            )
        case _:
            return state


class QuotaCoordinator(EventSourcedCoordinator[Quota]):
    """Grants what is owed, once there is somebody to grant it to."""

    def __init__(self, context: CoordinatorContext, told: list[tuple[object, ...]]) -> None:
        super().__init__(context)
        self._told = told
        self._gateways: dict[int, SubtaskGateway] = {}

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        self._told.append((checkpoint_id, state, self.state.totals(0)))

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        self._settle(subtask)

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        self._gateways[subtask] = gateway
        self._settle(subtask)

    def execution_attempt_failed(self, subtask: int, attempt_number: int, reason: str) -> None:
        self._gateways.pop(subtask, None)

    def _settle(self, subtask: int) -> None:
        used, granted = self.state.totals(subtask)
        if used > granted and subtask in self._gateways:
            self._gateways[subtask].send_event(Granted(n=used - granted))


class QuotaProvider(CoordinatorProvider):
    """Makes it; what `reset_to_checkpoint` was given, and the totals of subtask 0 then, is in `told`."""

    operator_id = "source"
    payload_types: tuple[type[Payload], ...] = (Used, Granted)
    projection: OperatorProjection[Any] | None = OperatorProjection(
        name="test.quota", version=1, initial=Quota(), apply=_apply, codec=DerivedCodec(Quota)
    )

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def create(self, context: CoordinatorContext) -> QuotaCoordinator:
        return QuotaCoordinator(context, self.told)


def quota_chain(provider: CoordinatorProvider | None = None) -> Chain:
    return Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=IdleReader,
            coordinator=provider or QuotaProvider(),
        ),
        operators=[],
    )


def quota_of(job: HandDrivenJob) -> Quota:
    state = job.runtime.state.projections["source"]
    assert isinstance(state, Quota)
    return state


@dataclass(slots=True)
class User:
    """The subtask's side, by hand: says 1, 2, 3 …, and adds up what it is granted; both in its state."""

    attempt: FakeAttempt
    said: int = 0
    granted: int = 0
    handled: int = 1
    """How many messages; the first is `Accepted`."""

    @classmethod
    def of(cls, attempt: FakeAttempt) -> "User":
        """Begins from the state that the attempt was restored with."""
        states = [one.state for one in attempt.accepted.states if one.state is not None]
        said, granted = (int(part) for part in states[0].split()) if states else (0, 0)
        return cls(attempt=attempt, said=said, granted=granted)

    def say(self) -> None:
        """Report the next number."""
        self.said += 1
        self.attempt.send("source", Used(n=self.said))

    def handle(self) -> bool:
        """Handle the next message, in the order in which they came; False where there is none."""
        if self.handled == len(self.attempt.inbox):
            return False
        message = self.attempt.inbox[self.handled]
        self.handled += 1
        if isinstance(message, DeliverEvent):
            value = self.attempt.job.chain.payload_types.decode(
                message.payload_type, message.payload
            )
            assert isinstance(value, Granted)
            self.granted += value.n
            self.attempt.ack("source", message.event_id)
        elif isinstance(message, InjectBarrier):
            state = b"%d %d" % (self.said, self.granted)
            self.attempt.ack_checkpoint(message.checkpoint_id, states={"source": state})
        return True

    def handle_all(self) -> None:
        """Handle everything that comes."""
        while self.handle():
            pass
