"""A log begins with a snapshot that fits a record: what coordinators remember may be in the payload store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result
from immutables import Map

from coordlog.api.chain import Chain
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import PayloadLostError, RequestError, RestoreError
from coordlog.limits import RECORD_BYTES_MAX
from coordlog.log.copy import to_append
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.offline.adopt import adopt
from coordlog.offline.fork import find_fork_point, fork_to
from coordlog.offline.prune import planned, prune
from coordlog.payloads.gc import FileUse, clean_former, payload_use
from coordlog.payloads.offload import DriverPayloads, PayloadOptions
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.state import JobState
from coordlog.projections.snapshot.codec import SnapshotCodec
from coordlog.restore.rebuild import Rebuild, projection_of, rebuild
from coordlog.restore.snapshots import SnapshotMisfitError, standing_snapshot
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import SnapshotTaken, SnapshotWanted
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload_address import PayloadAddress, owner_of
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import ended
from fakes.split_fakes import ask, chain_of, pull_of
from histories.one_log import OneLog

pytestmark = pytest.mark.clause("E9")

SMALL = 5_300
"""Bytes of a record, for tests with few splits: 400 of them do not fit, the rest of the state does."""
STRANGE = b"coordlog-payload:7:of a newer version"
PRUNE = ("prune", "job", "--yes", "--take-over")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    return tmp_path / "home"


@pytest.fixture
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordlog.restore.snapshots.RECORD_BYTES_MAX", SMALL)
    monkeypatch.setattr("coordlog.restore.snapshots.SNAPSHOT_PART_BYTES", 1_000)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "payloads")


def options_of(url: str) -> PayloadOptions:
    return PayloadOptions(store=PayloadStore(url, "job"))


def names(count: int) -> Sequence[str]:
    """Such as Spark gives files: no packing makes them much shorter."""
    chance = Random(count)
    return [f"in/part-{n:06d}-{chance.getrandbits(128):032x}.csv" for n in range(count)]


def job_of(count: int, log: MemoryLog | None = None, **more: object) -> HandDrivenJob:
    return HandDrivenJob(chain_of(pull_of(*names(count))), log=log, **more)  # type: ignore[arg-type]


def run(log: MemoryLog, *arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, obj=lambda _servers: OneLog(log, "job"))


def kinds(log: MemoryLog) -> list[Kind]:
    return [one.record().kind for one in log.read(log.start_offset(), log.high_watermark())]


def folded(log: MemoryLog, chain: Chain, url: str | None = None) -> Rebuild:
    if url is not None:
        chain = chain.opening(DriverPayloads(options_of(url)).open)
    return rebuild(log, chain, projection_of(chain))


@pytest.mark.slow
def test_a_job_of_60000_files_is_pruned_with_a_payload_store_and_continues(url: str) -> None:
    job = job_of(60_000, payloads=options_of(url))
    ended(job)
    whole = folded(job.log, job.chain, url).state
    done = run(job.log, *PRUNE)

    assert done.exit_code == Exit.DONE, done.output
    assert f"it starts only with that store, {url}" in done.stderr
    assert kinds(job.log) == [Kind.SNAPSHOT]
    (snapshot,) = job.log.read(job.log.start_offset(), job.log.high_watermark())
    assert len(snapshot.value or b"") < RECORD_BYTES_MAX // 100
    assert folded(job.log, job.chain, url).state.projections == whole.projections
    assert "1 stored payload " in run(job.log, "verify", "job").stdout
    again = job_of(60_000, job.log, clock=job.clock, payloads=options_of(url))
    attempt = again.register(0)
    ask(attempt)
    ended(again)
    continued = folded(job.log, job.chain, url).state
    # The second snapshot starts from the state that the first one has stored.
    assert run(job.log, *PRUNE).exit_code == Exit.DONE
    assert kinds(job.log) == [Kind.SNAPSHOT]
    assert folded(job.log, job.chain, url).state.projections == continued.projections
    assert verify(job.log.records, open_payload=None).faults == []


@pytest.mark.usefixtures("small_records")
def test_a_driver_stores_nothing_of_a_snapshot_that_does_not_fit(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordlog.restore.snapshots.RECORD_BYTES_MAX", 2_900)
    job = job_of(400, payloads=options_of(url), options=RuntimeOptions(snapshot_every=None))
    with pytest.raises(RequestError, match="and a record holds 2900") as refused:
        job.ask("", SnapshotWanted(why="test")).answer()
    ask(job.register(0))

    assert not PayloadStore(url, "job").listed()
    assert "--release" not in str(refused.value)


@pytest.mark.usefixtures("small_records")
def test_what_to_do_is_what_the_state_has_to_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordlog.restore.snapshots.RECORD_BYTES_MAX", 2_900)
    job = job_of(400, parallelism=1)
    attempt = job.register(0)
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    attempt.ack_checkpoint(checkpoint_id, states={"source": b"remembered"})
    job.crash()
    state = job.runtime.state
    codec = SnapshotCodec(projection_of(job.chain))

    def advice(state: JobState) -> str:
        with pytest.raises(SnapshotMisfitError) as misfit:
            standing_snapshot(codec, state, checkpoint_offset=None, owner="0-driver-0")
        return misfit.value.next_step

    less, go = "reduce the states of the subtasks", "release savepoints"
    assert advice(state) == less
    kept = evolve(state, savepoints=Map({"mine": checkpoint_id}))
    assert advice(kept) == f"{go} (`coordlog savepoint JOB NAME --release`), or {less}"
    assert advice(evolve(state, completed=Map())) == ""


@pytest.mark.usefixtures("small_records")
def test_a_state_that_fits_stays_in_the_log_whole_though_there_is_a_store(url: str) -> None:
    job = job_of(20, payloads=options_of(url))
    ended(job)
    assert run(job.log, *PRUNE).exit_code == Exit.DONE

    assert folded(job.log, job.chain).state.projections
    assert not PayloadStore(url, "job").listed()


@pytest.mark.usefixtures("small_records")
def test_a_driver_that_does_not_have_the_store_is_refused_by_its_name(url: str) -> None:
    job = job_of(400, payloads=options_of(url))
    ended(job)
    assert run(job.log, *PRUNE).exit_code == Exit.DONE
    end = job.log.high_watermark()

    with pytest.raises(RestoreError, match="looked for in no payload store") as refused:
        job_of(400, job.log)
    assert f"the history names {url!r}" in str(refused.value)
    assert job.log.high_watermark() == end
    assert run(job.log, "history", "job").exit_code == Exit.DONE


@pytest.mark.usefixtures("small_records")
def test_a_part_of_a_snapshot_is_addressed_in_a_log_that_is_not_pruned_too(url: str) -> None:
    """The next driver cleans the left-over payloads of former drivers."""
    job, store = job_of(400, payloads=options_of(url)), PayloadStore(url, "job")
    ended(job)
    again = job_of(400, job.log, clock=job.clock, payloads=options_of(url))
    end = job.log.high_watermark()
    assert clean_former(job.log, store, epoch=again.runtime.state.epoch, end_offset=end) == 0

    assert [file.use for file in payload_use(job.log, store).files] == [FileUse.ADDRESSED]


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize("is_dropping", [False, True])
def test_a_part_of_a_removed_snapshot_is_removed_if_payloads_are_dropped(
    url: str, *, is_dropping: bool
) -> None:
    """It is of the epoch in which the log began; no other payload of that epoch is removed."""
    command = (*PRUNE, *(("--drop-payloads",) if is_dropping else ()))
    store, job = PayloadStore(url, "job"), job_of(400, payloads=options_of(url))
    ended(job)
    assert run(job.log, *command).exit_code == Exit.DONE
    (first,) = store.listed()
    archived = PayloadAddress.of(b"an archive may address it", first.owner)
    store.put(archived, b"an archive may address it")
    for _ in range(2):
        again = job_of(400, job.log, clock=job.clock, payloads=options_of(url))
        ended(again)
        job.clock = again.clock
        done = run(job.log, *command)
        assert done.exit_code == Exit.DONE, done.output

    uses = [file.use for file in payload_use(job.log, store).files]
    assert uses.count(FileUse.ADDRESSED) == 1
    assert uses.count(FileUse.UNKNOWN) == (1 if is_dropping else 3)
    assert (first.path in {file.path for file in store.listed()}) is not is_dropping
    store.find(archived)
    assert folded(job.log, job.chain, url).state.projections


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_no_log_begins_with_a_snapshot_of_which_a_part_is_lost(
    url: str, tmp_path: Path, harm: str
) -> None:
    job, store = job_of(400, payloads=options_of(url)), PayloadStore(url, "job")
    ended(job)
    (part,) = store.listed()
    if harm == "lost":
        store.remove([part])
    else:
        (Path(store.where) / part.path).write_bytes(part.size_bytes * b"x")
    records = job.log.records
    plan = planned(job.log, "job")
    with pytest.raises(PayloadLostError):
        prune(job.log, "job", plan, tmp_path / "archive.avro", DriverPayloads(options_of(url)).open)

    assert job.log.records == records
    checked = run(job.log, "verify", "job", "--payload-store", url)
    assert f"offset {records[-1].offset}" in checked.stdout
    # The records before it are enough for a restart.
    assert folded(job.log, job.chain, url).started_at is None


@pytest.mark.usefixtures("small_records")
def test_a_requested_snapshot_too_large_for_a_record_is_stored_in_parts(url: str) -> None:
    bare = job_of(400)
    with pytest.raises(RequestError, match=rf"a record holds {SMALL}; name a folder for large"):
        bare.ask("", SnapshotWanted(why="test")).answer()
    job = job_of(400, payloads=options_of(url), options=RuntimeOptions(snapshot_every=None))
    answer = job.ask("", SnapshotWanted(why="test")).answer()
    state = job.runtime.state
    job.crash()

    (snapshot,) = job.history(Kind.SNAPSHOT)
    assert answer.response == SnapshotTaken(payload_bytes=len(snapshot.payload or b""))
    assert len(snapshot.payload or b"") < SMALL
    place = len(job.log.records) - 1
    job.log.delete_below(place)
    assert folded(job.log, job.chain, url).state == state


@pytest.mark.usefixtures("small_records")
def test_a_job_that_begins_from_another_takes_along_what_is_apart(url: str) -> None:
    job = job_of(400, payloads=options_of(url), parallelism=1)
    attempt = job.register(0)
    job.ask("", SnapshotWanted(why="test"))
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    attempt.ack_checkpoint(checkpoint_id, states={"source": b""})
    job.crash()
    log = MemoryLog("other")
    store = PayloadStore(url, "job")
    beginning = find_fork_point(job.log, "job", str(checkpoint_id))
    fork_to(job.log, log, beginning, job_id="other", payload_store=store)

    ours = {one.path for one in PayloadStore(url, "other").listed()}
    assert ours
    assert ours == {one.path for one in store.listed()}


@pytest.mark.usefixtures("small_records")
def test_an_unreadable_address_is_no_place_to_begin_or_start(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(400, payloads=options_of(url))
    monkeypatch.setattr(PayloadAddress, "encode", lambda _self: STRANGE)
    ended(job)
    records = job.log.records
    plan = planned(job.log, "job")

    assert plan.begins_with is None
    assert "is no address of a stored payload that this version reads" in plan.why_not
    assert folded(job.log, job.chain, url).started_at is None
    (fault,) = verify(records).faults
    assert "is no address of a stored payload" in fault.what


@pytest.mark.usefixtures("small_records")
def test_a_whole_snapshot_at_an_address_of_a_newer_version_is_passed_over(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = PayloadOptions(store=PayloadStore(url, "job"), limit_bytes=64)
    seal = DriverPayloads.seal

    def newer_seal(one: DriverPayloads, what: str, kind: str | None, data: bytes) -> bytes:
        return STRANGE if what == "a snapshot" else seal(one, what, kind, data)

    with monkeypatch.context() as newer:
        newer.setattr(DriverPayloads, "seal", newer_seal)
        job = job_of(400, payloads=stored, options=RuntimeOptions(snapshot_every=1))
        job.crash()
    assert kinds(job.log)[-1] is Kind.SNAPSHOT
    left = PayloadAddress.of(b"left over", owner_of(0, "driver-0"))
    PayloadStore(url, "job").put(left, b"left over")

    assert folded(job.log, job.chain, url).started_at is None
    assert [one.use for one in payload_use(job.log, PayloadStore(url, "job")).files] == [
        FileUse.IN_FORCE
    ]
    end = job.log.high_watermark()
    assert clean_former(job.log, PayloadStore(url, "job"), epoch=5, end_offset=end) == 1
    refused = run(job.log, *PRUNE, "--payload-store", url)
    assert refused.exit_code == Exit.USAGE
    assert "no snapshot can be used" in refused.stderr
    assert job.log.start_offset() == 0


def _completed(job: HandDrivenJob, attempt: FakeAttempt, count: int) -> None:
    """Complete so many checkpoints."""
    for _ in range(count):
        number = job.trigger()
        assert number is not None
        attempt.ack_checkpoint(number)


@pytest.mark.parametrize(("count", "is_completed_since"), [(6, True), (7, False)])
def test_a_moved_job_starts_from_a_snapshot_that_is_stored_whole(
    url: str,
    count: int,
    is_completed_since: bool,  # noqa: FBT001, a parameter
) -> None:
    """The copy cannot change the offset in a stored snapshot, which is that of a record of the former log."""
    options = PayloadOptions(store=PayloadStore(url, "job"), limit_bytes=100)
    job = job_of(3, payloads=options, options=RuntimeOptions(snapshot_every=20))
    attempt = job.register(0)
    _completed(job, attempt, 20)
    job.ask("", SnapshotWanted(why="prune")).answer()
    plan = planned(job.log, "job")
    assert plan.begins_with is not None
    job.log.delete_below(plan.begins_with.offset)
    _completed(job, attempt, count)
    state = job.runtime.state
    job.crash()
    moved = MemoryLog("moved")
    adopt(job.log, moved, "job")

    again = folded(moved, job.chain, url)

    assert again.started_at is not None
    assert again.started_at > moved.start_offset(), "not from the first, which is in the log"
    assert again.state.completed == state.completed
    assert (again.checkpoint_offset is not None) is is_completed_since, (
        "the snapshot's is forgotten"
    )
    assert again.checkpoint_offset is None or (
        next(moved.read(again.checkpoint_offset, again.checkpoint_offset + 1))
        .record()
        .checkpoint_id
        == state.last_checkpoint
    )
    new = job_of(3, moved, payloads=options)
    assert new.register(0).accepted.restored_checkpoint == state.last_checkpoint


def test_a_mirrored_job_starts_though_a_foreign_record_is_at_that_offset(url: str) -> None:
    """As above: the record at the offset that a stored snapshot has is one of another program."""
    options = PayloadOptions(store=PayloadStore(url, "job"), limit_bytes=100)
    job = job_of(3, payloads=options, options=RuntimeOptions(snapshot_every=20))
    attempt = job.register(0)
    _completed(job, attempt, 1)
    for _ in range(20):
        ask(attempt)
    state = job.runtime.state
    started = folded(job.log, job.chain, url)
    assert started.started_at is not None
    offset = started.checkpoint_offset
    assert offset is not None
    assert offset < started.started_at, "the offset is the one in the snapshot"
    job.crash()
    mirror, moved = MemoryLog("mirror"), MemoryLog("moved")
    for stored in job.log.records:
        if stored.offset == offset:
            mirror.store(UnstoredRecord(key=b"", value=b"foreign", header=b"", timestamp_us=0))
        mirror.store(to_append(stored))
    adopt(mirror, moved, "job")

    again = folded(moved, job.chain, url)

    assert again.started_at == started.started_at + 1
    assert again.state.completed == state.completed
    assert again.checkpoint_offset is None, "the snapshot's is forgotten"
