"""Small splits at a time: several in one answer, and in batch one committable for several (clauses L4, M2)."""

from __future__ import annotations

import pytest

from coordlog.api.operator import FinishedSplit, Poll, PollStatus, SkippedSplit, Snapshot
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import UsageError
from coordlog.limits import SPLITS_AT_ONCE_MAX, SPLITS_AT_ONCE_WEIGHT
from coordlog.messages import EndOfSplit, FinishSplit, InjectBarrier, SkipSplit
from coordlog.projections.splits.fold import SplitsState
from coordlog.schemas.builtin_types import Committable, SplitFinished
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import Split
from coordlog.task.attempt import AttemptRunner
from coordlog.testing import replay
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.attempt_fakes import END, FakeOperator, World, opened, polled
from fakes.split_fakes import NO_MORE, ask, chain_of, checkpoint, listing, places, told

WAITING = Poll(status=PollStatus.WAITING)


def end(name: str, *, has_next: bool = False, bytes_read: int = 70) -> Poll:
    finished = FinishedSplit(
        split_id=name, rows=7, bytes_read=bytes_read, rejected=1, has_next=has_next
    )
    return Poll(status=PollStatus.SPLIT_FINISHED, finished=finished)


def skipped(name: str) -> Poll:
    return Poll(
        status=PollStatus.SPLIT_SKIPPED, skipped=SkippedSplit(split_id=name, rows=0, reason="bad")
    )


def grouping(*polls: Poll, groups_splits: bool = True) -> tuple[World, AttemptRunner]:
    """An attempt of a batch whose links hand over the rows of several splits at once."""
    world = World(
        polls=list(polls),
        handed={"sink.end_of_split": Snapshot(committables=(b"a file",))},
    )
    runner = opened(
        world, is_batch=True, keeps_state_across_splits=False, groups_splits=groups_splits
    )
    return world, runner


def ended(world: World) -> list[list[str]]:
    """The ids of each message that ends splits."""
    return [
        [*(each.split_id for each in message.before), message.finished.split_id]
        for message in world.got(FinishSplit)
        if isinstance(message, FinishSplit)
    ]


# The attempt


@pytest.mark.clause("M2")
@pytest.mark.clause("L4")
def test_small_splits_that_follow_one_another_are_handed_over_at_once() -> None:
    world, runner = grouping(
        polled(1), end("a", has_next=True), end("b", has_next=True), polled(2), end("c")
    )
    for _ in range(5):
        runner.step()

    (message,) = world.sent
    assert message == FinishSplit(
        operator_id="source",
        last_barrier=-1,
        finished=SplitFinished(
            split_id="c",
            rows=7,
            bytes_read=70,
            committables=[Committable(operator_id="sink", content=b"a file")],
        ),
        rejected=1,
        before=(
            EndOfSplit(split_id="a", rows=7, bytes_read=70, rejected=1),
            EndOfSplit(split_id="b", rows=7, bytes_read=70, rejected=1),
        ),
    )
    assert [one for one in world.calls if one.startswith("sink.")] == [
        "sink.process([10])",
        "sink.flush(a)",
        "sink.flush(b)",
        "sink.process([20])",
        "sink.flush(c)",
        "sink.end_of_split(c)",
    ]


@pytest.mark.parametrize("last", [WAITING, END])
def test_a_group_is_handed_over_before_the_reader_is_waited_for(last: Poll) -> None:
    world, runner = grouping(end("a", has_next=True), last)
    runner.step()
    assert world.sent == []

    runner.step()

    assert ended(world) == [["a"]]


def test_a_group_is_not_handed_over_in_the_middle_of_a_split() -> None:
    world, runner = grouping(end("a", has_next=True), polled(1), WAITING, end("b"))
    for _ in range(3):
        runner.step()
    assert world.sent == [], "the file would hold some of the rows of b"

    runner.step()

    assert ended(world) == [["a", "b"]]


def test_a_group_has_a_limit_of_splits_and_of_bytes() -> None:
    many = [end(str(number), has_next=True) for number in range(SPLITS_AT_ONCE_MAX + 1)]
    world, runner = grouping(*many)
    for _ in many:
        runner.step()
    assert [len(each) for each in ended(world)] == [SPLITS_AT_ONCE_MAX]

    large = end("large", has_next=True, bytes_read=SPLITS_AT_ONCE_WEIGHT)
    world, runner = grouping(end("a", has_next=True), large)
    runner.step()
    runner.step()
    assert ended(world) == [["a", "large"]]


