"""A whole job with the real driver, mailbox and threads: files to Parquet over kills and a driver's death."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from coordlog.errors import FencedError, JobFailedError, RestoreError, SinkError
from coordlog.limits import COLLECTOR_YOUNG
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.copy import to_append
from coordlog.log.interface import StoredRecord, UnstoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.log.memory import Meanwhile
from coordlog.offline.epoch import append_fact, read_records
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.driver import JobStatus
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.builtin_types import SplitSkipped
from coordlog.schemas.codec import decode_record, encode_record
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from fakes.kernel_fakes import prefix_of
from histories.log_records import start_driver
from jobs.file_pipeline import (
    ALL_ROWS,
    SUBTASKS,
    WAIT_S,
    KilledError,
    Pipeline,
    at,
    kill_driver,
)

pytestmark = pytest.mark.slow


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.005)  # so that a kill falls in the middle; nothing waits for it
    return batch


def slower(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.02)
    return batch


@pytest.fixture(params=[False, True], ids=["streaming", "batch"])
def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pipeline]:
    before = set(threading.enumerate())
    yield Pipeline(tmp_path, is_batch=request.param, transform=slow)
    ours = [t for t in set(threading.enumerate()) - before if t.name.startswith("coordlog")]
    for thread in ours:
        thread.join(WAIT_S)  # a worker that has nothing to do any more may be about to end
    assert [thread.name for thread in ours if thread.is_alive()] == []


def test_a_start_that_stood_still_while_the_job_ran_finds_it_finished(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read an empty log, and the destination has output: that of the log as it is now."""
    refuse_earlier_output = ParquetSink.refuse_earlier_output

    def after_another_driver(sink: ParquetSink, job_id: str) -> None:
        monkeypatch.undo()
        pipeline.drive()
        refuse_earlier_output(sink, job_id)

    monkeypatch.setattr(ParquetSink, "refuse_earlier_output", after_another_driver)
    result = pipeline.drive()

    assert result.status is JobStatus.ALREADY_FINISHED
    assert pipeline.committed() == ALL_ROWS


