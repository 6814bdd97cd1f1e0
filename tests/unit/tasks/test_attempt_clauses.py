"""What an attempt's author may rely on as a whole: order, thread, barriers between batches (clauses L2, M1 to M5)."""

from __future__ import annotations

import threading
from typing import Final

import pytest

from coordlog.api.operator import OperatorContext, PollStatus
from coordlog.errors import FencedAttemptError, WrongThreadError
from coordlog.messages import (
    AckCheckpoint,
    Complete,
    DownMessage,
    Fail,
    Fenced,
    InjectBarrier,
    Refused,
    Register,
    SendEvent,
)
from coordlog.schemas.builtin_types import OperatorState
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import NoMoreSplits
from coordlog.task.attempt import StepStatus
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.attempt_fakes import (
    END,
    RELEASED,
    Note,
    ScriptedInbox,
    World,
    added,
    answering_inbox,
    batch,
    deliver,
    inbox_of,
    opened,
    polled,
    runner_of,
    split_end,
)
from fakes.kernel_fakes import HANDLED, NotingProvider, chain_of


@pytest.mark.clause("L2")
@pytest.mark.clause("M1")
def test_a_reader_gets_all_calls_of_its_contract_in_order() -> None:
    world = World(polls=[polled(1), split_end("a"), split_end("b"), END])
    coming: list[DownMessage] = [
        deliver("source", added("a", "b"), event_id=0),
        InjectBarrier(checkpoint_id=6),
        deliver("source", Note(text="hello"), event_id=1),
        deliver("source", NoMoreSplits(), event_id=2),
    ]

    def say(_block: bool, _timeout: float | None) -> DownMessage | None:  # noqa: FBT001, a queue's
        if coming:
            return coming.pop(0)
        return RELEASED if world.got(Complete) else None

    states = [OperatorState(operator_id="source", state=b"read on")]
    runner_of(world, states=states, restored_checkpoint=5).run(ScriptedInbox(say))

    assert world.opened_with["source"] == b"read on"
    assert [one for one in world.calls if one.startswith("source.")] == [
        "source.create",
        "source.open",
        "source.start",
        "source.add_splits(2)",
        "source.snapshot(6)",
        "source.event(hello)",
        "source.no_more_splits",
        *["source.poll"] * 4,
        "source.close",
    ]
    assert world.splits == [b"a", b"b"]


@pytest.mark.clause("M1")
def test_every_call_of_an_attempt_is_made_on_the_thread_that_runs_it() -> None:
    seen: set[int] = set()

    class Watching(World):
        def call(self, who: str, what: str, detail: object = "") -> None:
            seen.add(threading.get_ident())
            super().call(who, what, detail)

    world = Watching(polls=[polled(1), END])
    coming = inbox_of(deliver("sink", Note(text="hello")), InjectBarrier(checkpoint_id=1))

    def say(block: bool, timeout: float | None) -> DownMessage:  # noqa: FBT001, a queue's
        if coming.empty():
            return answering_inbox(world).get(block, timeout)
        return coming.get(block=False)

    main: list[int] = []

    def run() -> None:
        main.append(threading.get_ident())
        runner_of(world).run(ScriptedInbox(say))

    thread = threading.Thread(target=run, name="the task")
    thread.start()
    thread.join()

    assert seen == set(main)
    names = {one.split("(")[0] for one in world.calls}
    assert names >= {"sink.event", "sink.snapshot", "sink.process", "sink.finish", "sink.close"}


@pytest.mark.clause("M1")
@pytest.mark.clause("M2")
def test_an_event_sent_on_another_thread_fails_the_attempt() -> None:
    world = World(polls=[polled(1), polled(2)])
    raised: list[BaseException] = []

    def send(context: OperatorContext) -> None:
        try:
            context.send_event(Note(text="between the snapshot and its barrier"))
        except WrongThreadError as error:
            raised.append(error)

    def send_on_a_thread(context: OperatorContext) -> None:
        world.doing.clear()
        thread = threading.Thread(target=send, args=(context,), name="fetcher")
        thread.start()
        thread.join()

    world.doing["sink.process"] = send_on_a_thread
    opened(world).step()

    (error,) = raised
    assert str(error) == (
        "context.send_event was called on thread 'fetcher'; it may be called only inside a callback: let the "
        "thread put its results into a queue, and send them in `process`, `emit_held` or `finish`"
    )
    assert not world.got(SendEvent)
    (failed,) = world.got(Fail)
    assert isinstance(failed, Fail)
    assert (failed.operator_id, failed.callback) == ("sink", "send_event")
    assert failed.reason.rstrip().endswith(str(error))


