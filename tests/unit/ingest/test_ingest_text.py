"""What `coordlog ingest` says, written out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from immutables import Map

from coordlog.amounts import in_bytes
from coordlog.cli.ingest.text import (
    RateMeter,
    Rates,
    Surrounding,
    already_finished,
    before_lines,
    not_listed_line,
    progress_line,
    restored_line,
    stopped_lines,
    summary_lines,
)
from coordlog.projections.tables.progress import FinishedWork, JobEnd, Progress
from coordlog.restore.rebuild import Restored, RestoreMode

WORK = FinishedWork(subtask=0, last_barrier=0, is_kept=False, rows=10, bytes_read=100)
STREAMING = Progress(
    job_id="ingest",
    epoch=1,
    parallelism=4,
    known=Map({"a": None, "b": None, "c": None}),
    is_listing_complete=True,
    finished=Map({"a": WORK, "b": WORK}),
    rows=20,
    bytes_read=200,
    live=Map({0: 0, 1: 3}),
    attempts_started=5,
    attempts_lost=3,
    last_checkpoint=7,
    last_checkpoint_us=10_000_000,
    checkpoints_completed=6,
    checkpoints_aborted=1,
    rows_published=1_234,
    files_published=8,
    bytes_published=56_789,
    splits_thrown_away=1,
)
BATCH = replace(STREAMING, is_batch=True, last_checkpoint=-1, last_checkpoint_us=None)
AROUND = Surrounding(
    job_id="ingest",
    destination="/data/out",
    log_name="ingest.log at 127.0.0.1:9092",
    servers_option=" --bootstrap-servers 127.0.0.1:9092",
    seconds=12.34,
)
RESTORED = Restored(
    mode=RestoreMode.ROLLBACK,
    checkpoint_id=7,
    checkpoint_offset=812,
    record_count=1_900,
    void_count=0,
    seconds=0.25,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (31_053_850, "31.1 MB"),
        (2e12, "2.0 TB"),
    ],
)
def test_bytes_are_shown_in_decimal_units(count: float, text: str) -> None:
    assert in_bytes(count) == text


def test_a_streaming_job_shows_its_last_checkpoint_and_how_old_it_is() -> None:
    line = progress_line(STREAMING, Rates(rows=4_321.4, read_bytes=1_500), 12_500_000)

    assert line == (
        "splits 2/3 | 1,234 rows published | 4,321 rows/s, 1.5 kB/s | checkpoint 7, 2.5 s ago | "
        "attempts 2 live, 3 lost"
    )


def test_a_batch_job_shows_what_it_has_read() -> None:
    line = progress_line(BATCH, Rates(rows=0, read_bytes=0), 0)

    assert line == "splits 2/3 | 20 rows read | 0 rows/s | attempts 2 live, 3 lost"


def test_the_number_of_splits_is_unknown_until_the_listing_is_complete() -> None:
    rates = Rates(rows=0, read_bytes=0)
    some = replace(STREAMING, is_listing_complete=False)

    assert progress_line(Progress(), rates, 0).startswith("splits 0/? | ")
    assert progress_line(some, rates, 0).startswith("splits 2/3+ | ")
    assert "checkpoint none yet" in progress_line(Progress(), rates, 0)


def test_rates_are_taken_over_the_last_fifteen_seconds() -> None:
    meter = RateMeter()

    first = meter.see(0.0, replace(STREAMING, rows_published=0, bytes_read=0))
    second = meter.see(10.0, replace(STREAMING, rows_published=1_000, bytes_read=50))
    third = meter.see(20.0, replace(STREAMING, rows_published=4_000, bytes_read=150))

    assert (first.rows, first.read_bytes) == (0, 0)
    assert (second.rows, second.read_bytes) == (100, 5)
    assert (third.rows, third.read_bytes) == (300, 10)


def test_a_reset_gives_no_negative_rate() -> None:
    meter = RateMeter()
    meter.see(0.0, replace(BATCH, rows=500, bytes_read=500))

    after = meter.see(1.0, replace(BATCH, rows=100, bytes_read=100))

    assert (after.rows, after.read_bytes) == (0, 0)


def test_a_rollback_names_checkpoint_offset_records_and_seconds() -> None:
    assert restored_line(RESTORED, STREAMING) == (
        "restored by rollback from checkpoint 7 at offset 812: 1,900 records folded in 0.25 s"
    )


def test_a_restore_from_a_snapshot_says_from_which() -> None:
    line = restored_line(replace(RESTORED, snapshot_offset=640), STREAMING)

    assert line == (
        "restored by rollback from checkpoint 7 at offset 812; "
        "from the snapshot at offset 640: 1,900 records folded in 0.25 s"
    )


def test_a_checkpoint_older_than_the_snapshot_is_named_without_its_offset() -> None:
    line = restored_line(replace(RESTORED, snapshot_offset=640, checkpoint_offset=None), STREAMING)

    assert line == (
        "restored by rollback from checkpoint 7; from the snapshot at offset 640: 1,900 records "
        "folded in 0.25 s"
    )


def test_void_records_are_told_where_there_are_some() -> None:
    line = restored_line(replace(RESTORED, void_count=12), STREAMING)

    assert line.endswith("folded in 0.25 s (12 void)")


def test_a_rollback_without_a_checkpoint_goes_to_the_start() -> None:
    line = restored_line(replace(RESTORED, checkpoint_id=-1, checkpoint_offset=None), STREAMING)

    assert line.startswith("restored by rollback from checkpoint -1, the start: 1,900 records")


def test_a_batch_job_resumes_with_its_finished_splits() -> None:
    restored = replace(RESTORED, mode=RestoreMode.RESUME, checkpoint_id=-1, checkpoint_offset=None)

    assert restored_line(restored, BATCH) == (
        "restored by resume with 2 of 3 splits finished (no checkpoints in batch): "
        "1,900 records folded in 0.25 s"
    )


def test_a_job_that_begins_says_so() -> None:
    begun = replace(RESTORED, mode=RestoreMode.START, checkpoint_id=-1, record_count=0)

    assert restored_line(begun, Progress()) == "a new job"
    assert restored_line(replace(begun, record_count=3), Progress(epoch=0)) == (
        "started again, 3 records folded in 0.25 s"
    )
    assert restored_line(replace(begun, mode=RestoreMode.SETTLE), BATCH).startswith(
        "every subtask has finished, only commits are left"
    )


def test_a_finished_job_says_when_and_that_nothing_was_changed() -> None:
    finished = replace(STREAMING, end=JobEnd.FINISHED, ended_us=1_700_000_000_000_000)

    assert already_finished(finished, "ingest") == (
        "job ingest finished at 2023-11-14T22:13:20.000000Z: 1,234 rows in 8 files; "
        "nothing was changed (--again reads new files)"
    )
    pruned = replace(STREAMING, end=JobEnd.FINISHED, ended_us=None)
    assert already_finished(pruned, "ingest") == (
        "job ingest has finished, and its log was pruned since; nothing was changed (--again reads "
        "new files)"
    )
    lines = before_lines(pruned, is_again=True, now_us=0)
    assert lines == ["job ingest has finished; it is opened again"]


FINISHED = replace(STREAMING, end=JobEnd.FINISHED, ended_us=1_700_000_000_000_000)
FAILED = replace(
    STREAMING,
    end=JobEnd.FAILED,
    ended_us=1_700_000_000_000_000,
    last_failure="ValueError: no rows today\nTraceback",
)


@pytest.mark.parametrize(
    ("before", "is_again", "lines"),
    [
        (Progress(), True, []),
        (STREAMING, False, []),
        (STREAMING, True, ["job ingest has not finished: it continues, and is not opened again"]),
        (
            FINISHED,
            True,
            ["job ingest finished at 2023-11-14T22:13:20.000000Z; it is opened again"],
        ),
        (
            FAILED,
            False,
            [
                "job ingest failed at 2023-11-14T22:13:20.000000Z: ValueError: no rows today",
                "it continues, with a fresh count of failures",
            ],
        ),
    ],
)
def test_how_a_job_had_ended_is_told_before_it_goes_on(
    before: Progress, lines: list[str], *, is_again: bool
) -> None:
    assert before_lines(before, is_again=is_again, now_us=0) == lines


def test_a_history_that_is_ahead_of_the_clock_is_told_with_the_seconds() -> None:
    now_us = 1_700_000_000_000_000
    ahead = replace(STREAMING, last_us=now_us + 7_200_000_000)

    (line,) = before_lines(ahead, is_again=False, now_us=now_us)

    assert "7,200 s ahead of this machine's clock" in line
    assert "2023-11-15T00:13:20.000000Z" in line
    assert not before_lines(
        replace(ahead, last_us=now_us + 30_000_000), is_again=False, now_us=now_us
    )


def test_a_job_that_was_opened_again_says_what_this_time_has_brought() -> None:
    again = replace(FINISHED, openings=3, rows_before=1_000, files_before=6)

    assert "  this time    234 rows in 2 files; opened 3 times" in summary_lines(again, AROUND)
    assert not any("this time" in line for line in summary_lines(FINISHED, AROUND))


def test_of_a_pruned_log_each_summary_says_since_when_it_counts() -> None:
    pruned = replace(STREAMING, is_pruned=True)
    line = "               the numbers are counted since its log was pruned"

    assert line in summary_lines(pruned, AROUND)
    assert line in stopped_lines(pruned, AROUND, stop_checkpoint=7)
    assert line not in summary_lines(STREAMING, AROUND)


def test_the_summary_has_counts_checkpoints_attempts_and_next_commands() -> None:
    finished = replace(STREAMING, end=JobEnd.FINISHED)

    assert summary_lines(finished, AROUND) == [
        "ingested 1,234 rows into /data/out: 8 files, 56.8 kB, in 12.3 s",
        "  splits       2 of 3 finished, 1 read again after that",
        "  checkpoints  6 completed, 1 aborted; the last is 7",
        "  attempts     5 started, 3 lost, by 2 drivers",
        "  history      ingest.log at 127.0.0.1:9092",
        "  look at it   coordlog history ingest --bootstrap-servers 127.0.0.1:9092",
        "               coordlog attempts ingest --bootstrap-servers 127.0.0.1:9092",
        "               coordlog splits ingest --bootstrap-servers 127.0.0.1:9092",
    ]


def test_the_summary_of_a_batch_job_has_no_checkpoints() -> None:
    lines = summary_lines(replace(BATCH, end=JobEnd.FINISHED, epoch=0), AROUND)

    assert not any("checkpoints" in line for line in lines)
    assert "  attempts     5 started, 3 lost, by 1 driver" in lines


@pytest.mark.parametrize(
    ("progress", "stop_checkpoint", "first"),
    [
        (
            STREAMING,
            7,
            (
                "stopped after checkpoint 7: 1,234 rows are published; "
                "run the same command again to continue"
            ),
        ),
        (
            STREAMING,
            None,
            (
                "stopped without a checkpoint of its own, rows read since checkpoint 7 are read "
                "again: 1,234 rows are published; run the same command again to continue"
            ),
        ),
        (
            BATCH,
            None,
            "stopped: 2 of 3 splits are finished and stay so; run the same command again to continue",
        ),
        (
            Progress(),
            None,
            (
                "stopped before the first checkpoint: nothing is published yet; "
                "run the same command again to continue"
            ),
        ),
    ],
)
def test_a_stopped_job_says_what_is_safe_and_how_to_go_on(
    progress: Progress, stop_checkpoint: int | None, first: str
) -> None:
    assert stopped_lines(progress, AROUND, stop_checkpoint=stop_checkpoint)[0] == first


def test_a_source_that_cannot_be_listed_is_shown_with_seconds_and_cause() -> None:
    failing = replace(
        STREAMING,
        listing_tries=2,
        listing_problem="SourceUnavailableError: s3://b: 503\nslow down",
        listing_failing_since_us=10_000_000,
        last_us=13_000_000,
    )

    assert not_listed_line(failing, 300.0) == (
        "the source cannot be listed for 3 of 300 s (SourceUnavailableError: s3://b: 503 slow down); "
        "it is tried again, and known splits are read meanwhile"
    )


def test_bad_rows_are_told_with_their_number_their_splits_and_their_place() -> None:
    work = FinishedWork(subtask=0, last_barrier=-1, is_kept=False, rows=5, bytes_read=9, rejected=3)
    bad = replace(FINISHED, rejected=3, finished=Map({"a": work, "b": replace(work, rejected=0)}))
    there = replace(AROUND, rejects="/bad")

    assert "  bad rows     3 in 1 split, left out" in summary_lines(bad, AROUND)
    assert "  bad rows     3 in 1 split, written to /bad" in summary_lines(bad, there)
    assert not any("bad rows" in line for line in summary_lines(FINISHED, there))
    assert "3 bad rows" in progress_line(bad, Rates(rows=0.0, read_bytes=0.0), 0)
