"""Snapshots: the whole job state in the log, and every restore from the newest that can be trusted (clause K3)."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from coordlog import history
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import RecordError, RestoreError
from coordlog.log.copy import to_append
from coordlog.log.interface import StoredRecord, UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.offline.state_at import state_at
from coordlog.projections.inspection.verify import verify
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.projections.snapshot import codec as encoding
from coordlog.projections.snapshot.codec import SNAPSHOT_TYPE, SnapshotCodec, SnapshotUnusableError
from coordlog.projections.snapshot.splits_codec import SPLITS
from coordlog.projections.tables.audit import audit_records
from coordlog.restore import snapshots
from coordlog.restore.rebuild import Rebuild, projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions, to_unstored
from coordlog.schemas.builtin_types import JobSnapshot
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import Verdict, counted_turns
from coordlog.testing.driven_job import HandDrivenJob
from coordlog.testing.replay import replay
from fakes.kernel_fakes import HANDLED, NotingProvider, OtherUp, Up, chain_of, prefix_of
from fold_digests import chain_of_run, digests, fresh
from histories.one_log import OneLog
from histories.sweep_runs import RUNS
from histories.sweep_worlds import records_of
from state_digest import digest

GOLDEN = Path(__file__).parents[2] / "golden" / "snapshot-v1-paged.json"
FORMER = Path(__file__).parents[2] / "golden" / "snapshot-v1.json"
"""Of a version that encoded a source's splits otherwise."""
GOLDEN_RUN = "splits and commits"
FROM_THE_START: Any = None
TEXTS: DerivedCodec[Any] = DerivedCodec(tuple[str, ...])


def job_of(provider: NotingProvider | None = None, **options: Any) -> HandDrivenJob:  # noqa: ANN401, of a test
    every = options.pop("snapshot_every", 5)
    return HandDrivenJob(
        chain_of(provider or NotingProvider(projection=HANDLED)),
        options=RuntimeOptions(snapshot_every=every),
        **options,
    )


def worked(job: HandDrivenJob, count: int = 30) -> HandDrivenJob:
    """A job whose attempt has sent so many events, with a checkpoint among them."""
    attempt = job.register(0)
    for n in range(count):
        attempt.send("source", Up(n=n))
        if n == count // 2:
            job.trigger()
            attempt.ack_checkpoint(1, states={"source": b"half"})
    return job


def snapshots_in(log: MemoryLog) -> list[int]:
    """The offsets of all, of void ones too."""
    return [
        one.offset
        for one in log.records
        if one.header is not None and one.record().kind is Kind.SNAPSHOT
    ]


def restored(log: MemoryLog, provider: NotingProvider | None = None) -> Rebuild:
    chain = chain_of(provider or NotingProvider(projection=HANDLED))
    return rebuild(log, chain, projection_of(chain))


def changed(
    log: MemoryLog, changes: dict[int, Callable[[StoredRecord], UnstoredRecord]]
) -> MemoryLog:
    """The log with these of its records changed."""
    copy = MemoryLog("changed")
    for one in log.records:
        copy.store(changes.get(one.offset, to_append)(one))
    return copy


