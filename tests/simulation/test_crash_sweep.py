"""A job is cut off after each record of its log, and comes to the same end (clauses K5, D3, E5, E6).

The runs are written by hand and go on to their end. Then the log is cut after every record, in the
middle of turns too; another driver restores from what is left, by rollback and by resume, and
finishes. What is outside is as the crash has left it: a sink has done what has an outcome, and what
has only an intent it has done or not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from coordlog.errors import OptionError
from coordlog.log.memory import MemoryLog
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.schemas.record import Kind, Record
from coordlog.testing.crash_sweep import sweep
from fakes.kernel_fakes import prefix_of
from fakes.machine_fakes import Kept
from histories.sweep_runs import RUNS, Run
from histories.sweep_worlds import (
    MADE,
    ROWS,
    SPLITS,
    SplitWorld,
    World,
    records_of,
    settled_in,
    sink_after,
)
from tiers import in_parts

PARTS = 5
"""Every fifth prefix is in one part."""


def expected(world: World) -> dict[str, Any]:
    """What must come of a run, written out."""
    if isinstance(world, SplitWorld):
        names = sorted(SPLITS)
        return {
            "phase": "finished",
            "committed": [f"{name}/1" for name in names],
            "ended": names,
            "left": [0, 0, 0],
        }
    rows, events = tuple(range(1, ROWS + 1)), tuple(range(1, MADE + 1))
    is_seen = world.job.mode != "finished"
    return {
        "phase": "finished",
        "committed": [list(rows), list(rows)],
        "kept": [Kept(ROWS, events), Kept(ROWS, events)],
        "counts": [(rows, MADE, ()), (rows, MADE, ())] if is_seen else [],
        "left": [0, 0, 0],
    }


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a crash leaves, by a twin that knows nothing but the records' order."""

    records: list[Record]
    last: int
    """The highest checkpoint that completed on the current branch, -1 for none (clause E5)."""
    is_failing: bool
    """A global failure stands without its reset."""

    @property
    def open_intents(self) -> set[int | None]:
        intents = {one.sequence for one in self.records if one.kind is Kind.COMMIT_INTENT}
        return intents - settled_in(self.records)


def left_in(log: MemoryLog) -> Left:
    records, last, is_failing = records_of(log), -1, False
    for one in records:
        if one.kind in (Kind.CHECKPOINT_COMPLETED, Kind.RESET_TO_CHECKPOINT):
            assert one.checkpoint_id is not None
            last = one.checkpoint_id
        if one.kind in (Kind.GLOBAL_FAILURE, Kind.RESET_TO_CHECKPOINT):
            is_failing = one.kind is Kind.GLOBAL_FAILURE
    return Left(records=records, last=last, is_failing=is_failing)


def restored_from(
    run: Run, log: MemoryLog, left: Left, mode: str, *, are_open_done: bool
) -> World | None:
    """The world after another driver has gone on from `log`; None where it refuses to resume."""
    sink = sink_after(left.records, are_open_done=are_open_done)
    if mode == "resume" and left.is_failing:
        with pytest.raises(OptionError, match="the log ends with the job failing"):
            run.make(log=log, restore=mode, sink=sink)
        return None
    world = run.make(log=log, restore=mode, sink=sink)
    if world.job.mode in ("rollback", "resume"):
        goes_on_from_the_last_checkpoint(world, left, mode)
    else:
        assert world.job.mode in ("start", "settle", "finished")
    agrees_with_its_log(world)
    return world


def goes_on_from_the_last_checkpoint(world: World, left: Left, mode: str) -> None:
    """Clauses E5 and E6: which checkpoint, and complete(n) again, all before any attempt."""
    assert world.job.mode == mode
    new = world.job.history()[len(left.records) :]
    # Where every subtask has finished, the last checkpoint follows at once.
    begun = [n for n, one in enumerate(new) if one.kind is Kind.CHECKPOINT_TRIGGERED]
    new = new[: begun[0]] if begun else new
    operators = [one.operator_id for one in world.job.chain.coordinators]
    told = [
        (one.operator_id, one.checkpoint_id) for one in new if one.kind is Kind.COORDINATOR_NOTIFIED
    ]
    assert told == [(operator, left.last) for operator in operators if left.last >= 0]
    by = Kind.RESET_TO_CHECKPOINT if mode == "rollback" else Kind.SUBTASK_RESET
    resets = [one.checkpoint_id for one in new if one.kind is by]
    assert resets == [left.last] * len(resets)
    assert len(resets) == 1 or mode == "resume"
    assert Kind.ATTEMPT_STARTED not in [one.kind for one in new]


