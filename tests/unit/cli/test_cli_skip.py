"""`coordlog skip` for a job that no driver drives, on logs in memory."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.kernel.builder import KernelConfig
from coordlog.log.memory import MemoryLog
from coordlog.messages import DeliverEvent
from coordlog.projections.job.skips import reason_in_words
from coordlog.projections.job.state import Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import SkipSplit
from coordlog.schemas.record import Kind
from coordlog.testing import replay
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import Down, NotingProvider, Up, ended, prefix_of
from fakes.kernel_fakes import chain_of as noting_chain
from fakes.split_fakes import NO_MORE, ask, chain_of, checkpoint, places, pull_of, told
from histories.one_log import OneLog

pytestmark = pytest.mark.clause("J2")


@pytest.fixture(autouse=True)
def _no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)


def run(log: MemoryLog, *arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, obj=lambda _servers: OneLog(log))


def again(
    job: HandDrivenJob, configure: Callable[[KernelConfig], KernelConfig] | None = None
) -> HandDrivenJob:
    return HandDrivenJob(job.chain, log=job.log, clock=job.clock, configure=configure)


def two_restarts(config: KernelConfig) -> KernelConfig:
    return replace(config, restarts_max=2)


@pytest.mark.may_fail("bad row")
def test_the_command_named_by_a_failed_job_runs_and_the_job_continues() -> None:
    job = HandDrivenJob(chain_of(pull_of("a b", "c")), configure=two_restarts)
    for _ in range(3):
        attempt = job.register(0)
        ask(attempt)
        attempt.fail("bad row", split_id="a b")
    assert job.runtime.state.phase is Phase.FAILED
    (failed,) = job.history(Kind.JOB_FAILED)
    command = shlex.split(str(reason_in_words(failed)).split("`")[1])
    job.crash()
    assert command[0] == "coordlog"
    result = run(job.log, *command[1:])

    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("skipped split 'a b' of job job, at sequence ")
    job = again(job)
    assert job.runtime.state.epoch == 2
    assert places(job) == {"a b": "skipped", "c": "enumerator"}
    assert job.runtime.state.skipped_splits["source", "a b"].reason == (
        "3 attempts in a row failed at it"
    )
    attempt = job.register(0)
    ask(attempt)
    ask(attempt)
    assert told(job, attempt) == ["c", NO_MORE]
    for look in (("verify", "job"), ("state", "job"), ("explain", "job", "--split", "a b")):
        result = run(job.log, *look)
        assert result.exit_code == 0, result.output
    assert "split a b is skipped" in result.stdout


@pytest.mark.may_fail("bad row")
def test_a_failed_split_whose_assignment_was_pruned_can_be_skipped(
    tmp_path: Path,
) -> None:
    job = HandDrivenJob(chain_of(pull_of("a b", "c")), configure=two_restarts)
    first = job.register(0)
    ask(first)
    checkpoint(job, first)
    first.fail("bad row", split_id="a b")
    for _ in range(2):
        job.register(0).fail("bad row", split_id="a b")
    assert job.runtime.state.phase is Phase.FAILED
    ended(job)
    pruned = run(job.log, "prune", "job", "--yes", "--archive", str(tmp_path / "old.avro"))
    assert pruned.exit_code == 0, pruned.output
    assert job.log.start_offset() > 0

    unknown = run(job.log, "skip", "job", "--split", "d")
    assert unknown.exit_code == Exit.USAGE
    assert "it has no split 'd'" in unknown.stderr
    assert "the log begins at offset" in unknown.stderr
    result = run(job.log, "skip", "job", "--split", "a b")
    assert result.exit_code == 0, result.output
    assert run(job.log, "skip", "job", "--split", "a b").exit_code == 0, "skipped already"
    job = again(job)
    assert job.register(0).accepted.skipped_splits == ("a b",)
    assert places(job) == {"a b": "skipped, None rows", "c": "enumerator"}


def test_a_split_with_a_reader_is_skipped_from_its_checkpointed_position() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")))
    first = job.register(0)
    ask(first)
    checkpoint(job, first)
    job.crash()
    assert run(job.log, "skip", "job", "--split", "a").exit_code == 0
    job = again(job)

    assert job.register(0).accepted.skipped_splits == ("a",)
    assert places(job) == {"a": "skipped, None rows", "b": "enumerator"}


@pytest.mark.may_fail("scripted")
def test_an_event_is_named_by_its_sequence_and_not_delivered_again() -> None:
    provider = NotingProvider()
    provider.on["ready"] = lambda c, *_: c.gateways[0].send_event(Down(n=1))
    job = HandDrivenJob(noting_chain(provider), configure=two_restarts)
    for _ in range(3):
        job.register(0).fail()
    sent = job.history(Kind.EVENT_TO_SUBTASK)[-1]
    job.crash()
    result = run(job.log, "skip", "job", "--event", str(sent.sequence), "--reason", "poison")

    assert result.exit_code == 0, result.output
    job = again(job)
    assert job.register(0).got(DeliverEvent) == []
    assert job.history(Kind.EVENT_ACKED)[-1].reason == "it is skipped and not delivered: poison"


def test_a_skip_holds_for_the_next_equal_event_and_no_other() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(noting_chain(provider), parallelism=2)
    first, other = job.register_all()
    first.send(provider.operator_id, Up(n=250))
    sent = job.history(Kind.EVENT_TO_COORDINATOR)[-1]
    job.crash()
    result = run(job.log, "skip", "job", "--event", str(sent.sequence))

    assert result.exit_code == 0, result.output
    assert f"skipped event {sent.sequence}, a test.up@1 from subtask 0, of job" in result.stderr
    job = HandDrivenJob(job.chain, log=job.log, clock=job.clock, parallelism=2)
    first, other = job.register_all()
    for attempt in (first, first, other):
        attempt.send(provider.operator_id, Up(n=250))
    handled = job.history(Kind.EVENT_TO_COORDINATOR)[1:]
    assert [record.subtask for record in handled] == [0, 1]


def test_the_same_command_skips_no_second_event() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(noting_chain(provider))
    job.register(0).send(provider.operator_id, Up(n=250))
    sent = job.history(Kind.EVENT_TO_COORDINATOR)[-1]
    job.crash()
    command = ("skip", "job", "--event", str(sent.sequence))
    assert run(job.log, *command).exit_code == 0
    job = again(job)
    job.register(0).send(provider.operator_id, Up(n=250))
    job.crash()
    result = run(job.log, *command)

    assert result.exit_code == 0, result.output
    assert "of job job is skipped already" in result.stderr
    job = again(job)
    attempt = job.register(0)
    for _ in range(2):
        attempt.send(provider.operator_id, Up(n=250))
    assert len(job.history(Kind.EVENT_TO_COORDINATOR)) == 2


def test_a_skip_is_recorded_once() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")))
    job.crash()
    run(job.log, "skip", "job", "--split", "a")
    before = job.log.high_watermark()
    result = run(job.log, "skip", "job", "--split", "a")

    assert result.stderr == "split 'a' of job job is skipped already\n"
    assert job.log.high_watermark() == before


def test_what_cannot_be_skipped_is_refused_by_name_and_nothing_is_appended() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")))
    attempt = job.register(0)
    ask(attempt)
    attempt.finish_split("source", "a")
    (assigned,) = job.history(Kind.EVENT_TO_SUBTASK)
    started = job.history(Kind.ATTEMPT_STARTED)[0]
    job.crash()
    before = job.log.high_watermark()
    for arguments, said in (
        (("--split", "x"), "it has no split 'x'; `coordlog splits job` lists its splits"),
        (("--split", "a"), "split 'a' has been read to its end"),
        (("--event", "9999"), "sequence 9999 does not exist"),
        (("--event", str(started.sequence)), "is ATTEMPT_STARTED, not an event"),
        (("--event", str(assigned.sequence)), "skip the split instead, with --split"),
        ((), "pass either --split or --event"),
    ):
        result = run(job.log, "skip", "job", *arguments)
        assert result.exit_code == Exit.USAGE
        assert said in result.stderr
    assert job.log.high_watermark() == before


def test_a_finished_job_has_nothing_to_skip() -> None:
    job = HandDrivenJob(chain_of(pull_of("a")), is_batch=True)
    attempt = job.register(0)
    ask(attempt)
    attempt.skip_split("source", "a")
    ask(attempt)
    attempt.complete()
    assert job.runtime.state.phase is Phase.FINISHED
    job.crash()

    result = run(job.log, "skip", "job", "--split", "a")
    assert result.exit_code == Exit.USAGE
    assert "it is finished" in result.stderr


def test_the_splits_that_are_skipped_are_shown_with_the_reason() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")))
    attempt = job.register(0)
    ask(attempt)
    attempt.skip_split("source", "a", rows=12, reason="row 13 has 9 fields")
    result = run(job.log, "splits", "job", "--skipped")

    assert result.exit_code == 0
    (row,) = [one for one in result.stdout.splitlines() if "row 13" in one]
    assert row.split()[:3] == ["a", "skipped", "12"]
    assert "skipped: row 13 has 9 fields" in row
    assert "1 skipped, 1 waiting" in result.stdout


@pytest.mark.clause("K7")
def test_a_history_with_skips_is_replayed_record_for_record() -> None:
    names = ("a", "b", "c", "d", "e")
    job = HandDrivenJob(chain_of(pull_of(*names)))
    first = job.register(0)
    ask(first)
    checkpoint(job, first)
    first.skip_split("source", "a", rows=3)
    ask(first)
    for _ in range(3):
        job.register(0).fail("bad row", split_id="b")
    job.ask("", SkipSplit(split_id="b", why="asked of the driver"))
    again_first = job.register(0)
    ask(again_first)
    job.ask("", SkipSplit(split_id="c", why="while an attempt has it"))
    job.crash()
    assert run(job.log, "skip", "job", "--split", "d").exit_code == 0
    job = again(job)
    last = job.register(0)
    ask(last)
    ask(last)
    assert told(job, last) == ["e", NO_MORE]

    replay(job.log, chain_of(pull_of(*names)))


@pytest.mark.clause("K5")
def test_any_prefix_of_the_command_s_epoch_is_a_legal_history() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")))
    job.crash()
    before = job.log.high_watermark()
    assert run(job.log, "skip", "job", "--split", "a").exit_code == 0
    end = job.log.high_watermark()
    assert end - before == 3, "the epoch, the type, the fact"
    for cut in range(before, end + 1):
        made = HandDrivenJob(job.chain, log=prefix_of(job.log, cut), job_id="job")
        expected = "skipped" if cut == end else "enumerator"
        assert places(made) == {"a": expected, "b": "enumerator"}
        made.crash()


def test_the_command_s_records_lead_to_the_newest_snapshot() -> None:
    options = RuntimeOptions(snapshot_every=3)
    job = HandDrivenJob(chain_of(pull_of("a", "b", "c")), options=options)
    ask(job.register(0))
    job.crash()
    before = job.log.high_watermark()
    (*_, last) = job.log.read(0, before)
    assert last.header is not None
    assert last.header.snapshot_offset > 0

    assert run(job.log, "skip", "job", "--split", "b").exit_code == 0

    added = [one.header for one in job.log.read(before, job.log.high_watermark())]
    assert len(added) == 3
    assert {one and one.snapshot_offset >= last.header.snapshot_offset for one in added} == {True}
