"""Going on elsewhere from an older checkpoint: the same job, and another one; files in, Parquet out (clause E6)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from coordlog import Chain, DeltaSink
from coordlog.cli.exit_status import Exit, exit_of
from coordlog.cli.main import main
from coordlog.errors import JobFailedError, RestoreError, SinkError
from coordlog.log.memory import MemoryLog
from coordlog.offline.adopt import adopt, copy_history
from coordlog.offline.fork import find_fork_point, fork_to
from coordlog.projections.tables.audit import audit_records
from coordlog.runtime.driver import JobDriver, JobStatus
from coordlog.schemas.builtin_types import DriverStopped
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.files.payloads import PublishFiles
from coordlog.spark_integration.transform import transform_spec
from coordlog.testing.in_memory import InMemorySurroundings
from fakes.kernel_fakes import log_of
from histories.one_log import OneLog
from jobs.file_pipeline import ALL_ROWS, WAIT_S, KilledError, Pipeline, at, kill_driver

pytestmark = [pytest.mark.slow, pytest.mark.clause("E6")]


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.005)  # so that several checkpoints come before the end; nothing waits for it
    return batch


def slower(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.05)  # so that commits of a table come before the end
    return batch


def killed_after(count: int, tmp_path: Path) -> Pipeline:
    """A streaming job whose driver died when so many checkpoints had been committed, and none was about to be."""
    pipeline = Pipeline(tmp_path, is_batch=False, transform=slow)
    kill_after(count, pipeline)
    return pipeline


def kill_after(count: int, pipeline: Pipeline, from_checkpoint: int | None = None) -> None:
    """The same for its next driver."""
    outcomes = 0

    def look(
        driver: JobDriver, surroundings: InMemorySurroundings, records: Sequence[Record]
    ) -> None:
        nonlocal outcomes
        outcomes += sum(one.kind is Kind.COMMIT_OUTCOME for one in records)
        state = driver.state
        if outcomes >= count and state is not None and not state.intents and not state.granted:
            kill_driver(driver, surroundings)

    with pytest.raises(KilledError):
        pipeline.drive(look, from_checkpoint=from_checkpoint)


def rows_up_to(pipeline: Pipeline, checkpoint_id: int) -> list[int]:
    """The rows that the checkpoints up to this one have published, by their intents."""
    found: list[int] = []
    for one in audit_records(pipeline.log.read(0, pipeline.log.high_watermark())):
        record = one.record
        if not one.counts or record is None or record.kind is not Kind.COMMIT_INTENT:
            continue
        if (record.checkpoint_id or 0) > checkpoint_id:
            continue
        types = pipeline.chain.payload_types
        intent = cast("PublishFiles", types.decode(record.payload_type, record.payload))
        for each in intent.files:
            table = pq.read_table(pipeline.out / each.final)
            found += table.column("a").to_pylist()
    return found


def test_the_same_job_writes_the_rows_after_the_checkpoint_elsewhere(tmp_path: Path) -> None:
    pipeline = killed_after(4, tmp_path)
    first, number = pipeline.out, retained(pipeline)[0]
    before = pipeline.log.high_watermark()
    with pytest.raises(RestoreError, match="its rows would be committed again"):
        pipeline.drive(from_checkpoint=number)
    assert pipeline.log.high_watermark() == before
    early = rows_up_to(pipeline, number)
    pipeline.write_to(tmp_path / "elsewhere")
    result = pipeline.drive(from_checkpoint=number)

    assert result.status is JobStatus.FINISHED
    assert sorted(early + pipeline.committed()) == ALL_ROWS
    assert pipeline.left_over() == []
    pipeline.write_to(first)
    with pytest.raises((RestoreError, SinkError)):
        pipeline.drive(from_checkpoint=number)


def test_a_job_goes_on_elsewhere_with_a_sink_of_another_format(tmp_path: Path) -> None:
    """From files into a table, and from the table into files."""
    pipeline = killed_after(4, tmp_path)
    (number, *_) = retained(pipeline)
    early, table = rows_up_to(pipeline, number), tmp_path / "table"
    pipeline.sink = DeltaSink(table)  # type: ignore[assignment]  # it is called as a `ParquetSink`
    pipeline.chain = Chain(
        source=pipeline.source.spec(),
        operators=[transform_spec(slower), pipeline.sink.spec()],
    )
    kill_after(1, pipeline, from_checkpoint=number)
    between = DeltaTable(table).to_pyarrow_table()["a"].to_pylist()
    pipeline.write_to(tmp_path / "files-again")
    assert pipeline.drive().status is JobStatus.FINISHED
    assert between
    assert sorted(early + between + pipeline.committed()) == ALL_ROWS


def retained(pipeline: Pipeline) -> list[int]:
    """The checkpoints that the dead driver's log retains, ascending."""
    done = [
        one.record.checkpoint_id
        for one in audit_records(pipeline.log.read(0, pipeline.log.high_watermark()))
        if one.counts and one.record and one.record.kind is Kind.CHECKPOINT_COMPLETED
    ]
    return [one for one in done if one is not None][-3:]


