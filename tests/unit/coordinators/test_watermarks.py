"""No subtask is more than the drift ahead of the slowest; idle and finished subtasks hold no other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain
from coordlog.coordinators import watermark_operator
from coordlog.coordinators.watermarks import AdvanceTo, WatermarkOperator
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

DRIFT: Final = 5
INPUTS: Final = [
    [*range(0, 20, 2), *range(1_000, 1_010, 2)],
    [*range(1, 40, 4), *range(1_001, 1_011, 2)],
]
"""Event times; both inputs have a gap that is longer than the drift."""


def chain() -> Chain:
    drift = timedelta(microseconds=DRIFT)
    return keep(watermark_operator("n", max_drift=drift, idle_s=1e9))


def started(inputs: Sequence[Sequence[int]] = INPUTS) -> tuple[HandDrivenJob, list[Subtask]]:
    job = HandDrivenJob(chain(), parallelism=2)
    subtasks = register(job, inputs)
    settle(subtasks)
    return job, subtasks


def step_checked(one: Subtask, subtasks: Sequence[Subtask], rows: int) -> None:
    """Read rows; none passes that is too far ahead of a row that has not."""
    before = len(one.keeper.rows)
    one.step(rows)
    for other in subtasks:
        remaining = other.inputs[len(other.keeper.rows) :]
        if remaining and len(one.keeper.rows) > before:
            assert one.keeper.rows[-1]["n"] <= remaining[0] + DRIFT


def run_aligned(job: HandDrivenJob, subtasks: Sequence[Subtask], *, rows: int = 3) -> None:
    for _ in range(40):
        for one in subtasks:
            step_checked(one, subtasks, rows)
        settle(subtasks)
    run_out(job, subtasks)


@pytest.mark.parametrize("is_batch", [False, True])
def test_no_row_is_further_ahead_of_the_slowest_than_the_drift(*, is_batch: bool) -> None:
    job = HandDrivenJob(chain(), parallelism=2, is_batch=is_batch)
    subtasks = register(job, INPUTS)
    run_aligned(job, subtasks)
    assert sorted(row["n"] for row in kept_rows(job)) == sorted(INPUTS[0] + INPUTS[1])


def test_a_subtask_that_is_ahead_reads_nothing_until_the_others_are_near() -> None:
    _, (slow, fast) = started([[0, 1, 90], [100, 101]])
    for _ in range(3):
        slow.step(1)
        fast.step(1)
        settle([slow, fast])
    fast.step(1)
    assert (fast.read_count, fast.keeper.rows) == (1, []), "90 and 5 are less than 100"
    slow.step(1)
    settle([slow, fast])
    for _ in range(3):
        fast.step(1)
    assert [row["n"] for row in fast.keeper.rows] == [100, 101], "the slow one has ended"


def test_an_idle_subtask_does_not_hold_the_others() -> None:
    _, (idle, busy) = started([[0], [100, 101]])
    busy.step(2)
    settle([idle, busy])
    busy.step(2)
    assert busy.keeper.rows == []

    operator = idle.real.operator("watermarks")
    assert isinstance(operator, WatermarkOperator)
    idle.real.step()
    operator._clock = lambda: 1e12
    idle.real.step()
    idle.real.step()
    settle([idle, busy])
    busy.step(2)
    assert len(busy.keeper.rows) == 2


def test_a_subtask_is_not_idle_while_its_rows_take_long() -> None:
    job, (slow, other) = started([[*range(5)], [0]])
    other.step(1)
    operator = slow.real.operator("watermarks")
    assert isinstance(operator, WatermarkOperator)
    for number in range(5):
        operator._clock = lambda now=1e12 * number: now  # type: ignore[misc]
        slow.step(1)
        settle([slow])
    sent = [record.payload_type for record in job.history(Kind.EVENT_TO_COORDINATOR)]
    assert "coordlog.watermark.idle@1" not in sent


def test_the_others_stop_until_a_lost_attempt_has_a_successor() -> None:
    job, (slow, fast) = started([[*range(0, 90, 10)], [*range(1, 91, 10)]])
    for _ in range(3):
        slow.step(1)
        fast.step(1)
        settle([slow, fast])
    slow.fail()
    for _ in range(9):
        fast.step(1)
    assert fast.keeper.rows[-1]["n"] <= 20 + DRIFT

    again = Subtask(job, 0, slow.inputs)
    settle([again, fast])
    assert again.keeper.rows == []
    for _ in range(30):
        step_checked(again, [again, fast], 1)
        step_checked(fast, [again, fast], 1)
        settle([again, fast])
    assert len(fast.keeper.rows) == len(fast.inputs)


def test_no_row_of_an_opening_passes_before_all_subtasks_have_reported() -> None:
    job, subtasks = started([[0], [0]])
    run_out(job, subtasks)

    again = HandDrivenJob(chain(), parallelism=2, log=job.log, again=True)
    first = Subtask(again, 0, [0, 1, 2])
    for _ in range(4):
        first.step(1)
    assert len(first.keeper.rows) == 1, "that of the first opening"
    run_out(again, [first, Subtask(again, 1, [0, 1, 2])])
    assert len(kept_rows(again)) == 6


def test_a_redelivered_report_does_not_speak_for_the_next_attempt() -> None:
    job, (first, second) = started([[0], [0]])
    first.step(1)
    second.step(1)
    settle([first, second])
    job.trigger()
    operator = second.real.operator("watermarks")
    assert isinstance(operator, WatermarkOperator)
    second.real.step()
    operator._clock = lambda: 1e12
    second.real.step()
    second.real.step()
    settle([first, second])
    assert job.runtime.state.completed[1].in_flight, "it was idle before the barrier"
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=2, log=job.log)
    again = Subtask(restored, 0, [0, *range(100, 110)])
    before = len(again.keeper.rows)
    for _ in range(4):
        again.step(1)
    assert len(again.keeper.rows) == before, "the second subtask has no attempt yet"
    run_out(restored, [again, Subtask(restored, 1, [0])])


def test_rows_without_a_time_pass() -> None:
    _, (first, _second) = started()
    batch = pa.RecordBatch.from_pydict({"n": pa.array([None, 7], pa.int64())})
    first.real.read(batch)
    assert first.keeper.rows == [], "there is no bound yet"
    operator = first.real.operator("watermarks")
    operator.handle_event(AdvanceTo(time_us=3))
    first.real.step()
    assert [row["n"] for row in first.keeper.rows] == [None], "and 7 waits"


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_that_wait_go_with_the_states_to_another_parallelism(parallelism: int) -> None:
    job, subtasks = started()
    for one in subtasks:
        one.step(4)
    settle(subtasks)
    checkpoint(job, subtasks)
    read = [n for one in subtasks for n in one.inputs[: one.read_count]]
    job.crash()

    restored = HandDrivenJob(chain(), parallelism=parallelism, log=job.log)
    subtasks = register(restored, [[]] * parallelism)
    run_out(restored, subtasks)
    assert sorted(row["n"] for row in kept_rows(restored)) == sorted(read)


def test_a_drift_of_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match="max_drift"):
        watermark_operator("n", max_drift=timedelta(0))


def script(job: HandDrivenJob) -> None:
    subtasks = register(job, INPUTS)
    for _ in range(3):
        for one in subtasks:
            one.step(3)
        settle(subtasks)
    job.trigger()
    subtasks[0].real.take()
    subtasks[1].fail()
    subtasks[1] = Subtask(job, 1, INPUTS[1])
    checkpoint(job, subtasks)
    run_out(
        job, subtasks, rows=5
    )  # up to the last bound rows pass, although the second is behind now


def finish(job: HandDrivenJob) -> None:
    subtasks = register(job, INPUTS)
    settle(subtasks)
    run_aligned(job, subtasks, rows=5)


def check(job: HandDrivenJob) -> None:
    assert sorted(row["n"] for row in kept_rows(job)) == sorted(INPUTS[0] + INPUTS[1])


@pytest.mark.slow
def test_every_crash_keeps_the_drift_and_all_rows() -> None:
    result = crash_sweep(chain, script, finish, check, parallelism=2)
    assert result.crash_count > 100


def test_an_operator_is_added_after_a_subtask_has_finished() -> None:
    log = log_with_a_finished_subtask(INPUTS[1])
    job = HandDrivenJob(chain(), log=log, parallelism=2)
    run_out(job, register(job, [[], INPUTS[1]]))
    assert [row["n"] for row in kept_rows(job)] == INPUTS[1]
