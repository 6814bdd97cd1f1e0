"""How an attempt fails, is fenced, and waits (clauses M3, M4, M6)."""

from __future__ import annotations

import errno
import pickle
import queue
import resource
from typing import Any

import pyarrow as pa
import pytest

from coordlog.api.operator import (
    FinishedSplit,
    OperatorContext,
    Poll,
    PollStatus,
)
from coordlog.causes import MISFIT, OUT_OF_SPACE
from coordlog.errors import FencedAttemptError, PayloadTypeError, UsageError
from coordlog.limits import REASON_CHARS_MAX
from coordlog.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    Complete,
    DownMessage,
    Fail,
    Fenced,
    InjectBarrier,
    UpMessage,
)
from coordlog.schemas.builtin_types import OperatorState
from coordlog.task.attempt import AttemptRunner
from fakes.attempt_fakes import (
    END,
    RELEASED,
    FakeOperator,
    Note,
    ScriptedInbox,
    World,
    added,
    answering_inbox,
    chain_of,
    deliver,
    inbox_of,
    opened,
    polled,
    runner_of,
    split_end,
)

# Failures

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

    def say(_block: bool, _timeout: float | None) -> DownMessage:  # noqa: FBT001, a queue's
        return RELEASED if world.got(Complete) else inbox.get(block=False)

    runner_of(world, is_batch=True, keeps_state_across_splits=False).run(ScriptedInbox(say))


@pytest.mark.clause("M3")
@pytest.mark.clause("M1")
@pytest.mark.parametrize("failing", sorted(FAILING))
def test_an_error_of_any_callback_is_reported_once_and_ends_the_attempt(
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


@pytest.mark.clause("M3")
def test_an_error_behind_a_call_is_reported_with_the_place_of_that_call() -> None:
    rows: Any = "two"
    finished = FinishedSplit(split_id="a", rows=rows, bytes_read=0)
    world = World(polls=[Poll(status=PollStatus.SPLIT_FINISHED, finished=finished)])

    with pytest.raises(PayloadTypeError, match="two"):
        runner_of(world).run(inbox_of())

    (failure,) = world.got(Fail)
    assert isinstance(failure, Fail)
    assert (failure.operator_id, failure.callback) == ("source", "poll")
    assert "rows='two'" in failure.reason


@pytest.mark.parametrize("failure", [None, ValueError("scripted")])
def test_a_link_can_send_in_close_only_if_nothing_has_ended_the_attempt(
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


def test_an_error_of_close_after_a_recorded_completion_fails_no_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(polls=[END], raising={"sink.close": OSError("scripted")})

    runner_of(world).run(answering_inbox(world))

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
        why_over=lambda: None,
    )
    with pytest.raises(ValueError, match="scripted") as caught:
        runner.run(inbox_of())

    assert "ConnectionResetError: gone" in caught.value.__notes__[0]


# The end of an attempt by others


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


# Waiting


@pytest.mark.clause("M6")
def test_a_reader_that_waits_lets_events_and_barriers_through_at_once() -> None:
    world = World(polls=[])
    seen: list[float | None] = []
    coming: list[DownMessage] = [
        deliver("sink", Note(text="hello")),
        InjectBarrier(checkpoint_id=1),
        RELEASED,
    ]

    def say(block: bool, timeout: float | None) -> DownMessage | None:  # noqa: FBT001, a queue's
        """A message each time that the attempt blocks, and none when it only looks."""
        if not block:
            return None
        seen.append(timeout)
        return coming.pop(0)

    runner_of(world).run(ScriptedInbox(say))

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


def failure_of(error: BaseException) -> Fail:
    world = World(raising={"map.process": error})
    with pytest.raises(type(error)):
        run_through(world)
    (failure,) = world.got(Fail)
    assert isinstance(failure, Fail)
    return failure


@pytest.mark.parametrize(
    ("limit", "says"),
    [(resource.RLIM_INFINITY, "with no limit of"), (3 << 30, "with a limit of 3,072 MiB")],
)
def test_memory_that_is_refused_is_told_with_what_is_held_and_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int, says: str
) -> None:
    monkeypatch.setattr("coordlog.task.attempt.resource.getrlimit", lambda _: (limit, limit))

    last = failure_of(MemoryError()).reason.strip().splitlines()[-1]

    assert last.startswith("MemoryError (no memory is left: the process has used up to ")
    assert says in last
    assert "fewer rows at once with `batch_rows`" in last


@pytest.mark.parametrize(
    ("given", "name"),
    [(pa.table({"a": [1]}), "Table"), (pa.array([1]), "Int64Array"), ("text", "str")],
    ids=["a table", "a column of a batch that was returned as it is", "a text"],
)
def test_the_operator_that_gives_no_record_batch_is_at_fault(
    monkeypatch: pytest.MonkeyPatch, given: object, name: str
) -> None:
    """The operator behind it was: its code met what is no batch."""
    monkeypatch.setattr(FakeOperator, "_twice", lambda _self, _one: [given])
    world = World()

    with pytest.raises(UsageError, match=f"`process` gave a {name}; it must give record batches"):
        run_through(world)

    (failure,) = world.got(Fail)
    assert isinstance(failure, Fail)
    assert (failure.operator_id, failure.callback, failure.final) == ("map", "process", MISFIT)


def test_an_error_that_names_a_file_that_is_not_utf8_is_told() -> None:
    last = failure_of(FileNotFoundError("caf\udce9.csv")).reason.strip().splitlines()[-1]

    assert last == "FileNotFoundError: caf\\udce9.csv"
    assert last.encode()


def test_a_want_of_space_is_told_as_final_and_another_error_is_not() -> None:
    assert failure_of(OSError(errno.ENOSPC, "No space left on device")).final == OUT_OF_SPACE
    assert failure_of(ValueError("No space left on device")).final == ""
