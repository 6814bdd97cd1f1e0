"""Who is missing from a checkpoint, as the live state, the audit and the commands tell it (clauses F9, F12)."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from coordlog.cli.main import main
from coordlog.projections.tables.audit import audit
from coordlog.projections.tables.checkpoints import CheckpointRow, CheckpointStatus
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import NotingProvider, chain_of, inside
from histories.one_log import OneLog


def rows_of(job: HandDrivenJob) -> tuple[CheckpointRow, ...]:
    return audit(job.log.read(0, job.log.high_watermark())).checkpoints


def shown(job: HandDrivenJob, *arguments: str) -> list[str]:
    result = CliRunner().invoke(main, arguments, obj=lambda _servers: OneLog(job.log))
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def missing(job: HandDrivenJob, checkpoint_id: int = 1) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What the live state and the audit both say."""
    state = job.runtime.state
    pending = state.pending[checkpoint_id]
    live = pending.missing_coordinators(state.operators), pending.missing_subtasks
    row = rows_of(job)[checkpoint_id - 1]
    assert row.status is CheckpointStatus.PENDING
    assert (row.missing_coordinators, row.missing_subtasks) == live
    return live


def begun() -> tuple[HandDrivenJob, NotingProvider, list[FakeAttempt]]:
    """A checkpoint of three subtasks is pending, cut by one of two coordinators."""
    source, sink = NotingProvider("source"), NotingProvider("sink", is_cut_at_once=False)
    job = HandDrivenJob(chain_of(source, sink), parallelism=3)
    attempts = job.register_all()
    job.trigger()
    return job, sink, attempts


@pytest.mark.clause("F9")
def test_a_pending_checkpoint_names_its_missing_coordinators_and_subtasks() -> None:
    job, sink, (first, second, third) = begun()
    assert missing(job) == (("sink",), (0, 1, 2))
    inside(first, sink, lambda c: c.results[1].complete(b""))
    assert missing(job) == ((), (0, 1, 2))
    second.ack_checkpoint(1)
    assert missing(job) == ((), (0, 2))
    first.complete()
    assert missing(job) == ((), (2,)), "its completion counts as its ack"
    third.ack_checkpoint(1)

    (row,) = rows_of(job)
    assert (row.status, row.missing_coordinators, row.missing_subtasks, row.missing) == (
        CheckpointStatus.COMPLETED,
        (),
        (),
        "",
    )


def test_a_subtask_that_finished_ahead_of_the_trigger_is_not_missing() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, _ = job.register_all()
    first.complete()
    job.trigger()

    assert missing(job) == ((), (1,))


@pytest.mark.clause("F12")
def test_an_aborted_checkpoint_tells_who_was_missing() -> None:
    job, sink, (first, second, third) = begun()
    inside(first, sink, lambda c: c.results[1].complete(b""))
    third.ack_checkpoint(1)
    second.lose()
    first.ack_checkpoint(1)  # too late to count

    (row,) = rows_of(job)
    assert (row.status, row.missing_coordinators, row.missing_subtasks) == (
        CheckpointStatus.ABORTED,
        (),
        (0, 1),
    )
    (line,) = [one for one in shown(job, "checkpoints", "job") if "aborted" in one][:1]
    assert "acks of subtasks 0, 1" in line
    assert not any("pending" in one for one in shown(job, "history", "job"))


def test_the_history_and_the_table_tell_who_is_missing() -> None:
    job, _, (first, *_) = begun()
    said = "cuts of sink and acks of subtasks 0, 1, 2"

    assert shown(job, "history", "job")[-1] == f"checkpoint 1 is pending; missing: {said}"
    assert shown(job, "history", "job", "--kind", "ATTEMPT_STARTED")[-1].endswith(said)
    (line,) = [one for one in shown(job, "checkpoints", "job") if " pending " in one][:1]
    assert said in line
    (as_json,) = shown(job, "checkpoints", "job", "--json")
    assert '"missing_coordinators": ["sink"], "missing_subtasks": [0, 1, 2]' in as_json
    first.lose()
    assert "pending" not in shown(job, "history", "job")[-1]
