"""A job on simulated time: the real kernel, runtime, coordinators and attempts; its network, log and tasks by chance.

One seed makes one run, to the byte of its log. Nothing happens but in the order of the agenda.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from coordlog.api.chain import Chain
from coordlog.errors import FencedAttemptError
from coordlog.kernel.builder import KernelConfig
from coordlog.log.interface import Log, LogIdentity
from coordlog.log.memory import MemoryLog, Unknown
from coordlog.messages import (
    Accepted,
    AckCheckpoint,
    AlreadyFinished,
    Complete,
    DownMessage,
    Refused,
    UpMessage,
)
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.task.attempt import AttemptRunner, StepStatus
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from exactly_once_parts import Book, Link, NotExactlyOnceError, ScriptedError

Span = tuple[float, float]
"""From and to, seconds."""


@dataclass(frozen=True, kw_only=True)
class Weather:
    """How fast things are, and how often they break."""

    interval_s: float = 0.01
    """Between checkpoints."""
    is_overlapping: bool = False
    ack_timeout_s: float = 10.0
    checkpoint_timeout_s: float = 5.0
    wire_s: Span = (0.0, 0.002)
    """A message's way, each of the two."""
    store_s: Span = (0.0, 0.005)
    """From a barrier to its ack."""
    append_s: Span = (0.0002, 0.003)
    """From a turn to its append."""
    step_s: Span = (0.001, 0.003)
    """Between two batches."""
    begin_s: Span = (0.001, 0.02)
    """Until Spark has started a task, or ended a stage."""
    losses: int = 0
    """How many connections break."""
    crashes: int = 0
    """How many drivers die."""
    horizon_s: float = 1.0
    """The time within which these happen."""
    unknown_appends: float = 0.0
    """How many of all appends have an unknown outcome."""
    limit_s: float = 120.0
    """A run that takes longer is stuck."""


class Wire:
    """What happens to messages on their way. This one: nothing."""

    def is_lost(self, message: DownMessage) -> bool:
        """Whether a message of the driver never arrives, although the connection lives on."""
        return False

    def delay_s(self, message: UpMessage) -> float | None:
        """By how much more a message of an attempt comes later; None: never."""
        return 0.0

    def is_kept(self, message: UpMessage) -> bool:
        """Whether the ack of a barrier must wait."""
        return False


@dataclass(eq=False)
class Task:
    """One Spark task, from its registration to its end."""

    attempt: FakeAttempt
    subtask: int
    stage_run: int
    runner: AttemptRunner | None = None
    links: dict[str, Link] = field(default_factory=dict)
    read: int = 0
    comes_s: float = 0.0
    """When the last message to it arrives."""
    goes_s: float = 0.0
    """When the last message of it arrives."""
    storing: deque[UpMessage] = field(default_factory=deque)
    is_over: bool = False
    """It does nothing more."""
    is_cut: bool = False
    """Nothing of it arrives any more."""


