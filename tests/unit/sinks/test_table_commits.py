"""The coordinator of a table's sink: checkpoints with files are numbered, and no number comes twice (H1, E6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.coordinator import Sink
from coordlog.api.operator import Operator, SourceReader
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import SplitsDiscovered
from coordlog.spark_integration.files.payloads import (
    CommitToTable,
    FilesPublished,
    StagedFile,
)
from coordlog.spark_integration.files.tables.commits import TableCommitProvider
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob


@dataclass
class FakeSink(Sink):
    settled: list[CommitToTable] = field(default_factory=list)

    def settle(self, intent: Payload) -> Payload:
        assert isinstance(intent, CommitToTable)
        self.settled.append(intent)
        return FilesPublished(
            checkpoint_id=intent.checkpoint_id, file_count=len(intent.files), rows=0, size_bytes=0
        )


def never_made() -> SourceReader:
    raise AssertionError("attempts are driven by hand")


def never_made_operator() -> Operator:
    raise AssertionError("attempts are driven by hand")


def chain_of(sink: FakeSink, files_per_intent: int = 2) -> Chain:
    def discover() -> SplitsDiscovered:
        return SplitsDiscovered(splits=[], is_complete=True)

    return Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=never_made,
            coordinator=SplitCoordinatorProvider("source", discover=discover, allow_empty=True),
        ),
        operators=[
            OperatorSpec(
                operator_id="sink",
                create_operator=never_made_operator,
                coordinator=TableCommitProvider(
                    "sink",
                    sink=sink,
                    files_per_intent=files_per_intent,
                    destination="table",
                    refuse_commits_from=lambda _job_id, _number: None,
                ),
                keeps_state_across_splits=False,
            )
        ],
    )


def file(name: str) -> tuple[str, bytes]:
    staged = StagedFile(staged=f"staged {name}", final=name, size_bytes=1, checksum="", rows=1)
    return "sink", payload_type_of(StagedFile).encode(staged)


def checkpoint(job: HandDrivenJob, attempt: FakeAttempt, names: Sequence[str]) -> int:
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    attempt.ack_checkpoint(checkpoint_id, committables=[file(name) for name in names])
    job.advance(0.0)
    return checkpoint_id


def numbered(sink: FakeSink) -> list[tuple[int, int, list[str]]]:
    return [(one.number, one.part, [file.final for file in one.files]) for one in sink.settled]


@pytest.mark.clause("H1")
def test_checkpoints_with_files_are_numbered_and_their_intents_counted() -> None:
    sink = FakeSink()
    job = HandDrivenJob(chain_of(sink))
    (attempt,) = job.register_all()
    first = checkpoint(job, attempt, ["a", "b", "c"])
    checkpoint(job, attempt, [])
    last = checkpoint(job, attempt, ["d"])

    assert numbered(sink) == [(0, 0, ["a", "b"]), (0, 1, ["c"]), (1, 0, ["d"])]
    assert [one.checkpoint_id for one in sink.settled] == [first, first, last]


@pytest.mark.clause("H1")
def test_names_with_long_folders_make_more_intents_of_fewer_files() -> None:
    """The folders are those of the table, so that the job's own `partition_by` does not show how long names are."""
    sink = FakeSink()
    chain = chain_of(sink, files_per_intent=1_000)
    job = HandDrivenJob(chain)
    (attempt,) = job.register_all()
    names = [f"customer={'c' * 240}/part-{number:05}.parquet" for number in range(1_500)]
    checkpoint(job, attempt, names)

    assert [name for _, _, part in numbered(sink) for name in part] == names
    intents = [(number, part) for number, part, _ in numbered(sink)]
    assert intents == [(0, part) for part in range(len(intents))]


@pytest.mark.clause("E6")
@pytest.mark.parametrize("restore", ["rollback", "resume"])
def test_numbers_go_on_after_a_failover_and_after_a_crash_of_the_driver(restore: str) -> None:
    """A rollback restores the cut of a checkpoint, which is before the checkpoint's own intents."""
    sink = FakeSink()
    chain = chain_of(sink)
    job = HandDrivenJob(chain)
    (attempt,) = job.register_all()
    checkpoint(job, attempt, ["a"])
    checkpoint(job, attempt, ["b"])
    job.crash()
    job = HandDrivenJob(chain, log=job.log, restore=restore)
    (attempt,) = job.register_all()
    checkpoint(job, attempt, ["c"])

    assert numbered(sink) == [(0, 0, ["a"]), (1, 0, ["b"]), (2, 0, ["c"])]


@pytest.mark.clause("I3")
def test_the_end_of_a_batch_that_was_opened_again_has_a_higher_number() -> None:
    sink = FakeSink()
    chain = chain_of(sink)
    job = HandDrivenJob(chain, is_batch=True)
    (attempt,) = job.register_all()
    attempt.complete(committables=[file("a")])
    job.advance(0.0)
    assert len(job.history(Kind.JOB_FINISHED)) == 1
    job = HandDrivenJob(chain, log=job.log, is_batch=True, again=True)
    (attempt,) = job.register_all()
    attempt.complete(committables=[file("b")])
    job.advance(0.0)

    assert numbered(sink) == [(0, 0, ["a"]), (1, 0, ["b"])]
    assert {one.checkpoint_id for one in sink.settled} == {-1}
