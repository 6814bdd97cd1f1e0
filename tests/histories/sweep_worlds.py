"""Two small jobs with all that is outside of them, played step by step, for sweeps over crashes.

Each plays the tasks of its attempts as they would run: what a task keeps is in its snapshots, what
it has not handed over dies with it. `finish` brings a job to its end from wherever it stands, and
`outcome` is what came of it then.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.coordinator import CommittableOf
from coordlog.coordinators.commits import CommitCoordinatorProvider
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.history import History
from coordlog.kernel.builder import KernelConfig
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.messages import (
    AckCheckpoint,
    AckEvent,
    Complete,
    DeliverEvent,
    EndOfSplit,
    FinishSplit,
    InjectBarrier,
    SendEvent,
    UpMessage,
    joined_acks,
)
from coordlog.projections.job.state import Phase
from coordlog.projections.splits.fold import Finished, SplitsState
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import Committable, SplitFinished
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import AddSplits, NoMoreSplits, RequestSplit
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import IdleOperator, IdleReader
from fakes.machine_fakes import CountingProvider, Kept, Row, Rows, RowsSink, Work, kept_in
from fakes.split_fakes import listing

__all__ = [
    "MADE",
    "ROWS",
    "SNAPSHOT_EVERY",
    "SPLITS",
    "SUBTASKS",
    "CountingTask",
    "CountingWorld",
    "SplitTask",
    "SplitWorld",
    "World",
    "records_of",
    "settled_in",
    "sink_after",
]

SUBTASKS = 2
ROWS, MADE = 3, 3
"""Of each subtask of a `CountingWorld`: rows that it works on, events that it is sent."""
SPLITS = tuple("abcde")
SNAPSHOT_EVERY = 9
"""Records: a history of a hundred has some, and most drivers are restored from one."""
_PASSES_MAX = 40


class World(Protocol):
    """A job and what is outside of it."""

    job: HandDrivenJob
    sink: RowsSink

    def play(self, *steps: str) -> None:
        """Do these: each the name of a method, and the subtask where it takes one."""
        ...

    def finish(self) -> None:
        """Bring the job to its end."""
        ...

    def outcome(self) -> dict[str, Any]:
        """What came of it: the same, whatever happened on the way."""
        ...


def records_of(log: MemoryLog) -> list[Record]:
    """All that counts, in log order."""
    return [one.record() for turn in History(log).turns() for one in turn.entries]


def settled_in(records: Sequence[Record]) -> set[int | None]:
    """The sequences of the intents that have been carried out."""
    return {
        one.cause
        for one in records
        if one.kind is Kind.COMMIT_OUTCOME and one.attributes["settled"] == "true"
    }


def sink_after(records: Sequence[Record], *, are_open_done: bool) -> RowsSink:
    """A sink as a crash leaves it.

    Args:
        records: All that counts at the crash.
        are_open_done: Whether intents without an outcome had been carried out when the driver died.
    """
    settled, sink = settled_in(records), RowsSink()
    for one in records:
        if one.kind is Kind.COMMIT_INTENT and (are_open_done or one.sequence in settled):
            sink.settle(payload_type_of(Rows).decode(one.payload or b""))
    return sink


def _configured(config: KernelConfig) -> KernelConfig:
    return replace(config, restarts_max=1_000, restart_backoff_s=0.1, restart_backoff_max_s=0.4)


def _overlapping(config: KernelConfig) -> KernelConfig:
    return replace(_configured(config), is_overlap_allowed=True)


def _driver(
    chain: Chain,
    log: MemoryLog | None,
    restore: str | None,
    *,
    is_batch: bool = False,
    configure: Callable[[KernelConfig], KernelConfig] = _configured,
) -> HandDrivenJob:
    return HandDrivenJob(
        chain,
        parallelism=SUBTASKS,
        is_batch=is_batch,
        log=log,
        options=RuntimeOptions(
            ack_timeout_s=600, checkpoint_timeout_s=600, snapshot_every=SNAPSHOT_EVERY
        ),
        configure=configure,
        restore=restore,
        may_fail=True,  # runs have global failovers
    )


def _play(world: object, steps: Sequence[str]) -> None:
    for step in steps:
        name, *subtask = step.split()
        getattr(world, name)(*map(int, subtask))


def _fail_globally(job: HandDrivenJob) -> None:
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    job.stage_ends("cancelled")
    job.advance(1.0)


def _vacant(job: HandDrivenJob) -> list[int]:
    """The subtasks that wait for a task."""
    state = job.runtime.state
    if state.phase is not Phase.RUNNING or not job.runtime.is_stage_running:
        return []
    each = [state.subtasks[number] for number in range(SUBTASKS)]
    return [one.subtask for one in each if one.attempt is None and one.completion is None]


def _cut_off(job: HandDrivenJob) -> list[UnstoredRecord]:
    """Append the first record of what the driver holds back; the rest, which is on its way."""
    first, *rest = job.runtime.turns.take_group()
    job.log.store(first)
    return rest


# --- rows and events ------------------------------------------------------------------------------


@dataclass(eq=False)
class CountingTask:
    """One attempt of a `CountingWorld`: works on rows 1, 2, 3 …, tells of each, and writes it."""

    attempt: FakeAttempt
    kept: Kept
    barrier: int
    open_rows: list[int] = field(default_factory=list)
    outgoing: deque[UpMessage] = field(default_factory=deque)
    read: int = 1
    event_count: int = 0

    @property
    def is_quiet(self) -> bool:
        """Whether all is handled and said."""
        return not self.outgoing and self.read == len(self.attempt.inbox)

    def work(self) -> None:
        """One row: it is told of, and in the open file."""
        value = Row(n=self.kept.rows + 1)
        self.kept = replace(self.kept, rows=value.n)
        self.open_rows.append(value.n)
        declared = payload_type_of(value)
        self.outgoing.append(
            SendEvent(
                operator_id="source",
                event_id=self.event_count,
                last_barrier=self.barrier,
                payload_type=declared.key,
                payload=declared.encode(value),
            )
        )
        self.event_count += 1

    def take(self) -> None:
        """Handle the next message, if there is one; what is to be said of it is outgoing."""
        if self.read == len(self.attempt.inbox):
            return
        message = self.attempt.inbox[self.read]
        self.read += 1
        if isinstance(message, DeliverEvent):
            work = payload_type_of(Work).decode(message.payload)
            assert isinstance(work, Work)
            self.kept = replace(self.kept, got=(*self.kept.got, work.n))
            self.outgoing.append(
                AckEvent(operator_id="source", event_id=message.event_id, last_barrier=self.barrier)
            )
        elif isinstance(message, InjectBarrier):
            self.barrier = message.checkpoint_id
            snapshot = self.kept.snapshot(self.attempt.subtask, self.open_rows)
            self.open_rows = []
            self.outgoing.append(
                AckCheckpoint(
                    checkpoint_id=self.barrier, last_barrier=self.barrier, snapshot=snapshot
                )
            )

    def say(self) -> None:
        """The next outgoing message arrives."""
        if self.outgoing:
            job, message = self.attempt.job, self.outgoing.popleft()
            job.run(lambda: job.runtime.arrived(self.attempt.connection_id, message))

    def join(self) -> None:
        """The outgoing messages are of one frame: their acks are one."""
        messages = [(one, one) for one in self.outgoing]
        self.outgoing = deque(joined_acks(messages, lambda ack: ack))


class CountingWorld:
    """A user's coordinator that sends events, handles events and commits rows.

    Args:
        is_folded: Whether its state is a projection.
        is_overlapping: Whether checkpoints may overlap.
        log: An earlier driver's.
        restore: As in `HandDrivenJob`.
        sink: What earlier drivers have committed.
    """

    def __init__(
        self,
        *,
        is_folded: bool = False,
        is_overlapping: bool = False,
        log: MemoryLog | None = None,
        restore: str | None = None,
        sink: RowsSink | None = None,
    ) -> None:
        self.sink = sink or RowsSink()
        self.provider = CountingProvider(
            parallelism=SUBTASKS, is_folded=is_folded, is_cut_at_once=False, sink=self.sink
        )
        source = SourceSpec(
            operator_id="source", create_reader=IdleReader, coordinator=self.provider
        )
        self._configure = _overlapping if is_overlapping else _configured
        chain = Chain(source=source, operators=[])
        self.job = _driver(chain, log, restore, configure=self._configure)
        self.tasks: dict[int, CountingTask] = {}
        self.on_the_way: list[UnstoredRecord] = []

    def play(self, *steps: str) -> None:
        """See `World`."""
        _play(self, steps)

    # What may happen.

    def register(self, subtask: int) -> None:
        """A task begins."""
        attempt = self.job.register(subtask)
        accepted = attempt.accepted
        self.tasks[subtask] = CountingTask(
            attempt, kept_in(tuple(accepted.states)), accepted.restored_checkpoint
        )

    def row(self, subtask: int) -> None:
        """A row is worked on, and its event arrives."""
        self.work(subtask)
        self.say(subtask)

    def work(self, subtask: int) -> None:
        """A row is worked on; its event is on its way."""
        self.tasks[subtask].work()

    def take(self, subtask: int) -> None:
        """The task handles its next message; what it says of it is on its way."""
        self.tasks[subtask].take()

    def say(self, subtask: int) -> None:
        """The next message on its way from the task arrives."""
        self.tasks[subtask].say()

    def say_together(self, subtask: int) -> None:
        """All that is on its way from the task arrives, in one frame."""
        task = self.tasks[subtask]
        task.join()
        while task.outgoing:
            task.say()

    def answer(self, subtask: int) -> None:
        """The task handles its next message, and what it says of it arrives."""
        self.take(subtask)
        self.say(subtask)

    def make(self, subtask: int) -> None:
        """The coordinator makes an event for the subtask."""
        self._plan_event(subtask)
        self.job.advance(1.0)

    def _plan_event(self, subtask: int) -> None:
        """The coordinator makes it at its next tick."""
        self.provider.plan.append(lambda coordinator: coordinator.make(subtask))

    def cut(self) -> None:
        """The coordinator completes its part of the oldest checkpoint that waits for it.

        One whose state is a projection has done so when the checkpoint began.
        """
        if self.provider.is_folded:
            return
        self.provider.plan.append(lambda coordinator: coordinator.cut(min(coordinator.results)))
        self.job.advance(1.0)

    def trigger(self) -> None:
        """A checkpoint begins."""
        assert self.job.trigger() is not None

    def lose(self, subtask: int) -> None:
        """A task's connection breaks."""
        self.tasks.pop(subtask).attempt.lose()

    def fail(self) -> None:
        """A global failover."""
        self.tasks.clear()
        _fail_globally(self.job)

    def cut_off(self, subtask: int) -> None:
        """A task dies; only the first record of the turn that says so is stored."""
        self.job.is_held = True
        self.lose(subtask)
        self.on_the_way = _cut_off(self.job)

    def take_over(self) -> None:
        """Another driver rolls back; then what was on its way from the one before lands."""
        chain, log = self.job.chain, self.job.log
        self.tasks.clear()
        self.job = _driver(chain, log, "rollback", configure=self._configure)
        self.job.log.store(*self.on_the_way)

    # To the end.

    def finish(self) -> None:
        """See `World`."""
        self.provider.is_cut_at_once = True
        for number in range(_PASSES_MAX):
            if self.job.runtime.state.phase is Phase.FINISHED:
                return
            if self.job.runtime.state.phase is Phase.RUNNING:
                self._pass(number)
            self.job.advance(1.0)
        raise AssertionError(f"stuck: {self.job.runtime.state}")

    def _pass(self, number: int) -> None:
        for subtask in _vacant(self.job):
            self.register(subtask)
        if self.provider.made[-1].results:
            self.cut()
        if number == 1:
            self.job.trigger()
        for subtask in range(SUBTASKS):
            task = self.tasks.get(subtask)
            count = self._counts()[subtask]
            if count.made < MADE:
                self._plan_event(subtask)
            if task is None or task.attempt.is_closed:
                continue
            if task.kept.rows < ROWS:
                task.work()
            while not task.is_quiet:
                task.take()
                task.say()
            if task.kept.rows == ROWS and len(task.kept.got) == MADE:
                task.outgoing.append(
                    Complete(
                        last_barrier=task.barrier,
                        snapshot=task.kept.snapshot(subtask, task.open_rows),
                    )
                )
                task.say()

    def _counts(self) -> Any:  # noqa: ANN401, states of either kind of coordinator
        if self.provider.projection is not None:
            return self.job.runtime.state.projections["source"]
        return self.provider.made[-1].own

    def outcome(self) -> dict[str, Any]:
        """See `World`."""
        state = self.job.runtime.state
        finished = [state.subtasks[n].completion for n in range(SUBTASKS)]
        counts = () if self.job.mode == "finished" else self._counts()
        return {
            "phase": state.phase.value,
            "committed": [self.sink.of(n) for n in range(SUBTASKS)],
            "kept": [None if one is None else kept_in(one.states) for one in finished],
            "counts": [(one.handled, one.made, one.owed) for one in counts],
            "left": [len(state.intents), len(state.granted), len(state.pending)],
        }


