"""Gateways and checkpoints of a whole job against a model that is as simple as can be (clauses B, C, E to H).

The model has lists: what each attempt was sent, what it has not acked, what is held for which
checkpoints. The job is the real one. What the coordinator is told, what reaches an attempt, what
holds a gateway and what becomes of each future must be the model's after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

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

from coordlog.api.coordinator import EventFuture
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import CheckpointTimedOut
from coordlog.messages import DeliverEvent, InjectBarrier
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import Down, Noting, NotingProvider, chain_of

SUBTASKS = st.integers(0, 1)
BARRIER = "|"
CALM = 10
"""Steps without a failure between two: else nothing would ever be whole."""
STEPS = (
    *["send", "trigger", "cut", "all_go_on"] * 3,
    *[
        "handle",
        "handle",
        "handle_all",
        "handle_together",
        "store",
        "store_newest",
        "babble",
        "overlap",
        "overtake",
    ],
)
FAILURES = ("lose", "replace", "fail_cut", "time_out", "fail", "crash")


@dataclass
class Way:
    """The model of one gateway, and of the attempt at its end."""

    attempt_number: int
    inbox: list[str] = field(default_factory=list)
    """Events by id, barriers as in `|3`, in the order in which they must have come."""
    unacked: list[int] = field(default_factory=list)
    held: list[tuple[int, list[int]]] = field(default_factory=list)
    """Event id, and the checkpoints that hold it."""
    closed_by: list[int] = field(default_factory=list)

    def open(self, checkpoint_id: int) -> None:
        """That checkpoint holds nothing here any more; what is free leaves, in order."""
        self.closed_by = [n for n in self.closed_by if n != checkpoint_id]
        self.held = [(e, [n for n in by if n != checkpoint_id]) for e, by in self.held]
        while self.held and not self.held[0][1]:
            self.inbox.append(str(self.held.pop(0)[0]))


@dataclass
class Pending:
    """The model of a checkpoint under way."""

    is_cut: bool = False
    is_injected: bool = False
    waiting: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)


@dataclass
class Model:
    """What must be so."""

    is_overlapping: bool
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    ways: dict[int, Way] = field(default_factory=dict)
    """Of the live attempts."""
    attempt_counts: list[int] = field(default_factory=lambda: [0, 0])
    pending: dict[int, Pending] = field(default_factory=dict)
    next_checkpoint: int = 1
    last: int = -1
    next_event: int = 0

    def can_trigger(self) -> bool:
        return len(self.ways) == 2 and (self.is_overlapping or not self.pending)

    def begin(self, subtask: int) -> None:
        self.ways[subtask] = Way(self.attempt_counts[subtask])
        self.calls.append(("ready", subtask, self.attempt_counts[subtask]))
        self.attempt_counts[subtask] += 1

    def send(self, subtask: int) -> None:
        event_id, way = self.next_event, self.ways.get(subtask)
        self.next_event += 1
        if way is None:
            self.calls.append(("future", event_id, "failed"))
            return
        way.unacked.append(event_id)
        if way.closed_by:
            way.held.append((event_id, list(way.closed_by)))
        else:
            way.inbox.append(str(event_id))

    def ack(self, subtask: int, event_id: int) -> None:
        self.ways[subtask].unacked.remove(event_id)
        self.calls.append(("future", event_id, "acked"))
        for one in self.pending.values():
            one.waiting.discard(event_id)
        self.advance()

    def cut(self, checkpoint_id: int) -> None:
        one = self.pending.get(checkpoint_id)
        if one is None or one.is_cut:
            return
        for older in [n for n, o in self.pending.items() if n < checkpoint_id and not o.is_cut]:
            self.abort(older)
        one.is_cut = True
        for way in self.ways.values():
            one.waiting.update(way.unacked)
            way.closed_by.append(checkpoint_id)
        self.advance()

    def advance(self) -> None:
        for n, one in sorted(self.pending.items()):
            if one.is_cut and not one.waiting and not one.is_injected:
                one.is_injected = True
                for way in self.ways.values():
                    way.inbox.append(f"{BARRIER}{n}")
            if len(one.acked) == 2 and n in self.pending:
                self.complete(n)

    def ack_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        if checkpoint_id in self.pending:
            self.ways[subtask].open(checkpoint_id)
            self.pending[checkpoint_id].acked.add(subtask)
            self.advance()

    def complete(self, checkpoint_id: int) -> None:
        del self.pending[checkpoint_id]
        self.last = checkpoint_id
        for older in sorted(n for n in self.pending if n < checkpoint_id):
            self.abort(older)
        self.calls.append(("complete", checkpoint_id))

    def abort(self, checkpoint_id: int) -> None:
        del self.pending[checkpoint_id]
        self.calls.append(("aborted", checkpoint_id))
        for way in self.ways.values():
            way.open(checkpoint_id)

    def lose(self, subtask: int) -> None:
        way = self.ways.pop(subtask)
        self.calls += [("future", event_id, "failed") for event_id in way.unacked]
        for n in sorted(self.pending):
            self.abort(n)
        self.calls.append(("failed", subtask, way.attempt_number))
        self.calls.append(("reset", subtask, self.last))

    def reset(self) -> None:
        self.ways.clear()
        self.pending.clear()
        state = None if self.last < 0 else b"state of %d" % self.last
        self.calls += [("create",), ("restore", self.last, state), ("start",)]
        if self.last >= 0:
            self.calls.append(("complete", self.last))


def _configured(config: KernelConfig) -> KernelConfig:
    return replace(
        config, restarts_max=1_000_000, restart_backoff_s=0.0, timeouts_in_a_row_max=1_000_000
    )


def _overlapping(config: KernelConfig) -> KernelConfig:
    return replace(_configured(config), is_overlap_allowed=True)


class GatewayMachine(RuleBasedStateMachine):
    """Each rule does one thing to the job and says to the model what came of it."""

    @initialize(is_overlapping=st.booleans())
    def begin(self, *, is_overlapping: bool) -> None:
        self.provider = NotingProvider(is_cut_at_once=False)
        self.provider.on["start"] = self._ticking
        self.plan: list[Any] = []
        self.chain = chain_of(self.provider)
        self.configure = _overlapping if is_overlapping else _configured
        self.model = Model(is_overlapping)
        self.model.calls += [("create",), ("start",)]
        self.tasks: dict[int, tuple[FakeAttempt, int]] = {}
        """By subtask: the attempt, and how much of its inbox it has handled."""
        self.storing: dict[int, list[int]] = {}
        """By subtask: barriers that were passed, and whose snapshot is not stored yet."""
        self.job = self._driver(None)
        self.calm = 0
        for subtask in (0, 1):
            self.register(subtask)

    @rule(step=st.sampled_from(STEPS), subtask=SUBTASKS, number=st.integers(0, 40))
    def go_on(self, step: str, subtask: int, number: int) -> None:
        """Something that happens all the time."""
        self.calm += 1
        self.number = number
        getattr(self, step)(subtask)

    @precondition(lambda self: self.calm >= CALM)
    @rule(step=st.sampled_from(FAILURES), subtask=SUBTASKS)
    def go_wrong(self, step: str, subtask: int) -> None:
        """Something that ends or aborts what is under way."""
        self.calm = 0
        getattr(self, step)(subtask)

    def _driver(self, old: HandDrivenJob | None) -> HandDrivenJob:
        return HandDrivenJob(
            self.chain,
            parallelism=2,
            log=None if old is None else old.log,
            clock=None if old is None else old.clock,
            options=RuntimeOptions(ack_timeout_s=1e9, checkpoint_timeout_s=1e9),
            configure=self.configure,
            may_fail=True,
        )

    def _ticking(self, coordinator: Noting) -> None:
        def tick() -> None:
            plan, self.plan = self.plan, []
            for act in plan:
                act(coordinator)
            coordinator.context.schedule(1.0, tick)

        coordinator.context.schedule(1.0, tick)

    def _inside(self, act: Any) -> None:  # noqa: ANN401, a function of a `Noting`
        """Do this as the coordinator's code."""
        self.plan.append(act)
        self.job.advance(1.0)
        assert not self.plan

    # Attempts.

    def register(self, subtask: int) -> None:
        """A task begins; where there is an attempt, this one fences it."""
        if subtask in self.model.ways:
            self.model.lose(subtask)
        self.model.begin(subtask)
        self.tasks[subtask] = (self.job.register(subtask), 1)
        self.storing[subtask] = []

    def replace(self, subtask: int) -> None:
        """A newer task fences the live one."""
        if subtask in self.model.ways:
            self.register(subtask)

    def lose(self, subtask: int) -> None:
        """A connection breaks."""
        if subtask in self.model.ways:
            self.model.lose(subtask)
            self.tasks.pop(subtask)[0].lose()

    def handle(self, subtask: int) -> None:
        """A task handles its next message: an event is acked, a barrier passed."""
        if subtask not in self.tasks:
            self.register(subtask)
            return
        attempt, read = self.tasks[subtask]
        while read < len(attempt.inbox):
            message = attempt.inbox[read]
            read += 1
            self.tasks[subtask] = (attempt, read)
            if isinstance(message, DeliverEvent):
                self.model.ack(subtask, message.event_id)
                attempt.ack("source", message.event_id)
                return
            if isinstance(message, InjectBarrier):
                attempt.last_barrier = message.checkpoint_id
                self.storing[subtask].append(message.checkpoint_id)
                return

    def handle_all(self, subtask: int) -> None:
        """A task handles all its messages, but stores no snapshot."""
        self.handle(subtask)
        while subtask in self.tasks and self.tasks[subtask][1] < len(self.tasks[subtask][0].inbox):
            self.handle(subtask)

    def handle_together(self, subtask: int) -> None:
        """A task handles all events up to the next barrier, and acks them by one message."""
        if subtask not in self.tasks:
            return
        attempt, read = self.tasks[subtask]
        handled: list[int] = []
        while read < len(attempt.inbox) and not isinstance(attempt.inbox[read], InjectBarrier):
            message = attempt.inbox[read]
            if isinstance(message, DeliverEvent):
                handled.append(message.event_id)
            read += 1
        self.tasks[subtask] = (attempt, read)
        for event_id in handled:
            self.model.ack(subtask, event_id)
        if handled:
            attempt.ack("source", *handled)

    def all_go_on(self, _which: int) -> None:
        """All that is under way comes to its end, but for what the coordinator has to do."""
        for subtask in (0, 1) * 3:
            self.handle_all(subtask)
            self.store(subtask)

    def store(self, subtask: int) -> None:
        """The snapshot of a barrier is stored, and acked."""
        if subtask in self.tasks and self.storing[subtask]:
            n = self.storing[subtask].pop(0)
            self.model.ack_checkpoint(subtask, n)
            self.tasks[subtask][0].ack_checkpoint(n)

    def store_newest(self, subtask: int) -> None:
        """The newest snapshot is stored; older ones never are."""
        if subtask in self.tasks:
            self.storing[subtask] = self.storing[subtask][-1:]
            self.store(subtask)

    def babble(self, subtask: int) -> None:
        """Acks of what is not to be acked (clauses C6, F9, G1)."""
        if subtask not in self.tasks:
            return
        event_id, n = self.number, self.number % 10
        attempt, way = self.tasks[subtask][0], self.model.ways[subtask]
        if way.held:
            event_id = way.held[n % len(way.held)][0]
        is_held = event_id in [event for event, _ in way.held]
        if event_id not in way.unacked or is_held:
            attempt.ack("source", event_id)
        if f"{BARRIER}{n}" not in way.inbox and n not in self.model.pending:
            return
        if n <= self.job.runtime.state.subtasks[subtask].attempt.last_barrier:  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
            before = attempt.last_barrier
            attempt.ack_checkpoint(n)
            attempt.last_barrier = before

    # The coordinator.

    def send(self, subtask: int) -> None:
        """An event down, through the last gateway that it was given, dead or alive."""
        if subtask not in self.provider.newest.gateways:
            return
        self.model.send(subtask)

        def resolved(future: EventFuture) -> None:
            try:
                future.result()
            except Exception:  # noqa: BLE001, whatever it is: it has failed
                self.provider.calls.append(("future", future.event_id, "failed"))
            else:
                self.provider.calls.append(("future", future.event_id, "acked"))

        def act(coordinator: Noting) -> None:
            future = coordinator.gateways[subtask].send_event(Down(n=self.model.next_event))
            future.add_done_callback(resolved)

        self._inside(act)

    def trigger(self, _which: int = 0) -> None:
        """A checkpoint begins, or may not (clause F8)."""
        may, n = self.model.can_trigger(), self.model.next_checkpoint
        if may:
            self.model.pending[n] = Pending()
            self.model.calls.append(("cut", n))
            self.model.next_checkpoint += 1
        assert self.job.trigger() == (n if may else None)

    def cut(self, which: int) -> None:
        """The coordinator completes its part, of an aborted checkpoint too (clause F6)."""
        if not self.provider.newest.results:
            return
        n = sorted(self.provider.newest.results)[-which]
        self.model.cut(n)
        self._inside(lambda coordinator: coordinator.results.pop(n).complete(b"state of %d" % n))

    def fail_cut(self, which: int) -> None:
        """The coordinator cannot give its part (clause F5)."""
        if not self.provider.newest.results:
            return
        n = sorted(self.provider.newest.results)[-which]
        if n in self.model.pending:
            self.model.abort(n)
        self._inside(lambda coordinator: coordinator.results.pop(n).fail("scripted"))

    def time_out(self, which: int) -> None:
        """A checkpoint is not whole in time (clause F12)."""
        if not self.model.pending:
            return
        n = sorted(self.model.pending)[-which]
        self.model.abort(n)
        given = CheckpointTimedOut(checkpoint_id=n, timeout_s=1.0)
        self.job.run(lambda: self.job.runtime.handle(given))

    def overlap(self, subtask: int) -> None:
        """Two checkpoints, if they may overlap, with an event between the cuts (clause F10)."""
        for _ in range(2):
            self.trigger()
            self.cut(1)
            self.send(subtask)

    def overtake(self, subtask: int) -> None:
        """Of two checkpoints the newer one completes first; possible with no event in between."""
        for _ in range(2):
            self.trigger()
            self.cut(1)
        for one in (0, 1, 0, 1):
            self.handle_all(one)
        for one in (0, 1):
            self.store_newest(one)

    # Failures of the whole job.

    def fail(self, _which: int) -> None:
        """A global failover."""
        self.model.reset()
        self.tasks.clear()
        self.job.run(lambda: self.job.runtime.fail_job("source", "scripted"))
        self.job.stage_ends("cancelled")
        self.job.advance(1.0)

    def crash(self, _which: int) -> None:
        """The driver dies; the next one rolls back."""
        self.model.reset()
        self.tasks.clear()
        self.job.crash()
        self.job = self._driver(self.job)

    # What must be so.

    @invariant()
    def the_coordinator_has_heard_what_it_must(self) -> None:
        heard = [one for one in self.provider.calls if one[0] != "close"]
        assert heard == self.model.calls

    @invariant()
    def attempts_have_got_what_they_must(self) -> None:
        for subtask, way in self.model.ways.items():
            got = []
            for one in self.tasks[subtask][0].inbox:
                if isinstance(one, DeliverEvent):
                    got.append(str(one.event_id))
                elif isinstance(one, InjectBarrier):
                    got.append(f"{BARRIER}{one.checkpoint_id}")
            assert got == way.inbox

    @invariant()
    def the_state_is_the_models(self) -> None:
        state = self.job.runtime.state
        live = {n: s.attempt.attempt_number for n, s in state.subtasks.items() if s.attempt}
        assert live == {n: way.attempt_number for n, way in self.model.ways.items()}
        assert sorted(state.pending) == sorted(self.model.pending)
        assert state.last_checkpoint == self.model.last
        assert state.next_checkpoint_id == self.model.next_checkpoint
        for subtask, way in self.model.ways.items():
            gateway = state.gateways.get(("source", subtask))
            held = () if gateway is None else gateway.held
            assert [one.event.event_id for one in held] == [event for event, _ in way.held]
            assert ([] if gateway is None else list(gateway.closed_by)) == way.closed_by
            assert ([] if gateway is None else sorted(gateway.unacked)) == way.unacked

    def teardown(self) -> None:
        """Whatever has happened, a checkpoint can complete, and then every gateway is open."""
        if not hasattr(self, "job"):
            return
        for subtask in (0, 1):
            if subtask not in self.tasks:
                self.register(subtask)
        if self.model.can_trigger():
            self.trigger()
        for n in sorted(self.provider.newest.results):
            self.model.cut(n)
            self._inside(
                lambda coordinator, n=n: coordinator.results.pop(n).complete(b"state of %d" % n)
            )
        for _ in range(10):
            self.all_go_on(0)
        self.the_coordinator_has_heard_what_it_must()
        self.attempts_have_got_what_they_must()
        self.the_state_is_the_models()
        state = self.job.runtime.state
        assert not state.pending
        assert all(not one.closed_by and not one.unacked for one in state.gateways.values())
        folded = rebuild(self.job.log, self.chain, projection_of(self.chain)).state
        assert folded == state, "K3"


@pytest.mark.slow
@pytest.mark.clause("B2")
@pytest.mark.clause("C2")
@pytest.mark.clause("C6")
@pytest.mark.clause("C9")
@pytest.mark.clause("E1")
@pytest.mark.clause("E2")
@pytest.mark.clause("E5")
@pytest.mark.clause("F3")
@pytest.mark.clause("F4")
@pytest.mark.clause("F5")
@pytest.mark.clause("F6")
@pytest.mark.clause("F7")
@pytest.mark.clause("F8")
@pytest.mark.clause("F9")
@pytest.mark.clause("F10")
@pytest.mark.clause("G1")
@pytest.mark.clause("G2")
@pytest.mark.clause("G3")
@pytest.mark.clause("G4")
@pytest.mark.clause("H2")
def test_gateways_and_checkpoints_do_what_a_simple_model_says(dose: int) -> None:
    run_state_machine_as_test(
        GatewayMachine,
        settings=settings(
            max_examples=40 * dose,
            stateful_step_count=80,
            suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
        ),
    )
