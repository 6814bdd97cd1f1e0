"""The Parquet sink publishes each file once, and touches nothing that is not its own."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import pickle
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.api.coordinator import CommittableOf
from coordlog.api.operator import Operator, Snapshot
from coordlog.errors import OptionError, SinkError, UsageError
from coordlog.schemas.payload import payload_type_of
from coordlog.spark_integration.files.payloads import FilesPublished, PublishFiles, StagedFile
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.store.durable import write_once
from fakes.chain_fakes import FakeContext

JOB = "ingest"


class Crash(BaseException):
    """The process ends here."""


def rows(*values: int | None) -> pa.RecordBatch:
    return pa.record_batch({"i": pa.array(values, pa.int64())})


def opened(sink: ParquetSink, context: FakeContext | None = None) -> Operator:
    writer = sink.spec().create_operator()
    writer.open(context or FakeContext(job_id=JOB), None)
    return writer


def staged_of(snapshot: Snapshot) -> list[StagedFile]:
    kind = payload_type_of(StagedFile)
    return [cast("StagedFile", kind.decode(one)) for one in snapshot.committables]


def intent_of(sink: ParquetSink, *snapshots: Snapshot) -> PublishFiles:
    return sink.make_intent(
        7,
        [
            CommittableOf(subtask=0, attempt_number=0, split_id=None, content=one)
            for snapshot in snapshots
            for one in snapshot.committables
        ],
    )


def published(sink: ParquetSink) -> list[str]:
    return sorted(one.name for one in sink.path.iterdir() if not one.name.startswith("."))


def staged_files(sink: ParquetSink) -> list[str]:
    below = sink.path / ".coordlog/staging"
    return sorted(str(one.relative_to(sink.path)) for one in below.rglob("*") if one.is_file())


def refusal(do: Callable[[], object]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        do()
    assert caught.value.next_step
    return caught.value


@pytest.fixture
def sink(tmp_path: Path) -> ParquetSink:
    made = ParquetSink(tmp_path / "out")
    made.prepare(JOB)
    return made


@pytest.fixture
def three_files(sink: ParquetSink) -> PublishFiles:
    writer = opened(sink)
    snapshots: list[Snapshot] = []
    for i in range(3):
        list(writer.process(rows(i, i + 10)))
        snapshots.append(writer.snapshot_state(i))
    writer.close()
    return intent_of(sink, *snapshots)


# --- writing --------------------------------------------------------------------------------------
def test_what_is_handed_over_is_a_whole_file_under_a_hidden_name(sink: ParquetSink) -> None:
    writer = opened(sink, FakeContext(job_id=JOB, driver_id="d-1", subtask=3, attempt_number=2))
    assert list(writer.process(rows(1, 2))) == []
    assert list(writer.process(rows(3))) == []
    (staged,) = staged_of(writer.snapshot_state(1))

    assert staged.staged == ".coordlog/staging/d-1/3-2-0.parquet"
    assert staged.final.startswith("part-00003-002-00000-")
    assert staged.rows == 3
    assert staged.size_bytes == (sink.path / staged.staged).stat().st_size
    assert pq.read_table(sink.path / staged.staged)["i"].to_pylist() == [1, 2, 3]
    assert published(sink) == []


@pytest.mark.parametrize("end", ["snapshot_state", "end_of_split", "final_snapshot"])
def test_each_interval_makes_one_file_and_an_empty_one_makes_none(
    end: str, sink: ParquetSink
) -> None:
    writer = opened(sink)
    ends: dict[str, Callable[[], Snapshot]] = {
        "snapshot_state": lambda: writer.snapshot_state(1),
        "end_of_split": lambda: writer.end_of_split("s"),
        "final_snapshot": writer.final_snapshot,
    }
    assert ends[end]() == Snapshot()
    list(writer.process(rows()))
    assert ends[end]() == Snapshot()
    list(writer.process(rows(1)))
    (first,) = staged_of(ends[end]())
    assert ends[end]() == Snapshot()
    list(writer.process(rows(2)))
    (second,) = staged_of(ends[end]())

    assert staged_files(sink) == [first.staged, second.staged]


def test_a_file_and_its_name_are_on_disk_before_it_is_handed_over(
    sink: ParquetSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(sink)
    list(writer.process(rows(1)))
    synced: list[tuple[bool, int]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((stat.S_ISDIR(found.st_mode), found.st_size))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    (staged,) = staged_of(writer.snapshot_state(1))

    assert synced[0] == (False, staged.size_bytes), "first all of the content"
    assert synced[1][0], "then the folder that holds its name"


@pytest.mark.clause("M5")
def test_no_two_attempts_share_a_name(sink: ParquetSink) -> None:
    names: list[tuple[str, str]] = []
    for driver_id in ("driver-1", "driver-10", "other"):
        for subtask in (0, 1, 11):
            for attempt_number in (0, 1, 11):
                writer = opened(
                    sink,
                    FakeContext(
                        job_id=JOB,
                        driver_id=driver_id,
                        subtask=subtask,
                        attempt_number=attempt_number,
                    ),
                )
                list(writer.process(rows(1)))
                names += [(one.staged, one.final) for one in staged_of(writer.final_snapshot())]

    assert len(names) == len({staged for staged, _ in names}) == len({f for _, f in names}) == 27


def test_close_removes_what_was_not_handed_over_and_nothing_else(sink: ParquetSink) -> None:
    small = ParquetSink(sink.path, row_group_rows=2)
    writer = opened(small)
    list(writer.process(rows(1)))
    (kept,) = staged_of(writer.snapshot_state(1))
    list(writer.process(rows(2, 3, 4)))
    assert len(staged_files(sink)) == 2
    writer.close()

    assert staged_files(sink) == [kept.staged]


def test_a_row_group_is_written_when_enough_rows_are_held(sink: ParquetSink) -> None:
    writer = opened(ParquetSink(sink.path, row_group_rows=4))
    for i in range(10):
        list(writer.process(rows(i)))
    (staged,) = staged_of(writer.snapshot_state(1))
    metadata = pq.read_metadata(sink.path / staged.staged)

    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [4, 4, 2]


def test_a_writer_where_no_driver_has_prepared_refuses(tmp_path: Path) -> None:
    error = refusal(lambda: opened(ParquetSink(tmp_path / "out")))

    assert "no job has made it ready, as this machine sees it" in error.problem


def test_a_full_disk_is_an_error_with_path_and_number(sink: ParquetSink) -> None:
    """A limit on the size of files stands for the disk: the kernel itself refuses the write."""
    writer = opened(ParquetSink(sink.path, compression="none", row_group_rows=1000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        error = refusal(lambda: list(writer.process(rows(*range(5000)))))
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert error.where.endswith("/.coordlog/staging/driver-a/0-0-0.parquet")
    assert "[errno 27] File too large" in error.problem
    assert staged_files(sink) == []


def test_a_folder_that_cannot_be_written_is_an_error_with_its_number(sink: ParquetSink) -> None:
    (sink.path / ".coordlog/staging/driver-a").write_text("in the way")

    error = refusal(lambda: opened(sink))
    assert error.where == str(sink.path / ".coordlog/staging/driver-a")
    assert "[errno 17] File exists" in error.problem


# --- one schema -----------------------------------------------------------------------------------
def test_all_files_have_the_schema_of_the_first_rows(sink: ParquetSink) -> None:
    first, second = opened(sink), opened(sink, FakeContext(job_id=JOB, subtask=1))
    list(first.process(pa.record_batch({"i": [1], "s": pa.array([None], pa.string())})))
    list(second.process(pa.record_batch({"i": [2.0], "s": pa.array([None], pa.null())})))
    files = [*staged_of(first.final_snapshot()), *staged_of(second.final_snapshot())]
    schemas = [pq.read_schema(sink.path / one.staged) for one in files]

    assert schemas[0] == schemas[1] == pa.schema({"i": pa.int64(), "s": pa.string()})


def test_a_column_that_does_not_fit_is_an_error_with_both_types(sink: ParquetSink) -> None:
    list(opened(sink).process(rows(1)))
    other = opened(sink, FakeContext(job_id=JOB, subtask=1))

    error = refusal(lambda: list(other.process(pa.record_batch({"i": ["x"]}))))
    assert "column 'i' is string and in the files int64" in error.problem
    error = refusal(lambda: list(other.process(pa.record_batch({"i": [1.5]}))))
    assert "column 'i' is double and in the files int64" in error.problem
    error = refusal(lambda: list(other.process(pa.record_batch({"j": [1]}))))
    assert "column 'j' of int64 is new; column 'i' of int64 is missing" in error.problem
    assert "`widen=True`" in error.next_step


def test_a_column_without_a_type_cannot_be_the_first(tmp_path: Path) -> None:
    nameless = pa.record_batch({"s": pa.array([None], pa.null())})
    sink = ParquetSink(tmp_path / "a")
    sink.prepare(JOB)
    assert "column 's' has no type" in str(refusal(lambda: list(opened(sink).process(nameless))))

    typed = ParquetSink(tmp_path / "b", schema=pa.schema({"s": pa.string()}))
    typed.prepare(JOB)
    writer = opened(typed)
    list(writer.process(nameless))
    (staged,) = staged_of(writer.final_snapshot())
    assert pq.read_schema(typed.path / staged.staged) == pa.schema({"s": pa.string()})


def test_another_schema_than_that_of_the_destination_is_refused_at_once(tmp_path: Path) -> None:
    ParquetSink(tmp_path / "o", schema=pa.schema({"s": pa.string()})).prepare(JOB)

    again = ParquetSink(tmp_path / "o", schema=pa.schema({"s": pa.int64()}))
    error = refusal(lambda: again.prepare(JOB))
    assert "`schema=` is s: int64; all files here have s: string" in error.problem


def test_what_spark_could_not_read_or_would_lose_is_written_or_refused(sink: ParquetSink) -> None:
    moment = dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)
    times = pa.array([moment], pa.timestamp("ns", "UTC"))
    writer = opened(sink)
    list(writer.process(pa.record_batch({"t": times})))
    (staged,) = staged_of(writer.snapshot_state(1))
    assert pq.read_schema(sink.path / staged.staged).field("t").type == pa.timestamp("us", "UTC")

    list(writer.process(pa.record_batch({"t": pa.array([1], pa.timestamp("ns", "UTC"))})))
    assert "rows cannot be written as Parquet" in refusal(lambda: writer.snapshot_state(2)).problem
    writer.close()


# --- publishing -----------------------------------------------------------------------------------
@pytest.mark.clause("H3")
def test_settling_gives_each_file_its_final_name(
    sink: ParquetSink, three_files: PublishFiles
) -> None:
    outcome = sink.settle(three_files)

    assert published(sink) == [one.final for one in three_files.files]
    assert staged_files(sink) == []
    assert outcome == FilesPublished(
        checkpoint_id=7,
        file_count=3,
        rows=6,
        size_bytes=sum(one.size_bytes for one in three_files.files),
    )
    table = pq.read_table(sink.path)
    assert sorted(table["i"].to_pylist()) == [0, 1, 2, 10, 11, 12]


@pytest.mark.clause("H3")
def test_settling_again_gives_the_same_outcome_and_changes_nothing(
    sink: ParquetSink, three_files: PublishFiles
) -> None:
    first = sink.settle(three_files)
    before = {one: (sink.path / one).stat().st_ino for one in published(sink)}

    assert sink.settle(three_files) == first
    assert {one: (sink.path / one).stat().st_ino for one in published(sink)} == before


@pytest.mark.clause("H3")
def test_a_crash_at_any_place_of_settling_is_made_good_by_the_next(tmp_path: Path) -> None:
    """The first run only lists the places; then each one is crashed at, and settled again."""
    places: list[str] = []
    for crash_at in range(-1, 100):
        sink = ParquetSink(tmp_path / str(crash_at))
        sink.prepare(JOB)
        writer = opened(sink)
        snapshots: list[Snapshot] = []
        for i in range(2):
            list(writer.process(rows(i)))
            snapshots.append(writer.snapshot_state(i))
        intent = intent_of(sink, *snapshots)
        passed = 0

        def at(place: str, crash_at: int = crash_at) -> None:
            nonlocal passed
            if crash_at < 0:
                places.append(place.split(" part", 1)[0].split(" .", 1)[0])
            elif passed == crash_at:
                raise Crash
            passed += 1

        if crash_at < 0:
            sink.settle(intent, at=at)
            continue
        if crash_at == len(places):
            break
        with pytest.raises(Crash):
            sink.settle(intent, at=at)

        outcome = sink.publish(intent)
        assert published(sink) == [one.final for one in intent.files]
        assert staged_files(sink) == []
        assert sorted(pq.read_table(sink.path)["i"].to_pylist()) == [0, 1]
        assert outcome.rows == 2

    assert places == [
        *["before link", "after link"] * 2,
        "after fsync",
        *["after unlink"] * 2,
    ]


@pytest.mark.clause("H3")
def test_no_staged_name_goes_before_the_final_one_is_on_disk(
    sink: ParquetSink, three_files: PublishFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_at_sync: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        left_at_sync.append(len(staged_files(sink)))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    sink.settle(three_files)

    assert left_at_sync == [3]


@pytest.mark.clause("H3")
def test_a_final_name_made_by_another_settler_is_synced_before_the_outcome(
    sink: ParquetSink, three_files: PublishFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in three_files.files:
        (sink.path / one.staged).rename(sink.path / one.final)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)

    sink.settle(three_files)
    assert len(synced) == 1


@pytest.mark.clause("H3")
@pytest.mark.parametrize("pause_at", range(9))
def test_a_second_settler_anywhere_within_the_first_has_the_effect_of_one(
    pause_at: int, sink: ParquetSink, three_files: PublishFiles
) -> None:
    passed = 0

    def at(_place: str) -> None:
        nonlocal passed
        if passed == pause_at:
            sink.settle(three_files)
        passed += 1

    sink.settle(three_files, at=at)

    assert published(sink) == [one.final for one in three_files.files]
    assert staged_files(sink) == []
    assert sorted(pq.read_table(sink.path)["i"].to_pylist()) == [0, 1, 2, 10, 11, 12]


@pytest.mark.clause("H3")
@pytest.mark.parametrize("what_the_other_did", ["linked", "linked and unlinked"])
def test_a_settler_that_looked_before_the_other_linked_finds_its_file(
    what_the_other_did: str,
    sink: ParquetSink,
    three_files: PublishFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other acts between this one's look and its link."""
    real = os.link

    def link(staged: Path, final: Path, **options: bool) -> None:
        real(staged, final)
        if what_the_other_did == "linked and unlinked":
            Path(staged).unlink()
        real(staged, final, **options)

    monkeypatch.setattr(os, "link", link)
    sink.settle(three_files)

    assert published(sink) == [one.final for one in three_files.files]
    assert staged_files(sink) == []


