"""The beginning of a log is removed, and every reader begins with the snapshot that it begins with then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import AccessError, CommandError, RecordError, RestoreError
from coordlog.export import write_exported
from coordlog.history import History
from coordlog.log.file import ExportedLog
from coordlog.log.interface import PrunableLog, StoredRecord, UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.offline.epoch import read_records
from coordlog.offline.prune import planned, prune
from coordlog.offline.state_at import state_at
from coordlog.payloads.gc import store_named_in
from coordlog.payloads.offload import PayloadOptions
from coordlog.projections.inspection.prune_plan import plan_prune
from coordlog.projections.inspection.verify import verify
from coordlog.projections.snapshot.codec import (
    SNAPSHOT_TYPE,
    SnapshotCodec,
    redacted_snapshot,
    snapshot_in,
    state_of,
)
from coordlog.projections.tables.audit import audit, audit_records
from coordlog.projections.tables.progress import JobEnd, ProgressFold
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions, to_unstored
from coordlog.schemas.builtin_types import JobSnapshot, SnapshotTaken, SnapshotWanted
from coordlog.schemas.codec import decode_record
from coordlog.schemas.payload_address import STORE_ATTRIBUTE
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.history_frames.bulk_validity import COUNTS
from coordlog.spark_integration.history_frames.folds import tell_codes
from coordlog.testing.driven_job import HandDrivenJob
from driven_history import ALL_ROWS, DrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of, ended
from fakes.split_fakes import ask, pull_of
from fakes.split_fakes import chain_of as split_chain
from histories.one_log import OneLog
from histories.sweep_runs import RUNS

pytestmark = pytest.mark.clause("E9")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    return tmp_path / "home"


def worked(*, snapshot_every: int | None = 7, checkpoints: int = 8) -> HandDrivenJob:
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)),
        options=RuntimeOptions(snapshot_every=snapshot_every),
    )
    attempt = job.register(0)
    for n in range(checkpoints):
        attempt.send("source", Up(n=n))
        checkpoint_id = job.trigger()
        assert checkpoint_id is not None
        attempt.ack_checkpoint(checkpoint_id, states={"source": b"state"})
    return job


def run(log: MemoryLog, *arguments: str, job: str = "job") -> Result:
    return CliRunner().invoke(main, arguments, obj=lambda _servers: OneLog(log, job))


# what may go


def test_a_log_may_begin_at_its_newest_snapshot_which_has_all_retained() -> None:
    log = worked().log
    records = list(audit_records(log.records))
    snapshots = [entry for entry in records if entry.record and entry.record.kind is Kind.SNAPSHOT]
    plan = plan_prune(log.records)

    assert plan.checkpoints == (6, 7, 8)
    assert plan.begins_with is not None
    assert plan.begins_with.offset == plan.begins_with.records_below == snapshots[-1].offset
    # A retained checkpoint is in the snapshot, or is completed behind it.
    assert snapshots[-1].record is not None
    completed_later = {
        entry.record.checkpoint_id
        for entry in records
        if entry.offset > snapshots[-1].offset
        and entry.record is not None
        and entry.record.kind is Kind.CHECKPOINT_COMPLETED
    }
    held = set(state_of(snapshots[-1].record).completed)
    assert {6, 7, 8} <= held | completed_later
    assert plan_prune([]).why_not == "it has no snapshot"


def epoch_start(log: MemoryLog, epoch: int, snapshot_offset: int, **attributes: str) -> None:
    """Another epoch, whose driver came across this snapshot and no other."""
    last = read_records(log).state
    said = {name: one for name, one in last.launch.items() if name != "command"}
    log.store(
        to_unstored(
            Record(
                epoch=epoch,
                driver_id=f"driver-{epoch}",
                sequence=None,
                kind=Kind.EPOCH_STARTED,
                timestamp_us=last.timestamp_us,
                job_id="job",
                attributes={**said, **attributes},
            ),
            snapshot_offset=snapshot_offset,
        )
    )


def test_a_log_begins_with_no_snapshot_that_its_last_driver_could_not_read() -> None:
    log = worked().log
    plan = plan_prune(log.records)
    assert plan.begins_with is not None
    newest, others = (
        plan.begins_with.offset,
        sorted({one.header.snapshot_offset for one in log.records if one.header} - {-1}),
    )
    # A new version of a projection: this driver has folded from further back.
    epoch_start(log, 1, others[1])
    older = plan_prune(log.records)
    assert older.begins_with is not None
    assert older.begins_with.offset == others[1] < newest
    # What a command says of snapshots, which knows nothing of projections, counts for nothing.
    epoch_start(log, 2, newest, command="skip")
    assert plan_prune(log.records).begins_with == older.begins_with
    epoch_start(log, 3, -1)
    none = plan_prune(log.records)
    assert none.begins_with is None
    assert none.why_not == "its last driver could start from no snapshot that there is"


def test_a_log_begins_with_no_last_snapshot_of_a_former_version_of_the_job() -> None:
    """A driver of the new version folds it, and names it in no header."""
    former = worked(snapshot_every=100)
    ended(former)
    assert former.log.records[-1].record().kind is Kind.SNAPSHOT
    chain = chain_of(NotingProvider(projection=replace(HANDLED, version=2)))
    newer = HandDrivenJob(chain, log=former.log, clock=former.clock)
    state = newer.runtime.state
    newer.crash()

    refused = run(former.log, "prune", "job", "--yes", "--take-over")
    assert refused.exit_code == Exit.USAGE
    assert "its last driver could start from no snapshot that there is" in refused.stderr
    assert rebuild(former.log, chain, projection_of(chain)).state == state


def damaged(log: MemoryLog, offset: int) -> MemoryLog:
    """The log with another state in the snapshot that stands there."""
    copy = MemoryLog("damaged")
    for one in log.records:
        record = one.record()
        assert one.header is not None
        if one.offset == offset:
            value = SNAPSHOT_TYPE.decode(record.payload or b"")
            assert isinstance(value, JobSnapshot)
            changed = replace(value, state_sha256=bytes(32))
            record = replace(record, payload=SNAPSHOT_TYPE.encode(changed))
        copy.store(to_unstored(record, snapshot_offset=one.header.snapshot_offset))
    return copy


def test_a_snapshot_that_is_damaged_is_none_that_a_log_may_begin_with() -> None:
    log = worked().log
    first = plan_prune(log.records).begins_with
    assert first is not None
    plan = plan_prune(damaged(log, first.offset).records)

    assert plan.begins_with is not None
    assert plan.begins_with.offset < first.offset


def test_a_snapshot_that_is_whole_and_of_another_state_is_none_either() -> None:
    log, other = worked().log, MemoryLog("other")
    first = plan_prune(log.records).begins_with
    assert first is not None
    for one in log.records:
        record = one.record()
        assert one.header is not None
        if one.offset == first.offset:
            state = state_of(record)
            changed = replace(state, next_event_id=state.next_event_id + 1)
            record = replace(record, payload=redacted_snapshot(record, changed))
        other.store(to_unstored(record, snapshot_offset=one.header.snapshot_offset))
    plan = plan_prune(other.records)

    assert plan.begins_with is not None
    assert plan.begins_with.offset < first.offset


# the readers


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.may_fail("scripted")
def test_every_reader_starts_at_the_snapshot_of_a_pruned_log(name: str) -> None:
    log = RUNS[name].recorded().job.log
    whole, shown = state_at(log), audit(log.records)
    plan = plan_prune(log.records)
    assert plan.begins_with is not None
    log.delete_below(plan.begins_with.offset)

    assert state_at(log).state == whole.state == read_records(log).state
    found = verify(log.records)
    assert found.faults == []
    assert (
        found.record_count == plan.record_count - plan.begins_with.records_below - found.void_count
    )
    left = audit(log.records)
    assert left.record_count == found.record_count
    assert {one.checkpoint_id for one in left.checkpoints} <= {
        one.checkpoint_id for one in shown.checkpoints
    }
    fold = ProgressFold()
    for one in audit_records(log.records):
        if one.beginning is not None:
            fold.begin(one.beginning)
        if one.counts and one.record is not None:
            fold.apply(one.record)
    assert fold.progress.end is JobEnd.FINISHED
    assert fold.progress.next_sequence == whole.state.next_sequence
    codes = pa.concat_arrays(list(tell_codes(iter([_as_arrow(log.records)]))))
    assert codes.to_pylist().count(COUNTS) == found.record_count


def _as_arrow(records: tuple[StoredRecord, ...]) -> tuple[pa.Array, ...]:
    return (
        pa.array([one.offset for one in records], pa.int64()),
        pa.array([one.header_bytes for one in records], pa.binary()),
        pa.array([records[0].value, *[None] * (len(records) - 1)], pa.binary()),
    )


def test_a_snapshot_at_the_logs_start_that_is_damaged_is_refused_by_name() -> None:
    job = worked()
    plan = plan_prune(job.log.records)
    assert plan.begins_with is not None
    start = plan.begins_with.offset
    log = damaged(job.log, start)
    log.delete_below(start)
    said = (
        rf"the snapshot with which its log begins, .* is at offset {start} in the log and not usable \(it is "
        r"damaged.*`coordlog adopt`"
    )
    for is_whole in (False, True):
        with pytest.raises(RestoreError, match=said):
            rebuild(log, job.chain, projection_of(job.chain), is_whole=is_whole)
    for read in (state_at, read_records):
        with pytest.raises(RecordError, match=f"offset {start} .SNAPSHOT.: it is damaged"):
            read(log)
    assert "no place to start from: it is damaged" in verify(log.records).faults[0].what
    refused = run(log, "prune", "job", "--yes")
    assert refused.exit_code == Exit.USAGE
    said = f"does not show whether a driver of it runs: record at offset {start} (SNAPSHOT): it is damaged"
    assert said in refused.stderr


def test_a_reader_starts_at_a_newer_snapshot_if_the_first_is_damaged() -> None:
    job = worked()
    headers = [one.header for one in job.log.records]
    (*_, first, newest) = sorted({one.snapshot_offset for one in headers if one is not None})
    log = damaged(job.log, first)
    whole = rebuild(job.log, job.chain, projection_of(job.chain)).state
    log.delete_below(first)
    for is_whole in (False, True):
        seen: list[StoredRecord] = []
        made = rebuild(
            log, job.chain, projection_of(job.chain), is_whole=is_whole, watch=seen.append
        )
        assert (made.started_at, made.state) == (newest, whole)
        assert tuple(seen) == log.records[newest - first :]


# a driver's answer


def test_a_requested_snapshot_is_answered_once_it_counts() -> None:
    job = worked(snapshot_every=None)
    assert job.history(Kind.SNAPSHOT) == []
    job.is_held = True
    asked = job.ask("", SnapshotWanted(why="test"))
    assert asked.is_open
    job.release()

    answer = asked.answer()
    (snapshot,) = job.history(Kind.SNAPSHOT)
    assert answer.sequence == snapshot.sequence
    assert answer.response == SnapshotTaken(payload_bytes=len(snapshot.payload or b""))
    state = job.runtime.state
    job.crash()
    made = rebuild(job.log, job.chain, projection_of(job.chain))
    assert made.state == state
    plan = plan_prune(job.log.records)
    assert plan.begins_with is not None
    assert plan.begins_with.sequence == answer.sequence


def test_a_snapshot_requested_while_a_checkpoint_waits_is_taken_behind_it() -> None:
    job = worked(snapshot_every=None)
    attempt = job.attempts[1]
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    job.is_held = True
    attempt.ack_checkpoint(checkpoint_id, states={"source": b"state"})
    asked = job.ask("", SnapshotWanted(why="test"))
    also = job.ask("", SnapshotWanted(why="test"))
    assert asked.is_open
    job.release()
    kinds = [one.kind for one in job.history()]

    assert asked.answer().sequence < also.answer().sequence
    completed = max(n for n, one in enumerate(kinds) if one is Kind.CHECKPOINT_COMPLETED)
    assert [n > completed for n, one in enumerate(kinds) if one is Kind.SNAPSHOT] == [True, True]
    # It holds the offset of that checkpoint, which is known only once that counts.
    codec = SnapshotCodec(projection_of(job.chain))
    for snapshot in job.history(Kind.SNAPSHOT):
        at = codec.decode(snapshot_in(snapshot)).checkpoint_offset
        assert at is not None
        stored = job.log.records[at]
        there = decode_record(at, stored.value, stored.header_bytes)
        assert (there.kind, there.checkpoint_id) == (Kind.CHECKPOINT_COMPLETED, checkpoint_id)


def test_a_job_whose_projection_has_no_codec_tells_that_it_takes_none() -> None:
    projection = replace(HANDLED, codec=None)
    job = HandDrivenJob(chain_of(NotingProvider(projection=projection)))
    asked = job.ask("", SnapshotWanted(why="test"))

    with pytest.raises(Exception, match=r"no snapshot: the projections of .*source.* no codec"):
        asked.answer()
    assert job.history(Kind.SNAPSHOT) == []


def test_a_requested_snapshot_is_in_the_log_and_others_in_the_store(
    tmp_path: Path,
) -> None:
    url = str(tmp_path / "payloads")
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)),
        options=RuntimeOptions(snapshot_every=7),
        payloads=PayloadOptions(store=PayloadStore(url, "job"), limit_bytes=64),
    )
    attempt = job.register(0)
    for n in range(12):
        attempt.send("source", Up(n=n))
    stored = plan_prune(job.log.records)
    assert stored.begins_with is None
    assert "no snapshot can be used, the one at offset" in stored.why_not
    assert "looked for in no payload store" in stored.why_not
    asked = job.ask("", SnapshotWanted(why="test")).answer()
    plan = plan_prune(job.log.records)
    assert plan.begins_with is not None
    assert plan.begins_with.sequence == asked.sequence
    state = job.runtime.state
    job.crash()
    job.log.delete_below(plan.begins_with.offset)

    assert read_records(job.log).state.next_sequence == state.next_sequence


def test_a_job_that_is_opened_again_has_snapshots_too() -> None:
    job = HandDrivenJob(split_chain(pull_of("a")), is_batch=True)
    attempt = job.register(0)
    ask(attempt)
    attempt.finish_split("source", "a")
    ask(attempt)
    attempt.complete()
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log, is_batch=True, again=True, clock=job.clock)
    assert job.runtime.state.opening
    asked = job.ask("", SnapshotWanted(why="test")).answer()
    state = job.runtime.state
    job.crash()
    plan = plan_prune(job.log.records)
    assert plan.begins_with is not None
    assert plan.begins_with.sequence == asked.sequence
    assert verify(job.log.records).faults == []
    job.log.delete_below(plan.begins_with.offset)

    assert rebuild(job.log, job.chain, projection_of(job.chain)).state == state


def test_the_store_of_a_pruned_log_is_the_one_that_its_snapshot_names() -> None:
    log = worked().log
    plan = plan_prune(log.records)
    assert plan.begins_with is not None
    log.delete_below(plan.begins_with.offset)
    assert store_named_in(History(log)) == ""
    first = log.records[0]
    record = first.record()
    state = state_of(record)
    named = replace(state, launch=state.launch.set(STORE_ATTRIBUTE, "memory://there"))
    other = MemoryLog("named")
    other.store(to_unstored(record))
    other.store(to_unstored(replace(record, payload=redacted_snapshot(record, named))))
    other.delete_below(1)
    assert store_named_in(History(other)) == "memory://there"


def test_an_epoch_that_does_not_count_names_no_store() -> None:
    """A driver that lost the race for its epoch, say; or somebody who may append, and no more."""
    log = worked().log
    first = log.records[0]
    epoch_start = first.record()
    assert epoch_start.kind is Kind.EPOCH_STARTED

    def named(url: str, epoch: int) -> UnstoredRecord:
        attributes = {**epoch_start.attributes, STORE_ATTRIBUTE: url}
        return to_unstored(replace(epoch_start, epoch=epoch, attributes=attributes))

    log.store(named("memory://void", 0), named("memory://void", 7))
    assert store_named_in(History(log)) == ""
    log.store(named("memory://there", 1), named("memory://void", 1))
    assert store_named_in(History(log)) == "memory://there"


# the command


def test_what_is_removed_is_archived_first_and_the_rest_is_as_it_was(home: Path) -> None:
    log = worked().log
    before = log.records
    assert run(log, "prune", "job", "--yes").exit_code == Exit.DONE
    start = log.start_offset()

    assert start > 0
    assert log.records == before[start:]
    archive = home / "archives" / "job" / f"job-0-{start}.avro"
    assert tuple(ExportedLog(archive).read(0, start)) == before[:start]
    again = run(log, "prune", "job", "--yes")
    assert again.stderr == "nothing of job job is to be removed: it begins there already\n"
    assert "all of it holds" in run(log, "verify", "job").stdout


def test_it_asks_first_and_replaces_no_file(home: Path) -> None:
    log = worked().log
    asked = CliRunner().invoke(
        main, ["prune", "job"], obj=lambda _servers: OneLog(log), input="n\n"
    )
    assert asked.exit_code == 1
    assert "savepoint" not in asked.output, "there is none"
    assert "checkpoints that stay restorable: 6, 7, 8. Archive and remove them?" in asked.output
    assert log.start_offset() == 0
    assert not (home / "archives" / "job").exists()
    mine = home.parent / "mine.avro"
    mine.write_text("mine")
    refused = run(log, "prune", "job", "--yes", "--archive", str(mine))
    assert refused.exit_code == Exit.USAGE
    assert mine.read_text() == "mine"
    assert log.start_offset() == 0


def test_a_prune_that_was_cut_off_behind_its_archive_goes_on_with_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = worked().log, worked().log
    with monkeypatch.context() as patched:
        patched.setattr(log, "delete_below", _refuse)
        refused = run(log, "prune", "job", "--yes")
    assert refused.exit_code == Exit.REFUSED, refused.output
    (archive,) = (home / "archives" / "job").iterdir()
    written = archive.read_bytes()

    # Of another log, and of this one where it was cut in two: neither is what goes.
    for wrong, data in ((other, written), (log, written[: len(written) // 2])):
        archive.write_bytes(data)
        not_it = run(wrong, "prune", "job", "--yes")
        assert not_it.exit_code == Exit.USAGE
        assert "exists with other records than these; nothing was" in not_it.stderr
        assert wrong.start_offset() == 0
    archive.write_bytes(written)
    done = run(log, "prune", "job", "--yes")

    assert done.exit_code == Exit.DONE, done.output
    assert log.start_offset() > 0
    assert archive.read_bytes() == written


def test_a_prune_removes_the_drafts_of_killed_ones(home: Path, tmp_path: Path) -> None:
    """No process has their locks any more; each prune has a name of its own for its archive."""
    log, folder = worked().log, home / "archives" / "job"
    hexes = "0" * 32
    folder.mkdir(parents=True)
    (folder / f".job-0-3.avro.{hexes}.tmp").write_text("a draft")
    (folder / f".mine.avro.{hexes}.tmp").write_text("of another program")
    assert run(log, "prune", "job", "--yes").exit_code == Exit.DONE
    names = sorted(one.name for one in folder.iterdir())
    assert names == [f".mine.avro.{hexes}.tmp", f"job-0-{log.start_offset()}.avro"]

    log, archive = worked().log, tmp_path / "archive.avro"
    plan = planned(log, "job")
    assert plan.begins_with is not None
    write_exported(log, "job", archive, to_offset=plan.begins_with.offset)
    (tmp_path / f".archive.avro.{hexes}.tmp").hardlink_to(archive)
    prune(log, "job", plan, archive)
    assert [one.name for one in tmp_path.glob(".*")] == []


def confirming(log: MemoryLog, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is asked whether to go on removes what stands below `offset` first, and then says yes."""

    def confirm(_text: str, **_options: object) -> bool:
        log.delete_below(offset)
        return True

    monkeypatch.setattr(click, "confirm", confirm)


