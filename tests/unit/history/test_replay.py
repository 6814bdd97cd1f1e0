"""Replays of recorded histories, crash sweeps, and what the kit imports."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fastavro
import pytest

from coordlog.api.chain import Chain
from coordlog.errors import RestoreError, SourceError
from coordlog.export import write_exported
from coordlog.kernel.builder import KernelConfig
from coordlog.log.copy import to_append
from coordlog.log.file import ExportedLog
from coordlog.offline.prune import planned, prune
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.transform import transform_spec
from coordlog.testing import (
    CrashSweepError,
    HandDrivenJob,
    ReplayError,
    crash_sweep,
    replay,
)
from driven_history import driven_log
from jobs.quota import Granted, QuotaCoordinator, QuotaProvider, Used, User, quota_chain


class GenerousCoordinator(QuotaCoordinator):
    """Today's code: grants one more than is owed."""

    def _settle(self, subtask: int) -> None:
        used, granted = self.state.totals(subtask)
        if used > granted and subtask in self._gateways:
            self._gateways[subtask].send_event(Granted(n=used - granted + 1))


class SilentCoordinator(QuotaCoordinator):
    """Today's code: grants nothing."""

    def _settle(self, subtask: int) -> None:
        del subtask


class RaisingCoordinator(QuotaCoordinator):
    """Raises at the third report, so that the job fails globally."""

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        if isinstance(event, Used) and event.n == 3:
            raise ValueError("three")
        self._settle(subtask)


class TimedCoordinator(QuotaCoordinator):
    """Grants the turn's time."""

    def _settle(self, subtask: int) -> None:
        if subtask in self._gateways:
            self._gateways[subtask].send_event(Granted(n=self.context.now_us()))


def _chain(kind: type[QuotaCoordinator] = QuotaCoordinator) -> Chain:
    class Provider(QuotaProvider):
        def create(self, context: object) -> QuotaCoordinator:
            return kind(context, self.told)  # type: ignore[arg-type]

    return quota_chain(Provider())


def _script(job: HandDrivenJob) -> None:
    for attempt in job.register_all():
        user = User.of(attempt)
        user.say()
        user.handle_all()
        job.trigger()
        user.say()
        user.handle_all()
    job.advance(1.0)


def _driven(chain: Chain | None = None, *, mode: str = "rollback") -> HandDrivenJob:
    """Two epochs: checkpoints, a failed attempt, a crash."""
    first = HandDrivenJob(chain or _chain())
    _script(first)
    first.attempts[1].fail("scripted")
    _script(first)
    first.crash()
    second = HandDrivenJob(chain or _chain(), log=first.log, restore=mode)
    _script(second)
    return second


@pytest.mark.clause("K7")
@pytest.mark.parametrize("mode", ["rollback", "resume"])
def test_a_history_is_replayed_record_for_record_over_failures_and_a_crash(mode: str) -> None:
    job = _driven(mode=mode)

    result = replay(job.log, _chain())

    counted = job.history()
    epochs = [one for one in counted if one.kind is Kind.EPOCH_STARTED]
    assert result.epoch_count == len(epochs) == 2
    assert result.record_count == len(counted) - len(epochs)
    assert result.passed_over_count == 0


@pytest.mark.clause("K7")
def test_the_first_offset_with_another_decision_is_named() -> None:
    job = _driven()
    first = job.history(Kind.EVENT_TO_SUBTASK)[0]
    offsets = {one.sequence: offset for offset, one in enumerate(job.history())}

    with pytest.raises(ReplayError) as caught:
        replay(job.log, _chain(GenerousCoordinator))

    error = caught.value
    assert (error.offset, error.kind, error.what) == (
        offsets[first.sequence],
        "EVENT_TO_SUBTASK",
        "payload",
    )
    assert error.recorded == repr(first.payload)
    assert error.new != error.recorded
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_record_that_is_no_longer_made_and_one_that_is_new_are_found() -> None:
    with pytest.raises(ReplayError) as fewer:
        replay(_driven().log, _chain(SilentCoordinator))
    with pytest.raises(ReplayError) as more:
        replay(_driven(_chain(SilentCoordinator)).log, _chain())

    assert fewer.value.new is None
    assert more.value.recorded is None


def test_a_turn_is_replayed_at_its_own_time() -> None:
    job = HandDrivenJob(_chain(TimedCoordinator))
    (attempt,) = job.register_all()
    for _ in range(3):
        job.advance(1.5)
        User.of(attempt).say()

    replay(job.log, _chain(TimedCoordinator))


@pytest.mark.may_fail("ValueError: three")
def test_a_callback_that_raises_is_replayed_with_its_global_failure() -> None:
    job = HandDrivenJob(_chain(RaisingCoordinator))
    (attempt,) = job.register_all()
    user = User.of(attempt)
    for _ in range(3):
        user.say()
        user.handle_all()
    job.stage_ends("cancelled")
    job.advance(60.0)
    assert len(job.history(Kind.GLOBAL_FAILURE)) == len(job.history(Kind.RESET_TO_CHECKPOINT)) == 1

    replay(job.log, _chain(RaisingCoordinator))
    with pytest.raises(ReplayError) as caught:
        replay(job.log, _chain())

    assert caught.value.kind == "GLOBAL_FAILURE"


