"""Links that note what is called, and an attempt of three of them."""

# No `from __future__ import annotations` here: events are declared below.
# What their methods do is their contract's to say.

import queue
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.operator import (
    FinishedSplit,
    Operator,
    OperatorContext,
    Poll,
    PollStatus,
    Snapshot,
    SourceReader,
    Waiting,
)
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.messages import (
    Accepted,
    Complete,
    DeliverEvent,
    DownMessage,
    Fenced,
    UpMessage,
)
from coordlog.schemas.builtin_types import OperatorState
from coordlog.schemas.payload import Payload, event, payload_type_of
from coordlog.schemas.source_types import AddSplits, Split, SplitsDiscovered
from coordlog.task.attempt import AttemptRunner


@event("test.note", version=1)
class Note(Payload):
    """Anything."""

    text: str


@event("test.unregistered", version=1)
class Unregistered(Payload):
    """Of no job."""


def batch(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.int64())})


def values(one: pa.RecordBatch) -> list[int]:
    found: list[int] = one.column(0).to_pylist()
    return found


@dataclass
class World:
    """What the fakes of one test share: what was called, in order, and what raises."""

    calls: list[str] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    raising: dict[str, BaseException] = field(default_factory=dict)
    contexts: dict[str, OperatorContext] = field(default_factory=dict)
    doing: dict[str, Callable[[OperatorContext], None]] = field(default_factory=dict)
    handed: dict[str, Snapshot] = field(default_factory=dict)
    outs: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    finishing: dict[str, list[Iterable[pa.RecordBatch | Waiting] | Waiting]] = field(
        default_factory=dict
    )
    opened_with: dict[str, bytes | None] = field(default_factory=dict)
    splits: list[bytes] = field(default_factory=list)
    sent: list[UpMessage] = field(default_factory=list)
    over: str | None = None
    current_split: str | None = None

    def call(self, who: str, what: str, detail: object = "") -> None:
        name = f"{who}.{what}"
        self.calls.append(f"{name}({detail})" if detail != "" else name)
        if name in self.doing:
            self.doing[name](self.contexts[who])
        if name in self.raising:
            raise self.raising[name]

    def got(self, kind: type) -> list[UpMessage]:
        return [one for one in self.sent if isinstance(one, kind)]


