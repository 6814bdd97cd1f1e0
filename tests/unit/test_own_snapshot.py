"""Where no driver lives, `coordlog prune` takes the snapshot itself, if it can fold all that coordinators remember."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.coordinators.commits import CommitCoordinatorProvider
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import JobFailedError, RestoreError
from coordlog.log.file import ExportedLog
from coordlog.log.memory import MemoryLog
from coordlog.offline.epoch import read_job
from coordlog.offline.snapshot import take_own_snapshot, why_no_own_snapshot
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.state import JobState, Phase
from coordlog.restore.rebuild import Rebuild, first_input, projection_of, rebuild
from coordlog.runtime.driver import JobStatus
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from driven_history import ALL_ROWS, DrivenJob
from file_pipeline import ALL_ROWS as PIPELINE_ROWS
from file_pipeline import FILES, ROWS, Pipeline
from kernel_fakes import HANDLED, IdleOperator, NotingProvider, Up, chain_of
from machine_fakes import Rows, RowsSink
from one_log import OneLog
from split_fakes import IdleReader, listing, pull_of
from split_fakes import chain_of as split_chain
from sweep_worlds import SPLITS, SplitWorld

pytestmark = pytest.mark.clause("E9")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    return tmp_path / "home"


def run(log: MemoryLog, *arguments: str, job: str = "job") -> Result:
    return CliRunner().invoke(main, arguments, obj=lambda _servers: OneLog(log, job))


def kinds(log: MemoryLog) -> list[Kind]:
    return [one.record().kind for one in log.read(log.start_offset(), log.high_watermark())]


def folded(log: MemoryLog, chain: Chain, *, is_whole: bool = False) -> Rebuild:
    return rebuild(log, chain, projection_of(chain), is_whole=is_whole)


def whole_again(log: MemoryLog, archive: Path) -> MemoryLog:
    """The log as it was before its beginning went."""
    made, kept = MemoryLog(log.identity.name), ExportedLog(archive)
    for one in (
        *kept.read(0, kept.high_watermark()),
        *log.read(log.start_offset(), log.high_watermark()),
    ):
        assert one.header is not None
        record = one.record()
        made.store(to_unstored(record, snapshot_offset=one.header.snapshot_offset))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_job_of_files_that_does_not_run_is_pruned_up_to_its_end_and_goes_on(
    tmp_path: Path,
    home: Path,
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=is_batch)
    log = MemoryLog("driven")
    driven.drive(log, kill_attempt_at=3, kill_driver_at=9)
    assert Kind.SNAPSHOT not in kinds(log)
    prune = ("prune", "driven", "--yes", "--take-over")
    done = run(log, *prune, job="driven")

    assert done.exit_code == Exit.DONE, done.output
    assert kinds(log) == [Kind.SNAPSHOT]
    (archive,) = (home / "archives" / "driven").iterdir()
    pruned, whole = (
        folded(log, driven.chain),
        folded(whole_again(log, archive), driven.chain, is_whole=True),
    )
    assert (pruned.record_count, pruned.void_count) == (1, 0)
    assert pruned.state == whole.state
    assert pruned.checkpoint_offset == whole.checkpoint_offset
    # Nothing has come since: a second one takes none.
    again = run(log, *prune, job="driven")
    assert again.exit_code == Exit.DONE, again.output
    assert "it begins there already" in again.stderr
    assert kinds(log) == [Kind.SNAPSHOT]
    # From one that begins with a command's snapshot, too.
    driven.drive(log, kill_attempt_at=2, kill_driver_at=6)
    assert run(log, *prune, job="driven").exit_code == Exit.DONE
    assert kinds(log) == [Kind.SNAPSHOT]
    assert "all of it holds" in run(log, "verify", "driven", job="driven").stdout
    driven.drive(log)
    assert driven.rows() == ALL_ROWS
    assert "all of it holds" in run(log, "verify", "driven", job="driven").stdout


def test_a_job_with_coordinators_of_its_own_is_pruned_as_far_as_its_own_snapshots_go() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)))
    job.register(0).send("source", Up(n=1))
    before = job.log.high_watermark()
    refused = run(job.log, "prune", "job", "--yes")

    assert refused.exit_code == Exit.USAGE
    assert (
        "only the job's code can read the state of the coordinator of operator 'source'"
        in refused.stderr
    )
    assert "it has no snapshot; prune it while it runs: its driver takes one then" in refused.stderr
    assert job.log.high_watermark() == before


def test_of_one_that_has_finished_it_is_said_how_its_log_can_go() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)))
    job.register(0).complete()
    assert job.runtime.state.phase is Phase.FINISHED
    refused = run(job.log, "prune", "job", "--yes")

    assert refused.exit_code == Exit.USAGE
    assert "it has no snapshot; if it is not to run any more, `coordlog export" in refused.stderr
    assert "opened again (--again, or Start(again=True)): prune it while it runs" in refused.stderr
    assert "`coordlog export job FILE` keeps its history, and `coordlog delete" in refused.stderr


def test_a_coordinator_without_a_projection_remembers_what_no_command_knows() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    state = read_job(job.log, "job", lambda _: None).state
    assert why_no_own_snapshot(state) == (
        "only the job's code can read the state of the coordinator of operator 'source'"
    )
    assert why_no_own_snapshot(JobState()) == "the job has not begun"


# of a job that is over


MORE = range(FILES, FILES + 3)
PRUNE = ("prune", "job", "--yes", "--take-over")


def as_it_was(log: MemoryLog, end: int | None = None) -> MemoryLog:
    """A copy, as long as that."""
    made = MemoryLog(log.identity.name)
    for one in log.records[:end]:
        assert one.header is not None
        made.store(to_unstored(one.record(), snapshot_offset=one.header.snapshot_offset))
    return made


def taken_over(log: MemoryLog, chain: Chain) -> JobState:
    """The state that the next driver goes on from, with its `EPOCH_STARTED`."""
    state = folded(log, chain).state
    epoch_start = Record(
        epoch=state.epoch + 1,
        driver_id="next",
        sequence=None,
        kind=Kind.EPOCH_STARTED,
        timestamp_us=state.timestamp_us,
        job_id=state.job_id,
        attributes=dict(state.launch.items()),
    )
    return projection_of(chain).apply(state, epoch_start)


def check_prefixes(log: MemoryLog, archive: Path, before: int, chain: Chain) -> str:
    """How the next driver goes on, which is as it would have, behind each record that the command has appended."""
    whole = whole_again(log, archive)
    first = taken_over(as_it_was(whole, before), chain)
    way, _ = first_input(first, chain)
    for log_there in (
        *(as_it_was(whole, end) for end in range(before + 1, whole.high_watermark() + 1)),
        log,
    ):
        assert [one.what for one in verify(log_there.records).faults] == []
        state = taken_over(log_there, chain)
        assert first_input(state, chain) == first_input(first, chain)
        its_own = {
            name: getattr(first, name)
            for name in ("epoch", "launch", "next_sequence", "timestamp_us", "types")
        }
        # While commits are left of a job that has failed, nobody asks what it was before.
        assert replace(state, **its_own, resumed_phase=first.resumed_phase) == first
        assert state.resumed_phase is first.resumed_phase or way == "settle"
    return way


@pytest.mark.slow
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_job_that_has_finished_is_pruned_to_a_snapshot_and_is_as_finished_as_before(
    tmp_path: Path,
    home: Path,
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    pipeline = Pipeline(tmp_path, is_batch=is_batch, transform=lambda batch: batch)
    assert pipeline.drive().status is JobStatus.FINISHED
    before = pipeline.log.high_watermark()
    state = folded(pipeline.log, pipeline.chain, is_whole=True).state
    done = run(pipeline.log, *PRUNE)

    assert done.exit_code == Exit.DONE, done.output
    log = pipeline.log
    assert kinds(log) == [Kind.SNAPSHOT]
    (archive,) = (home / "archives" / "job").iterdir()
    pruned = folded(log, pipeline.chain).state
    assert (pruned.phase, pruned.projections) == (Phase.FINISHED, state.projections)
    assert (pruned.completed, pruned.last_checkpoint) == (state.completed, state.last_checkpoint)
    assert check_prefixes(log, archive, before, pipeline.chain) == "finished"
    again = run(log, *PRUNE)
    assert again.exit_code == Exit.DONE, again.output
    assert "it begins there already" in again.stderr
    assert "counted since their logs were pruned: job" in run(log, "jobs").stdout
    assert json.loads(run(log, "jobs", "--json").stdout)["is_pruned"]
    start = log.start_offset()
    told = run(log, "explain", "job", "--split", "nope")
    assert told.exit_code == Exit.USAGE
    assert f"the log begins at offset {start}: pruned records are in the file" in told.stderr
    assert (
        f"splits since the log was pruned, at offset {start}: none"
        in run(log, "state", "job").stdout
    )
    # Started again it does nothing; opened again it reads what has come since, and nothing else.
    assert pipeline.drive().status is JobStatus.ALREADY_FINISHED
    assert kinds(log) == [Kind.SNAPSHOT]
    pipeline.add_files(MORE)
    assert pipeline.drive(again=True).status is JobStatus.FINISHED
    assert pipeline.restored[-1].mode == "again"
    assert pipeline.committed() == list(range(MORE.stop * ROWS))
    for command in ("verify", "state", "history", "splits", "checkpoints", "epochs"):
        shown = run(log, command, "job")
        assert shown.exit_code == Exit.DONE, shown.output
    assert "all of it holds" in run(log, "verify", "job").stdout


@pytest.mark.slow
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_job_that_has_failed_is_pruned_and_starts_again_as_from_its_whole_log(
    tmp_path: Path,
    home: Path,
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    bad = tmp_path / "bad"

    def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
        if bad.exists() and batch.column("a")[0].as_py() >= ROWS * (FILES - 2):
            raise ValueError("scripted")
        return batch

    bad.touch()
    pipeline = Pipeline(tmp_path, is_batch=is_batch, transform=failing)
    with pytest.raises(JobFailedError, match="scripted"):
        pipeline.drive(restarts_max=0)
    bad.unlink()
    before = pipeline.log.high_watermark()
    state = folded(pipeline.log, pipeline.chain, is_whole=True).state
    assert state.phase is Phase.FAILED
    done = run(pipeline.log, *PRUNE)
    assert done.exit_code == Exit.DONE, done.output
    log = pipeline.log
    assert kinds(log) == [Kind.SNAPSHOT]
    (archive,) = (home / "archives" / "job").iterdir()
    assert check_prefixes(log, archive, before, pipeline.chain) == "rollback"
    assert pipeline.drive().status is JobStatus.FINISHED

    restored = pipeline.restored[-1]
    assert (restored.mode, restored.checkpoint_id) == ("rollback", state.last_checkpoint)
    assert pipeline.committed() == PIPELINE_ROWS
    assert "all of it holds" in run(log, "verify", "job").stdout


@pytest.mark.may_fail("the disk is full")
def test_a_batch_job_that_has_failed_at_its_commit_is_pruned_and_settles_it_later(
    home: Path,
) -> None:
    class Full(RowsSink):
        def settle(self, intent: Payload) -> Payload | None:
            raise OSError("the disk is full")

    world = SplitWorld(is_batch=True, sink=Full())
    for number in range(20):
        if world.job.runtime.state.phase is Phase.RUNNING:
            world._pass(number)
        world.job.advance(100.0)
    state = world.job.runtime.state
    assert (state.phase, len(state.intents)) == (Phase.FAILED, 1)
    world.job.crash()
    log, chain, before = world.job.log, world.job.chain, world.job.log.high_watermark()
    done = run(log, *PRUNE)
    assert done.exit_code == Exit.DONE, done.output
    assert kinds(log) == [Kind.SNAPSHOT]
    (archive,) = (home / "archives" / "job").iterdir()
    assert check_prefixes(log, archive, before, chain) == "settle"
    later = SplitWorld(is_batch=True, log=log)

    assert later.job.runtime.state.phase is Phase.FINISHED
    assert sorted(later.sink.committed) == sorted(f"{name}/1" for name in SPLITS)
    assert verify(log.records).faults == []


def world() -> SplitWorld:
    """A source and a sink, whose intents are of a type that no command knows."""
    made = SplitWorld()
    made.play(
        "register 0", "register 1", "ask 0", "take 0", "read 0", "trigger", "take 0", "take 1"
    )
    made.job.crash()
    return made


def pruned_world() -> MemoryLog:
    log = world().job.log
    assert run(log, "prune", "job", "--yes", "--take-over").exit_code == Exit.DONE
    return log


def chain_with(*sink_types: type[Rows], has_sink: bool = True) -> Chain:
    sink = OperatorSpec(
        operator_id="sink",
        create_operator=IdleOperator,
        coordinator=CommitCoordinatorProvider(
            "sink",
            sink=RowsSink(),
            make_intent=lambda _n, _rows: Rows(names=[]),
            payload_types=sink_types,
        ),
        keeps_state_across_splits=True,
    )
    source = SourceSpec(
        operator_id="source",
        create_reader=IdleReader,
        coordinator=SplitCoordinatorProvider("source", discover=listing("a")),
        keeps_state_across_splits=True,
    )
    return Chain(source=source, operators=[sink] if has_sink else [])


def test_a_job_that_has_lost_a_type_is_refused_at_a_commands_snapshot_as_from_the_start() -> None:
    log = pruned_world()

    assert folded(log, chain_with(Rows)).state.completed
    with pytest.raises(
        RestoreError, match=r"payload type machine\.rows@1 in it is not one of this"
    ):
        folded(log, chain_with())


def test_what_is_of_an_operator_that_is_gone_need_not_be_declared_behind_it() -> None:
    log = world().job.log
    job = HandDrivenJob(
        chain_with(has_sink=False), log=log, parallelism=2, allow_non_restored_state=["sink"]
    )
    job.crash()
    assert run(log, "prune", "job", "--yes", "--take-over").exit_code == Exit.DONE

    assert kinds(log) == [Kind.SNAPSHOT]
    assert folded(log, chain_with(has_sink=False)).state.completed


def test_a_driver_that_begins_meanwhile_is_not_taken_for_the_one_that_was_gone() -> None:
    job = HandDrivenJob(split_chain(pull_of("a", "b")))
    job.crash()
    state = read_job(job.log, "job", lambda _: None).state
    asked: list[int] = []

    def check(after: JobState) -> None:
        asked.append(after.epoch)

    sequence = take_own_snapshot(job.log, state, check=check)

    assert asked == [state.epoch + 1]
    last = list(job.log.read(0, job.log.high_watermark()))[-1]
    record = last.record()
    assert (record.kind, record.sequence) == (Kind.SNAPSHOT, sequence)
    with pytest.raises(KeyError, match="no"):
        take_own_snapshot(job.log, state, check=_refuse)
    assert kinds(job.log)[-1] is Kind.EPOCH_STARTED


def _refuse(_state: JobState) -> None:
    raise KeyError("no")
