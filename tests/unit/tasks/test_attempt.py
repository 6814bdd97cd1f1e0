"""The subtask's side of an attempt: order of calls, events, barriers, the end (clauses M1, M2)."""

from __future__ import annotations

import pytest

from coordlog.api.operator import (
    Poll,
    PollStatus,
    SkippedSplit,
    Snapshot,
)
from coordlog.errors import ClosedError, FencedAttemptError, TooLargeError, UsageError
from coordlog.limits import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from coordlog.messages import (
    AckCheckpoint,
    AckEvent,
    CheckpointAborted,
    CheckpointCompleted,
    Complete,
    DownMessage,
    Fail,
    FinishSplit,
    InjectBarrier,
    SendEvent,
    SkipSplit,
)
from coordlog.schemas.builtin_types import Committable, OperatorState
from coordlog.schemas.source_types import NoMoreSplits
from coordlog.task.attempt import StepStatus
from fakes.attempt_fakes import (
    END,
    RELEASED,
    Note,
    ScriptedInbox,
    Unregistered,
    World,
    added,
    answering_inbox,
    batch,
    deliver,
    index,
    opened,
    polled,
    runner_of,
    split_end,
)

# The order of calls


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

    runner_of(world).run(answering_inbox(world))

    assert world.calls[-3:] == ["source.close", "map.close", "sink.close"]
    order = ["sink.process([10])", "map.finish", "sink.finish", "map.final_snapshot"]
    assert sorted(order, key=lambda one: index(world, one)) == order
    assert isinstance(world.sent[-1], Complete)


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

    with pytest.raises(TooLargeError, match=r"test\.note@1"):
        world.contexts["sink"].send_event(Note(text="x" * PAYLOAD_BYTES_MAX))

    assert world.sent == []


@pytest.mark.clause("B6")
def test_an_unregistered_event_or_one_to_no_coordinator_raises_unsent() -> None:
    world = World()
    opened(world)

    with pytest.raises(UsageError, match="not registered"):
        world.contexts["sink"].send_event(Unregistered())
    with pytest.raises(UsageError, match="operator 'map' has no coordinator"):
        world.contexts["map"].send_event(Note(text="hello"))

    assert world.sent == []


# Barriers


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


@pytest.mark.fault("X6")
def test_an_attempt_without_splits_passes_a_barrier_like_any_other() -> None:
    world = World()
    runner = opened(world)
    assert runner.step().status is StepStatus.WAITING

    runner.handle(InjectBarrier(checkpoint_id=7))

    assert [one.checkpoint_id for one in world.sent if isinstance(one, AckCheckpoint)] == [7]


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
def test_a_snapshot_too_large_for_a_record_fails_the_attempt_by_operator(
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


def test_the_end_of_a_split_is_sent_before_the_next_split_is_read() -> None:
    """Or a process that is killed in the next one leaves two splits that it may have read."""
    world = World()
    world.polls = [
        split_end("a"),
        Poll(
            status=PollStatus.SPLIT_SKIPPED, skipped=SkippedSplit(split_id="b", rows=0, reason="x")
        ),
        Poll(status=PollStatus.BATCH, batch=batch(1)),
    ]
    left: list[int] = []
    runner = opened(world, flush=lambda: left.append(len(world.sent)))

    runner.step()
    assert isinstance(world.sent[-1], FinishSplit)
    assert left == [1]
    runner.step()
    assert isinstance(world.sent[-1], SkipSplit)
    assert left == [1, len(world.sent)]
    runner.step()
    assert len(left) == 2, "a batch waits for nothing"


@pytest.mark.clause("M2")
@pytest.mark.clause("L4")
def test_in_batch_a_splits_end_flushes_the_chain_and_hands_over_its_rows() -> None:
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
        "sink.flush(a)",
        "map.end_of_split(a)",
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
def test_rows_from_finish_pass_the_later_operators_before_they_finish() -> None:
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
def test_an_attempt_that_loses_its_driver_after_completing_ends_in_error() -> None:
    world = World(polls=[END])
    runner = runner_of(world)

    def lose_lease(_block: bool, timeout: float | None) -> DownMessage | None:  # noqa: FBT001, a queue's
        if world.got(Complete) and timeout is not None:
            world.over = "its lease is over"
        return None

    with pytest.raises(FencedAttemptError, match="its lease is over"):
        runner.run(ScriptedInbox(lose_lease))

    assert world.calls[-3:] == ["source.close", "map.close", "sink.close"]
    assert world.got(Fail) == []