def test_a_start_reads_the_log_again_only_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver at work may append without end, and the destination be refused for good."""
    log, refusals = pipeline.log, list[str]()
    with pytest.raises(KilledError):
        pipeline.drive(at(Kind.SPLIT_FINISHED, 2, kill_driver))
    (last,) = log.read(log.high_watermark() - 1, log.high_watermark())

    def refuse(_sink: ParquetSink, job_id: str, *_: object) -> None:
        assert len(refusals) < 2, "it is read without end"
        refusals.append(job_id)
        log.writer().append([to_append(last)], timeout_s=WAIT_S)  # void: its sequence is taken
        raise SinkError("out", "another log writes there", "use another destination")

    monkeypatch.setattr(ParquetSink, "claim", refuse)
    with pytest.raises(SinkError, match="another log writes there"):
        pipeline.drive()

    assert refusals == ["job", "job"]


@pytest.mark.clause("I3")
def test_a_job_without_failures_writes_each_row_once_and_leaves_nothing(
    pipeline: Pipeline,
) -> None:
    result = pipeline.drive()

    assert result.status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS
    assert pipeline.left_over() == []


def test_the_cycle_collector_is_slower_only_while_the_driver_runs(tmp_path: Path) -> None:
    pipeline, young = Pipeline(tmp_path, is_batch=True, transform=slow), list[int]()
    before = gc.get_threshold()

    pipeline.drive(at(Kind.SPLIT_FINISHED, 1, lambda *_: young.append(gc.get_threshold()[0])))

    assert young == [max(COLLECTOR_YOUNG, before[0])]
    assert gc.get_threshold() == before


@pytest.mark.clause("E1")
def test_an_attempt_that_is_killed_loses_and_doubles_no_row(pipeline: Pipeline) -> None:
    kill = at(Kind.SPLIT_FINISHED, 6, lambda _driver, tasks: tasks.kill(1))

    result = pipeline.drive(kill)

    assert result.status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS
    assert pipeline.left_over() == []


@pytest.mark.clause("K5")
@pytest.mark.parametrize("after", [1, 5, 11, 17])
def test_a_driver_that_is_killed_is_followed_by_one_that_finishes(
    pipeline: Pipeline, after: int
) -> None:
    with pytest.raises(KilledError):
        pipeline.drive(at(Kind.SPLIT_FINISHED, after, kill_driver))
    result = pipeline.drive()

    assert result.status is JobStatus.FINISHED
    assert pipeline.restored[-1].mode == ("resume" if pipeline.is_batch else "rollback")
    assert (pipeline.restored[-1].snapshot_offset is not None) or after < 5
    assert pipeline.committed() == ALL_ROWS
    assert pipeline.left_over() == []


@pytest.mark.clause("E9")
def test_a_destination_that_is_gone_with_its_commits_is_refused(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(tmp_path, is_batch=False, transform=slow)
    with pytest.raises(KilledError):
        pipeline.drive(at(Kind.COMMIT_OUTCOME, 3, kill_driver))
    away, before = tmp_path / "away", pipeline.log.high_watermark()
    pipeline.out.rename(away)
    for _ in range(2):  # the first start makes the folder, as one below a mount that is missing
        with pytest.raises(SinkError, match="commits there, and 0 files are left"):
            pipeline.drive()
    assert pipeline.log.high_watermark() == before

    shutil.rmtree(pipeline.out)
    away.rename(pipeline.out)
    assert pipeline.drive().status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS


@pytest.mark.kafka
@pytest.mark.clause("K3")
def test_a_driver_on_a_broker_restores_the_snapshot_before_a_damaged_one(
    tmp_path: Path, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline(tmp_path, is_batch=False, transform=slower)
    name = f"snapshots-{os.getpid()}"
    with closing(KafkaLog.for_job(name, broker.bootstrap_servers, fsync=False)) as log:
        log.create()
        pipeline.on_broker = log
        with pytest.raises(KilledError):
            pipeline.drive(at(Kind.SPLIT_FINISHED, 12, kill_driver))
        chain, end = pipeline.chain, log.high_watermark()
        made = rebuild(log, chain, projection_of(chain))
        whole = rebuild(log, chain, projection_of(chain), is_whole=True)
        assert (made.state, made.place) == (whole.state, whole.place)
        assert made.started_at is not None
        assert made.record_count < whole.record_count

        with closing(
            KafkaLog.for_job(f"{name}-damaged", broker.bootstrap_servers, fsync=False)
        ) as other:
            other.create()
            damaged = [_damaged(one, made.started_at) for one in log.read(0, end)]
            other.writer().append(damaged, timeout_s=30)
            before = rebuild(other, chain, projection_of(chain))
            assert before.started_at is not None
            assert before.started_at < made.started_at
            assert (before.state, before.place) == (whole.state, whole.place)
            assert f"passed over the snapshot at offset={made.started_at}" in caplog.text
            other.delete()

        result = pipeline.drive()
        assert result.status is JobStatus.FINISHED
        assert pipeline.restored[-1].snapshot_offset == made.started_at
        assert pipeline.restored[-1].record_count < end - made.started_at + 5
        assert pipeline.committed() == ALL_ROWS
        started = next(one for one in log.read(end, end + 1))
        assert started.header is not None
        assert started.header.is_epoch_started
        assert started.header.snapshot_offset == made.newest_snapshot.offset >= made.started_at
        log.delete()


def _damaged(one: StoredRecord, offset: int) -> UnstoredRecord:
    """The record; that of the snapshot at `offset` with a bit of its state flipped."""
    value = one.value or b""
    if one.offset == offset:
        record = decode_record(one.offset, value, one.header_bytes)
        payload = record.payload or b""
        flipped = payload[:-20] + bytes([payload[-20] ^ 1]) + payload[-19:]
        value = encode_record(replace(record, payload=flipped))
    return to_append(one, value=value)


@pytest.mark.clause("H3")
def test_a_driver_killed_at_its_intent_has_a_successor_that_settles_it(
    pipeline: Pipeline,
) -> None:
    with pytest.raises(KilledError):
        pipeline.drive(at(Kind.COMMIT_INTENT, 1, kill_driver))
    result = pipeline.drive()

    assert result.status in (JobStatus.FINISHED, JobStatus.ALREADY_FINISHED)
    assert pipeline.committed() == ALL_ROWS


@pytest.mark.clause("K2")
def test_a_command_during_a_start_does_not_end_the_driver(pipeline: Pipeline) -> None:
    with pytest.raises(KilledError):
        pipeline.drive(at(Kind.ATTEMPT_STARTED, SUBTASKS, kill_driver))

    def skip() -> None:
        log = pipeline.log.seen_by("a command")
        fact = SplitSkipped(split_id="gone.csv")
        append_fact(
            log,
            read_records(log),
            fact,
            command="skip",
            check=lambda _: None,
            operator_id="source",
            why="bad",
        )

    pipeline.log.faults.next_append(Meanwhile(skip))
    result = pipeline.drive()
    assert result.status is JobStatus.FINISHED
    assert result.epoch == 2, "the command's is 1"
    assert [split.split_id for split in result.skipped_splits] == ["gone.csv"]
    assert pipeline.committed() == ALL_ROWS


@pytest.mark.clause("K2")
def test_a_driver_during_a_start_ends_the_driver(pipeline: Pipeline) -> None:
    with pytest.raises(KilledError):
        pipeline.drive(at(Kind.ATTEMPT_STARTED, SUBTASKS, kill_driver))
    first = pipeline.log.records[0].record()
    other = to_unstored(replace(first, epoch=1, driver_id="other"))
    pipeline.log.faults.next_append(Meanwhile(lambda: pipeline.log.store(other)))
    with pytest.raises(
        FencedError, match=r"in force is epoch 1 of driver other: it has taken over"
    ):
        pipeline.drive(is_take_over=True)


def test_a_job_that_has_finished_is_not_run_again(pipeline: Pipeline) -> None:
    pipeline.drive()
    before = pipeline.log.high_watermark()

    result = pipeline.drive()

    assert result.status is JobStatus.ALREADY_FINISHED
    assert pipeline.log.high_watermark() == before


@pytest.mark.clause("E9")
def test_a_copy_of_the_log_is_refused_by_both_ids_and_nothing_is_appended(tmp_path: Path) -> None:
    """Two jobs would go on from one history, each sure that it alone writes where both do."""
    pipeline = Pipeline(tmp_path, is_batch=False, transform=slow)
    with pytest.raises(KilledError):
        pipeline.drive(at(Kind.SPLIT_FINISHED, 3, kill_driver))
    there = pipeline.log.identity.topic_id
    pipeline.log = prefix_of(pipeline.log, pipeline.log.high_watermark())
    before = pipeline.log.high_watermark()

    here = pipeline.log.identity.topic_id
    with pytest.raises(RestoreError, match=f"topic's id is {there} in the log and {here} here"):
        pipeline.drive()

    assert pipeline.log.high_watermark() == before


@pytest.mark.clause("K2")
def test_an_idle_driver_ends_after_another_has_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would believe itself in force, and hold its slots, for as long as its subtasks are busy."""
    monkeypatch.setattr("coordlog.runtime.mailbox.LOG_LOOK_S", 0.05)
    busy = threading.Event()

    def waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        busy.wait(WAIT_S)
        return batch

    pipeline = Pipeline(tmp_path, is_batch=True, transform=waits)
    idle = pipeline.begin()
    try:
        with pytest.raises(KilledError):
            pipeline.drive(at(Kind.ATTEMPT_STARTED, 1, kill_driver))
        with pytest.raises(FencedError, match="epoch 1"):
            idle.wait(WAIT_S)
    finally:
        busy.set()


