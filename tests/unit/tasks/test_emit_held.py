"""An operator that holds rows between batches keeps the reader from being polled (clause M8)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain, OperatorSpec
from coordlog.api.operator import Operator, PollStatus, Snapshot, Waiting
from coordlog.messages import InjectBarrier
from coordlog.task.attempt import StepStatus
from coordlog.testing import HandDrivenJob, RealAttempt, silent_source

pytestmark = pytest.mark.clause("M8")


class Gate(Operator):
    """Holds all rows while it is shut."""

    def __init__(self) -> None:
        self.is_shut = False
        self.held: list[pa.RecordBatch] = []
        self.snapshots: list[int] = []

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self.is_shut:
            self.held.append(batch)
        else:
            yield batch

    def emit_held(self) -> Iterator[pa.RecordBatch | Waiting]:
        if self.is_shut:
            yield PollStatus.WAITING
            return
        held, self.held = self.held, []
        yield from held

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        self.snapshots.append(checkpoint_id)
        return Snapshot()


class Latch(Gate):
    """Waits only while it is shut and holds rows."""

    def emit_held(self) -> Iterator[pa.RecordBatch | Waiting]:
        return super().emit_held() if self.held else iter(())


class Last(Operator):
    """Emits its rows when it finishes."""

    def __init__(self) -> None:
        self.rows: list[pa.RecordBatch] = []

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self.rows.append(batch)
        return ()

    def finish(self) -> Iterable[pa.RecordBatch]:
        return self.rows


class Collect(Operator):
    """Keeps the rows that reach it."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self.rows += batch.column("n").to_pylist()
        return ()


def batch(*rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(rows)})


def opened(*gate_ids: str, gate: type[Gate] = Gate) -> tuple[RealAttempt, list[Gate], Collect]:
    links = [OperatorSpec(operator_id=name, create_operator=gate) for name in gate_ids]
    last = OperatorSpec(operator_id="last", create_operator=Collect)
    job = HandDrivenJob(Chain(source=silent_source(), operators=[*links, last]))
    attempt = RealAttempt(job, 0)
    gates, collect = [attempt.operator(name) for name in gate_ids], attempt.operator("last")
    assert isinstance(collect, Collect)
    return attempt, [gate for gate in gates if isinstance(gate, Gate)], collect


def test_the_reader_is_not_polled_while_an_operator_waits() -> None:
    attempt, (gate,), collect = opened("gate")
    attempt.read(batch(1))
    gate.is_shut = True

    attempt.read(batch(2))
    assert attempt.step().status is StepStatus.WAITING
    assert (gate.held, collect.rows) == ([], [1]), "the batch is with the reader"

    gate.is_shut = False
    assert attempt.step().status is StepStatus.BATCH
    assert collect.rows == [1, 2]


def test_held_rows_precede_those_of_the_next_batch() -> None:
    attempt, (gate,), collect = opened("gate")
    gate.is_shut = True
    gate.held.append(batch(1))
    attempt.read(batch(2))

    gate.is_shut = False
    attempt.step()

    assert collect.rows == [1, 2]


def test_barriers_pass_an_attempt_whose_operator_waits() -> None:
    attempt, (gate,), _ = opened("gate")
    gate.is_shut = True
    attempt.step()

    attempt.runner.handle(InjectBarrier(checkpoint_id=3))

    assert gate.snapshots == [3]


def test_no_rows_reach_an_operator_that_waits() -> None:
    attempt, (first, second), collect = opened("first", "second")
    second.is_shut = True
    first.held.append(batch(1))

    assert attempt.step().status is StepStatus.WAITING
    assert (len(first.held), second.held) == (1, [])

    second.is_shut = False
    attempt.step()
    assert collect.rows == [1]


def test_no_operator_finishes_while_one_waits() -> None:
    attempt, (gate,), collect = opened("gate")
    gate.is_shut = True
    gate.held.append(batch(1))

    assert attempt.end().status is StepStatus.WAITING
    assert not attempt.is_completed

    gate.is_shut = False
    assert attempt.end().status is StepStatus.COMPLETED
    assert collect.rows == [1]


def test_an_operator_that_holds_rows_of_another_is_asked_again() -> None:
    attempt, (first, second), collect = opened("first", "second", gate=Latch)
    first.held.append(batch(1))
    second.is_shut = True

    assert attempt.end().status is StepStatus.WAITING
    assert (len(second.held), attempt.is_completed) == (1, False)

    second.is_shut = False
    assert attempt.end().status is StepStatus.COMPLETED
    assert collect.rows == [1]


def test_no_operator_finishes_while_it_holds_rows_of_a_finish() -> None:
    links = [
        OperatorSpec(operator_id="ends", create_operator=Last),
        OperatorSpec(operator_id="gate", create_operator=Latch),
        OperatorSpec(operator_id="last", create_operator=Collect),
    ]
    attempt = RealAttempt(HandDrivenJob(Chain(source=silent_source(), operators=links)), 0)
    gate, collect = attempt.operator("gate"), attempt.operator("last")
    assert isinstance(gate, Gate)
    assert isinstance(collect, Collect)
    attempt.read(batch(1))
    gate.is_shut = True

    assert [attempt.end().status for _ in range(2)] == [StepStatus.WAITING] * 2
    assert (len(gate.held), collect.rows) == (1, [])

    gate.is_shut = False
    assert attempt.step().status is StepStatus.COMPLETED, "no event is needed"
    assert collect.rows == [1]
