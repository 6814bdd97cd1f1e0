"""Faults of an author's reader or operator that would lose rows: each fails its attempt, with the next step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.operator import (
    FinishedSplit,
    Operator,
    OperatorContext,
    Poll,
    PollStatus,
    SkippedSplit,
    Snapshot,
    SourceReader,
)
from coordlog.coordinators.commits import CommitCoordinatorProvider
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import UsageError
from coordlog.schemas.source_types import RequestSplit, Split, SplitsDiscovered
from coordlog.spark_integration.task.task import TaskChain
from coordlog.testing import HandDrivenJob, RealAttempt, silent_source
from fakes.kernel_fakes import FakeSink, Intent, Outcome

ROWS = pa.record_batch({"value": [1, 2]})
FINISHED = FinishedSplit(split_id="a", rows=2, bytes_read=0)
SKIPPED = SkippedSplit(split_id="a", rows=0, reason="unreadable")


class Scripted(SourceReader):
    """Gives its polls once it has a split."""

    def __init__(self, *polls: Poll) -> None:
        self.polls, self.is_reading = list(polls), False

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.context, self.is_reading = context, bool(state)

    def start(self) -> None:
        self.context.send_event(RequestSplit())

    def add_splits(self, splits: Sequence[bytes]) -> None:
        self.is_reading = True

    def poll(self) -> Poll:
        return self.polls.pop(0) if self.is_reading else Poll(status=PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return b"reading"


class Forgetful(Scripted):
    """Its `snapshot_state` lacks the `return`."""

    def snapshot_state(self, checkpoint_id: int) -> Any:  # noqa: ANN401, wrong on purpose
        return None


class Dropping(Operator):
    """Takes rows to nowhere."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        return ()


def job_of(reader: SourceReader) -> HandDrivenJob:
    """A job of one split, `a`, which this reader reads."""
    splits = [Split(split_id="a", content=b"a")]
    source = SourceSpec(
        operator_id="source",
        create_reader=lambda: reader,
        coordinator=SplitCoordinatorProvider(
            "source", discover=lambda: SplitsDiscovered(splits=splits, is_complete=True)
        ),
    )
    operators = [OperatorSpec(operator_id="last", create_operator=Dropping)]
    return HandDrivenJob(Chain(source=source, operators=operators))


def reading(reader: SourceReader) -> RealAttempt:
    """An attempt of this reader that has got the split."""
    attempt = RealAttempt(job_of(reader), 0)
    attempt.take()
    return attempt


@pytest.mark.clause("M6")
@pytest.mark.parametrize(
    ("poll", "part"),
    [
        (Poll(status=PollStatus.SPLIT_FINISHED, finished=FINISHED, batch=ROWS), "batch"),
        (Poll(status=PollStatus.SPLIT_SKIPPED, skipped=SKIPPED, rejects=ROWS), "rejects"),
        (Poll(status=PollStatus.BATCH, batch=ROWS, finished=FINISHED), "finished"),
        (Poll(status=PollStatus.WAITING, batch=ROWS), "batch"),
        (Poll(status=PollStatus.END, skipped=SKIPPED), "skipped"),
    ],
)
def test_a_part_of_a_poll_that_would_be_dropped_is_refused(poll: Poll, part: str) -> None:
    attempt = reading(Scripted(poll))
    with pytest.raises(
        UsageError, match=f"{poll.status.name} with `{part}`, which would be dropped"
    ):
        attempt.step()


TABLE: Any = pa.table({"value": [1, 2]})


@pytest.mark.clause("M3")
@pytest.mark.parametrize(
    ("poll", "problem"),
    [
        (None, "returned a NoneType; it must return a `Poll`"),
        (ROWS, "returned a RecordBatch; it must return a `Poll`"),
        (
            Poll(status=PollStatus.BATCH, batch=TABLE),
            "a Table as `batch`; it must be a RecordBatch",
        ),
        (Poll(status=PollStatus.BATCH, batch=ROWS, rejects=TABLE), "a Table as `rejects`"),
        (
            Poll(status=PollStatus.SPLIT_FINISHED, finished=cast("Any", "a")),
            "SPLIT_FINISHED with a str as `finished`; it must be a FinishedSplit",
        ),
    ],
)
def test_a_poll_of_another_type_is_an_error_of_poll(poll: Any, problem: str) -> None:  # noqa: ANN401, wrong on purpose
    attempt = reading(Scripted(poll))
    with pytest.raises(UsageError, match=problem):
        attempt.step()


