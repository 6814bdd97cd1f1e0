"""A source that skips what cannot be read: what comes out, and what the history says of it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.api.chain import Chain
from coordlog.errors import JobFailedError
from coordlog.log.memory import MemoryLog
from coordlog.projections.job.state import JobState
from coordlog.projections.splits.fold import Skipped, SplitsState
from coordlog.runtime.driver import DriverOptions, JobDriver, JobResult, JobStatus
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.transform import transform_spec
from coordlog.testing.in_memory import InMemorySurroundings

ROWS = 200
WAIT_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.clause("J2")]


@dataclass
class Ran:
    """A job that has ended."""

    result: JobResult
    state: JobState
    log: MemoryLog
    out: Path

    def rows_of(self, file: int) -> list[int]:
        """What came out of an input file, sorted."""
        if not self.out.exists():
            return []
        rows = pq.read_table(self.out).column("a").to_pylist()
        return sorted(row for row in rows if row // ROWS == file)

    def skipped(self) -> dict[str, int | None]:
        """The rows that stay of each skipped file, by name, as the history's newest record has it."""
        return {
            Path(split_id).name: one.rows
            for (_, split_id), one in sorted(self.state.skipped_splits.items())
        }


def csv_text(number: int, *, bad_at: int | None = None) -> str:
    rows = [f"{row},x{row}\n" for row in range(number * ROWS, (number + 1) * ROWS)]
    if bad_at is not None:
        rows[bad_at] = "no number,x\n"
    return "a,b\n" + "".join(rows)


def run(
    source: FileSource,
    folder: Path,
    *,
    is_batch: bool,
    transform: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
    keeps_state_across_splits: bool = False,
) -> Ran:
    sink, log = ParquetSink(folder / "out"), MemoryLog("job")
    sink.prepare("job")
    middle = transform_spec(transform)
    if keeps_state_across_splits:
        middle = replace(middle, keeps_state_across_splits=True)
    chain = Chain(source=source.spec(), operators=[middle, sink.spec()])
    driver = JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id="job",
            parallelism=2,
            is_batch=is_batch,
            runtime=RuntimeOptions(checkpoint_interval_s=None if is_batch else 0.02),
            restarts_max=3,
            restart_backoff_s=0.01,
        ),
        surroundings=InMemorySurroundings(chain, "job", 2),
    )
    driver.start()
    result = driver.wait(WAIT_S)
    assert result is not None, f"not over within {WAIT_S} s"
    state = driver.state
    assert state is not None
    return Ran(result, state, log, folder / "out")


def source_of(folder: Path, on_error: Literal["fail", "skip"] = "skip") -> FileSource:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    return FileSource(folder, schema=schema, batch_rows=10, block_bytes=400, on_error=on_error)


def listed_then(source: FileSource, act: Callable[[], None]) -> FileSource:
    """The source, to which something happens once it has been listed."""
    real = source.discover

    def discover() -> object:
        found = real()
        act()
        return found

    source.discover = discover  # type: ignore[method-assign, assignment]
    return source


def made_files(folder: Path) -> Path:
    """Ten files: 3 has a bad row after some that are good, 6 is cut off, 8 is gone once listed."""
    files = folder / "in"
    files.mkdir()
    for number in range(10):
        (files / f"{number}.csv").write_text(csv_text(number, bad_at=150 if number == 3 else None))
    return files


def damage(files: Path) -> None:
    (files / "6.csv").write_text((files / "6.csv").read_text()[:1000])
    (files / "8.csv").unlink()


def move(files: Path) -> None:
    files.rename(files.parent / "elsewhere")


GOOD = [0, 1, 2, 4, 5, 7, 9]


def test_in_batch_nothing_of_a_skipped_split_comes_out(tmp_path: Path) -> None:
    files = made_files(tmp_path)
    source = listed_then(source_of(files), lambda: damage(files))
    ran = run(source, tmp_path, is_batch=True)

    assert ran.result.status is JobStatus.FINISHED
    for number in GOOD:
        assert ran.rows_of(number) == list(range(number * ROWS, (number + 1) * ROWS))
    for number in (3, 6, 8):
        assert ran.rows_of(number) == []
    assert ran.skipped() == {"3.csv": 0, "6.csv": 0, "8.csv": 0}
    reasons = {Path(k[1]).name: one.reason for k, one in ran.state.skipped_splits.items()}
    assert "no number" in reasons["3.csv"]
    assert "it had" in reasons["6.csv"]
    assert "it has vanished" in reasons["8.csv"]
    assert [one.next_attempt_number for _, one in sorted(ran.state.subtasks.items())] == [1, 1]
    assert [one.split_id for one in ran.result.skipped_splits] == sorted(
        str(files / f"{number}.csv") for number in (3, 6, 8)
    )


