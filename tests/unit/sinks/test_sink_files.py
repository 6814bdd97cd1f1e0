"""Which rows go into which file of the Parquet sink, and what a file's name and schema are."""

from __future__ import annotations

import datetime as dt
import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.api.coordinator import CommittableOf
from coordlog.api.operator import Snapshot
from coordlog.cli.exit_status import Exit, exit_of
from coordlog.errors import DestinationMisfitError, OutOfSpaceError, SinkError
from coordlog.schemas.payload import payload_type_of
from coordlog.spark_integration.files.formats.compatibility import fitted
from coordlog.spark_integration.files.names import escaped, partition_folder
from coordlog.spark_integration.files.payloads import PublishFiles, StagedFile
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.sink.writer import ParquetFileWriter
from coordlog.spark_integration.files.store import durable
from coordlog.spark_integration.files.store.local import LocalStore
from fakes.chain_fakes import FakeContext

JOB = "ingest"
GIB = 1024 * 1024 * 1024


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def prepared(sink: ParquetSink) -> ParquetSink:
    sink.prepare(JOB)
    return sink


def opened(
    sink: ParquetSink,
    clock: Callable[[], float] | None = None,
    *,
    open_files_max: int = 32,
    attempt_number: int = 0,
) -> ParquetFileWriter:
    options = replace(sink._options, open_files_max=open_files_max)
    writer = ParquetFileWriter(options, clock or Clock())
    writer.open(FakeContext(job_id=JOB, attempt_number=attempt_number), None)
    return writer


def write(writer: ParquetFileWriter, **columns: object) -> None:
    list(writer.process(pa.record_batch(columns)))


def staged_of(snapshot: Snapshot) -> list[StagedFile]:
    kind = payload_type_of(StagedFile)
    return [cast("StagedFile", kind.decode(one)) for one in snapshot.committables]


def contents(sink: ParquetSink, snapshot: Snapshot) -> list[list[object]]:
    """The column `i` of each file, in the order in which they were handed over."""
    return [pq.read_table(sink.path / o.staged)["i"].to_pylist() for o in staged_of(snapshot)]


def publish(sink: ParquetSink, snapshot: Snapshot) -> list[str]:
    intent = intent_of(sink, snapshot)
    sink.settle(intent)
    return [one.final for one in intent.files]


def intent_of(sink: ParquetSink, snapshot: Snapshot) -> PublishFiles:
    committables = [
        CommittableOf(subtask=0, attempt_number=0, split_id=None, content=one)
        for one in snapshot.committables
    ]
    return sink.make_intent(1, committables)