def test_a_group_ends_with_the_split_behind_which_a_link_takes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([True, False, True])
    monkeypatch.setattr(
        FakeOperator, "takes_more_splits", lambda link: link.name == "map" or next(answers)
    )
    names = "abcd"
    world, runner = grouping(*[end(name, has_next=name != "d") for name in names])
    for _ in names:
        runner.step()

    assert ended(world) == [["a", "b"], ["c", "d"]]


def test_a_link_that_does_not_allow_groups_gets_the_end_of_each_split() -> None:
    world, runner = grouping(end("a", has_next=True), end("b"), groups_splits=False)
    runner.step()
    runner.step()

    assert ended(world) == [["a"], ["b"]]
    assert [one for one in world.calls if "sink.end" in one] == [
        "sink.end_of_split(a)",
        "sink.end_of_split(b)",
    ]


@pytest.mark.clause("M2")
def test_in_streaming_the_end_of_each_split_is_ahead_of_the_next_barrier() -> None:
    world = World(polls=[end("a", has_next=True), end("b")])
    runner = opened(world, keeps_state_across_splits=False, groups_splits=True)
    runner.step()
    runner.handle(InjectBarrier(checkpoint_id=1))
    runner.step()

    assert ended(world) == [["a"], ["b"]]
    barriers = [one.last_barrier for one in world.sent if isinstance(one, FinishSplit)]
    assert barriers == [-1, 1], "a restored reader has not split a"


def test_a_skipped_split_leaves_the_rows_of_those_before_it() -> None:
    world, runner = grouping(polled(1), end("a", has_next=True), skipped("b"))
    for _ in range(3):
        runner.step()

    first, second = world.sent
    assert isinstance(first, FinishSplit)
    assert first.finished.committables != []
    assert isinstance(second, SkipSplit)
    calls = [one for one in world.calls if "end_of_split" in one]
    assert calls.index("sink.end_of_split(a)") < calls.index("sink.end_of_split(b)")


def test_a_skip_after_rows_of_an_announced_split_fails_the_attempt() -> None:
    world, runner = grouping(end("a", has_next=True), polled(1), skipped("b"))
    runner.step()
    runner.step()

    with pytest.raises(UsageError, match="`has_next`"):
        runner.step()

    assert ended(world) == []


# The driver


@pytest.mark.clause("L4")
@pytest.mark.clause("K5")
def test_splits_that_share_a_committable_end_in_one_turn() -> None:
    job = HandDrivenJob(chain_of(provider("a", "b", "c", "d")), is_batch=True)
    (attempt,) = job.register_all()
    for _ in range(4):
        ask(attempt)
    attempt.say(
        FinishSplit(
            operator_id="source",
            last_barrier=-1,
            finished=SplitFinished(split_id="c", rows=3, bytes_read=9, committables=[]),
            rejected=2,
            before=(
                EndOfSplit(split_id="a", rows=1, bytes_read=9),
                EndOfSplit(split_id="b", rows=2, bytes_read=9, rejected=1),
            ),
        )
    )

    records = job.history(Kind.SPLIT_FINISHED)
    assert [dict(record.attributes) for record in records] == [
        {"kept": "true", "rows_with": "c"},
        {"kept": "true", "rejected": "1", "rows_with": "c"},
        {"kept": "true", "rejected": "2"},
    ]
    assert [record.turn_remaining for record in records] == [2, 1, 0]
    attempt.lose()
    assert places(job) == {
        "a": "finished by 0",
        "b": "finished by 0",
        "c": "finished by 0",
        "d": "enumerator",
    }
    assert replay(job.log, job.chain).turn_count > 0


# Assignments


def provider(*names: str, weights: dict[str, int | None] | None = None) -> SplitCoordinatorProvider:
    """A source of these splits; without a weight a split is of one byte."""

    def weight_of(split: Split) -> int | None:
        return 1 if weights is None else weights.get(split.split_id, 1)

    return SplitCoordinatorProvider("source", discover=listing(*names), weight_of=weight_of)


def answers(job: HandDrivenJob, attempt: FakeAttempt, count: int) -> list[list[str]]:
    """The splits of each of so many answers."""
    found: list[list[str]] = []
    for _ in range(count):
        before = len(told(job, attempt))
        ask(attempt)
        found.append(told(job, attempt)[before:])
    return found