@pytest.mark.clause("K2")
def test_a_driver_paused_before_its_sweep_deletes_no_file_of_the_next_one(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ParquetSink.sweep
    staged = pipeline.out / ".coordlog" / "staging" / "next" / "0-0-0.parquet"

    def late(sink: ParquetSink, *, keep: AbstractSet[str], is_in_force: Callable[[], bool]) -> None:
        start_driver(pipeline.log, "next")
        staged.parent.mkdir()
        staged.write_bytes(b"what only the next driver knows")
        sweep(sink, keep=keep, is_in_force=is_in_force)

    monkeypatch.setattr(ParquetSink, "sweep", late)
    pipeline.drive()

    assert pipeline.left_over() == [staged]


@pytest.mark.clause("E7")
def test_a_rollback_with_fewer_or_more_subtasks_loses_and_doubles_no_row(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, is_batch=False, transform=slower)
    for parallelism in (3, 2, 5, 1):
        with pytest.raises(KilledError):
            pipeline.drive(at(Kind.CHECKPOINT_COMPLETED, 1, kill_driver), parallelism=parallelism)
    result = pipeline.drive(parallelism=4)

    assert result.status is JobStatus.FINISHED
    assert [one.mode for one in pipeline.restored] == ["start", *["rollback"] * 4]
    assert pipeline.restored[-1].checkpoint_id > 0
    assert pipeline.committed() == ALL_ROWS
    assert pipeline.left_over() == []


@pytest.mark.fault("X6")
@pytest.mark.clause("F1")
def test_subtasks_that_have_nothing_to_read_hold_up_no_checkpoint(tmp_path: Path) -> None:
    """A watched folder with one file, which one of three subtasks reads over several checkpoints."""
    are_over, is_read = threading.Event(), threading.Event()

    def until_one_is_over(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not are_over.is_set():
            time.sleep(0.02)
        return batch

    pipeline = Pipeline(tmp_path, is_batch=False, transform=until_one_is_over)
    for file in pipeline.folder.iterdir():
        file.unlink()
    rows = range(int(WAIT_S / 0.02))
    (pipeline.folder / "one.csv").write_text("a,b\n" + "".join(f"{n},x\n" for n in rows), "ascii")
    pipeline.source = FileSource(pipeline.folder, batch_rows=1, watch=Watch(watch_interval_s=0.1))
    pipeline.write_to(pipeline.out)
    acks: list[Record] = []

    def look(_driver: object, _tasks: object, records: Sequence[Record]) -> None:
        acks.extend(one for one in records if one.kind is Kind.CHECKPOINT_ACKED)
        kinds = {one.kind for one in records}
        if Kind.SPLIT_FINISHED in kinds:
            is_read.set()
        if Kind.CHECKPOINT_COMPLETED in kinds and not is_read.is_set():
            are_over.set()

    driver = pipeline.begin(look)
    assert are_over.wait(WAIT_S), "a checkpoint completed while the file was being read"
    assert is_read.wait(WAIT_S)
    driver.stop(with_checkpoint=True, timeout_s=WAIT_S)

    result = driver.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.STOPPED
    assert {one.subtask for one in acks if one.checkpoint_id == 1} == set(range(SUBTASKS))
    assert pipeline.committed() == list(rows)


@pytest.mark.clause("E7")
def test_a_resume_with_another_parallelism_is_refused_and_appends_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, is_batch=True, transform=slow)
    with pytest.raises(KilledError):
        pipeline.drive(at(Kind.SPLIT_FINISHED, 3, kill_driver))
    before = pipeline.log.high_watermark()

    with pytest.raises(RestoreError, match="parallelism is 3 in the log and 2 here"):
        pipeline.drive(parallelism=2)

    assert pipeline.log.high_watermark() == before


@pytest.mark.clause("M3")
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_raising_transform_fails_the_job_by_name_after_all_restarts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_batch: bool
) -> None:
    def raises(_batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ZeroDivisionError("no rows today")

    pipeline = Pipeline(tmp_path, is_batch=is_batch, transform=raises)

    with pytest.raises(JobFailedError, match=r"'transform'.*ZeroDivisionError: no rows today"):
        pipeline.drive(restarts_max=2)
    logged = [line for line in caplog.messages if ", and is replaced: " in line]
    assert len(logged) >= 2, "each failure before the last, while the job tries again"
    assert all("ZeroDivisionError: no rows today" in line for line in logged)


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_clock_that_was_two_hours_ahead_is_told_and_nothing_is_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_batch: bool,
) -> None:
    """The times of a history never go back: they stand still until this clock has caught up."""
    pipeline = Pipeline(tmp_path, is_batch=is_batch, transform=slow)
    right = time.time_ns
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time_ns", lambda: right() + 7_200 * 10**9)
        with pytest.raises(KilledError):
            pipeline.drive(at(Kind.SPLIT_FINISHED, 5, kill_driver))

    result = pipeline.drive(at(Kind.SPLIT_FINISHED, 3, lambda _driver, tasks: tasks.kill(1)))

    assert result.status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS
    assert "s ahead of this machine's clock" in caplog.text
