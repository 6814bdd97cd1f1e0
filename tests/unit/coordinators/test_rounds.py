"""Rounds of an iteration: the models are those of one process with all rows, whatever fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain
from coordlog.coordinators import Iteration, RoundEnded, rounds_operator
from coordlog.errors import OptionError
from coordlog.schemas.record import Kind
from coordlog.testing import HandDrivenJob, crash_sweep
from jobs.row_jobs import (
    Subtask,
    checkpoint,
    keep,
    kept_rows,
    log_with_a_finished_subtask,
    register,
    run_out,
    settle,
)

INPUTS: Final = [[0, 1, 2, 20, 21], [22, 3, 40, 41]]


def nearest(row: int, centres: Sequence[int]) -> int:
    return min(range(len(centres)), key=lambda n: abs(centres[n] - row))


class Means(Iteration):
    """Two means, in whole numbers; the first centres are the smallest and the largest row."""

    def contribute(self, rows: Sequence[pa.RecordBatch], model: bytes) -> bytes:
        values = [n for batch in rows for n in batch.column("n").to_pylist()]
        if not model:
            return json.dumps(values).encode()
        centres = json.loads(model)
        of_each = [[n for n in values if nearest(n, centres) == k] for k in (0, 1)]
        return json.dumps([[sum(part), len(part)] for part in of_each]).encode()

    def combine(self, model: bytes, contributions: Sequence[bytes]) -> tuple[bytes, bool]:
        parts = [json.loads(part) for part in contributions]
        if not model:
            values = [n for part in parts for n in part]
            return json.dumps([min(values), max(values)]).encode(), False
        sums = [[sum(part[k][i] for part in parts) for i in (0, 1)] for k in (0, 1)]
        centres = json.dumps([total // count for total, count in sums]).encode()
        return centres, centres == model

    def emit(self, rows: Sequence[pa.RecordBatch], model: bytes) -> Iterator[pa.RecordBatch]:
        centres = json.loads(model)
        for batch in rows:
            groups = [nearest(n, centres) for n in batch.column("n").to_pylist()]
            yield batch.append_column("group", pa.array(groups))


def one_process() -> list[list[int]]:
    """The models of the same iteration in one process."""
    rows = [pa.RecordBatch.from_pydict({"n": INPUTS[0] + INPUTS[1]})]
    means, models, has_converged = Means(), [b""], False
    while not has_converged:
        model, has_converged = means.combine(models[-1], [means.contribute(rows, models[-1])])
        models.append(model)
    return [json.loads(model) for model in models[1:]]


def chain() -> Chain:
    return keep(rounds_operator(Means()))


def models_of(job: HandDrivenJob) -> dict[int, list[int]]:
    """Model of each round; a round that was repeated has had the same one."""
    models: dict[int, list[int]] = {}
    for record in job.history(Kind.FACT):
        if record.payload_type == "coordlog.round.ended@1":
            value = job.chain.payload_types.decode(record.payload_type, record.payload)
            assert isinstance(value, RoundEnded)
            assert models.setdefault(value.round, json.loads(value.model)) == json.loads(
                value.model
            )
    return models


def check(job: HandDrivenJob) -> None:
    expected = one_process()
    models = models_of(job)
    assert [models[number] for number in sorted(models)] == expected
    grouped = {row["n"]: row["group"] for row in kept_rows(job)}
    assert grouped == {n: nearest(n, expected[-1]) for part in INPUTS for n in part}
    assert len(kept_rows(job)) == len(grouped)


@pytest.mark.parametrize("is_batch", [False, True])
def test_the_rounds_are_those_of_one_process(*, is_batch: bool) -> None:
    job = HandDrivenJob(chain(), parallelism=2, is_batch=is_batch)
    run_out(job, register(job, INPUTS))
    check(job)


def test_a_subtask_without_rows_contributes_too() -> None:
    job = HandDrivenJob(chain(), parallelism=3)
    run_out(job, register(job, [*INPUTS, []]))
    check(job)


def read_all(subtasks: Sequence[Subtask]) -> None:
    for _ in range(4):
        for one in subtasks:
            one.step(2)


def test_an_attempt_that_fails_in_a_round_contributes_again() -> None:
    job = HandDrivenJob(chain(), parallelism=2)
    subtasks = register(job, INPUTS)
    read_all(subtasks)
    subtasks[0].step(2)  # both have contributed to round 0, the first to round 1
    subtasks[0].fail()
    assert 0 in models_of(job)

    subtasks[0] = Subtask(job, 0, INPUTS[0])
    run_out(job, subtasks)
    check(job)


class Count(Iteration):
    """The number of all rows, until it stays the same."""

    def contribute(self, rows: Sequence[pa.RecordBatch], model: bytes) -> bytes:
        return json.dumps(sum(batch.num_rows for batch in rows)).encode()

    def combine(self, model: bytes, contributions: Sequence[bytes]) -> tuple[bytes, bool]:
        total = json.dumps([sum(int(part) for part in contributions)]).encode()
        return total, total == model

    def emit(self, rows: Sequence[pa.RecordBatch], model: bytes) -> Sequence[pa.RecordBatch]:
        return rows


@pytest.mark.parametrize("has_driver_died", [False, True])
def test_rows_that_move_by_a_failure_count_once(*, has_driver_died: bool) -> None:
    job = HandDrivenJob(keep(rounds_operator(Count())), parallelism=2)
    first, second = register(job, [[0, 1, 2], [3, 4, 5, 6]])
    checkpoint(job, [first, second])
    for _ in range(3):
        first.step(3)  # it contributes its three rows
    if has_driver_died:
        job.crash()
        job = HandDrivenJob(job.chain, parallelism=2, log=job.log, restore="resume")
    else:
        first.fail()
        second.inputs = [3, 4, 5, 6, 1, 2]
    second = Subtask(job, 1, [3, 4, 5, 6, 1, 2]) if has_driver_died else second
    for _ in range(6):
        second.step(3)
    assert models_of(job) == {}, "the first subtask has not contributed again"
    run_out(job, [Subtask(job, 0, [0]), second])
    assert models_of(job) == {0: [7], 1: [7]}


def test_after_a_rollback_all_contribute_again() -> None:
    job = HandDrivenJob(keep(rounds_operator(Count())), parallelism=2)
    first, second = register(job, [[0, 1], [2, 3]])
    for _ in range(3):
        first.step(3)
    checkpoint(job, [first, second])
    job.crash()

    restored = HandDrivenJob(job.chain, parallelism=2, log=job.log, restore="rollback")
    again = Subtask(restored, 1, [2, 3])
    for _ in range(3):
        again.step(3)
    assert models_of(restored) == {}, "the first subtask has no attempt"
    run_out(restored, [Subtask(restored, 0, [0, 1]), again])
    assert models_of(restored) == {0: [4], 1: [4]}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_and_rounds_go_on_with_another_parallelism(parallelism: int) -> None:
    job = HandDrivenJob(chain(), parallelism=2)
    subtasks = register(job, INPUTS)
    read_all(subtasks)
    checkpoint(job, subtasks)
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=parallelism, log=job.log)
    run_out(restored, register(restored, [[]] * parallelism))
    check(restored)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_a_redelivered_contribution_ends_no_round(parallelism: int) -> None:
    job = HandDrivenJob(chain(), parallelism=3)
    subtasks = register(job, [*INPUTS, []])
    settle(subtasks)
    read_all(subtasks[:2])
    job.trigger()
    subtasks[2].real.end()
    settle(subtasks)
    assert job.runtime.state.completed[1].in_flight, "it contributed before the barrier"
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=parallelism, log=job.log)
    run_out(restored, register(restored, [[]] * parallelism))
    check(restored)


def test_the_iteration_ends_after_the_last_round_it_may_take() -> None:
    job = HandDrivenJob(keep(rounds_operator(Means(), rounds_max=2)), parallelism=2)
    run_out(job, register(job, INPUTS))
    assert sorted(models_of(job)) == [0, 1]
    with pytest.raises(OptionError):
        rounds_operator(Means(), rounds_max=0)


def script(job: HandDrivenJob) -> None:
    subtasks = register(job, INPUTS)
    read_all(subtasks)
    checkpoint(job, subtasks)
    subtasks[1].fail()
    subtasks[1] = Subtask(job, 1, INPUTS[1])
    settle(subtasks)
    run_out(job, subtasks)


def batch_script(job: HandDrivenJob) -> None:
    subtasks = register(job, INPUTS)
    read_all(subtasks)
    run_out(job, subtasks)


def finish(job: HandDrivenJob) -> None:
    run_out(job, register(job, INPUTS))


@pytest.mark.slow
@pytest.mark.parametrize("is_batch", [False, True])
def test_every_crash_leaves_the_same_models(*, is_batch: bool) -> None:
    chosen = batch_script if is_batch else script
    result = crash_sweep(chain, chosen, finish, check, parallelism=2, is_batch=is_batch)
    assert result.crash_count > 60


def test_an_operator_is_added_after_a_subtask_has_finished() -> None:
    log = log_with_a_finished_subtask(INPUTS[1])
    job = HandDrivenJob(chain(), log=log, parallelism=2)
    run_out(job, register(job, [[], INPUTS[1]]))
    assert [row["n"] for row in kept_rows(job)] == INPUTS[1]