def test_small_splits_are_assigned_together_and_fewer_at_the_end() -> None:
    names = [f"{number:02}" for number in range(30)]
    job = HandDrivenJob(chain_of(provider(*names)), parallelism=2)
    first, _second = job.register_all()

    sizes = [len(each) for each in answers(job, first, 22)]
    assert sizes == [3, 3, 3, 2, 2, 2, *[1] * 15, 1], "and the last one is the end of the input"
    assert told(job, first) == [*names, NO_MORE]


def test_a_large_split_or_one_of_unknown_size_is_assigned_alone() -> None:
    names = [f"{number:02}" for number in range(40)]
    weights: dict[str, int | None] = {"01": SPLITS_AT_ONCE_WEIGHT, "04": None}
    job = HandDrivenJob(chain_of(provider(*names, weights=weights)))
    (attempt,) = job.register_all()

    assert answers(job, attempt, 4)[:4] == [
        ["00"],
        ["01"],
        ["02", "03"],
        ["04"],
    ]


def test_in_batch_the_splits_of_a_lost_reader_are_assigned_one_by_one() -> None:
    """So that the next loss of a process names the split at fault."""
    names = [f"{number:02}" for number in range(16)]
    job = HandDrivenJob(chain_of(provider(*names), reads_in_order=True), is_batch=True)
    attempt = job.register(0)
    assert answers(job, attempt, 1) == [["00", "01", "02", "03"]]
    attempt.lose()

    attempt = job.register(0)
    assert answers(job, attempt, 5) == [["00"], ["01"], ["02"], ["03"], ["04", "05", "06"]]


@pytest.mark.clause("J2")
@pytest.mark.parametrize(("is_batch", "blamed"), [(True, None), (False, "00")])
def test_in_batch_a_killed_process_is_blamed_on_none_of_several_splits(
    is_batch: bool,  # noqa: FBT001, a parameter
    blamed: str | None,
) -> None:
    names = [f"{number:02}" for number in range(16)]
    chain = chain_of(provider(*names), reads_in_order=True, groups_splits=True)
    job = HandDrivenJob(chain, is_batch=is_batch)
    attempt = job.register(0)
    answers(job, attempt, 1)
    attempt.lose()
    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.attributes.get("split_id") == blamed

    attempt = job.register(0)
    answers(job, attempt, 1)
    attempt.lose()
    assert job.history(Kind.ATTEMPT_FAILED)[1].attributes.get("split_id") == "00"


@pytest.mark.clause("L4")
def test_all_splits_of_an_answer_go_back_with_their_reader() -> None:
    names = [f"{number:02}" for number in range(16)]
    job = HandDrivenJob(chain_of(provider(*names)))
    attempt = job.register(0)
    checkpoint(job, attempt)
    (taken,) = answers(job, attempt, 1)
    assert len(taken) == 4
    attempt.lose()

    assert set(places(job).values()) == {"enumerator"}
    assert answers(job, job.register(0), 1) == [taken]


def test_an_answer_has_a_limit_of_splits() -> None:
    names = [f"{number:03}" for number in range(5 * SPLITS_AT_ONCE_MAX)]
    job = HandDrivenJob(chain_of(provider(*names)))

    assert answers(job, job.register(0), 1) == [names[:SPLITS_AT_ONCE_MAX]]


@pytest.mark.clause("L5")
def test_several_splits_at_once_answer_as_many_open_requests() -> None:
    names = [f"{number:02}" for number in range(16)]
    job = HandDrivenJob(chain_of(provider(*names)))
    attempt = job.register(0)
    job.trigger()
    ask(attempt)
    ask(attempt)  # both are part of the checkpoint, and their answers are not
    attempt.ack_checkpoint(1)
    attempt.lose()

    assert told(job, job.register(0)) == names[:4]
    splits: SplitsState = job.runtime.state.projections["source"]
    assert splits.reader(0).owed == 0


@pytest.mark.clause("K6")
def test_more_ends_than_an_attempt_reports_at_once_fail_their_sender() -> None:
    names = [str(number) for number in range(SPLITS_AT_ONCE_MAX + 1)]
    job = HandDrivenJob(chain_of(provider(*names)), is_batch=True)
    attempt = job.register(0)
    *before, last = names
    attempt.say(
        FinishSplit(
            operator_id="source",
            last_barrier=-1,
            finished=SplitFinished(split_id=last, rows=1, bytes_read=1, committables=[]),
            before=tuple(EndOfSplit(split_id=one, rows=1, bytes_read=1) for one in before),
        )
    )

    assert job.history(Kind.SPLIT_FINISHED) == []
    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.reason == "it sent the ends of 65 splits at once; the limit is 64"
