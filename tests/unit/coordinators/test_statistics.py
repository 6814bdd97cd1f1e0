"""A global statistic: that of all rows before one checkpoint, applied on all subtasks at another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain
from coordlog.coordinators import PublishVersion, Sketch, Statistic, Version, statistics_operator
from coordlog.coordinators.statistics import StatisticsState
from coordlog.errors import OptionError, RequestRefusedError
from coordlog.testing import HandDrivenJob, crash_sweep
from jobs.row_jobs import Subtask, checkpoint, keep, kept_rows, register, run_out, settle

INPUTS: Final = [[*range(12)], [*range(100, 112)]]
TOTAL: Final = f"24 rows, {sum(INPUTS[0] + INPUTS[1])}"


class CountAndSum:
    """A sketch that is exact."""

    def __init__(self, content: bytes | None) -> None:
        self.count, self.sum = json.loads(content or b"[0, 0]")

    def update(self, batch: pa.RecordBatch) -> None:
        values = batch.column("n").to_pylist()
        self.count, self.sum = self.count + len(values), self.sum + sum(values)

    def to_bytes(self) -> bytes:
        return json.dumps([self.count, self.sum]).encode()


class Total(Statistic):
    """Number and sum of the rows; each row gets the number of the version that was in force."""

    def create(self, content: bytes | None) -> Sketch:
        return CountAndSum(content)

    def merge(self, contents: Sequence[bytes]) -> bytes:
        parts = [json.loads(content) for content in contents]
        return json.dumps([sum(part[0] for part in parts), sum(part[1] for part in parts)]).encode()

    def describe(self, content: bytes) -> str:
        count, total = json.loads(content)
        return f"{count} rows, {total}"

    def apply(self, batch: pa.RecordBatch, version: Version) -> pa.RecordBatch:
        known = int(version.content.split()[0]) if version.content else 0
        return batch.append_column("known", pa.array([known] * batch.num_rows))


def chain(every: int = 1) -> Chain:
    return keep(statistics_operator(Total(), every=every))


def started(made: Chain | None = None) -> tuple[HandDrivenJob, list[Subtask]]:
    job = HandDrivenJob(made or chain(), parallelism=2)
    subtasks = register(job, INPUTS)
    settle(subtasks)
    return job, subtasks


def state_of(job: HandDrivenJob) -> StatisticsState:
    state = job.runtime.state.projections["statistics"]
    assert isinstance(state, StatisticsState)
    return state


def step(subtasks: Sequence[Subtask]) -> None:
    for one in subtasks:
        one.step(2)


def known(one: Subtask) -> list[int]:
    return [row["known"] for row in one.keeper.rows]


def test_the_statistic_of_one_checkpoint_is_applied_at_the_next() -> None:
    job, subtasks = started()
    step(subtasks)
    checkpoint(job, subtasks)
    assert state_of(job).versions.newest.content == "4 rows, 202"
    step(subtasks)
    checkpoint(job, subtasks)
    step(subtasks)
    assert [known(one) for one in subtasks] == [[0, 0, 0, 0, 4, 4]] * 2
    run_out(job, subtasks)
    assert state_of(job).versions.newest.content == TOTAL


def test_rows_of_a_lost_attempt_count_once() -> None:
    job, (first, second) = started()
    step([first, second])
    checkpoint(job, [first, second])
    step([first, second])
    first.fail()
    again = Subtask(job, 0, INPUTS[0])
    run_out(job, [again, second])
    assert state_of(job).versions.newest.content == TOTAL
    assert len(kept_rows(job)) == 24


def test_the_statistic_is_renewed_at_every_nth_checkpoint() -> None:
    job, subtasks = started(chain(every=2))
    step(subtasks)
    checkpoint(job, subtasks)
    assert state_of(job).versions.newest.number == 1
    checkpoint(job, subtasks)
    assert state_of(job).versions.newest.number == 2
    with pytest.raises(OptionError):
        statistics_operator(Total(), every=0)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_sketches_go_with_the_states_to_another_parallelism(parallelism: int) -> None:
    job, subtasks = started()
    step(subtasks)
    checkpoint(job, subtasks)
    step(subtasks)
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=parallelism, log=job.log)
    subtasks = register(restored, [[1], [2], [3]])
    run_out(restored, subtasks)
    added = [1, 2, 3][:parallelism]
    # the input of the first begins behind the two rows that it has read
    read = added[1:] if parallelism == 1 else added[2:]
    expected = [0, 1, 100, 101, *read]
    assert state_of(restored).versions.newest.content == f"{len(expected)} rows, {sum(expected)}"


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_each_sketch_counts_once_after_an_opening_with_any_parallelism(parallelism: int) -> None:
    job, subtasks = started()
    run_out(job, subtasks)
    job.crash()

    again = HandDrivenJob(chain(), parallelism=parallelism, log=job.log, again=True)
    run_out(again, register(again, [[]] * parallelism))
    assert state_of(again).versions.newest.content == TOTAL


def test_no_client_sets_a_statistic() -> None:
    job, _ = started()
    with pytest.raises(RequestRefusedError):
        job.ask("statistics", PublishVersion(content="x")).answer()


def test_a_batch_has_no_statistic() -> None:
    job = HandDrivenJob(chain(), parallelism=2, is_batch=True)
    run_out(job, register(job, INPUTS))
    assert {row["known"] for row in kept_rows(job)} == {0}


def script(job: HandDrivenJob) -> None:
    subtasks = register(job, INPUTS)
    step(subtasks)
    checkpoint(job, subtasks)
    step(subtasks)
    job.trigger()
    subtasks[0].real.take()
    subtasks[1].fail()
    subtasks[1] = Subtask(job, 1, INPUTS[1])
    run_out(job, subtasks, rows=4)


def finish(job: HandDrivenJob) -> None:
    run_out(job, register(job, INPUTS), rows=4)


def check(job: HandDrivenJob) -> None:
    assert state_of(job).versions.newest.content == TOTAL
    rows = kept_rows(job)
    assert sorted(row["n"] for row in rows) == sorted(INPUTS[0] + INPUTS[1])


@pytest.mark.slow
def test_every_crash_leaves_the_statistic_of_all_rows() -> None:
    result = crash_sweep(chain, script, finish, check, parallelism=2)
    assert result.crash_count > 100
