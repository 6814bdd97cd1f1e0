"""A history is put on another log, and its job goes on there (clause E9); on logs in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordlog.adopting import adopt, checked, copy_history
from coordlog.cli.exits import Exit
from coordlog.cli.main import main
from coordlog.errors import (
    AppendRefusedError,
    CommandError,
    LogUnavailableError,
    RestoreError,
    SinkError,
)
from coordlog.log.appender import Patience
from coordlog.log.exported import write_exported
from coordlog.log.memory import Fail, MemoryLog, Refuse, Unknown
from coordlog.log.port import Log, UnstoredRecord
from coordlog.own_reign import begin_reign, read_records
from coordlog.projections.audit import audit
from coordlog.projections.snapshots import SnapshotCodec
from coordlog.projections.state import JobState
from coordlog.projections.verification import verify
from coordlog.restore import projection_of, rebuild
from coordlog.runtime import RuntimeOptions
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.stored import PayloadAddress
from coordlog.snapshots import find_snapshot
from coordlog.testing.by_hand import HandDrivenJob
from driven_history import ALL_ROWS, DrivenJob
from hand_history import streaming_history
from kernel_fakes import HANDLED, NotingProvider, Up, chain_of
from sweep_worlds import records_of

pytestmark = pytest.mark.clause("E9")

QUICK = Patience(log_timeout_s=0.0, sleep=lambda _s: None)


def worked(count: int = 40) -> HandDrivenJob:
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)), options=RuntimeOptions(snapshot_every=7)
    )
    attempt = job.register(0)
    for n in range(count):
        attempt.send("source", Up(n=n))
        if n % 10 == 5:
            checkpoint_id = job.trigger()
            assert checkpoint_id is not None
            attempt.ack_checkpoint(checkpoint_id, states={"source": b"state"})
    job.crash()
    return job


def _no_store(address: PayloadAddress, _said: str) -> bytes:
    raise AssertionError(address)


def snapshots(log: MemoryLog) -> list[int]:
    kinds = [one.header for one in log.records]
    return sorted({one.snapshot_offset for one in kinds if one and one.snapshot_offset >= 0})


def test_a_log_from_its_first_offset_is_copied_byte_for_byte() -> None:
    source, target = worked().log, MemoryLog("target")

    assert copy_history(source, target, "job") == len(source.records)
    assert target.records == source.records
    history = MemoryLog("voids")
    history.store(*streaming_history().records)
    again = MemoryLog("again")
    copy_history(history, again, "ingest")
    assert audit(again.records) == audit(history.records)


def test_in_a_log_that_began_elsewhere_every_pointer_is_written_anew() -> None:
    job, target = worked(), MemoryLog("target")
    source = job.log
    whole = rebuild(source, job.chain, projection_of(job.chain)).state
    (_, _, third, *_, newest) = snapshots(source)
    source.remove_below(third)

    copy_history(source, target, "job")

    assert target.start_offset() == 1
    assert snapshots(target) == [one - third + 1 for one in snapshots(source) if one >= third]
    codec = SnapshotCodec(projection_of(job.chain))
    search = find_snapshot(target, codec, 1, target.high_watermark())
    assert search.found is not None
    assert search.found.offset == newest - third + 1
    made = rebuild(target, job.chain, projection_of(job.chain))
    assert made.state == whole
    kinds = {one.offset: r.kind for one, r in zip(target.records, _records(target), strict=True)}
    assert kinds[made.checkpoint_offset or 0] is Kind.CHECKPOINT_COMPLETED
    at_snapshot = search.found.decoded.checkpoint_offset
    assert at_snapshot is None or kinds[at_snapshot] is Kind.CHECKPOINT_COMPLETED
    assert verify(target.records).faults == []


def _records(log: MemoryLog) -> list[Record]:
    return [one.record() for one in log.records]


def test_an_outcome_that_is_not_known_is_looked_up_and_the_rest_is_sent() -> None:
    source, target = worked().log, MemoryLog("target")
    target.faults.next_append(Fail(), Unknown(stored=(0, 1, 2)), Unknown(stored=None))
    copy_history(source, target, "job", patience=replace(QUICK, log_timeout_s=60.0))

    assert target.records == source.records


def test_where_the_target_does_not_answer_or_take_a_record_the_copy_ends_and_can_be_gone_on_with() -> (
    None
):
    source, target = worked().log, MemoryLog("target")
    clock = iter(range(0, 1000, 10))
    target.faults.next_append(*[Fail()] * 100)
    patience = replace(QUICK, clock=lambda: float(next(clock)))
    with pytest.raises(LogUnavailableError):
        copy_history(source, target, "job", patience=patience)
    assert target.records == ()
    other = MemoryLog("other")
    other.faults.next_append(Unknown(stored=tuple(range(5))), Refuse())
    with pytest.raises(AppendRefusedError):
        copy_history(source, other, "job", patience=replace(QUICK, log_timeout_s=60.0))
    assert len(other.records) == 5
    copy_history(source, other, "job")
    assert other.records == source.records


def test_what_arrives_late_is_told_and_nothing_is_taken_for_the_copy() -> None:
    source, target = worked().log, MemoryLog("target")
    target.faults.next_append(Unknown(stored=()))
    with pytest.raises(CommandError, match=r"something else at offset \d+ than this history"):
        copy_history(
            source,
            target,
            "job",
            patience=replace(QUICK, log_timeout_s=60.0, sleep=lambda _s: target.arrive(7)),
        )


def test_a_damaged_history_another_jobs_and_an_empty_one_are_refused() -> None:
    source = worked().log
    with pytest.raises(RestoreError, match="job_id is job in the log and other here"):
        checked(source, "other", open_payload=_no_store)
    with pytest.raises(RestoreError, match="without a record that counts"):
        checked(MemoryLog(), "job", open_payload=_no_store)
    damaged = MemoryLog("damaged")
    for one in source.records:
        changed = one.offset == 9
        damaged.store(
            UnstoredRecord(
                key=b"elsewhere" if changed else one.key or b"",
                value=one.value or b"",
                header=one.header_bytes or b"",
                timestamp_us=one.timestamp_ms * 1000,
            )
        )
    with pytest.raises(RestoreError, match=r"first at offset 9: its key is b'elsewhere'"):
        checked(damaged, "job", open_payload=_no_store)
    damaged.remove_below(10)
    with pytest.raises(RestoreError, match="the log begins here, and not with a SNAPSHOT"):
        checked(damaged, "job", open_payload=_no_store)


class Place:
    """A broker with one log, in memory."""

    def __init__(self, log: MemoryLog | None = None, where: str = "memory") -> None:
        self.log, self.where = log or MemoryLog("new"), where

    def jobs(self) -> tuple[str, ...]:
        return ("driven",)

    def open(self, job_id: str) -> Log:
        assert job_id == "driven"
        return self.log

    def create(self, job_id: str) -> MemoryLog:
        assert job_id in ("driven", "looked-at")
        return self.log

    def topic_of(self, job_id: str) -> str:
        return f"{job_id}.log"

    def open_topic(self, topic: str) -> Log:
        assert topic == "mirror.driven.log"
        return self.log

    def delete(self, job_id: str) -> None:
        raise AssertionError(job_id)


def run(place: object, *arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, obj=lambda _servers: place)


@pytest.fixture(autouse=True)
def _no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)


@pytest.mark.slow
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_job_goes_on_from_its_exported_history_and_every_row_comes_out_once(
    tmp_path: Path,
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=is_batch)
    lost, here = MemoryLog("driven"), Place()
    driven.drive(lost, kill_attempt_at=3, kill_driver_at=8, snapshot_every=40)
    path = tmp_path / "driven.avro"
    write_exported(lost, "driven", path)
    copy = MemoryLog("copy")
    copy_history(lost, copy, "driven")
    with pytest.raises(RestoreError, match="`coordlog adopt driven --from FILE`"):
        driven.drive(copy)

    refused = run(here, "adopt", "driven", "--from", str(path))
    assert refused.exit_code == Exit.USAGE
    assert "cannot be asked from here" in refused.stderr
    done = run(here, "adopt", "driven", "--from", str(path), "--take-over")
    assert done.exit_code == Exit.DONE, done.output
    assert f"it comes from cluster memory, topic {lost.identity.topic_id}, and goes" in done.stderr
    assert "published after the copy was made it publishes again" in done.stderr
    again = run(here, "adopt", "driven", "--from", str(path), "--take-over")
    assert again.exit_code == Exit.DONE, again.output
    assert "has been adopted already at memory: it comes from cluster memory" in again.stderr

    driven.drive(here.log, kill_attempt_at=2)
    assert driven.rows() == ALL_ROWS
    assert "all of it holds" in run(here, "verify", "driven").stdout
    epochs = [one for one in records_of(here.log) if one.kind is Kind.EPOCH_STARTED]
    assert [one.attributes.get("command") for one in epochs] == [None, "adopt", None]
    assert epochs[1].attributes["adopted_topic_id"] == lost.identity.topic_id
    assert "adopted_topic_id" not in epochs[2].attributes
    left = [[lost.identity.cluster_id, lost.identity.topic_id]]
    assert [json.loads(one.attributes.get("former_logs", "[]")) for one in epochs] == [
        [],
        left,
        left,
    ]
    with pytest.raises(SinkError, match="writes there with another log, new in memory"):
        driven.drive(lost)


def test_an_adoption_that_is_recorded_is_not_done_again_from_whatever_copy() -> None:
    source, target = worked().log, MemoryLog("target")
    older = MemoryLog("older")
    newer = MemoryLog("newer")
    at = source.high_watermark() - 5
    store_below(older, source, at)
    copy_history(source, newer, "job")
    begin_reign(newer, read_records(newer), _nothing, command="test")
    first = adopt(source, target, "job")
    stood = target.records
    assert not first.is_before
    assert first.epoch == 1

    for one in (source, older):
        again = adopt(one, target, "job")
        assert again == replace(first, is_before=True, record_count=again.record_count)
    with pytest.raises(CommandError, match=r"adopted at .* from another copy .*start the job"):
        adopt(newer, target, "job")
    assert target.records == stood
    begin_reign(target, read_records(target), _nothing, command="test")
    later = adopt(source, target, "job")
    assert (later.is_before, later.epoch) == (True, 2)


def test_an_adoption_of_what_was_adopted_is_another_one_and_a_pruned_one_is_known_again() -> None:
    source, middle, target = worked().log, MemoryLog("middle"), MemoryLog("target")
    source.remove_below(snapshots(source)[2])
    adopt(source, middle, "job")
    assert adopt(source, middle, "job").is_before
    done = adopt(middle, target, "job")
    assert not done.is_before
    assert done.topic_id == middle.identity.topic_id
    assert adopt(middle, target, "job").is_before


def store_below(log: MemoryLog, source: MemoryLog, end: int) -> None:
    for one in source.read(0, end):
        log.store(
            UnstoredRecord(
                key=one.key or b"",
                value=one.value or b"",
                header=one.header_bytes or b"",
                timestamp_us=one.timestamp_ms * 1000,
            )
        )


def _nothing(_state: JobState) -> list[Record]:
    return []


def test_a_reign_on_another_log_without_an_adoption_is_a_fault(tmp_path: Path) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=True)
    log = MemoryLog("driven")
    driven.drive(log, kill_driver_at=3)
    made = read_records(log)
    begin_reign(log, made, _nothing, command="test", attributes={"topic_id": "t"})
    faults = [one.what for one in verify(log.records).faults]
    assert faults == [
        "it was written to the log of topic_id t, and the reign before to that of "
        + log.identity.topic_id
    ]
    wrong = {"topic_id": "u", "adopted_topic_id": "v", "adopted_cluster_id": "memory"}
    begin_reign(log, read_records(log), _nothing, command="test", attributes=wrong)
    (_, second) = verify(log.records).faults
    assert second.what == "it says that the job comes from topic_id v, and it comes from t"


def test_what_cannot_be_adopted_and_what_can_only_be_looked_at(tmp_path: Path) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=True)
    log = MemoryLog("driven")
    driven.drive(log)
    redacted, whole = tmp_path / "redacted.avro", tmp_path / "whole.avro"
    write_exported(log, "driven", redacted, redact=lambda one: one)
    write_exported(log, "driven", whole)
    for place, arguments, said in (
        (Place(), ("--from", str(redacted)), "redacted.avro is redacted; export it without"),
        (Place(log), ("--from", str(whole)), "is the one of this history; start the job"),
        (Place(), (), "give either --from or --from-topic"),
        (
            Place(),
            ("--from-topic", "driven.log"),
            "`coordlog delete driven --keep-payloads`, then adopt it",
        ),
    ):
        result = run(place, "adopt", "driven", *arguments)
        assert result.exit_code == Exit.USAGE, result.output
        assert said in result.stderr
    here = Place()
    assert run(here, "import", str(whole), "--as", "looked-at").exit_code == Exit.DONE
    assert here.log.records == log.records


def test_where_the_history_names_no_driver_to_ask_only_the_user_s_word_helps(
    tmp_path: Path,
) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=True)
    log, path = MemoryLog("driven"), tmp_path / "driven.avro"
    driven.drive(log, kill_driver_at=3)
    begin_reign(log, read_records(log), _nothing, command="skip")
    write_exported(log, "driven", path)
    here = Place()

    refused = run(here, "adopt", "driven", "--from", str(path))
    assert refused.exit_code == Exit.USAGE, refused.output
    assert "ends in epoch 1, a command's, in which no driver listens" in refused.stderr
    assert here.log.records == ()
    done = run(here, "adopt", "driven", "--from", str(path), "--take-over")
    assert done.exit_code == Exit.DONE, done.output
    assert "has begun at the old cluster after epoch 1 is not in this copy" in done.stderr


def test_a_job_that_has_ended_is_adopted_without_a_word_of_drivers(tmp_path: Path) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=True)
    log, path = MemoryLog("driven"), tmp_path / "driven.avro"
    driven.drive(log)
    write_exported(log, "driven", path)

    done = run(Place(), "adopt", "driven", "--from", str(path))
    assert done.exit_code == Exit.DONE, done.output
    assert "old cluster" not in done.stderr


def test_a_mirrored_topic_goes_the_same_way(tmp_path: Path) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=True)
    lost = MemoryLog("driven")
    driven.drive(lost, kill_driver_at=3)
    mirror = MemoryLog("mirror")
    copy_history(lost, mirror, "driven")

    class Both(Place):
        def open_topic(self, topic: str) -> Log:
            assert topic == "mirror.driven.log"
            return mirror

    here = Both()
    done = run(here, "adopt", "driven", "--from-topic", "mirror.driven.log", "--take-over")
    assert done.exit_code == Exit.DONE, done.output
    driven.drive(here.log)
    assert driven.rows() == ALL_ROWS
