"""The subtask's side of an attempt: order of calls, barriers, failures, the end (clauses M1 to M6)."""

# No `from __future__ import annotations` here: events are declared below.

import pickle
import queue
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from coordlog.attempt import AttemptRunner, StepStatus
from coordlog.chain import Chain, OperatorSpec, SourceSpec
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import ClosedError, FencedAttemptError, TooLargeError, UsageError
from coordlog.limits import PAYLOAD_BYTES_MAX, REASON_CHARS_MAX, RECORD_BYTES_MAX
from coordlog.messages import (
    Accepted,
    AckCheckpoint,
    AckEvent,
    CheckpointAborted,
    CheckpointCompleted,
    Complete,
    DeliverEvent,
    DownMessage,
    Fail,
    Fenced,
    FinishSplit,
    InjectBarrier,
    SendEvent,
    UpMessage,
)
from coordlog.schemas.builtin import Committable, OperatorState
from coordlog.schemas.payload import Payload, event, payload_type_of
from coordlog.schemas.source_events import AddSplits, NoMoreSplits, Split, SplitsDiscovered
from coordlog.subtask import (
    FinishedSplit,
    Operator,
    OperatorContext,
    Poll,
    PollStatus,
    Snapshot,
    SourceReader,
)


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
    """Passes each batch on with ten times its values, unless the world says otherwise; a last one keeps all."""

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

    def finish(self) -> Iterable[pa.RecordBatch]:
        self.world.call(self.name, "finish")
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


