"""A reader that is restored from a snapshot gives the rows not given before, each once."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.source.source import FileSource
from fakes.chain_fakes import FakeContext, ReadOut, contents, read_all, read_on

ROW_COUNT = 60
EXPECTED = [(i, f"name {i}") for i in range(ROW_COUNT)]


def csv_text(first: int, last: int) -> bytes:
    return ("i,name\n" + "".join(f"{i},name {i}\n" for i in range(first, last))).encode()


def plain_csv(folder: Path, batch_rows: int) -> FileSource:
    (folder / "a.csv").write_bytes(csv_text(0, 35))
    (folder / "b.csv").write_bytes(csv_text(35, ROW_COUNT))
    return FileSource(folder, batch_rows=batch_rows, block_bytes=64)


def split_csv(folder: Path, batch_rows: int) -> FileSource:
    (folder / "a.csv").write_bytes(csv_text(0, ROW_COUNT))
    return FileSource(
        folder,
        batch_rows=batch_rows,
        block_bytes=64,
        split_bytes=150,
        csv=CsvOptions(no_newlines_in_fields=True),
    )


def packed_csv(folder: Path, batch_rows: int) -> FileSource:
    (folder / "a.csv.gz").write_bytes(gzip.compress(csv_text(0, ROW_COUNT)))
    return FileSource(folder, batch_rows=batch_rows, block_bytes=64)


def parquet(folder: Path, batch_rows: int) -> FileSource:
    table = pa.table({"i": [i for i, _ in EXPECTED], "name": [name for _, name in EXPECTED]})
    pq.write_table(table.slice(0, 33), folder / "a.parquet", row_group_size=10)
    pq.write_table(table.slice(33), folder / "b.parquet", row_group_size=7)
    return FileSource(folder, format="parquet", batch_rows=batch_rows, split_bytes=300)


SOURCES = [plain_csv, split_csv, packed_csv, parquet]


@pytest.mark.clause("L2")
@pytest.mark.parametrize("make", SOURCES)
def test_a_snapshot_after_any_batch_is_read_on_from_there(
    make: Callable[[Path, int], FileSource], tmp_path: Path
) -> None:
    source = make(tmp_path, 4)
    splits, create_reader = contents(source.discover()), source.spec().create_reader
    whole = read_all(create_reader(), splits)
    assert whole.rows == EXPECTED

    for count in range(len(whole.batches) + 1):
        out = ReadOut()
        first = create_reader()
        first.open(FakeContext(), None)
        first.add_splits(splits)
        read_on(first, out, batches_max=count)
        state = first.snapshot_state(1)
        read_on(
            first, ReadOut(), batches_max=2
        )  # what comes after the barrier is lost with the attempt
        first.close()

        second = create_reader()
        second.open(FakeContext(attempt_number=1), state)
        second.start()
        second.notify_no_more_splits()
        read_on(second, out)
        second.close()

        assert out.rows == EXPECTED, f"restored after batch {count}"
        assert sum(one.rows for one in out.finished) == ROW_COUNT


@pytest.mark.slow
@pytest.mark.parametrize("make", SOURCES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch_rows=st.integers(1, 20),
    polls=st.lists(st.integers(0, 9), max_size=8),
)
def test_a_reader_that_dies_again_and_again_gives_each_row_once(
    make: Callable[[Path, int], FileSource],
    tmp_path: Path,
    batch_rows: int,
    polls: list[int],
) -> None:
    source = make(tmp_path, batch_rows)
    create_reader = source.spec().create_reader
    out = ReadOut()
    state: bytes | None = None
    for attempt_number, batches_max in enumerate([*polls, None]):
        reader = create_reader()
        reader.open(FakeContext(attempt_number=attempt_number), state)
        if state is None:
            reader.add_splits(contents(source.discover()))
        reader.notify_no_more_splits()
        read_on(reader, out, batches_max=batches_max)
        state = reader.snapshot_state(attempt_number)
        reader.close()

    assert out.rows == EXPECTED
    assert out.at_end


def test_one_poll_after_a_restore_passes_over_no_more_than_a_block(tmp_path: Path) -> None:
    source = plain_csv(tmp_path, 100)
    first = source.spec().create_reader()
    first.open(FakeContext(), None)
    first.add_splits(contents(source.discover()))
    read_on(first, ReadOut(), batches_max=5)
    state = first.snapshot_state(1)
    first.close()

    second = source.spec().create_reader()
    second.open(FakeContext(), state)
    polls = [second.poll() for _ in range(5)]
    second.close()

    assert [poll.status.value for poll in polls[:4]] == ["waiting"] * 4
    assert all(poll.retry_s == 0.0 for poll in polls[:4])
