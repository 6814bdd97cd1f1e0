"""Ends of jobs on random schedules: partial and late commits, stops, deaths, resets; each committable exactly once.

A sink's coordinator commits in parts: at once, by a call or by a timer, sometimes nothing. Drivers die between any two
turns, or are told to stop; snapshots stand anywhere. After every step a fold from the newest snapshot equals the fold
from the start, and the state is sound; at the end all that was granted is settled once, and `verify` finds no fault.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from coordlog.api.coordinator import CommittableOf
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import DriverStops, StopAsked
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.invariants import faults_of
from coordlog.projections.job.state import Phase
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from coordlog.testing.replay import replay
from fakes.kernel_fakes import HANDLED, FakeSink, Intent, Noted, Noting, NotingProvider, chain_of
from histories.random_machine import printed_if_it_fails

ACTIONS = {
    "write": 14,
    "checkpoint": 8,
    "late_ack": 3,
    "finish_split": 5,
    "complete": 3,
    "lose": 2,
    "fail_job": 1,
    "advance": 6,
    "work": 8,
    "crash": 3,
    "stop": 1,
    "stop_cut_off": 1,
}


class CountingSink(FakeSink):
    """Notes each settled intent, equal ones again."""

    def settle(self, intent: Payload) -> Payload | None:
        assert isinstance(intent, Intent)
        names = tuple(intent.names)
        if names not in self.settled:  # asked again after a crash: done already
            self.settled.append(names)
        return None


class EndMachine:
    """One random run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.is_batch = self.chance.random() < 0.5
        self.parallelism = self.chance.choice((1, 1, 2))
        is_folded = self.chance.random() < 0.7
        self.sinks = [CountingSink() for _ in range(self.chance.choice((1, 2)))]
        providers = [
            NotingProvider(f"sink-{n}", sink=sink, is_committing=False)
            for n, sink in enumerate(self.sinks)
        ]
        for one in providers:
            one.on["complete"] = self._told
        self.providers = [NotingProvider(), *providers]
        for provider in self.providers:
            provider.projection = HANDLED if is_folded else None
        self.chain = chain_of(*self.providers, keeps_state=self.chance.random() < 0.5)
        self.is_folded = is_folded
        self.count = 0
        self.wanted: Counter[str] = Counter()
        self.done: list[str] = []
        self.open_rows: dict[int, list[tuple[str, bytes]]] = {}
        self.job = self._driver(None)

    def _configure(self, config: KernelConfig) -> KernelConfig:
        return replace(
            config, restarts_max=10_000, restart_backoff_s=0.1, restart_backoff_max_s=0.4
        )

    def _driver(self, old: HandDrivenJob | None) -> HandDrivenJob:
        restore = None
        if old is not None and self.is_folded:
            phase = old.runtime.state.phase
            modes = (None, "rollback", "resume") if phase is Phase.RUNNING else (None,)
            restore = self.chance.choice(modes)
        job = HandDrivenJob(
            self.chain,
            parallelism=self.parallelism,
            is_batch=self.is_batch,
            log=None if old is None else old.log,
            clock=None if old is None else old.clock,
            options=RuntimeOptions(snapshot_every=self.chance.choice((None, 1, 4, 15))),
            configure=self._configure,
            restore=restore,
            may_fail=True,
        )
        self.done.append(job.mode)
        return job

    # --- the sinks' coordinators ---
    def _told(self, coordinator: Noting, checkpoint_id: int) -> None:
        if not coordinator.context.committables(checkpoint_id):
            return
        chance = coordinator.context.random()
        way = chance.choice(("now", "call", "timer", "chain"))
        if way == "now":
            self._give(coordinator, checkpoint_id, is_all=True)
        elif way == "timer":
            coordinator.context.schedule(
                chance.choice((0.5, 3)),
                lambda: self._give(coordinator, checkpoint_id, is_all=True),
            )
        else:
            coordinator.context.call_async(
                lambda: Noted(text="x"),
                lambda _r, _e: self._give(coordinator, checkpoint_id, is_all=way == "call"),
            )

    def _give(self, coordinator: Noting, checkpoint_id: int, *, is_all: bool) -> None:
        """Commit in parts; a part that is left is committed by a further call."""
        chance = coordinator.context.random()
        left = list(coordinator.context.committables(checkpoint_id))
        if chance.random() < 0.1:
            text = f"mark-{chance.random()}"
            coordinator.context.commit(checkpoint_id, Intent(names=[text]), committables=[])
        if not left:
            return
        if is_all and chance.random() < 0.5:
            coordinator.context.commit(checkpoint_id, _intent(left))
            return
        part = [one for one in left if chance.random() < 0.5] or left[:1]
        coordinator.context.commit(checkpoint_id, _intent(part), committables=part)
        rest = [one for one in left if one not in part]
        if not rest:
            return
        if is_all:
            coordinator.context.commit(checkpoint_id, _intent(rest), committables=rest)
            return
        coordinator.context.call_async(
            lambda: Noted(text="more"),
            lambda _r, _e: self._give(coordinator, checkpoint_id, is_all=False),
        )

    # --- actions ---
    def act(self) -> None:
        name = self.chance.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        self.done.append(name)
        self.job.is_work_held = True
        self.ready()
        getattr(self, f"_{name}")()
        self.check()

    def ready(self) -> None:
        """Each subtask that has not completed gets an attempt."""
        state = self.job.runtime.state
        if state.phase is Phase.FAILING:
            if self.job.runtime.is_stage_running:
                self.job.stage_ends()
            return
        if state.phase is not Phase.RUNNING or not self.job.runtime.is_stage_running:
            return
        for number in range(self.parallelism):
            subtask = self.job.runtime.state.subtasks[number]
            if subtask.attempt is None and subtask.completion is None:
                self.job.register(number)
                self.open_rows[number] = []

    def attempt(self) -> FakeAttempt | None:
        state = self.job.runtime.state
        if state.phase is not Phase.RUNNING:
            return None
        live = [
            one
            for one in self.job.attempts.values()
            if not one.is_closed
            and one.inbox
            and state.attempt(one.subtask, getattr(one.inbox[0], "attempt_number", -1)) is not None
        ]
        return self.chance.choice(live) if live else None

    def rows_of(self, attempt: FakeAttempt) -> list[tuple[str, bytes]]:
        rows, self.open_rows[attempt.subtask] = self.open_rows[attempt.subtask], []
        return rows

    def _write(self) -> None:
        attempt = self.attempt()
        if attempt is not None:
            sink = self.chance.randrange(len(self.sinks))
            self.count += 1
            row = (f"sink-{sink}", f"r{self.count}".encode())
            self.open_rows[attempt.subtask].append(row)

    def _checkpoint(self) -> None:
        if self.is_batch:
            return
        self.job.trigger()
        for _ in range(self.chance.choice((0, 1, 2, 2, 2))):
            self._late_ack()

    def _late_ack(self) -> None:
        attempt = self.attempt()
        pending = sorted(self.job.runtime.state.pending)
        if attempt is None or not pending or pending[0] <= attempt.last_barrier:
            return
        attempt.ack_checkpoint(pending[0], committables=self.rows_of(attempt))

    def _finish_split(self) -> None:
        attempt = self.attempt()
        if attempt is not None and self.is_batch and not self.chain.keeps_state_across_splits:
            self.count += 1
            rows = self.rows_of(attempt)
            attempt.finish_split("source", f"split-{self.count}", committables=rows)

    def _complete(self) -> None:
        attempt = self.attempt()
        if attempt is not None:
            attempt.complete(committables=self.rows_of(attempt))

    def _lose(self) -> None:
        attempt = self.attempt()
        if attempt is not None:
            attempt.lose()

    def _fail_job(self) -> None:
        if self.job.runtime.state.phase is Phase.RUNNING:
            self.job.run(lambda: self.job.runtime.fail_job("source", "scripted"))

    def _advance(self) -> None:
        self.job.advance(self.chance.choice((0.2, 1, 5)))

    def _work(self) -> None:
        if self.job.works:
            self.job.works.rotate(self.chance.randrange(len(self.job.works)))
            self.job.run(self.job.works.popleft())

    def _crash(self) -> None:
        self.job.crash()
        self.job.clock.seconds += 1
        self.open_rows.clear()
        failures = len(self.job.runtime.state.failures_us)
        phase, is_stopped = self.job.runtime.state.phase, "stop" in self.done[-1]
        # A failure whose reset is missing counts with the reset, whatever has ended the driver.
        is_dead = phase is Phase.FAILING or (
            phase in (Phase.RUNNING, Phase.ENDING) and not is_stopped
        )
        self.job = self._driver(self.job)
        if self.job.mode in ("rollback", "resume", "settle"):
            after = len(self.job.runtime.state.failures_us)
            assert after - failures == is_dead, f"{failures} failures, then {after}: {is_dead=}"

    def _stop(self) -> None:
        asked = StopAsked(by="SIGTERM", with_checkpoint=not self.is_batch, is_at_once=False)
        self.job.run(lambda: self.job.runtime.stop(asked, lambda: None))
        self._checkpoint()
        self.done.append("stop")
        self.job.run(lambda: self.job.runtime.stop(DriverStops(by="SIGTERM"), lambda: None))
        end = self.job.log.high_watermark()
        self._work()
        self.job.advance(5)
        assert self.job.log.high_watermark() == end, "a driver that has stopped appends no more"
        self._crash()

    def _stop_cut_off(self) -> None:
        asked = StopAsked(by="SIGTERM", with_checkpoint=False, is_at_once=True)
        self.job.run(lambda: self.job.runtime.stop(asked, lambda: None))
        for _ in range(self.chance.randrange(3)):
            self._late_ack()
        self.done.append("stop_cut_off")
        self._crash()

    # --- what must hold ---
    def check(self) -> None:
        state = self.job.runtime.state
        assert faults_of(state) == ()
        projection = projection_of(self.chain)
        whole = rebuild(self.job.log, self.chain, projection, is_whole=True)
        assert whole.state == state, "K3: folded from the start"
        newest = rebuild(self.job.log, self.chain, projection)
        assert newest.state == state, f"K3: folded from offset {newest.started_at}"
        settled = [one for sink in self.sinks for names in sink.settled for one in names]
        assert len(settled) == len(set(settled)), "settled twice"

    def settle(self) -> None:
        """Let the job come to its end: nothing may be stuck."""
        for _ in range(100):
            state = self.job.runtime.state
            if state.phase is Phase.FINISHED:
                return
            if state.phase is Phase.FAILED:
                self._crash()
                continue
            self.job.is_work_held = False
            self.job.pump()
            self.ready()
            if self.attempt() is not None:
                self._complete()
            self.job.advance(3)
        raise AssertionError(f"stuck: {self.job.runtime.state}")

    def judge(self) -> None:
        """All that was granted is settled, once; and nothing else."""
        self.check()
        granted: Counter[str] = Counter()
        state = projection_of(self.chain).initial()
        projection = projection_of(self.chain)
        for record in self.job.history():
            before = state.granted
            state = projection.apply(state, record)
            for number, each in state.granted.items():
                if number not in before and record.kind is not Kind.RESET_TO_CHECKPOINT:
                    if number == -1:
                        granted.clear()  # a batch job's end: its last one counts
                    granted.update(one.content.decode() for one in each)
        settled = [one for sink in self.sinks for names in sink.settled for one in names]
        rows = Counter(one for one in settled if not one.startswith("mark"))
        assert rows == granted
        read = verify(list(self.job.log.read(0, self.job.log.high_watermark())))
        assert read.faults == []
        replay(self.job.log, self.chain)


def _intent(of: Sequence[CommittableOf]) -> Intent:
    return Intent(names=[one.content.decode() for one in of])


def run(seed: int, steps: int) -> EndMachine:
    machine = EndMachine(seed)
    with printed_if_it_fails(
        seed,
        machine.done,
        is_batch=machine.is_batch,
        parallelism=machine.parallelism,
        is_folded=machine.is_folded,
    ):
        for _ in range(steps):
            if machine.job.runtime.state.phase is Phase.FINISHED:
                break
            machine.act()
        machine.settle()
        machine.judge()
    return machine


@pytest.mark.slow
@pytest.mark.clause("I3")
@pytest.mark.clause("H4")
@pytest.mark.clause("K3")
def test_what_is_granted_is_settled_once_whatever_ends_the_drivers(seed: int, dose: int) -> None:
    chance = random.Random(seed)
    for _ in range(15 * dose):
        run(chance.randrange(2**32), steps=chance.choice((15, 40, 90)))