def chain_of(world: World, *, keeps_state_across_splits: bool = True) -> Chain:
    """A source, `map` without a coordinator, and `sink`."""
    return Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=lambda: FakeReader(world),
            coordinator=provider_of("source"),
        ),
        operators=[
            OperatorSpec(
                operator_id="map",
                create_operator=lambda: FakeOperator(world, "map", is_last=False),
                keeps_state_across_splits=keeps_state_across_splits,
            ),
            OperatorSpec(
                operator_id="sink",
                create_operator=lambda: FakeOperator(world, "sink", is_last=True),
                coordinator=provider_of("sink"),
                keeps_state_across_splits=False,
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
) -> AttemptRunner:
    return AttemptRunner(
        chain_of(world, keeps_state_across_splits=keeps_state_across_splits),
        Accepted(
            driver_id="driver-a",
            epoch=2,
            attempt_number=4,
            restored_checkpoint=restored_checkpoint,
            parallelism=3,
            is_batch=is_batch,
            states=states,
        ),
        job_id="ingest",
        subtask=1,
        outbox=world.sent.append,
        is_over=lambda: world.over,
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


# M1: order


@pytest.mark.clause("M1")
def test_links_are_opened_with_their_states_before_the_reader_starts() -> None:
    world = World()
    states = [OperatorState(operator_id="sink", state=b"s"), OperatorState(operator_id="source")]

    runner_of(world, states=states, restored_checkpoint=5).open()

    assert world.opened_with == {"source": None, "map": None, "sink": b"s"}
    assert world.calls[-1] == "source.start"
    assert sorted(one for one in world.calls if one.endswith("open")) == [
        "map.open",
        "sink.open",
        "source.open",
    ]


def test_a_context_says_whose_attempt_this_is() -> None:
    world = World()
    opened(world, restored_checkpoint=5, is_batch=True)

    context = world.contexts["map"]

    assert (context.operator_id, context.job_id, context.driver_id) == ("map", "ingest", "driver-a")
    assert (context.subtask, context.attempt_number, context.parallelism) == (1, 4, 3)
    assert (context.restored_checkpoint, context.is_batch) == (5, True)


@pytest.mark.clause("M1")
def test_a_whole_life_has_its_calls_in_order_and_each_close_once() -> None:
    world = World(polls=[polled(1), END])

    runner_of(world).run(inbox_of_after_complete(world))

    assert world.calls[-3:] == ["source.close", "map.close", "sink.close"]
    order = ["sink.process([10])", "map.finish", "sink.finish", "map.final_snapshot"]
    assert sorted(order, key=lambda one: index(world, one)) == order
    assert isinstance(world.sent[-1], Complete)


class inbox_of_after_complete:  # noqa: N801, reads as a function
    """An inbox that has the driver's answer once `Complete` was said, and nothing before."""

    def __init__(self, world: World) -> None:
        self.world = world

    def get(self, block: bool = True, timeout: float | None = None) -> DownMessage:
        if self.world.got(Complete):
            return RELEASED
        raise queue.Empty


def test_each_batch_goes_down_the_chain_before_the_next_one_is_made() -> None:
    world = World(polls=[polled(1, 2)])
    runner = opened(world)

    assert runner.step().status is StepStatus.BATCH

    assert world.calls == [
        "source.poll",
        "map.process([1, 2])",
        "sink.process([10])",
        "map.gave(10)",
        "sink.process([20])",
        "map.gave(20)",
    ]


def test_a_batch_from_the_last_operator_is_refused_and_not_dropped() -> None:
    world = World(polls=[polled(1)], outs={"sink.process": [batch(1)]})
    runner = opened(world)

    with pytest.raises(UsageError, match="end the chain with a sink"):
        runner.step()

    (failure,) = world.got(Fail)
    assert isinstance(failure, Fail)
    assert failure.operator_id == "sink"


# Events


@pytest.mark.clause("C3")
def test_an_event_is_acked_after_its_handler_has_returned() -> None:
    world = World()
    runner = opened(world, restored_checkpoint=3)
    acked_inside: list[int] = []
    world.doing["sink.event"] = lambda _context: acked_inside.append(len(world.got(AckEvent)))

    runner.handle(deliver("sink", Note(text="hello"), event_id=9))

    assert world.calls == ["sink.event(hello)"]
    assert acked_inside == [0]
    assert world.sent == [AckEvent(operator_id="sink", event_id=9, last_barrier=3)]


@pytest.mark.clause("L2")
def test_the_source_gets_its_events_as_calls_of_its_own() -> None:
    world = World()
    runner = opened(world)

    runner.handle(deliver("source", added("a", "b")))
    runner.handle(deliver("source", NoMoreSplits(), event_id=1))
    runner.handle(deliver("source", Note(text="hello"), event_id=2))

    assert world.splits == [b"a", b"b"]
    assert world.calls == ["source.add_splits(2)", "source.no_more_splits", "source.event(hello)"]
    assert [one.event_id for one in world.got(AckEvent) if isinstance(one, AckEvent)] == [0, 1, 2]


@pytest.mark.clause("D2")
def test_sent_events_are_counted_and_say_which_barrier_they_follow() -> None:
    world = World()
    runner = opened(world)
    context = world.contexts["sink"]

    context.send_event(Note(text="before"))
    runner.handle(InjectBarrier(checkpoint_id=7))
    context.send_event(Note(text="after"))

    kinds = [type(one).__name__ for one in world.sent]
    assert kinds == ["SendEvent", "AckCheckpoint", "SendEvent"]
    sent = [one for one in world.sent if isinstance(one, SendEvent)]
    assert [(one.event_id, one.last_barrier) for one in sent] == [(0, -1), (1, 7)]


@pytest.mark.clause("K6")
def test_an_event_that_is_too_large_raises_and_sends_nothing() -> None:
    world = World()
    opened(world)

    with pytest.raises(TooLargeError, match="test.note@1"):
        world.contexts["sink"].send_event(Note(text="x" * PAYLOAD_BYTES_MAX))

    assert world.sent == []


@pytest.mark.clause("B6")
def test_an_event_of_an_unregistered_type_or_to_no_coordinator_raises_and_sends_nothing() -> None:
    world = World()
    opened(world)

    with pytest.raises(UsageError, match="not registered"):
        world.contexts["sink"].send_event(Unregistered())
    with pytest.raises(UsageError, match="operator 'map' has no coordinator"):
        world.contexts["map"].send_event(Note(text="hello"))

    assert world.sent == []


# M2: barriers


@pytest.mark.clause("M2")
@pytest.mark.clause("D4")
def test_a_barrier_takes_all_snapshots_first_to_last_and_acks_them_as_one() -> None:
    world = World(
        handed={
            "map.snapshot": Snapshot(state=b"m"),
            "sink.snapshot": Snapshot(committables=(b"one", b"two")),
        }
    )
    runner = opened(world)

    runner.handle(InjectBarrier(checkpoint_id=7))

    assert world.calls == ["source.snapshot(7)", "map.snapshot(7)", "sink.snapshot(7)"]
    (ack,) = world.sent
    assert isinstance(ack, AckCheckpoint)
    assert (ack.checkpoint_id, ack.last_barrier) == (7, 7)
    assert ack.snapshot.states == [
        OperatorState(operator_id="source", state=b"read"),
        OperatorState(operator_id="map", state=b"m"),
    ]
    assert ack.snapshot.committables == [
        Committable(operator_id="sink", content=b"one"),
        Committable(operator_id="sink", content=b"two"),
    ]


@pytest.mark.clause("M2")
def test_what_is_sent_inside_a_snapshot_is_older_than_the_barrier() -> None:
    world = World()
    world.doing["sink.snapshot"] = lambda context: context.send_event(Note(text="inside"))
    runner = opened(world)

    runner.handle(InjectBarrier(checkpoint_id=7))

    sent, ack = world.sent
    assert isinstance(sent, SendEvent)
    assert sent.last_barrier == -1
    assert isinstance(ack, AckCheckpoint)


def test_a_barrier_that_comes_twice_or_is_older_is_passed_once() -> None:
    world = World()
    runner = opened(world, restored_checkpoint=5)

    for checkpoint_id in (7, 7, 6, 5):
        runner.handle(InjectBarrier(checkpoint_id=checkpoint_id))

    acked = [one.checkpoint_id for one in world.sent if isinstance(one, AckCheckpoint)]
    assert acked == [7]


@pytest.mark.clause("K6")
@pytest.mark.parametrize("operator_id", ["map", "sink"])
def test_a_snapshot_that_fits_no_record_fails_the_attempt_and_names_its_operator(
    operator_id: str,
) -> None:
    half = RECORD_BYTES_MAX // 2
    world = World(
        handed={
            "map.snapshot": Snapshot(state=bytes(half + (1000 if operator_id == "map" else 0))),
            "sink.snapshot": Snapshot(
                committables=(bytes(half + (1000 if operator_id == "sink" else 0)),)
            ),
        }
    )
    runner = opened(world)

    with pytest.raises(TooLargeError, match=f"{half + 1000} bytes of it from"):
        runner.handle(InjectBarrier(checkpoint_id=7))

    (failure,) = world.sent
    assert isinstance(failure, Fail)
    assert (failure.operator_id, failure.callback) == (operator_id, "snapshot_state")
    assert f"the limit is {RECORD_BYTES_MAX}" in failure.reason


def test_a_state_that_is_no_bytes_fails_the_attempt_and_names_its_operator() -> None:
    world = World(handed={"map.snapshot": Snapshot(state="text")})  # type: ignore[arg-type]
    runner = opened(world)

    with pytest.raises(UsageError, match="its state is str, not bytes"):
        runner.handle(InjectBarrier(checkpoint_id=7))

    (failure,) = world.sent
    assert isinstance(failure, Fail)
    assert failure.operator_id == "map"


def test_completions_and_aborts_are_told_to_the_links() -> None:
    world = World()
    runner = opened(world)

    runner.handle(CheckpointAborted(checkpoint_id=3))
    runner.handle(CheckpointCompleted(checkpoint_id=4))

    assert world.calls == [
        "map.aborted(3)",
        "sink.aborted(3)",
        "source.complete(4)",
        "map.complete(4)",
        "sink.complete(4)",
    ]


# Ends of splits


@pytest.mark.clause("M2")
@pytest.mark.clause("L4")
def test_in_a_batch_chain_without_state_a_splits_end_flushes_all_and_hands_over_its_rows() -> None:
    world = World(
        polls=[split_end("a")],
        outs={"map.flush": [batch(5)]},
        handed={"sink.end_of_split": Snapshot(committables=(b"rows of a",))},
    )
    runner = opened(world, is_batch=True, keeps_state_across_splits=False)

    assert runner.step().status is StepStatus.SPLIT_FINISHED

    assert world.calls == [
        "source.poll",
        "map.flush(a)",
        "sink.process([5])",
        "map.end_of_split(a)",
        "sink.flush(a)",
        "sink.end_of_split(a)",
    ]
    (told,) = world.sent
    assert isinstance(told, FinishSplit)
    assert (told.operator_id, told.last_barrier) == ("source", -1)
    assert (told.finished.split_id, told.finished.rows, told.finished.bytes_read) == ("a", 7, 70)
    assert told.finished.committables == [Committable(operator_id="sink", content=b"rows of a")]


@pytest.mark.parametrize(("is_batch", "keeps"), [(False, False), (False, True), (True, True)])
def test_elsewhere_a_splits_end_flushes_nothing(is_batch: bool, keeps: bool) -> None:  # noqa: FBT001
    world = World(polls=[split_end("a")])
    runner = opened(world, is_batch=is_batch, keeps_state_across_splits=keeps)

    runner.step()

    assert world.calls == ["source.poll"]
    (told,) = world.sent
    assert isinstance(told, FinishSplit)
    assert told.finished.committables == []


# The end


@pytest.mark.clause("I3")
@pytest.mark.clause("M1")
def test_what_finish_gives_goes_through_the_operators_behind_before_they_finish() -> None:
    world = World(
        polls=[END],
        outs={"map.finish": [batch(1), batch(2)]},
        handed={
            "map.final_snapshot": Snapshot(state=b"m"),
            "sink.final_snapshot": Snapshot(committables=(b"last",)),
        },
    )
    runner = opened(world, restored_checkpoint=3)

    assert runner.step().status is StepStatus.COMPLETED

    assert world.calls == [
        "source.poll",
        "map.finish",
        "sink.process([1])",
        "sink.process([2])",
        "sink.finish",
        "map.final_snapshot",
        "sink.final_snapshot",
    ]
    (complete,) = world.sent
    assert isinstance(complete, Complete)
    assert complete.last_barrier == 3
    assert complete.snapshot.states == [OperatorState(operator_id="map", state=b"m")]
    assert complete.snapshot.committables == [Committable(operator_id="sink", content=b"last")]


@pytest.mark.clause("F8")
def test_after_its_completion_an_attempt_answers_nothing_and_calls_nothing() -> None:
    world = World(polls=[END])
    runner = opened(world)
    runner.step()
    world.calls.clear()
    world.sent.clear()

    runner.handle(InjectBarrier(checkpoint_id=7))
    runner.handle(CheckpointCompleted(checkpoint_id=7))
    runner.handle(CheckpointAborted(checkpoint_id=8))
    runner.handle(deliver("sink", Note(text="late")))
    assert runner.step().status is StepStatus.COMPLETED
    with pytest.raises(ClosedError):
        world.contexts["sink"].send_event(Note(text="late"))

    assert (world.calls, world.sent) == ([], [])


@pytest.mark.clause("I3")
def test_the_task_does_not_end_before_its_completion_is_in_the_log() -> None:
    world = World(polls=[END])
    runner = opened(world)
    runner.step()
    assert not runner.is_released

    runner.handle(RELEASED)

    assert runner.is_released


@pytest.mark.clause("M4")
def test_an_attempt_whose_driver_is_lost_after_its_completion_ends_with_an_error() -> None:
    world = World(polls=[END])
    runner = runner_of(world)

    class LosingInbox:
        """Silent; the lease runs out once the completion was said."""

        def get(self, block: bool = True, timeout: float | None = None) -> DownMessage:
            if world.got(Complete) and timeout is not None:
                world.over = "its lease is over"
            raise queue.Empty

    with pytest.raises(FencedAttemptError, match="its lease is over"):
        runner.run(LosingInbox())

    assert world.calls[-3:] == ["source.close", "map.close", "sink.close"]
    assert world.got(Fail) == []


# M3: failures

FAILING = {
    "source.create": ("source", "create"),
    "sink.create": ("sink", "create"),
    "source.open": ("source", "open"),
    "map.open": ("map", "open"),
    "source.start": ("source", "start"),
    "source.add_splits": ("source", "handle_source_event"),
    "source.poll": ("source", "poll"),
    "map.process": ("map", "process"),
    "map.gave": ("map", "process"),
    "sink.process": ("sink", "process"),
    "source.snapshot": ("source", "snapshot_state"),
    "sink.snapshot": ("sink", "snapshot_state"),
    "map.complete": ("map", "notify_checkpoint_complete"),
    "sink.aborted": ("sink", "notify_checkpoint_aborted"),
    "map.flush": ("map", "flush_split"),
    "sink.end_of_split": ("sink", "end_of_split"),
    "map.finish": ("map", "finish"),
    "sink.final_snapshot": ("sink", "final_snapshot"),
}


def run_through(world: World) -> None:
    """An attempt in which every callback is called."""
    world.polls = [polled(1), split_end("a"), END]
    inbox = inbox_of(
        deliver("source", added("a")),
        InjectBarrier(checkpoint_id=1),
        CheckpointCompleted(checkpoint_id=1),
        CheckpointAborted(checkpoint_id=2),
    )

    class Inbox:
        def get(self, block: bool = True, timeout: float | None = None) -> DownMessage:
            if world.got(Complete):
                return RELEASED
            return inbox.get(block=False)

    runner_of(world, is_batch=True, keeps_state_across_splits=False).run(Inbox())


@pytest.mark.clause("M3")
@pytest.mark.clause("M1")
@pytest.mark.parametrize("failing", sorted(FAILING))
def test_what_any_callback_raises_is_told_once_with_its_place_and_ends_the_attempt(
    failing: str,
) -> None:
    world = World(raising={failing: ValueError("scripted")})

    with pytest.raises(ValueError, match="scripted"):
        run_through(world)

    (failure,) = world.got(Fail)
    assert isinstance(failure, Fail)
    assert (failure.operator_id, failure.callback) == FAILING[failing]
    assert "ValueError: scripted" in failure.reason
    assert "Traceback" in failure.reason
    assert world.sent[-1] is failure
    created = [one.split(".")[0] for one in world.calls if one.endswith(".create")]
    made = [one for one in created if f"{one}.create" != failing]
    closed = [one.split(".")[0] for one in world.calls if one.endswith(".close")]
    assert sorted(closed) == sorted(made), "each link that was made is closed once"


def test_the_script_of_failures_meets_no_failure_by_itself() -> None:
    world = World()

    run_through(world)

    names = {one.split("(")[0] for one in world.calls}
    assert names >= set(FAILING)
    assert world.got(Fail) == []


@pytest.mark.clause("M3")
def test_a_failure_names_the_event_that_was_being_handled() -> None:
    world = World(raising={"sink.event": ValueError("scripted")})
    runner = opened(world)

    with pytest.raises(ValueError, match="scripted"):
        runner.handle(deliver("sink", Note(text="poison"), event_id=12))

    (failure,) = world.sent
    assert isinstance(failure, Fail)
    assert (failure.callback, failure.event_id, failure.split_id) == ("handle_event", 12, None)


@pytest.mark.clause("M3")
def test_a_failure_while_reading_names_the_first_unfinished_split() -> None:
    world = World(polls=[split_end("a"), polled(1)])
    runner = opened(world)
    runner.handle(deliver("source", added("a", "b", "c")))
    runner.step()
    world.raising["sink.process"] = ValueError("scripted")

    with pytest.raises(ValueError, match="scripted"):
        runner.step()

    assert [one.split_id for one in world.got(Fail) if isinstance(one, Fail)] == ["b"]


@pytest.mark.parametrize("said", [None, "r"])
def test_of_restored_splits_only_the_reader_can_say_which_is_being_read(said: str | None) -> None:
    world = World(polls=[], current_split=said)
    runner = opened(world, states=[OperatorState(operator_id="source", state=b"r half read")])
    runner.handle(deliver("source", added("b")))
    world.raising["source.poll"] = ValueError("scripted")

    with pytest.raises(ValueError, match="scripted"):
        runner.step()

    assert [one.split_id for one in world.got(Fail) if isinstance(one, Fail)] == [said]


@pytest.mark.clause("M3")
def test_an_empty_queue_inside_the_chain_is_not_taken_for_an_empty_inbox() -> None:
    world = World(raising={"sink.event": queue.Empty("the operator's own")})

    with pytest.raises(queue.Empty, match="the operator's own"):
        runner_of(world).run(inbox_of(deliver("sink", Note(text="hello"))))

    assert len(world.got(Fail)) == 1


@pytest.mark.parametrize("failure", [None, ValueError("scripted")])
def test_a_link_can_send_in_its_close_only_while_nothing_has_ended_the_attempt(
    failure: ValueError | None,
) -> None:
    world = World()
    world.doing["sink.close"] = lambda context: context.send_event(Note(text="farewell"))
    runner = opened(world)

    runner.close(failure)

    assert len(world.sent) == (1 if failure is None else 0)


def test_a_long_traceback_keeps_its_end() -> None:
    world = World(raising={"source.poll": ValueError("x" * REASON_CHARS_MAX + "the end")})
    runner = opened(world)

    with pytest.raises(ValueError, match="the end"):
        runner.step()

    (failure,) = world.sent
    assert isinstance(failure, Fail)
    assert len(failure.reason) == REASON_CHARS_MAX
    assert failure.reason.endswith("the end\n")


@pytest.mark.clause("M3")
def test_errors_of_close_are_noted_on_the_failure_and_do_not_mask_it() -> None:
    world = World(
        raising={
            "source.poll": ValueError("first"),
            "source.close": OSError("second"),
            "sink.close": OSError("third"),
        }
    )

    with pytest.raises(ValueError, match="first") as caught:
        runner_of(world).run(inbox_of())

    assert caught.value.__notes__ == [
        "then `close` of 'source' raised OSError: second",
        "then `close` of 'sink' raised OSError: third",
    ]
    assert len(world.got(Fail)) == 1


def test_an_error_of_close_after_the_completion_is_in_the_log_does_not_fail_the_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(polls=[END], raising={"sink.close": OSError("scripted")})

    runner_of(world).run(inbox_of_after_complete(world))

    assert "the subtask has completed" in caplog.text
    assert "scripted" in caplog.text


def test_an_error_of_close_by_itself_is_raised_and_every_link_is_closed() -> None:
    world = World(raising={"source.close": OSError("scripted")})
    runner = opened(world)

    with pytest.raises(OSError, match="scripted"):
        runner.close()
    runner.close()

    assert world.calls == ["source.close", "map.close", "sink.close"]


def test_a_failure_that_cannot_be_told_is_raised_with_a_note() -> None:
    world = World(raising={"source.poll": ValueError("scripted")})

    def lost(message: UpMessage) -> None:
        raise ConnectionResetError("gone")

    runner = AttemptRunner(
        chain_of(world),
        runner_of(World()).accepted,
        job_id="ingest",
        subtask=1,
        outbox=lost,
        is_over=lambda: None,
    )
    with pytest.raises(ValueError, match="scripted") as caught:
        runner.run(inbox_of())

    assert "ConnectionResetError: gone" in caught.value.__notes__[0]


# M4: fenced


@pytest.mark.clause("M4")
def test_a_fenced_attempt_stops_at_once_closes_and_says_nothing_more() -> None:
    world = World(polls=[polled(1)] * 5)

    with pytest.raises(FencedAttemptError, match="a newer attempt") as caught:
        runner_of(world).run(inbox_of(Fenced(reason="a newer attempt")))

    assert (caught.value.subtask, caught.value.attempt_number) == (1, 4)
    assert "source.poll" not in world.calls
    assert world.calls[-3:] == ["source.close", "map.close", "sink.close"]
    assert world.sent == []
    assert pickle.loads(pickle.dumps(caught.value)).reason == "a newer attempt"


@pytest.mark.clause("M4")
def test_an_attempt_whose_lease_is_over_stops_before_its_next_batch() -> None:
    world = World(polls=[polled(1, 2, 3)])
    runner = opened(world)

    def lose_lease(_context: OperatorContext) -> None:
        world.over = "nothing heard for 30 s"

    world.doing["sink.process"] = lose_lease
    with pytest.raises(FencedAttemptError, match="nothing heard for 30 s"):
        runner.step()

    assert [one for one in world.calls if one.startswith("sink.")] == ["sink.process([10])"]
    for then in (
        runner.step,
        lambda: runner.handle(InjectBarrier(checkpoint_id=1)),
        lambda: runner.handle(deliver("sink", Note(text="late"))),
    ):
        with pytest.raises(FencedAttemptError):
            then()
    assert world.sent == []


@pytest.mark.clause("M4")
def test_a_lease_that_ends_during_finish_leaves_no_completion() -> None:
    world = World(polls=[END])
    runner = opened(world)

    def lose_lease(_context: OperatorContext) -> None:
        world.over = "nothing heard for 30 s"

    world.doing["sink.final_snapshot"] = lose_lease
    with pytest.raises(FencedAttemptError):
        runner.step()

    assert world.got(Complete) == []


def test_a_task_whose_job_has_ended_well_ends_without_an_error() -> None:
    world = World()

    runner_of(world).run(inbox_of(Fenced(reason="the job has finished", is_finished=True)))

    assert world.calls[-3:] == ["source.close", "map.close", "sink.close"]
    assert world.got(Complete) == []


# M6: waiting


@pytest.mark.clause("M6")
def test_a_reader_that_waits_lets_events_and_barriers_through_at_once() -> None:
    world = World(polls=[])
    seen: list[float | None] = []
    coming: list[DownMessage] = [
        deliver("sink", Note(text="hello")),
        InjectBarrier(checkpoint_id=1),
        RELEASED,
    ]

    class SlowInbox:
        """A message each time that the attempt blocks, and none when it only looks."""

        def get(self, block: bool = True, timeout: float | None = None) -> DownMessage:
            if not block:
                raise queue.Empty
            seen.append(timeout)
            return coming.pop(0)

    runner_of(world).run(SlowInbox())

    assert [one for one in world.calls if one in ("sink.event(hello)", "sink.snapshot(1)")] == [
        "sink.event(hello)",
        "sink.snapshot(1)",
    ]
    assert seen == [0.05, 0.05, 0.05]


def test_what_has_come_is_handled_before_the_next_batch() -> None:
    world = World(polls=[polled(1), polled(2)])
    inbox = inbox_of(
        deliver("sink", Note(text="first")),
        deliver("sink", Note(text="second")),
    )

    def stop(_context: OperatorContext) -> None:
        inbox.put(RELEASED)

    world.doing["sink.process"] = stop
    runner_of(world).run(inbox)

    order = ["sink.event(first)", "sink.event(second)", "source.poll", "sink.process([10])"]
    assert [one for one in world.calls if one in order] == order
