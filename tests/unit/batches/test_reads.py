"""A source that queries read: what a read covers, and who is given which of its splits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from coordlog.coordinators import query_source as reads_coordinator
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import RequestRefusedError, RestoreError
from coordlog.limits import SPLITS_AT_ONCE_MAX, SPLITS_AT_ONCE_WEIGHT, SPLITS_PER_PARTITION_MAX
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.projections.splits.query_reads import READS, ReadsState
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.reads import (
    EndQuery,
    QueryEnded,
    QueryReads,
    ReadFailureNoted,
    SplitsGiven,
)
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import Split
from coordlog.testing.driven_job import HandDrivenJob
from fakes.split_fakes import chain_of, listing
from jobs.reads_job import Outside, ReadsJob, Task, next_request, plan_request, unreachable

FILES = [f"f{n}" for n in range(10)]


def batch(names: list[str] | None = None, weights: dict[str, int] | None = None) -> ReadsJob:
    """A source with an end, listed."""
    return ReadsJob(Outside(names=list(FILES if names is None else names), weights=weights or {}))


def refusal(reads: ReadsJob, request: Payload) -> str:
    with pytest.raises(RequestRefusedError) as refused:
        reads.asked(request).answer()
    return str(refused.value)


# --- giving ---------------------------------------------------------------------------------------
def test_the_tasks_of_a_read_share_its_splits_each_split_once() -> None:
    reads = batch()
    read = reads.plan(partitions=3)
    tasks = [reads.task(read, number) for number in range(3)]

    while not all(one.is_over for one in tasks):
        for one in tasks:
            if not one.is_over:
                one.step()

    assert sorted(name for one in tasks for name in one.had) == FILES
    assert min(len(one.had) for one in tasks) >= 2, "nobody has been left out"


def test_a_slow_task_gets_fewer_splits() -> None:
    reads = batch()
    read = reads.plan()
    slow, fast = reads.task(read, 0), reads.task(read, 1)

    slow.step()
    fast.run()

    assert len(slow.had) == 1
    assert sorted(slow.had + fast.had) == FILES


def test_a_task_that_is_tried_again_reads_its_splits_again_and_goes_on() -> None:
    reads = batch()
    read = reads.plan()
    first, other = reads.task(read, 0), reads.task(read, 1)
    first.step()
    first.step()
    other.step()

    again = reads.task(read, 0)
    again.run()
    other.run()

    assert again.had[: len(first.had)] == first.had
    assert sorted(again.had + other.had) == FILES


def test_a_completed_task_that_runs_again_gets_exactly_what_it_had() -> None:
    reads = batch()
    read = reads.plan()
    had = [Task(reads, read.read_id, number).run() for number in (0, 1)]

    assert [reads.task(read, number).run() for number in (1, 0)] == had[::-1]


def test_two_live_tasks_of_one_partition_read_the_same() -> None:
    """A speculative copy: neither is fenced off, whichever of them Spark keeps."""
    reads = batch()
    read = reads.plan()
    one, copy = reads.task(read, 0), reads.task(read, 0)

    while not (one.is_over and copy.is_over):
        one.step()
        copy.step()

    assert one.had == copy.had
    assert sorted(one.had + reads.task(read, 1).run()) == FILES


def test_a_question_that_is_asked_again_has_the_same_answer() -> None:
    reads = batch()
    read = reads.plan()
    request = next_request(read.read_id, 0, 0)

    assert reads.asked(request).answer().response == reads.asked(request).answer().response
    assert reads.state.reads["r"].assigned_count == 1


def test_the_heaviest_come_first_and_alone_small_ones_together() -> None:
    heavy = {"f3": 2 * SPLITS_AT_ONCE_WEIGHT, "f7": 3 * SPLITS_AT_ONCE_WEIGHT}
    names = [*FILES, *(f"small{n:04}" for n in range(2000))]
    reads = batch(names, {**dict.fromkeys(names, 10), **heavy})
    task = reads.task(reads.plan(partitions=1), 0)

    assert task.step() == ["f7"]
    assert task.step() == ["f3"]
    assert len(task.step()) == SPLITS_AT_ONCE_MAX


def test_the_end_is_shared_finely() -> None:
    reads = batch([f"n{n:03}" for n in range(160)])
    task = reads.task(reads.plan(partitions=2), 0)

    sizes: list[int] = []
    while not task.is_over:
        sizes.append(len(task.step()))

    assert all(later <= earlier for earlier, later in pairwise(sizes))
    assert sizes[0] == 160 // (2 * 4)
    assert sizes[-9:] == [1] * 8 + [0]


def test_a_task_is_given_no_more_than_its_share_of_a_large_read() -> None:
    count = 2 * SPLITS_PER_PARTITION_MAX + 1
    reads = batch([f"n{n:05}" for n in range(count)])
    read = reads.plan(partitions=2)

    assert read.partitions == 3
    had = [reads.task(read, number).run() for number in range(3)]
    assert [len(one) for one in had] == [SPLITS_PER_PARTITION_MAX, SPLITS_PER_PARTITION_MAX, 1]
    assert len({name for one in had for name in one}) == count


def test_the_answer_is_in_the_log_before_a_task_has_it() -> None:
    reads = batch()
    read = reads.plan()
    reads.job.is_held = True
    asked = reads.asked(next_request(read.read_id, 0, 0))

    assert asked.is_open
    reads.job.release()
    assert not asked.is_open


@pytest.mark.parametrize(
    ("read_id", "partition", "position", "said"),
    [
        ("other", 0, 0, "read other has ended"),
        ("r", 2, 0, "has 2 partitions; partition 2"),
        ("r", -1, 0, "has 2 partitions; partition -1"),
        ("r", 0, 1, "has been assigned 0 splits, and position 1"),
    ],
)
def test_what_is_no_question_of_a_read_is_refused(
    read_id: str, partition: int, position: int, said: str
) -> None:
    reads = batch()
    reads.plan()

    assert said in refusal(reads, next_request(read_id, partition, position))


# --- planning -------------------------------------------------------------------------------------
def test_a_query_is_ended_by_its_stage_and_the_service_continues() -> None:
    ended: list[tuple[int, str]] = []
    reads = ReadsJob(
        Outside(names=list(FILES)), end_query=lambda stage, reason: ended.append((stage, reason))
    )
    read = reads.plan()

    reads.ask(EndQuery(stage_id=5, reason="row 3"), ReadFailureNoted)

    assert ended == [(5, "row 3")]
    facts = [one.payload_type for one in reads.job.history(Kind.FACT)]
    assert payload_type_of(QueryEnded).key in facts
    assert reads.task(read, 1).step()


def test_a_read_has_no_more_partitions_than_splits() -> None:
    assert batch().plan(partitions=64).partitions == len(FILES)
    assert batch([]).plan().partitions == 0


def test_a_replanned_batch_has_the_same_splits_in_the_same_partitions() -> None:
    """By a planner that died meanwhile, after the whole driver died: the log has all of it."""
    before = batch()
    read = before.plan_batch(0, 10)
    done, half = before.task(read, 0), before.task(read, 1)
    half.step()
    done.run()
    before.job.crash()

    after = ReadsJob(Outside(names=[*FILES, "new"]), log=before.job.log)

    assert after.state.split_count == 11
    assert after.plan_batch(0, 10, partitions=5) == read
    assert after.task(read, 0).run() == done.had
    assert after.task(read, 1).run() == half.had
    assert sorted(done.had + half.had) == FILES


@pytest.mark.may_fail("scripted")
def test_a_coordinator_fault_does_not_change_what_tasks_received() -> None:
    reads = batch()
    read = reads.plan_batch(0, 10)
    had = reads.task(read, 0).run()
    runtime, history = reads.job.runtime, reads.state.history
    reads.job.run(lambda: runtime.fail_job("reads", "scripted"))
    reads.job.advance(10.0)

    assert reads.job.history(Kind.RESET_TO_CHECKPOINT)
    assert reads.state.history == history
    assert reads.state.reads["q:0-10"].assigned_count == len(had)
    assert reads.plan_batch(0, 10) == read
    assert reads.task(read, 0).run() == had


def test_batch_reads_are_over_with_the_service_that_planned_them() -> None:
    before = batch()
    before.plan()
    before.job.crash()

    after = ReadsJob(Outside(names=FILES), log=before.job.log)

    assert "load the DataFrame again" in refusal(after, next_request("r", 0, 0))
    assert sorted(after.task(after.plan("other", partitions=1), 0).run()) == FILES


def test_old_batch_reads_are_forgotten() -> None:
    reads = batch(["f"])
    for number in range(1_001):
        reads.plan(f"r{number}")

    assert "r0" not in reads.state.reads
    assert len(reads.state.reads) == len(reads.state.batch_reads) == 1_000


def test_a_position_of_another_history_is_refused() -> None:
    stranger, reads = batch(), batch()
    request = plan_request("q:0-10", end=10)
    other = replace(request, reader="q", history=stranger.state.history)

    said = refusal(reads, other)

    assert stranger.state.history in said
    assert reads.state.history in said


def test_a_position_that_has_not_been_found_is_refused() -> None:
    reads = batch()

    with pytest.raises(RequestRefusedError, match=r"splits 0 to 11 were requested.* has 0 to 10"):
        reads.plan_batch(0, 11)


def test_the_log_of_another_kind_of_job_is_refused() -> None:
    job = HandDrivenJob(
        chain_of(SplitCoordinatorProvider("source", discover=listing("a"))), is_batch=True
    )
    job.crash()
    with pytest.raises(RestoreError, match="job"):
        ReadsJob(Outside(names=FILES), log=job.log)

    reads = batch()
    reads.job.crash()
    with pytest.raises(RestoreError, match="job"):
        HandDrivenJob(
            chain_of(SplitCoordinatorProvider("source", discover=listing("a"))),
            is_batch=True,
            log=reads.job.log,
        )


# --- finding --------------------------------------------------------------------------------------
def test_what_comes_later_is_found_and_numbered_on() -> None:
    reads = ReadsJob(Outside(is_complete=False))
    reads.find("a", "b")
    first = reads.look()
    reads.find("c")
    second = reads.look()

    assert (first.end, second.end) == (2, 3)
    assert 0 <= first.sequence < second.sequence
    assert [one.split.split_id for _, one in sorted(reads.state.splits.items())] == list("abc")


def test_a_look_is_answered_and_not_recorded() -> None:
    reads = batch()
    before = reads.job.log.high_watermark()

    assert reads.look().end == len(FILES)
    assert reads.job.log.high_watermark() == before


def test_a_look_shows_nothing_that_is_not_in_the_log() -> None:
    reads = ReadsJob(Outside(is_complete=False))
    reads.job.is_held = True
    reads.find("a")
    look = QueryReads(after=-1, splits_max=0)
    asked = reads.asked(look)

    assert reads.state.split_count == 1
    assert asked.is_open
    reads.job.release()
    assert not asked.is_open


def test_batches_are_as_large_as_they_may_be() -> None:
    reads = batch()

    assert reads.look(after=0, splits_max=4).end == 4
    assert reads.look(after=8, splits_max=4).end == 10
    assert reads.look(splits_max=4).end == 4, "a stream's first batch: Spark asks before it begins"
    reads.plan_batch(0, 4)
    assert reads.look(splits_max=4).end == 8, "where it does not know, after the one stream's batch"
    reads.plan_batch(0, 4, reader="p")
    assert reads.look(splits_max=4).end == 10, "never behind what a stream has read"


def test_a_batch_dataframe_does_not_enlarge_the_first_batch_of_a_stream() -> None:
    reads = batch()
    reads.plan()

    assert reads.look(splits_max=4).end == 4


def test_a_batch_does_not_end_before_what_an_abandoned_stream_has_read() -> None:
    """Spark would record that end before the plan is refused, and run the same batch after each start."""
    reads = batch()
    reads.plan_batch(0, 2)
    reads.plan_batch(0, 8, reader="gone")
    reads.job.crash()
    again = ReadsJob(Outside(names=FILES), log=reads.job.log, abandoned=("gone",))

    assert sorted(again.state.readers) == ["q"]
    assert again.look(splits_max=2).end == 8


def test_a_source_that_cannot_be_listed_is_reported_and_ends_nothing() -> None:
    outside = Outside(names=FILES, error=unreachable())
    reads = ReadsJob(outside)

    assert "access denied" in refusal(reads, plan_request())
    assert "access denied" in reads.look().problem
    assert not reads.job.history(Kind.GLOBAL_FAILURE)
    reads.job.crash()
    outside.error = None
    assert ReadsJob(outside, log=reads.job.log).plan().end == len(FILES)


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_service_says_nothing_of_what_the_one_before_had_found_out(*, is_complete: bool) -> None:
    before = ReadsJob(Outside(names=FILES, is_complete=is_complete))
    if is_complete:
        assert before.look().is_listed
    else:
        before.outside.error = unreachable()
        before.find()
        assert "access denied" in before.look().problem
    before.job.crash()

    after = ReadsJob(Outside(names=FILES, is_complete=False), log=before.job.log)
    seen = after.look()

    assert (seen.is_listed, seen.problem) == (False, "")
    assert seen.history == before.state.history


# --- settling -------------------------------------------------------------------------------------
def test_what_a_stream_has_committed_is_forgotten_and_the_rest_is_not() -> None:
    reads = batch()
    for start, end in ((0, 4), (4, 10)):
        reads.task(reads.plan_batch(start, end), 0).run()
    reads.plan_batch(0, 4, reader="other")

    reads.commit(4)

    assert sorted(reads.state.reads) == ["other:0-4", "q:4-10"]
    assert (reads.state.readers["q"].committed, reads.state.readers["q"].planned) == (4, 10)


def lane(split: Split) -> str:
    return split.split_id.partition("@")[0]


def test_superseded_splits_are_forgotten_after_all_streams_read_them() -> None:
    reads = ReadsJob(Outside(is_complete=False), lane_of=lane)
    reads.find("p0@0", "p1@0")
    reads.plan_batch(0, 2)
    reads.plan_batch(0, 2, reader="other")
    reads.find("p0@5")
    reads.plan_batch(2, 3)

    reads.commit(2)
    assert reads.state.first == 0, "the other stream has not"
    reads.commit(2, reader="other")

    assert reads.state.first == 2
    assert {one.split.split_id for one in reads.state.splits.values()} == {"p1@0", "p0@5"}
    assert "are forgotten" in refusal(reads, plan_request())
    with pytest.raises(RequestRefusedError, match=r"splits 0 to 3 .* has 2 to 3"):
        reads.plan_batch(0, 3, reader="late")


def test_a_look_makes_no_list_anew_of_splits_that_an_earlier_one_knew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service looks each second, and keeps splits for as long as a stream may read them."""
    sizes: list[int] = []

    def counted(items: Collection[Any]) -> list[Any]:
        sizes.append(len(items))
        return sorted(items)

    reads = ReadsJob(Outside(is_complete=False), lane_of=lane)
    monkeypatch.setattr(reads_coordinator, "sorted", counted, raising=False)
    for number in range(4):
        reads.find(f"p0@{number}")
    assert sizes == []
    reads.plan_batch(0, 3)
    reads.commit(3)
    sizes.clear()
    reads.outside.names = ["p0@3"]  # a watch finds nothing that has been found
    reads.find("p0@4")
    reads.find("p0@5")
    assert sizes == [2], "once, as splits were forgotten"
    kept = [reads.state.splits[number].split.split_id for number in sorted(reads.state.splits)]
    assert kept == ["p0@3", "p0@4", "p0@5"]


