"""A history is put on another log, and its job goes on there (clause E9); on logs in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from immutables import Map

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import (
    AppendRefusedError,
    CommandError,
    FencedError,
    LogUnavailableError,
    RestoreError,
    SinkError,
)
from coordlog.export import write_exported
from coordlog.history import History
from coordlog.kernel.builder import KernelConfig, StepBuilder
from coordlog.limits import GROUP_RECORDS_MAX
from coordlog.log.append_protocol import Place as LogPlace
from coordlog.log.appender import Patience
from coordlog.log.copy import to_append
from coordlog.log.interface import Log, StoredRecord, UnstoredRecord
from coordlog.log.memory import Fail, Meanwhile, MemoryLog, Refuse, Unknown
from coordlog.offline.adopt import adopt, checked, copy_history
from coordlog.offline.epoch import begin_epoch, check_known_types, read_records
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.state import JobState
from coordlog.projections.snapshot.codec import SnapshotCodec
from coordlog.projections.tables.audit import audit, audit_records
from coordlog.restore.rebuild import check_identity, projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import SnapshotWanted
from coordlog.schemas.codec import encode_record
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.payload_address import PayloadAddress
from coordlog.schemas.record import Kind, Record, record_key
from coordlog.schemas.validity import NOTHING_COUNTED
from coordlog.testing.driven_job import HandDrivenJob
from driven_history import ALL_ROWS, DrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of
from histories.hand_history import streaming_history
from histories.log_records import Driver, counted, plain, start_driver
from histories.sweep_worlds import records_of

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


@pytest.mark.clause("K2")
def test_a_driver_that_begins_on_the_new_log_before_the_copy_keeps_it() -> None:
    """Of the copy's records those of its epoch and with the next sequences would count in the driver's epoch."""
    source, target = worked().log, MemoryLog("target")
    jobs: list[HandDrivenJob] = []

    def drive() -> None:
        jobs.append(HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)), log=target))
        jobs[0].register(0).send("source", Up(n=1000))

    target.faults.next_append(Meanwhile(drive))
    with pytest.raises(FencedError) as fenced:
        adopt(source, target, "job", patience=QUICK)

    (job,) = jobs
    epoch_start = job.runtime.state.driver_id
    assert (fenced.value.epoch_in_force, fenced.value.driver_in_force) == (0, epoch_start)
    job.register(0).send("source", Up(n=1001))
    assert job.runtime.state.projections["source"] == (1000, 1001)
    assert {one.driver_id for one in job.history()} == {epoch_start}


def pruned(*, is_of_epoch_0: bool = False) -> MemoryLog:
    """A history that begins with a `SNAPSHOT`, of epoch 1 unless it is of 0, and goes on for an epoch after that."""
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)), options=RuntimeOptions(snapshot_every=7)
    )
    if not is_of_epoch_0:
        begin_epoch(job.log, read_records(job.log), _nothing, command="test")
        job = HandDrivenJob(job.chain, log=job.log, options=RuntimeOptions(snapshot_every=7))
    attempt = job.register(0)
    for n in range(20):
        attempt.send("source", Up(n=n))
    job.crash()
    begin_epoch(job.log, read_records(job.log), _nothing, command="test")
    job.log.remove_below(snapshots(job.log)[0])
    return job.log


class _Cut(MemoryLog):
    """Does something before its first record is removed."""

    def __init__(self, do: Callable[[MemoryLog], None]) -> None:
        super().__init__("target")
        self._do = do

    def delete_below(self, offset: int) -> None:
        self._do(self)
        super().delete_below(offset)


NEW = LogPlace(end_offset=0, counting=NOTHING_COUNTED)
"""What a driver has found that has read the log while it was empty."""


@pytest.mark.clause("K2")
def test_a_driver_started_before_a_pruned_copy_is_cut_is_never_in_force() -> None:
    """By what it reads too, which begins at offset 0: the copy's last epoch is not the one before its own."""
    refused: list[FencedError] = []

    def begin(log: MemoryLog) -> None:
        with pytest.raises(FencedError) as fenced:
            start_driver(log, "late", place=NEW)
        refused.append(fenced.value)

    source, target = pruned(), _Cut(begin)
    done = adopt(source, target, "job")

    (error,) = refused
    assert (error.epoch, error.epoch_in_force) == (0, 0)
    assert error.driver_in_force == "(none: a history is being copied here)"
    assert done.epoch == read_records(source).state.epoch + 1
    found = [(one.offset, one.counts) for one in audit_records(target.records)]
    late = len(source.records) + 1
    assert found == [(n, n != late) for n in range(1, late + 2)]
    with pytest.raises(FencedError, match=f"in force is epoch {done.epoch}"):
        start_driver(target, "later", place=NEW)


