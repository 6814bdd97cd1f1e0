"""What the commands say of a source that queries read."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.log.memory import MemoryLog
from coordlog.schemas.reads import ReadFailed, ReadFailureNoted, ReadPlanned, SplitRead, SplitsGiven
from coordlog.schemas.record import Kind
from histories.one_log import OneLog
from jobs.reads_job import Outside, ReadsJob, next_request

JOB = "job"
FILES = ["a.csv", "b.csv", "c.csv", "d.csv"]


def read_by_tasks(
    reads: ReadsJob, read: ReadPlanned, partition: int, task: int, rows: int, *, rejected: int = 0
) -> None:
    """A task that reads all that its partition is given, and says so."""
    asked = next_request(read.read_id, partition, 0, task_attempt_id=task)
    position = 0
    while splits := reads.ask(asked, SplitsGiven).splits:
        position += len(splits)
        finished = [
            SplitRead(split_id=one.split_id, rows=rows, rejected=rejected, bytes_read=9)
            for one in splits
        ]
        asked = next_request(
            read.read_id, partition, position, task_attempt_id=task, finished=finished
        )


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    """Two services. A stream's batch: task 3 fails, 4 is its next attempt, and the batch is planned again."""
    reads = ReadsJob(Outside(names=FILES))
    read = reads.plan_batch(0, 4)
    first = reads.ask(next_request(read.read_id, 0, 0, task_attempt_id=3), SplitsGiven).splits
    reads.ask(
        ReadFailed(
            read_id=read.read_id,
            partition=0,
            task_attempt_id=3,
            split_id=first[0].split_id,
            reason="SourceError: a.csv: cut short",
        ),
        ReadFailureNoted,
    )
    reads.job.crash()
    again = ReadsJob(Outside(names=FILES), log=reads.job.log)
    read = again.plan_batch(0, 4)
    read_by_tasks(again, read, 0, 4, rows=10)
    read_by_tasks(again, read, 1, 5, rows=10)
    again.commit(4)
    again.plan("5ca1ab1e")
    return again.job.log


def run(log: MemoryLog, command: str, *options: str) -> Result:
    return CliRunner().invoke(main, (command, JOB, *options), obj=lambda _servers: OneLog(log, JOB))


def shown(log: MemoryLog, command: str, *options: str) -> str:
    result = run(log, command, *options)
    assert result.exit_code == Exit.DONE, result.output
    return result.stdout


def test_reads_are_told_task_by_task(log: MemoryLog) -> None:
    text = shown(log, "reads")

    lines = [one.split() for one in text.splitlines()]
    assert [one[:4] for one in lines[1:4]] == [
        ["q:0-4", "0..4", "0", "3"],
        ["q:0-4", "0..4", "0", "4"],
        ["q:0-4", "0..4", "1", "5"],
    ]
    assert "failed" in text
    assert "SourceError: a.csv: cut short" in text
    assert "reads: 2 (1 planned again, 1 committed). tasks: 3 (1 failed).\n" in text
    last = text.splitlines()[-1]
    assert last.startswith("streams: q has committed 4 splits and planned last at "), last


def test_reads_are_told_split_by_split(log: MemoryLog) -> None:
    lines = [one.split() for one in shown(log, "reads", "--splits").splitlines()[1:5]]

    assert sorted(one[2] for one in lines) == FILES
    assert lines[0] == ["q:0-4", "0", "a.csv", "10", "4"]
    assert {one[3] for one in lines} == {"10"}


def test_reads_as_json_have_everything(log: MemoryLog) -> None:
    first, second = [json.loads(one) for one in shown(log, "reads", "--json").splitlines()]

    assert (first["plans"], first["is_committed"], first["reader"]) == (2, True, "q")
    assert sum(one["rows"] for one in first["tasks"]) == 40
    assert (second["read_id"], second["tasks"], second["splits"]) == ("5ca1ab1e", [], [])


def test_a_task_with_no_more_splits_is_done_after_its_last_one() -> None:
    """It asks before it has read all: an executor may be lost in between."""
    reads = ReadsJob(Outside(names=FILES))
    read = reads.plan("r", partitions=1)
    given: list[SplitRead] = []
    while splits := reads.ask(next_request(read.read_id, 0, len(given)), SplitsGiven).splits:
        given += [
            SplitRead(split_id=one.split_id, rows=1, rejected=0, bytes_read=9) for one in splits
        ]

    (early,) = json.loads(shown(reads.job.log, "reads", "--json"))["tasks"]
    reads.ask(next_request(read.read_id, 0, len(given), finished=given), SplitsGiven)
    (late,) = json.loads(shown(reads.job.log, "reads", "--json"))["tasks"]

    assert (early["status"], late["status"]) == ("reading", "done")


