"""What Spark is to one simulated driver: a stage of tasks, each with a connection, and the real attempt in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from coordlog.api.chain import Chain
from coordlog.errors import FencedAttemptError
from coordlog.messages import (
    Accepted,
    AckCheckpoint,
    AlreadyFinished,
    CheckpointCompleted,
    Complete,
    DeliverEvent,
    DownMessage,
    Fenced,
    InjectBarrier,
    Refused,
    Register,
    UpMessage,
    joined_acks,
)
from coordlog.runtime.ports import Arrivals, StageEvents
from coordlog.schemas.record import Kind
from coordlog.task.attempt import AttemptRunner, StepStatus
from simulation.agenda import Agenda, Weather
from simulation.job import ScriptedError
from simulation.log import Key

__all__ = ["Cluster", "Faults", "Surroundings", "Task", "Wire"]


class Wire:
    """What happens to messages on their way, besides the weather. This one: nothing."""

    def is_lost(self, message: DownMessage) -> bool:
        """Whether a message of the driver never arrives, although the connection lives on."""
        return False

    def delay_s(self, message: UpMessage) -> float | None:
        """By how much more a message of an attempt comes later, others overtaking it; None: never."""
        return 0.0

    def is_kept(self, message: UpMessage) -> bool:
        """Whether the ack of a barrier must wait."""
        return False


class Faults(Protocol):
    """Where a run notes what must not be."""

    def look(self, is_so: bool, fault: str) -> None:  # noqa: FBT001, reads like an assertion
        """Note the fault unless it is so."""
        ...


class Mail(Arrivals, StageEvents, Protocol):
    """The driver, as its cluster sees it."""

    driver_id: str
    epoch: int
    parallelism: int


class Surroundings(Protocol):
    """What all drivers and tasks of a simulation share."""

    agenda: Agenda
    weather: Weather
    chain: Chain
    wire: Wire

    @property
    def book(self) -> Faults:
        """What must not be is noted there."""
        ...

    def open(self, task: Task) -> None:
        """The links of this task's attempt are about to be made."""
        ...

    def next_task(self) -> int:
        """A number that no other task has."""
        ...

    def has(self, key: Key) -> bool:
        """Whether a record with this key counts now."""
        ...

    @property
    def is_stormy(self) -> bool:
        """Whether things still break."""
        ...


@dataclass(eq=False, slots=True)
class Task:
    """One Spark task, from its start to its end."""

    number: int
    subtask: int
    stage_run: int
    runner: AttemptRunner | None = None
    attempt_number: int | None = None
    """As its driver has told it, or is about to."""
    storing: deque[UpMessage] = field(default_factory=deque)
    """Acks of barriers, and the completion, whose snapshots are being stored."""
    comes_s: float = 0.0
    """When the last message to it arrives."""
    goes_s: float = 0.0
    """When the last message of it arrives."""
    frame: list[UpMessage] = field(default_factory=list)
    """Messages that arrive together, at `goes_s`; only every other task sends such."""
    is_cut: bool = False
    """Nothing more arrives, either way."""
    is_noticed: bool = False
    """The task knows that its connection is gone."""
    is_over: bool = False
    """It does nothing more."""
    stepping: int = 0
    """The newest step that is planned."""