@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch with state"])
def test_elsewhere_exactly_the_rows_come_out_that_the_history_names(
    tmp_path: Path,
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    files = made_files(tmp_path)
    source = listed_then(source_of(files), lambda: damage(files))
    ran = run(source, tmp_path, is_batch=is_batch, keeps_state_across_splits=True)

    for number in GOOD:
        assert ran.rows_of(number) == list(range(number * ROWS, (number + 1) * ROWS))
    stays = ran.skipped()["3.csv"]
    assert stays is not None
    assert 0 < stays <= 150, "whole blocks before the bad row"
    assert ran.rows_of(3) == list(range(3 * ROWS, 3 * ROWS + stays))
    assert (ran.skipped()["6.csv"], ran.skipped()["8.csv"]) == (0, 0)


def test_rows_after_a_checkpoint_go_with_their_attempt_in_the_history_too(
    tmp_path: Path,
) -> None:
    files = made_files(tmp_path)
    failed = threading.Event()

    def breaking(batch: pa.RecordBatch) -> pa.RecordBatch:
        # The first batch after the skip, of whichever file, takes the attempt with it.
        if batch.column("a")[0].as_py() // ROWS in (4, 5) and not failed.is_set():
            failed.set()
            raise ValueError("scripted")
        return batch

    ran = run(source_of(files), tmp_path, is_batch=False, transform=breaking)

    assert failed.is_set()
    for number in (0, 1, 2, 4, 5, 6, 7, 8, 9):
        assert ran.rows_of(number) == list(range(number * ROWS, (number + 1) * ROWS))
    splits = ran.state.projections["source"]
    assert isinstance(splits, SplitsState)
    place = splits.splits[str(files / "3.csv")].place
    assert isinstance(place, Skipped)
    assert place.rows is not None
    assert ran.rows_of(3) == list(range(3 * ROWS, 3 * ROWS + place.rows))


def test_a_truncated_parquet_file_is_skipped_if_the_listing_cannot_read_it(
    tmp_path: Path,
) -> None:
    files = tmp_path / "in"
    files.mkdir()
    for number in range(3):
        rows = range(number * ROWS, (number + 1) * ROWS)
        pq.write_table(pa.table({"a": list(rows)}), files / f"{number}.parquet")
    whole = (files / "0.parquet").read_bytes()
    (files / "0.parquet").write_bytes(whole[: len(whole) // 2])
    source = FileSource(files, format="parquet", on_error="skip")
    ran = run(source, tmp_path, is_batch=False)

    assert ran.rows_of(1) + ran.rows_of(2) == list(range(ROWS, 3 * ROWS))
    assert ran.skipped() == {"0.parquet": 0}


def test_unreadable_sample_files_are_skipped_with_their_reasons(
    tmp_path: Path,
) -> None:
    files = tmp_path / "in"
    files.mkdir()
    for number in range(3):
        (files / f"{number}.csv").write_text(csv_text(number))
    packed = gzip.compress(csv_text(3).encode())
    (files / "3.csv.gz").write_bytes(packed[: len(packed) // 2])
    (files / "4.csv.gz").write_bytes(b"no gzip at all, but long enough to be looked at")
    (files / "5.csv").write_text("a,b\n1,2,3,4\n")
    ran = run(FileSource(files, on_error="skip"), tmp_path, is_batch=True)

    for number in range(3):
        assert ran.rows_of(number) == list(range(number * ROWS, (number + 1) * ROWS))
    assert pq.read_table(ran.out).num_rows == 3 * ROWS
    assert ran.skipped() == dict.fromkeys(("3.csv.gz", "4.csv.gz", "5.csv"), 0)
    assert all(one.reason for one in ran.result.skipped_splits)


def test_without_it_the_job_fails_and_names_the_command(tmp_path: Path) -> None:
    files = tmp_path / "in"
    files.mkdir()
    for number in range(2):
        (files / f"{number}.csv").write_text(csv_text(number))
    source = listed_then(source_of(files, "fail"), (files / "1.csv").unlink)
    with pytest.raises(JobFailedError, match=r"coordlog skip job --split \S+/1\.csv --reason"):
        run(source, tmp_path, is_batch=False)


def test_a_source_that_is_gone_as_a_whole_is_no_fault_of_a_file(tmp_path: Path) -> None:
    files = made_files(tmp_path)
    source = listed_then(source_of(files), lambda: move(files))
    with pytest.raises(JobFailedError, match=r"in/\d\.csv: it has vanished"):
        run(source, tmp_path, is_batch=False)