def test_streams_that_are_followed_or_given_up_are_listed_no_more() -> None:
    reads = ReadsJob(Outside(names=FILES))
    for name in ("gone", "q"):
        reads.plan_batch(0, 2, reader=name)
    reads.plan_batch(2, 4, reader="after", follows="q")
    assert "after has committed 2 splits" in shown(reads.job.log, "reads")
    assert ", gone has committed 0 splits" in shown(reads.job.log, "reads")
    reads.job.crash()

    again = ReadsJob(Outside(names=FILES), log=reads.job.log, abandoned=("gone",))

    last = shown(again.job.log, "reads").splitlines()[-1]
    assert (last.startswith("streams: after has"), "gone" in last, "q has" in last) == (
        True,
        False,
        False,
    )


def test_a_question_that_was_asked_again_counts_once() -> None:
    reads = ReadsJob(Outside(names=FILES))
    reads.plan("r", partitions=1)
    finished: list[SplitRead] = []
    while True:
        asked = next_request("r", 0, len(finished), finished=finished[-1:])
        given = [reads.ask(asked, SplitsGiven).splits for _ in range(2)][1]
        if not given:
            break
        finished += [
            SplitRead(split_id=one.split_id, rows=10, rejected=0, bytes_read=9) for one in given
        ]

    (read,) = [json.loads(one) for one in shown(reads.job.log, "reads", "--json").splitlines()]

    (task,) = read["tasks"]
    assert (task["assigned"], task["finished"], task["rows"]) == (4, 4, 40)
    assert [one["read_by"] for one in read["splits"]] == [[7]] * 4


def test_the_splits_of_a_job_show_which_tasks_of_queries_had_them(log: MemoryLog) -> None:
    found = [json.loads(one) for one in shown(log, "splits", "--json").splitlines()]

    assert [one["split_id"] for one in found] == FILES
    assert {one["rows"] for one in found} == {10}
    assert {one["place"] for one in found} == {"finished"}
    assert [one["attempt_number"] for one in found[0]["assignments"]] == [3, 4]
    assert (found[0]["finished_subtask"], found[0]["finished_attempt_number"]) == (0, 4)


@pytest.mark.may_fail("scripted")
def test_no_reset_throws_away_what_tasks_of_queries_have_read() -> None:
    reads = ReadsJob(Outside(names=FILES))
    read_by_tasks(reads, reads.plan_batch(0, 4), 0, 3, rows=10)
    runtime = reads.job.runtime
    reads.job.run(lambda: runtime.fail_job("reads", "scripted"))
    reads.job.advance(10.0)
    assert reads.job.history(Kind.RESET_TO_CHECKPOINT)

    found = [json.loads(one) for one in shown(reads.job.log, "splits", "--json").splitlines()]

    assert [one["thrown_away"] for one in found] == [[]] * len(FILES)
    assert {one["place"] for one in found} == {"finished"}


def test_no_split_of_a_query_is_skipped(log: MemoryLog) -> None:
    end = log.high_watermark()
    result = run(log, "skip", "--split", "a.csv")

    assert result.exit_code == Exit.USAGE, result.output
    assert log.high_watermark() == end


def test_a_split_that_no_task_has_read_cannot_be_skipped_either() -> None:
    log = ReadsJob(Outside(names=FILES)).job.log
    result = run(log, "skip", "--split", "a.csv")

    assert result.exit_code == Exit.USAGE, result.output
    assert "each query on its source reads every split" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("history",),
        ("attempts",),
        ("checkpoints",),
        ("state",),
        ("state", "--at", "10"),
        ("diff", "--from", "5", "--to", "12"),
        ("verify",),
        ("explain", "--split", "a.csv"),
    ],
)
def test_every_command_reads_a_job_without_subtasks(log: MemoryLog, command: tuple[str]) -> None:
    assert shown(log, *command)


def test_bad_rows_have_a_column_in_each_table_if_there_are_any(log: MemoryLog) -> None:
    reads = ReadsJob(Outside(names=FILES))
    read = reads.plan_batch(0, 4)
    read_by_tasks(reads, read, 0, 4, rows=10, rejected=3)
    with_bad = reads.job.log

    for command in (("reads",), ("reads", "--splits"), ("splits",)):
        assert "BAD ROWS" not in shown(log, *command)
        assert "BAD ROWS" in shown(with_bad, *command)
    (task,) = (line.split() for line in shown(with_bad, "reads").splitlines() if " done " in line)
    assert (task[-2], task[-1]) == ("40", "12"), "rows and bad rows of four splits"
    splits = [line.split() for line in shown(with_bad, "reads", "--splits").splitlines()[1:5]]
    assert [(split[3], split[4]) for split in splits] == [("10", "3")] * 4
    (found,) = map(json.loads, shown(with_bad, "reads", "--json").splitlines())
    assert [split["rejected"] for split in found["splits"]] == [3] * 4
