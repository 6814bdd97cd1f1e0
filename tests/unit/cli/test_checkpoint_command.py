"""`coordlog checkpoint` on logs in memory, and checkpoint metadata of each version (clauses E5, E6, E9)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import CommandError, RecordError
from coordlog.export import write_exported
from coordlog.log.interface import StoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.offline.fork import find_fork_point
from coordlog.projections.inspection.verify import verify
from coordlog.runtime.runtime import RuntimeOptions, to_unstored
from coordlog.schemas.builtin_types import CheckpointMetadata, CheckpointMetadataV1
from coordlog.schemas.checkpoint_metadata import read_metadata
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, FakeSink, NotingProvider, Up, chain_of
from histories.one_log import OneLog, checkpoint_command, savepoint_command, shown

GOLDEN = Path(__file__).parents[2] / "golden"


def checkpointed(count: int, **provider: Any) -> HandDrivenJob:  # noqa: ANN401, of a test
    """A live driver of two subtasks, after so many checkpoints; each has one event in flight."""
    job = HandDrivenJob(chain_of(NotingProvider(**provider)), parallelism=2)
    attempts = job.register_all()
    for _ in range(count):
        number = job.trigger()
        assert number is not None
        attempts[0].send("source", Up(n=number))
        for one in attempts:
            made = [("source", b"rows")] if job.chain.coordinators[0].sink is not None else []
            one.ack_checkpoint(number, states={"source": b"12345"}, committables=made)
    return job


@pytest.mark.parametrize("options", [(), ("--json",), ("--show", "2")], ids=str)
def test_a_file_is_read_as_the_log_is(options: tuple[str, ...], tmp_path: Path) -> None:
    log, path = checkpointed(3).log, tmp_path / "job.avro"
    write_exported(log, "job", path)
    from_file = CliRunner().invoke(main, ("checkpoint", str(path), *options))

    assert from_file.exit_code == Exit.DONE, from_file.output
    assert from_file.stdout == shown(log, *options) != ""


def test_the_list_says_when_where_and_which_the_job_can_go_back_to() -> None:
    job = checkpointed(5)
    out = shown(job.log)
    rows = {line.split()[0]: line.rstrip() for line in out.splitlines()[1:6]}

    assert [n for n in rows if "no: not retained" in rows[n]] == ["1", "2"]
    assert [n for n in rows if rows[n].endswith(" yes")] == ["3", "4"]
    assert rows["5"].endswith("yes: the job continues from it")
    offsets = [
        one.offset
        for one in job.log.read(0, job.log.high_watermark())
        if one.record().kind is Kind.CHECKPOINT_COMPLETED
    ]
    assert [int(one.split()[1]) for one in rows.values()] == offsets
    assert "1970-01-12T13:46:40" in rows["1"]
    assert "5 completed; the job can go back to 3 of them." in out


@pytest.mark.clause("E6")
def test_the_list_says_what_has_been_committed_and_where() -> None:
    provider: dict[str, Any] = {"sink": FakeSink()}
    rows = [
        json.loads(line) for line in shown(checkpointed(3, **provider).log, "--json").splitlines()
    ]

    assert [one["why_not"] for one in rows] == [
        "only writing elsewhere: 'source' commits checkpoint 3",
        "only writing elsewhere: 'source' commits checkpoint 3",
        None,
    ]
    assert [one["is_last"] for one in rows] == [False, False, True]


def test_a_checkpoint_is_shown_with_version_sizes_and_operator_states() -> None:
    out = shown(checkpointed(2).log, "--show", "1")

    assert "metadata version 3, " in out
    assert "parallelism 2" in out
    assert "events in flight: 1" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("source")]
    assert row[2:] == ["10", "bytes", "2", "10", "1"]

    folded = shown(checkpointed(1, projection=HANDLED).log, "--show", "1")
    assert "folded there" in folded
    as_json = json.loads(shown(checkpointed(1).log, "--show", "1", "--json"))
    assert as_json["parts"][0]["subtask_bytes"] == [[0, 5], [1, 5]]


def test_a_checkpoint_that_has_not_completed_is_named_with_those_that_have() -> None:
    result = checkpoint_command(checkpointed(2).log, "--show", "7")

    assert result.exit_code == Exit.USAGE
    assert "checkpoint is 7; it must be one that has completed in this log: 1, 2" in result.stderr


def test_a_checkpoint_with_a_pruned_record_is_shown_from_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)), options=RuntimeOptions(snapshot_every=6)
    )
    attempt = job.register(0)
    for n in range(8):
        attempt.send("source", Up(n=n))
        assert job.trigger() == n + 1
        attempt.ack_checkpoint(n + 1, states={"source": b"12345"})
        if n == 1:
            job.crash()
            kept = savepoint_command(job.log, "before-upgrade", "--checkpoint", "2", "--take-over")
            assert kept.exit_code == Exit.DONE, kept.output
            job = HandDrivenJob(
                chain_of(NotingProvider(projection=HANDLED)),
                log=job.log,
                options=RuntimeOptions(snapshot_every=6),
            )
            attempt = job.register(0)
    job.crash()
    log = job.log
    before = {one["checkpoint_id"]: one for one in _rows(log)}
    pruned = CliRunner().invoke(main, ["prune", "job", "--yes"], obj=lambda _servers: OneLog(log))
    assert pruned.exit_code == Exit.DONE, pruned.output
    assert (
        "no other job can be begun (coordlog fork) from a checkpoint of job job, of its "
        "savepoints 'before-upgrade' (2)" in pruned.stderr
    )
    start = log.start_offset()

    after = {one["checkpoint_id"]: one for one in _rows(log)}
    assert {n for n, one in before.items() if one["why_not"] is None} == set(after)
    of_the_record = {"offset", "epoch", "completed_at", "triggered_at", "log_start"}
    assert all(after[2][one] == before[2][one] for one in set(before[2]) - of_the_record)
    assert all(after[2][one] is None for one in of_the_record - {"log_start"})
    assert (after[2]["offset"], after[2]["savepoints"]) == (None, ["before-upgrade"])
    assert before[2]["offset"] < start
    assert after[8]["offset"] == before[8]["offset"]
    assert after[8]["completed_at"] == before[8]["completed_at"]
    table = shown(log)
    (line,) = [one for one in table.splitlines() if "before-upgrade" in one]
    assert line.split()[:3] == ["2", "before", str(start)]
    assert line.rstrip().endswith(" yes")
    assert "no other job can be begun from a pruned log" in table

    out = shown(log, "--show", "2")
    assert f"its record was pruned, the log begins at offset {start}" in out
    assert "the following is from the state" in out
    (row,) = [one.split() for one in out.splitlines() if one.startswith("source")]
    assert row[-3:] == ["1", "5", "0"]
    as_json = json.loads(shown(log, "--show", "2", "--json"))
    assert (as_json["offset"], as_json["metadata"], as_json["log_start"]) == (None, None, start)
    with pytest.raises(
        CommandError,
        match="job job itself can go back to the checkpoints that `coordlog checkpoint",
    ):
        find_fork_point(log, "job", "before-upgrade")
    gone = checkpoint_command(log, "--show", "1")
    assert f"in this log: {', '.join(map(str, after))}" in gone.stderr


def _rows(log: MemoryLog) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown(log, "--json").splitlines()]


# --- metadata of each version -----------------------------------------------------------------------------------------
def golden(version: int) -> dict[str, Any]:
    path = GOLDEN / f"checkpoint-metadata-v{version}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.clause("E9")
@pytest.mark.parametrize("version", [1, 2, 3])
def test_metadata_of_each_released_version_is_read(version: int) -> None:
    kept = golden(version)
    read = read_metadata(kept["payload_type"], bytes.fromhex(kept["payload"]))

    assert read.version == version
    value = read.value
    assert (value.job_id, value.checkpoint_id, value.epoch, value.parallelism) == (
        "ingest",
        7,
        1,
        2,
    )
    assert (value.triggered_sequence, value.oldest_retained) == (200, 5)
    assert [(one.subtask, one.attempt_number) for one in value.subtasks] == [(0, 3)]
    assert value.subtasks[0].states[0].state == b"position 12"
    assert value.finished[0].subtask == 1
    told = [(one.operator_id, one.sequence, one.state) for one in value.coordinators]
    assert told == ([("sink", 201, b""), ("source", 202, None)] if version > 1 else [])
    assert value.in_flight_events == ([205] if version > 1 else [])
    schemas = [(one.payload_type, one.fingerprint) for one in value.schemas]
    assert schemas == ([("coordlog.add_splits@1", "d4cd11dce5542ad1")] if version == 3 else [])
    assert value.state_sha256 == (bytes(range(32)) if version == 3 else bytes(32))


class OfVersion1(MemoryLog):
    """A log in which each completed checkpoint says what version 1 said."""

    def __init__(self, log: MemoryLog, version: int) -> None:
        super().__init__(log.identity.name)
        for one in log.read(0, log.high_watermark()):
            self.store(to_unstored(_as_written_by(_record(one), version)))


def _record(one: StoredRecord) -> Record:
    return one.record()


def _as_written_by(record: Record, version: int) -> Record:
    now = payload_type_of(CheckpointMetadata)
    if record.payload_type != now.key:
        return record
    older = payload_type_of(CheckpointMetadataV1)
    key = f"{now.name}@{version}"
    if record.kind is Kind.TYPE_REGISTERED:
        said = {"fingerprint": f"{older.fingerprint:016x}"}
        return replace(
            record, payload_type=key, payload=older.schema_json.encode(), attributes=said
        )
    value = now.decode(record.payload or b"")
    assert isinstance(value, CheckpointMetadata)
    first = CheckpointMetadataV1(
        metadata_version=version,
        job_id=value.job_id,
        epoch=value.epoch,
        checkpoint_id=value.checkpoint_id,
        triggered_sequence=value.triggered_sequence,
        cluster_id=value.cluster_id,
        topic_id=value.topic_id,
        parallelism=value.parallelism,
        subtasks=value.subtasks,
        finished=value.finished,
        oldest_retained=value.oldest_retained,
    )
    return replace(record, payload_type=key, payload=older.encode(first))


def test_a_history_with_version_1_metadata_is_verified_and_continued() -> None:
    provider = NotingProvider()
    job = checkpointed(2)
    job.crash()
    log = OfVersion1(job.log, 1)

    assert verify(log.read(0, log.high_watermark())).faults == []
    out = shown(log, "--show", "2")
    assert "metadata version 1, " in out
    assert [line.split() for line in out.splitlines() if line.startswith("source")] == [
        ["source", "2", "10", "1"]
    ]
    again = HandDrivenJob(chain_of(provider), parallelism=2, log=log)
    assert again.mode == "rollback"
    assert provider.said("restore") == [("restore", 2, b"state of 2")]
    attempts = again.register_all()
    assert [one.state for one in attempts[0].accepted.states] == [b"12345"]
    number = again.trigger()
    assert number is not None
    for one in attempts:
        one.ack_checkpoint(number)
    assert again.history(Kind.CHECKPOINT_COMPLETED)[-1].payload_type == (
        "coordlog.checkpoint_metadata@3"
    )


@pytest.mark.clause("E9")
def test_metadata_of_an_unknown_version_is_refused_before_any_append() -> None:
    job = checkpointed(2)
    job.crash()
    log = OfVersion1(job.log, 4)
    before = log.high_watermark()
    said = "its metadata is of version 4, and this release of coordlog reads 1, 2, 3"

    result = checkpoint_command(log, "--show", "2")
    assert result.exit_code == Exit.FAILED
    assert said in result.stderr
    with pytest.raises(RecordError, match=said):
        HandDrivenJob(job.chain, parallelism=2, log=log)
    assert log.high_watermark() == before

    key = payload_type_of(CheckpointMetadata)
    stray = key.decode(bytes.fromhex(golden(3)["payload"]))
    assert isinstance(stray, CheckpointMetadata)
    with pytest.raises(ValueError, match="of version 9"):
        read_metadata(key.key, key.encode(replace(stray, metadata_version=9)))