def refusal(do: Callable[[], object]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        do()
    assert caught.value.next_step
    return caught.value


# --- rolling --------------------------------------------------------------------------------------
def test_a_file_never_has_more_rows_than_it_may(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", roll_rows=4))
    writer = opened(sink)
    for first in (0, 3, 6):
        write(writer, i=list(range(first, first + 3)))
    write(writer, i=list(range(9, 21)))
    snapshot = writer.snapshot_state(1)

    assert contents(sink, snapshot) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
        [16, 17, 18, 19],
        [20],
    ]
    assert len({one.final for one in staged_of(snapshot)}) == 6
    assert writer.snapshot_state(2) == Snapshot(), "each is handed over once"


def test_a_file_is_closed_once_it_is_as_long_as_it_may_be(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", roll_bytes=40_000, compression="none"))
    writer = opened(sink)
    for first in range(0, 50_000, 1000):
        write(writer, i=list(range(first, first + 1000)))
    files = staged_of(writer.snapshot_state(1))

    assert sum(one.rows for one in files) == 50_000
    assert len(files) > 5
    # A row group is at most about as long, and the footer comes on top.
    assert all(40_000 <= one.size_bytes < 120_000 for one in files[:-1])


def test_a_file_is_closed_when_its_first_row_is_old_and_a_batch_comes(tmp_path: Path) -> None:
    sink, clock = prepared(ParquetSink(tmp_path / "out", roll_seconds=60)), Clock()
    writer = opened(sink, clock)
    write(writer, i=[1])
    clock.now_s += 59
    write(writer, i=[2])
    clock.now_s += 1
    write(writer, i=[3])
    write(writer, i=[4])
    clock.now_s += 3600
    write(writer, i=pa.array([], pa.int64()))
    write(writer, i=[5])

    assert contents(sink, writer.snapshot_state(1)) == [[1, 2, 3], [4], [5]]


def test_rolled_files_of_a_writer_that_is_closed_are_left_for_cleaning(tmp_path: Path) -> None:
    """They may be committables of the log by now: only what the log gives up is deleted."""
    sink = prepared(ParquetSink(tmp_path / "out", roll_rows=1))
    writer = opened(sink)
    write(writer, i=[1, 2])
    writer.close()
    staging = sink.path / ".coordlog/staging/driver-a"
    assert len(list(staging.iterdir())) == 2
    sink.clean(driver_id="driver-a", subtask=0, attempt_number=0, keep=frozenset())

    assert list(staging.iterdir()) == []


# --- open partitions ------------------------------------------------------------------------------
def test_of_too_many_open_files_the_longest_unused_is_closed(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", partition_by=["p"]))
    writer = opened(sink, open_files_max=2)
    write(writer, i=[1], p=["a"])
    write(writer, i=[2], p=["b"])
    write(writer, i=[3], p=["a"])
    write(writer, i=[4], p=["c"])
    write(writer, i=[5], p=["a"])
    snapshot = writer.final_snapshot()

    assert contents(sink, snapshot) == [[2], [1, 3, 5], [4]]
    assert [one.final.partition("/")[0] for one in staged_of(snapshot)] == ["p=b", "p=a", "p=c"]


def test_what_all_partitions_hold_together_is_bounded(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", partition_by=["p"], row_group_bytes=8000))
    writer = opened(sink)
    for _ in range(5):
        write(writer, i=[1] * 300, p=["a"] * 200 + ["b"] * 100)
    held = sum(one.held_bytes for one in writer._open.values())
    assert 0 < held < 8000
    files = staged_of(writer.final_snapshot())

    assert [one.rows for one in files] == [1000, 500]
    groups = [pq.read_metadata(sink.path / one.staged).num_row_groups for one in files]
    assert groups == [2, 1], "the one that held most was written"


def test_more_names_than_the_log_takes_are_an_error_that_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "coordlog.spark_integration.files.sink.writer.INTERVAL_NAMES_BYTES_MAX", 1000
    )
    sink = prepared(ParquetSink(tmp_path / "out", partition_by=["p"]))
    writer = opened(sink)
    write(writer, i=list(range(20)), p=[str(n) for n in range(20)])

    error = refusal(lambda: writer.snapshot_state(1))
    assert "files since the last checkpoint or split: their names have" in error.problem
    assert "sort by them" in error.next_step


def test_small_splits_of_many_partitions_are_not_handed_over_together(tmp_path: Path) -> None:
    """The names of the files of all of them would be more than a record takes, those of each are not."""
    sink = prepared(ParquetSink(tmp_path / "out", partition_by=["p"]))
    writer = opened(sink, open_files_max=2)
    write(writer, i=[1, 2], p=["a", "b"])
    assert writer.takes_more_splits(), "its files are open, and take the next split's rows"
    write(writer, i=[3], p=["c"])
    assert not writer.takes_more_splits()

    assert contents(sink, writer.end_of_split("s")) == [[1], [2], [3]]
    assert writer.takes_more_splits()


# --- partitions -----------------------------------------------------------------------------------
def test_rows_keep_their_order_in_a_partition_and_files_lack_its_columns(
    tmp_path: Path,
) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", partition_by=["p"]))
    writer = opened(sink)
    write(writer, p=[2, 1, 2, None, 1], i=[0, 1, 2, 3, 4])
    write(writer, p=[1, 2, 2], i=[5, 6, 7])
    snapshot = writer.final_snapshot()

    assert contents(sink, snapshot) == [[1, 4, 5], [0, 2, 6, 7], [3]]
    names = [one.partition("/")[0] for one in publish(sink, snapshot)]
    assert names == ["p=1", "p=2", "p=__HIVE_DEFAULT_PARTITION__"]
    assert pq.read_schema(next(sink.path.glob("p=1/*.parquet"))).names == ["i"]
    assert len(pq.read_table(sink.path)) == 8


def test_a_value_becomes_a_folder_as_it_does_with_spark() -> None:
    moment = dt.date(2013, 1, 5)
    for value, text in (
        (None, "__HIVE_DEFAULT_PARTITION__"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
        (True, "true"),
        (-7, "-7"),
        (moment, "2013-01-05"),
        ("a b", "a b"),
        ("../x", "..%2Fx"),
        ("50%", "50%25"),
        ("a=b:c", "a%3Db%3Ac"),
        ("zwölf", "zwölf"),
        ("line\nend\x00", "line%0Aend%00"),
    ):
        assert partition_folder("out", ("k",), (value,)) == f"k={text}"
    assert partition_folder("out", ("a/b", "c"), (1, "x")) == "a%2Fb=1/c=x"
    assert escaped("{[]^}") == "%7B%5B%5D%5E}"


def test_a_name_that_no_file_system_takes_is_refused_before_handover(
    tmp_path: Path,
) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", partition_by=["p", "q", "r", "s"]))
    writer = opened(sink)

    def row(**more: str) -> None:
        write(writer, i=[1], **{name: [more.get(name, "x")] for name in "pqrs"})

    error = refusal(lambda: row(p="ä" * 127))
    assert "makes a folder's name of 256 bytes; file systems take 255" in error.problem
    row(p="ä" * 126 + "x")
    long = dict.fromkeys("pqrs", "y" * 240)
    error = refusal(lambda: row(**long))
    assert "the values of 4 partition columns make a folder's name of 971 bytes" in error.problem
    assert isinstance(error, DestinationMisfitError), "no restart, which would find the same rows"


@pytest.mark.parametrize(
    ("columns", "partition_by", "problem"),
    [
        ({"i": [1]}, ["p"], "there is no column 'p' to partition by: the rows have i"),
        ({"i": [1]}, ["i"], "all columns are partition columns"),
        ({"i": [1], "p": [1.5]}, ["p"], "column 'p' of double cannot be partitioned by"),
        ({"i": [1], "p": [dt.datetime(2013, 1, 1)]}, ["p"], "cannot be partitioned by"),  # noqa: DTZ001
    ],
)
def test_columns_that_make_no_partitions_are_refused(
    columns: dict[str, object], partition_by: list[str], problem: str, tmp_path: Path
) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", partition_by=partition_by))

    error = refusal(lambda: write(opened(sink), **columns))
    assert problem in error.problem
    assert isinstance(error, DestinationMisfitError), "no restart, which would find the same rows"


def test_rows_without_a_column_are_refused_as_such(tmp_path: Path) -> None:
    rows = pa.record_batch({"i": [1]}).select([])
    writer = opened(prepared(ParquetSink(tmp_path / "out")))

    error = refusal(lambda: list(writer.process(rows)))
    assert "the rows have no column" in error.problem
    assert isinstance(error, DestinationMisfitError), "as above"


def test_a_destination_keeps_its_partitions(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", partition_by=["p"]))
    prepared(ParquetSink(tmp_path / "out"))  # nothing has been written yet
    write(opened(sink), i=[1], p=[1])

    error = refusal(lambda: ParquetSink(tmp_path / "out").prepare(JOB))
    assert "it is partitioned by p, the job by nothing" in error.problem
    prepared(ParquetSink(tmp_path / "out", partition_by=["p"]))


def test_a_partition_of_words_in_a_dictionary_is_one_of_words(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", partition_by=["p"]))
    writer = opened(sink)
    write(writer, i=[1, 2], p=pa.array(["b", "a"]).dictionary_encode())

    assert [o.final[:3] for o in staged_of(writer.final_snapshot())] == ["p=a", "p=b"]


def test_a_partition_folder_that_became_a_link_is_refused(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", partition_by=["p"]))
    writer = opened(sink)
    write(writer, i=[1], p=[1])
    intent = intent_of(sink, writer.final_snapshot())
    (tmp_path / "elsewhere").mkdir()
    (sink.path / "p=1").symlink_to(tmp_path / "elsewhere")

    assert "a link leads out of the destination" in refusal(lambda: sink.settle(intent)).problem
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- schemas --------------------------------------------------------------------------------------
def test_what_differs_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out"))
    writer = opened(sink)
    write(writer, i=[1], a=["x"], b=[True])

    error = refusal(lambda: write(writer, i=[1.5], a=["x"], c=[1]))
    assert (
        "column 'c' of int64 is new; column 'i' is double and in the files int64" in error.problem
    )
    assert "column 'b' of bool is missing" in error.problem
    assert "`widen=True`" in error.next_step
    write(writer, b=[False], a=["y"], i=[2])
    assert contents(sink, writer.final_snapshot()) == [[1, 2]], "another order is no difference"


def test_a_value_that_would_be_rounded_is_refused(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out"))
    writer = opened(sink)
    write(writer, i=pa.array([0.5], pa.float32()))
    write(writer, i=pa.array([0.25, None, float("nan"), float("inf")]))

    error = refusal(lambda: write(writer, i=pa.array([0.1])))
    assert "column 'i' is double and in the files float (row 1 of the batch" in error.problem
    assert "the value 0.1 of double is no float (a value would be rounded)" in error.problem


def test_a_column_that_stands_in_a_batch_twice_is_refused(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", widen=True))
    writer = opened(sink)
    write(writer, i=[1])
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["i", "i"])

    error = refusal(lambda: list(writer.process(twice)))
    assert "column 'i' is in it 2 times" in error.problem


@pytest.mark.parametrize(
    ("first", "then", "wide"),
    [
        (pa.array([1], pa.int32()), pa.array([2**40], pa.int64()), pa.int64()),
        (pa.array([1], pa.int32()), pa.array([0.5]), pa.float64()),
        (pa.array([0.5], pa.float32()), pa.array([0.1]), pa.float64()),
        (pa.array([1.5]), pa.array([2]), pa.float64()),
        (pa.array(["x"]), pa.array([None], pa.null()), pa.string()),
    ],
)
def test_a_wider_type_is_that_of_later_files(
    first: pa.Array, then: pa.Array, wide: pa.DataType, tmp_path: Path
) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", widen=True))
    writer = opened(sink)
    write(writer, i=first)
    write(writer, i=then)
    files = staged_of(writer.final_snapshot())

    assert pq.read_schema(sink.path / files[-1].staged).field("i").type == wide
    table = pa.concat_tables(
        [pq.read_table(sink.path / one.staged) for one in files], promote_options="permissive"
    )
    assert table["i"].to_pylist() == [*first.to_pylist(), *then.to_pylist()]


def test_columns_come_and_go_where_the_user_says_so(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", widen=True))
    writer = opened(sink)
    write(writer, i=[1], a=["x"])
    write(writer, i=[2])
    write(writer, i=[3], b=[True], c=pa.array([None], pa.null()))
    write(writer, a=["y"], i=[4])
    files = staged_of(writer.final_snapshot())
    schemas = [pq.read_schema(sink.path / one.staged) for one in files]

    assert schemas == [
        pa.schema({"i": pa.int64(), "a": pa.string()}),
        pa.schema({"i": pa.int64(), "a": pa.string(), "b": pa.bool_()}),
    ]
    rows = pq.read_table(sink.path / files[1].staged).to_pylist()
    assert rows == [{"i": 3, "a": None, "b": True}, {"i": 4, "a": "y", "b": None}]


def test_what_no_type_holds_is_refused_even_where_widening_is_wanted(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", widen=True, partition_by=["p"]))
    writer = opened(sink)
    write(writer, i=[1], p=pa.array([1], pa.int32()))

    error = refusal(lambda: write(writer, i=["x"], p=pa.array([1], pa.int32())))
    assert "column 'i' is string and in the files int64, and no type holds both" in error.problem
    error = refusal(lambda: write(writer, i=[1], p=[2**40]))
    assert "partition column 'p' is int64 and in the files int32" in error.problem
    write(writer, i=[0.5], p=pa.array([1], pa.int32()))
    error = refusal(lambda: write(writer, i=[2**60 + 1], p=pa.array([1], pa.int32())))
    assert "column 'i' is int64 and in the files double" in error.problem, "rounding would lose it"


@pytest.mark.parametrize("names", [("I",), ("new", "New")])
def test_a_new_column_of_another_ones_name_in_other_case_is_refused(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Spark reads no file with both, and a published file stays."""
    writer = opened(prepared(ParquetSink(tmp_path / "out", widen=True)))
    write(writer, i=[1])

    error = refusal(lambda: write(writer, **{name: [2] for name in names}))
    other = {"I": "i"}.get(names[-1], "new")
    assert f"column {names[-1]!r} is new and differs from {other!r} in upper and" in error.problem
    write(writer, i=[2], j=[3])
    assert sum(one.rows for one in staged_of(writer.final_snapshot())) == 2


def test_a_struct_that_has_got_a_field_is_refused_and_leaves_the_schema(tmp_path: Path) -> None:
    writer = opened(prepared(ParquetSink(tmp_path / "out", widen=True)))
    write(writer, i=[{"a": 1}])

    error = refusal(lambda: write(writer, i=[{"a": 1, "b": 2}]))
    assert "column 'i' is struct<a: int64, b: int64>" in error.problem
    assert "no type holds both" in error.problem
    write(writer, i=[{"a": 2}])
    (one,) = staged_of(writer.final_snapshot())
    assert one.rows == 2, "rows that fitted before still fit"


VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
"""As Spark passes it on."""


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "month_day_nano_interval"),
        (pa.array([{}], pa.struct([])), "with no child field"),
        (pa.array([Decimal(1000)], pa.decimal128(5, -3)), "Scale must be a non-negative integer"),
        (pa.array([3600], pa.duration("s")), "without its unit"),
        (pa.array([[("a", [1])]], pa.map_(pa.string(), pa.list_(pa.duration("us")))), "its unit"),
        (pa.array([{"value": b"", "metadata": b""}], VARIANT), "without its kind"),
    ],
)
def test_a_type_that_parquet_has_not_is_refused_and_not_settled(
    values: pa.Array, reason: str, tmp_path: Path
) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", widen=True))
    writer = opened(sink)

    with pytest.raises(DestinationMisfitError) as caught:
        write(writer, i=[1], x=values)
    assert caught.value.where == str(tmp_path / "out")
    assert "column 'x' of " in caught.value.problem
    assert reason in caught.value.problem
    write(writer, i=[1])
    with pytest.raises(DestinationMisfitError, match="column 'x' of "):
        write(writer, i=[1], x=values)
    write(writer, i=[2], x=["mended"])
    files = staged_of(writer.final_snapshot())
    assert [one.rows for one in files] == [1, 1]


@pytest.mark.parametrize(
    "values",
    [pa.array([b"\xff"]).view(pa.string()), pa.array([2**31 - 1], pa.date32())],
    ids=["not UTF-8", "a date beyond Python's"],
)
def test_a_partition_value_without_a_text_is_refused_by_its_column(
    values: pa.Array, tmp_path: Path
) -> None:
    writer = opened(prepared(ParquetSink(tmp_path / "out", partition_by=["p"])))

    with pytest.raises(DestinationMisfitError, match=r"partition column 'p', of .* has no text"):
        write(writer, i=[1], p=values)


def test_ten_thousand_columns_are_fitted_in_time_by_their_number() -> None:
    batch = pa.record_batch([pa.array([1])] * 10_000, names=[f"c{i}" for i in range(10_000)])
    since_s = time.process_time()

    assert fitted(batch, batch.schema, fills_missing=True).equals(batch)
    assert time.process_time() - since_s < 5.0, (
        "by the square of their number it takes half a minute"
    )


def test_a_later_run_has_the_widest_schema_from_the_start(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", widen=True))
    writer = opened(sink)
    write(writer, i=[1])
    write(writer, i=[0.5])
    later = opened(prepared(ParquetSink(tmp_path / "out")), attempt_number=1)
    write(later, i=[2])
    (one,) = staged_of(later.final_snapshot())

    assert pq.read_schema(sink.path / one.staged).field("i").type == pa.float64()


# --- space ----------------------------------------------------------------------------------------
def test_no_new_job_starts_where_less_than_a_gibibyte_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "free_bytes", lambda _store: GIB - 1)
    sink = ParquetSink(tmp_path / "out")
    with pytest.raises(OutOfSpaceError) as caught:
        sink.prepare(JOB)
    assert "[errno 28] 1,073,741,823 bytes are free there, of which 1,073,741,824" in str(
        caught.value
    )
    assert exit_of(caught.value) is Exit.NO_SPACE

    monkeypatch.setattr(LocalStore, "free_bytes", lambda _store: GIB)
    sink.prepare(JOB)
    monkeypatch.setattr(LocalStore, "free_bytes", lambda _store: 0)
    sink.prepare(JOB)  # a job that has begun settles what it owes


def test_a_writer_stops_before_the_last_space_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = prepared(ParquetSink(tmp_path / "out"))
    writer = opened(sink)
    write(writer, i=[1])
    monkeypatch.setattr(LocalStore, "free_bytes", lambda _store: 256 * 1024 * 1024 - 1)

    with pytest.raises(OutOfSpaceError, match="the job stops while others can still write"):
        writer.snapshot_state(1)
    writer.close()
    assert list((sink.path / ".coordlog/staging/driver-a").iterdir()) == []


def test_a_disk_that_is_full_is_its_own_kind_of_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = prepared(ParquetSink(tmp_path / "out"))
    writer = opened(sink)
    write(writer, i=[1])

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutOfSpaceError, match=r"\[errno 28\] No space left on device") as caught:
        writer.snapshot_state(1)
    writer.close()
    assert caught.value.where.endswith("/.coordlog/staging/driver-a/0-0-0.parquet")
    assert exit_of(caught.value) is Exit.NO_SPACE


# --- leftovers, links -----------------------------------------------------------------------------
def test_a_sweep_removes_drafts_and_probes_that_somebody_died_over(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out"))
    for name in (".coordlog/owner.json.0123.draft", ".coordlog/staging/probe-1", ".probe-1"):
        (sink.path / name).write_text("x")
    (sink.path / ".coordlog/note.txt").write_text("not ours")
    prepared(ParquetSink(tmp_path / "out"))
    sink.sweep()

    left = sorted(str(o.relative_to(sink.path)) for o in sink.path.rglob("*") if o.is_file())
    assert left == [".coordlog/note.txt", ".coordlog/owner.json"]


def test_files_without_the_folder_that_names_their_job_need_it_back(tmp_path: Path) -> None:
    """As after a move of the visible names alone."""
    sink = prepared(ParquetSink(tmp_path / "out"))
    writer = opened(sink)
    write(writer, i=[1])
    publish(sink, writer.snapshot_state(1))
    writer.close()
    (sink.path / ".coordlog").rename(tmp_path / "aside")

    error = refusal(lambda: prepared(ParquetSink(tmp_path / "out")))
    assert "it holds 1 names" in error.problem
    assert "no .coordlog/owner.json" in error.problem
    assert "put .coordlog back beside them" in error.next_step
    (tmp_path / "aside").rename(sink.path / ".coordlog")
    prepared(ParquetSink(tmp_path / "out"))


def test_a_link_to_a_folder_that_is_not_mounted_is_named_as_a_cause(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "away")

    error = refusal(lambda: prepared(ParquetSink(tmp_path / "out")))
    assert "a link's target is not mounted" in error.next_step


def test_a_draft_that_a_sweep_takes_away_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link
    swept: list[Path] = []

    def link(draft: Path, path: Path) -> None:
        if len(swept) < 2:
            swept.append(draft)
            Path(draft).unlink()
        real(draft, path)

    monkeypatch.setattr(os, "link", link)

    assert durable.write_once(tmp_path / "owner.json", b"mine")
    assert (tmp_path / "owner.json").read_bytes() == b"mine"
    assert len(swept) == 2


def test_an_owner_file_and_then_its_name_are_synced_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that loses its power leaves a whole file of this name, or none."""
    path, done = tmp_path / "owner.json", list[str]()
    real_sync, real_link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        synced = Path(f"/proc/self/fd/{descriptor}").resolve()
        done.append("folder" if synced == tmp_path else f"content {synced.read_bytes()!r}")
        real_sync(descriptor)

    def link(draft: Path, name: Path) -> None:
        done.append(f"name {Path(name).name}")
        real_link(draft, name)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)

    assert durable.write_once(path, b"mine")

    assert done == ["content b'mine'", "name owner.json", "folder"]


def test_a_destination_that_became_a_link_to_elsewhere_is_not_written_to(
    tmp_path: Path,
) -> None:
    sink = prepared(ParquetSink(tmp_path / "out"))
    writer = opened(sink)
    write(writer, i=[1])
    snapshot = writer.final_snapshot()
    (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "other").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "other")

    assert not sink.is_taken(JOB)
    error = refusal(lambda: opened(sink))
    assert "no job has made it ready" in error.problem
    assert "exists" in refusal(lambda: publish(sink, snapshot)).problem
    assert list((tmp_path / "other").iterdir()) == []


def test_of_a_split_that_is_given_up_no_file_is_handed_over(tmp_path: Path) -> None:
    sink = prepared(ParquetSink(tmp_path / "out", roll_rows=2, row_group_rows=1))
    writer = opened(sink)
    write(writer, i=[1])
    kept = writer.end_of_split("first")
    write(writer, i=[2, 3, 4])
    writer.discard_split("second")
    write(writer, i=[5])

    assert contents(sink, writer.end_of_split("third")) == [[5]]
    assert writer.final_snapshot() == Snapshot()
    sink.clean(
        driver_id="driver-a",
        subtask=0,
        attempt_number=0,
        keep=sink.staged_names(kept.committables),
    )
    assert [one.name for one in (sink.path / ".coordlog/staging/driver-a").iterdir()] == [
        "0-0-0.parquet"
    ]


@pytest.mark.parametrize("widens", [False, True])
@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        (pa.list_(pa.null()), []),
        (pa.struct([("b", pa.null())]), {"b": None}),
        (pa.map_(pa.string(), pa.null()), [("k", None)]),
        (pa.list_(pa.list_(pa.null())), [[]]),
    ],
)
def test_a_column_with_a_part_without_a_type_settles_no_schema(
    tmp_path: Path,
    column_type: pa.DataType,
    value: object,
    widens: bool,  # noqa: FBT001, a parameter
) -> None:
    """Later values of that part would be refused for ever."""
    untyped = pa.array([value], column_type)
    sink = ParquetSink(tmp_path / "a", widen=widens)
    sink.prepare(JOB)
    writer = opened(sink)
    error = refusal(lambda: list(writer.process(pa.record_batch({"s": untyped}))))
    assert f"column 's' has no type in a part of it, {column_type}" in str(error)

    list(writer.process(pa.record_batch({"i": [1]})))
    if widens:
        both = pa.record_batch({"i": [1], "s": untyped})
        error = refusal(lambda: list(writer.process(both)))
        assert "column 's' has no type in a part of it" in str(error)