class FakeReader(SourceReader):
    """Gives the world's polls, then waits."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.call("source", "create")

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.world.contexts["source"] = context
        self.world.opened_with["source"] = state
        self.world.call("source", "open")

    def start(self) -> None:
        self.world.call("source", "start")

    def add_splits(self, splits: Sequence[bytes]) -> None:
        self.world.splits.extend(splits)
        self.world.call("source", "add_splits", len(splits))

    def poll(self) -> Poll:
        self.world.call("source", "poll")
        return self.world.polls.pop(0) if self.world.polls else Poll(status=PollStatus.WAITING)

    def notify_no_more_splits(self) -> None:
        self.world.call("source", "no_more_splits")

    def handle_source_event(self, event: Payload) -> None:
        assert isinstance(event, Note)
        self.world.call("source", "event", event.text)

    def current_split(self) -> str | None:
        return self.world.current_split

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        self.world.call("source", "snapshot", checkpoint_id)
        return self.world.handed.get("source", Snapshot(state=b"read")).state or b""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.world.call("source", "complete", checkpoint_id)

    def close(self) -> None:
        self.world.call("source", "close")


class FakeOperator(Operator):
    """Gives ten times each value, in a batch of its own; a last one gives what the world says."""

    def __init__(self, world: World, name: str, *, is_last: bool) -> None:
        self.world, self.name, self.is_last = world, name, is_last
        world.call(name, "create")

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.world.contexts[self.name] = context
        self.world.opened_with[self.name] = state
        self.world.call(self.name, "open")

    def handle_event(self, event: Payload) -> None:
        assert isinstance(event, Note)
        self.world.call(self.name, "event", event.text)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self.world.call(self.name, "process", values(batch))
        if self.is_last:
            return self.world.outs.get(f"{self.name}.process", [])
        return self._twice(batch)

    def _twice(self, one: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        for value in values(one):
            yield batch(value * 10)
            self.world.call(self.name, "gave", value * 10)

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        self.world.call(self.name, "snapshot", checkpoint_id)
        return self.world.handed.get(f"{self.name}.snapshot", Snapshot())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.world.call(self.name, "complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.world.call(self.name, "aborted", checkpoint_id)

    def flush_split(self, split_id: str) -> Iterable[pa.RecordBatch]:
        self.world.call(self.name, "flush", split_id)
        return self.world.outs.get(f"{self.name}.flush", [])

    def end_of_split(self, split_id: str) -> Snapshot:
        self.world.call(self.name, "end_of_split", split_id)
        return self.world.handed.get(f"{self.name}.end_of_split", Snapshot())

    def finish(self) -> Iterable[pa.RecordBatch | Waiting] | Waiting:
        self.world.call(self.name, "finish")
        answers = self.world.finishing.get(self.name)
        if answers:
            return answers.pop(0)
        return self.world.outs.get(f"{self.name}.finish", [])

    def final_snapshot(self) -> Snapshot:
        self.world.call(self.name, "final_snapshot")
        return self.world.handed.get(f"{self.name}.final_snapshot", Snapshot())

    def close(self) -> None:
        self.world.call(self.name, "close")


def provider_of(operator_id: str) -> SplitCoordinatorProvider:
    """Any provider will do: none of them is made here."""
    return SplitCoordinatorProvider(
        operator_id,
        discover=lambda: SplitsDiscovered(splits=[], is_complete=True),
        payload_types=(Note,),
    )


def chain_of(
    world: World, *, keeps_state_across_splits: bool = True, groups_splits: bool = False
) -> Chain:
    """A source, `map` without a coordinator, and `sink`."""
    return Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=lambda: FakeReader(world),
            coordinator=provider_of("source"),
            groups_splits=groups_splits,
        ),
        operators=[
            OperatorSpec(
                operator_id="map",
                create_operator=lambda: FakeOperator(world, "map", is_last=False),
                keeps_state_across_splits=keeps_state_across_splits,
                groups_splits=groups_splits,
            ),
            OperatorSpec(
                operator_id="sink",
                create_operator=lambda: FakeOperator(world, "sink", is_last=True),
                coordinator=provider_of("sink"),
                keeps_state_across_splits=False,
                groups_splits=groups_splits,
            ),
        ],
    )


def runner_of(
    world: World,
    *,
    is_batch: bool = False,
    states: Sequence[OperatorState] = (),
    restored_checkpoint: int = -1,
    keeps_state_across_splits: bool = True,
    groups_splits: bool = False,
    flush: Callable[[], None] = lambda: None,
) -> AttemptRunner:
    return AttemptRunner(
        chain_of(
            world,
            keeps_state_across_splits=keeps_state_across_splits,
            groups_splits=groups_splits,
        ),
        Accepted(
            driver_id="driver-a",
            epoch=2,
            attempt_number=4,
            restored_checkpoint=restored_checkpoint,
            parallelism=3,
            is_batch=is_batch,
            states=tuple(states),
        ),
        job_id="ingest",
        subtask=1,
        outbox=world.sent.append,
        why_over=lambda: world.over,
        flush=flush,
    )


def opened(world: World, **options: object) -> AttemptRunner:
    """An open attempt, with nothing noted yet."""
    runner = runner_of(world, **options)  # type: ignore[arg-type]
    runner.open()
    world.calls.clear()
    world.sent.clear()
    return runner


def deliver(operator_id: str, value: Payload, event_id: int = 0) -> DeliverEvent:
    declared = payload_type_of(value)
    return DeliverEvent(
        operator_id=operator_id,
        event_id=event_id,
        payload_type=declared.key,
        payload=declared.encode(value),
    )


def added(*names: str) -> AddSplits:
    return AddSplits(splits=[Split(split_id=one, content=one.encode()) for one in names])


def polled(*given: int) -> Poll:
    return Poll(status=PollStatus.BATCH, batch=batch(*given))


def split_end(name: str) -> Poll:
    return Poll(
        status=PollStatus.SPLIT_FINISHED,
        finished=FinishedSplit(split_id=name, rows=7, bytes_read=70),
    )


END = Poll(status=PollStatus.END)
RELEASED = Fenced(reason="completed", is_finished=True)


def inbox_of(*messages: DownMessage) -> queue.SimpleQueue[DownMessage]:
    inbox: queue.SimpleQueue[DownMessage] = queue.SimpleQueue()
    for one in messages:
        inbox.put(one)
    return inbox


def index(world: World, call: str) -> int:
    return world.calls.index(call)


class ScriptedInbox:
    """An inbox whose messages a function gives, from `block` and `timeout`; None: it is empty."""

    def __init__(self, say: Callable[[bool, float | None], DownMessage | None]) -> None:
        self._say = say

    def get(self, block: bool = True, timeout: float | None = None) -> DownMessage:  # noqa: FBT001, FBT002, as queues have it
        message = self._say(block, timeout)
        if message is None:
            raise queue.Empty
        return message


def answering_inbox(world: World) -> ScriptedInbox:
    """Silent until `Complete` was said, which it answers."""
    return ScriptedInbox(lambda _block, _timeout: RELEASED if world.got(Complete) else None)