def test_splits_of_a_stream_between_two_of_its_batches_are_not_forgotten() -> None:
    """It has no read open: only what it has committed says how far it is."""
    reads = ReadsJob(Outside(is_complete=False), lane_of=lane)
    reads.find(*(f"p0@{n}" for n in range(4)))
    reads.plan_batch(0, 4, reader="fast")
    reads.plan_batch(0, 1, reader="slow")
    reads.commit(1, reader="slow")
    reads.commit(4, reader="fast")

    assert reads.state.first == 1
    assert sorted(reads.state.splits) == [1, 2, 3]
    read = reads.plan_batch(1, 4, reader="slow", partitions=1)
    assert sorted(reads.task(read, 0).run()) == ["p0@1", "p0@2", "p0@3"]


def test_a_stream_too_many_is_refused_with_one_that_may_be_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads_coordinator, "STREAM_READERS_MAX", 2)
    reads = batch()
    for reader in ("ended", "lives"):
        reads.plan_batch(0, 4, reader=reader)
    reads.commit(4, reader="lives")
    with pytest.raises(RequestRefusedError, match=r"has 2 streams .* such as 'ended', which"):
        reads.plan_batch(0, 4, reader="late")
    reads.plan_batch(4, 6, reader="lives")
    reads.plan_batch(4, 6, reader="renamed", follows="lives")
    reads.plan()


