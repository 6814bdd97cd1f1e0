"""A record that counts and makes no sense is named by its offset, by every command without the job's code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.log.memory import MemoryLog
from coordlog.projections.snapshot.codec import SnapshotCodec, SnapshotUnusableError
from coordlog.projections.tables.audit import audit
from coordlog.restore.rebuild import projection_of
from coordlog.runtime.runtime import RuntimeOptions, to_unstored
from coordlog.schemas.builtin_types import CheckpointMetadata
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of
from histories.one_log import OneLog

pytestmark = pytest.mark.clause("E9")

METADATA = payload_type_of(CheckpointMetadata)


def of_nobody(record: Record) -> Record:
    """An ack of an attempt that there never was."""
    return replace(record, kind=Kind.CHECKPOINT_ACKED, subtask=77, attempt_number=3)


def retaining_nothing(record: Record) -> Record:
    """A checkpoint that completes, and says that it is not retained itself."""
    said = METADATA.decode(record.payload or b"")
    assert isinstance(said, CheckpointMetadata)
    return replace(record, payload=METADATA.encode(replace(said, oldest_retained=10**9)))


def of_too_many(record: Record) -> Record:
    """More subtasks than a job may have: each would cost memory in every fold."""
    return replace(record, attributes={**record.attributes, "parallelism": "10001"})


def of_less_than_none(record: Record) -> Record:
    """A job with a negative number of subtasks."""
    return replace(record, attributes={**record.attributes, "parallelism": "-1"})


def without_content(record: Record) -> Record:
    """A record with a damaged content."""
    return replace(record, payload=b"\xff")


def log_with(
    harm: Callable[[Record], Record], kind: Kind = Kind.CHECKPOINT_COMPLETED
) -> tuple[MemoryLog, int]:
    """A history, and the offset of its last record of this kind, which `harm` has replaced."""
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)), options=RuntimeOptions(snapshot_every=7)
    )
    for n in range(4):
        attempt = job.register(0)  # a newer one each time: offsets and sequences differ
        attempt.send("source", Up(n=n))
        checkpoint_id = job.trigger()
        attempt.ack_checkpoint(checkpoint_id or 0, states={"source": b"state"})
        job.crash()
        job = HandDrivenJob(
            job.chain, log=job.log, clock=job.clock, options=RuntimeOptions(snapshot_every=7)
        )
    records = [one.record() for one in job.log.records]
    last = max(n for n, one in enumerate(records) if one.kind is kind)
    harmed, log = harm(records[last]), MemoryLog()
    written = [*records[:last], harmed, *records[last + 1 :]]
    log.writer().append([to_unstored(one) for one in written], timeout_s=1)
    assert last != records[last].sequence or kind is Kind.EPOCH_STARTED
    return log, last


@pytest.mark.parametrize("harm", [of_nobody, retaining_nothing])
@pytest.mark.parametrize(
    "command", [("prune",), ("checkpoint",), ("checkpoint", "--show", "4"), ("verify",), ("state",)]
)
def test_a_record_that_makes_no_sense_is_named_by_its_offset(
    command: tuple[str, ...],
    harm: Callable[[Record], Record],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    log, offset = log_with(harm)
    done = CliRunner().invoke(main, (*command, "job"), obj=lambda _servers: OneLog(log, "job"))

    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    if harm is retaining_nothing and command[0] != "verify" and "--show" not in command:
        assert done.exit_code in {Exit.DONE, Exit.FAILED, Exit.USAGE}, done.output
        return  # it can be applied: the job has no checkpoint to go back to
    assert done.exit_code != 0
    assert str(offset) in done.output, done.output


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        (Kind.EPOCH_STARTED, of_too_many),
        (Kind.EPOCH_STARTED, of_less_than_none),
        (Kind.CHECKPOINT_TRIGGERED, without_content),
    ],
)
def test_commands_that_judge_a_job_name_a_harmed_record(
    kind: Kind, harm: Callable[[Record], Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`jobs` names it in the row of its job: one harmed log hides no other job."""
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    log, offset = log_with(harm, kind)
    for command in (
        ("health", "job"),
        ("tail", "job", "--no-follow", "-n", "999"),
        ("verify", "job"),
        ("jobs",),
    ):
        done = CliRunner().invoke(main, command, obj=lambda _servers: OneLog(log, "job"))

        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert f"offset {offset}" in done.output, done.output


def test_a_checkpoint_that_completes_twice_is_no_endless_way_in_a_table() -> None:
    """It would be before itself; the job then goes back to it."""
    log, _ = log_with(
        lambda record: replace(record, kind=Kind.CHECKPOINT_COMPLETED), Kind.BARRIER_INJECTED
    )

    rows = audit(log.records).checkpoints

    assert [row.checkpoint_id for row in rows] == [1, 2, 3, 4]


def test_a_snapshot_of_too_many_subtasks_is_unusable() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)))
    codec = SnapshotCodec(projection_of(job.chain))
    taken = codec.encode(evolve(job.runtime.state, parallelism=10_001))
    with pytest.raises(SnapshotUnusableError, match="10001 subtasks; a job has at most 10000"):
        codec.decode(taken)
