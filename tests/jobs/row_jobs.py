"""Jobs in memory whose subtasks read numbered rows through an operator under test, and keep what comes out.

The chain is: a source by hand, `read` (its state is the number of rows read), the operator, `kept` (its state is the
rows that have come out, each with the last barrier before it). An attempt that is restored reads on from `read`, so
that the rows in `kept` at the end are those of the surviving history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from coordlog.api.chain import Chain, OperatorSpec
from coordlog.api.operator import Operator, OperatorContext, Snapshot
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration.transform import transform_spec
from coordlog.testing import FakeAttempt, HandDrivenJob, RealAttempt, RowsReader, silent_source

__all__ = [
    "Keeper",
    "Subtask",
    "checkpoint",
    "keep",
    "kept_rows",
    "log_with_a_finished_subtask",
    "register",
    "run_out",
    "settle",
    "states_at",
]


class ReadCounter(Operator):
    """Counts the rows that were read."""

    count = 0

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.count = int(state or 0)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self.count += batch.num_rows
        yield batch

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        return Snapshot(state=str(self.count).encode())

    def final_snapshot(self) -> Snapshot:
        return self.snapshot_state(-1)


class Keeper(Operator):
    """Keeps the rows that come out."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.rows: list[dict[str, int]] = [] if state is None else json.loads(state)
        self._barrier = context.restored_checkpoint

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self.rows += [{**row, "barrier": self._barrier} for row in batch.to_pylist()]
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        self._barrier = checkpoint_id
        return self.final_snapshot()

    def final_snapshot(self) -> Snapshot:
        return Snapshot(state=json.dumps(self.rows).encode())


def join_rows(states: Sequence[bytes]) -> bytes:
    return json.dumps([row for state in states for row in json.loads(state)]).encode()


def add_up(states: Sequence[bytes]) -> bytes:
    return str(sum(int(state) for state in states)).encode()


def keep(*operators: OperatorSpec) -> Chain:
    """The chain around operators."""
    read = OperatorSpec(operator_id="read", create_operator=ReadCounter, merge_states=add_up)
    kept = OperatorSpec(operator_id="kept", create_operator=Keeper, merge_states=join_rows)
    return Chain(source=silent_source(), operators=[read, *operators, kept])


@dataclass(eq=False)
class Subtask:
    """One subtask with a real attempt, and the rows of its input."""

    job: HandDrivenJob
    number: int
    inputs: Sequence[int]

    def __post_init__(self) -> None:
        self.real = RealAttempt(self.job, self.number)

    @property
    def attempt(self) -> FakeAttempt:
        return self.real.attempt

    @property
    def keeper(self) -> Keeper:
        operator = self.real.operator("kept")
        assert isinstance(operator, Keeper)
        return operator

    @property
    def read_count(self) -> int:
        counter = self.real.operator("read")
        assert isinstance(counter, ReadCounter)
        return counter.count

    def step(self, count: int = 2) -> None:
        """Read the next rows, or try again to read those that wait; at the end of the input, finish."""
        self.real.take()
        if self.real.is_completed or self.attempt.is_closed:
            return
        reader = self.real.runner.link("source")
        assert isinstance(reader, RowsReader)
        rows = self.inputs[self.read_count : self.read_count + count]
        if reader.batches:
            self.real.step()
        elif rows:
            self.real.read(pa.RecordBatch.from_pydict({"n": list(rows)}))
        else:
            self.real.end()
        self.real.take()

    def fail(self) -> None:
        self.attempt.fail()


def register(job: HandDrivenJob, inputs: Sequence[Sequence[int]]) -> list[Subtask]:
    """A real attempt for each unfinished subtask."""
    subtasks = job.runtime.state.subtasks
    unfinished = [
        number
        for number in range(job.runtime.state.parallelism)
        if subtasks[number].completion is None
    ]
    return [Subtask(job, number, inputs[number]) for number in unfinished]


def settle(subtasks: Sequence[Subtask]) -> None:
    """Handle messages until none is left."""
    while any(one.real.take() for one in subtasks if not one.attempt.is_closed):
        pass


def checkpoint(job: HandDrivenJob, subtasks: Sequence[Subtask]) -> int | None:
    """Trigger a checkpoint, and pass its barriers; returns its id, or None if none could begin."""
    settle(subtasks)
    check_codecs(job)
    checkpoint_id = job.trigger()
    settle(subtasks)
    return checkpoint_id


def check_codecs(job: HandDrivenJob) -> None:
    """The state of each coordinator is the same after a snapshot of the job."""
    for provider in job.chain.coordinators:
        codec = None if provider.projection is None else provider.projection.own_codec
        assert codec is not None, "without a codec the job would have no snapshots"
        state = job.runtime.state.projections[provider.operator_id]
        assert codec.decode(codec.encode(state)) == state


def run_out(
    job: HandDrivenJob, subtasks: Sequence[Subtask], *, rows: int = 2, steps_max: int = 60
) -> None:
    """Read to the end, with a checkpoint now and then; then complete the job."""
    for number in range(steps_max):
        if all(one.real.is_completed for one in subtasks):
            break
        for one in subtasks:
            one.step(rows)
        if number % 3 == 2:
            checkpoint(job, subtasks)
        job.advance(1.0)
    assert all(one.real.is_completed for one in subtasks), "the rows come to an end"
    checkpoint(job, subtasks)
    if job.stage.submitted:
        job.stage_ends()
    job.advance(1.0)


def states_at(job: HandDrivenJob, operator_id: str) -> list[bytes]:
    """Last states of an operator, by subtask, once all subtasks have finished."""
    completions = [subtask.completion for _, subtask in sorted(job.runtime.state.subtasks.items())]
    assert all(completions), "all subtasks have finished"
    return [
        part.state
        for completion in completions
        if completion is not None
        for part in completion.states
        if part.operator_id == operator_id and part.state is not None
    ]


def kept_rows(job: HandDrivenJob) -> list[dict[str, int]]:
    """The rows that have come out of a finished job."""
    return [row for state in states_at(job, "kept") for row in json.loads(state)]


def log_with_a_finished_subtask(rows: Sequence[int]) -> MemoryLog:
    """Log of a job without an operator under test, of two subtasks: 0 has finished, and 1 begins to read `rows`."""
    job = HandDrivenJob(keep(transform_spec(lambda batch: batch)), parallelism=2)
    subtasks = register(job, [[], rows])
    settle(subtasks)
    for subtask in subtasks:
        subtask.step()
    checkpoint(job, subtasks)
    assert subtasks[0].real.is_completed
    job.crash()
    return job.log
