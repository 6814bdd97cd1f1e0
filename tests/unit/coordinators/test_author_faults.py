"""Faults of an author's coordinator or enumerator that would lose a state or a split: the job fails by name."""

from __future__ import annotations

from typing import Any

import pytest

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.coordinator import CheckpointResult, OperatorCoordinator, provide
from coordlog.coordinators import EventSourcedCoordinator
from coordlog.coordinators.commits import COMMITS
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import RecordError
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import Split, SplitsDiscovered
from coordlog.testing import HandDrivenJob, silent_source
from coordlog.testing.driven_job import UnexpectedFailureError
from fakes.kernel_fakes import IdleReader


class Summing(OperatorCoordinator):
    """Keeps a state in its checkpoints, and reads it in none."""

    content = b"5"

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: object) -> None:
        raise AssertionError(event)

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(self.content)


class Empty(Summing):
    """Has no state."""

    content = b""


def job_of(
    kind: type[OperatorCoordinator], projection: OperatorProjection[Any] | None = None
) -> HandDrivenJob:
    provider = provide(kind, operator_id="source", payload_types=(), projection=projection)
    return HandDrivenJob(Chain(source=silent_source(provider), operators=[]))


@pytest.mark.clause("F2")
def test_a_coordinator_s_state_that_it_would_not_read_is_refused() -> None:
    job = job_of(Summing)
    job.register(0)
    with pytest.raises(UnexpectedFailureError, match="and has no `reset_to_checkpoint`"):
        job.trigger()


@pytest.mark.clause("F2")
def test_a_coordinator_without_a_state_needs_no_reset() -> None:
    job = job_of(Empty)
    attempt = job.register(0)
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    attempt.ack_checkpoint(checkpoint_id)
    assert job.history(Kind.CHECKPOINT_COMPLETED)


@pytest.mark.clause("F2")
def test_a_checkpoint_s_state_beside_a_projection_is_refused() -> None:
    with pytest.raises(UnexpectedFailureError, match="`checkpoint_coordinator`, which is never"):
        job_of(Summing, COMMITS)


def test_a_projection_that_raises_is_named_with_its_operator() -> None:
    def apply(state: int, record: Record, _value: object) -> int:
        if record.kind is Kind.COORDINATOR_CHECKPOINTED:
            raise ValueError("no such key")
        return state

    class Folded(EventSourcedCoordinator[int]):
        handle_event_from_operator = Summing.handle_event_from_operator

    projection = OperatorProjection(name="test.sum", version=1, initial=0, apply=apply)
    job = job_of(Folded, projection)
    job.register(0)
    with pytest.raises(
        RecordError,
        match=r"projection of operator 'source' raised ValueError: no such key; correct",
    ) as raised:
        job.trigger()
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.clause("L1")
@pytest.mark.parametrize("contents", [(b"1", b"1"), (b"1", b"2")])
def test_two_different_splits_of_one_id_are_refused(contents: tuple[bytes, ...]) -> None:
    splits = [Split(split_id="a", content=content) for content in contents]
    source = SourceSpec(
        operator_id="source",
        create_reader=IdleReader,
        coordinator=SplitCoordinatorProvider(
            "source", discover=lambda: SplitsDiscovered(splits=splits, is_complete=True)
        ),
    )
    chain = Chain(source=source, operators=[])
    if contents == (b"1", b"1"):
        HandDrivenJob(chain).register(0)  # the same one again
        return
    with pytest.raises(UnexpectedFailureError, match="two different splits with the id 'a'"):
        HandDrivenJob(chain).register(0)
