"""A whole job on random schedules: exactly-once both ways and in what is committed, and fold equality.

The scenario is that of the checkpoint model: each subtask works through rows 1, 2, 3 …, tells of each and writes it
to its open file; the coordinator sends each subtask events 1, 2, 3 …. Messages keep their order and arrive whenever
the schedule says so; attempts fail, drivers crash, checkpoints are cut late, time out or overlap.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from coordlog.api.chain import Chain, SourceSpec
from coordlog.kernel.builder import KernelConfig
from coordlog.messages import (
    Accepted,
    AckCheckpoint,
    AckEvent,
    Complete,
    DeliverEvent,
    Fenced,
    InjectBarrier,
    Refused,
    SendEvent,
    UpMessage,
)
from coordlog.projections.job.checkpoints import states_of
from coordlog.projections.job.remembered import has_forgotten
from coordlog.projections.job.state import AttemptState, Phase
from coordlog.restore.rebuild import Rebuild, projection_of
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload import payload_type_of
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import IdleReader, prefix_of
from fakes.machine_fakes import CountingProvider, Kept, Row, Work, kept_in
from histories.random_machine import printed_if_it_fails

ACTIONS: dict[str, float] = {
    "work": 12,
    "arrive": 24,
    "receive": 24,
    "store": 12,
    "make": 6,
    "cut": 8,
    "trigger": 8,
    "register": 10,
    "hold": 2,
    "release": 4,
    "fail": 2,
    "replace": 1,
    "wait": 1,
    "complete": 1,
    "fail_job": 0.5,
    "crash": 1,
}


@dataclass(eq=False)
class Sim:
    """One attempt as its task sees it."""

    attempt: FakeAttempt
    subtask: int
    kept: Kept | None = None
    """None until it was accepted."""
    barrier: int = -1
    open_rows: list[int] = field(default_factory=list)
    storing: deque[AckCheckpoint] = field(default_factory=deque)
    outgoing: deque[UpMessage] = field(default_factory=deque)
    read: int = 0
    event_count: int = 0
    is_over: bool = False

    def receive(self) -> None:
        """Take the next message of its driver."""
        if self.read == len(self.attempt.inbox):
            return
        message = self.attempt.inbox[self.read]
        self.read += 1
        match message:
            case Accepted():
                self.kept = kept_in(tuple(message.states))
                self.barrier = message.restored_checkpoint
            case DeliverEvent():
                assert self.kept is not None
                work = payload_type_of(Work).decode(message.payload)
                assert isinstance(work, Work)
                self.kept = replace(self.kept, got=(*self.kept.got, work.n))
                self.outgoing.append(
                    AckEvent(
                        operator_id="source", event_id=message.event_id, last_barrier=self.barrier
                    )
                )
            case InjectBarrier():
                assert self.kept is not None
                self.barrier = message.checkpoint_id
                snapshot = self.kept.snapshot(self.subtask, self.open_rows)
                self.open_rows = []
                self.storing.append(
                    AckCheckpoint(
                        checkpoint_id=self.barrier, last_barrier=self.barrier, snapshot=snapshot
                    )
                )
            case Fenced() | Refused():
                self.is_over = True
            case _:
                pass

    def work(self) -> None:
        """Work on a row: tell of it, and write it."""
        if self.kept is None:
            return
        row = self.kept.rows + 1
        self.kept = replace(self.kept, rows=row)
        self.open_rows.append(row)
        value = Row(n=row)
        self.outgoing.append(
            SendEvent(
                operator_id="source",
                event_id=self.event_count,
                last_barrier=self.barrier,
                payload_type=payload_type_of(value).key,
                payload=payload_type_of(value).encode(value),
            )
        )
        self.event_count += 1


class Machine:
    """One random run. `act` does something, then looks whether all still holds."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.parallelism = self.chance.choice((1, 1, 2, 3))
        self.is_overlapping = self.chance.random() < 0.5
        self.room = self.chance.choice((300, 1_500, 10**6, 10**6))
        self.provider = CountingProvider(
            parallelism=self.parallelism, is_folded=self.chance.random() < 0.5
        )
        self.provider.is_cut_at_once = self.chance.random() < 0.4
        self.chain = Chain(
            source=SourceSpec(
                operator_id="source", create_reader=IdleReader, coordinator=self.provider
            ),
            operators=[],
        )
        self.projection = projection_of(self.chain)
        self.fold = Rebuild(self.projection, self.chain.payload_types)
        self.job = self._driver(None)
        self.sims: dict[int, Sim] = {}
        self.done: list[str] = []

    def _configure(self, config: KernelConfig) -> KernelConfig:
        return replace(
            config,
            is_overlap_allowed=self.is_overlapping,
            remembered_bytes_max=self.room,
            restarts_max=10_000,
            restart_backoff_s=0.1,
            restart_backoff_max_s=0.4,
        )

    def _driver(self, old: HandDrivenJob | None) -> HandDrivenJob:
        restore = None
        if old is not None and self.provider.projection is not None:
            restore = self.chance.choice(("rollback", "resume"))
            state = old.runtime.state
            if state.phase is not Phase.RUNNING or old.is_held or has_forgotten(state):
                restore = None
        return HandDrivenJob(
            self.chain,
            may_fail=True,
            parallelism=self.parallelism,
            log=None if old is None else old.log,
            clock=None if old is None else old.clock,
            options=RuntimeOptions(
                ack_timeout_s=30,
                checkpoint_timeout_s=20,
                snapshot_every=self.chance.choice((None, 1, 5, 20)),
            ),
            configure=self._configure,
            restore=restore,
        )

    # --- actions ---
    def act(self) -> None:
        name = self.chance.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        self.done.append(name)
        sims = [one for one in self.sims.values() if not one.is_over]
        sim = self.chance.choice(sims) if sims else None
        if name in ("work", "arrive", "receive", "store", "fail", "complete", "replace"):
            if sim is not None:
                getattr(self, f"_{name}")(sim)
        else:
            getattr(self, f"_{name}")()
        self._end_cancelled_stage()
        self.check()

    def _end_cancelled_stage(self) -> None:
        """A failure whose lost events are forgotten has cancelled it, as far as the log has that."""
        stage = self.job.stage
        if not stage.cancelled or stage.cancelled[-1][0] != stage.submitted[-1]:
            return
        self._end_stage()

    def _end_stage(self) -> None:
        if not self.job.runtime.is_stage_running:
            return
        for sim in self.sims.values():
            sim.is_over = True
        self.job.stage_ends()
        self.job.advance(1.0)

    def _work(self, sim: Sim) -> None:
        sim.work()

    def _arrive(self, sim: Sim) -> None:
        if sim.outgoing:
            message = sim.outgoing.popleft()
            connection_id = sim.attempt.connection_id
            self.job.run(lambda: self.job.runtime.arrived(connection_id, message))

    def _receive(self, sim: Sim) -> None:
        sim.receive()

    def _store(self, sim: Sim) -> None:
        if sim.storing:
            sim.outgoing.append(sim.storing.popleft())

    def _fail(self, sim: Sim) -> None:
        sim.is_over = True
        sim.attempt.lose()

    def _replace(self, sim: Sim) -> None:
        self._begin(sim.subtask)

    def _register(self) -> None:
        state = self.job.runtime.state
        if self.job.is_held or state.phase is not Phase.RUNNING or not self.job.stage.submitted:
            return
        for number in range(self.parallelism):
            one = state.subtasks[number]
            if one.attempt is None and one.completion is None:
                self._begin(number)
                return

    def _begin(self, subtask: int) -> None:
        attempt = self.job.register(subtask, is_patient=not self.job.is_held)
        sim = Sim(attempt, subtask)
        self.sims[attempt.connection_id] = sim

    def _complete(self, sim: Sim) -> None:
        live = self.job.runtime.state.subtasks[sim.subtask].attempt
        is_quiet = sim.kept is not None and not sim.outgoing and not sim.storing
        if live is None or not is_quiet or sim.read < len(sim.attempt.inbox) or self.job.is_held:
            return
        if self._unacked(live) or self._counts()[sim.subtask].owed or self.chance.random() < 0.5:
            return
        assert sim.kept is not None
        snapshot = sim.kept.snapshot(sim.subtask, sim.open_rows)
        message = Complete(last_barrier=sim.barrier, snapshot=snapshot)
        connection_id = sim.attempt.connection_id
        self.job.run(lambda: self.job.runtime.arrived(connection_id, message))

    def _make(self) -> None:
        subtask = self.chance.randrange(self.parallelism)

        def make(coordinator: object) -> None:
            if self.job.runtime.state.subtasks[subtask].completion is None:
                self.provider.made[-1].make(subtask)

        self.provider.plan.append(make)
        self.job.advance(1.0)

    def _cut(self) -> None:
        def cut(coordinator: object) -> None:
            newest = self.provider.made[-1]
            if newest.results:
                newest.cut(min(newest.results))

        if not self.provider.is_folded:
            self.provider.plan.append(cut)
            self.job.advance(1.0)

    def _trigger(self) -> None:
        self.job.trigger()

    def _wait(self) -> None:
        self.job.advance(self.chance.choice((5.0, 21.0)))

    def _hold(self) -> None:
        self.job.is_held = True

    def _release(self) -> None:
        self.job.is_held = False
        self.job.pump()

    def _fail_job(self) -> None:
        self._release()
        self.job.run(lambda: self.job.runtime.fail_job("source", "scripted"))
        self._end_stage()

    def _crash(self) -> None:
        self.job.crash()
        self.provider.plan.clear()
        self.sims.clear()
        self.job = self._driver(self.job)
        self.done.append(self.job.mode)

    # --- what must hold ---
    def _count(self, subtask: int) -> Any:  # noqa: ANN401, a state of either kind of coordinator
        return self._counts()[subtask]

    def _counts(self) -> tuple[Any, ...]:
        state = self.job.runtime.state
        if self.provider.projection is not None:
            counts: tuple[Any, ...] = state.projections["source"]
            return counts
        return tuple(self.provider.made[-1].own)

    def _unacked(self, attempt: AttemptState) -> list[int]:
        gateway = self.job.runtime.state.gateways.get(("source", attempt.subtask))
        if gateway is None or gateway.attempt_number != attempt.attempt_number:
            return []
        found = [
            payload_type_of(Work).decode(one.payload) for _, one in sorted(gateway.unacked.items())
        ]
        return [one.n for one in found if isinstance(one, Work)]

    def check(self) -> None:
        """Both ways, what is committed, and the fold."""
        state = self.job.runtime.state
        if not self.job.is_held:
            self.fold.catch_up(self.job.log, self.job.log.high_watermark())
            assert self.fold.state == state, "K3"
        if state.phase not in (Phase.RUNNING, Phase.FINISHED):
            return
        for number in range(self.parallelism):
            self._check_subtask(number)

    def _check_subtask(self, number: int) -> None:
        state = self.job.runtime.state
        subtask, count = state.subtasks[number], self._counts()[number]
        sim = self._sim_of(subtask.attempt)
        coming: list[int] = []
        unacked: list[int] = []
        if subtask.completion is not None:
            kept = kept_in(subtask.completion.states)
        elif sim is not None and sim.kept is not None:
            kept = sim.kept
            for one in sim.outgoing:
                if isinstance(one, SendEvent):
                    value = payload_type_of(Row).decode(one.payload)
                    assert isinstance(value, Row)
                    coming.append(value.n)
        else:
            kept = kept_in(states_of(state, number))
        if subtask.attempt is not None:
            unacked = [n for n in self._unacked(subtask.attempt) if n not in kept.got]
        handled, owed, made = count.handled, count.owed, count.made
        assert [*handled, *coming] == list(range(1, kept.rows + 1)), f"up, subtask {number}"
        assert [*kept.got, *unacked, *owed] == list(range(1, made + 1)), f"down, subtask {number}"
        if not self.job.is_held and not state.intents and state.owed_complete is None:
            held = state.completed.get(state.last_checkpoint)
            last = Kept()
            if held is not None and number in held.finished:
                last = kept_in(held.finished[number].states)
            elif held is not None:
                last = kept_in(held.states[number])
            committed = self.provider.sink.of(number)
            assert committed == list(range(1, last.rows + 1)), f"rows, subtask {number}"

    def _sim_of(self, attempt: AttemptState | None) -> Sim | None:
        if attempt is None:
            return None
        for sim in self.sims.values():
            first = sim.attempt.inbox[0] if sim.attempt.inbox else None
            if isinstance(first, Accepted):
                key = (sim.subtask, first.epoch, first.attempt_number)
                if key == (attempt.subtask, attempt.epoch, attempt.attempt_number):
                    return sim
        return None

    def settle(self) -> None:
        """Let the job come to its end: nothing may be stuck."""
        self._release()
        self.provider.is_cut_at_once = True
        for _ in range(400):
            if self.job.runtime.state.phase is Phase.FINISHED:
                return
            if self.provider.made[-1].results:
                self._cut()
            self._register()
            for sim in [one for one in self.sims.values() if not one.is_over]:
                for _ in range(3):
                    sim.receive()
                    self._store(sim)
                    self._arrive(sim)
                self._complete(sim)
            self.job.advance(1.0)
            self._end_cancelled_stage()
            self.check()
        raise AssertionError(f"stuck: {self.job.runtime.state}")


