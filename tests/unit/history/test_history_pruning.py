"""A driver removes the records that are older than the history that its job keeps."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from coordlog.amounts import age_of
from coordlog.errors import LogUnavailableError, SourceError
from coordlog.log.copy import to_append
from coordlog.log.file import ExportedLog
from coordlog.log.interface import PrunableLog
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.payloads.offload import PayloadOptions
from coordlog.projections.inspection.verify import verify
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.life.history_pruning import HistoryPruner, KeptHistory
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import TakeSavepoint
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeClock, HandDrivenJob
from fakes.kernel_fakes import HANDLED, JumpyClock, NotingProvider, Up, chain_of

pytestmark = pytest.mark.clause("E9")

HOUR = timedelta(hours=1)
HOUR_S = 3600.0


def worked(
    checkpoints: int = 8, *, is_log_pruned: bool = True, clock: FakeClock | None = None
) -> HandDrivenJob:
    """A job with a checkpoint an hour, and some snapshots; its first checkpoint is a savepoint."""
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)),
        options=RuntimeOptions(
            snapshot_every=7,
            is_log_pruned=is_log_pruned,
            ack_timeout_s=1e9,
            checkpoint_timeout_s=1e9,
        ),
        clock=clock,
    )
    work(job, checkpoints)
    return job


def work(job: HandDrivenJob, checkpoints: int) -> None:
    attempt = job.register(0)
    for n in range(checkpoints):
        job.advance(HOUR_S)
        attempt.send("source", Up(n=n))
        checkpoint_id = job.trigger()
        assert checkpoint_id is not None
        attempt.ack_checkpoint(checkpoint_id, states={"source": b"state"})
        if checkpoint_id == 1:
            job.ask("", TakeSavepoint(name="first")).answer()


def pruner_of(
    job: HandDrivenJob, age: timedelta, archive: Path | None = None, log: PrunableLog | None = None
) -> HistoryPruner:
    kept = KeptHistory(age=age, archive=archive)
    return HistoryPruner(
        log or job.log, "job", kept, lambda: job.runtime.snapshot_offset, job.clock
    )


def snapshots(log: MemoryLog) -> list[int]:
    """Offsets of the snapshots."""
    return [stored.offset for stored in log.records if stored.record().kind is Kind.SNAPSHOT]


def test_the_log_is_cut_below_the_newest_snapshot_that_is_old_enough() -> None:
    job = worked()
    now_us = job.clock.now_us()
    before = job.log.records
    cut = pruner_of(job, 3 * HOUR).prune()

    old = [
        stored.offset
        for stored in before
        if stored.record().kind is Kind.SNAPSHOT
        and stored.record().timestamp_us <= now_us - 3 * HOUR_S * 1e6
    ]
    assert cut == old[-1] == job.log.start_offset() > 0
    assert job.log.records == before[cut:]
    young = [stored for stored in before if stored.timestamp_ms * 1000 > now_us - 3 * HOUR_S * 1e6]
    assert set(young) <= set(job.log.records), "no record of the kept history is removed"


def test_the_retained_checkpoints_savepoints_and_the_state_are_as_before() -> None:
    job = worked()
    state = job.runtime.state
    job.advance(10)
    assert pruner_of(job, timedelta(seconds=1)).prune() is not None
    job.crash()

    restored = rebuild(job.log, job.chain, projection_of(job.chain))
    assert restored.state == state
    assert sorted(restored.state.completed) == [1, 6, 7, 8], "the savepoint, and the last three"
    assert verify(job.log.records).faults == []
    back = HandDrivenJob(job.chain, log=job.log, from_checkpoint=1, clock=job.clock)
    assert back.runtime.state.last_checkpoint == 1


def test_a_younger_log_stays_whole_and_is_cut_once_it_is_old_enough() -> None:
    job = worked()
    pruner = pruner_of(job, 100 * HOUR)
    assert pruner.prune() is None
    assert job.log.start_offset() == 0
    newest = snapshots(job.log)[-1]
    job.advance(101 * HOUR_S)

    assert pruner.prune() == newest
    assert pruner.prune() is None, "it begins there already"


def test_a_clock_that_jumps_ahead_removes_nothing_early() -> None:
    clock = JumpyClock()
    job = worked(4, clock=clock)
    pruner = pruner_of(job, 100 * HOUR)
    assert pruner.prune() is None
    work(job, 4)
    clock.ahead_s = 24 * 365 * HOUR_S

    assert pruner.prune() is None, "known and new snapshots are hours old"
    job.advance(95 * HOUR_S)
    cut = pruner.prune()
    assert cut is not None, "the first of them are as old as the history"
    assert cut < snapshots(job.log)[-1]
    job.advance(10 * HOUR_S)
    assert pruner.prune() == snapshots(job.log)[-1]


def test_a_clock_that_is_set_back_delays_no_removal() -> None:
    clock = JumpyClock()
    clock.ahead_s = 24 * 365 * HOUR_S
    job = worked(clock=clock)
    pruner = pruner_of(job, 100 * HOUR)
    clock.ahead_s = 0
    assert pruner.prune() is None
    job.advance(100 * HOUR_S)

    assert pruner.prune() == snapshots(job.log)[-1]


def test_the_next_driver_knows_the_snapshots_of_former_ones() -> None:
    job = worked()
    old = snapshots(job.log)
    job.crash()
    again = HandDrivenJob(
        job.chain, log=job.log, clock=job.clock, options=RuntimeOptions(snapshot_every=None)
    )

    assert pruner_of(again, 3 * HOUR).prune() in old


def test_a_record_that_no_driver_released_is_no_place_to_cut() -> None:
    """Any process may have appended a record with the form of a snapshot, and a header that names it."""
    job = worked()
    snapshot = job.log.records[snapshots(job.log)[-1]]
    newest = snapshots(job.log)[-1]
    for _ in range(3):
        job.log.store(to_append(snapshot))
    job.advance(100 * HOUR_S)

    assert pruner_of(job, HOUR).prune() == newest


def test_removed_records_are_archived_first_if_a_folder_is_named(tmp_path: Path) -> None:
    job, folder = worked(), tmp_path / "archives"
    before = job.log.records
    pruner = pruner_of(job, 3 * HOUR, folder)
    first = pruner.prune()
    job.advance(2 * HOUR_S)
    second = pruner.prune()
    assert first is not None
    assert second is not None

    archived = [
        *ExportedLog(folder / f"job-0-{first}.avro").read(0, first),
        *ExportedLog(folder / f"job-{first}-{second}.avro").read(first, second),
    ]
    assert (*archived, *job.log.records) == before


def test_nothing_is_removed_if_the_archive_cannot_be_written(tmp_path: Path) -> None:
    job, folder = worked(), tmp_path / "archives"
    folder.write_text("a file, and no folder")
    with pytest.raises(FileExistsError):
        pruner_of(job, HOUR, folder).prune()

    assert job.log.start_offset() == 0


def test_an_archive_of_other_records_is_named_with_the_next_step(tmp_path: Path) -> None:
    twin, job = worked(), worked()
    offset = pruner_of(twin, HOUR, tmp_path / "twin").prune()
    foreign = tmp_path / f"job-0-{offset}.avro"
    foreign.write_text("of an earlier topic")

    with pytest.raises(SourceError) as caught:
        pruner_of(job, HOUR, tmp_path).prune()

    assert str(caught.value).startswith(f"{foreign}: it exists with other records than the log's")
    assert caught.value.next_step.startswith("move it away")
    assert job.log.start_offset() == 0


def test_a_snapshot_whose_state_is_in_the_payload_store_is_no_place_to_cut(tmp_path: Path) -> None:
    """Readers that have only the log could not begin with it: a driver that prunes keeps the state in the log."""
    for is_log_pruned in (False, True):
        store = PayloadStore(str(tmp_path / f"payloads-{is_log_pruned}"), "job")
        job = HandDrivenJob(
            chain_of(NotingProvider(projection=HANDLED)),
            options=RuntimeOptions(
                snapshot_every=7, is_log_pruned=is_log_pruned, ack_timeout_s=1e9
            ),
            payloads=PayloadOptions(store=store, limit_bytes=64),
        )
        attempt = job.register(0)
        for n in range(30):
            attempt.send("source", Up(n=n))
        job.advance(2 * HOUR_S)
        cut = pruner_of(job, HOUR).prune()
        assert (cut is not None) is is_log_pruned


class Failing:
    """A log that cannot be pruned before the second try."""

    def __init__(self, log: MemoryLog, error: Exception) -> None:
        self._log, self._error, self.tries = log, error, 0

    def delete_below(self, offset: int) -> None:
        self.tries += 1
        if self.tries == 1:
            raise self._error
        self._log.delete_below(offset)

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)


@pytest.mark.parametrize(
    "error",
    [LogUnavailableError("job.log", "deleting records", 1.0), ValueError("an unexpected one")],
)
def test_a_failure_is_logged_and_tried_again(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    job = worked()
    log = Failing(job.log, error)
    pruner = pruner_of(job, timedelta(microseconds=1), log=log)  # type: ignore[arg-type]
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 2

    pruner.run(wait)

    assert log.tries == 2
    assert job.log.start_offset() > 0
    assert "its log is not pruned, and the next try is in" in caplog.text
    assert str(error) in caplog.text


def test_an_age_is_a_number_with_a_unit() -> None:
    assert age_of("30d") == timedelta(days=30)
    assert age_of("12h") == timedelta(hours=12)
    assert age_of("45m") == timedelta(minutes=45)
    assert age_of("90s") == timedelta(seconds=90)
    for text in ("", "30", "d", "-1d", "1.5h", "30 d", "forever", "1w", "٣d"):
        assert age_of(text) is None
