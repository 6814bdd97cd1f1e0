"""A source that cannot be listed for a while, or for good; and a destination that is full: what a job does then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from coordlog.api.chain import Chain
from coordlog.causes import OUT_OF_SPACE
from coordlog.errors import JobFailedError
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.progress import ProgressFold
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.testing.in_memory import InMemorySurroundings
from jobs.file_pipeline import ALL_ROWS, Pipeline

pytestmark = pytest.mark.slow

WAIT_S = 60.0


class Watched:
    """A job in memory that watches a folder."""

    def __init__(self, folder: Path, *, listing_timeout_s: float) -> None:
        self.folder, self.out, self.log = folder / "in", folder / "out", MemoryLog("job")
        self.folder.mkdir()
        self.fold = ProgressFold()
        source = FileSource(
            self.folder,
            watch=Watch(watch_interval_s=0.05, idle_timeout_s=2.0),
            listing_timeout_s=listing_timeout_s,
        )
        sink = ParquetSink(self.out)
        sink.prepare("job")
        self.chain = Chain(source=source.spec(), operators=[sink.spec()])
        self.driver = JobDriver(
            chain=self.chain,
            log=self.log,
            options=DriverOptions(
                job_id="job",
                parallelism=1,
                is_batch=False,
                runtime=RuntimeOptions(checkpoint_interval_s=0.1),
            ),
            surroundings=InMemorySurroundings(self.chain, "job", 1),
            on_released=self._released,
        )

    def _released(self, records: Sequence[Record]) -> None:
        for one in records:
            self.fold.apply(one)

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < deadline, self.fold.progress
            assert self.driver.wait(0.01) is None, "the job has ended"

    def rows(self) -> list[int]:
        return sorted(pq.read_table(self.out).column("a").to_pylist())

    def history(self, kind: Kind) -> list[Record]:
        stored = self.log.read(0, self.log.high_watermark())
        records = [one.record() for one in stored]
        return [one for one in records if one.kind is kind]


def test_a_watch_outlasts_a_folder_that_is_away_for_a_while(tmp_path: Path) -> None:
    job = Watched(tmp_path, listing_timeout_s=WAIT_S)
    (job.folder / "1.csv").write_text("a\n1\n", encoding="utf-8")
    job.driver.start()
    job.until(lambda: job.fold.progress.rows_published == 1)

    away = job.folder.rename(tmp_path / "away")
    job.until(lambda: job.fold.progress.listing_tries == 2)
    assert "it does not exist" in job.fold.progress.listing_problem
    (away / "2.csv").write_text("a\n2\n", encoding="utf-8")
    away.rename(job.folder)

    result = job.driver.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.FINISHED
    assert job.rows() == [1, 2]
    assert job.history(Kind.ATTEMPT_FAILED) == []


def test_a_folder_that_stays_away_fails_the_job_within_the_bound(
    tmp_path: Path,
) -> None:
    job = Watched(tmp_path, listing_timeout_s=1.5)
    job.driver.start()
    job.until(lambda: bool(job.history(Kind.ATTEMPT_STARTED)))
    job.folder.rmdir()

    with pytest.raises(JobFailedError, match=r"in: it does not exist; .* tries within 2 s failed"):
        job.driver.wait(WAIT_S)
    assert job.history(Kind.RESET_TO_CHECKPOINT) == []


def test_a_destination_that_is_full_ends_the_job_at_once_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, is_batch=False, transform=lambda batch: batch)
    with monkeypatch.context() as full:
        reserve = "coordlog.spark_integration.files.sink.destination.DESTINATION_RESERVE_BYTES"
        full.setattr(reserve, 1 << 60)
        with pytest.raises(JobFailedError, match=r"\[errno 28\] [\d,]+ bytes are free") as caught:
            pipeline.drive()

    assert caught.value.final == OUT_OF_SPACE
    assert caught.value.where.startswith("attempt 0 of subtask")
    assert pipeline.drive().status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS
