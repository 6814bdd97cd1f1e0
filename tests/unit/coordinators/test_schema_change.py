"""A change of schema: writers flush, the change is applied once, writers go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain
from coordlog.coordinators import PublishVersion, Version, schema_change_operator
from coordlog.coordinators.schema_change import SchemaState
from coordlog.limits import SCHEMA_CHANGE_RETRY_S, SCHEMA_CHANGE_TRIES_MAX
from coordlog.schemas.record import Kind
from coordlog.testing import HandDrivenJob, crash_sweep
from jobs.row_jobs import Subtask, checkpoint, keep, kept_rows, register, run_out, settle

INPUTS: Final = [[*range(12)], [*range(100, 112)]]
CALLS: Final[list[int]] = []
"""Versions of the calls of `apply`, in their order."""
FAILURES: Final[list[str]] = []
"""Errors of the next calls."""


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()
    FAILURES.clear()


def apply(version: Version) -> None:
    if FAILURES:
        raise OSError(FAILURES.pop())
    CALLS.append(version.number)


def convert(batch: pa.RecordBatch, version: Version) -> pa.RecordBatch:
    assert version.number <= max(CALLS), "the outside has the schema of each row that is written"
    return batch.append_column("schema", pa.array([version.number] * batch.num_rows))


def chain() -> Chain:
    return keep(schema_change_operator(convert, apply, initial="a"))


def started() -> tuple[HandDrivenJob, list[Subtask]]:
    job = HandDrivenJob(chain(), parallelism=2)
    subtasks = register(job, INPUTS)
    settle(subtasks)
    return job, subtasks


def publish(job: HandDrivenJob, content: str = "b") -> None:
    job.ask("schema", PublishVersion(content=content)).answer()


def step(subtasks: Sequence[Subtask]) -> None:
    for one in subtasks:
        one.step(2)


def schemas(one: Subtask) -> list[int]:
    return [row["schema"] for row in one.keeper.rows]


def test_no_row_is_written_before_its_schema_is_applied() -> None:
    FAILURES.append("the table is locked")
    job, subtasks = started()
    step(subtasks)
    assert [schemas(one) for one in subtasks] == [[], []]
    job.advance(SCHEMA_CHANGE_RETRY_S)
    settle(subtasks)
    step(subtasks)
    assert [schemas(one) for one in subtasks] == [[1, 1]] * 2


def test_a_change_is_applied_once_all_older_rows_are_flushed() -> None:
    job, subtasks = started()
    step(subtasks)
    publish(job)
    settle(subtasks)
    step(subtasks)
    assert CALLS == [1]
    job.is_work_held = True
    checkpoint(job, subtasks)
    step(subtasks)
    assert [schemas(one) for one in subtasks] == [[1] * 4] * 2, "they wait for the change"
    job.is_work_held = False
    job.pump()
    assert CALLS == [1, 2]
    settle(subtasks)
    step(subtasks)
    assert [schemas(one) for one in subtasks] == [[1] * 4 + [2] * 2] * 2


def test_a_change_that_fails_is_tried_again() -> None:
    job, subtasks = started()
    publish(job)
    settle(subtasks)
    FAILURES.append("the table is locked")
    checkpoint(job, subtasks)
    assert CALLS == [1]
    job.advance(SCHEMA_CHANGE_RETRY_S)
    assert CALLS == [1, 2]


@pytest.mark.may_fail("the table is locked")
def test_a_change_that_fails_too_often_fails_the_job() -> None:
    job, subtasks = started()
    publish(job)
    settle(subtasks)
    FAILURES.extend(["the table is locked"] * SCHEMA_CHANGE_TRIES_MAX)
    checkpoint(job, subtasks)
    for _ in range(SCHEMA_CHANGE_TRIES_MAX - 1):
        assert job.history(Kind.GLOBAL_FAILURE) == []
        job.advance(SCHEMA_CHANGE_RETRY_S)
    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert "schema version 2 cannot be applied" in (failure.reason or "")


@pytest.mark.parametrize("restore", ["rollback", "resume"])
def test_an_applied_change_is_not_repeated_by_a_restore(restore: str) -> None:
    job, subtasks = started()
    publish(job)
    checkpoint(job, subtasks)
    settle(subtasks)
    assert CALLS == [1, 2]
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=2, log=job.log, restore=restore)
    subtasks = register(restored, INPUTS)
    settle(subtasks)
    step(subtasks)
    assert (CALLS, [schemas(one) for one in subtasks]) == ([1, 2], [[2, 2]] * 2)


def test_a_lost_attempt_waits_for_the_change_again() -> None:
    job, subtasks = started()
    publish(job)
    settle(subtasks)
    job.is_work_held = True
    checkpoint(job, subtasks)
    subtasks[0].fail()
    subtasks[0] = Subtask(job, 0, INPUTS[0])
    step(subtasks)
    assert schemas(subtasks[0]) == []
    job.is_work_held = False
    job.pump()
    run_out(job, subtasks)
    assert CALLS == [1, 2]
    assert len(kept_rows(job)) == 24


@pytest.mark.parametrize("parallelism", [1, 3])
def test_subtasks_of_another_parallelism_have_the_schema_in_force(parallelism: int) -> None:
    job, subtasks = started()
    publish(job)
    checkpoint(job, subtasks)
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=parallelism, log=job.log)
    subtasks = register(restored, [[1, 2], [3, 4], [5, 6]])
    settle(subtasks)
    step(subtasks)
    assert [schemas(one) for one in subtasks] == [[2, 2]] * parallelism


def test_a_batch_has_the_initial_schema() -> None:
    job = HandDrivenJob(chain(), parallelism=2, is_batch=True)
    run_out(job, register(job, INPUTS))
    assert CALLS == [1]
    assert {row["schema"] for row in kept_rows(job)} == {1}


def script(job: HandDrivenJob) -> None:
    subtasks = register(job, INPUTS)
    settle(subtasks)
    step(subtasks)
    publish(job)
    settle(subtasks)
    job.trigger()
    subtasks[0].real.take()
    subtasks[1].fail()
    subtasks[1] = Subtask(job, 1, INPUTS[1])
    settle(subtasks)
    checkpoint(job, subtasks)
    run_out(job, subtasks, rows=4)


def finish(job: HandDrivenJob) -> None:
    subtasks = register(job, INPUTS)
    if subtasks:
        publish(job)
    run_out(job, subtasks, rows=4)


def check(job: HandDrivenJob) -> None:
    rows = kept_rows(job)
    assert sorted(row["n"] for row in rows) == sorted(INPUTS[0] + INPUTS[1])
    state = job.runtime.state.projections["schema"]
    assert isinstance(state, SchemaState)
    assert state.applied >= state.versions.in_force.number
    of_checkpoint = {(row["barrier"], row["schema"]) for row in rows}
    assert len(of_checkpoint) == len({barrier for barrier, _ in of_checkpoint})


@pytest.mark.slow
def test_every_crash_leaves_one_schema_between_two_checkpoints() -> None:
    result = crash_sweep(chain, script, finish, check, parallelism=2)
    assert result.crash_count > 100