def test_another_job_begins_from_a_checkpoint_and_writes_the_rows_after_it(tmp_path: Path) -> None:
    pipeline = killed_after(4, tmp_path)
    (number, *_) = retained(pipeline)
    early = rows_up_to(pipeline, number)
    log = MemoryLog("other")
    fork_to(pipeline.log, log, find_fork_point(pipeline.log, "job", str(number)), job_id="other")
    whole = pipeline.drive()
    assert whole.status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS, "the first job is not disturbed"

    first, pipeline.job_id, pipeline.log = pipeline.out, "other", log
    with pytest.raises((RestoreError, SinkError)):
        pipeline.drive()
    pipeline.write_to(tmp_path / "elsewhere")
    result = pipeline.drive()
    assert result.status is JobStatus.FINISHED
    assert sorted(early + pipeline.committed()) == ALL_ROWS
    assert first != pipeline.out


@pytest.mark.clause("E9")
def test_a_racing_drivers_open_commits_are_missed_at_a_new_destination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read before the first intent, taken over behind it: compared with where the driver before was to write."""
    pipeline = Pipeline(tmp_path, is_batch=False, transform=slow)
    with pytest.raises(KilledError):
        pipeline.drive(at(Kind.COMMIT_INTENT, 1, kill_driver))
    end, was = pipeline.log.high_watermark(), pipeline.out
    counted = [one for one in audit_records(pipeline.log.read(0, end)) if one.counts and one.record]
    # Where no row had come by the first checkpoint that one has nothing to commit.
    (number,) = {
        one.record.checkpoint_id
        for one in counted
        if one.record and one.record.kind is Kind.COMMIT_INTENT
    }
    completed = next(
        n
        for n, one in enumerate(counted)
        if one.record and one.record.kind is Kind.CHECKPOINT_COMPLETED
    )
    read = max(
        one.offset + 1
        for one in counted[:completed]
        if one.record and not one.record.turn_remaining
    )
    high_watermark, ends = pipeline.log.high_watermark, iter([read])
    monkeypatch.setattr(
        pipeline.log, "high_watermark", lambda: next(ends, None) or high_watermark()
    )
    pipeline.write_to(tmp_path / "elsewhere")

    with pytest.raises(RestoreError) as refused:
        pipeline.drive(is_take_over=True)

    assert f"the intent of checkpoint {number} of operator" in str(refused.value)
    assert f"to be committed to {was}" in str(refused.value)
    own = [found.record for found in audit_records(pipeline.log.read(0, high_watermark()))]
    kinds = [(record.kind, record.payload_type) for record in own[end:] if record is not None]
    assert kinds[0] == (Kind.EPOCH_STARTED, None)
    stopped = payload_type_of(DriverStopped).key
    assert {payload_type for _, payload_type in kinds[1:]} == {stopped}, "its end, and nothing else"
    assert not list((tmp_path / "elsewhere").glob("*.parquet"))


@pytest.mark.clause("E9")
def test_a_new_log_at_a_destination_that_has_rows_of_the_job_is_refused(tmp_path: Path) -> None:
    pipeline = killed_after(1, tmp_path)
    before = pipeline.log.high_watermark()
    copied = log_of(pipeline.log.read(before - 2, before), "copied in part")
    for log, error, said in (
        (MemoryLog("empty"), SinkError, "an earlier history of job 'job' has published"),
        (copied, RestoreError, "none of the 2 below offset 2"),
    ):
        end, pipeline.log = log.high_watermark(), log
        with pytest.raises(error, match=said):
            pipeline.drive()
        assert log.high_watermark() == end


@pytest.mark.clause("E9")
def test_files_published_after_a_copy_are_published_again_unless_moved(
    tmp_path: Path,
) -> None:
    """As docs/adopting.md has it: a history names all that it has published, so the rest is found by name."""
    pipeline = killed_after(2, tmp_path)
    copy, adopted = MemoryLog("copy"), MemoryLog("adopted")
    copy_history(pipeline.log, copy, "job")
    pipeline.drive()
    assert pipeline.committed() == ALL_ROWS
    adopt(copy, adopted, "job")
    shown = CliRunner().invoke(
        main,
        ("history", "job", "--kind", "COMMIT_INTENT", "--json"),
        obj=lambda _servers: OneLog(adopted),
    )
    intents = [json.loads(line) for line in shown.stdout.splitlines()]
    known = {each["final"] for one in intents if one["counts"] for each in one["payload"]["files"]}
    there = {one.name for one in pipeline.out.glob("*.parquet")}
    assert known < there, "some are of later"
    for name in sorted(there - known):
        (pipeline.out / name).unlink()
    pipeline.log = adopted
    pipeline.drive()
    assert pipeline.committed() == ALL_ROWS
    assert set(known) <= {one.name for one in pipeline.out.glob("*.parquet")}


@pytest.mark.clause("K2")
def test_a_driver_left_at_the_old_cluster_publishes_nothing_more(
    tmp_path: Path,
) -> None:
    """It stands still while the job is adopted, and goes on while that one writes to the same place."""
    pipeline = Pipeline(tmp_path, is_batch=False, transform=slow)
    left, first, second = pipeline.log, Standing(), Standing()
    before = pipeline.begin(at(Kind.COMMIT_OUTCOME, 2, first.stand))
    first.wait()
    now = adopted_beside(pipeline, Kind.COMMIT_OUTCOME, second)
    end = left.high_watermark()
    first.go_on()

    with pytest.raises(JobFailedError) as failed:
        before.wait(WAIT_S)
    second.go_on()
    result = now.wait(WAIT_S)
    said = "since this driver began the job continues there with another log, adopted"
    assert said in str(failed.value)
    later = [one.record() for one in left.read(end, left.high_watermark())]
    outcomes = [one for one in later if one.kind is Kind.COMMIT_OUTCOME]
    assert [one.attributes["settled"] for one in outcomes] == ["false"], "tried once, and no more"
    assert exit_of(failed.value) is Exit.FENCED
    assert result is not None
    assert result.status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS


def test_a_driver_left_behind_by_an_adoption_deletes_no_file_of_the_job(
    tmp_path: Path,
) -> None:
    """Its reset throws away what was staged in batch, which the job that goes on has kept, and publishes at its end."""
    pipeline = Pipeline(tmp_path, is_batch=True, transform=slow)
    left, first, second = pipeline.log, Standing(), Standing()
    before = pipeline.begin(at(Kind.SPLIT_FINISHED, 8, first.stand))
    first.wait()
    now = adopted_beside(pipeline, Kind.SPLIT_FINISHED, second)
    assert first.surroundings is not None
    first.surroundings.abort("an executor was lost four times")
    end = left.high_watermark()
    first.go_on()

    with pytest.raises(JobFailedError):
        before.wait(WAIT_S)
    second.go_on()
    result = now.wait(WAIT_S)
    later = [one.record().kind for one in left.read(end, left.high_watermark())]
    assert Kind.RESET_TO_CHECKPOINT in later
    assert result is not None
    assert result.status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS


def adopted_beside(pipeline: Pipeline, kind: Kind, second: Standing) -> JobDriver:
    """The driver of the job's adopted copy, while the one before stands still; stopped after a record of that kind."""
    left, copy = pipeline.log, MemoryLog("copy")
    pipeline.log = MemoryLog("adopted")
    copy_history(left, copy, "job")
    adopt(copy, pipeline.log, "job")
    pipeline.write_to(pipeline.out)
    now = pipeline.begin(at(kind, 1, second.stand))
    second.wait()
    return now


class Standing:
    """A driver that is stopped for a while, as by a pause of its machine."""

    def __init__(self) -> None:
        self._stands, self._goes_on = threading.Event(), threading.Event()
        self.surroundings: InMemorySurroundings | None = None

    def stand(self, _driver: JobDriver, surroundings: InMemorySurroundings) -> None:
        """Of the driver's own thread."""
        self.surroundings = surroundings
        self._stands.set()
        assert self._goes_on.wait(WAIT_S)

    def wait(self) -> None:
        assert self._stands.wait(WAIT_S)

    def go_on(self) -> None:
        self._goes_on.set()