@pytest.mark.clause("H3")
def test_settlers_on_many_threads_have_the_effect_of_one(
    sink: ParquetSink, three_files: PublishFiles
) -> None:
    outcomes: list[FilesPublished] = []
    together = threading.Barrier(6)

    def settle() -> None:
        together.wait()
        outcomes.append(sink.publish(three_files))

    threads = [threading.Thread(target=settle) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert len(outcomes) == 6
    assert len({outcome.rows for outcome in outcomes}) == 1
    assert published(sink) == [one.final for one in three_files.files]
    assert staged_files(sink) == []


def test_other_content_under_a_final_name_is_an_error_with_both_checksums(
    sink: ParquetSink, three_files: PublishFiles
) -> None:
    one = three_files.files[1]
    other = bytearray((sink.path / one.staged).read_bytes())
    other[5] ^= 1
    (sink.path / one.final).write_bytes(other)

    error = refusal(lambda: sink.settle(three_files))
    assert error.where == str(sink.path / one.final)
    assert one.checksum in error.problem
    assert error.problem.count("with checksum") == 2
    assert (sink.path / one.final).read_bytes() == other, "it is not replaced"
    assert (sink.path / one.staged).exists(), "what was to be published is kept"


def test_a_file_with_neither_name_is_an_error_that_names_both(
    sink: ParquetSink, three_files: PublishFiles
) -> None:
    one = three_files.files[2]
    (sink.path / one.staged).unlink()

    error = refusal(lambda: sink.settle(three_files))
    assert error.where == str(sink.path / one.final)
    assert one.staged in error.problem


def test_a_staged_file_of_another_length_is_not_published(
    sink: ParquetSink, three_files: PublishFiles
) -> None:
    one = three_files.files[0]
    with (sink.path / one.staged).open("ab") as file:
        file.write(b"x")

    assert "it is damaged" in refusal(lambda: sink.settle(three_files)).problem
    assert published(sink) == []


def test_an_intent_without_files_is_settled(sink: ParquetSink) -> None:
    assert sink.publish(PublishFiles(checkpoint_id=3, files=[])).file_count == 0


@pytest.mark.parametrize(
    ("staged", "final"),
    [
        (".coordlog/staging/d/0-0-0.parquet", "../out.parquet"),
        (".coordlog/staging/d/0-0-0.parquet", "/etc/passwd"),
        (".coordlog/staging/d/0-0-0.parquet", "a/b.parquet"),
        (".coordlog/staging/d/0-0-0.parquet", ".hidden"),
        (".coordlog/staging/d/0-0-0.parquet", ""),
        (".coordlog/staging/../d/0-0-0.parquet", "a.parquet"),
        (".coordlog/staging/../0-0-0.parquet", "a.parquet"),
        (".coordlog/staging//0-0-0.parquet", "a.parquet"),
        (".coordlog/staging/d/../0-0-0.parquet", "a.parquet"),
        (".coordlog/owner.json", "a.parquet"),
        ("/etc/passwd", "a.parquet"),
        ("part-0.parquet", "a.parquet"),
    ],
)
def test_a_name_outside_of_its_place_is_refused(staged: str, final: str, sink: ParquetSink) -> None:
    one = StagedFile(staged=staged, final=final, size_bytes=1, checksum="", rows=1)

    error = refusal(lambda: sink.settle(PublishFiles(checkpoint_id=1, files=[one])))
    assert "is no name that a file of this sink may have" in error.problem


def test_a_link_in_the_place_of_a_file_or_folder_is_refused(
    sink: ParquetSink, three_files: PublishFiles, tmp_path: Path
) -> None:
    one = three_files.files[0]
    elsewhere = tmp_path / "elsewhere"
    (sink.path / one.staged).rename(elsewhere)
    (sink.path / one.staged).symlink_to(elsewhere)
    assert "not a regular file" in refusal(lambda: sink.settle(three_files)).problem

    folder = (sink.path / one.staged).parent
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert "leads out of the destination" in refusal(lambda: sink.settle(three_files)).problem
    with pytest.raises(SinkError, match="leads out of the destination"):
        sink.clean(driver_id="driver-a", subtask=0, attempt_number=0, keep=set())


# --- the destination ------------------------------------------------------------------------------
def test_a_destination_is_made_with_its_owner_in_it(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "a/b/out")
    sink.prepare(JOB)
    owner = json.loads((sink.path / ".coordlog/owner.json").read_text())

    assert owner["job_id"] == JOB
    assert set(owner) == {"job_id", "created"}
    assert published(sink) == []


def test_a_destination_is_taken_again_by_its_own_job_only(
    sink: ParquetSink, three_files: PublishFiles
) -> None:
    sink.settle(three_files)
    sink.prepare(JOB)

    error = refusal(lambda: sink.prepare("other"))
    assert "a destination that is not ours: it is of job 'ingest', this is job 'other'" in str(
        error
    )


def test_a_folder_that_holds_something_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")

    error = refusal(lambda: ParquetSink(tmp_path).prepare(JOB))
    assert "a destination that is not ours: it holds 1 names" in error.problem
    assert "'mine.txt'" in error.problem
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mine.txt"]


def test_a_destination_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")

    assert "is a file" in refusal(lambda: ParquetSink(tmp_path / "out").prepare(JOB)).problem


def test_a_place_where_nothing_can_be_made_is_an_error_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    error = refusal(lambda: ParquetSink(tmp_path / "file/out").prepare(JOB))
    assert "[errno 20] Not a directory" in error.problem


def test_of_two_jobs_that_take_a_destination_at_once_one_gets_it(tmp_path: Path) -> None:
    together = threading.Barrier(8)
    got: list[str] = []
    refused: list[SinkError] = []

    def take(job_id: str) -> None:
        together.wait()
        try:
            ParquetSink(tmp_path / "out").prepare(job_id)
            got.append(job_id)
        except SinkError as error:
            refused.append(error)

    threads = [threading.Thread(target=take, args=(f"job-{i}",)) for i in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert len(got) == 1
    assert len(refused) == 7
    assert all("not ours" in str(one) for one in refused)
    assert staged_files(ParquetSink(tmp_path / "out")) == []


def test_what_is_written_once_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "owner.json"

    assert write_once(path, b"first")
    assert not write_once(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_driver_that_died_while_it_took_a_destination_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "out/.coordlog").mkdir(parents=True)
    (tmp_path / "out/.coordlog/owner.json.0123.draft").write_text('{"job')

    ParquetSink(tmp_path / "out").prepare(JOB)


def test_an_owner_that_cannot_be_read_is_an_error(sink: ParquetSink) -> None:
    (sink.path / ".coordlog/owner.json").write_text("{")

    assert "does not hold the owner" in refusal(lambda: sink.prepare(JOB)).problem


@contextmanager
def links_that(monkeypatch: pytest.MonkeyPatch, link: Callable[..., None]) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        yield


def test_a_file_system_that_cannot_publish_without_replacing_is_refused(
    sink: ParquetSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_names: object) -> None:
        raise OSError(95, "Operation not supported")

    def replace(staged: Path, final: Path) -> None:
        final.write_bytes(staged.read_bytes())

    with links_that(monkeypatch, refuse):
        error = refusal(lambda: sink.prepare(JOB))
    assert "cannot publish a file without replacing one" in error.problem
    assert "[errno 95]" in error.problem
    with links_that(monkeypatch, replace):
        assert "replaces a name" in refusal(lambda: sink.prepare(JOB)).problem
    assert sorted(one.name for one in sink.path.iterdir()) == [".coordlog"]


def test_a_folder_of_another_user_is_not_called_an_unfit_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as a user that may write everywhere."""

    def refuse(path: Path, **_options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(SinkError, match=r"no file can be made there: .*Permission denied; allow"):
        ParquetSink(tmp_path).prepare("job")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://out", "memory://: its files are in the memory of one process"),
        ("gs://bucket/out", "gs://: the sink has no way there to publish a file without replacing"),
        ("http://host/out?token=secret", "http://: the sink has no way there"),
        ("simplecache::s3://bucket/out", "simplecache://: the sink has no way there"),
        ("s3://key:secret@bucket/out", "s3://: a URL with credentials"),
        ("s3://bucket/out?token=secret", "s3://: a URL with credentials or a query"),
        ("s3a://bucket/out#secret", "s3://: a URL with credentials or a query"),
    ],
)
def test_a_url_is_refused_by_name_with_the_reason(url: str, reason: str) -> None:
    error = refusal(lambda: ParquetSink(url))

    assert str(error).startswith(reason)
    assert "secret" not in str(error)


def test_a_url_of_a_store_or_of_this_machine_is_normalised() -> None:
    assert ParquetSink("file:///tmp/x").path == Path("/tmp/x")
    assert ParquetSink("/tmp/a/../x/").destination == "/tmp/x"
    assert ParquetSink("s3a://bucket/a/b/").destination == "s3://bucket/a/b"
    assert ParquetSink("s3://bucket").destination == "s3://bucket"
    with pytest.raises(UsageError, match="has no path on this machine"):
        _ = ParquetSink("s3://bucket").path
    for url in (
        "s3://",
        "s3://A_B/x",
        "s3://bucket/../other",
        "s3://bucket/a//b",
        "s3://bucket//a",
    ):
        with pytest.raises(OptionError):
            ParquetSink(url)


def test_options_that_cannot_be_are_refused_where_they_enter(tmp_path: Path) -> None:
    wrong: list[dict[str, object]] = [
        {"path": ""},
        {"compression": "brotli"},
        {"row_group_rows": 0},
        {"row_group_bytes": 0},
        {"roll_bytes": 0},
        {"roll_rows": 0},
        {"roll_seconds": 0.0},
        {"partition_by": ["a", "a"]},
        {"partition_by": "ab"},
        {"partition_by": [".a"]},
        {"partition_by": ["a"], "schema": pa.schema({"b": pa.int64()})},
    ]
    for options in wrong:
        with pytest.raises(OptionError):
            ParquetSink(**{"path": tmp_path, **options})  # type: ignore[arg-type]
    sink = ParquetSink(tmp_path / "o")
    sink.prepare(JOB)
    with pytest.raises(OptionError):
        opened(sink, FakeContext(job_id=JOB, driver_id="../../etc"))


def test_the_writer_travels_to_the_tasks(sink: ParquetSink) -> None:
    writer = pickle.loads(pickle.dumps(sink.spec().create_operator))()
    writer.open(FakeContext(job_id=JOB), None)
    list(writer.process(rows(1)))

    assert len(staged_of(writer.final_snapshot())) == 1


# --- cleaning -------------------------------------------------------------------------------------
def staged_by(sink: ParquetSink, driver_id: str, subtask: int, attempt_number: int) -> Snapshot:
    writer = opened(
        sink,
        FakeContext(
            job_id=JOB, driver_id=driver_id, subtask=subtask, attempt_number=attempt_number
        ),
    )
    list(writer.process(rows(1)))
    first = writer.snapshot_state(1)
    list(writer.process(rows(2)))
    second = writer.snapshot_state(2)
    return Snapshot(committables=(*first.committables, *second.committables))


@pytest.mark.clause("I4")
def test_cleaning_deletes_the_names_of_one_attempt_that_are_not_kept(sink: ParquetSink) -> None:
    mine = staged_by(sink, "d", 1, 2)
    others = [staged_by(sink, "d", 11, 2), staged_by(sink, "d", 1, 22), staged_by(sink, "e", 1, 2)]
    kept, gone = staged_of(mine)
    keep = sink.staged_names(mine.committables[:1])
    expected = sorted([kept.staged, *(one.staged for s in others for one in staged_of(s))])

    for _ in range(2):
        sink.clean(driver_id="d", subtask=1, attempt_number=2, keep=keep)
        assert staged_files(sink) == expected
    assert gone.staged not in expected


def test_cleaning_an_attempt_that_made_nothing_does_nothing(sink: ParquetSink) -> None:
    sink.clean(driver_id="nobody", subtask=0, attempt_number=0, keep=frozenset())


def test_cleaning_and_sweeping_never_touch_what_is_published(
    sink: ParquetSink, three_files: PublishFiles
) -> None:
    sink.settle(three_files)
    before = published(sink)
    sink.clean(driver_id="driver-a", subtask=0, attempt_number=0, keep=frozenset())
    sink.sweep()

    assert published(sink) == before
    assert len(pq.read_table(sink.path)) == 6


def test_a_sweep_deletes_all_that_is_staged_but_what_is_kept(sink: ParquetSink) -> None:
    mine = staged_by(sink, "d", 1, 2)
    staged_by(sink, "e", 1, 2)
    foreign = sink.path / ".coordlog/staging/d/note.txt"
    foreign.write_text("not ours")
    kept = staged_of(mine)[1].staged

    for _ in range(2):
        sink.sweep(keep={kept})
        assert staged_files(sink) == sorted([kept, ".coordlog/staging/d/note.txt"])
    assert not (sink.path / ".coordlog/staging/e").exists()


def test_a_sweep_of_a_destination_that_was_never_prepared_does_nothing(tmp_path: Path) -> None:
    ParquetSink(tmp_path / "out").sweep()

    assert list(tmp_path.iterdir()) == []
