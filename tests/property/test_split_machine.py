"""Where splits are, against a model that is a table and a copy of it at each cut (clauses L3 to L5, D3, D5).

The coordinator, the kernel and the log are the real ones. Readers ask, read and fail; checkpoints
complete or not; drivers roll back and resume. Who has which split must be the model's all the time.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coordlog.api.chain import Chain, SourceSpec
from coordlog.coordinators.splits import Assignment, SplitCoordinatorProvider
from coordlog.kernel.builder import KernelConfig
from coordlog.projections.job.state import Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.source_types import RequestSplit
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import IdleReader
from fakes.split_fakes import listing, places
from histories.sweep_worlds import SplitTask

PARALLELISM = 2
NAMES = tuple("abcdefghijklmnop")
SUBTASKS = st.integers(0, PARALLELISM - 1)
CALM = 6
"""Steps without a failure between two: else nothing would ever be read."""
STEPS = (
    *["ask", "take", "take_all", "read", "work", "work"] * 2,
    *["checkpoint", "checkpoint", "trigger", "trigger_and_ask"],
)
FAILURES = ("lose", "lose", "replace", "fail", "roll_back", "go_on_from_the_log")


@dataclass
class Model:
    """A row per split: with whom, since when, and whether it is read."""

    is_static: bool
    is_kept: bool
    holder: dict[str, int] = field(default_factory=dict)
    """By split: the subtask; no row: with the enumerator."""
    since: dict[str, int] = field(default_factory=dict)
    """By split: the time of its assignment."""
    ended: dict[str, int] = field(default_factory=dict)
    """By split that is read: the last barrier that its reader had passed."""
    now: int = 0
    crossing: dict[int, list[int]] = field(default_factory=dict)
    """By checkpoint: the subtasks that have asked across its cut."""
    owed: list[int] = field(default_factory=list)
    """Subtasks whose next attempt has asked already."""

    def assign(self, subtask: int) -> None:
        """The first that is free; no more where none is."""
        free = [name for name in NAMES if name not in self.holder]
        mine = [name for n, name in enumerate(NAMES) if n % PARALLELISM == subtask]
        given = [name for name in free if name in mine] if self.is_static else free[:1]
        for name in given:
            self.now += 1
            self.holder[name], self.since[name] = subtask, self.now

    def ask(self, subtask: int) -> None:
        if not self.is_static:
            self.assign(subtask)

    def ready(self, subtask: int) -> None:
        """An attempt begins: it is dealt its splits, or what it has asked for is answered."""
        if self.is_static or subtask in self.owed:
            self.assign(subtask)
        self.owed = [n for n in self.owed if n != subtask]

    def reset(self, subtask: int, checkpoint_id: int, cut: int) -> None:
        """A local failover to a checkpoint whose cut was then."""
        for name in [n for n, holder in self.holder.items() if holder == subtask]:
            if self.is_kept and name in self.ended:
                continue
            if self.ended.get(name, -2) >= checkpoint_id:
                del self.ended[name]
            if self.since[name] > cut:
                del self.holder[name]
        self.owed = [n for n in self.owed if n != subtask]
        self.owed += [n for n in self.crossing.get(checkpoint_id, []) if n == subtask]

    def shown(self) -> dict[str, str]:
        """As `split_fakes.places` says it."""
        return {
            name: "enumerator"
            if name not in self.holder
            else f"{'finished by' if name in self.ended else 'with'} {self.holder[name]}"
            for name in NAMES
        }


def _configured(config: KernelConfig) -> KernelConfig:
    return replace(config, restarts_max=1_000_000, restart_backoff_s=0.0)


class SplitMachine(RuleBasedStateMachine):
    """Each rule does one thing to the job and says to the model what came of it."""

    kind = "streaming"

    @initialize(assignment=st.sampled_from(["pull", "pull", "static"]))
    def begin(self, *, assignment: Assignment) -> None:
        self.is_batch, self.is_kept = self.kind != "streaming", self.kind == "kept"
        source = SourceSpec(
            operator_id="source",
            create_reader=IdleReader,
            coordinator=SplitCoordinatorProvider(
                "source", discover=listing(*NAMES), assignment=assignment
            ),
            keeps_state_across_splits=not self.is_kept,
        )
        self.chain = Chain(source=source, operators=[])
        self.model = Model(assignment == "static", self.is_kept)
        self.copies: dict[int, Model] = {-1: copy.deepcopy(self.model)}
        """By checkpoint: the model at its cut."""
        self.tasks: dict[int, SplitTask] = {}
        self.calm = 0
        self.job = self._driver(None, None)
        self._register_all()

    def _driver(self, old: HandDrivenJob | None, restore: str | None) -> HandDrivenJob:
        return HandDrivenJob(
            self.chain,
            parallelism=PARALLELISM,
            is_batch=self.is_batch,
            log=None if old is None else old.log,
            clock=None if old is None else old.clock,
            options=RuntimeOptions(ack_timeout_s=1e9, checkpoint_timeout_s=1e9),
            configure=_configured,
            restore=restore,
            may_fail=True,
        )

    @rule(step=st.sampled_from(STEPS), subtask=SUBTASKS)
    def go_on(self, step: str, subtask: int) -> None:
        """Something that happens all the time."""
        self.calm += 1
        self._register_all()
        getattr(self, step)(subtask)

    @precondition(lambda self: self.calm >= CALM)
    @rule(step=st.sampled_from(FAILURES), subtask=SUBTASKS)
    def go_wrong(self, step: str, subtask: int) -> None:
        """An attempt, all of them, or the driver dies."""
        if subtask in self.tasks:
            self.calm = 0
            getattr(self, step)(subtask)

    # What goes on.

    def _register_all(self) -> None:
        for subtask in range(PARALLELISM):
            if subtask not in self.tasks:
                self.register(subtask)

    def register(self, subtask: int) -> None:
        """A task begins, from what its checkpoint holds."""
        self.model.ready(subtask)
        task = SplitTask(self.job.register(subtask))
        for one in task.attempt.accepted.states:
            task.holds, task.done, task.is_asking = json.loads(one.state or b"")
        self.tasks[subtask] = task

    def ask(self, subtask: int) -> None:
        """A reader asks, unless it waits for an answer, or knows that there is none."""
        task = self.tasks[subtask]
        if task.is_asking or task.told_no_more:
            return
        task.is_asking = True
        for n in sorted(self.job.runtime.state.pending):
            if task.attempt.last_barrier < n:
                self.model.crossing.setdefault(n, []).append(subtask)
        self.model.ask(subtask)
        task.attempt.send("source", RequestSplit())

    def take(self, subtask: int) -> None:
        """A reader handles its next message."""
        self.tasks[subtask].take()

    def take_all(self, subtask: int) -> None:
        """A reader handles all its messages."""
        while not self.tasks[subtask].is_quiet:
            self.take(subtask)

    def read(self, subtask: int) -> None:
        """A reader reads a split to its end."""
        task = self.tasks[subtask]
        if not task.holds:
            return
        name = task.holds.pop(0)
        task.done.append(name)
        if self.model.holder.get(name) == subtask:
            self.model.ended[name] = task.attempt.last_barrier
        task.attempt.finish_split("source", name)

    def work(self, subtask: int) -> None:
        """A reader asks for a split, gets it and reads it."""
        self.ask(subtask)
        self.take_all(subtask)
        self.read(subtask)

    def trigger(self, _subtask: int) -> None:
        """A checkpoint begins: an event-sourced coordinator's cut is there."""
        n = self.job.trigger()
        if n is not None:
            self.copies[n] = copy.deepcopy(self.model)

    def trigger_and_ask(self, subtask: int) -> None:
        """What a reader asks before its barrier crosses the cut (clause D3)."""
        self.take_all(subtask)
        self.trigger(subtask)
        self.ask(subtask)

    def checkpoint(self, subtask: int) -> None:
        """A checkpoint comes to its end."""
        self.trigger(subtask)
        for one in (*range(PARALLELISM), *range(PARALLELISM)):
            self.take_all(one)

    # What goes wrong.

    def _last(self) -> tuple[int, int]:
        """The last completed checkpoint, and the time of its cut."""
        last = self.job.runtime.state.last_checkpoint
        return last, -1 if last < 0 else self.copies[last].now

    def lose(self, subtask: int) -> None:
        """A local failover."""
        self.model.reset(subtask, *self._last())
        self.tasks.pop(subtask).attempt.lose()

    def replace(self, subtask: int) -> None:
        """A local failover, and the next attempt, in one turn."""
        self.model.reset(subtask, *self._last())
        self.register(subtask)

    def _back_to_the_last(self) -> None:
        last, _ = self._last()
        now, crossing, ended = self.model.now, self.model.crossing, self.model.ended
        self.model = copy.deepcopy(self.copies[last])
        # What ended between the cut and the barrier is in the checkpoint, and with no restored reader.
        over = [name for name, barrier in ended.items() if barrier < last]
        self.model.ended |= {name: -1 for name in over if name in self.model.holder}
        # Time does not go back; and what crossed the cut is handled again, in log order.
        self.model.now, self.model.crossing = now, crossing
        self.model.owed = list(crossing.get(last, []))
        self.tasks.clear()

    def fail(self, _subtask: int) -> None:
        """A global failover."""
        self._back_to_the_last()
        self.job.run(lambda: self.job.runtime.fail_job("source", "scripted"))
        self.job.stage_ends("cancelled")
        self.job.advance(1.0)

    def roll_back(self, _subtask: int) -> None:
        """The driver dies; the next one rolls back."""
        self._back_to_the_last()
        self.job.crash()
        self.job = self._driver(self.job, "rollback")

    def go_on_from_the_log(self, _subtask: int) -> None:
        """The driver dies; the next one resumes: a local failover of all."""
        last, cut = self._last()
        for subtask in range(PARALLELISM):
            self.model.reset(subtask, last, cut)
        self.tasks.clear()
        self.job.crash()
        self.job = self._driver(self.job, "resume")
        assert self.job.mode == "resume"

    # What must be so.

    @invariant()
    def each_split_is_where_the_model_has_it(self) -> None:
        assert places(self.job) == self.model.shown()

    @invariant()
    def readers_hold_what_is_theirs(self) -> None:
        for subtask, task in self.tasks.items():
            assert all(self.model.holder[name] == subtask for name in task.holds)
            assert len(set(task.holds + task.done)) == len(task.holds + task.done)

    def teardown(self) -> None:
        """The job comes to its end, and each split was read once."""
        if not hasattr(self, "job"):
            return
        self._register_all()
        done: list[str] = []
        for _ in range(4 * len(NAMES)):
            for subtask, task in list(self.tasks.items()):
                self.work(subtask)
                if task.told_no_more and not task.holds and task.is_quiet:
                    done += self.tasks.pop(subtask).done
                    task.attempt.complete(states=task.states())
        self.each_split_is_where_the_model_has_it()
        self.job.advance(1.0)  # after an aborted checkpoint the last one waits for a timer
        assert self.job.runtime.state.phase is Phase.FINISHED
        kept = [name for name in self.model.ended if self.is_kept and name not in done]
        assert sorted(done + kept) == list(NAMES)


@pytest.mark.slow
@pytest.mark.clause("D3")
@pytest.mark.clause("D5")
@pytest.mark.clause("L3")
@pytest.mark.clause("L4")
@pytest.mark.clause("L5")
@pytest.mark.parametrize("of", ["streaming", "batch", "kept"])
def test_splits_are_where_a_simple_model_has_them(of: str, dose: int) -> None:
    class Machine(SplitMachine):
        kind = of

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=(30 if of == "streaming" else 20) * dose,
            stateful_step_count=60,
            suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
        ),
    )