@pytest.mark.clause("K2")
@pytest.mark.parametrize("is_of_epoch_0", [True, False], ids=["of epoch 0", "of epoch 1"])
def test_a_driver_behind_a_pruned_copys_beginning_is_fenced_and_reported(
    is_of_epoch_0: bool,  # noqa: FBT001, a parameter
) -> None:
    """No epoch of the copy is taken for one of the driver's, nor is a driver of the copy named by the copying."""
    source, target = pruned(is_of_epoch_0=is_of_epoch_0), MemoryLog("target")
    refused: list[FencedError] = []

    def begin() -> None:
        with pytest.raises(FencedError) as fenced:
            start_driver(target, "late", place=NEW)
        refused.append(fenced.value)

    target.faults.next_append(None, Meanwhile(begin))
    with pytest.raises(CommandError, match="another record at offset 1 than this history"):
        adopt(source, target, "job", patience=QUICK)

    (error,) = refused
    assert error.driver_in_force == "(none: a history is being copied here)"


@pytest.mark.clause("K2")
def test_a_driver_that_begins_before_a_pruned_history_s_copy_keeps_the_log() -> None:
    target = MemoryLog("target")
    drivers: list[Driver] = []
    target.faults.next_append(Meanwhile(lambda: drivers.append(start_driver(target, "first"))))
    with pytest.raises(FencedError) as fenced:
        adopt(pruned(is_of_epoch_0=True), target, "job", patience=QUICK)

    assert fenced.value.driver_in_force == "first"
    assert drivers[0].appender.append([plain("a", 0, 0)]) == (2,)
    assert counted(target) == ["E0", "a"]


def test_a_pruned_history_copied_in_part_is_neither_started_nor_adopted() -> None:
    """It is gone on with, from where it was cut off."""
    source, chain = pruned(), chain_of(NotingProvider(projection=HANDLED))
    for count in (1, 2, 9):
        target = MemoryLog("target")
        target.faults.next_append(None, Unknown(stored=tuple(range(count - 1))), Refuse())
        with pytest.raises(AppendRefusedError):
            copy_history(source, target, "job", patience=replace(QUICK, log_timeout_s=60.0))
        assert len(target.records) == count
        made = rebuild(target, chain, projection_of(chain))
        with pytest.raises(RestoreError, match=r"topic's id is .*`coordlog adopt job --from FILE`"):
            check_identity("job", made.state, target.identity)
        with pytest.raises(RestoreError, match="a copy that was cut off"):
            checked(target, "job", open_payload=_no_store)
        assert adopt(source, target, "job").record_count == len(source.records)
        assert verify(target.records).faults == []

    def is_cut_off(log: MemoryLog) -> None:
        raise LogUnavailableError(log.identity.name, "deleting records", 0.0, "scripted")

    whole = _Cut(is_cut_off)
    with pytest.raises(LogUnavailableError):
        adopt(source, whole, "job")
    made = rebuild(whole, chain, projection_of(chain))
    with pytest.raises(RestoreError, match=r"topic's id is .*`coordlog adopt job --from FILE`"):
        check_identity("job", made.state, whole.identity)


def test_a_history_whose_snapshot_cannot_be_read_here_is_still_copied() -> None:
    job, source, target = worked(), MemoryLog("damaged"), MemoryLog("target")
    store_below(source, job.log, job.log.high_watermark())
    source.remove_below(3)
    target.faults.next_append(None, Refuse())
    with pytest.raises(AppendRefusedError):
        copy_history(source, target, "job")
    made = rebuild(target, job.chain, projection_of(job.chain))
    with pytest.raises(RestoreError, match="the cluster is  in the log"):
        check_identity("job", made.state, target.identity)
    assert copy_history(source, target, "job") == len(source.records)
    assert [one.key for one in target.records] == [one.key for one in source.records]
    nothing = MemoryLog("nothing")
    source.remove_below(source.high_watermark())
    assert copy_history(source, nothing, "job") == 0
    assert nothing.records == ()


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
    search = History(target).search(codec)
    assert search.snapshot is not None
    assert search.snapshot.beginning.offset == newest - third + 1
    made = rebuild(target, job.chain, projection_of(job.chain))
    assert made.state == whole
    kinds = {one.offset: r.kind for one, r in zip(target.records, _records(target), strict=True)}
    assert kinds[made.checkpoint_offset or 0] is Kind.CHECKPOINT_COMPLETED
    at_snapshot = search.snapshot.decoded.checkpoint_offset
    assert at_snapshot is None or kinds[at_snapshot] is Kind.CHECKPOINT_COMPLETED
    assert verify(target.records).faults == []


def _records(log: MemoryLog) -> list[Record]:
    return [one.record() for one in log.records]


def test_an_outcome_that_is_not_known_is_looked_up_and_the_rest_is_sent() -> None:
    source, target = worked().log, MemoryLog("target")
    target.faults.next_append(Fail(), Unknown(stored=(0, 1, 2)), Unknown(stored=None))
    copy_history(source, target, "job", patience=replace(QUICK, log_timeout_s=60.0))

    assert target.records == source.records


def test_a_copy_to_a_failing_target_ends_and_can_be_continued() -> None:
    source, target = worked().log, MemoryLog("target")
    clock = iter(range(0, 1000, 10))
    target.faults.next_append(*[Fail()] * 100)
    patience = replace(QUICK, clock=lambda: float(next(clock)))
    with pytest.raises(LogUnavailableError):
        copy_history(source, target, "job", patience=patience)
    assert target.records == ()
    other = MemoryLog("other")
    other.faults.next_append(None, Unknown(stored=tuple(range(5))), Refuse())
    with pytest.raises(AppendRefusedError):
        copy_history(source, other, "job", patience=replace(QUICK, log_timeout_s=60.0))
    assert len(other.records) == 1 + 5, "the first goes alone"
    copy_history(source, other, "job")
    assert other.records == source.records


def test_what_arrives_late_is_told_and_nothing_is_taken_for_the_copy() -> None:
    source, target = worked().log, MemoryLog("target")
    target.faults.next_append(None, Unknown(stored=()))
    with pytest.raises(CommandError, match=r"another record at offset \d+ than this history"):
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
        damaged.store(to_append(one)._replace(key=b"elsewhere" if changed else one.key or b""))
    with pytest.raises(RestoreError, match=r"first at offset 9: its key is b'elsewhere'"):
        checked(damaged, "job", open_payload=_no_store)
    damaged.remove_below(10)
    with pytest.raises(RestoreError, match="the log begins here, and not with a SNAPSHOT"):
        checked(damaged, "job", open_payload=_no_store)


def without(source: MemoryLog, *offsets: int) -> MemoryLog:
    """A copy in which these records are missing, as a mirror makes it that was too late."""
    copy = MemoryLog("mirror")
    copy.store(*(to_append(one) for one in source.records if one.offset not in offsets))
    return copy


def test_a_copy_that_lacks_an_epoch_s_beginning_is_refused() -> None:
    job = worked(5)
    began = job.log.high_watermark()
    again = HandDrivenJob(job.chain, log=job.log)
    again.register(0).send("source", Up(n=5))
    again.crash()
    with pytest.raises(
        RestoreError, match=r"it has sequence \d+ of epoch 1, .* of epoch 0: records between them"
    ):
        checked(without(job.log, began), "job", open_payload=_no_store)