def run(seed: int, steps: int) -> Machine:
    machine = Machine(seed)
    with printed_if_it_fails(
        seed,
        machine.done,
        is_folded=machine.provider.is_folded,
        is_overlapping=machine.is_overlapping,
    ):
        for _ in range(steps):
            machine.act()
            if machine.job.runtime.state.is_over:
                break
        machine.settle()
        machine.check()
    return machine


@pytest.mark.slow
@pytest.mark.clause("D3")
@pytest.mark.clause("E2")
@pytest.mark.clause("I4")
@pytest.mark.clause("K3")
def test_rows_and_events_are_exactly_once_on_any_schedule(seed: int, dose: int) -> None:
    chance = random.Random(seed)
    for _ in range(150 * dose):
        run(chance.randrange(2**32), steps=chance.choice((40, 120, 250)))


@pytest.mark.slow
@pytest.mark.clause("K5")
def test_any_prefix_of_a_random_run_restores_and_comes_to_its_end(seed: int, dose: int) -> None:
    chance = random.Random(seed)
    for _ in range(6 * dose):
        inner = chance.randrange(2**32)
        machine = Machine(inner)
        for _ in range(120):
            machine.act()
        machine._release()
        ends = range(machine.job.log.high_watermark() + 1)
        # a run of few registrations leaves few records
        for end in chance.sample(ends, min(8, len(ends))):
            job = HandDrivenJob(
                machine.chain,
                may_fail=True,
                parallelism=machine.parallelism,
                log=prefix_of(machine.job.log, end),
                configure=machine._configure,
            )
            machine.provider.is_cut_at_once = True
            job.register_all()
            for attempt in list(job.attempts.values()):
                attempt.complete()
            job.advance(5)
            assert job.runtime.state.phase is Phase.FINISHED, f"seed {inner}, prefix {end}"