# --- splits and commits ---------------------------------------------------------------------------


@dataclass(eq=False)
class SplitTask:
    """One attempt of a `SplitWorld`: asks for splits, reads them, writes a row for each."""

    attempt: FakeAttempt
    holds: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    open_rows: list[str] = field(default_factory=list)
    is_asking: bool = False
    told_no_more: bool = False
    read: int = 1

    @property
    def is_quiet(self) -> bool:
        """Whether all messages are handled."""
        return self.read == len(self.attempt.inbox)

    def committables(self) -> list[tuple[str, bytes]]:
        """What is handed over now: the open file is closed."""
        rows, self.open_rows = self.open_rows, []
        return [("sink", name.encode()) for name in rows]

    def states(self) -> dict[str, bytes]:
        """What is in its snapshots."""
        return {"source": json.dumps([self.holds, self.done, self.is_asking]).encode()}

    def take(self) -> None:
        """Handle the next message, if there is one, and answer it."""
        if self.is_quiet:
            return
        message = self.attempt.inbox[self.read]
        self.read += 1
        if isinstance(message, DeliverEvent):
            types = self.attempt.job.chain.payload_types
            value = types.decode(message.payload_type, message.payload)
            if isinstance(value, AddSplits):
                self.holds += [one.split_id for one in value.splits]
            self.told_no_more |= isinstance(value, NoMoreSplits)
            self.is_asking = False
            self.attempt.ack("source", message.event_id)
        elif isinstance(message, InjectBarrier):
            self.attempt.ack_checkpoint(
                message.checkpoint_id, states=self.states(), committables=self.committables()
            )


