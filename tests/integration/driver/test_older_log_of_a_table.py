"""A job goes on from an older copy of its log, which lacks commits that its table has."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from coordlog import Chain, DeltaSink
from coordlog.errors import SinkError
from coordlog.runtime.driver import JobStatus
from coordlog.spark_integration.transform import transform_spec
from jobs.file_pipeline import ALL_ROWS, FILES, ROWS, Pipeline

pytestmark = pytest.mark.slow


class TablePipeline(Pipeline):
    """Files in, a Delta table out."""

    def write_to(self, out: Path) -> None:
        self.out, self.sink = out, DeltaSink(out)  # type: ignore[assignment]  # it is called as a `ParquetSink`
        self.chain = Chain(
            source=self.source.spec(),
            operators=[transform_spec(self.transform), self.sink.spec()],
        )

    def in_table(self) -> list[int]:
        return sorted(DeltaTable(self.out).to_pyarrow_table()["a"].to_pylist())


@pytest.mark.clause("E9")
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_rows_of_an_older_log_are_not_taken_for_committed(
    tmp_path: Path, *, is_batch: bool
) -> None:
    job = TablePipeline(tmp_path, is_batch=is_batch, transform=lambda batch: batch)
    assert job.drive().status is JobStatus.FINISHED
    copied = job.log.high_watermark()
    job.add_files(range(FILES, FILES + 1))
    assert job.drive(again=True).status is JobStatus.FINISHED
    job.log.lose_from(copied)
    job.add_files(range(FILES + 1, FILES + 2))
    for _ in range(2):
        with pytest.raises(SinkError, match="of job 'job' that its log has not"):
            job.drive(again=True)

    assert job.in_table() == [*ALL_ROWS, *range(FILES * ROWS, (FILES + 1) * ROWS)]