def test_a_copy_that_lacks_a_record_is_refused_if_a_whole_append_follows() -> None:
    job = worked(600)
    assert job.log.high_watermark() > GROUP_RECORDS_MAX
    with pytest.raises(
        RestoreError, match="and the last record that counts has sequence 7 of epoch 0"
    ):
        checked(without(job.log, 9), "job", open_payload=_no_store)


def test_a_record_ahead_is_reported_if_an_append_may_be_cut_off(tmp_path: Path) -> None:
    source = worked(5).log
    last = source.high_watermark() - 1
    copy, path, here = without(source, 9), tmp_path / "copy.avro", Place()
    assert checked(source, "job", open_payload=_no_store).ahead is None
    write_exported(copy, "job", path)

    words = f"offset {last - 1} has sequence {last - 1}, and the last record that counts has 7"
    assert words in run(here, "verify", str(path)).stdout
    assert words in run(here, "adopt", "job", "--from", str(path), "--take-over").stderr


def test_a_job_starts_where_its_copy_with_a_gap_ends_for_all_readers() -> None:
    job, copy, target = worked(), MemoryLog("mirror"), MemoryLog("job")
    records = [to_append(one) for one in job.log.records]
    copy.store(*records[:20], records[21], records[20], *records[22:])  # as a mirror's retry does
    checked(copy, "job", open_payload=_no_store)

    adopt(copy, target, "job")
    again = HandDrivenJob(job.chain, log=target)
    again.register(0).send("source", Up(n=100))

    assert again.runtime.state.next_sequence == verify(target.records).state.next_sequence < 40


@pytest.mark.parametrize("changed", [{"driver_id": "driver-x"}, {"job_id": "job-x"}])
def test_records_of_another_log_that_fit_by_number_are_a_fault(changed: dict[str, str]) -> None:
    source, mixed = worked(5).log, MemoryLog("mirror")
    mixed.store(*map(to_append, source.records[:-1]))
    record = replace(source.records[-1].record(), **changed)  # type: ignore[arg-type]
    foreign = to_append(source.records[-1], value=encode_record(record))
    mixed.store(foreign._replace(key=record_key(record).encode()))
    with pytest.raises(RestoreError, match=r"it is of job .*: it belongs to another log"):
        checked(mixed, "job", open_payload=_no_store)


def test_what_stands_before_a_whole_copy_is_not_ahead_of_it() -> None:
    source = worked(5).log
    twice = MemoryLog("mirror")
    twice.store(*map(to_append, source.records[6:]), *map(to_append, source.records))
    assert checked(twice, "job", open_payload=_no_store).ahead is None


class _Counting(MemoryLog):
    """Counts what is read of it."""

    count = 0

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        for one in super().read(from_offset, to_offset, stall_s=stall_s):
            self.count += 1
            yield one


def test_a_history_is_checked_and_folded_in_one_reading() -> None:
    """The end of each, unfinished turns and records that are void, is as whoever reads it alone comes to."""
    source = worked().log
    third = snapshots(source)[2]
    begun = max(one.offset for one in source.records if one.header and one.header.turn_remaining)
    for begins_at, end, late in ((0, 0, 0), (third, 0, 0), (0, begun + 1, 0), (0, 0, 9)):
        log = _Counting("counted")
        store_below(log, source, end or source.high_watermark())
        store_below(log, source, late)  # void, each
        log.remove_below(begins_at)
        found = checked(log, "job", open_payload=_no_store)
        assert log.count == len(log.records)
        assert found.state == read_records(log).state
        assert found.state.next_sequence > 9