def comes_to_its_end(world: World) -> None:
    world.finish()
    assert world.outcome() == expected(world)
    agrees_with_its_log(world)
    history = world.job.history()
    intents = [one.sequence for one in history if one.kind is Kind.COMMIT_INTENT]
    assert set(intents) == settled_in(history), "an intent is carried out, never dropped"


def agrees_with_its_log(world: World) -> None:
    job = world.job
    for is_whole in (True, False):  # from the log's start, and from its newest snapshot
        made = rebuild(job.log, job.chain, projection_of(job.chain), is_whole=is_whole)
        assert made.state == job.runtime.state, "K3"


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_run_has_in_it_what_the_sweep_is_to_cut(name: str) -> None:
    run = RUNS[name]
    world = run.recorded()
    history = world.job.history()

    assert world.outcome() == expected(world)
    for kind, count in run.shows.items():
        assert sum(one.kind is kind for one in history) >= count, kind
    for attribute in run.attributes:
        assert any(attribute in one.attributes for one in history), attribute
    pending: set[int | None] = set()
    most = 0
    for one in history:
        if one.kind is Kind.CHECKPOINT_TRIGGERED:
            pending.add(one.checkpoint_id)
        elif one.kind in (Kind.CHECKPOINT_COMPLETED, Kind.CHECKPOINT_ABORTED):
            pending.remove(one.checkpoint_id)
        most = max(most, len(pending))
    assert most == run.pending_at_once


@pytest.mark.slow
@pytest.mark.clause("K5")
@pytest.mark.clause("D3")
@pytest.mark.clause("E5")
@pytest.mark.clause("E6")
@pytest.mark.clause("H3")
@pytest.mark.clause("L4")
@in_parts(PARTS)
@pytest.mark.parametrize("name", RUNS)
def test_a_job_that_is_cut_off_after_any_record_comes_to_the_same_end(name: str, part: int) -> None:
    run = RUNS[name]

    def come_to_the_end(log: MemoryLog, mode: str) -> int:
        if log.high_watermark() % PARTS != part:
            return 0
        left, checked = left_in(log), 0
        for are_open_done in (False, True) if left.open_intents else (False,):
            copy = prefix_of(log, log.high_watermark())
            world = restored_from(run, copy, left, mode, are_open_done=are_open_done)
            if world is not None:
                comes_to_its_end(world)
                checked += 1
        return checked

    whole = run.recorded().job.log
    result = sweep(whole, come_to_the_end, modes=run.modes, min_records=0)
    prefixes = range(part, whole.high_watermark() + 1, PARTS)
    assert result.crash_count >= len(prefixes)


@pytest.mark.slow
@pytest.mark.clause("K5")
def test_a_job_that_crashes_again_and_again_comes_to_the_same_end(seed: int, dose: int) -> None:
    """Each crash is at any record of what the driver before has come to, its restore included."""
    chance = random.Random(seed)
    for _ in range(25 * dose):
        name = chance.choice(list(RUNS))
        run, done = RUNS[name], []
        log = run.recorded().job.log
        end = 0
        for _ in range(chance.randrange(2, 5)):
            end = chance.randrange(end, log.high_watermark() + 1)
            left, log = left_in(prefix_of(log, end)), prefix_of(log, end)
            mode, are_open_done = chance.choice(run.modes), chance.random() < 0.5
            done.append((end, mode, are_open_done))
            try:
                world = restored_from(run, log, left, mode, are_open_done=are_open_done)
                if world is None:
                    break
                comes_to_its_end(world)
            except BaseException:
                print(f"{name}: {done}")
                raise
