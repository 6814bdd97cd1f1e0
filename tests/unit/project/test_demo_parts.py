"""The parts of the demo that compute: how it cuts, counts, compares and shows."""

from __future__ import annotations

import csv
import io
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.projections.tables.attempts import AttemptEnd, AttemptRow
from coordlog.projections.tables.splits import SplitPlace, SplitRow, ThrownAway
from coordlog.schemas.record import Kind, Record
from examples.demo_parts.flights import cut, file_sizes
from examples.demo_parts.follow import Follower, NotSeenError, nth_of_kind
from examples.demo_parts.tables import ATTEMPT_COLUMNS, attempt_rows, thrown_rows, unequal
from examples.demo_parts.tally import ROW, Tally, differences, tally_csv, tally_parquet

CSV = "a,b,when\n1,x,2013-01-01T10:00:00Z\n2,NA,2013-01-01T11:00:00Z\n1,x,2013-01-01T10:00:00Z\n"


def hash_of(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def test_the_flights_make_five_files_of_40000_rows_and_171_small_ones() -> None:
    sizes = file_sizes(336_776)

    assert sum(sizes) == 336_776
    assert sizes.count(40_000) == 5
    assert sizes.count(800) == 170
    assert sizes[-1] == 776
    assert [i for i, size in enumerate(sizes) if size == 40_000] == [0, 35, 70, 105, 140]


def test_rows_that_fill_the_small_files_leave_no_empty_one() -> None:
    assert file_sizes(7, large_files=1, large_rows=3, small_rows=2) == [3, 2, 2]


def test_cutting_puts_each_line_into_one_file_under_its_header(tmp_path: Path) -> None:
    lines = [f"{number}\n".encode() for number in range(7)]

    paths = cut(b"".join([b"n\n", *lines]), tmp_path / "in", [3, 2, 2])

    assert [path.name for path in paths] == ["part-000.csv", "part-001.csv", "part-002.csv"]
    assert [path.read_bytes() for path in paths] == [
        b"n\n0\n1\n2\n",
        b"n\n3\n4\n",
        b"n\n5\n6\n",
    ]


def test_a_cut_that_would_lose_a_row_is_none(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="each row goes into one file"):
        cut(b"n\n1\n2\n", tmp_path / "in", [1])


def test_a_checksum_is_the_sum_of_the_hashes_of_its_values() -> None:
    found = tally_csv(io.StringIO(CSV), null="NA")

    assert found.rows == 3
    assert found.columns["a"].checksum == (2 * hash_of("1") + hash_of("2")) % 2**64
    assert found.columns["b"].checksum == (2 * hash_of("x") + hash_of("\x00")) % 2**64
    assert [found.columns[name].nulls for name in ("a", "b", "when")] == [0, 1, 0]
    first = hash_of("1\x1fx\x1f2013-01-01T10:00:00Z")
    second = hash_of("2\x1f\x00\x1f2013-01-01T11:00:00Z")
    assert found.columns[ROW].checksum == (2 * first + second) % 2**64


def write_parquet(folder: Path, text: str) -> None:
    """The rows of `text`, typed, over two files, in another order."""
    rows = list(csv.DictReader(io.StringIO(text)))
    table = pa.table(
        {
            "when": pa.array([row["when"] for row in rows]).cast(pa.timestamp("us", "UTC")),
            "b": pa.array([None if row["b"] == "NA" else row["b"] for row in rows]),
            "a": pa.array([int(row["a"]) for row in rows]),
        }
    )
    folder.mkdir()
    pq.write_table(table.slice(1), folder / "one.parquet")
    pq.write_table(table.slice(0, 1), folder / "two.parquet")
    (folder / ".coordlog").mkdir()
    pq.write_table(table, folder / ".coordlog" / "hidden.parquet")


def test_parquet_of_the_same_rows_has_the_same_tally_whatever_their_order(tmp_path: Path) -> None:
    write_parquet(tmp_path / "out", CSV)

    found = tally_parquet(tmp_path / "out")

    assert differences(tally_csv(io.StringIO(CSV), null="NA"), found) == []


def test_a_row_that_is_doubled_or_swapped_is_found(tmp_path: Path) -> None:
    expected = tally_csv(io.StringIO(CSV), null="NA")
    doubled = CSV + "2,NA,2013-01-01T11:00:00Z\n"
    # Each column has the values that it should have; they stand in other rows.
    swapped = CSV.replace("1,x,2013-01-01T10", "1,NA,2013-01-01T10", 1).replace("2,NA", "2,x")
    write_parquet(tmp_path / "doubled", doubled)
    write_parquet(tmp_path / "swapped", swapped)

    in_doubled = differences(expected, tally_parquet(tmp_path / "doubled"))
    in_swapped = differences(expected, tally_parquet(tmp_path / "swapped"))

    assert in_doubled[0] == "rows: 3 expected, 4 found"
    assert len(in_doubled) == 5
    assert [line.split(":")[0] for line in in_swapped] == [f"column {ROW}"]


def test_a_column_that_is_missing_is_told() -> None:
    one = tally_csv(io.StringIO("a,b\n1,2\n"), null="NA")
    other = Tally(rows=1, columns={name: one.columns[name] for name in ("a", ROW)})

    assert differences(one, other) == ["column b: missing"]
    assert differences(other, one) == ["column b: not expected"]


def record(kind: Kind) -> Record:
    return Record(epoch=0, driver_id="d", sequence=0, kind=kind, timestamp_us=0, job_id="j")


def test_the_nth_record_of_a_kind_is_the_nth_and_no_other() -> None:
    is_second = nth_of_kind(Kind.FACT, 2)
    kinds = [Kind.FACT, Kind.REQUEST, Kind.FACT, Kind.FACT]

    assert [is_second(record(kind)) for kind in kinds] == [False, False, True, False]


class EmptyLog:
    """A log in which nothing ever stands."""

    def high_watermark(self) -> int:
        """Its start."""
        return 0

    def read(self, from_offset: int, to_offset: int) -> list[object]:
        """Nothing."""
        return []


def test_waiting_for_what_a_dead_process_will_not_write_ends() -> None:
    follower = Follower(EmptyLog())  # type: ignore[arg-type]

    with pytest.raises(NotSeenError, match="has ended"):
        follower.wait_for(lambda _: True, is_over=lambda: True, limit_s=60)


def test_an_attempt_becomes_a_row_with_a_value_for_each_column() -> None:
    attempt = AttemptRow(
        subtask=1,
        attempt_number=2,
        epoch=3,
        driver_id="d",
        stage_run=0,
        spark_task_attempt_id=7,
        spark_attempt_number=0,
        host="h",
        pid=99,
        restored_from=4,
        started_us=0,
        end=AttemptEnd.FAILED,
        ended_us=1,
        reason="killed",
        splits_assigned=5,
        splits_finished=3,
        rows=6_000,
        events_up=1,
        events_down=1,
        events_acked=1,
        events_failed=0,
        checkpoints_acked=2,
        resets=(4, -1),
    )

    (row,) = attempt_rows([attempt])

    assert row == (1, 2, 3, 4, "4 -1", "failed", 5, 3, 6_000, 2, "killed")
    assert len(row) == len(ATTEMPT_COLUMNS)


def test_thrown_away_work_is_listed_in_the_order_of_the_resets() -> None:
    def thrown(split_id: str, sequence: int) -> ThrownAway:
        return ThrownAway(
            operator_id="source",
            split_id=split_id,
            subtask=0,
            attempt_number=1,
            checkpoint_id=2,
            sequence=sequence,
            is_whole=True,
            was_finished=False,
            reason="killed",
            reread_by=(3, 0),
        )

    def split(split_id: str, sequence: int) -> SplitRow:
        return SplitRow(
            operator_id="source",
            split_id=split_id,
            place=SplitPlace.COMMITTED,
            discovered_us=0,
            assignments=(),
            finished_by=(3, 0),
            rows=10,
            thrown_away=(thrown(split_id, sequence),),
            checkpoint_id=5,
        )

    rows = thrown_rows([split("/in/b.csv", 9), split("/in/a.csv", 20)])

    assert rows == [
        ("b.csv", 0, 1, 2, False, "its beginning", 3, 0),
        ("a.csv", 0, 1, 2, False, "its beginning", 3, 0),
    ]


def test_tables_that_differ_say_where() -> None:
    assert unequal("attempts", [(1, "a")], [(1, "a")]) == []
    assert unequal("attempts", [(1, "a"), (2, "b")], [(1, "c")]) == [
        "attempts: 2 rows by the fold, 1 in Spark SQL",
        "attempts: (1, 'a') by the fold, (1, 'c') in Spark SQL",
    ]