def _intent(_checkpoint_id: int, committables: Sequence[CommittableOf]) -> Payload:
    return Rows(names=[name for one in committables for name in one.content.decode().split()])


class SplitWorld:
    """The ready-made coordinators: splits are given out, and each read split is a committed row.

    Args:
        is_batch: Without checkpoints.
        is_kept: Batch: whether the chain keeps no state across splits, so that a read split stays.
        log: An earlier driver's.
        restore: As in `HandDrivenJob`.
        sink: What earlier drivers have committed.
    """

    def __init__(
        self,
        *,
        is_batch: bool = False,
        is_kept: bool = False,
        log: MemoryLog | None = None,
        restore: str | None = None,
        sink: RowsSink | None = None,
    ) -> None:
        self.is_batch, self.is_kept, self.sink = is_batch, is_kept, sink or RowsSink()
        self.tasks: dict[int, SplitTask] = {}
        self.on_the_way: list[UnstoredRecord] = []
        source = SourceSpec(
            operator_id="source",
            create_reader=IdleReader,
            coordinator=SplitCoordinatorProvider("source", discover=listing(*SPLITS)),
            keeps_state_across_splits=not is_kept,
        )
        sink_operator = OperatorSpec(
            operator_id="sink",
            create_operator=IdleOperator,
            coordinator=CommitCoordinatorProvider(
                "sink", sink=self.sink, make_intent=_intent, payload_types=[Rows]
            ),
            keeps_state_across_splits=not is_kept,
        )
        chain = Chain(source=source, operators=[sink_operator])
        self.job = _driver(chain, log, restore, is_batch=is_batch)

    def play(self, *steps: str) -> None:
        """See `World`."""
        _play(self, steps)

    # What may happen.

    def register(self, subtask: int) -> None:
        """A task begins."""
        task = SplitTask(self.job.register(subtask))
        for one in task.attempt.accepted.states:
            task.holds, task.done, task.is_asking = json.loads(one.state or b"")
        self.tasks[subtask] = task

    def ask(self, subtask: int) -> None:
        """The task wants a split, unless it has asked."""
        task = self.tasks[subtask]
        if not task.is_asking:
            task.is_asking = True
            task.attempt.send("source", RequestSplit())

    def take(self, subtask: int) -> None:
        """The task handles its next message."""
        self.tasks[subtask].take()

    def read(self, subtask: int) -> None:
        """The task reads the first split that it holds to its end."""
        task = self.tasks[subtask]
        name = task.holds.pop(0)
        task.done.append(name)
        task.open_rows.append(f"{name}/1")
        given = task.committables() if self.is_kept else []
        task.attempt.finish_split("source", name, committables=given)

    def read_together(self, subtask: int) -> None:
        """The task reads all splits that it holds, small ones, and hands their rows over in one file."""
        task = self.tasks[subtask]
        names, task.holds = task.holds, []
        task.done += names
        *before, last = [EndOfSplit(split_id=name, rows=1, bytes_read=1) for name in names]
        content = " ".join(f"{name}/1" for name in names).encode()
        finished = SplitFinished(
            split_id=last.split_id,
            rows=1,
            bytes_read=1,
            committables=[Committable(operator_id="sink", content=content)],
        )
        task.attempt.say(
            FinishSplit(
                operator_id="source",
                last_barrier=task.attempt.last_barrier,
                finished=finished,
                before=tuple(before),
            )
        )

    def complete(self, subtask: int) -> None:
        """The task ends."""
        task = self.tasks.pop(subtask)
        task.attempt.complete(states=task.states(), committables=task.committables())

    def trigger(self) -> None:
        """A checkpoint begins."""
        assert self.job.trigger() is not None

    def lose(self, subtask: int) -> None:
        """A task's connection breaks."""
        self.tasks.pop(subtask).attempt.lose()

    def fail(self) -> None:
        """A global failover."""
        self.tasks.clear()
        _fail_globally(self.job)

    def cut_off(self, subtask: int) -> None:
        """A task dies; only the first record of the turn that says so is stored."""
        self.job.is_held = True
        self.lose(subtask)
        self.on_the_way = _cut_off(self.job)

    def take_over(self) -> None:
        """Another driver goes on; then what was on its way from the one before lands."""
        self.tasks.clear()
        self.job = _driver(self.job.chain, self.job.log, None, is_batch=self.is_batch)
        self.job.log.store(*self.on_the_way)

    # To the end.

    def finish(self) -> None:
        """See `World`."""
        for number in range(_PASSES_MAX):
            if self.job.runtime.state.phase is Phase.FINISHED:
                return
            if self.job.runtime.state.phase is Phase.RUNNING:
                self._pass(number)
            self.job.advance(1.0)
        raise AssertionError(f"stuck: {self.job.runtime.state}")

    def _pass(self, number: int) -> None:
        for subtask in _vacant(self.job):
            self.register(subtask)
        if number == 1 and not self.is_batch:
            self.job.trigger()
        for subtask, task in sorted(self.tasks.items()):
            if task.attempt.is_closed:
                continue
            if not task.holds and not task.told_no_more:
                self.ask(subtask)
            while not task.is_quiet:
                task.take()
            if task.holds:
                self.read(subtask)
            elif task.told_no_more:
                self.complete(subtask)

    def outcome(self) -> dict[str, Any]:
        """See `World`."""
        state = self.job.runtime.state
        splits: SplitsState = state.projections["source"]
        ended = {name for name, one in splits.splits.items() if isinstance(one.place, Finished)}
        for number in range(SUBTASKS):
            completion = state.subtasks[number].completion
            for one in () if completion is None else completion.states:
                # After a rollback no record says again what was read between cut and barrier.
                ended.update(json.loads(one.state or b"")[1])
        return {
            "phase": state.phase.value,
            "committed": sorted(self.sink.committed),
            "ended": sorted(ended),
            "left": [len(state.intents), len(state.granted), len(state.pending)],
        }