@pytest.mark.parametrize("how", ["another prune", "less of it", "more of it"])
def test_a_log_whose_beginning_goes_while_it_asks_is_left_as_it_is(
    how: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = worked().log
    plan = plan_prune(log.records)
    target = plan.begins_with
    assert target is not None
    (*_, newest) = (one.offset for one in log.records if one.record().kind is Kind.SNAPSHOT)
    usable = [one.offset for one in log.records if one.record().kind is Kind.SNAPSHOT]
    to = {"another prune": target.offset, "less of it": usable[0], "more of it": newest}[how]
    confirming(log, to, monkeypatch)
    refused = run(log, "prune", "job")

    assert refused.exit_code == Exit.USAGE, refused.output
    assert (
        f"its log began at offset 0 when the prune was planned, with {target.records_below} records before the "
        f"snapshot at offset {target.offset}, and begins at offset {to} now: another prune, or retention, has "
        "removed records meanwhile, and this one has removed nothing; run it again"
    ) in refused.stderr
    assert log.start_offset() == to
    assert not list((home / "archives" / "job").glob("*.avro"))


class Moving:
    """A log whose beginning goes once it has been asked for as often as a test says."""

    def __init__(self, log: MemoryLog, offset: int, times: int) -> None:
        self._log, self._offset, self._times = log, offset, times
        self.identity = log.identity

    def start_offset(self) -> int:
        start = self._log.start_offset()
        self._times -= 1
        if self._times == 0:
            self._log.delete_below(self._offset)
        return start

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401, whatever the log has
        return getattr(self._log, name)


@pytest.mark.parametrize("times", [1, 2])
def test_a_log_cut_while_it_is_archived_leaves_no_file_in_the_way(
    times: int, tmp_path: Path
) -> None:
    """Before the archive is begun, and between the question for the log's beginning and the reading."""
    log, archive = worked().log, tmp_path / "mine.avro"
    plan = plan_prune(log.records)
    first = next(one.offset for one in log.records if one.record().kind is Kind.SNAPSHOT)
    with pytest.raises(CommandError, match=f"begins at offset {first} now: another prune"):
        prune(cast("PrunableLog", Moving(log, first, times)), "job", plan, archive)

    assert log.start_offset() == first
    assert not archive.exists()
    plan = plan_prune(log.records)
    assert plan.begins_with is not None
    prune(log, "job", plan, archive)
    assert log.start_offset() == plan.begins_with.offset


def _refuse(_offset: int) -> None:
    raise AccessError("job.log", "the broker does not allow it", "ask for it")


def test_a_log_without_a_snapshot_is_not_pruned() -> None:
    log = worked(snapshot_every=None).log
    refused = run(log, "prune", "job", "--yes")

    assert refused.exit_code == Exit.USAGE
    assert (
        "it has no snapshot; prune it while it runs, or after its next orderly end: its driver takes a snapshot then"
    ) in refused.stderr
    assert log.start_offset() == 0


def test_a_projection_that_is_not_coordlogs_own_is_a_warning() -> None:
    """Only a job with this version of it can start on the log afterwards."""
    log = worked().log
    done = run(log, "prune", "job", "--yes")

    assert "only a job with the projections test.handled@1 of operator 'source'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_job_goes_on_from_its_pruned_log_and_every_row_comes_out_once(
    tmp_path: Path,
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=is_batch)
    log = MemoryLog("driven")
    driven.drive(log, kill_attempt_at=3, kill_driver_at=9, snapshot_every=40)
    done = run(log, "prune", "driven", "--yes", "--take-over", job="driven")
    assert done.exit_code == Exit.DONE, done.output
    start = log.start_offset()
    assert start > 0
    driven.drive(log, kill_attempt_at=2, kill_driver_at=6, snapshot_every=40)
    driven.drive(log)

    assert driven.rows() == ALL_ROWS
    assert "all of it holds" in run(log, "verify", "driven", job="driven").stdout
    for command in ("history", "attempts", "splits", "checkpoints", "state"):
        shown = run(log, command, "driven", job="driven")
        assert shown.exit_code == Exit.DONE, shown.output