@pytest.mark.clause("M1")
@pytest.mark.clause("M2")
def test_a_barrier_within_a_batch_is_passed_by_all_links_after_that_batch() -> None:
    world = World(polls=[polled(1, 2), polled(3)])
    inbox = inbox_of()

    def arrive(_context: OperatorContext) -> None:
        world.doing.clear()
        inbox.put(InjectBarrier(checkpoint_id=7))
        inbox.put(deliver("sink", Note(text="behind the barrier")))

    world.doing["sink.process"] = arrive
    runner = opened(world)
    runner.step()
    assert world.calls[-1] == "map.gave(20)", "the batch has passed the chain to its end"
    while not inbox.empty():
        runner.handle(inbox.get())
    runner.step()

    after = world.calls[world.calls.index("map.gave(20)") + 1 :]
    assert after[:3] == ["source.snapshot(7)", "map.snapshot(7)", "sink.snapshot(7)"]
    assert after[3] == "sink.event(behind the barrier)"
    assert after[4:6] == ["source.poll", "map.process([3])"]


def lives(job: HandDrivenJob) -> list[tuple[int, int]]:
    """The live attempts, as subtask and attempt number."""
    subtasks = job.runtime.state.subtasks
    found = [subtasks[n].attempt for n in range(len(subtasks))]
    return [(one.subtask, one.attempt_number) for one in found if one is not None]


@pytest.mark.clause("M3")
def test_a_callbacks_error_is_recorded_by_place_and_fails_one_attempt() -> None:
    world = World(raising={"sink.process": ValueError("scripted")}, polls=[polled(1)])
    with pytest.raises(ValueError, match="scripted"):
        opened(world).step()
    (said,) = world.got(Fail)
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=3)
    attempts: list[FakeAttempt] = job.register_all()
    before = [list(one.inbox) for one in attempts]

    failing = attempts[1]
    job.run(lambda: job.runtime.arrived(failing.connection_id, said))

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert (failed.subtask, failed.attempt_number) == (1, 0)
    assert "'sink'" in str(failed.reason)
    assert "process" in str(failed.reason)
    assert "Traceback (most recent call last)" in str(failed.reason)
    assert "ValueError: scripted" in str(failed.reason)
    assert [attempts[n].inbox for n in (0, 2)] == [before[0], before[2]], "they hear nothing"
    assert lives(job) == [(0, 0), (2, 0)]
    assert job.history(Kind.GLOBAL_FAILURE) == []


@pytest.mark.clause("M4")
def test_an_ended_attempt_acks_no_barrier_and_completes_nothing() -> None:
    world = World(polls=[polled(1), END])
    runner = opened(world)
    with pytest.raises(FencedAttemptError):
        runner.handle(Fenced(reason="a newer attempt"))
    world.over = "a newer attempt"

    for then in (runner.step, lambda: runner.handle(InjectBarrier(checkpoint_id=1))):
        with pytest.raises(FencedAttemptError):
            then()
    runner.close(FencedAttemptError(1, 4, "a newer attempt"))

    assert world.sent == []
    assert world.calls == ["source.close", "map.close", "sink.close"]


@pytest.mark.clause("M5")
def test_a_task_of_the_older_driver_gets_no_attempt_of_the_newer_one() -> None:
    old = HandDrivenJob(chain_of(NotingProvider()))
    number = old.register(0).accepted.attempt_number
    old.crash()
    job = HandDrivenJob(old.chain, log=old.log)
    attempt = job.register(0)
    assert attempt.accepted.driver_id != old.runtime.state.driver_id
    assert attempt.accepted.attempt_number > number, "so that no name can be the same"
    end = job.log.high_watermark()

    late = FakeAttempt(job, 77, 0)
    job.attempts[77] = late
    message = Register(
        driver_id=old.runtime.state.driver_id,
        subtask=0,
        stage_run=5,
        task_attempt_id=500,
        spark_attempt_number=0,
        host="memory",
        pid=0,
    )
    job.run(lambda: job.runtime.arrived(77, message))

    assert [type(one) for one in late.inbox] == [Refused]
    assert job.log.high_watermark() == end
    assert lives(job) == [(0, attempt.accepted.attempt_number)]


