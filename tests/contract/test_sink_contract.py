"""What every store of a sink must do: one suite, run in a local folder and on a server with S3's protocol."""

from __future__ import annotations

import contextlib
import io
import itertools
import pickle
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.api.coordinator import CommittableOf
from coordlog.api.operator import Operator, Snapshot
from coordlog.errors import SinkError
from coordlog.schemas.payload import payload_type_of
from coordlog.spark_integration.files.payloads import FilesPublished, PublishFiles, StagedFile
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.store.s3 import S3Store
from coordlog.spark_integration.files.store.store import FileStore
from fakes.chain_fakes import FakeContext
from servers.s3_server import S3Server, s3_server, s3_store

__all__ = ["s3_server", "s3_store"]

JOB = "ingest"


class Crash(BaseException):
    """The process ends here."""


class Place(ABC):
    """A destination, as those see it who do not go through the sink."""

    @abstractmethod
    def sink(self, **options: Any) -> ParquetSink:  # noqa: ANN401, the sink's own
        """A sink on it, as another process would make one."""

    @abstractmethod
    def names(self) -> list[str]:
        """All that stands there, hidden things too, relative and sorted."""

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """As somebody else does, without asking."""

    @abstractmethod
    def remove(self, name: str) -> None: ...

    def left_behind(self) -> list[str]:
        """What no name tells of."""
        return []

    def published(self) -> list[str]:
        return [one for one in self.names() if not one.startswith(".")]

    def staged(self) -> list[str]:
        return [one for one in self.names() if one.startswith(".coordlog/staging/")]

    def rows(self) -> Counter[int]:
        """What a reader finds: the values of the column `i`."""
        found: Counter[int] = Counter()
        for name in self.published():
            table = pq.read_table(io.BytesIO(self.read(name)), columns=["i"])
            found.update(table["i"].to_pylist())
        return found


class LocalPlace(Place):
    def __init__(self, root: Path) -> None:
        self.root = root

    def sink(self, **options: Any) -> ParquetSink:  # noqa: ANN401, the sink's own
        return ParquetSink(self.root, **options)

    def names(self) -> list[str]:
        found = (one for one in self.root.rglob("*") if one.is_file())
        return sorted(str(one.relative_to(self.root)) for one in found)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_bytes(content)

    def remove(self, name: str) -> None:
        (self.root / name).unlink()


class S3Place(Place):
    def __init__(self, server: S3Server) -> None:
        self.server, self.bucket = server, server.new_bucket()

    def sink(self, **options: Any) -> ParquetSink:  # noqa: ANN401, the sink's own
        return ParquetSink(f"s3://{self.bucket}/a/out", **options)

    def names(self) -> list[str]:
        keys = self.server.keys(self.bucket)
        assert all(one.startswith("a/out/") for one in keys), keys
        return [one.removeprefix("a/out/") for one in keys]

    def read(self, name: str) -> bytes:
        return self.server.get(self.bucket, f"a/out/{name}")

    def write(self, name: str, content: bytes) -> None:
        self.server.client.put_object(Bucket=self.bucket, Key=f"a/out/{name}", Body=content)

    def remove(self, name: str) -> None:
        self.server.client.delete_object(Bucket=self.bucket, Key=f"a/out/{name}")

    def left_behind(self) -> list[str]:
        return self.server.uploads(self.bucket)


MakePlace = Callable[[], Place]


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.tier("matrix"))])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_store")
        return lambda: S3Place(server)
    numbers = itertools.count()
    return lambda: LocalPlace(tmp_path / f"out-{next(numbers)}")


@pytest.fixture
def place(new_place: MakePlace) -> Place:
    made = new_place()
    made.sink().prepare(JOB)
    return made


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"i": pa.array(values, pa.int64())})


def opened(sink: ParquetSink, **context: str | int) -> Operator:
    writer = sink.spec().create_operator()
    writer.open(FakeContext(**{"job_id": JOB, **context}), None)  # type: ignore[arg-type]
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


def staged(place: Place, count: int = 2, **context: str | int) -> PublishFiles:
    """`count` files of two rows each."""
    sink = place.sink()
    writer = opened(sink, **context)
    snapshots: list[Snapshot] = []
    for i in range(count):
        list(writer.process(rows(i, i + 10)))
        snapshots.append(writer.snapshot_state(i))
    writer.close()
    return intent_of(sink, *snapshots)


def in_order(place: Place) -> ParquetSink:
    """A sink that publishes one file after the other, so that a test can count the places."""
    sink = place.sink()
    if isinstance(sink._store, S3Store):
        sink._store._threads = 1
    return sink