@pytest.mark.clause("M6")
def test_the_end_is_refused_while_an_added_split_has_not_ended() -> None:
    other = FinishedSplit(split_id="split-a", rows=2, bytes_read=0)
    polls = [
        Poll(status=PollStatus.BATCH, batch=ROWS),
        Poll(status=PollStatus.SPLIT_FINISHED, finished=other),
        Poll(status=PollStatus.END),
    ]
    attempt = reading(Scripted(*polls))
    attempt.step()
    attempt.step()
    with pytest.raises(UsageError, match="returned END, and split 'a', which was added, has not"):
        attempt.step()


@pytest.mark.clause("M6")
@pytest.mark.parametrize("is_skipped", [False, True])
def test_the_end_is_allowed_once_each_added_split_has_ended(is_skipped: bool) -> None:  # noqa: FBT001, a parameter of a test
    end = Poll(status=PollStatus.SPLIT_FINISHED, finished=FINISHED)
    if is_skipped:
        end = Poll(status=PollStatus.SPLIT_SKIPPED, skipped=SKIPPED)
    attempt = reading(Scripted(end, Poll(status=PollStatus.END)))
    attempt.step()
    attempt.step()
    assert attempt.is_completed


def test_a_reader_without_a_state_at_a_barrier_fails_its_attempt() -> None:
    job = job_of(Forgetful())
    attempt = RealAttempt(job, 0)
    job.trigger()
    with pytest.raises(UsageError, match="its state is NoneType, not bytes"):
        attempt.take()


class WithState(Dropping):
    """Has a state that no attempt reads."""

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        return Snapshot(state=b"a sum")


def test_a_state_of_an_operator_without_open_is_refused() -> None:
    spec = OperatorSpec(operator_id="last", create_operator=WithState)
    job = HandDrivenJob(Chain(source=silent_source(), operators=[spec]))
    attempt = RealAttempt(job, 0)
    job.trigger()
    with pytest.raises(UsageError, match="WithState has a state and no `open`"):
        attempt.take()


def handed(_self: Operator, _at: object = None) -> Snapshot:
    return Snapshot(committables=[b"rows"])


@pytest.mark.clause("I3")
@pytest.mark.parametrize(
    ("calls", "is_batch", "keeps_state", "missing"),
    [
        ({"snapshot_state"}, False, True, "final_snapshot"),
        ({"final_snapshot"}, False, True, "snapshot_state"),
        ({"snapshot_state"}, True, True, "final_snapshot"),
        ({"snapshot_state", "final_snapshot"}, True, False, "end_of_split"),
        ({"end_of_split"}, False, False, "snapshot_state"),
        ({"snapshot_state", "final_snapshot"}, False, True, None),
        ({"final_snapshot"}, True, True, None),
        ({"end_of_split"}, True, False, None),
        (set[str](), False, True, None),
    ],
)
def test_an_operator_with_a_sink_hands_over_at_each_end_of_rows(
    calls: set[str],
    is_batch: bool,  # noqa: FBT001, a parameter of a test
    keeps_state: bool,  # noqa: FBT001, a parameter of a test
    missing: str | None,
) -> None:
    kind = type("Writer", (Dropping,), dict.fromkeys(calls, handed))
    spec = OperatorSpec(
        operator_id="sink",
        create_operator=kind,
        coordinator=CommitCoordinatorProvider(
            "sink",
            sink=FakeSink(),
            make_intent=lambda _id, _of: Intent(names=[]),
            payload_types=[Intent, Outcome],
        ),
        keeps_state_across_splits=keeps_state,
    )
    chain = Chain(source=silent_source(), operators=[spec])
    (in_task,) = TaskChain.of(chain).chain().operators
    assert in_task.coordinator is not None
    assert in_task.coordinator.sink is not None, "the task has to know"
    job = HandDrivenJob(chain, is_batch=is_batch)
    if missing is None:
        RealAttempt(job, 0)
        return
    with pytest.raises(UsageError, match=f"Writer has a sink and no `{missing}`"):
        RealAttempt(job, 0)
