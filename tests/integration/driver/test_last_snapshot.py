"""The last act of a driver: at each orderly end a snapshot is the last record of its log."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from coordlog.errors import JobFailedError
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog, _MemoryWriter
from coordlog.projections.inspection.prune_plan import plan_prune
from coordlog.projections.inspection.verify import verify
from coordlog.projections.snapshot.codec import state_and_kept_apart
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.record import Kind
from jobs.file_pipeline import ALL_ROWS, WAIT_S, Pipeline

pytestmark = [pytest.mark.slow, pytest.mark.clause("E9")]


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def shortened(log: MemoryLog) -> None:
    """Check that a snapshot is the log's last record, and remove everything before it."""
    last = log.records[-1]
    assert last.record().kind is Kind.SNAPSHOT
    assert verify(log.records).faults == []
    plan = plan_prune(log.records)
    assert plan.begins_with is not None
    assert plan.begins_with.offset == last.offset
    log.delete_below(last.offset)


def test_a_finished_job_ends_with_a_snapshot_and_stays_finished(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, is_batch=True, transform=same)
    assert pipeline.drive().status is JobStatus.FINISHED
    shortened(pipeline.log)

    assert pipeline.drive().status is JobStatus.ALREADY_FINISHED
    assert len(pipeline.log.records) == 1, "nothing was appended"
    assert pipeline.committed() == ALL_ROWS


@pytest.mark.parametrize("is_at_once", [False, True], ids=["in order", "at once"])
def test_a_stopped_driver_ends_with_one_snapshot_and_the_job_continues(
    tmp_path: Path, *, is_at_once: bool
) -> None:
    is_under_way = threading.Event()
    is_open = threading.Event()

    def held(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("a")[0].as_py() > 200:
            is_under_way.set()
            is_open.wait(WAIT_S)
        return batch

    pipeline = Pipeline(tmp_path, is_batch=False, transform=held)
    driver = pipeline.begin()
    assert is_under_way.wait(WAIT_S)
    try:
        if is_at_once:
            driver.end_at_once(by="SIGTERM")
        else:
            driver.stop(with_checkpoint=True, timeout_s=0.2, by="SIGTERM")
        driver.end_at_once(by="a second signal")
    finally:
        is_open.set()
    result = driver.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.STOPPED
    kinds = [stored.record().kind for stored in pipeline.log.records[-2:]]
    assert kinds[0] is not Kind.SNAPSHOT, "a second end adds no second snapshot"
    shortened(pipeline.log)

    assert pipeline.drive().status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS


def test_a_failed_job_ends_with_a_snapshot_for_the_next_driver(
    tmp_path: Path,
) -> None:
    is_broken = True

    def breaking(batch: pa.RecordBatch) -> pa.RecordBatch:
        if is_broken and batch.column("a")[0].as_py() > 500:
            message = "no rows today"
            raise ValueError(message)
        return batch

    pipeline = Pipeline(tmp_path, is_batch=False, transform=breaking)
    with pytest.raises(JobFailedError, match="no rows today"):
        pipeline.drive(restarts_max=0)
    state, _ = state_and_kept_apart(pipeline.log.records[-1].record())
    assert "no rows today" in state.reasons[0], "the snapshot has the failure"
    shortened(pipeline.log)
    is_broken = False

    assert pipeline.drive().status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS


def test_a_job_is_finished_even_if_its_last_snapshot_is_not_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = _MemoryWriter.append

    def appended(
        self: _MemoryWriter, records: Sequence[UnstoredRecord], *, timeout_s: float
    ) -> Sequence[int]:
        kinds = [log.kind_of(record) for record in records]
        if is_over.is_set() and Kind.SNAPSHOT in kinds:
            message = "the log is full"
            raise RefusedError(message)
        if Kind.JOB_FINISHED in kinds:
            is_over.set()
        return append(self, records, timeout_s=timeout_s)

    is_over, log = threading.Event(), _Kinds()
    monkeypatch.setattr(_MemoryWriter, "append", appended)
    pipeline = Pipeline(tmp_path, is_batch=True, transform=same)
    assert pipeline.drive().status is JobStatus.FINISHED
    kinds = [stored.record().kind for stored in pipeline.log.records]
    assert Kind.JOB_FINISHED in kinds
    assert kinds[-1] is not Kind.SNAPSHOT


class RefusedError(Exception):
    """The append fails."""


class _Kinds:
    """Kinds of records that are to be appended."""

    def kind_of(self, record: UnstoredRecord) -> Kind:
        stored = MemoryLog("one")
        stored.store(record)
        return stored.records[0].record().kind
