"""Rules of which each version takes effect at one checkpoint, over failures, aborts, restores and rescaling."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain
from coordlog.coordinators import PublishVersion, Version, VersionOfRows, rules_operator
from coordlog.coordinators.versions import VersionAccepted, VersionsState
from coordlog.errors import RequestRefusedError
from coordlog.limits import VERSION_BYTES_MAX
from coordlog.schemas.record import Kind
from coordlog.spark_integration.transform import transform_spec
from coordlog.testing import HandDrivenJob, crash_sweep
from jobs.row_jobs import Subtask, checkpoint, keep, kept_rows, register, run_out, settle

INPUTS: Final = [[*range(12)], [*range(100, 112)]]


def judge(batch: pa.RecordBatch, version: Version) -> pa.RecordBatch:
    """Adds the version to each row; the content is its number again."""
    assert int(version.content) == version.number
    return batch.append_column("version", pa.array([version.number] * batch.num_rows))


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def chain() -> Chain:
    return keep(rules_operator(judge, initial="1"))


def started(parallelism: int = 2) -> tuple[HandDrivenJob, list[Subtask]]:
    job = HandDrivenJob(chain(), parallelism=parallelism)
    subtasks = register(job, INPUTS)
    settle(subtasks)
    return job, subtasks


def publish(job: HandDrivenJob, number: int = 2) -> int:
    accepted = job.ask("rules", PublishVersion(content=str(number))).answer().response
    assert isinstance(accepted, VersionAccepted)
    return accepted.version


def step(subtasks: list[Subtask]) -> None:
    for one in subtasks:
        one.step()


def versions_of(one: Subtask) -> list[int]:
    return [row["version"] for row in one.keeper.rows]


def spans(job: HandDrivenJob) -> dict[int, int]:
    """Version of the rows before each checkpoint, as the history has it."""
    found: dict[int, int] = {}
    for record in job.history(Kind.FACT):
        if record.payload_type == "coordlog.version.of_rows@1":
            value = job.chain.payload_types.decode(record.payload_type, record.payload)
            assert isinstance(value, VersionOfRows)
            assert found.setdefault(value.checkpoint_id, value.version) == value.version
    return found


def check_rows(job: HandDrivenJob) -> None:
    """Each row came out once, and rows of all subtasks between two checkpoints have the recorded version."""
    rows, recorded = kept_rows(job), spans(job)
    assert sorted(row["n"] for row in rows) == sorted(n for part in INPUTS for n in part)
    for row in rows:
        checkpoint_id = min(number for number in recorded if number > row["barrier"])
        assert row["version"] == recorded[checkpoint_id], (row, recorded)


def test_a_version_takes_effect_at_one_checkpoint_on_all_subtasks() -> None:
    job, subtasks = started()
    step(subtasks)
    assert publish(job) == 2
    step(subtasks)
    checkpoint(job, subtasks)
    step(subtasks)

    assert [versions_of(one) for one in subtasks] == [[1, 1, 1, 1, 2, 2]] * 2
    assert spans(job) == {1: 1}
    run_out(job, subtasks)
    check_rows(job)


def test_no_row_behind_the_barrier_is_read_before_the_checkpoint_ends() -> None:
    job, (first, second) = started()
    publish(job)
    settle([first, second])
    job.trigger()
    first.step()
    assert versions_of(first) == [], "it waits for the other subtask's ack"

    settle([first, second])
    first.step()
    assert versions_of(first) == [2, 2]


def test_an_aborted_checkpoint_brings_no_version_into_force() -> None:
    job, (first, second) = started()
    publish(job)
    settle([first, second])
    job.trigger()
    first.real.take()
    second.fail()
    first.step()
    assert versions_of(first) == [1, 1]

    again = Subtask(job, 1, INPUTS[1])
    both = [first, again]
    step(both)
    checkpoint(job, both)
    step(both)
    assert [versions_of(one) for one in both] == [[1, 1, 1, 1, 2, 2], [1, 1, 2, 2]]
    run_out(job, both)
    check_rows(job)


def test_a_version_published_within_a_checkpoint_waits_for_the_next() -> None:
    job, subtasks = started()
    job.trigger()
    publish(job)
    settle(subtasks)
    step(subtasks)
    assert [versions_of(one) for one in subtasks] == [[1, 1]] * 2
    checkpoint(job, subtasks)
    step(subtasks)
    assert [versions_of(one) for one in subtasks] == [[1, 1, 2, 2]] * 2


def test_a_local_failover_goes_back_to_the_version_of_its_checkpoint() -> None:
    job, subtasks = started()
    step(subtasks)
    publish(job)
    checkpoint(job, subtasks)
    publish(job, 3)
    step(subtasks)
    subtasks[0].fail()

    subtasks[0] = Subtask(job, 0, INPUTS[0])
    step(subtasks)
    assert versions_of(subtasks[0]) == [1, 1, 2, 2]
    checkpoint(job, subtasks)
    step(subtasks)
    assert versions_of(subtasks[0]) == [1, 1, 2, 2, 3, 3]
    run_out(job, subtasks)
    check_rows(job)


@pytest.mark.parametrize("restore", ["rollback", "resume"])
def test_a_published_version_outlives_the_driver(restore: str) -> None:
    job, subtasks = started()
    checkpoint(job, subtasks)
    publish(job)
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=2, log=job.log, restore=restore)
    subtasks = register(restored, INPUTS)
    step(subtasks)
    checkpoint(restored, subtasks)
    step(subtasks)
    assert [versions_of(one) for one in subtasks] == [[1, 1, 2, 2]] * 2
    run_out(restored, subtasks)
    check_rows(restored)


def test_without_a_checkpoint_the_newest_version_judges_all_rows_again() -> None:
    job, subtasks = started()
    step(subtasks)
    publish(job)
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=2, log=job.log, restore="rollback")
    subtasks = register(restored, INPUTS)
    step(subtasks)
    assert [versions_of(one) for one in subtasks] == [[2, 2]] * 2


@pytest.mark.parametrize("parallelism", [1, 3])
def test_subtasks_of_another_parallelism_begin_with_the_version_in_force(parallelism: int) -> None:
    job, subtasks = started()
    publish(job)
    checkpoint(job, subtasks)
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=parallelism, log=job.log)
    subtasks = register(restored, [[1, 2], [3, 4], [5, 6]])
    step(subtasks)
    assert [versions_of(one) for one in subtasks] == [[2, 2]] * parallelism


def test_a_content_that_is_the_newest_keeps_its_number() -> None:
    job, _ = started()
    assert (publish(job), publish(job)) == (2, 2)


def test_a_batch_job_refuses_a_version() -> None:
    job = HandDrivenJob(chain(), parallelism=2, is_batch=True)
    subtasks = register(job, INPUTS)
    with pytest.raises(RequestRefusedError, match="start the job with it"):
        job.ask("rules", PublishVersion(content="2")).answer()
    run_out(job, subtasks)
    assert {row["version"] for row in kept_rows(job)} == {1}
    assert spans(job) == {-1: 1}


def test_a_version_that_is_too_large_is_refused() -> None:
    job, _ = started()
    with pytest.raises(RequestRefusedError, match="bytes of"):
        job.ask("rules", PublishVersion(content="x" * (VERSION_BYTES_MAX + 1))).answer()


def script(job: HandDrivenJob) -> None:
    subtasks = register(job, INPUTS)
    step(subtasks)
    publish(job)
    step(subtasks)
    settle(subtasks)
    job.trigger()
    subtasks[0].real.take()
    subtasks[1].fail()
    subtasks[1] = Subtask(job, 1, INPUTS[1])
    step(subtasks)
    job.trigger()
    publish(job, 3)
    settle(subtasks)
    step(subtasks)
    checkpoint(job, subtasks)
    step(subtasks)
    run_out(job, subtasks)


def finish(job: HandDrivenJob) -> None:
    subtasks = register(job, INPUTS)
    settle(subtasks)
    state = job.runtime.state.projections["rules"]
    assert isinstance(state, VersionsState)
    if subtasks:
        publish(job, state.newest.number + 1)
    run_out(job, subtasks)


@pytest.mark.slow
def test_every_crash_leaves_each_row_with_the_recorded_version() -> None:
    result = crash_sweep(chain, script, finish, check_rows, parallelism=2)
    assert result.crash_count > 100


def test_a_subtask_that_had_finished_is_reopened_with_the_version_in_force() -> None:
    job, (first, second) = started()
    for _ in range(7):
        first.step()
    assert first.real.is_completed
    publish(job)
    run_out(job, [second])
    assert job.runtime.state.phase.name == "FINISHED"

    again = HandDrivenJob(chain(), parallelism=2, log=job.log, again=True)
    subtasks = register(again, [[*part, 500, 501] for part in INPUTS])
    settle(subtasks)
    step(subtasks)
    assert [versions_of(one)[-2:] for one in subtasks] == [[2, 2]] * 2


@pytest.mark.parametrize("restore", ["rollback", "resume"])
def test_a_restore_to_a_reopening_does_not_change_earlier_versions(restore: str) -> None:
    job, subtasks = started()
    step(subtasks)
    publish(job)
    for _ in range(7):
        step(subtasks)
    run_out(job, subtasks)
    assert spans(job) == {1: 1}

    HandDrivenJob(chain(), parallelism=2, log=job.log, again=True).crash()
    again = HandDrivenJob(chain(), parallelism=2, log=job.log, restore=restore)
    subtasks = register(again, [[*part, 500, 501] for part in INPUTS])
    settle(subtasks)
    step(subtasks)

    assert [versions_of(one)[-2:] for one in subtasks] == [[2, 2]] * 2
    run_out(again, subtasks)
    assert spans(again) == {1: 1, 2: 2}


@pytest.mark.parametrize("crashes", [0, 1])
def test_rules_are_added_to_a_job_that_has_checkpoints(crashes: int) -> None:
    before = HandDrivenJob(keep(transform_spec(unchanged)), parallelism=2)
    subtasks = register(before, INPUTS)
    settle(subtasks)
    step(subtasks)
    checkpoint(before, subtasks)
    before.crash()

    job = HandDrivenJob(chain(), log=before.log, parallelism=2)
    for _ in range(crashes):
        publish(job)
        job.crash()
        job = HandDrivenJob(chain(), log=before.log, parallelism=2)
    subtasks = register(job, INPUTS)
    settle(subtasks)
    step(subtasks)
    newest = 1 + crashes
    assert [one.keeper.rows[-1]["version"] for one in subtasks] == [newest] * 2
    assert spans(job) == {}, "no rule has judged the rows before"
    publish(job, newest + 1)
    settle(subtasks)
    checkpoint(job, subtasks)
    step(subtasks)
    assert [one.keeper.rows[-1]["version"] for one in subtasks] == [newest + 1] * 2
    assert spans(job) == {2: newest}