def test_a_stream_that_was_given_up_keeps_nothing_from_being_forgotten() -> None:
    reads = ReadsJob(Outside(is_complete=False), lane_of=lane)
    reads.find("p0@0", "p1@0")
    reads.plan_batch(0, 2)
    reads.plan_batch(0, 2, reader="gone")
    reads.find("p0@5")
    reads.plan_batch(2, 3)
    reads.commit(3)
    assert reads.state.first == 0, "the other stream has not"
    reads.job.crash()

    again = ReadsJob(
        Outside(names=reads.outside.names, is_complete=False),
        log=reads.job.log,
        lane_of=lane,
        abandoned=("gone", "never known"),
    )

    assert sorted(again.state.readers) == ["q"]
    assert sorted(again.state.reads) == []
    again.find("p1@7")
    again.plan_batch(3, 4)
    again.commit(4)
    assert again.state.first == 4
    with pytest.raises(RequestRefusedError, match=r"splits 0 to 2 .* has 4 to 4"):
        again.plan_batch(0, 2, reader="gone")


def test_an_abandoned_streams_first_batch_is_refused_without_its_files() -> None:
    """It has the range of a stream that begins, which leaves out files that were forgotten."""
    reads = ReadsJob(Outside(is_complete=False))
    reads.find("old", "new")
    reads.plan_batch(0, 2, reader="gone")
    reads.job.crash()
    again = ReadsJob(
        Outside(names=reads.outside.names, is_complete=False),
        log=reads.job.log,
        abandoned=("gone",),
    )
    state = again.state
    repeated = replace(plan_request(end=2), reader="gone", follows="gone", history=state.history)
    reads_coordinator.check_stream(state, repeated)
    forgotten = replace(state, splits=state.splits.delete(0))

    with pytest.raises(RequestRefusedError, match="1 of the splits 0 to 2 are forgotten"):
        reads_coordinator.check_stream(forgotten, repeated)
    reads_coordinator.check_stream(forgotten, replace(repeated, reader="begins", follows="begins"))


