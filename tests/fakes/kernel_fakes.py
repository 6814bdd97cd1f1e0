"""Coordinators whose every call is noted, and which do what a test tells them to."""

# No `from __future__ import annotations` here: payloads are declared below.
# What their methods do is their contract's to say.

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.coordinator import (
    CheckpointResult,
    CoordinatorContext,
    CoordinatorProvider,
    OperatorCoordinator,
    Sink,
    SubtaskGateway,
)
from coordlog.api.operator import Operator, Poll, PollStatus, SourceReader
from coordlog.log.copy import to_append
from coordlog.log.interface import StoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.messages import DeliverEvent, InjectBarrier
from coordlog.projections.job.event_skips import digest_of
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.builtin_types import EventSkipped, SkipEvent
from coordlog.schemas.payload import Payload, event, fact, payload
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import FakeAttempt, FakeClock, FakeRequest, HandDrivenJob


@event("test.up", version=1)
class Up(Payload):
    n: int


@event("test.down", version=1)
class Down(Payload):
    n: int
    text: str = ""


@event("test.tick", version=1, loss_tolerant=True)
class Tick(Payload):
    n: int


@event("test.stranger", version=1)
class Stranger(Payload):
    """Registered with no job."""

    n: int


@event("test.up", version=1)
class OtherUp(Payload):
    """Another schema under the name of `Up`."""

    n: int
    m: int


@fact("test.noted", version=1)
class Noted(Payload):
    text: str


@payload("test.intent", version=1)
class Intent(Payload):
    names: list[str]


@payload("test.outcome", version=1)
class Outcome(Payload):
    count: int


TYPES = (Up, Down, Tick, Noted, Intent, Outcome)

Said = tuple[Any, ...]


class JumpyClock(FakeClock):
    """A clock that can be ahead for a while; what counts intervals is not affected."""

    ahead_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + int(self.ahead_s * 1_000_000)