@pytest.mark.clause("K7")
@pytest.mark.may_fail("scripted")
def test_an_epoch_is_replayed_with_the_limits_that_it_ran_with() -> None:
    def never_again(config: KernelConfig) -> KernelConfig:
        return replace(config, restarts_max=0)

    def once(config: KernelConfig) -> KernelConfig:
        return replace(config, restarts_max=1)

    job = HandDrivenJob(_chain(), configure=never_again)
    job.register(0).fail()
    history = job.log
    assert job.history(Kind.JOB_FAILED)

    replay(history, _chain())
    with pytest.raises(ReplayError, match="JOB_FAILED"):
        replay(history, _chain(), configure=once)


def test_a_turn_that_records_a_refusal_is_taken_as_recorded() -> None:
    job = HandDrivenJob(_chain())
    (attempt,) = job.register_all()
    attempt.ack("source", 999)
    User.of(attempt).say()

    assert replay(job.log, _chain()).passed_over_count == 1


def test_void_records_change_nothing() -> None:
    job = _driven()
    before = replay(job.log, _chain())
    job.log.store(to_append(job.log.records[4]))
    assert replay(job.log, _chain()) == before


@pytest.mark.slow
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_whole_job_with_kills_is_replayed(tmp_path: Path, *, is_batch: bool) -> None:
    log = driven_log(tmp_path, "driven", is_batch=is_batch)
    sink = ParquetSink(tmp_path / "out")
    sink.prepare("driven")
    source = FileSource(tmp_path / "in", batch_rows=10)
    chain = Chain(source=source.spec(), operators=[transform_spec(_same), sink.spec()])

    result = replay(log, chain)

    assert result.epoch_count == 2
    assert result.turn_count > 50


def _same(batch: object) -> object:
    return batch


# the file


def test_a_file_holds_all_of_a_log_and_its_identity(tmp_path: Path) -> None:
    job = _driven()
    path = tmp_path / "job.avro"

    count = write_exported(job.log, "job", path)

    read = ExportedLog(path)
    assert read.identity == job.log.identity
    assert tuple(read.read(0, read.high_watermark())) == job.log.records
    assert count == len(job.log.records)
    assert replay(path, _chain()) == replay(job.log, _chain())


@pytest.mark.parametrize("left", [0, 10, 0.5, 0.999])
def test_a_damaged_file_is_refused(tmp_path: Path, left: float) -> None:
    path = tmp_path / "job.avro"
    write_exported(_driven().log, "job", path)
    whole = path.read_bytes()
    path.write_bytes(whole[: left if isinstance(left, int) else int(len(whole) * left)])

    with pytest.raises(SourceError, match="export it again"):
        replay(path, _chain())


def test_a_file_that_lacks_its_last_records_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.avro"
    write_exported(_driven().log, "job", path)
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        about = {k: v for k, v in reader.metadata.items() if k.startswith("coordlog.")}
        rows, schema = list(reader), reader.writer_schema
    assert schema is not None
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows[:-2], metadata=about)

    with pytest.raises(SourceError, match="it ends at offset"):
        replay(path, _chain())


def test_a_history_without_its_beginning_is_refused() -> None:
    log = _driven().log
    log.remove_below(3)

    with pytest.raises(RestoreError, match="the archive of its first prune"):
        replay(log, _chain())


def test_the_archive_of_the_first_prune_can_be_replayed(tmp_path: Path) -> None:
    job = HandDrivenJob(_chain(), options=RuntimeOptions(snapshot_every=5))
    _script(job)
    archive = tmp_path / "archive.avro"
    prune(job.log, "job", planned(job.log, "job"), archive)

    assert replay(archive, _chain()).turn_count > 2


# crashes


def _finish(job: HandDrivenJob) -> None:
    for attempt in job.register_all():
        user = User.of(attempt)
        while user.said < 5:
            user.say()
            user.handle_all()
        user.handle_all()


def _granted_is_used(job: HandDrivenJob) -> None:
    state = job.runtime.state.projections["source"]
    used, granted = state.totals(0)
    assert used == granted == 15


def test_a_sweep_crashes_after_every_record_and_restores_in_both_ways() -> None:
    whole = HandDrivenJob(_chain())
    _script(whole)

    result = crash_sweep(_chain, _script, _finish, _granted_is_used)

    assert result.crash_count + result.not_resumable_count == 2 * whole.log.high_watermark()
    assert result.crash_count > whole.log.high_watermark()


def test_a_sweep_says_after_how_many_records_it_went_wrong() -> None:
    def check(job: HandDrivenJob) -> None:
        assert not job.history(Kind.EVENT_ACKED)

    def nothing(job: HandDrivenJob) -> None:
        del job

    job = HandDrivenJob(_chain())
    _script(job)
    first = next(n for n, one in enumerate(job.history()) if one.kind is Kind.EVENT_ACKED)

    with pytest.raises(CrashSweepError) as caught:
        crash_sweep(_chain, _script, nothing, check, modes=["rollback"])

    assert (caught.value.record_count, caught.value.restore) == (first + 1, "rollback")


def test_the_kit_imports_neither_kafka_nor_spark() -> None:
    loaded = _modules_after("import coordlog.testing")

    assert "coordlog" in loaded
    assert not {"kafka", "pyspark", "py4j"} & set(loaded)


def _modules_after(code: str) -> Sequence[str]:
    code += "; import sys; print(*{one.split('.')[0] for one in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()