def test_a_stream_under_a_new_name_holds_nothing_under_its_old_one() -> None:
    reads = ReadsJob(Outside(is_complete=False), lane_of=lane)
    reads.find("p0@0")
    reads.plan_batch(0, 1, reader="before")
    reads.find("p0@5")
    reads.plan_batch(1, 2, reader="after", follows="before")

    assert sorted(reads.state.readers) == ["after"]
    assert sorted(reads.state.reads) == ["after:1-2"]
    reads.commit(2, reader="after")
    assert {one.split.split_id for one in reads.state.splits.values()} == {"p0@5"}


def test_a_batch_read_holds_no_splits_and_is_refused_forgotten_ones() -> None:
    reads = ReadsJob(Outside(is_complete=False), lane_of=lane)
    reads.find("p0@0", "p1@0")
    done = reads.plan("done", partitions=1)
    reads.task(done, 0).run()
    half = reads.plan("half")
    reads.task(half, 0).step()
    reads.plan_batch(0, 2)
    reads.find("p0@5")
    reads.plan_batch(2, 3)

    reads.commit(2)

    assert reads.state.first == 2
    assert "read half, partition 0: split 0 of 0 to 2 is forgotten" in refusal(
        reads, next_request("half", 0, 0)
    )
    assert "read half, partition 1: split 0" in refusal(reads, next_request("half", 1, 0))
    assert "read done, partition 0: split 0" in refusal(reads, next_request("done", 0, 0))
    over = reads.ask(next_request("done", 0, 2), SplitsGiven)
    assert over.splits == [], "it has read all that it was given"


def test_its_state_survives_a_snapshot() -> None:
    reads = batch()
    reads.task(reads.plan_batch(0, 10), 0).step()
    codec = DerivedCodec(ReadsState)

    assert codec.decode(codec.encode(reads.state)) == reads.state
    assert isinstance(READS.codec, DerivedCodec)