class IdleReader(SourceReader):
    """Never asked for anything: attempts are driven by hand."""

    def add_splits(self, splits: Sequence[bytes]) -> None:
        raise AssertionError(splits)

    def poll(self) -> Poll:
        return Poll(status=PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return b""


class IdleOperator(Operator):
    """As `IdleReader`."""

    def process(self, batch: Any) -> Any:  # noqa: ANN401, never called
        raise AssertionError(batch)


class FakeSink(Sink):
    """Settles by noting it; the next tries fail as often as a test says."""

    def __init__(self) -> None:
        self.settled: list[tuple[str, ...]] = []
        self.failures = 0
        self.tries = 0

    def settle(self, intent: Payload) -> Payload | None:
        assert isinstance(intent, Intent)
        self.tries += 1
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is full")
        names = tuple(intent.names)
        if names not in self.settled:
            self.settled.append(names)
        return Outcome(count=len(names))


class Noting(OperatorCoordinator):
    """Notes each call, then does what the test has put under its name in `provider.on`."""

    def __init__(self, context: CoordinatorContext, provider: "NotingProvider") -> None:
        self.context, self.provider = context, provider
        self.gateways: dict[int, SubtaskGateway] = {}
        self.results: dict[int, CheckpointResult] = {}

    def _note(self, name: str, *said: Any) -> None:  # noqa: ANN401, whatever the callback got
        self.provider.calls.append((name, *said))
        act = self.provider.on.get(name)
        if act is not None:
            act(self, *said)

    def start(self) -> None:
        self._note("start")

    def close(self) -> None:
        self._note("close")

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        again = ("again",) if self.context.is_redelivery else ()
        self._note("event", subtask, attempt_number, getattr(event, "n", event), *again)

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        self.gateways[subtask] = gateway
        self._note("ready", subtask, attempt_number)

    def execution_attempt_failed(self, subtask: int, attempt_number: int, reason: str) -> None:
        self._note("failed", subtask, attempt_number)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        lost = self.context.lost_events(subtask)
        self.provider.lost.append(
            (
                [getattr(one, "n", None) for one in lost.to_coordinator],
                [getattr(one, "n", None) for one in lost.to_subtask],
            )
        )
        self._note("reset", subtask, checkpoint_id)

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        self.results[checkpoint_id] = result
        self._note("cut", checkpoint_id)
        if self.provider.is_cut_at_once:
            result.complete(b"state of %d" % checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._note("complete", checkpoint_id)
        granted = self.context.committables(checkpoint_id)
        if granted and self.provider.sink is not None and self.provider.is_committing:
            names = [one.content.decode() for one in granted]
            self.context.commit(checkpoint_id, Intent(names=names))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._note("aborted", checkpoint_id)

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        self._note("restore", checkpoint_id, state)


class NotingFolded(Noting):
    """With a projection: its part of a checkpoint is its cut."""

    checkpoint_coordinator = OperatorCoordinator.checkpoint_coordinator


@dataclass(eq=False)
class NotingProvider(CoordinatorProvider):
    """Makes `Noting` coordinators; what they were told is in `calls`."""

    operator_id: str = "source"
    calls: list[Said] = field(default_factory=list)
    on: dict[str, Callable[..., object]] = field(default_factory=dict)
    made: list[Noting] = field(default_factory=list)
    lost: list[tuple[list[int | None], list[int | None]]] = field(default_factory=list)
    is_cut_at_once: bool = True
    is_committing: bool = True
    sink: Sink | None = None
    payload_types: tuple[type[Payload], ...] = TYPES
    projection: OperatorProjection[Any] | None = None

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        self.calls.append(("create",))
        kind = Noting if self.projection is None else NotingFolded
        self.made.append(kind(context, self))
        if "create" in self.on:
            self.on["create"](self.made[-1])
        return self.made[-1]

    @property
    def newest(self) -> Noting:
        return self.made[-1]

    def said(self, *names: str) -> list[Said]:
        """The calls of these names, in order."""
        return [one for one in self.calls if one[0] in names]


def _handled(state: tuple[int, ...], record: Record, value: Payload | None) -> tuple[int, ...]:
    if record.kind is Kind.EVENT_TO_COORDINATOR and isinstance(value, Up):
        return (*state, value.n)
    return state


HANDLED: OperatorProjection[tuple[int, ...]] = OperatorProjection(
    name="test.handled",
    version=1,
    initial=(),
    apply=_handled,
    codec=DerivedCodec(tuple[int, ...]),
)
"""What was handled, in order: the state of an event-sourced coordinator of these tests."""


def chain_of(*providers: NotingProvider, keeps_state: bool = True) -> Chain:
    """A chain whose source and operators have these coordinators."""
    return Chain(
        source=SourceSpec(
            operator_id=providers[0].operator_id,
            create_reader=IdleReader,
            coordinator=providers[0],
            keeps_state_across_splits=keeps_state,
        ),
        operators=[
            OperatorSpec(
                operator_id=one.operator_id,
                create_operator=IdleOperator,
                coordinator=one,
                keeps_state_across_splits=keeps_state,
            )
            for one in providers[1:]
        ],
    )


def delivered(job: HandDrivenJob, attempt: FakeAttempt) -> list[Any]:
    """The `n` of the events that reached an attempt, and `|id` for barriers, in order."""
    found: list[Any] = []
    for one in attempt.inbox:
        if isinstance(one, DeliverEvent):
            value = job.chain.payload_types.decode(one.payload_type, one.payload)
            found.append(getattr(value, "n", value))
        elif isinstance(one, InjectBarrier):
            found.append(f"|{one.checkpoint_id}")
    return found


def event_ids(attempt: FakeAttempt) -> list[int]:
    """The ids of the events that reached an attempt, in order."""
    return [one.event_id for one in attempt.got(DeliverEvent)]


def send_down(provider: NotingProvider, subtask: int, *numbers: int) -> Callable[..., None]:
    """What a coordinator does when it is to send: for `provider.on`."""

    def act(coordinator: Noting, *_said: object) -> None:
        for n in numbers:
            coordinator.gateways[subtask].send_event(Down(n=n))

    return act


def skip_event(job: HandDrivenJob, sequence: int) -> FakeRequest:
    """Ask the driver to skip the event with this sequence."""
    (record,) = [one for one in job.history() if one.sequence == sequence]
    assert record.subtask is not None
    return job.ask(
        "",
        SkipEvent(
            operator_id=str(record.operator_id),
            subtask=record.subtask,
            skipped=EventSkipped(
                event_sequence=sequence,
                is_down=record.kind is Kind.EVENT_TO_SUBTASK,
                event_type=str(record.payload_type),
                digest=digest_of(record.payload or b""),
            ),
            why="it kills them",
        ),
    )


def inside(attempt: FakeAttempt, provider: NotingProvider, act: Callable[[Noting], object]) -> None:
    """Do `act` in a turn of its own, as the coordinator's code: an event of `attempt` is handled with it."""
    provider.on["event"] = lambda coordinator, *_said: act(coordinator)
    attempt.send(provider.operator_id, Up(n=0))
    del provider.on["event"]


def kinds(records: Sequence[Record]) -> list[str]:
    """The kinds' names, types left out."""
    return [one.kind.value for one in records if one.kind is not Kind.TYPE_REGISTERED]


def log_of(records: Iterable[StoredRecord], name: str = "prefix") -> MemoryLog:
    """Another log that holds these records, in this order."""
    copy = MemoryLog(name)
    for one in records:
        copy.store(to_append(one))
    return copy


def prefix_of(log: MemoryLog, end_offset: int) -> MemoryLog:
    """Another log that holds the first records of `log`."""
    return log_of(log.read(log.start_offset(), end_offset))


def ended(job: HandDrivenJob) -> None:
    """End the driver in order: its last act is a snapshot."""
    job.run(lambda: job.runtime.take_last_snapshot(lambda: None))
    job.crash()