def refusal(do: Callable[[], object]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        do()
    assert caught.value.next_step
    return caught.value


TWO_FILES = Counter([0, 10, 1, 11])


@pytest.mark.clause("H3")
def test_settling_publishes_each_file_and_again_changes_nothing(place: Place) -> None:
    intent = staged(place)
    assert place.published() == []
    assert place.staged() == [one.staged for one in intent.files]
    outcome = place.sink().settle(intent)
    before = {name: place.read(name) for name in place.names()}

    assert place.sink().settle(intent) == outcome
    assert outcome == FilesPublished(
        checkpoint_id=7,
        file_count=2,
        rows=4,
        size_bytes=sum(one.size_bytes for one in intent.files),
    )
    assert place.published() == [one.final for one in intent.files]
    assert {name: place.read(name) for name in place.names()} == before
    assert place.rows() == TWO_FILES
    assert place.staged() == place.left_behind() == []


def places_of(place: Place, intent: PublishFiles) -> list[str]:
    passed: list[str] = []
    in_order(place).settle(intent, at=passed.append)
    return passed


@pytest.mark.clause("H3")
@pytest.mark.slow
def test_a_crash_at_any_place_of_settling_is_made_good_by_the_next(new_place: MakePlace) -> None:
    first = new_place()
    first.sink().prepare(JOB)
    count = len(places_of(first, staged(first)))
    assert count >= 7
    for crash_at in range(count):
        place = new_place()
        place.sink().prepare(JOB)
        intent = staged(place)
        passed = itertools.count()

        def at(
            _place: str, passed: itertools.count[int] = passed, crash_at: int = crash_at
        ) -> None:
            if next(passed) == crash_at:
                raise Crash

        with pytest.raises(Crash):
            in_order(place).settle(intent, at=at)
        assert not place.rows() - TWO_FILES
        assert place.sink().publish(intent).rows == 4
        assert place.rows() == TWO_FILES
        assert place.staged() == place.left_behind() == []


@pytest.mark.clause("H3")
@pytest.mark.slow
def test_a_second_settler_anywhere_within_the_first_has_the_effect_of_one(
    new_place: MakePlace,
) -> None:
    first = new_place()
    first.sink().prepare(JOB)
    for pause_at in range(len(places_of(first, staged(first)))):
        place = new_place()
        place.sink().prepare(JOB)
        intent = staged(place)
        with_another_within(place, intent, pause_at)
        assert place.rows() == TWO_FILES
        assert place.staged() == place.left_behind() == []


def with_another_within(place: Place, intent: PublishFiles, pause_at: int) -> None:
    passed = itertools.count()

    def at(_place: str) -> None:
        if next(passed) == pause_at:
            place.sink().settle(intent)

    in_order(place).settle(intent, at=at)
    assert next(passed) > pause_at


def late_settler(place: Place, intent: PublishFiles, pause_at: int) -> None:
    """One settler pauses; another settles, and a reader takes the files away; then the first goes on."""
    passed = 0

    def at(_place: str) -> None:
        nonlocal passed
        if passed == pause_at:
            place.sink().settle(intent)
            for name in place.published():
                place.remove(name)
        passed += 1

    try:
        in_order(place).settle(intent, at=at)
    except SinkError as error:
        assert "nor its staged" in error.problem  # noqa: PT017, it may succeed too
    assert passed > pause_at


@pytest.mark.clause("K2")
@pytest.mark.slow
def test_a_late_settler_brings_nothing_back_that_a_reader_has_taken_away(
    new_place: MakePlace,
) -> None:
    first = new_place()
    first.sink().prepare(JOB)
    for pause_at in range(len(places_of(first, staged(first, count=1)))):
        place = new_place()
        place.sink().prepare(JOB)
        late_settler(place, staged(place, count=1), pause_at)
        assert place.published() == [], f"paused at place {pause_at}"
        assert place.staged() == place.left_behind() == []


@pytest.mark.clause("K2")
@pytest.mark.slow
def test_a_second_settler_at_any_step_completes_nothing_after_the_first(
    s3_store: S3Server,
) -> None:
    """It begins its upload while the other is at work, and would complete it when that is done."""
    first = S3Place(s3_store)
    first.sink().prepare(JOB)
    for begin_at in range(len(places_of(first, staged(first, count=1)))):
        place = S3Place(s3_store)
        place.sink().prepare(JOB)
        begin_within_another(place, staged(place, count=1), begin_at)
        assert place.published() == [], f"begun at place {begin_at}"
        assert place.left_behind() == []


def begin_within_another(place: Place, intent: PublishFiles, begin_at: int) -> None:
    is_paused_or_over, may_go_on = threading.Event(), threading.Event()
    passed = itertools.count()

    def late(name: str) -> None:
        if name.startswith("before complete"):
            is_paused_or_over.set()
            assert may_go_on.wait(60)

    def settle_late() -> None:
        with contextlib.suppress(SinkError):  # it finds neither name, where both have gone
            in_order(place).settle(intent, at=late)
        is_paused_or_over.set()

    other = threading.Thread(target=settle_late)

    def at(_place: str) -> None:
        if next(passed) == begin_at:
            other.start()
            assert is_paused_or_over.wait(60)

    in_order(place).settle(intent, at=at)
    for name in place.published():
        place.remove(name)
    may_go_on.set()
    other.join(60)
    assert not other.is_alive()


@pytest.mark.clause("K2")
def test_without_the_abort_of_other_uploads_a_late_settler_doubles_rows(
    s3_store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test before: the same schedule, with that step taken out."""
    monkeypatch.setattr(S3Store, "_abort_all", lambda _store, _key: None)
    seen: list[Counter[int]] = []
    for pause_at in range(3):
        place = S3Place(s3_store)
        place.sink().prepare(JOB)
        late_settler(place, staged(place, count=1), pause_at)
        seen.append(place.rows())

    # Paused between the copy and the completion: a reader that took the rows away finds them again.
    assert seen == [Counter(), Counter(), Counter([0, 10])]


@pytest.mark.clause("H3")
def test_without_the_condition_what_another_has_put_there_is_lost(s3_store: S3Server) -> None:
    """The control of the next test: a store that ignores the condition."""
    place = S3Place(s3_store)
    place.sink().prepare(JOB)
    intent = staged(place, count=1)
    place.write(intent.files[0].final, b"somebody else's")
    sink = place.sink()
    with ignoring_conditions(sink._store):
        sink.settle(intent)

    assert place.read(intent.files[0].final) != b"somebody else's"


class ignoring_conditions:  # noqa: N801, used as a context
    """A client that leaves `If-None-Match` out: so a store behaves that does not know it."""

    def __init__(self, store: FileStore) -> None:
        assert isinstance(store, S3Store)
        self.store = store
        self.real: Any = store._client

    def __enter__(self) -> None:
        self.store._made_client = cast("Any", self)

    def __exit__(self, *_error: object) -> None:
        self.store._made_client = self.real

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = getattr(self.real, name)
        return lambda **given: real(**{k: v for k, v in given.items() if k != "IfNoneMatch"})


@pytest.mark.clause("H3")
def test_other_content_under_a_final_name_is_an_error_with_both_checksums(place: Place) -> None:
    intent = staged(place)
    one = intent.files[1]
    other = bytearray(place.read(one.staged))
    other[5] ^= 1
    place.write(one.final, bytes(other))

    error = refusal(lambda: place.sink().settle(intent))
    assert error.where.endswith(one.final)
    assert one.checksum in error.problem
    assert error.problem.count("with checksum") == 2
    assert place.read(one.final) == other, "it is not replaced"
    assert one.staged in place.staged(), "what was to be published is kept"


@pytest.mark.clause("H3")
def test_a_copy_under_a_final_name_is_taken_for_what_it_is(place: Place) -> None:
    """Somebody has restored it from a copy: the content is compared, not who made it."""
    intent = staged(place)
    for one in intent.files:
        place.write(one.final, place.read(one.staged))
        place.remove(one.staged)

    assert place.sink().publish(intent).rows == 4
    assert place.rows() == TWO_FILES


def test_a_file_with_neither_name_is_an_error_that_names_both(place: Place) -> None:
    intent = staged(place)
    one = intent.files[1]
    place.remove(one.staged)

    error = refusal(lambda: place.sink().settle(intent))
    assert error.where.endswith(one.final)
    assert one.staged in error.problem


def test_a_staged_file_of_another_length_is_not_published(place: Place) -> None:
    intent = staged(place, count=1)
    one = intent.files[0]
    place.write(one.staged, place.read(one.staged) + b"x")

    assert "it is damaged" in refusal(lambda: place.sink().settle(intent)).problem
    assert place.published() == []


@pytest.mark.clause("H3")
def test_settlers_on_many_threads_have_the_effect_of_one(place: Place) -> None:
    intent = staged(place, count=3)
    outcomes: list[FilesPublished] = []
    together = threading.Barrier(4)

    def settle() -> None:
        sink = place.sink()
        together.wait()
        outcomes.append(sink.publish(intent))

    threads = [threading.Thread(target=settle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [one.rows for one in outcomes] == [6] * 4
    assert place.rows() == TWO_FILES + Counter([2, 12])
    assert place.staged() == place.left_behind() == []


def test_an_intent_without_files_is_settled(place: Place) -> None:
    assert place.sink().publish(PublishFiles(checkpoint_id=3, files=[])).file_count == 0


@pytest.mark.parametrize(
    ("staged_name", "final"),
    [
        (".coordlog/staging/d/0-0-0.parquet", "../out.parquet"),
        (".coordlog/staging/d/0-0-0.parquet", "/etc/passwd"),
        (".coordlog/staging/d/0-0-0.parquet", "a=1/../../out.parquet"),
        (".coordlog/staging/d/0-0-0.parquet", "a=1/./out.parquet"),
        (".coordlog/staging/d/0-0-0.parquet", "a=1//out.parquet"),
        (".coordlog/staging/d/0-0-0.parquet", ".a=1/out.parquet"),
        (".coordlog/staging/../0-0-0.parquet", "a.parquet"),
        (".coordlog/owner.json", "a.parquet"),
        ("part-0.parquet", "a.parquet"),
    ],
)
def test_a_name_outside_of_its_place_is_refused(staged_name: str, final: str, place: Place) -> None:
    one = StagedFile(staged=staged_name, final=final, size_bytes=1, checksum="", rows=1)
    before = place.names()

    error = refusal(lambda: place.sink().settle(PublishFiles(checkpoint_id=1, files=[one])))
    assert "is no name that a file of this sink may have" in error.problem
    assert place.names() == before


# --- partitions, large files ----------------------------------------------------------------------
@pytest.mark.clause("H3")
def test_partitions_are_folders_and_settled_like_all_else(new_place: MakePlace) -> None:
    place = new_place()
    sink = place.sink(partition_by=["d", "s"])
    sink.prepare(JOB)
    writer = opened(sink)
    batch = pa.record_batch(
        {"i": [1, 2, 3, 4], "d": [5, 6, 5, None], "s": ["x/y", "..", "x/y", ""]}
    )
    list(writer.process(batch))
    intent = intent_of(sink, writer.final_snapshot())
    sink.settle(intent)

    assert sink.publish(intent).rows == 4
    null = "__HIVE_DEFAULT_PARTITION__"
    folders = [one.rpartition("/")[0] for one in place.published()]
    assert sorted(folders) == sorted(["d=5/s=x%2Fy", "d=6/s=..", f"d={null}/s={null}"])
    assert place.rows() == Counter([1, 2, 3, 4])
    assert place.staged() == place.left_behind() == []


def test_a_file_of_many_parts_comes_out_whole(new_place: MakePlace) -> None:
    """Larger than a part of an upload, and than a part of a copy."""
    place = new_place()
    sink = place.sink(compression="none", row_group_rows=500_000)
    if isinstance(sink._store, S3Store):
        sink._store._copy_part_bytes = 5 * 1024 * 1024
    sink.prepare(JOB)
    writer = opened(sink)
    values = pa.array(range(1_500_000), pa.int64())
    list(writer.process(pa.record_batch({"i": values})))
    snapshot = writer.final_snapshot()
    (one,) = staged_of(snapshot)
    assert one.size_bytes > 11 * 1024 * 1024
    intent = intent_of(sink, snapshot)
    sink.settle(intent)

    assert pq.read_table(io.BytesIO(place.read(one.final)))["i"].combine_chunks() == values
    assert sink.publish(intent).size_bytes == one.size_bytes
    assert place.left_behind() == []


def test_close_removes_what_was_not_handed_over_and_nothing_else(place: Place) -> None:
    writer = opened(place.sink(row_group_rows=2))
    list(writer.process(rows(1)))
    (kept,) = staged_of(writer.snapshot_state(1))
    list(writer.process(rows(2, 3, 4)))
    writer.close()

    assert place.staged() == [kept.staged]
    assert place.left_behind() == []


def test_the_writer_travels_to_the_tasks(place: Place) -> None:
    sink = place.sink()
    sink.is_taken(JOB)  # a client has been made, which stays here
    writer = pickle.loads(pickle.dumps(sink.spec().create_operator))()
    writer.open(FakeContext(job_id=JOB), None)
    list(writer.process(rows(1)))

    assert len(staged_of(writer.final_snapshot())) == 1


# --- the destination ------------------------------------------------------------------------------
def test_a_destination_is_taken_again_by_its_own_job_only(place: Place) -> None:
    place.sink().settle(staged(place))
    place.sink().prepare(JOB)

    error = refusal(lambda: place.sink().prepare("other"))
    assert "it is of job 'ingest', this is job 'other'" in error.problem
    assert error.next_step.endswith('continue with `job_id="ingest"`')
    assert place.sink().is_taken(JOB)
    assert not place.sink().is_taken("other")


def test_a_destination_that_holds_something_else_is_not_taken(new_place: MakePlace) -> None:
    place = new_place()
    place.write("mine.txt", b"x")

    error = refusal(lambda: place.sink().prepare(JOB))
    assert "a destination that is not ours: it holds 1 names" in error.problem
    assert "'mine.txt'" in error.problem
    assert place.names() == ["mine.txt"]
    assert not place.sink().is_taken(JOB)


def test_of_two_jobs_that_take_a_destination_at_once_one_gets_it(new_place: MakePlace) -> None:
    place = new_place()
    together = threading.Barrier(4)
    ends: list[str] = []

    def take(job_id: str) -> None:
        sink = place.sink()
        together.wait()
        try:
            sink.prepare(job_id)
            ends.append("got it")
        except SinkError as error:
            assert "not ours" in str(error)  # noqa: PT017, one succeeds
            ends.append("refused")

    threads = [threading.Thread(target=take, args=(f"job-{i}",)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert sorted(ends) == ["got it", "refused", "refused", "refused"]
    assert place.names() == [".coordlog/owner.json"]
    assert place.left_behind() == []


def test_files_published_by_an_earlier_history_are_not_written_again(place: Place) -> None:
    place.sink().refuse_earlier_output(JOB)
    place.sink().settle(staged(place))

    error = refusal(lambda: place.sink().refuse_earlier_output(JOB))
    assert "an earlier history of job 'ingest' has published" in error.problem


def test_the_schema_of_the_first_rows_is_that_of_all(place: Place) -> None:
    list(opened(place.sink()).process(rows(1)))
    other = opened(place.sink(), subtask=1)

    error = refusal(lambda: list(other.process(pa.record_batch({"i": ["x"]}))))
    assert "column 'i' is string and in the files int64" in error.problem


def test_of_two_writers_that_widen_at_once_each_has_the_schema_of_both(place: Place) -> None:
    first, second = (opened(place.sink(widen=True), subtask=i) for i in (0, 1))
    list(first.process(rows(1)))
    list(second.process(rows(2)))
    list(first.process(pa.record_batch({"i": [3], "a": ["x"]})))
    list(second.process(pa.record_batch({"i": [4.5], "b": [True]})))
    list(first.process(pa.record_batch({"i": [5], "b": [False]})))
    snapshots = first.final_snapshot(), second.final_snapshot()
    files = [*staged_of(snapshots[0]), *staged_of(snapshots[1])]
    schemas = [pq.read_schema(io.BytesIO(place.read(one.staged))) for one in files]

    wide = pa.schema({"i": pa.float64(), "a": pa.string(), "b": pa.bool_()})
    narrow = pa.schema({"i": pa.int64()})
    assert schemas == [narrow, pa.schema({"i": pa.int64(), "a": pa.string()}), wide, narrow, wide]
    place.sink(widen=True).settle(intent_of(place.sink(), *snapshots))
    assert place.rows() == Counter([1, 2, 3, 4.5, 5])


# --- cleaning -------------------------------------------------------------------------------------
def staged_by(place: Place, driver_id: str, subtask: int, attempt_number: int) -> Snapshot:
    writer = opened(
        place.sink(), driver_id=driver_id, subtask=subtask, attempt_number=attempt_number
    )
    list(writer.process(rows(1)))
    first = writer.snapshot_state(1)
    list(writer.process(rows(2)))
    second = writer.snapshot_state(2)
    return Snapshot(committables=(*first.committables, *second.committables))


def names_of(snapshots: Sequence[Snapshot]) -> list[str]:
    return [one.staged for snapshot in snapshots for one in staged_of(snapshot)]


@pytest.mark.clause("I4")
def test_cleaning_deletes_the_names_of_one_attempt_that_are_not_kept(place: Place) -> None:
    mine = staged_by(place, "d", 1, 2)
    others = [
        staged_by(place, "d", 11, 2),
        staged_by(place, "d", 1, 22),
        staged_by(place, "e", 1, 2),
        staged_by(place, "dd", 1, 2),
    ]
    kept, gone = staged_of(mine)
    keep = place.sink().staged_names(mine.committables[:1])
    expected = sorted([kept.staged, *names_of(others)])

    for _ in range(2):
        place.sink().clean(driver_id="d", subtask=1, attempt_number=2, keep=keep)
        assert place.staged() == expected
    assert gone.staged not in expected


def test_cleaning_an_attempt_that_made_nothing_does_nothing(place: Place) -> None:
    place.sink().clean(driver_id="nobody", subtask=0, attempt_number=0, keep=frozenset())


@pytest.mark.clause("I4")
def test_cleaning_ends_the_upload_of_an_attempt_that_died_over_it(s3_store: S3Server) -> None:
    place = S3Place(s3_store)
    place.sink().prepare(JOB)
    for subtask in (1, 2):
        output = place.sink()._store.stage(f".coordlog/staging/d/{subtask}-0-0.parquet")
        output.write(memoryview(bytes(9 * 1024 * 1024)))
    assert len(place.left_behind()) == 2
    place.sink().clean(driver_id="d", subtask=1, attempt_number=0, keep=frozenset())

    assert place.left_behind() == ["a/out/.coordlog/staging/d/2-0-0.parquet"]
    place.sink().sweep()
    assert place.left_behind() == []


def test_a_sweep_deletes_all_that_is_staged_but_what_is_kept(place: Place) -> None:
    mine = staged_by(place, "d", 1, 2)
    staged_by(place, "e", 1, 2)
    place.write(".coordlog/staging/d/note.txt", b"not ours")
    kept = staged_of(mine)[1].staged
    intent = staged(place, driver_id="f")
    place.sink().settle(intent)

    for _ in range(2):
        place.sink().sweep(keep={kept})
        assert place.staged() == sorted([kept, ".coordlog/staging/d/note.txt"])
    assert place.rows() == TWO_FILES


@pytest.mark.clause("K2")
def test_a_sweep_deletes_what_was_staged_before_it_asked_and_only_in_force(place: Place) -> None:
    staged_by(place, "d", 1, 0)
    before, later = place.names(), list[str]()
    place.sink().sweep(is_in_force=lambda: False)
    assert place.names() == before

    def asked() -> bool:
        later.extend(one.staged for one in staged_of(staged_by(place, "e", 1, 0)))
        return True

    place.sink().sweep(is_in_force=asked)

    assert place.staged() == sorted(later) != []


def test_a_sweep_of_a_destination_that_was_never_prepared_does_nothing(
    new_place: MakePlace,
) -> None:
    place = new_place()
    place.sink().sweep()

    assert place.names() == []


# --- stores that cannot be published in -----------------------------------------------------------
def test_a_store_that_ignores_the_condition_is_refused_by_name(s3_store: S3Server) -> None:
    place = S3Place(s3_store)
    sink = place.sink()
    with ignoring_conditions(sink._store):
        error = refusal(lambda: sink.prepare(JOB))

    assert error.where == f"s3://{place.bucket}/a/out"
    assert "replaces an object where it should refuse (If-None-Match)" in error.problem
    assert place.names() == [".coordlog/owner.json"]
    assert place.left_behind() == []


def test_a_store_that_lists_no_uploads_is_refused_by_name(
    s3_store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = S3Place(s3_store)
    monkeypatch.setattr(S3Store, "_uploads_below", lambda _store, _prefix: [])

    assert "does not list the uploads" in refusal(lambda: place.sink().prepare(JOB)).problem


def test_a_bucket_that_is_not_there_is_an_error_with_its_code(s3_store: S3Server) -> None:
    error = refusal(lambda: ParquetSink("s3://no-such-bucket/out").prepare(JOB))

    assert error.where == "s3://no-such-bucket/out"
    assert "NoSuchBucket" in error.problem
    assert "make the bucket" in error.next_step


def test_a_store_that_does_not_answer_is_an_error_with_its_address(
    s3_store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")

    error = refusal(lambda: ParquetSink("s3://bucket/out").prepare(JOB))
    assert "http://127.0.0.1:9" in error.problem
    assert "AWS_ENDPOINT_URL_S3" in error.next_step


def test_a_store_without_credentials_is_an_error_that_says_what_to_set(
    s3_store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    error = refusal(lambda: ParquetSink("s3://bucket/out").prepare(JOB))
    assert "AWS_PROFILE" in error.next_step