class Cluster:
    """One driver's tasks and connections: its `Connections` and its `Stage`."""

    def __init__(self, around: Surroundings, mail: Mail) -> None:
        self._around, self._mail = around, mail
        self._agenda, self._weather = around.agenda, around.weather
        self.tasks: dict[int, Task] = {}
        """By number, which is the connection's too: those that have begun."""
        self.stage_run: int | None = None
        """The one under way."""
        self._is_cancelled = False
        self._done: set[int] = set()
        self.is_dead = False

    @property
    def parallelism(self) -> int:
        """How many subtasks its driver has."""
        return self._mail.parallelism

    # --- Stage --------------------------------------------------------------------------------------------------------
    def submit(self, stage_run: int) -> None:
        """See `Stage`."""
        if self.is_dead:
            return
        self._around.book.look(
            self.stage_run is None, "a stage run begins before another has ended"
        )
        self.stage_run, self._is_cancelled = stage_run, False
        self._done.clear()
        for subtask in range(self._mail.parallelism):
            self._begin_later(stage_run, subtask)

    def cancel(self, stage_run: int, reason: str) -> None:
        """See `Stage`."""
        if stage_run == self.stage_run:
            self._is_cancelled = True
            self._agenda.later(self._weather.begin_s, lambda: self.end_stage(stage_run, reason))

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """See `Stage`."""

        def kill() -> None:
            task = self.tasks.get(task_attempt_id)
            if task is not None and task.stage_run == stage_run:
                self.kill(task)

        self._agenda.later(self._weather.wire_s, kill)

    def end_stage(self, stage_run: int, error: str | None) -> None:
        """All its tasks die; the driver is told."""
        if stage_run != self.stage_run or self.is_dead:
            return
        self.stage_run = None
        for task in self.live():
            self.kill(task)
        self._agenda.later(self._weather.begin_s, lambda: self._mail.stage_ended(stage_run, error))

    def live(self) -> list[Task]:
        """Tasks that still do something, oldest first."""
        return [task for task in self.tasks.values() if not task.is_over]

    def _begin_later(self, stage_run: int, subtask: int) -> None:
        self._agenda.later(self._weather.begin_s, lambda: self.begin(stage_run, subtask))

    def begin(self, stage_run: int | None, subtask: int) -> None:
        """A task for this subtask starts, and registers."""
        is_wanted = stage_run == self.stage_run and not self._is_cancelled and not self.is_dead
        if stage_run is None or not is_wanted or subtask in self._done:
            return
        number = self._around.next_task()
        task = Task(number, subtask, stage_run)
        self.tasks[number] = task
        register = Register(
            driver_id=self._mail.driver_id,
            subtask=subtask,
            stage_run=stage_run,
            task_attempt_id=number,
            spark_attempt_number=0,
            host="simulation",
            pid=0,
        )
        self._say(task, register)

    # --- ends of tasks ------------------------------------------------------------------------------------------------
    def kill(self, task: Task) -> None:
        """The task dies; what it has sent arrives, then its driver sees its end."""
        if task.is_over:
            return
        task.goes_s = max(task.goes_s, self._agenda.now_s) + self._agenda.draw(
            self._weather.notice_s
        )
        self._agenda.at(task.goes_s, lambda: self._lost(task, "the task died"))
        self._over(task, RuntimeError("killed"))

    def cut(self, task: Task) -> None:
        """Its connection breaks, with all that is on its way; each end notices in its own time."""
        if task.is_cut:
            return
        task.is_cut = True
        self._agenda.later(
            self._weather.notice_s,
            lambda: self._mail.connection_lost(task.number, "the connection broke"),
        )
        self._agenda.later(self._weather.notice_s, lambda: self._notice(task))

    def die(self) -> None:
        """The driver is gone: its tasks notice in their own time, and nobody starts others."""
        self.is_dead = True
        for task in self.live():
            task.is_cut = True
            self._agenda.later(self._weather.notice_s, lambda one=task: self._notice(one))  # type: ignore[misc]

    def _notice(self, task: Task) -> None:
        task.is_noticed = True
        self._agenda.later(self._weather.step_s, lambda: self._step(task, task.stepping))
        if task.runner is None:
            self._over(task, None)

    def _lost(self, task: Task, reason: str) -> None:
        if not task.is_cut:
            task.is_cut = True
            self._mail.connection_lost(task.number, reason)

    def _over(self, task: Task, failure: BaseException | None, *, is_well: bool = False) -> None:
        """The task has ended; Spark starts another, unless it ended well."""
        if task.is_over:
            return
        task.is_over = True
        if task.runner is not None:
            task.runner.close(failure)
        stage_run = task.stage_run
        if self.is_dead or stage_run != self.stage_run:
            return
        if not is_well:
            if all(one.subtask != task.subtask for one in self.live()):
                self._begin_later(stage_run, task.subtask)
            return
        self._done.add(task.subtask)
        for other in self.live():
            if other.subtask == task.subtask:
                self.kill(other)
        if len(self._done) == self.parallelism and not self._is_cancelled:
            self.end_stage(stage_run, None)

    # --- Connections --------------------------------------------------------------------------------------------------
    def send(self, connection_id: int, message: DownMessage) -> None:
        """See `Connections`."""
        task = self.tasks[connection_id]
        self._check_effect(task, message)
        if task.is_cut or self.is_dead or self._around.wire.is_lost(message):
            return
        task.comes_s = self._due_s(task.comes_s)
        self._agenda.at(task.comes_s, lambda: self._receive(task, message))

    def close(self, connection_id: int) -> None:
        """See `Connections`."""
        task = self.tasks[connection_id]

        def close() -> None:
            task.is_cut = True
            self._notice(task)

        self._agenda.at(max(task.comes_s, self._agenda.now_s), close)

    def released(self, connection_id: int, message_count: int) -> None:
        """See `Connections`: here nothing is held back."""

    def _due_s(self, before_s: float) -> float:
        way_s = self._agenda.draw(self._weather.wire_s)
        if self._around.is_stormy and self._agenda.happens(self._weather.wire_slow):
            way_s *= 20
        return max(before_s, self._agenda.now_s + way_s)

    def _check_effect(self, task: Task, message: DownMessage) -> None:
        """Nothing is told to an attempt before its record counts (clause K1)."""
        epoch, subtask = self._mail.epoch, task.subtask
        key: Key
        number = task.attempt_number
        match message:
            case Accepted():
                task.attempt_number = message.attempt_number
                key = (Kind.ATTEMPT_STARTED, epoch, subtask, message.attempt_number, None)
            case DeliverEvent():
                key = (Kind.EVENT_TO_SUBTASK, epoch, subtask, number, message.event_id)
            case InjectBarrier():
                key = (Kind.BARRIER_INJECTED, epoch, subtask, number, message.checkpoint_id)
            case CheckpointCompleted():
                key = (Kind.CHECKPOINT_COMPLETED, -1, None, None, message.checkpoint_id)
            case _:
                return
        self._around.book.look(
            self._around.has(key), f"{message} was sent before its record counts"
        )

    # --- the task -----------------------------------------------------------------------------------------------------
    def _receive(self, task: Task, message: DownMessage) -> None:
        if task.is_over or task.is_cut:
            return
        match message:
            case Refused():
                self._over(task, None)
            case AlreadyFinished():
                self._over(task, None, is_well=True)
            case Accepted():
                self._accept(task, message)
            case _:
                runner = task.runner
                assert runner is not None, "accepted first"
                self._guard(task, lambda: runner.handle(message))
                if runner.is_released:
                    is_finished = isinstance(message, Fenced)
                    self._over(task, None, is_well=is_finished)
                elif not task.is_over:
                    self._plan_step(task)

    def _accept(self, task: Task, accepted: Accepted) -> None:
        runner = AttemptRunner(
            self._around.chain,
            accepted,
            job_id="job",
            subtask=task.subtask,
            outbox=lambda said: self._say(task, said),
            why_over=lambda: "its connection is gone" if task.is_noticed else None,
        )
        task.runner = runner
        self._around.open(task)
        self._guard(task, runner.open)
        self._plan_step(task)

    def _guard(self, task: Task, act: Callable[[], object]) -> None:
        try:
            act()
        except FencedAttemptError as error:
            self._over(task, error)
            self._agenda.at(
                max(task.goes_s, self._agenda.now_s), lambda: self._lost(task, "it was fenced")
            )
        except ScriptedError as error:
            self._over(task, error)
            self._agenda.at(
                max(task.goes_s, self._agenda.now_s), lambda: self._lost(task, "it failed")
            )

    def _plan_step(self, task: Task, delay_s: float = 0.0) -> None:
        task.stepping += 1
        step = task.stepping
        due_s = self._agenda.now_s + delay_s + self._agenda.draw(self._weather.step_s)
        self._agenda.at(due_s, lambda: self._step(task, step))

    def _step(self, task: Task, number: int) -> None:
        runner = task.runner
        if task.is_over or runner is None or number != task.stepping:
            return
        done: list[StepStatus] = []
        self._guard(task, lambda: done.append(runner.step().status))
        if task.is_over:
            return
        is_idle = done[0] in (StepStatus.WAITING, StepStatus.COMPLETED)
        self._plan_step(task, 0.05 if is_idle else 0.0)

    def _say(self, task: Task, message: UpMessage) -> None:
        """Messages keep their order, but those that wait for a snapshot to be stored and those that the wire delays."""
        more_s, now_s = self._around.wire.delay_s(message), self._agenda.now_s
        if more_s is None:
            return
        if isinstance(message, AckCheckpoint | Complete) and any(self._weather.store_s):
            task.storing.append(message)
            stored_s = now_s + self._agenda.draw(self._weather.store_s)
            self._agenda.at(max(task.goes_s, stored_s), lambda: self._store(task))
        elif more_s:
            self._agenda.at(now_s + more_s, lambda: self._arrive(task, message))
        else:
            if task.frame:
                task.frame.append(message)
                return
            task.goes_s = self._due_s(task.goes_s)
            if task.number % 2:
                task.frame = [message]
                task.goes_s += self._weather.gathers_s
                self._agenda.at(task.goes_s, lambda: self._arrive_together(task))
            else:
                self._agenda.at(task.goes_s, lambda: self._arrive(task, message))

    def _arrive_together(self, task: Task) -> None:
        messages, task.frame = task.frame, []
        for message in joined_acks([(one, one) for one in messages], lambda ack: ack):
            self._arrive(task, message)

    def _store(self, task: Task) -> None:
        """The oldest snapshot is stored: its ack arrives; a completion only behind all that was sent before."""
        if task.is_cut or not task.storing:
            return
        message = task.storing[0]
        is_early = isinstance(message, Complete) and task.goes_s > self._agenda.now_s
        if is_early or self._around.wire.is_kept(message):
            self._agenda.later((0.001, 0.002), lambda: self._store(task))
            return
        self._arrive(task, task.storing.popleft())

    def _arrive(self, task: Task, message: UpMessage) -> None:
        if not task.is_cut and not self.is_dead:
            self._mail.arrived(task.number, message)