class World:
    """One run, from its first driver to the job's end. `run` does all of it."""

    def __init__(
        self,
        seed: int,
        *,
        weather: Weather,
        book: Book,
        parallelism: int = 1,
        log: Log | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.weather, self.book, self.parallelism = weather, book, parallelism
        self.wire = Wire()
        self.chain: Chain
        self.job: HandDrivenJob
        self.memory = log is None
        self.log = log or _memory_log()
        self.opening: Task | None = None
        """Whose links are being made."""
        self.finals: dict[tuple[int, int], dict[str, Link]] = {}
        """By subtask and attempt number: the links of the attempts that have completed."""
        self.on_driver: Callable[[HandDrivenJob], None] = lambda _: None
        self.tasks: dict[int, Task] = {}
        """The newest of each subtask."""
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._busy: set[str] = set()
        self._seen_submitted = self._seen_cancelled = 0
        self._is_stage_over = True

    # --- time ---
    def later(self, span: Span, act: Callable[[], None]) -> None:
        """Do this after a while."""
        self._at(self.job.clock.seconds + self.chance.uniform(*span), act)

    def _at(self, when_s: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (when_s, self._count, act))

    def _once(self, name: str, span: Span, act: Callable[[], None]) -> None:
        """Do this after a while, unless it is to be done already."""
        if name in self._busy:
            return
        self._busy.add(name)
        job = self.job

        def do() -> None:
            if self.job is job:
                self._busy.discard(name)
                act()

        self.later(span, do)

    def run(self, chain: Chain) -> None:
        """Run the job to its end."""
        self.chain = chain
        self._drive(None)
        began_s = self.job.clock.seconds
        for _ in range(self.weather.losses):
            self.later((0.0, self.weather.horizon_s), self._lose)
        for _ in range(self.weather.crashes):
            self.later((0.0, self.weather.horizon_s), self._crash)
        self._look()
        while self.job.runtime.outcome is None:
            self._next()
            self._look()
            if self.book.faults:
                raise NotExactlyOnceError(*self.book.faults)
            is_stuck = self.job.clock.seconds - began_s > self.weather.limit_s
            assert not is_stuck, f"stuck: {self.job.runtime.state}"
        outcome = self.job.runtime.outcome
        assert outcome.is_finished, outcome.reasons
        fold = rebuild(self.log, self.chain, projection_of(self.chain))
        assert fold.state == self.job.runtime.state, "the fold of the log is the live state"

    def _next(self) -> None:
        """The next timer of the runtime, or the next of the agenda, whichever is first."""
        now, timer_s = self.job.clock.seconds, self.job.runtime.next_timer_s()
        assert self._agenda or timer_s is not None, f"nothing will happen: {self.job.runtime.state}"
        if timer_s is not None and (not self._agenda or timer_s < self._agenda[0][0]):
            self.job.advance(max(0.0, timer_s - now))
            return
        when_s, _, act = heapq.heappop(self._agenda)
        self.job.advance(max(0.0, when_s - now))
        act()

    # --- the driver ---
    def _drive(self, old: HandDrivenJob | None) -> None:
        self._busy.clear()
        self._seen_submitted = self._seen_cancelled = 0
        self._is_stage_over = True
        self.job = HandDrivenJob(
            self.chain,
            may_fail=True,
            parallelism=self.parallelism,
            log=cast("MemoryLog", self.log),
            clock=None if old is None else old.clock,
            options=RuntimeOptions(
                checkpoint_interval_s=self.weather.interval_s,
                checkpoint_timeout_s=self.weather.checkpoint_timeout_s,
                ack_timeout_s=self.weather.ack_timeout_s,
            ),
            configure=self._configure,
            is_held=True,
        )
        self.job.is_work_held = True
        self.on_driver(self.job)

    def _configure(self, config: KernelConfig) -> KernelConfig:
        return replace(
            config,
            is_overlap_allowed=self.weather.is_overlapping,
            restarts_max=10_000,
            restart_backoff_s=0.002,
            restart_backoff_max_s=0.01,
        )

    def _crash(self) -> None:
        self.job.crash()
        for task in self.tasks.values():
            task.is_over = task.is_cut = True
        self.tasks.clear()
        self.book.parked.clear()
        self.book.outside.clear()
        self._drive(self.job)

    def _append(self) -> None:
        if self.memory:
            log = cast("MemoryLog", self.log)
            if log.on_the_way and self.chance.random() < 0.3:
                log.arrive()
            if self.chance.random() < self.weather.unknown_appends:
                stored = self.chance.choice((None, (), (0,), (1,), (0, 2)))
                log.faults.next_append(Unknown(stored))
        self.job.release()

    def _work(self) -> None:
        while self.job.works and not self.book.parked:  # more may have been parked since it was due
            self.job.works.popleft()()
        self.job.pump()

    # --- what follows from what has happened ---
    def _look(self) -> None:
        while self.book.outside:
            thread = threading.Thread(target=self.book.outside.pop(0))
            thread.start()
            thread.join()
            self.job.pump()
        if self.job.runtime.unreleased_turns:
            self._once("append", self.weather.append_s, self._append)
        if self.job.works and not self.book.parked:
            self._once("work", self.weather.wire_s, self._work)
        self._look_at_stage()
        for subtask in sorted(self.tasks):
            task = self.tasks[subtask]
            while task.read < len(task.attempt.inbox):
                message = task.attempt.inbox[task.read]
                task.read += 1
                if not self.wire.is_lost(message):
                    self._come(task, message)

    def _look_at_stage(self) -> None:
        stage = self.job.stage
        if len(stage.submitted) > self._seen_submitted:
            self._seen_submitted = len(stage.submitted)
            self._is_stage_over = False
        if len(stage.cancelled) > self._seen_cancelled:
            self._seen_cancelled = len(stage.cancelled)
            if not self._is_stage_over:
                self._once("end", self.weather.begin_s, self._end_stage)
        if self._is_stage_over or "end" in self._busy:
            return
        for subtask in range(self.parallelism):
            task = self.tasks.get(subtask)
            is_vacant = task is None or task.is_cut
            if is_vacant and self.job.runtime.state.subtasks[subtask].completion is None:
                begin = partial(self._begin, subtask)
                self._once(f"begin {subtask}", self.weather.begin_s, begin)

    def _end_stage(self) -> None:
        self._is_stage_over = True
        for subtask in sorted(self.tasks):
            self._cut(self.tasks[subtask])
        self.job.stage_ends()

    # --- tasks ---
    def _begin(self, subtask: int) -> None:
        if self._is_stage_over:
            return
        attempt = self.job.register(subtask, is_patient=False)
        attempt.returns_markers = False  # its runner does
        now = self.job.clock.seconds
        stage_run = self.job.stage.submitted[-1]
        self.tasks[subtask] = Task(attempt, subtask, stage_run, comes_s=now, goes_s=now)

    def _cut(self, task: Task) -> None:
        """The connection breaks; its driver notices."""
        if task.is_cut:
            return
        task.is_over = task.is_cut = True
        if not task.attempt.is_closed and task.attempt.job is self.job:
            task.attempt.lose()

    def _lose(self) -> None:
        live = [one for _, one in sorted(self.tasks.items()) if not one.is_over and one.runner]
        if live:
            self._cut(self.chance.choice(live))

    def _come(self, task: Task, message: DownMessage) -> None:
        way_s = self.chance.uniform(*self.weather.wire_s)
        task.comes_s = max(task.comes_s, self.job.clock.seconds + way_s)
        self._at(task.comes_s, lambda: self._receive(task, message))

    def _receive(self, task: Task, message: DownMessage) -> None:
        if task.is_over:
            return
        match message:
            case Refused() | AlreadyFinished():
                task.is_over = task.is_cut = True
            case Accepted():
                runner = AttemptRunner(
                    self.chain,
                    message,
                    job_id="job",
                    subtask=task.subtask,
                    outbox=lambda said: self._say(task, said),
                    is_over=lambda: "its connection is cut" if task.is_cut else None,
                )
                task.runner = runner
                self.opening = task
                self._guard(task, runner.open)
                self.later(self.weather.step_s, lambda: self._step(task))
            case _:
                assert task.runner is not None, "accepted first"
                runner = task.runner
                self._guard(task, lambda: runner.handle(message))
                if runner.is_released:
                    runner.close()
                    task.is_over = task.is_cut = True

    def _guard(self, task: Task, act: Callable[[], object]) -> None:
        assert task.runner is not None, "accepted first"
        try:
            act()
        except FencedAttemptError as error:
            task.is_over = task.is_cut = True
            task.runner.close(error)
        except ScriptedError as error:
            task.is_over = True
            task.runner.close(error)
            self._at(task.goes_s, lambda: self._cut(task))

    def _step(self, task: Task) -> None:
        if task.is_over:
            return
        runner = task.runner
        assert runner is not None, "accepted first"
        done: list[StepStatus] = []
        self._guard(task, lambda: done.append(runner.step().status))
        if done == [StepStatus.COMPLETED]:
            self.finals[task.subtask, runner.accepted.attempt_number] = task.links
        elif not task.is_over:
            self.later(self.weather.step_s, lambda: self._step(task))

    # --- from a task to its driver ---
    def _say(self, task: Task, message: UpMessage) -> None:
        """Messages keep their order, but that a snapshot takes time to store; the completion is behind all."""
        more_s = self.wire.delay_s(message)
        if more_s is None:
            return
        now = self.job.clock.seconds
        if isinstance(message, AckCheckpoint | Complete):
            task.storing.append(message)
            store_s = self.chance.uniform(*self.weather.store_s)
            self._at(max(task.goes_s, now + store_s), lambda: self._store(task))
            return
        way_s = self.chance.uniform(*self.weather.wire_s)
        if more_s:
            self._at(now + more_s, lambda: self._arrive(task, message))
            return
        task.goes_s = max(task.goes_s, now + way_s)
        self._at(task.goes_s, lambda: self._arrive(task, message))

    def _store(self, task: Task) -> None:
        """The oldest snapshot is stored: its ack arrives."""
        if task.is_cut or not task.storing:
            return
        is_early = isinstance(task.storing[0], Complete) and task.goes_s > self.job.clock.seconds
        if is_early or self.wire.is_kept(task.storing[0]):
            self.later((0.001, 0.002), lambda: self._store(task))
            return
        self._arrive(task, task.storing.popleft())

    def _arrive(self, task: Task, message: UpMessage) -> None:
        job = task.attempt.job
        if not task.is_cut and job is self.job:
            connection_id = task.attempt.connection_id
            job.run(lambda: job.runtime.arrived(connection_id, message))


def _memory_log() -> MemoryLog:
    """A log whose identity is the same in every run, so that its bytes can be."""
    log = MemoryLog("job")
    identity = LogIdentity(cluster_id="memory", topic_id="memory", name="job in memory")
    log._partition.identity = identity
    return log