def test_job_records_of_another_version_are_refused_before_the_copy() -> None:
    job = worked()
    assert checked(job.log, "job", open_payload=_no_store).fault_count == 0

    def newer(state: JobState) -> list[Record]:
        config = KernelConfig(
            projection=projection_of(job.chain),
            operators=state.operators,
            is_batch=False,
            keeps_finished_splits=False,
        )
        now_us = state.timestamp_us
        step = StepBuilder(config=config, state=state, now_us=now_us, clock_us=now_us)
        step.add(Kind.FACT, value=Up(n=1))
        return list(step.records)

    # Of an operator a reader need not know it.
    begin_epoch(job.log, read_records(job.log), newer, command="test")
    key = payload_type_of(Up).key
    with pytest.raises(
        RestoreError, match=rf"the schema of {key} is [0-9a-f]{{16}} in .* and none"
    ):
        checked(job.log, "job", open_payload=_no_store)


def test_a_type_of_coordlog_s_own_with_another_schema_is_refused_by_both() -> None:
    key = payload_type_of(SnapshotWanted).key
    here = f"{payload_type_of(SnapshotWanted).fingerprint:016x}"
    check_known_types("job", JobState(types=Map({key: here})), {key})
    with pytest.raises(RestoreError, match=f"is {'0' * 16} in the log and {here} here"):
        check_known_types("job", JobState(types=Map({key: "0" * 16})), ())


class Place:
    """A broker with one log, in memory."""

    def __init__(self, log: MemoryLog | None = None, where: str = "memory") -> None:
        self.log, self.where = log or MemoryLog("new"), where
        self.mirror: MemoryLog | None = None

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
        return self.mirror or self.log

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
def test_a_job_continues_from_its_exported_history_with_each_row_once(
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
    assert refused.exit_code == Exit.REFUSED
    assert "it cannot be known from here whether its driver" in refused.stderr
    done = run(here, "adopt", "driven", "--from", str(path), "--take-over")
    assert done.exit_code == Exit.DONE, done.output
    assert (
        f"it comes from cluster memory, topic {lost.identity.topic_id}, and continues"
        in done.stderr
    )
    assert "published after the copy was made are published again" in done.stderr
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
    begin_epoch(newer, read_records(newer), _nothing, command="test")
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
    begin_epoch(target, read_records(target), _nothing, command="test")
    later = adopt(source, target, "job")
    assert (later.is_before, later.epoch) == (True, 2)


def test_a_second_adoption_differs_and_an_adopted_pruned_log_is_recognised() -> None:
    source, middle, target = worked().log, MemoryLog("middle"), MemoryLog("target")
    source.remove_below(snapshots(source)[2])
    adopt(source, middle, "job")
    assert adopt(source, middle, "job").is_before
    done = adopt(middle, target, "job")
    assert not done.is_before
    assert done.topic_id == middle.identity.topic_id
    assert adopt(middle, target, "job").is_before


def test_an_equally_long_copy_that_differs_in_one_record_is_another_copy() -> None:
    source, target, other = worked().log, MemoryLog("target"), MemoryLog("other")
    adopt(source, target, "job")
    stood = target.records
    for one in source.read(0, source.high_watermark()):
        copied = to_append(one)
        if one.offset == 9:
            copied = copied._replace(timestamp_us=copied.timestamp_us + 1_000)
        other.store(copied)

    with pytest.raises(CommandError, match=r"from another copy .* differs from this one at 9"):
        adopt(other, target, "job")
    assert target.records == stood


@pytest.mark.slow
def test_an_adoption_is_known_again_after_its_record_was_pruned(tmp_path: Path) -> None:
    driven, lost = DrivenJob(tmp_path, "driven", is_batch=False), MemoryLog("driven")
    driven.drive(lost, kill_attempt_at=3, kill_driver_at=8, snapshot_every=40)
    here = MemoryLog("here")
    adopt(lost, here, "driven")
    driven.drive(here, snapshot_every=40)
    here.delete_below(here.high_watermark() - 1)
    stood = here.records

    again = adopt(lost, here, "driven")
    assert (again.is_before, again.topic_id) == (True, lost.identity.topic_id)
    assert here.records == stood
    third = MemoryLog("third")
    copy_history(lost, third, "driven")
    begin_epoch(
        third,
        read_records(third),
        _nothing,
        command="test",
        attributes={"cluster_id": "c", "topic_id": "t"},
    )
    with pytest.raises(CommandError, match="another record at offset"):
        adopt(third, here, "driven")


def store_below(log: MemoryLog, source: MemoryLog, end: int) -> None:
    for one in source.read(0, end):
        log.store(to_append(one))


def _nothing(_state: JobState) -> list[Record]:
    return []


def test_an_epoch_on_another_log_without_an_adoption_is_a_fault(tmp_path: Path) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=True)
    log = MemoryLog("driven")
    driven.drive(log, kill_driver_at=3)
    made = read_records(log)
    begin_epoch(log, made, _nothing, command="test", attributes={"topic_id": "t"})
    faults = [one.what for one in verify(log.records).faults]
    assert faults == [
        "it was written to the log of topic_id t, and the epoch before to that of "
        + log.identity.topic_id
    ]
    wrong = {"topic_id": "u", "adopted_topic_id": "v", "adopted_cluster_id": "memory"}
    begin_epoch(log, read_records(log), _nothing, command="test", attributes=wrong)
    (_, second) = verify(log.records).faults
    assert second.what == "it records that the job comes from topic_id v, and it comes from t"


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
        (Place(), (), "pass either --from or --from-topic"),
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