@pytest.mark.clause("I1")
@pytest.mark.clause("I3")
def test_a_resume_reruns_no_finished_subtask_even_without_a_checkpoint() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(
        chain_of(event_sourced(provider)),
        parallelism=2,
    )
    first, _second = job.register_all()
    first.complete(states={"source": b"last"}, committables=[("source", b"made last")])
    job.crash()

    resumed = HandDrivenJob(job.chain, parallelism=2, log=job.log, restore="resume")

    assert resumed.mode == "resume"
    (again,) = resumed.register_all()
    assert again.subtask == 1
    assert provider.said("reset") == [("reset", 1, -1)]
    resumed.trigger()
    again.ack_checkpoint(1)
    granted = resumed.runtime.state.granted[1]
    assert [(one.subtask, one.content) for one in granted] == [(0, b"made last")]


def event_sourced(provider: NotingProvider) -> NotingProvider:
    """Made one that a resume can rebuild."""
    provider.projection = HANDLED
    return provider


# --- a `finish` that waits ------------------------------------------------------------------------
WAITING: Final = PollStatus.WAITING


@pytest.mark.clause("M7")
def test_a_waiting_finish_is_called_again_only_after_an_event() -> None:
    world = World(polls=[END], finishing={"sink": [WAITING, WAITING]})
    runner = opened(world)

    assert [runner.step().status for _ in range(3)] == [StepStatus.WAITING] * 3
    assert world.calls == ["source.poll", "map.finish", "sink.finish"]
    assert world.got(Complete) == []

    runner.handle(deliver("sink", Note(text="not yet")))
    assert runner.step().status is StepStatus.WAITING
    runner.handle(deliver("sink", Note(text="now"), event_id=1))
    assert runner.step().status is StepStatus.COMPLETED

    assert world.calls[3:] == [
        "sink.event(not yet)",
        "sink.finish",
        "sink.event(now)",
        "sink.finish",
        "map.final_snapshot",
        "sink.final_snapshot",
    ]
    assert len(world.got(Complete)) == 1


@pytest.mark.clause("M7")
def test_rows_before_the_waiting_pass_on_and_those_behind_finish_after_it() -> None:
    world = World(polls=[END], finishing={"map": [[batch(1), WAITING], [batch(2)]]})
    runner = opened(world)

    runner.step()
    assert world.calls == ["source.poll", "map.finish", "sink.process([1])"]
    runner.handle(deliver("source", Note(text="of any link")))
    runner.step()

    assert world.calls[4:7] == ["map.finish", "sink.process([2])", "sink.finish"]
    assert len(world.got(Complete)) == 1


@pytest.mark.clause("M7")
def test_barriers_pass_an_attempt_whose_finish_waits() -> None:
    world = World(polls=[END], finishing={"sink": [WAITING]})
    runner = opened(world)
    runner.step()

    runner.handle(InjectBarrier(checkpoint_id=3))

    assert runner.step().status is StepStatus.WAITING, "a barrier is no event"
    (acked,) = world.got(AckCheckpoint)
    assert isinstance(acked, AckCheckpoint)
    assert acked.checkpoint_id == 3


@pytest.mark.clause("M7")
def test_a_waiting_finish_ends_with_its_coordinators_last_event() -> None:
    world = World(polls=[END], finishing={"sink": [WAITING]})
    world.doing["sink.finish"] = lambda context: context.send_event(Note(text="all is read"))
    coming = [deliver("sink", Note(text="keep it"))]

    def say(_block: bool, _timeout: float | None) -> DownMessage | None:  # noqa: FBT001, a queue's
        if world.got(SendEvent) and coming:
            return coming.pop(0)
        return RELEASED if world.got(Complete) else None

    runner_of(world).run(ScriptedInbox(say))

    assert world.calls[-5:] == [
        "map.final_snapshot",
        "sink.final_snapshot",
        "source.close",
        "map.close",
        "sink.close",
    ]
    assert world.calls.index("sink.event(keep it)") < world.calls.index("map.final_snapshot")
