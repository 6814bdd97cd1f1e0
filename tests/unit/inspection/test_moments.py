"""A job at any place of its log; what must hold there; a whole history checked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner

from coordlog.cli.main import main
from coordlog.errors import OptionError
from coordlog.log.copy import to_append
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.offline.state_at import state_at
from coordlog.projections.inspection.explain import explain_checkpoint, explain_split
from coordlog.projections.inspection.state_json import differences, state_json
from coordlog.projections.inspection.verify import Verified, verify
from coordlog.projections.job.invariants import faults_of
from coordlog.projections.job.state import Phase
from coordlog.projections.tables.audit import audit, audit_records
from coordlog.projections.tables.checkpoints import CheckpointStatus
from coordlog.projections.tables.payload_json import Json
from coordlog.projections.tables.splits import SplitPlace
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.builtin_types import SkipSplit, SnapshotWanted
from coordlog.schemas.codec import decode_record
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from driven_history import driven_log
from fakes.kernel_fakes import HANDLED, NotingProvider, chain_of
from histories.one_log import OneLog
from histories.sweep_worlds import SplitWorld


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> MemoryLog:
    return driven_log(tmp_path_factory.mktemp("driven"), "looked-at", is_batch=False)


def _stored(log: MemoryLog) -> list[UnstoredRecord]:
    return [to_append(one) for one in log.read(0, log.high_watermark())]


def _verified(*records: UnstoredRecord) -> Verified:
    log = MemoryLog("verified")
    log.store(*records)
    return verify(log.read(0, log.high_watermark()))


def _offsets_of(log: MemoryLog, kind: Kind) -> Iterator[tuple[int, int | None]]:
    for one in audit_records(log.read(0, log.high_watermark())):
        if one.counts and one.record is not None and one.record.kind is kind:
            yield one.offset, one.record.checkpoint_id


@pytest.mark.slow
def test_every_turn_of_a_driven_history_leaves_a_sound_state(driven: MemoryLog) -> None:
    found = verify(driven.read(0, driven.high_watermark()))

    assert found.faults == []
    assert found.is_whole
    assert found.record_count + found.void_count == driven.high_watermark()
    assert found.turn_count > 100
    assert found.checkpoint_count == sum(1 for _ in _offsets_of(driven, Kind.CHECKPOINT_COMPLETED))
    assert min(found.payload_count, found.type_count, found.byte_count) > 0


@pytest.mark.slow
def test_the_state_at_a_checkpoint_is_that_at_its_offset_and_no_later_one(
    driven: MemoryLog,
) -> None:
    completed = list(_offsets_of(driven, Kind.CHECKPOINT_COMPLETED))
    assert len(completed) > 2
    for offset, checkpoint_id in completed[:3]:
        made = state_at(driven, checkpoint_id=checkpoint_id)
        assert made.state.last_checkpoint == checkpoint_id
        assert made.offset >= offset
        assert state_at(driven, offset=made.offset) == made
        before = state_at(driven, offset=offset - 1)
        assert before.state.last_checkpoint != checkpoint_id
        assert before.state.next_sequence < made.state.next_sequence


@pytest.mark.slow
def test_the_state_at_a_time_has_all_that_was_made_by_then(driven: MemoryLog) -> None:
    end = state_at(driven)
    middle = state_at(driven, offset=driven.high_watermark() // 2)
    since = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    time = since + dt.timedelta(microseconds=middle.state.timestamp_us)

    then = state_at(driven, time=time)

    assert then.state.timestamp_us == middle.state.timestamp_us
    assert middle.state.next_sequence <= then.state.next_sequence < end.state.next_sequence
    assert state_at(driven, time=since).record_count == 0
    assert state_at(driven, time=time + dt.timedelta(days=1)) == end
    assert end.state.phase is Phase.FINISHED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_id": 999}, "checkpoint is 999; it must be one that has completed"),
        ({"offset": 1, "checkpoint_id": 1}, "at most one of them"),
        ({"time": dt.datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001, that is the point
    ],
)
def test_a_place_that_is_none_is_refused(
    options: dict[str, object], message: str, driven: MemoryLog
) -> None:
    with pytest.raises(OptionError, match=message):
        state_at(driven, **options)  # type: ignore[arg-type]


def pruned() -> tuple[MemoryLog, MemoryLog]:
    """A log with three checkpoints, and the same without what stood before the snapshot behind the second."""
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)))
    attempt = job.register(0)
    for number in (1, 2, 3):
        job.advance(1.0)
        assert job.trigger() == number
        attempt.ack_checkpoint(number)
        if number == 2:
            job.ask("", SnapshotWanted(why="test"))
    short = MemoryLog("job")
    short.store(*_stored(job.log))
    (snapshot,) = (one for one in job.log.records if one.record().kind is Kind.SNAPSHOT)
    short.delete_below(snapshot.offset)
    return job.log, short


def test_each_reader_of_a_pruned_log_begins_with_what_its_snapshot_has() -> None:
    """A split was skipped before the snapshot, and a checkpoint is pending across it."""
    world = SplitWorld()
    world.play("register 0", "register 1", "trigger")
    world.job.ask("", SkipSplit(split_id="e", why="scripted")).answer()
    world.job.ask("", SnapshotWanted(why="test"))
    log = world.job.log
    *_, snapshot = (one for one in log.records if one.record().kind is Kind.SNAPSHOT)
    log.delete_below(snapshot.offset)
    tables = audit(log.records)
    assert [(row.split_id, row.place) for row in tables.splits] == [("e", SplitPlace.SKIPPED)]
    assert [row.status for row in tables.checkpoints] == [CheckpointStatus.PENDING]

    shown = state_at(log)
    assert (shown.splits, shown.checkpoints) == (tables.splits, tables.checkpoints)
    assert explain_split(log.records, "e").outcome == "split e is skipped"
    assert explain_checkpoint(log.records, 1).outcome == "checkpoint 1 is pending"
    printed = CliRunner().invoke(main, ["history", "job"], obj=lambda _servers: OneLog(log))
    assert "checkpoint 1 is pending; missing: " in printed.stdout


def test_before_the_beginning_of_a_pruned_log_nothing_can_be_shown() -> None:
    whole, short = pruned()
    start, end = short.start_offset(), short.high_watermark()
    for offset in (-1, 0, start - 1):
        with pytest.raises(OptionError) as refused:
            state_at(short, offset=offset)
        assert f"offset is {offset}; it must be {start} or above" in str(refused.value)
        assert "the file that the prune has archived" in str(refused.value)
    assert state_at(short, offset=start).state == state_at(whole, offset=start).state
    assert state_at(short, offset=end - 1).state == state_at(short).state

    began = short.records[0].record().timestamp_us
    at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=began)
    before = at - dt.timedelta(microseconds=1)
    asked, first = (one.isoformat().replace("+00:00", "Z") for one in (before, at))
    with pytest.raises(OptionError, match=f"time is '{asked}'; it must be {first} or later, where"):
        state_at(short, time=before)
    assert state_at(short, time=at).offset >= start
    assert state_at(whole, time=before).record_count > 0

    for checkpoint_id in (1, 2):
        with pytest.raises(
            OptionError,
            match=rf"checkpoint is {checkpoint_id}; .*\(3\) behind offset {start}, where",
        ):
            state_at(short, checkpoint_id=checkpoint_id)
    assert state_at(short, checkpoint_id=3).state == state_at(whole, checkpoint_id=3).state


def test_behind_the_last_record_there_is_no_state_yet(driven: MemoryLog) -> None:
    end = driven.high_watermark()
    for offset in (end, end + 1_000):
        with pytest.raises(
            OptionError, match=rf"offset is {offset}; it must be {end - 1} or below"
        ):
            state_at(driven, offset=offset)
    assert state_at(driven, offset=end - 1) == state_at(driven)
    with pytest.raises(OptionError, match=r"offset is 0; .* the log has no record"):
        state_at(MemoryLog("empty"), offset=0)
    assert state_at(MemoryLog("empty"), offset=-1) == state_at(MemoryLog("empty"))
    with pytest.raises(OptionError, match="offset is -2; it must be 0 or above"):
        state_at(driven, offset=-2)


def test_of_very_many_checkpoints_the_first_and_the_last_are_named() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)))
    attempt = job.register(0)
    for number in range(1, 13):
        job.trigger()
        attempt.ack_checkpoint(number)
    with pytest.raises(OptionError, match=r"in this log \(1, 2, 3, 4, 5, …, 8, 9, 10, 11, 12\)$"):
        state_at(job.log, checkpoint_id=99)


def test_what_differs_between_two_places_is_named_by_its_path() -> None:
    first: Json = {"a": 1, "b": {"x": [1], "gone": 2}, "same": {"y": 0}}
    second: Json = {"a": 2, "b": {"x": [1, 2], "new": 3}, "same": {"y": 0}}

    found = {one.path: (one.first, one.second) for one in differences(first, second)}

    assert found == {"a": (1, 2), "b.x": ([1], [1, 2]), "b.gone": (2, None), "b.new": (None, 3)}


@pytest.mark.slow
def test_a_state_as_json_is_its_own_and_differs_after_one_more_turn(driven: MemoryLog) -> None:
    half = driven.high_watermark() // 2
    first, again = (state_json(state_at(driven, offset=half).state) for _ in range(2))
    later = state_json(state_at(driven, offset=driven.high_watermark() - 1).state)

    assert first == again
    paths = [one.path for one in differences(first, later)]
    assert {"next_sequence", "phase"} <= set(paths)


def _changed(one: UnstoredRecord, **changes: object) -> UnstoredRecord:
    record = decode_record(-1, one.value, one.header)
    return to_unstored(replace(record, **changes))  # type: ignore[arg-type]


@pytest.mark.slow
def test_each_damage_is_found_at_its_offset(driven: MemoryLog) -> None:
    records = _stored(driven)
    completed = next(offset for offset, _ in _offsets_of(driven, Kind.CHECKPOINT_COMPLETED))
    registered = next(offset for offset, _ in _offsets_of(driven, Kind.TYPE_REGISTERED))
    acked = next(offset for offset, _ in _offsets_of(driven, Kind.EVENT_ACKED))

    def with_one(offset: int, one: UnstoredRecord) -> Verified:
        return _verified(*records[:offset], one, *records[offset + 1 :])

    cases = {
        "its key is": (acked, records[acked]._replace(key=b"elsewhere/0/0")),
        "the log's time": (acked, records[acked]._replace(timestamp_us=7_000)),
        "another fingerprint": (
            registered,
            _changed(records[registered], attributes={"fingerprint": "0" * 16}),
        ),
        "cannot be applied": (
            acked,
            _changed(records[acked], kind=Kind.ATTEMPT_FAILED, subtask=99),
        ),
        "its value and its header differ": (
            acked,
            records[acked]._replace(value=records[acked + 1].value),
        ),
        "is no coordlog.checkpoint_metadata": (
            completed,
            _changed(records[completed], payload=b"\x01"),
        ),
    }
    for message, (offset, one) in cases.items():
        found = with_one(offset, one)
        assert found.fault_count > 0, message
        assert found.faults[0].offset == offset, (message, found.faults)
        assert message in found.faults[0].what or not found.is_whole, found.faults[0]


def test_a_state_that_contradicts_itself_is_described(driven: MemoryLog) -> None:
    sound = state_at(driven, offset=driven.high_watermark() // 2).state
    assert faults_of(sound) == ()

    assert "are counted" in faults_of(replace(sound, live_count=sound.live_count + 1))[0]
    assert "not retained" in " ".join(faults_of(replace(sound, last_checkpoint=10**6)))
