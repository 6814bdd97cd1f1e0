"""A job that has finished is opened again in the same history: new files alone are read, whatever dies meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from coordlog.errors import JobFailedError
from coordlog.projections.tables.audit import audit
from coordlog.projections.tables.progress import JobEnd, progress
from coordlog.projections.tables.splits import SplitPlace
from coordlog.runtime.driver import JobDriver, JobStatus
from coordlog.schemas.record import Kind, Record
from coordlog.testing.in_memory import InMemorySurroundings
from examples.demo_parts.follow import Follower
from jobs.file_pipeline import ALL_ROWS, FILES, ROWS, KilledError, Pipeline, at, kill_driver

pytestmark = pytest.mark.slow

MORE = range(FILES, FILES + 12)
ROWS_OF_BOTH = list(range(MORE.stop * ROWS))


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.002)  # so that a kill falls in the middle; nothing waits for it
    return batch


@pytest.fixture(params=[False, True], ids=["streaming", "batch"])
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> Pipeline:
    """A job that has finished, with files that have come since."""
    pipeline = Pipeline(tmp_path, is_batch=request.param, transform=slowly)
    assert pipeline.drive().status is JobStatus.FINISHED
    pipeline.add_files(MORE)
    return pipeline


def history(pipeline: Pipeline) -> list[Record]:
    follower = Follower(pipeline.log)
    follower.catch_up()
    return follower.records


def published(pipeline: Pipeline) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in pipeline.out.glob("*.parquet")}


def test_without_being_asked_for_it_changes_nothing(finished: Pipeline) -> None:
    before, files = finished.log.high_watermark(), published(finished)

    assert finished.drive().status is JobStatus.ALREADY_FINISHED
    assert finished.log.high_watermark() == before
    assert published(finished) == files


def test_it_reads_the_new_files_alone_and_leaves_what_is_published(finished: Pipeline) -> None:
    files = published(finished)

    result = finished.drive(again=True)

    assert result.status is JobStatus.FINISHED
    assert finished.restored[-1].mode == "again"
    assert finished.committed() == ROWS_OF_BOTH
    assert finished.left_over() == []
    after = published(finished)
    assert {name: after[name] for name in files} == files
    assert len(after) > len(files)
    found = audit(finished.log.read(0, finished.log.high_watermark()))
    assert len(found.splits) == MORE.stop
    assert {one.place for one in found.splits} == {SplitPlace.COMMITTED}
    assert all(len(one.assignments) == 1 for one in found.splits), "no split is read twice"


def test_with_nothing_new_it_ends_and_may_be_opened_any_number_of_times(
    finished: Pipeline,
) -> None:
    for _ in range(3):
        assert finished.drive(again=True).status is JobStatus.FINISHED
    for path in finished.folder.iterdir():
        path.unlink()  # moved to an archive, say
    assert finished.drive(again=True).status is JobStatus.FINISHED

    assert finished.committed() == ROWS_OF_BOTH
    seen = progress(history(finished))
    assert (seen.openings, seen.end) == (5, JobEnd.FINISHED)
    assert (seen.rows_before, seen.rows_published) == (len(ROWS_OF_BOTH), len(ROWS_OF_BOTH))


def fail_globally(driver: JobDriver, _tasks: InMemorySurroundings) -> None:
    runtime = driver._runtime
    assert runtime is not None
    runtime.fail_job("source", "scripted")


def kill_subtask(_driver: JobDriver, tasks: InMemorySurroundings) -> None:
    tasks.kill(1)


@pytest.mark.parametrize("act", [fail_globally, kill_subtask])
@pytest.mark.parametrize("after", [1, 6])
def test_a_failover_goes_back_to_the_opening_and_no_further(
    finished: Pipeline,
    act: Callable[[JobDriver, InMemorySurroundings], None],
    after: int,
) -> None:
    """Before its first checkpoint, in batch always, nothing older may be undone, or read again."""
    result = finished.drive(at(Kind.SPLIT_FINISHED, after, act), again=True)

    assert result.status is JobStatus.FINISHED
    assert finished.committed() == ROWS_OF_BOTH
    assert finished.left_over() == []
    found = audit(finished.log.read(0, finished.log.high_watermark()))
    assert {one.place for one in found.splits} == {SplitPlace.COMMITTED}
    assert all(len(one.assignments) == 1 for one in found.splits[:FILES])
    seen = progress(history(finished))
    assert (seen.rows, seen.rows_published) == (len(ROWS_OF_BOTH), len(ROWS_OF_BOTH))


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        (Kind.COORDINATORS_STARTED, 1),
        (Kind.FACT, 1),
        (Kind.ATTEMPT_STARTED, 1),
        (Kind.SPLIT_FINISHED, 1),
        (Kind.SPLIT_FINISHED, 9),
        (Kind.COMMIT_INTENT, 1),
    ],
)
def test_a_driver_that_dies_in_it_is_followed_by_one_that_goes_on(
    finished: Pipeline, kind: Kind, after: int
) -> None:
    """The next command may say `again` or not: the job is open."""
    with pytest.raises(KilledError):
        finished.drive(at(kind, after, kill_driver), again=True)
    result = finished.drive(again=after % 2 == 0)

    assert result.status in (JobStatus.FINISHED, JobStatus.ALREADY_FINISHED)
    assert finished.committed() == ROWS_OF_BOTH
    assert finished.left_over() == []


def test_another_parallelism_is_taken(finished: Pipeline) -> None:
    assert finished.drive(again=True, parallelism=5).status is JobStatus.FINISHED
    finished.add_files(range(MORE.stop, MORE.stop + 3))
    result = finished.drive(at(Kind.SPLIT_FINISHED, 1, fail_globally), again=True, parallelism=2)

    assert result.status is JobStatus.FINISHED
    assert finished.committed() == list(range((MORE.stop + 3) * ROWS))
    numbers = [
        (one.subtask, one.attempt_number)
        for one in history(finished)
        if one.kind is Kind.ATTEMPT_STARTED
    ]
    assert len(set(numbers)) == len(numbers), "no attempt number is used twice"


def test_a_file_that_has_grown_since_fails_it_by_name_and_both_lengths(finished: Pipeline) -> None:
    grown = finished.folder / "003.csv"
    was = grown.stat().st_size
    with grown.open("a", encoding="utf-8") as file:
        file.write("99999,late\n")

    with pytest.raises(
        JobFailedError,
        match=rf"003.csv: it has changed .*: it has {was + 11} bytes; it had {was}",
    ):
        finished.drive(again=True, restarts_max=0)

    assert finished.committed() == ALL_ROWS


def test_new_files_of_another_header_fail_it_and_those_of_wider_values_too(
    finished: Pipeline,
) -> None:
    """The schema is that of the first opening: all files of a destination have one."""
    other = finished.folder / "zzz.csv"
    other.write_text("a,c\n1,2\n", encoding="utf-8")
    with pytest.raises(JobFailedError, match=r"zzz.csv: its schema is not .*: it has 'c'"):
        finished.drive(again=True, restarts_max=0)
    other.write_text("a,b\nnot a number,2\n", encoding="utf-8")
    with pytest.raises(JobFailedError, match=r"zzz\.csv"):
        finished.drive(restarts_max=0)
    other.unlink()

    assert finished.drive().status is JobStatus.FINISHED
    assert finished.committed() == ROWS_OF_BOTH


@pytest.mark.clause("J2")
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_skipped_file_stays_skipped_and_is_read_under_another_name(
    tmp_path: Path, *, is_batch: bool
) -> None:
    pipeline = Pipeline(tmp_path, is_batch=is_batch, transform=slowly)
    pipeline.skip_unreadable()
    bad = pipeline.folder / "003.csv"
    whole = bad.read_text(encoding="utf-8")
    bad.write_text(whole.replace(",x120\n", ",x120,more\n"), encoding="utf-8")
    lost = set(range(3 * ROWS, 4 * ROWS))
    first = pipeline.drive()
    assert [Path(one.split_id).name for one in first.skipped_splits] == ["003.csv"]
    assert pipeline.committed() == [row for row in ALL_ROWS if row not in lost]

    pipeline.add_files(MORE)
    again = pipeline.drive(again=True)
    assert again.status is JobStatus.FINISHED
    bad.write_text(whole, encoding="utf-8")  # mended
    assert pipeline.drive(again=True).status is JobStatus.FINISHED
    assert [Path(one.split_id).name for one in again.skipped_splits] == ["003.csv"]
    assert pipeline.committed() == [row for row in ROWS_OF_BOTH if row not in lost]

    bad.rename(bad.with_name("003-mended.csv"))
    assert pipeline.drive(again=True).status is JobStatus.FINISHED
    assert pipeline.committed() == ROWS_OF_BOTH
