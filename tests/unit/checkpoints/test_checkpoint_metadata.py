"""What the metadata of a checkpoint hold, and what becomes of those that are too large."""

from __future__ import annotations

import itertools
from typing import cast

import pytest

from coordlog.kernel import checkpoints
from coordlog.limits import RECORD_BYTES_MAX
from coordlog.log import memory
from coordlog.schemas.builtin_types import CheckpointMetadata
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import NotingProvider, chain_of, inside


def metadata_of(job: HandDrivenJob, record: Record) -> CheckpointMetadata:
    found = job.chain.payload_types.decode(record.payload_type or "", record.payload)
    return cast("CheckpointMetadata", found)


@pytest.mark.clause("F11")
def test_the_metadata_of_a_checkpoint_name_the_subtasks_that_had_finished() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=3)
    first, second, third = job.register_all()
    second.complete()
    number = job.trigger()
    assert number is not None
    for one in (first, third):
        one.ack_checkpoint(number)

    (record,) = job.history(Kind.CHECKPOINT_COMPLETED)
    metadata = metadata_of(job, record)
    assert [one.subtask for one in metadata.finished] == [1]
    assert [one.subtask for one in metadata.subtasks] == [0, 2]


@pytest.mark.clause("F11")
def test_the_metadata_of_a_checkpoint_hold_every_state() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, second = job.register_all()
    second.complete(states={"source": b"end"})
    job.trigger()
    first.ack_checkpoint(1, states={"source": b"one"})

    metadata = metadata_of(job, job.history(Kind.CHECKPOINT_COMPLETED)[0])
    assert metadata.metadata_version == 3
    assert [one.state for one in metadata.coordinators] == [b"state of 1"]
    assert [[each.state for each in one.states] for one in metadata.subtasks] == [[b"one"]]
    assert [[each.state for each in one.states] for one in metadata.finished] == [[b"end"]]


@pytest.mark.clause("K6")
def test_metadata_that_are_too_large_leave_out_all_states_and_nothing_else() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=3)
    first, second, third = job.register_all()
    third.complete(states={"source": b"end"})
    for number, size in ((1, 1), (2, RECORD_BYTES_MAX // 2)):
        job.trigger()
        for one in (first, second):
            one.ack_checkpoint(number, states={"source": b"x" * size})

    _, record = job.history(Kind.CHECKPOINT_COMPLETED)
    assert dict(record.attributes) == {"states": "in the records of its cuts and acks"}
    metadata = metadata_of(job, record)
    assert [one.state for one in metadata.coordinators] == [None]
    assert [one.states for one in metadata.subtasks] == [[], []]
    assert [one.states for one in metadata.finished] == [[]]
    assert metadata.oldest_retained == 1


@pytest.mark.clause("K6")
@pytest.mark.parametrize("more", [0, 1])
def test_metadata_of_just_the_size_that_is_allowed_hold_the_states(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(memory, "_topic_ids", itertools.repeat(0))  # ids of one length

    def completed(size: int) -> Record:
        job = HandDrivenJob(chain_of(NotingProvider()))
        attempt = job.register(0)
        job.trigger()
        attempt.ack_checkpoint(1, states={"source": b"x" * size})
        return job.history(Kind.CHECKPOINT_COMPLETED)[0]

    size = RECORD_BYTES_MAX - 1000
    size += RECORD_BYTES_MAX - len(completed(size).payload or b"")
    record = completed(size + more)
    assert ("states" in record.attributes) == bool(more)


@pytest.mark.clause("K6")
def test_metadata_too_large_even_without_states_abort_their_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(limit: int) -> Record:
        provider = NotingProvider(is_cut_at_once=False)
        job = HandDrivenJob(chain_of(provider))
        attempt = job.register(0)
        job.trigger()
        inside(attempt, provider, lambda coordinator: coordinator.results[1].complete(b"x" * 500))
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "RECORD_BYTES_MAX", limit)
            attempt.ack_checkpoint(1)
        (record,) = job.history(Kind.CHECKPOINT_COMPLETED, Kind.CHECKPOINT_ABORTED)
        return record

    with_states = len(ended(RECORD_BYTES_MAX).payload or b"")
    without = len(ended(with_states - 1).payload or b"")
    assert without < with_states - 500
    assert ended(without).kind is Kind.CHECKPOINT_COMPLETED
    aborted = ended(without - 1)
    assert aborted.kind is Kind.CHECKPOINT_ABORTED
    assert str(aborted.reason).startswith(f"its metadata is {without} bytes;"), aborted.reason
