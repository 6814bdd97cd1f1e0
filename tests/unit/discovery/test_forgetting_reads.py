"""Queries of a watched folder: files that all streams have committed are released, and names of old ones forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordlog.errors import OptionError, RequestRefusedError
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.projections.splits.query_reads import ReadsState
from coordlog.projections.tables.audit import audit_records
from coordlog.projections.tables.reads import reads_and_streams
from coordlog.schemas.reads import ReadsProblem
from coordlog.schemas.source_types import KnownSplitsForgotten, ReleaseSplits, SplitsReleased
from coordlog.spark_integration.files.payloads import FilesLeftOut
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from data.file_times import DriverTime
from jobs.reads_job import Outside, ReadsJob, plan_request
from jobs.watched_reads import Service, write


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> DriverTime:
    return DriverTime(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def archiving(folder: Path) -> dict[str, Any]:
    return {"after_commit": f"archive:{folder.parent / 'done'}"}


# --- released files -------------------------------------------------------------------------------
def test_files_go_once_a_stream_has_committed_them_and_no_sooner(folder: Path) -> None:
    write(folder, "a.csv", "b.csv", "c.csv")
    service = Service(folder, **archiving(folder))
    service.list_files(2)
    assert service.read(0, 2) == ["a.csv", "b.csv"]
    service.read(2, 3)
    service.list_files()
    assert names_in(folder) == ["a.csv", "b.csv", "c.csv"]

    service.commit(2)
    service.list_files()
    assert names_in(folder) == ["c.csv"]
    assert names_in(folder.parent / "done") == ["a.csv", "b.csv"]
    assert service.known == ["c.csv"]
    assert service.read(2, 3) == ["c.csv"], "the last batch may run again"
    codec = DerivedCodec(ReadsState)
    assert codec.decode(codec.encode(service.state)) == service.state


def test_the_position_of_a_query_that_starts_again_is_no_commit(folder: Path) -> None:
    """Spark plans an empty range up to its newest position; its driver died before it had planned that batch."""
    write(folder, "a.csv", "b.csv", "c.csv")
    service = Service(folder, **archiving(folder))
    service.list_files(2)
    assert service.read(2, 2) == []
    service.list_files()

    assert names_in(folder) == ["a.csv", "b.csv", "c.csv"]
    assert service.look().first == 0, "the query begins with its first batch"
    assert service.read(0, 2) == ["a.csv", "b.csv"]
    log = service.job.log
    rows, (stream,) = reads_and_streams(audit_records(log.read(0, log.high_watermark())))
    assert [row.read_id for row in rows] == ["q:0-2"]
    assert stream.committed == 0


def test_an_empty_first_batch_keeps_the_files_that_its_stream_has_not_read(folder: Path) -> None:
    """Spark runs the first batch of a query also if it has no rows, and commits it with the second."""
    service = Service(folder, **archiving(folder))
    service.list_files()
    assert service.read(0, 0, reader="late", follows="late") == []
    write(folder, "a.csv", "b.csv")
    service.list_files(2)
    service.read(0, 2)
    service.commit(2)
    service.list_files()

    assert names_in(folder) == ["a.csv", "b.csv"]
    assert service.read(0, 2, reader="late", follows="late") == ["a.csv", "b.csv"]
    log = service.job.log
    rows, _ = reads_and_streams(audit_records(log.read(0, log.high_watermark())))
    assert [row.read_id for row in rows] == ["late:0-0", "q:0-2", "late:0-2"]


def test_a_file_with_the_name_of_a_released_one_is_a_new_file(folder: Path) -> None:
    write(folder, "a.csv", "b.csv")
    service = Service(folder, after_commit="delete")
    service.list_files(2)
    service.read(0, 2)
    service.commit(2)
    service.list_files()
    write(folder, "a.csv", day=1, text="i\n7\n")
    service.list_files(2)

    assert service.known == ["a.csv"]
    assert service.read(2, 3) == ["a.csv"]
    service.commit(3)
    service.list_files()
    assert names_in(folder) == service.known == []
    assert (service.state.split_count, len(service.state.numbers)) == (3, 0)


def test_a_replaced_file_waits_for_the_release_of_the_one_that_was_read(folder: Path) -> None:
    write(folder, "a.csv")
    service = Service(folder, after_commit="delete")
    service.list_files(2)
    service.read(0, 1)
    service.commit(1)
    write(folder, "a.csv", day=1)
    service.list_files(2)
    assert service.payloads(ReadsProblem) == []
    service.list_files(2)

    assert names_in(folder) == ["a.csv"], "exactly the file that was read is deleted, or none"
    assert service.payloads(SplitsReleased)[0].unreleased
    assert "it has changed since it was listed" in service.payloads(ReadsProblem)[0].problem


def test_a_file_of_two_streams_goes_when_both_have_committed_it(folder: Path) -> None:
    write(folder, "a.csv", "b.csv")
    service = Service(folder, after_commit="delete")
    service.list_files(2)
    service.read(0, 2)
    service.read(0, 1, reader="slow")
    service.commit(2)
    service.list_files()
    assert names_in(folder) == ["a.csv", "b.csv"]
    assert service.state.first == 0

    service.commit(1, reader="slow")
    service.list_files()
    assert names_in(folder) == ["b.csv"]
    assert service.read(1, 2, reader="slow") == ["b.csv"]


def test_a_stream_that_begins_after_a_release_is_refused(folder: Path) -> None:
    """Also before the outcome: the intent is in the log, and the files may be gone."""
    write(folder, "a.csv", "b.csv")
    service = Service(folder, after_commit="delete")
    service.list_files(2)
    service.read(0, 1)
    service.commit(1)

    assert service.look(after=0).first == 1
    with pytest.raises(RequestRefusedError, match=r"0 to 2 were requested, .* has 1 to 2"):
        service.read(0, 2, reader="late")
    service.list_files()
    with pytest.raises(RequestRefusedError, match="under a job id of its own"):
        service.read(0, 2, reader="late")


def test_a_batch_dataframe_is_refused_by_a_service_that_releases(folder: Path) -> None:
    write(folder, "a.csv")
    service = Service(folder, after_commit="delete")
    service.list_files(2)
    with pytest.raises(RequestRefusedError, match="a batch DataFrame has no commit, and with"):
        service.asked(plan_request()).answer()


def test_nothing_goes_that_no_stream_has_committed(folder: Path) -> None:
    """Batch reads of a service without the option, and a stream that was abandoned in its first batch."""
    write(folder, "a.csv", "b.csv")
    service = Service(folder)
    service.list_files(2)
    service.task(service.plan(partitions=1), 0).run()
    service.read(0, 2)
    service = service.crash(folder, after_commit="delete", abandoned=("q",))
    service.list_files(2)
    assert names_in(folder) == ["a.csv", "b.csv"]

    assert service.read(0, 1, reader="other") == ["a.csv"]
    service.commit(1, reader="other")
    service.list_files()
    assert names_in(folder) == ["b.csv"]


@pytest.mark.parametrize("has_option", [True, False])
def test_the_next_service_ends_a_release(folder: Path, *, has_option: bool) -> None:
    """The driver dies with the intent in the log."""
    write(folder, "a.csv", "b.csv")
    service = Service(folder, **archiving(folder))
    service.list_files(2)
    service.read(0, 1)
    service.commit(1)
    assert len(service.payloads(ReleaseSplits)) == 1
    assert names_in(folder) == ["a.csv", "b.csv"]

    service = service.crash(folder, **(archiving(folder) if has_option else {}))
    service.list_files(2)
    assert names_in(folder) == ["b.csv"]
    assert names_in(folder.parent / "done") == ["a.csv"]
    assert service.known == ["b.csv"]
    assert service.read(1, 2, reader="r", follows="q") == ["b.csv"]


def test_a_service_that_keeps_files_lists_after_an_open_release(
    folder: Path,
) -> None:
    """The driver dies after it has moved a file, and before the outcome; another file takes the name."""
    write(folder, "a.csv")
    service = Service(folder, **archiving(folder))
    service.list_files(2)
    service.read(0, 1)
    service.commit(1)
    (folder.parent / "done").mkdir()
    (folder / "a.csv").rename(folder.parent / "done" / "a.csv")
    write(folder, "a.csv", day=1, text="i\n7\n7\n")
    service = service.crash(folder)
    service.list_files()
    service.job.advance(1.0)
    service.list_files(2)
    assert service.payloads(ReadsProblem) == []
    assert service.read(1, 2, reader="r", follows="q") == ["a.csv"]


def test_a_service_that_gets_the_option_releases_earlier_commits(folder: Path) -> None:
    write(folder, "a.csv", "b.csv")
    service = Service(folder)
    service.list_files(2)
    service.read(0, 1)
    service.commit(1)
    service = service.crash(folder, after_commit="delete")
    service.list_files()

    assert names_in(folder) == ["b.csv"]


def test_a_file_of_several_splits_goes_with_its_last_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f'{{"i": {number}}}\n' for number in range(40))
    write(folder, "a.jsonl", text=lines)
    coordinated = FileSource(
        folder,
        format="jsonl",
        schema="i bigint",
        split_bytes=len(lines) // 3,
        watch=Watch(watch_interval_s=0.01, after_commit="delete"),
    ).coordinated()
    monkeypatch.setattr(FileSource, "coordinated", lambda _self: coordinated)
    service = Service(folder)
    service.list_files(2)
    count = service.state.split_count
    assert count > 1
    for number in range(count):
        service.read(number, number + 1)
        assert names_in(folder) == ["a.jsonl"]
        service.commit(number + 1)
        service.list_files()
    assert names_in(folder) == []


@pytest.mark.parametrize("option", ["max_file_age", "after_commit"])
def test_a_schema_is_needed_that_outlives_forgotten_files(folder: Path, option: str) -> None:
    watch = Watch(**{option: "30d" if option == "max_file_age" else "delete"})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=rf"{option}.*set with `schema=`"):
        FileSource(folder, watch=watch).coordinated()
    FileSource(folder, format="text", watch=watch).coordinated()


# --- old files ------------------------------------------------------------------------------------
AGE: dict[str, Any] = {"max_file_age": "10d"}


def test_old_files_are_left_out_of_batches_and_streams(folder: Path) -> None:
    write(folder, "old.csv", day=-12)
    write(folder, "new.csv", day=-1)
    service = Service(folder, **AGE)
    service.list_files(2)

    assert service.known == ["new.csv"]
    assert [Path(name).name for name in service.payloads(FilesLeftOut)[0].paths] == ["old.csv"]
    assert service.task(service.plan(partitions=1), 0).run() == [str(folder / "new.csv")]
    assert service.read(0, 1) == ["new.csv"]


def aged(folder: Path, now: DriverTime) -> Service:
    """A service with a.csv and b.csv, of day 0, c.csv, of day 9, and z.csv, of day 11; the limit is day 1."""
    write(folder, "a.csv", "b.csv")
    write(folder, "c.csv", day=9)
    now.days = 9
    service = Service(folder, **AGE)
    service.list_files(2)
    now.days = 11
    write(folder, "z.csv", day=11)
    return service


def test_names_of_old_files_are_forgotten_once_all_streams_have_them(
    folder: Path, now: DriverTime
) -> None:
    service = aged(folder, now)
    service.list_files(3)
    assert service.known == ["a.csv", "b.csv", "c.csv", "z.csv"], "no query has read them"
    service.read(0, 4)
    service.read(0, 1, reader="slow")
    service.commit(4)
    service.list_files(2)
    assert service.known == ["a.csv", "b.csv", "c.csv", "z.csv"]

    service.commit(1, reader="slow")
    service.list_files(2)
    assert service.known == ["b.csv", "c.csv", "z.csv"]
    assert service.read(1, 4, reader="slow") == ["b.csv", "c.csv", "z.csv"]
    service.commit(4, reader="slow")
    service.list_files(3)
    assert service.known == ["c.csv", "z.csv"]
    assert len(service.payloads(KnownSplitsForgotten)) == 2
    service = service.crash(folder, **AGE)
    service.list_files(3)
    assert service.known == ["c.csv", "z.csv"], "they are not found again"
    end = service.look(after=0)
    assert (end.first, end.end) == (0, 4)


def test_a_query_that_begins_later_leaves_forgotten_files_out(
    folder: Path, now: DriverTime
) -> None:
    service = aged(folder, now)
    service.list_files()
    service.read(0, 3)
    service.commit(3)
    service.list_files(3)
    assert service.known == ["c.csv", "z.csv"]

    assert service.read(0, 2, reader="late") == []
    assert service.read(2, 4, reader="late") == ["c.csv", "z.csv"]
    read = service.plan("batch", partitions=2)
    tasks = [service.task(read, number) for number in range(read.partitions)]
    assert sorted(Path(name).name for task in tasks for name in task.run()) == ["c.csv", "z.csv"]
    with pytest.raises(RequestRefusedError, match="1 of the splits 1 to 4 are forgotten"):
        service.read(1, 4, reader="stale", follows="unknown")


def test_a_batch_read_keeps_its_files_until_its_service_ends(folder: Path, now: DriverTime) -> None:
    service = aged(folder, now)
    read = service.plan("batch", partitions=2)
    task = service.task(read, 0)
    task.step()
    service.list_files(4)
    assert service.known == ["a.csv", "b.csv", "c.csv", "z.csv"]
    other = service.task(read, 1)
    assert len({*task.run(), *other.run()}) == 3

    service = service.crash(folder, **AGE)
    service.list_files(3)
    assert service.known == ["c.csv", "z.csv"], "z.csv is in no read"


def test_the_limit_stays_in_force_without_the_option(folder: Path, now: DriverTime) -> None:
    service = aged(folder, now)
    service.list_files()
    service.read(0, 3)
    service.commit(3)
    service.list_files(3)
    service.job.crash()
    former = service.job.log
    bounded = ReadsJob(
        Outside(), log=former, source=FileSource(folder, schema="i bigint").coordinated()
    )
    known = sorted(Path(name).name for name in bounded.state.numbers)
    assert known == ["c.csv", "z.csv"]


def test_a_dataframe_has_the_schema_of_files_that_were_forgotten(
    folder: Path, now: DriverTime
) -> None:
    """Later splits have it too: a schema inferred from the present files may have other columns."""
    service = aged(folder, now)
    service.list_files(2)
    service.read(0, 4)
    service.commit(4)
    now.days = 30
    write(folder, "new.csv", day=30)
    service.list_files()
    (folder / "new.csv").unlink()
    service.list_files(2)
    assert service.known == []
    for name in names_in(folder):
        write(folder, name, text="other\nx\n")

    later = FileSource(folder, watch=Watch()).coordinated()
    assert later.settle_schema(service.state.kept).names == ["i"]
    assert later.settle_schema(None).names == ["other"]


def test_an_idle_stream_has_the_same_position_after_forgetting(
    folder: Path, now: DriverTime
) -> None:
    service = aged(folder, now)
    service.list_files(2)
    before = service.look(after=0)
    service.read(0, 4)
    service.commit(4)
    now.days = 30
    write(folder, "new.csv", day=30)
    service.list_files()  # the limit rises, and a new file is known only after another listing
    (folder / "new.csv").unlink()
    service.list_files(2)

    after = service.look(after=0)
    assert service.known == []
    assert (after.end, after.sequence) == (before.end, before.sequence)
