"""A limit over all subtasks, exact: leases, recalls, failovers, restores, rescaling."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain, OperatorSpec
from coordlog.coordinators import (
    Counting,
    Iteration,
    QuotaNow,
    RaiseQuota,
    quota_operator,
    rounds_operator,
    watermark_operator,
)
from coordlog.coordinators.quota import Beyond
from coordlog.coordinators.quota_state import QuotaState
from coordlog.errors import OptionError, RequestRefusedError
from coordlog.testing import HandDrivenJob, crash_sweep
from jobs.row_jobs import Subtask, checkpoint, keep, kept_rows, register, run_out, settle

INPUTS: Final = [[*range(12)], [*range(100, 112)]]
LIMIT: Final = 15
TRIED: Final[list[int]] = []
"""Rows that were processed, over all tries."""


@pytest.fixture(autouse=True)
def nothing_tried() -> None:
    TRIED.clear()


def use(batch: pa.RecordBatch) -> pa.RecordBatch:
    TRIED.extend(batch.column("n").to_pylist())
    return batch


def chain(
    counting: Counting = Counting.COMMITTED,
    *,
    limit: int = LIMIT,
    beyond: Beyond = "drop",
    lease_rows: int = 4,
) -> Chain:
    return keep(
        quota_operator(limit, counting=counting, beyond=beyond, use=use, lease_rows=lease_rows)
    )


def started(made: Chain, parallelism: int = 2) -> tuple[HandDrivenJob, list[Subtask]]:
    job = HandDrivenJob(made, parallelism=parallelism)
    subtasks = register(job, INPUTS)
    settle(subtasks)
    return job, subtasks


def state_of(job: HandDrivenJob) -> QuotaState:
    state = job.runtime.state.projections["quota"]
    assert isinstance(state, QuotaState)
    return state


def feed(one: Subtask, count: int) -> None:
    """Read rows, request permits for them, and pass those that have one."""
    one.step(count)
    settle([one])
    one.real.step()


def passed(subtasks: list[Subtask]) -> int:
    return sum(len(one.keeper.rows) for one in subtasks)


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (15, 15), (24, 24), (30, 24)])
def test_as_many_rows_pass_as_the_limit_permits(limit: int, count: int, *, is_batch: bool) -> None:
    job = HandDrivenJob(chain(limit=limit), parallelism=2, is_batch=is_batch)
    run_out(job, register(job, INPUTS), rows=5)
    assert len(kept_rows(job)) == len(TRIED) == count
    assert state_of(job).left == limit - count


class AsTheyAre(Iteration):
    """One round, which changes nothing."""

    def contribute(self, rows: Sequence[pa.RecordBatch], model: bytes) -> bytes:
        return b""

    def combine(self, model: bytes, contributions: Sequence[bytes]) -> tuple[bytes, bool]:
        return b"", True

    def emit(self, rows: Sequence[pa.RecordBatch], model: bytes) -> Sequence[pa.RecordBatch]:
        return rows


@pytest.mark.parametrize(
    "before",
    [
        rounds_operator(AsTheyAre()),
        watermark_operator("n", max_drift=timedelta(microseconds=10_000)),
    ],
    ids=["rounds", "watermarks"],
)
def test_rows_that_another_operator_has_held_get_their_permits(before: OperatorSpec) -> None:
    job = HandDrivenJob(keep(before, quota_operator(LIMIT, lease_rows=4)), parallelism=2)
    run_out(job, register(job, INPUTS), rows=20)
    assert len(kept_rows(job)) == LIMIT


def test_rows_that_wait_behind_the_last_round_are_not_emitted_again() -> None:
    def made() -> Chain:
        return keep(
            rounds_operator(AsTheyAre()), quota_operator(1, beyond="wait", operator_id="quota")
        )

    job = HandDrivenJob(made(), parallelism=2)
    subtasks = register(job, INPUTS)
    for _ in range(12):
        for one in subtasks:
            one.step(12)
    checkpoint(job, subtasks)
    job.crash()

    restored = HandDrivenJob(made(), parallelism=2, log=job.log)
    subtasks = register(restored, INPUTS)
    restored.ask("quota", RaiseQuota(limit=100)).answer()
    run_out(restored, subtasks)
    assert len(kept_rows(restored)) == 24


def test_unused_permits_of_others_are_recalled_before_rows_are_dropped() -> None:
    job, (first, second) = started(chain(limit=8, lease_rows=100))
    feed(second, 1)  # a lease of four, of which it uses one
    assert (state_of(job).share(1).held, len(second.keeper.rows)) == (4, 1)
    for _ in range(8):
        first.step(5)
        settle([first, second])
    assert passed([first, second]) == 8, "the three unused permits have gone to the first"
    assert state_of(job).share(1).held == 1


def test_a_subtask_without_permits_reads_no_further_rows() -> None:
    job, (first, second) = started(chain(limit=4, lease_rows=4, beyond="wait"))
    first.step(6)
    for _ in range(4):
        first.step(6)
        settle([first, second])
    assert (first.read_count, len(first.keeper.rows)) == (6, 4)

    answer = job.ask("quota", RaiseQuota(limit=100)).answer().response
    assert isinstance(answer, QuotaNow)
    assert answer.limit == 100
    settle([first, second])
    run_out(job, [first, second])
    assert len(kept_rows(job)) == 24


def test_a_limit_is_not_lowered_and_a_dropping_quota_not_raised() -> None:
    job, _ = started(chain(beyond="wait"))
    with pytest.raises(RequestRefusedError, match="cannot be lowered"):
        job.ask("quota", RaiseQuota(limit=1)).answer()
    job, _ = started(chain())
    with pytest.raises(RequestRefusedError, match="are dropped"):
        job.ask("quota", RaiseQuota(limit=100)).answer()


def test_permits_of_thrown_away_rows_return_with_the_checkpoint() -> None:
    job, (first, second) = started(chain())
    feed(first, 2)
    checkpoint(job, [first, second])
    for _ in range(3):
        feed(first, 2)
    held = state_of(job).share(0).held
    first.fail()
    assert state_of(job).share(0).held == held, "until the new attempt has reported its own"

    again = Subtask(job, 0, INPUTS[0])
    settle([again, second])
    assert len(again.keeper.rows) == 2
    assert state_of(job).share(0).held == 2, "the rows before the checkpoint have used two"
    run_out(job, [again, second])
    assert len(kept_rows(job)) == LIMIT
    assert len(TRIED) > LIMIT


def test_permits_given_back_after_a_checkpoint_do_not_return_with_it() -> None:
    job, (first, second) = started(chain(limit=8, lease_rows=100))
    feed(first, 1)
    checkpoint(job, [first, second])
    while len(second.keeper.rows) < 7:
        second.step(2)
        settle([first, second])
    assert len(first.keeper.rows) == 1, "its unused permits were recalled"
    first.fail()

    again = Subtask(job, 0, INPUTS[0])
    run_out(job, [again, second])
    assert len(kept_rows(job)) == 8
    assert state_of(job).left == 0


def test_permits_of_a_lost_attempt_are_spent_if_tries_count() -> None:
    job, (first, second) = started(chain(Counting.TRIED))
    feed(first, 2)
    checkpoint(job, [first, second])
    feed(first, 2)
    first.fail()
    assert (state_of(job).spent, state_of(job).share(0).held) == (4, 0)

    again = Subtask(job, 0, INPUTS[0])
    run_out(job, [again, second])
    assert len(TRIED) == LIMIT, "each try has used a permit"
    assert len(kept_rows(job)) == LIMIT - 2


@pytest.mark.parametrize("restore", ["rollback", "resume"])
@pytest.mark.parametrize("counting", list(Counting))
def test_the_limit_holds_over_the_death_of_the_driver(counting: Counting, restore: str) -> None:
    job, subtasks = started(chain(counting))
    for one in subtasks:
        one.step(3)
    checkpoint(job, subtasks)
    subtasks[0].step(3)
    job.crash()

    restored = HandDrivenJob(chain(counting), parallelism=2, log=job.log, restore=restore)
    run_out(restored, register(restored, INPUTS))
    rows = len(kept_rows(restored))
    if counting is Counting.COMMITTED:
        assert rows == LIMIT
    else:
        assert rows <= len(TRIED) <= LIMIT


@pytest.mark.parametrize("parallelism", [1, 3])
def test_permits_go_with_the_states_to_another_parallelism(parallelism: int) -> None:
    job, subtasks = started(chain())
    for one in subtasks:
        feed(one, 3)
    checkpoint(job, subtasks)
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=parallelism, log=job.log)
    inputs = [[*range(30)], [*range(200, 230)], [*range(300, 330)]]
    subtasks = register(restored, inputs)
    settle(subtasks)
    assert state_of(restored).handed_out == 6, "each of the two has passed three rows"
    run_out(restored, subtasks)
    assert len(kept_rows(restored)) == LIMIT


@pytest.mark.parametrize(("limit", "lease_rows"), [(-1, 1), (1, 0)])
def test_options_out_of_range_are_refused(limit: int, lease_rows: int) -> None:
    with pytest.raises(OptionError):
        quota_operator(limit, lease_rows=lease_rows)


def script(job: HandDrivenJob) -> None:
    TRIED.clear()
    subtasks = register(job, INPUTS)
    subtasks[0].step(3)
    subtasks[1].step(2)
    settle(subtasks)
    job.trigger()
    subtasks[0].real.take()
    subtasks[0].step(3)
    subtasks[1].fail()
    subtasks[1] = Subtask(job, 1, INPUTS[1])
    checkpoint(job, subtasks)
    subtasks[1].step(4)
    run_out(job, subtasks, rows=3)


def finish(job: HandDrivenJob) -> None:
    run_out(job, register(job, INPUTS), rows=3)


def check_committed(job: HandDrivenJob) -> None:
    rows = kept_rows(job)
    assert len(rows) == LIMIT
    assert len({row["n"] for row in rows}) == LIMIT
    assert state_of(job).left == 0


def check_tried(job: HandDrivenJob) -> None:
    state = state_of(job)
    assert state.left >= 0
    assert len(kept_rows(job)) <= state.handed_out + state.spent <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("counting", list(Counting))
def test_every_crash_keeps_the_limit(counting: Counting) -> None:
    check = check_committed if counting is Counting.COMMITTED else check_tried
    result = crash_sweep(lambda: chain(counting), script, finish, check, parallelism=2)
    assert result.crash_count > 100


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("counting", list(Counting))
def test_rows_of_earlier_openings_count(counting: Counting, *, is_batch: bool) -> None:
    job = HandDrivenJob(chain(counting), parallelism=2, is_batch=is_batch)
    run_out(job, register(job, INPUTS))
    assert job.runtime.state.phase.name == "FINISHED"

    again = HandDrivenJob(
        chain(counting), parallelism=2, is_batch=is_batch, log=job.log, again=True
    )
    longer = [[*part, *range(500, 520)] for part in INPUTS]
    run_out(again, register(again, longer))
    assert len(TRIED) == LIMIT
    assert (state_of(again).left, state_of(again).handed_out + state_of(again).spent) == (0, LIMIT)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("counting", list(Counting))
def test_no_permit_is_lost_by_an_opening_with_any_parallelism(
    counting: Counting, parallelism: int
) -> None:
    job = HandDrivenJob(chain(counting), parallelism=2)
    run_out(job, register(job, [part[:3] for part in INPUTS]))
    again = HandDrivenJob(chain(counting), parallelism=parallelism, log=job.log, again=True)
    run_out(again, register(again, [[*range(500, 530)]] * parallelism))
    assert len(kept_rows(again)) == LIMIT
    assert (state_of(again).left, state_of(again).handed_out + state_of(again).spent) == (0, LIMIT)