def test_without_a_recorded_driver_only_the_users_confirmation_helps(
    tmp_path: Path,
) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=True)
    log, path = MemoryLog("driven"), tmp_path / "driven.avro"
    driven.drive(log, kill_driver_at=3)
    begin_epoch(log, read_records(log), _nothing, command="skip")
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


@pytest.mark.parametrize("in_front", [0, 2])
@pytest.mark.parametrize("by_file", [False, True])
def test_a_mirror_of_a_pruned_log_is_adopted_at_its_new_offsets(
    tmp_path: Path, in_front: int, *, by_file: bool
) -> None:
    """A mirror that was begun after the prune has the first snapshot at its own first offset."""
    driven = DrivenJob(tmp_path, "driven", is_batch=False)
    lost, path = MemoryLog("driven"), tmp_path / "mirror.avro"
    driven.drive(lost, kill_driver_at=8, snapshot_every=20)
    lost.remove_below(snapshots(lost)[-1])
    here = Place()
    here.mirror = MemoryLog("mirror")
    foreign = UnstoredRecord(key=b"", value=b"foreign", header=b"", timestamp_us=0)
    copied = [to_append(one) for one in lost.read(lost.start_offset(), lost.high_watermark())]
    here.mirror.writer().append([foreign] * in_front + copied, timeout_s=1.0)
    if by_file:
        write_exported(here.mirror, "driven", path)
    source = ("--from", str(path)) if by_file else ("--from-topic", "mirror.driven.log")

    for word in ("adopted job", "adopted already"):
        done = run(here, "adopt", "driven", *source, "--take-over")
        assert done.exit_code == Exit.DONE, done.output
        assert word in done.output
    assert here.log.start_offset() == 1
    driven.drive(here.log)
    assert driven.rows() == ALL_ROWS


@pytest.mark.parametrize("left", [0, 1])
def test_a_whole_mirror_is_adopted_though_records_before_it_are_gone(
    tmp_path: Path, left: int
) -> None:
    driven = DrivenJob(tmp_path, "driven", is_batch=False)
    lost, here = MemoryLog("driven"), Place()
    driven.drive(lost, kill_driver_at=8, snapshot_every=20)
    here.mirror = MemoryLog("mirror")
    foreign = UnstoredRecord(key=b"", value=b"foreign", header=b"", timestamp_us=0)
    copied = [to_append(one) for one in lost.records]
    here.mirror.writer().append([foreign] * 3 + copied, timeout_s=1.0)
    here.mirror.remove_below(3 - left)

    for word in ("adopted job", "adopted already"):
        done = run(here, "adopt", "driven", "--from-topic", "mirror.driven.log", "--take-over")
        assert done.exit_code == Exit.DONE, done.output
        assert word in done.output
    assert here.log.start_offset() == 0
    driven.drive(here.log)
    assert driven.rows() == ALL_ROWS
