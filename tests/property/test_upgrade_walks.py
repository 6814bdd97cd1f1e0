"""Random lives of a job whose operators change: versions, removals, rescaling, savepoints, forks, prunes, rollbacks.

A model of its own knows whose bytes each subtask must get. Each state names the operator and the version that wrote it;
a start is accepted or refused exactly as the model says, and no operator ever gets bytes that it does not read.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from coordlog.api.chain import Chain, OperatorSpec
from coordlog.errors import RestoreError
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.offline.epoch import append_fact, read_job
from coordlog.offline.fork import find_fork_point, fork_to
from coordlog.offline.prune import planned, prune
from coordlog.payloads.gc import clean, payload_use
from coordlog.payloads.offload import DriverPayloads, PayloadOptions
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.state import Phase
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import ReleaseSavepoint, SavepointTaken, TakeSavepoint
from coordlog.testing.driven_job import FakeAttempt, FakeClock, HandDrivenJob
from fakes.kernel_fakes import HANDLED, IdleOperator, NotingProvider, Up, chain_of
from histories.random_machine import printed_if_it_fails

pytestmark = [pytest.mark.clause("E7"), pytest.mark.clause("E8"), pytest.mark.clause("E9")]

Read = Mapping[str, tuple[int, ...]]
"""By operator: its version, then the other versions whose states it reads."""

States = dict[int, dict[str, tuple[bytes, ...]]]
"""States by subtask and operator."""

NAMES = ("a", "b")
ACTIONS = {
    "checkpoint": 10,
    "register": 8,
    "complete": 5,
    "lose": 3,
    "take": 3,
    "release": 2,
    "restart": 8,
    "prune": 0.7,
    "clean": 0.7,
    "fork": 0.7,
}


def _version(state: bytes) -> int:
    return int(state.split(b".")[1])


def _dealt(was: int, now: int, subtask: int) -> list[int]:
    """Subtasks of a checkpoint whose states go to a subtask."""
    if now >= was:
        return [subtask] if subtask < was else []
    return [number for number in range(was) if number % now == subtask]


@dataclass
class Held:
    """A completed checkpoint, as the model knows it."""

    parallelism: int
    written_by: Read
    states: States
    finished: frozenset[int]

    def dealt(self, parallelism: int) -> tuple[States, frozenset[int]]:
        """States of each subtask of a job with this parallelism, and the subtasks that have finished."""
        states: States = {}
        finished = set()
        for subtask in range(parallelism):
            numbers = _dealt(self.parallelism, parallelism, subtask)
            merged: dict[str, tuple[bytes, ...]] = {}
            for number in numbers:
                for name, parts in self.states.get(number, {}).items():
                    merged[name] = (*merged.get(name, ()), *parts)
            states[subtask] = merged
            if numbers and self.finished.issuperset(numbers):
                finished.add(subtask)
        return states, frozenset(finished)


@dataclass(frozen=True, kw_only=True)
class Start:
    """Options of a start."""

    own: Read
    parallelism: int
    is_merging: bool = True
    allow: frozenset[str] = frozenset(NAMES)
    resume: bool = False
    back: int | None = None
    is_held: bool = False
    """Whether the driver dies after its first record."""


@dataclass
class Model:
    """What the job must be like; knows only what was done with it."""

    checkpoints: dict[int, Held] = field(default_factory=dict)
    opened: dict[int, Held] = field(default_factory=dict)
    """Last checkpoints at which the job was opened again: no subtask has finished there."""
    last: int = -1
    was: Read = field(default_factory=dict)
    """Operators of the last epoch that had more than its first record."""
    ended: dict[int, dict[str, tuple[bytes, ...]]] = field(default_factory=dict)
    """States at their ends of the subtasks that have finished."""
    subtasks: int = 0
    owed_back: int | None = None
    is_over: bool = False
    has_begun: bool = False
    """Whether an epoch had more than its first record."""

    def why_refused(self, start: Start) -> str:
        """Why a start must be refused, or empty."""
        own, parallelism, back = start.own, start.parallelism, start.back
        if self.owed_back is not None and back is None:
            return "rollback"
        if not self._reads(own, self.was):
            return "version"
        held = self.held(self.last if back is None else back)
        resume = start.resume and self.has_begun
        if resume and parallelism != self.subtasks:
            return "parallelism"
        lost = {name for states in self.ended.values() for name in states} if resume else set()
        if held is not None:
            if not self._reads(own, held.written_by):
                return "version of the checkpoint"
            states, finished = held.dealt(parallelism)
            if self.is_over:
                finished = frozenset()
            elif resume:
                finished = frozenset(self.ended)
            for subtask, by_name in states.items():
                for name, parts in by_name.items():
                    if name not in own or subtask in finished:
                        continue
                    if any(_version(part) not in own[name] for part in parts):
                        return "version of a subtask's end"
            lost |= {name for by_name in held.states.values() for name in by_name}
            merged = [
                name
                for subtask, by_name in states.items()
                for name, parts in by_name.items()
                if len(parts) > 1 and name in own
                if parallelism != held.parallelism or subtask not in finished
            ]
            if merged and not start.is_merging:
                return "merge"
        if lost - {*own} - start.allow:
            return "removed"
        return ""

    def held(self, number: int) -> Held | None:
        """A checkpoint, as the last opening again has changed it."""
        return self.opened.get(number) or self.checkpoints.get(number)

    def _reads(self, own: Read, was: Read) -> bool:
        return all(was[name][0] in own[name] for name in own if name in was)


class Walk:
    """One random life."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.done: list[str] = []
        self.model = Model()
        self.log, self.job_id = MemoryLog("job"), "job"
        self.has_store = self.chance.random() < 0.25
        self.every = self.chance.choice((None, 5, 12))
        self.forks = self.serial = 0
        self.savepoints: dict[str, int] = {}
        self.job: HandDrivenJob | None = None
        self.own: Read = {}
        self.live: dict[int, FakeAttempt] = {}
        self.restored: States = {}
        self.open: tuple[int, States, frozenset[int]] | None = None
        """Pending checkpoint, the states that it has so far, and the subtasks that had finished."""
        self.clock = FakeClock()
        self.is_pruned = self.is_another = False
        self.start(self._any_start())

    # --- starts -------------------------------------------------------------------------------------------------------
    def _chain(self, own: Read, *, is_merging: bool) -> Chain:
        merge = b"+".join if is_merging else None
        chain = chain_of(NotingProvider("source", payload_types=(Up,), projection=HANDLED))
        operators = [
            OperatorSpec(
                operator_id=name,
                create_operator=IdleOperator,
                version=own[name][0],
                restores=own[name][1:],
                merge_states=merge,
            )
            for name in NAMES
            if name in own
        ]
        return Chain(source=replace(chain.source, merge_states=merge), operators=operators)

    def _any_operators(self) -> Read:
        own = {}
        for name in NAMES:
            if self.chance.random() < 0.15:
                continue
            version = self.chance.choice((1, 2, 3))
            if name in self.own and self.chance.random() < 0.5:
                version = self.own[name][0]
            others = [other for other in (1, 2, 3) if other != version]
            own[name] = (version, *(one for one in others if self.chance.random() < 0.6))
        return own

    def _payloads(self) -> PayloadOptions:
        if not self.has_store:
            return PayloadOptions()
        store = PayloadStore(str(self.folder / "payloads"), self.job_id)
        return PayloadOptions(store=store, limit_bytes=6)  # the first states are inline

    def _any_start(self) -> Start:
        model, chance, retained = self.model, self.chance, self._retained()
        back = None
        if retained and not model.is_over and chance.random() < 0.3:
            back = chance.choice(retained)
        is_first = back is None and not self.is_another and not model.is_over
        return Start(
            own=self._any_operators(),
            parallelism=chance.choice((model.subtasks or 2, 1, 2, 3, 4)),
            is_merging=chance.random() < 0.7,
            allow=frozenset(name for name in NAMES if chance.random() < 0.7),
            resume=is_first and chance.random() < 0.25,
            back=back,
            is_held=chance.random() < 0.15,
        )

    def start(self, start: Start) -> bool:
        """Start the next driver, or see that it is refused; returns whether it was started."""
        self.done.append(str(start))
        payloads = self._payloads()
        chain = self._chain(start.own, is_merging=start.is_merging)
        chain = chain.opening(DriverPayloads(payloads).open)
        self._compare_folds(chain)
        expected, before = self.model.why_refused(start), self.log.high_watermark()
        self.clock.seconds += 1_000  # restarts do not count as too many
        try:
            job = HandDrivenJob(
                chain,
                parallelism=start.parallelism,
                job_id=self.job_id,
                log=self.log,
                clock=self.clock,
                options=RuntimeOptions(snapshot_every=self.every),
                restore="resume" if start.resume else None,
                allow_non_restored_state=sorted(start.allow),
                again=self.model.is_over,
                from_checkpoint=start.back,
                is_held=start.is_held,
                payloads=payloads,
            )
        except RestoreError:
            if not expected or self.log.high_watermark() != before:
                raise
            self.done.append(f"refused: {expected}")
            return False
        assert not expected, f"accepted in spite of {expected}"
        self.job, self.own = job, start.own
        self.live, self.open = {}, None
        if start.is_held:
            self.model.owed_back = start.back
            job.crash()
        else:
            self._started(start, job)
        return True

    def _started(self, start: Start, job: HandDrivenJob) -> None:
        model = self.model
        model.was, model.owed_back, self.is_another = start.own, None, False
        if start.back is not None:
            model.last = start.back
        held = model.held(model.last)
        states: States = {}
        finished = frozenset[int]()
        if held is not None:
            states, finished = held.dealt(start.parallelism)
        self.restored = states
        if model.is_over:
            assert job.mode == "again"
            assert held is not None
            model.ended = {}
            model.opened[model.last] = replace(held, finished=frozenset())
        elif start.resume and model.has_begun:
            assert job.mode == "resume"
        else:
            model.ended = {subtask: states[subtask] for subtask in finished}
        model.subtasks, model.has_begun = start.parallelism, True
        self._settled()

    def _settled(self) -> None:
        """See that the job agrees with the model."""
        assert self.job is not None
        state = self.job.runtime.state
        self.model.is_over = state.phase is Phase.FINISHED
        ended = {n for n, one in state.subtasks.items() if one.completion is not None}
        if not self.model.is_over:
            assert ended == {*self.model.ended}
        assert state.last_checkpoint == self.model.last
        assert dict(state.savepoints.items()) == self.savepoints

    def _compare_folds(self, chain: Chain) -> None:
        """A restore from a snapshot is the restore from the log's beginning."""
        projection = projection_of(chain)
        quick, whole = (
            rebuild(self.log, chain, projection, is_whole=is_whole) for is_whole in (False, True)
        )
        assert quick.state == whole.state

    def _retained(self) -> list[int]:
        """Checkpoints that may be rolled back to; `why_not_retained` has tests of its own."""
        if self.job is None:
            return []
        return sorted(read_job(self.log, self.job_id, lambda _: None).state.completed)

    # --- at work ------------------------------------------------------------------------------------------------------
    def act(self) -> None:
        """Do something."""
        (action,) = self.chance.choices([*ACTIONS], [*ACTIONS.values()])
        if self.job is None or self.job.is_crashed:
            action = self.chance.choice(
                [*3 * ["restart"], "take", "release", "prune", "clean", "fork"]
            )
        self.done.append(action)
        getattr(self, f"_{action}")()
        if self.job is not None and not self.job.is_crashed:
            self._settled()

    def _state_of(self, name: str) -> bytes:
        self.serial += 1
        return b"%s.%d.%d" % (name.encode(), self.own[name][0], self.serial)

    def _states(self) -> dict[str, bytes]:
        return {name: self._state_of(name) for name in self.own if self.chance.random() < 0.9}

    def _register(self) -> None:
        assert self.job is not None
        for subtask in range(self.model.subtasks):
            if subtask in self.model.ended or subtask in self.live or self.model.is_over:
                continue
            attempt = self.live[subtask] = self.job.register(subtask)
            assert attempt.accepted.restored_checkpoint == self.model.last
            got: dict[str, tuple[bytes, ...]] = {}
            for part in attempt.accepted.states:
                assert part.state is not None
                opened = attempt.payloads.open(part.state)
                got[part.operator_id] = (*got.get(part.operator_id, ()), opened)
            assert got == self.restored.get(subtask, {})
            for name in {*got} & {*self.own}:
                assert all(_version(state) in self.own[name] for state in got[name]), got

    def _checkpoint(self) -> None:
        assert self.job is not None
        if self.model.is_over:
            return
        self._register()
        for attempt in self.live.values():
            if self.chance.random() < 0.3:
                attempt.send("source", Up(n=self.serial))
        if self.open is None:
            number = self.job.trigger()
            if number is None:
                return
            self.open = number, dict(self.model.ended), frozenset(self.model.ended)
        number, states, _ = self.open
        is_whole = self.chance.random() < 0.8
        for subtask, attempt in sorted(self.live.items()):
            if subtask in states or (not is_whole and self.chance.random() < 0.5):
                continue
            made = self._states()
            states[subtask] = {name: (state,) for name, state in made.items()}
            attempt.ack_checkpoint(number, states=made)
        self._look_whether_completed()

    def _look_whether_completed(self) -> None:
        if self.open is not None and {*self.open[1]} == {*range(self.model.subtasks)}:
            self._completed(*self.open)

    def _completed(self, number: int, states: States, finished: frozenset[int]) -> None:
        self.open = None
        self.model.checkpoints[number] = Held(self.model.subtasks, self.own, states, finished)
        self.model.last = number
        self.restored = states

    def _complete(self) -> None:
        assert self.job is not None
        if self.model.is_over or not self.live:
            return
        subtask = self.chance.choice(sorted(self.live))
        made = self._states()
        at_end = self.model.ended[subtask] = {name: (state,) for name, state in made.items()}
        if self.open is not None and subtask not in self.open[1]:
            number, states, finished = self.open
            self.open = number, {**states, subtask: at_end}, finished | {subtask}
        self.live.pop(subtask).complete(states=made)
        self._look_whether_completed()
        if {*self.model.ended} == {*range(self.model.subtasks)}:
            self.job.advance(0.5)
            last = self.job.runtime.state.last_checkpoint
            if last != self.model.last:  # the last one of the stream
                self._completed(last, dict(self.model.ended), frozenset(self.model.ended))

    def _lose(self) -> None:
        if self.live and not self.model.is_over:
            subtask = self.chance.choice(sorted(self.live))
            self.live.pop(subtask).lose()
            self.open = None

    def _restart(self) -> None:
        if self.job is not None:
            self.job.crash()
        self.start(self._any_start())

    # --- savepoints, prunes, forks ------------------------------------------------------------------------------------
    def _take(self) -> None:
        retained = self._retained()
        if not retained or self.model.owed_back is not None:
            return
        name, number = f"s{len(self.done)}", self.chance.choice(retained)
        assert self.job is not None
        if self.job.is_crashed:
            rebuilt = read_job(self.log, self.job_id, lambda _: None)
            fact = SavepointTaken(name=name, checkpoint=number)
            append_fact(
                self.log, rebuilt, fact, command="savepoint", check=lambda _: None, why="walk"
            )
        elif not self.job.ask("", TakeSavepoint(name=name, checkpoint=number)).answers[0].sequence:
            return
        if name in read_job(self.log, self.job_id, lambda _: None).state.savepoints:
            self.savepoints[name] = number

    def _release(self) -> None:
        if not self.savepoints or self.job is None or self.job.is_crashed:
            return
        name = self.chance.choice(sorted(self.savepoints))
        self.job.ask("", ReleaseSavepoint(name=name))
        if name not in self.job.runtime.state.savepoints:
            del self.savepoints[name]

    def _prune(self) -> None:
        plan = planned(self.log, self.job_id)
        if plan.begins_with is not None and plan.begins_with.offset > plan.start:
            archive = self.folder / f"{self.job_id}-{len(self.done)}.avro"
            prune(self.log, self.job_id, plan, archive, DriverPayloads(self._payloads()).open)
            self.is_pruned = True
            self._clean(is_dropping=self.chance.random() < 0.5)
            self.done.append("pruned")

    def _clean(self, *, is_dropping: bool = False) -> None:
        store = self._payloads().store
        if store is not None:
            cleaned = clean(store, payload_use(self.log, store), is_dropping=is_dropping)
            self.done.append(f"cleaned: {len(cleaned)}")

    def _fork(self) -> None:
        retained = self._retained()
        if not retained or self.is_pruned:
            return
        number = self.chance.choice(retained)
        if self.model.checkpoints[number].finished.issuperset(
            range(self.model.checkpoints[number].parallelism)
        ):
            return
        assert self.job is not None
        self.forks += 1
        other, self.log = self.log, MemoryLog(f"fork-{self.forks}")
        job_id = f"fork-{self.forks}"
        point, store = find_fork_point(other, self.job_id, str(number)), self._payloads().store
        fork_to(other, self.log, point, job_id=job_id, payload_store=store)
        if store is not None and self.chance.random() < 0.5:
            store.remove(store.listed())  # the other job is deleted
        self.job.crash()
        self.job_id, self.savepoints, self.live = job_id, {}, {}
        held = self.model.checkpoints[number]
        self.model = Model(
            checkpoints=self.model.checkpoints,
            opened={n: one for n, one in self.model.opened.items() if n < number},
            last=number,
            was=held.written_by,
            subtasks=held.parallelism,
            has_begun=True,
        )
        self.is_another = True
        self.done.append(f"at {number}")

    def settle(self) -> None:
        """Any job can be started by a version that reads all others, and come to its end."""
        if self.job is not None:
            self.job.crash()
        own: Read = dict.fromkeys(NAMES, (3, 1, 2))
        back = self.model.owed_back
        assert self.start(Start(own=own, parallelism=2, back=back)), "there is a way out"
        assert self.job is not None
        self._register()
        for attempt in self.live.values():
            attempt.complete()
        self.job.advance(5)
        assert self.job.runtime.state.phase is Phase.FINISHED
        stored, store = (
            self.log.read(self.log.start_offset(), self.log.high_watermark()),
            self._payloads().store,
        )
        faults = verify(
            stored, open_payload=lambda address, _: None if store is None else store.get(address)
        ).faults
        assert faults == []


def walk(seed: int, folder: Path, steps: int) -> Walk:
    made = Walk(seed, folder)
    with printed_if_it_fails(seed, made.done):
        for _ in range(steps):
            made.act()
        made.settle()
    return made


@pytest.mark.slow
def test_each_operator_gets_its_own_bytes_or_the_start_is_refused(
    seed: int, dose: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    for number in range(10 * dose):
        folder = tmp_path / str(number)
        folder.mkdir()
        walk(chance.randrange(2**32), folder, chance.choice((15, 40)))
