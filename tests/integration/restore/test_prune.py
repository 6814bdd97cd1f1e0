"""A real topic is pruned, with a driver that lives and with none, and the job goes on."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from coordlog.api.chain import Chain
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import OutOfRangeError, RestoreError
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.projections.job.state import JobState
from coordlog.projections.snapshot.codec import SNAPSHOT_TYPE
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.life.history_pruning import KeptHistory
from coordlog.runtime.runtime import RuntimeOptions, to_unstored
from coordlog.schemas.builtin_types import JobSnapshot
from coordlog.schemas.record import Kind
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.transform import transform_spec
from coordlog.spark_integration.wire.token import TOKEN_VARIABLE
from driven_history import ALL_ROWS, DrivenJob
from fakes.endpoint_parts import TOKEN, EndpointSurroundings, wait_for
from jobs.file_pipeline import ALL_ROWS as ALL_NUMBERS
from jobs.file_pipeline import FILES, ROWS, KilledError, Pipeline, kill_driver

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.clause("E9")]

WAIT_S = 60.0
LOOKS = ("verify", "history", "attempts", "splits", "checkpoints", "state")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def run(broker: EmbeddedBroker, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--bootstrap-servers", broker.bootstrap_servers])


def damaged(log: KafkaLog, servers: str) -> KafkaLog:
    """A topic that begins as `log` does, but for a bit in its first snapshot."""
    start = log.start_offset()
    made: list[UnstoredRecord] = []
    for stored in log.read(start, log.high_watermark()):
        record = stored.record()
        if not made:
            assert record.kind is Kind.SNAPSHOT
            value = SNAPSHOT_TYPE.decode(record.payload or b"")
            assert isinstance(value, JobSnapshot)
            state = value.state[:-9] + bytes([value.state[-9] ^ 1]) + value.state[-8:]
            record = replace(record, payload=SNAPSHOT_TYPE.encode(replace(value, state=state)))
        made.append(to_unstored(record))
    copy = KafkaLog.for_job("damaged", servers, fsync=False)
    copy.create()
    writer = copy.writer()
    nothing = UnstoredRecord(key=b"", value=b"", header=b"", timestamp_us=0)
    writer.append([nothing, *made], timeout_s=30)
    writer.close(timeout_s=1)
    copy.delete_below(1)
    return copy


def test_a_pruned_topics_job_continues_and_a_damaged_beginning_is_refused(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    driven = DrivenJob(tmp_path, "shortened", is_batch=False)
    log = KafkaLog.for_job("shortened", broker.bootstrap_servers, fsync=False)
    log.create()
    try:
        driven.drive(log, kill_attempt_at=3, kill_driver_at=9, snapshot_every=60)
        before = log.high_watermark()
        done = run(broker, "prune", "shortened", "--yes", "--take-over")
        assert done.exit_code == Exit.DONE, done.output
        start, end = log.start_offset(), log.high_watermark()
        assert 0 < start < before == end, "a killed driver took it; nothing was appended"
        with pytest.raises(OutOfRangeError):
            log.read(0, end)
        broken = damaged(log, broker.bootstrap_servers)
        try:
            with pytest.raises(
                RestoreError,
                match=r"the snapshot with which its log begins, .* is at offset 1 in the log and not usable",
            ):
                driven.drive(broken)
            assert broken.high_watermark() == end - start + 1, "nothing was appended"
        finally:
            broken.delete()
            broken.close()
        driven.drive(log, kill_attempt_at=2, snapshot_every=60)

        assert driven.rows() == ALL_ROWS
        for command in LOOKS:
            shown = run(broker, command, "shortened")
            assert shown.exit_code == Exit.DONE, shown.output
        again = run(broker, "prune", "shortened", "--yes")
        assert again.exit_code == Exit.DONE, again.output
        assert log.start_offset() > start
        finished = run(broker, "verify", "shortened")
        assert finished.exit_code == Exit.DONE, finished.output
    finally:
        log.delete()
        log.close()


def test_a_pruned_finished_batch_job_stays_finished_until_it_is_reopened(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    pipeline = Pipeline(tmp_path, is_batch=True, transform=lambda batch: batch)
    pipeline.job_id = "done"
    log = KafkaLog.for_job("done", broker.bootstrap_servers, fsync=False)
    log.create()
    pipeline.on_broker = log
    try:
        assert pipeline.drive().status is JobStatus.FINISHED
        before = log.high_watermark()
        done = run(broker, "prune", "done", "--yes")
        assert done.exit_code == Exit.DONE, done.output
        start = log.start_offset()
        assert start == before - 1 == log.high_watermark() - 1, "the last snapshot alone is left"
        too_early = run(broker, "state", "done", "--at", "3")
        assert too_early.exit_code == Exit.USAGE
        assert (
            f"offset is 3; it must be {start} or above, where this log begins" in too_early.stderr
        )
        (archive,) = (tmp_path / "home" / "archives" / "done").iterdir()
        assert run(broker, "state", str(archive), "--at", "3").exit_code == Exit.DONE

        assert pipeline.drive().status is JobStatus.ALREADY_FINISHED
        assert log.high_watermark() == start + 1, "nothing was appended"
        for command in LOOKS:
            shown = run(broker, command, "done")
            assert shown.exit_code == Exit.DONE, shown.output
        assert "finished; batch" in run(broker, "state", "done").stdout
        pipeline.add_files(range(FILES, FILES + 4))
        assert pipeline.drive(again=True).status is JobStatus.FINISHED
        assert pipeline.restored[-1].mode == "again"
        assert pipeline.committed() == list(range((FILES + 4) * ROWS))
        verified = run(broker, "verify", "done")
        assert verified.exit_code == Exit.DONE, verified.output
    finally:
        log.delete()
        log.close()


def test_a_driver_that_lives_is_asked_for_a_snapshot_and_goes_on(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(4):
        (source / f"{number}.csv").write_text(f"a\n{number}\n")
    stuck, released = threading.Event(), threading.Event()

    def sticking(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("a")[0].as_py() == 2:
            stuck.set()
            assert released.wait(WAIT_S)
        return batch

    sink = ParquetSink(tmp_path / "out")
    sink.prepare("job")
    chain = Chain(
        source=FileSource(source).spec(), operators=[transform_spec(sticking), sink.spec()]
    )
    log = KafkaLog.for_job("job", broker.bootstrap_servers, fsync=False)
    log.create()
    driver = JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id="job",
            parallelism=1,
            is_batch=False,
            runtime=RuntimeOptions(checkpoint_interval_s=0.05, snapshot_every=None),
        ),
        surroundings=EndpointSurroundings(chain, "job", 1),
    )
    try:
        driver.start()
        try:
            assert stuck.wait(WAIT_S)
            blind = run(broker, "prune", "job", "--yes")
            assert blind.exit_code == Exit.REFUSED
            assert "and no token that is here proves that it is" in blind.stderr
            monkeypatch.setenv(TOKEN_VARIABLE, TOKEN.text())
            refused = run(broker, "delete", "job", "--yes")
            assert refused.exit_code == Exit.REFUSED
            assert "is driven by a live driver" in refused.stderr
            assert "ws://127.0.0.1" in refused.stderr
            done = run(broker, "prune", "job", "--yes")
            assert done.exit_code == Exit.DONE, done.output
            assert log.start_offset() > 0
        finally:
            released.set()
        result = driver.wait(WAIT_S)

        assert result is not None
        assert (result.status, result.epoch) == (JobStatus.FINISHED, 0)
        verified = run(broker, "verify", "job")
        assert verified.exit_code == Exit.DONE, verified.output
        assert "1 snapshot," in verified.stdout
        assert run(broker, "delete", "job", "--yes").exit_code == Exit.DONE
    finally:
        log.delete()
        log.close()


class Gates:
    """A transform that waits at some rows until the test opens the gate before them.

    Rows below a closed gate pass slowly: checkpoints complete between them.
    """

    def __init__(self, *rows: int) -> None:
        self._gates = {row: threading.Event() for row in rows}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch.column("a")[0].as_py()
        for row, gate in self._gates.items():
            if first < row:
                gate.wait(0.5)
                break
            assert gate.wait(WAIT_S)
        return batch

    def open(self, row: int) -> None:
        self._gates[row].set()


def test_a_job_with_a_short_history_has_a_short_log_and_survives_a_kill(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    gates = Gates(300, 600)
    pipeline = Pipeline(tmp_path, is_batch=False, transform=gates)
    pipeline.job_id = "brief"
    log = KafkaLog.for_job("brief", broker.bootstrap_servers, fsync=False)
    log.create()
    pipeline.on_broker = log
    kept = KeptHistory(age=timedelta(seconds=1), archive=tmp_path / "archives")
    try:
        driver = pipeline.begin(history=kept)
        try:
            wait_for(lambda: log.start_offset() > 0, "a first cut")
            first = log.start_offset()
            gates.open(300)
            wait_for(lambda: log.start_offset() > first, "a second cut")
            second = log.start_offset()
        finally:
            kill_driver(driver, None)  # type: ignore[arg-type]
            gates.open(300)
            gates.open(600)
        with pytest.raises(KilledError):
            driver.wait(WAIT_S)
        for command in LOOKS:
            shown = run(broker, command, "brief")
            assert shown.exit_code == Exit.DONE, shown.output

        assert pipeline.drive(is_take_over=True).status is JobStatus.FINISHED
        restored = pipeline.restored[-1]
        assert restored.snapshot_offset is not None
        assert restored.snapshot_offset >= second
        assert pipeline.committed() == ALL_NUMBERS
        assert run(broker, "verify", "brief").exit_code == Exit.DONE
        archives = sorted(path.name for path in (tmp_path / "archives").iterdir())
        assert f"brief-0-{first}.avro" in archives
    finally:
        log.delete()
        log.close()


def test_without_a_driver_a_log_is_cut_to_its_last_snapshot(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    gates = Gates(300)
    pipeline = Pipeline(tmp_path, is_batch=False, transform=gates)
    pipeline.job_id = "halted"
    log = KafkaLog.for_job("halted", broker.bootstrap_servers, fsync=False)
    log.create()
    pipeline.on_broker = log
    try:
        driver = pipeline.begin()
        wait_for(lambda: (driver.state or JobState()).last_checkpoint > 0, "a checkpoint")
        driver.stop(with_checkpoint=True, timeout_s=1, by="test")
        gates.open(300)
        assert driver.wait(WAIT_S) is not None
        end = log.high_watermark()
        done = run(broker, "prune", "halted", "--yes")
        assert done.exit_code == Exit.DONE, done.output
        assert log.start_offset() == end - 1 == log.high_watermark() - 1

        assert pipeline.drive().status is JobStatus.FINISHED
        assert pipeline.restored[-1].mode == "rollback"
        assert pipeline.committed() == ALL_NUMBERS
        for command in LOOKS:
            shown = run(broker, command, "halted")
            assert shown.exit_code == Exit.DONE, shown.output
    finally:
        log.delete()
        log.close()
