"""Where no driver lives, `coordlog prune` takes the snapshot itself, if it can fold all that coordinators remember."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordlog.chain import Chain, OperatorSpec, SourceSpec
from coordlog.cli.exits import Exit
from coordlog.cli.main import main
from coordlog.coordinators.commits import CommitCoordinatorProvider
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import RestoreError
from coordlog.log.exported import ExportedLog
from coordlog.log.memory import MemoryLog
from coordlog.own_reign import read_job
from coordlog.own_snapshot import take_own_snapshot, why_no_own_snapshot
from coordlog.projections.state import JobState
from coordlog.restore import Rebuild, projection_of, rebuild
from coordlog.runtime import to_unstored
from coordlog.schemas.record import Kind
from coordlog.testing.by_hand import HandDrivenJob
from driven_history import ALL_ROWS, DrivenJob
from kernel_fakes import HANDLED, IdleOperator, NotingProvider, Up, chain_of
from machine_fakes import Rows, RowsSink
from one_log import OneLog
from split_fakes import IdleReader, listing, pull_of
from split_fakes import chain_of as split_chain
from sweep_worlds import SplitWorld

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
    assert "what the coordinator of operator 'source' remembers is its own code's" in refused.stderr
    assert "it has no snapshot; prune it while it runs: its driver takes one then" in refused.stderr
    assert job.log.high_watermark() == before


def test_a_coordinator_without_a_projection_remembers_what_no_command_knows() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    state = read_job(job.log, "job", lambda _: None).state
    assert why_no_own_snapshot(state) == (
        "what the coordinator of operator 'source' remembers is its own code's"
    )
    assert why_no_own_snapshot(JobState()) == "the job has not begun"


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