def rewritten(
    change: Callable[[JobSnapshot], JobSnapshot],
) -> Callable[[StoredRecord], UnstoredRecord]:
    """A snapshot whose payload has been changed, in an envelope that is whole."""

    def made(one: StoredRecord) -> UnstoredRecord:
        record = one.record()
        value = SNAPSHOT_TYPE.decode(record.payload or b"")
        assert isinstance(value, JobSnapshot)
        assert one.header is not None
        payload = SNAPSHOT_TYPE.encode(change(value))
        return to_unstored(
            replace(record, payload=payload), snapshot_offset=one.header.snapshot_offset
        )

    return made


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGE: dict[str, Callable[[JobSnapshot], JobSnapshot]] = {
    "a bit of its state": lambda one: replace(one, state=flipped(one.state, len(one.state) // 2)),
    "the first bit of its state": lambda one: replace(one, state=flipped(one.state, 0)),
    "its end": lambda one: replace(one, state=one.state[:-9]),
    "all of it": lambda one: replace(one, state=b""),
    "its checksum": lambda one: replace(one, state_sha256=flipped(one.state_sha256, 3)),
    "its length": lambda one: replace(one, state_bytes=one.state_bytes - 1),
    "a length of gigabytes": lambda one: replace(one, state_bytes=2**40),
    "a length below nothing": lambda one: replace(one, state_bytes=-1),
    "another version": lambda one: replace(one, state_version=2),
    "another schema": lambda one: replace(one, schema_fingerprint="0" * 16),
    "no state at all": lambda one: _holding(one, b"nothing"),
}


def _holding(one: JobSnapshot, data: bytes) -> JobSnapshot:
    """With a checksum that fits."""
    return replace(
        one,
        state=zlib.compress(data),
        state_bytes=len(data),
        state_sha256=hashlib.sha256(data).digest(),
    )


def _shifted(one: JobSnapshot) -> JobSnapshot:
    codec = SnapshotCodec(projection_of(chain_of(NotingProvider(projection=HANDLED))))
    state = codec.decode(one).state
    return codec.encode(replace(state, next_sequence=state.next_sequence + 1))


DAMAGE["a state of another place"] = _shifted


# --- encoding ---------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.clause("K3")
@pytest.mark.parametrize("name", RUNS)
def test_each_state_of_a_history_is_decoded_as_it_was_encoded(name: str) -> None:
    made, codec = fresh(name), SnapshotCodec(projection_of(chain_of_run(name)))
    log = RUNS[name].recorded().job.log
    hashes = set()
    for one in log.records:
        before = made.state
        made.feed(one)
        if made.state is before:
            continue
        decoded = codec.decode(codec.encode(made.state, checkpoint_offset=7))
        assert decoded.checkpoint_offset == 7
        assert decoded.state == made.state
        assert digest(decoded.state) == digest(made.state)
        assert codec.state_hash(decoded.state) == codec.state_hash(made.state)
        hashes.add(codec.state_hash(made.state))
    assert len(hashes) > 35, "states are told apart"


def test_states_at_retained_cuts_are_shared_and_are_in_a_snapshot_once() -> None:
    job = worked(job_of())
    codec = SnapshotCodec(projection_of(job.chain))
    (completed,) = job.runtime.state.completed.values()
    state = replace(
        job.runtime.state, projections=job.runtime.state.projections.set("source", (1,) * 1000)
    )
    cut = replace(completed.cuts["source"], projection=(1,) * 1000)
    cuts = completed.cuts.set("source", cut)
    twice = replace(state, completed=state.completed.set(1, replace(completed, cuts=cuts)))

    assert codec.encode(twice).state_bytes < codec.encode(state).state_bytes + 100
    decoded = codec.decode(codec.encode(twice)).state
    assert decoded.completed[1].cuts["source"].projection is decoded.projections["source"]


def golden() -> dict[str, str]:
    found: dict[str, str] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


@pytest.mark.clause("E9")
def test_a_snapshot_of_the_released_version_is_read() -> None:
    """A change of the job state is another version of it: then this file stays, and older snapshots are passed over."""
    snapshot = SNAPSHOT_TYPE.decode(bytes.fromhex(golden()["payload"]))
    assert isinstance(snapshot, JobSnapshot)
    chain = chain_of_run(GOLDEN_RUN)
    today = SnapshotCodec(projection_of(chain)).decode(snapshot)
    assert isinstance(chain.source.coordinator, SplitCoordinatorProvider)
    chain.source.coordinator.projection = SPLITS  # that of the released version
    codec = SnapshotCodec(projection_of(chain))
    decoded = codec.decode(snapshot)

    assert today == decoded
    assert (snapshot.state_version, golden()["schema"]) == (1, encoding.SCHEMA_JSON)
    assert digest(decoded.state) == golden()["digest"]
    assert decoded.state.completed[1].cuts["source"].projection.splits
    assert decoded.checkpoint_offset == 42
    assert codec.encode(decoded.state, checkpoint_offset=decoded.checkpoint_offset) == snapshot


@pytest.mark.clause("E9")
def test_a_snapshot_of_another_encoding_is_no_start_and_is_passed_over() -> None:
    former: dict[str, str] = json.loads(FORMER.read_text(encoding="utf-8"))
    snapshot = SNAPSHOT_TYPE.decode(bytes.fromhex(former["payload"]))
    assert isinstance(snapshot, JobSnapshot)

    with pytest.raises(SnapshotUnusableError, match=r"of operator 'source'.* another encoding"):
        SnapshotCodec(projection_of(chain_of_run(GOLDEN_RUN))).decode(snapshot)
    record = Record(
        epoch=0,
        driver_id="d",
        sequence=0,
        kind=Kind.SNAPSHOT,
        timestamp_us=0,
        job_id="job",
        payload_type=SNAPSHOT_TYPE.key,
        payload=bytes.fromhex(former["payload"]),
    )
    assert encoding.state_of(record).schemas


# --- what a driver writes ---------------------------------------------------------------------------------------------
@pytest.mark.clause("K3")
def test_a_snapshot_is_a_turn_of_its_own_every_so_many_records() -> None:
    log = worked(job_of(snapshot_every=10)).log
    found = snapshots_in(log)

    assert len(found) >= 3
    for offset in found:
        header = log.records[offset].header
        before = log.records[offset - 1].header
        assert header is not None
        assert before is not None
        assert (header.turn_remaining, before.turn_remaining) == (0, 0)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert all(10 <= gap <= 13 for gap in gaps), gaps  # a turn that is begun is ended first
    assert not snapshots_in(worked(job_of(snapshot_every=None)).log)
    assert not snapshots_in(worked(job_of(snapshot_every=10_000)).log)


def test_headers_name_the_newest_snapshot_from_its_release_on() -> None:
    job = job_of()
    attempt = job.register(0)
    while not snapshots_in(job.log):
        attempt.send("source", Up(n=1))
    (first,) = snapshots_in(job.log)
    assert {one.header.snapshot_offset for one in job.log.records if one.header} == {-1}

    attempt.send("source", Up(n=2))
    assert job.log.records[-1].header is not None
    assert job.log.records[-1].header.snapshot_offset == first
    job.is_held = True
    for n in range(20):
        attempt.send("source", Up(n=n))
    job.release()
    held = [one for one in job.log.records if one.offset > first + 1]
    assert {one.header.snapshot_offset for one in held if one.header} == {first}
    assert len(snapshots_in(job.log)) == 2, "one at a time waits for the log"


@pytest.mark.may_fail("scripted")
def test_a_driver_takes_no_snapshot_behind_the_end_of_its_job() -> None:
    for name in RUNS:
        log = RUNS[name].recorded().job.log
        kinds = [one.kind for one in records_of(log)]
        assert Kind.SNAPSHOT not in kinds[kinds.index(Kind.JOB_FINISHED) :]


def test_a_snapshot_knows_where_the_last_checkpoint_completed() -> None:
    log = worked(job_of()).log
    whole = Rebuild(projection_of(chain_of(NotingProvider(projection=HANDLED))), Types)
    for one in log.records:
        whole.feed(one)
    made = restored(log)

    assert made.started_at is not None
    assert made.checkpoint_offset is not None
    assert made.started_at > made.checkpoint_offset
    assert made.checkpoint_offset == whole.checkpoint_offset


Types = chain_of(NotingProvider()).payload_types


def test_a_projection_without_a_codec_has_no_snapshots_and_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bare = replace(HANDLED, codec=None)
    job = worked(job_of(NotingProvider(projection=bare)))
    said = [one for one in caplog.records if "no snapshots" in one.message]

    assert not snapshots_in(job.log)
    assert len(said) == 1
    assert "the operators source have no codec" in said[0].message
    assert "DerivedCodec" in said[0].message


@pytest.mark.parametrize("is_raising", [True, False])
def test_a_codec_that_does_not_round_trip_means_no_snapshots(
    caplog: pytest.LogCaptureFixture, *, is_raising: bool
) -> None:
    class Forgetful:
        fingerprint = "1"

        def encode(self, state: tuple[int, ...]) -> bytes:
            if is_raising:
                raise OSError("no")
            return b""

        def decode(self, data: bytes) -> tuple[int, ...]:
            return (-1,)

    job = worked(job_of(NotingProvider(projection=replace(HANDLED, codec=Forgetful()))))

    assert not snapshots_in(job.log)
    assert len([one for one in caplog.records if one.levelno >= logging.ERROR]) == 1
    assert ("OSError" if is_raising else "does not return the state") in caplog.text
    assert len(job.runtime.state.projections["source"]) == 30, "the job goes on"


@pytest.mark.parametrize(
    ("where", "limit", "value", "told"),
    [
        (snapshots, "RECORD_BYTES_MAX", 2_100, "a record holds 2100"),
        (encoding, "SNAPSHOT_STATE_BYTES_MAX", 100, "bytes, and 100 are read"),
    ],
)
def test_a_state_that_is_too_large_is_reported_and_tried_again_later(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    where: ModuleType,
    limit: str,
    value: int,
    told: str,
) -> None:
    monkeypatch.setattr(where, limit, value)
    job = worked(job_of(snapshot_every=10), 60)
    said = [one.message for one in caplog.records if "no snapshot:" in one.message]

    assert not snapshots_in(job.log)
    assert 2 <= len(said) <= 3, "after 10, 20, 40 records"
    assert told in said[0]
    assert "a restore folds from offset 0; tried again after 20 records" in said[0]
    assert "after 40 records" in said[1]


# --- where a reader starts --------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.clause("K3")
@pytest.mark.parametrize("name", RUNS)
def test_a_fold_from_every_snapshot_equals_the_whole_fold_at_each_record(
    name: str,
) -> None:
    log = RUNS[name].recorded().job.log
    whole = list(digests(name, log.records))
    at_once = fresh(name)
    at_once.catch_up(log, log.high_watermark())
    counting = {one.entries[0].offset for one in counted_turns(log.records)}
    found = [one for one in snapshots_in(log) if one in counting]
    assert len(found) >= 4
    codec = SnapshotCodec(projection_of(chain_of_run(name)))
    for offset in found:
        named = prefix_of(log, offset + 1)
        named.store(_naming(offset))
        search = history.History(named).search(codec)
        assert search.snapshot is not None, search.passed_over
        assert search.snapshot.beginning.offset == offset
        made = fresh(name)
        made.begin_at(search)
        for one in log.records[offset:]:
            made.feed(one)
            assert digest(made.state) == whole[one.offset], (offset, one.offset)
        assert made.place == at_once.place
        assert made.checkpoint_offset == at_once.checkpoint_offset
        assert made.newest_snapshot == at_once.newest_snapshot
        assert made.state == at_once.state


def _naming(offset: int) -> UnstoredRecord:
    """A void record that names a snapshot."""
    record = Record(
        epoch=-1, driver_id="", sequence=0, kind=Kind.FACT, timestamp_us=0, job_id="job"
    )
    return to_unstored(record, snapshot_offset=offset)


@pytest.mark.clause("K3")
def test_a_restore_starts_from_the_newest_named_snapshot() -> None:
    log = worked(job_of()).log
    *_, newest = snapshots_in(log)
    named = log.records[-1].header
    assert named is not None
    made = restored(log)

    assert made.started_at == named.snapshot_offset
    assert newest - 1 <= (made.started_at or 0) <= newest or made.started_at in snapshots_in(log)
    assert made.record_count == log.high_watermark() - (made.started_at or 0)
    assert made.newest_snapshot.offset == newest
    again = job_of(log=log)
    assert again.log.records[log.high_watermark() - 1].header is not None
    started = next(one for one in log.records if one.header and one.header.epoch == 1)
    assert started.header is not None
    assert started.header.snapshot_offset == newest, "the new driver names it from its first record"


@pytest.mark.clause("K3")
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_snapshot_is_replaced_by_the_one_before_or_the_start(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = worked(job_of()).log
    whole = restored(changed(log, {}))
    chain = sorted(_chain(log), reverse=True)
    assert len(chain) >= 3
    for count in range(1, len(chain) + 1):
        caplog.clear()
        bad = changed(log, {one: rewritten(DAMAGE[name]) for one in chain[:count]})
        made = restored(bad)

        expected = chain[count] if count < len(chain) else FROM_THE_START
        assert made.started_at == expected
        assert digest(made.state) == digest(whole.state)
        assert (made.place, made.checkpoint_offset) == (whole.place, whole.checkpoint_offset)
        assert len([one for one in caplog.records if "passed over" in one.message]) == count
        assert made.newest_snapshot.offset not in chain[:count]


def _chain(log: MemoryLog) -> list[int]:
    """The snapshots that can be reached from the last record, by a twin of the search."""
    found, at = [], log.records[-1]
    while at.header is not None and at.header.snapshot_offset >= 0:
        found.append(at.header.snapshot_offset)
        at = log.records[at.header.snapshot_offset]
    return found


@pytest.mark.clause("E9")
def test_a_snapshot_with_a_damaged_envelope_is_refused_as_any_record() -> None:
    log = worked(job_of()).log
    newest = max(_chain(log))
    bad = changed(
        log, {newest: lambda one: to_append(one)._replace(value=(one.value or b"")[:-30])}
    )
    with pytest.raises(RecordError, match=f"offset {newest}"):
        restored(bad)


def test_a_name_that_is_no_snapshots_is_passed_over() -> None:
    log = worked(job_of()).log
    whole, end = restored(log), log.high_watermark()
    for offset in (0, end - 1):
        wrong = prefix_of(log, end)
        for _ in range(70):
            wrong.store(_naming(offset))
        made = restored(wrong)
        assert made.state == whole.state
    beyond = prefix_of(log, end)
    for _ in range(70):
        beyond.store(_naming(end + 1_000))
    made = restored(beyond)
    assert (made.state, made.started_at) == (whole.state, whole.started_at)


@pytest.mark.clause("K2")
def test_a_snapshot_of_a_fenced_driver_is_no_place_to_start() -> None:
    first = job_of(snapshot_every=20)
    attempt = first.register(0)
    attempt.send("source", Up(n=1))
    first.is_held = True
    for n in range(30):
        attempt.send("source", Up(n=n))
    group = first.runtime.turns.take_group()
    second = job_of(log=first.log, snapshot_every=None)
    first.log.store(*group)  # late: all of it is void
    (void,) = snapshots_in(first.log)
    second.register(0).send("source", Up(n=2))
    made = restored(first.log)

    verdicts = [one.verdict for one in audit_records(first.log.records)]
    assert verdicts[void] is Verdict.VOID_EPOCH
    assert made.started_at is FROM_THE_START
    assert made.newest_snapshot == snapshots.NO_SNAPSHOT
    assert made.state == second.runtime.state


def test_a_late_record_of_an_older_driver_names_an_older_usable_snapshot() -> None:
    job = worked(job_of())
    older, *_ = sorted(_chain(job.log))
    job.log.store(_naming(older))
    made = restored(job.log)
    assert made.started_at == max(_chain(prefix_of(job.log, job.log.high_watermark() - 1)))

    for _ in range(70):
        job.log.store(_naming(older))
    again = restored(job.log)
    assert again.started_at == older
    assert again.state == made.state


def test_behind_a_thousand_records_of_other_programs_the_newest_is_found() -> None:
    job = worked(job_of())
    expected = restored(job.log).started_at
    for _ in range(1_000):
        job.log.store(UnstoredRecord(key=b"", value=b"noise", header=b"", timestamp_us=0))
    made = restored(job.log)

    assert (made.started_at, made.void_count) == (expected, 1_000)


@pytest.mark.clause("E9")
def test_a_log_without_its_beginning_needs_a_snapshot_to_be_restored() -> None:
    log = worked(job_of()).log
    whole = restored(log)
    first, *_ = sorted(_chain(log))
    log.remove_below(first - 1)
    made = restored(log)
    assert made.state == whole.state

    bare = worked(job_of(snapshot_every=None)).log
    bare.remove_below(3)
    with pytest.raises(RestoreError, match="the log starts at 3"):
        restored(bare)


def test_a_log_that_begins_with_a_snapshot_starts_there_even_if_unnamed() -> None:
    job = job_of()
    attempt = job.register(0)
    while not snapshots_in(job.log):
        attempt.send("source", Up(n=1))
    (only,) = snapshots_in(job.log)
    assert only == job.log.high_watermark() - 1
    whole = restored(prefix_of(job.log, only + 1))
    assert whole.started_at is FROM_THE_START
    job.log.remove_below(only)
    made = restored(job.log)

    assert made.started_at == only
    assert made.state == whole.state


def test_an_audit_of_a_log_with_a_first_snapshot_has_the_earlier_schemas() -> None:
    job = worked(job_of())
    first, *_ = snapshots_in(job.log)
    job.log.remove_below(first)
    found = list(audit_records(job.log.read(first, job.log.high_watermark())))
    events = [one for one in found if one.record and one.record.kind is Kind.EVENT_TO_COORDINATOR]

    assert events
    assert all(one.counts for one in found)
    assert all(one.fields and set(one.fields) == {"n"} for one in events)


# --- jobs that have changed -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "projection",
    [
        replace(HANDLED, version=2),
        replace(HANDLED, name="test.other"),
        replace(HANDLED, codec=TEXTS),
        replace(HANDLED, codec=None),
        OperatorProjection(
            name="test.counted",
            version=1,
            initial=0,
            apply=lambda s, _r, _v: s + 1,
            codec=DerivedCodec(int),
        ),
    ],
)
def test_another_projection_is_folded_from_the_start(projection: OperatorProjection[Any]) -> None:
    log = worked(job_of()).log
    provider = NotingProvider(projection=projection)
    made = restored(log, provider)
    whole = rebuild(log, chain_of(provider), projection_of(chain_of(provider)), is_whole=True)

    assert made.started_at is FROM_THE_START
    assert made.state.projections["source"] == whole.state.projections["source"] != ()


def test_an_operator_that_lost_its_projection_is_as_folded_from_the_start() -> None:
    log = worked(job_of()).log
    chain = chain_of(NotingProvider())
    made = rebuild(log, chain, projection_of(chain))
    whole = rebuild(log, chain, projection_of(chain), is_whole=True)

    assert made.started_at is not None
    assert made.state == whole.state
    assert made.state.completed[1].cuts["source"].projection is None


def test_a_type_with_another_schema_is_refused_as_from_the_start() -> None:
    log = worked(job_of()).log
    provider = NotingProvider(payload_types=(OtherUp,), projection=HANDLED)
    with pytest.raises(RecordError, match=r"TYPE_REGISTERED.*has schema") as refused:
        restored(log, provider)
    assert refused.value.offset < min(snapshots_in(log))


@pytest.mark.clause("E8")
def test_a_used_type_that_is_undeclared_is_refused_as_from_the_start() -> None:
    log = worked(job_of()).log
    provider = NotingProvider(payload_types=(), projection=HANDLED)
    with pytest.raises(RecordError, match="is not one of this job's"):
        restored(log, provider)


@pytest.mark.clause("E8")
def test_a_job_that_lost_an_operator_starts_from_its_own_snapshots_only() -> None:
    """Whether the lost one alone has used a type that nobody declares any more only a whole fold tells, once."""
    both = chain_of(
        NotingProvider(projection=HANDLED),
        NotingProvider(operator_id="sink", payload_types=(), projection=HANDLED),
    )
    job = worked(HandDrivenJob(both, options=RuntimeOptions(snapshot_every=5)))
    alone = chain_of(NotingProvider(operator_id="sink", payload_types=(), projection=HANDLED))
    allowed = {"allow_non_restored_state": ["source"], "restore": "rollback"}

    second = HandDrivenJob(alone, log=job.log, options=RuntimeOptions(snapshot_every=5), **allowed)  # type: ignore[arg-type]
    assert rebuild(prefix_of(job.log, 30), alone, projection_of(alone)).started_at is FROM_THE_START
    for _ in range(5):
        second.register(0)
    made = rebuild(job.log, alone, projection_of(alone))
    assert made.started_at is not None
    whole = rebuild(job.log, alone, projection_of(alone), is_whole=True)
    assert made.state == whole.state
    for back_again in (NotingProvider(payload_types=()), NotingProvider(projection=HANDLED)):
        both = chain_of(back_again, NotingProvider(operator_id="sink", payload_types=()))
        if not back_again.payload_types:
            with pytest.raises(RecordError, match="is not one of this job's"):
                rebuild(job.log, both, projection_of(both))
        else:
            assert rebuild(job.log, both, projection_of(both)).started_at is FROM_THE_START


# --- other readers ----------------------------------------------------------------------------------------------------
@pytest.mark.clause("K7")
@pytest.mark.parametrize(
    "name", ["splits and commits", "batch with kept splits", "batch without kept splits"]
)
def test_a_replay_passes_over_snapshots(name: str) -> None:
    world = RUNS[name].recorded()
    found = replay(world.job.log, chain_of_run(name), configure=_as_they_ran)
    assert found.passed_over_count >= len(snapshots_in(world.job.log))


def _as_they_ran(config: Any) -> Any:  # noqa: ANN401, of a test
    return replace(config, restarts_max=1_000, restart_backoff_s=0.1, restart_backoff_max_s=0.4)


def test_damage_is_told_by_both_values() -> None:
    job = worked(job_of())
    codec = SnapshotCodec(projection_of(job.chain))
    good = codec.encode(job.runtime.state)
    with pytest.raises(
        SnapshotUnusableError, match=r"it is damaged: \d+ bytes with SHA-256 .*, and it records"
    ):
        codec.decode(replace(good, state_bytes=good.state_bytes - 1))
    with pytest.raises(SnapshotUnusableError, match="of version 9, schema"):
        codec.decode(replace(good, state_version=9))


def test_a_large_state_is_encoded_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_BYTES_PER_RECORD", 50)
    monkeypatch.setattr(snapshots, "SNAPSHOT_CHEAP_BYTES", 0)
    log = worked(job_of(snapshot_every=10), 60).log
    found = snapshots_in(log)
    records = [log.records[n].record() for n in found]
    sizes = [SNAPSHOT_TYPE.decode(one.payload or b"").state_bytes for one in records]  # type: ignore[attr-defined]

    assert len(found) >= 2
    for size, (one, following) in zip(sizes, itertools.pairwise(found), strict=False):
        wait = size // 50
        assert wait > 15
        assert wait <= following - one <= wait + 3


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_verification_compares_each_snapshot_with_the_fold_there(name: str) -> None:
    log = RUNS[name].recorded().job.log
    found = verify(log.records)
    counting = [one for one in records_of(log) if one.kind is Kind.SNAPSHOT]

    assert found.faults == []
    assert found.snapshot_count == len(counting) >= 4


def test_verify_names_a_snapshot_that_is_damaged_or_of_another_state() -> None:
    log = worked(job_of()).log
    first, second, *_ = snapshots_in(log)
    other = log.records[second].record()
    found = verify(
        changed(
            log,
            {
                first: rewritten(DAMAGE["its checksum"]),
                second: rewritten(lambda _one: _of_another_time(other)),
            },
        ).records
    )

    assert [one.offset for one in found.faults] == [first, second]
    assert "no place to start from: it is damaged" in found.faults[0].what
    assert found.faults[1].what == "the snapshot's state is not the fold's there"


def test_verify_names_snapshots_of_other_versions_that_it_cannot_compare() -> None:
    log = worked(job_of()).log
    first, second, third, *more = snapshots_in(log)
    assert verify(log.records).other_snapshots == {}
    newer = changed(
        log,
        {
            first: rewritten(DAMAGE["another version"]),
            second: rewritten(DAMAGE["another version"]),
            third: rewritten(DAMAGE["another schema"]),
        },
    )
    here = SNAPSHOT_TYPE.decode(log.records[first].record().payload or b"")
    assert isinstance(here, JobSnapshot)
    two, other = (
        f"state version 2, schema {here.schema_fingerprint}",
        f"state version 1, schema {'0' * 16}",
    )
    newer._partition.identity = log.identity  # it stands for the log itself
    found = verify(newer.records)

    assert found.faults == [], "no damage that this version could tell"
    assert found.other_snapshots == {two: 2, other: 1}
    assert found.snapshot_count == len(more)
    shown = CliRunner().invoke(main, ("verify", "job"), obj=lambda _servers: OneLog(newer))
    assert shown.exit_code == Exit.DONE, shown.output
    *_, one, another, last = shown.stdout.splitlines()
    assert one.startswith(
        f"1 snapshots of {other} were not compared with the fold: another version"
    )
    assert another.startswith(f"2 snapshots of {two} were not compared")
    assert last == "all that could be checked holds"
    as_json = CliRunner().invoke(
        main, ("verify", "job", "--json"), obj=lambda _servers: OneLog(newer)
    )
    assert json.loads(as_json.stdout)["other_snapshots"] == {two: 2, other: 1}

    newer.delete_below(first)
    (fault,) = verify(newer.records).faults
    assert fault.offset == first
    assert fault.what.startswith(
        "the log begins with this snapshot: its state is of version 2, schema "
    )
    assert fault.what.endswith("; use the version that wrote it")


def _of_another_time(record: Record) -> JobSnapshot:
    codec = SnapshotCodec(projection_of(chain_of(NotingProvider(projection=HANDLED))))
    state = codec.decode(encoding.snapshot_in(record)).state
    return codec.encode(replace(state, aborts_in_a_row=3))


def test_a_log_that_begins_with_a_snapshot_is_inspected_from_there() -> None:
    job = worked(job_of())
    whole = state_at(job.log)
    first, *_ = snapshots_in(job.log)
    job.log.remove_below(first)
    found = verify(job.log.read(first, job.log.high_watermark()))

    assert state_at(job.log).state == whole.state
    assert (found.faults, found.is_whole) == ([], True)
