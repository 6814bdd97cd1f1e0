"""A log begins with a snapshot that fits a record: what coordinators remember may be in the payload store."""

from __future__ import annotations

import re
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
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.offline.epoch import read_job
from coordlog.offline.fork import find_fork_point, fork_to
from coordlog.offline.prune import planned, prune
from coordlog.offline.snapshot import take_own_snapshot
from coordlog.payloads.check import check_payloads
from coordlog.payloads.gc import FileUse, clean_former, payload_use
from coordlog.payloads.offload import AttemptPayloads, DriverPayloads, PayloadOptions
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.state import JobState
from coordlog.projections.snapshot.codec import SnapshotCodec
from coordlog.restore.rebuild import Rebuild, projection_of, rebuild
from coordlog.restore.snapshots import SnapshotMisfitError, standing_snapshot
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import SnapshotTaken, SnapshotWanted
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload_address import STORE_ATTRIBUTE, PayloadAddress, owner_of
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from one_log import OneLog
from split_fakes import ask, chain_of, pull_of

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


def own_snapshot(log: MemoryLog, url: str) -> None:
    """As `coordlog prune` takes it, which is cut off behind it."""
    state = read_job(log, "job", lambda _: None).state
    take_own_snapshot(log, state, store=PayloadStore(url, "job"), check=lambda _: None)


@pytest.mark.slow
def test_a_stopped_job_of_60000_files_is_pruned_with_a_store_and_continues(
    url: str,
) -> None:
    job = job_of(60_000)
    job.crash()
    whole = folded(job.log, job.chain).state
    done = run(job.log, *PRUNE, "--payload-store", url)

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
    again.crash()
    goes_on = folded(job.log, job.chain, url).state
    # The second one starts from what the first has kept.
    assert run(job.log, *PRUNE, "--payload-store", url).exit_code == Exit.DONE
    assert kinds(job.log) == [Kind.SNAPSHOT]
    assert folded(job.log, job.chain, url).state.projections == goes_on.projections
    assert verify(job.log.records, open_payload=None).faults == []


@pytest.mark.usefixtures("small_records")
def test_without_a_store_it_is_refused_with_both_sizes_and_advice() -> None:
    job = job_of(400)
    job.crash()
    end = job.log.high_watermark()
    refused = run(job.log, *PRUNE)

    assert refused.exit_code == Exit.USAGE
    assert f"and a record holds {SMALL}; name a folder for large payloads" in refused.stderr
    assert "--payload-store" in refused.stderr
    assert job.log.high_watermark() == end


@pytest.mark.usefixtures("small_records")
def test_a_store_other_than_the_historys_is_refused_before_any_append(
    url: str, tmp_path: Path
) -> None:
    """A restart looks into one store, and the state of a subtask is in the other."""
    payloads = PayloadOptions(store=PayloadStore(url, "job"), limit_bytes=64)
    without = RuntimeOptions(snapshot_every=None)
    job = job_of(400, parallelism=1, payloads=payloads, options=without)
    attempt = job.register(0)
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    sealed = AttemptPayloads(payloads, 0, "driver-0").seal("a state", None, b"z" * 500)
    attempt.ack_checkpoint(checkpoint_id, states={"source": sealed})
    job.crash()
    records, other = job.log.records, str(tmp_path / "other")
    refused = run(job.log, *PRUNE, "--payload-store", other)

    assert refused.exit_code == Exit.USAGE
    assert f"its history names the payload store {url}" in refused.stderr
    assert f"would go to {other}" in refused.stderr
    assert f"give --payload-store {url}" in refused.stderr
    assert job.log.records == records
    assert not PayloadStore(other, "job").listed()
    assert run(job.log, *PRUNE).exit_code == Exit.DONE
    check_payloads("job", folded(job.log, job.chain, url).state, payloads)


@pytest.mark.usefixtures("small_records")
def test_a_store_that_is_only_named_is_no_reason_to_refuse_another(
    url: str, tmp_path: Path
) -> None:
    """As after a prune whose store could not be written, or by a job whose payloads are all small."""
    unused = tmp_path / "unused"
    job = job_of(400, payloads=options_of(str(unused)))
    job.crash()
    unused.write_text("a file, and no folder")
    assert run(job.log, *PRUNE).exit_code != Exit.DONE, (
        "it begins an epoch that names it, and fails"
    )

    assert run(job.log, *PRUNE, "--payload-store", url).exit_code == Exit.DONE
    assert read_job(job.log, "job", lambda _: None).state.launch[STORE_ATTRIBUTE] == url


@pytest.mark.usefixtures("small_records")
def test_a_state_that_fits_is_pruned_with_any_store_and_keeps_the_historys(
    url: str, tmp_path: Path
) -> None:
    job = job_of(20, payloads=options_of(url))
    job.crash()
    other = str(tmp_path / "other")
    assert run(job.log, *PRUNE, "--payload-store", other).exit_code == Exit.DONE

    assert not PayloadStore(other, "job").listed()
    assert read_job(job.log, "job", lambda _: None).state.launch[STORE_ATTRIBUTE] == url


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize("has_store", [False, True])
def test_a_state_too_large_even_in_parts_is_refused_before_any_append(
    url: str, monkeypatch: pytest.MonkeyPatch, *, has_store: bool
) -> None:
    monkeypatch.setattr("coordlog.restore.snapshots.RECORD_BYTES_MAX", 2_900)
    job = job_of(400)
    job.crash()
    end = job.log.high_watermark()
    refused = run(job.log, *PRUNE, *(("--payload-store", url) if has_store else ()))

    assert refused.exit_code == Exit.USAGE
    assert job.log.high_watermark() == end
    assert not PayloadStore(url, "job").listed()
    sizes = re.search(
        r"compressed (\d+) and (\d+) for the rest of its record are (\d+), and a record holds 2900;",
        refused.stderr,
    )
    assert sizes is not None, refused.stderr
    compressed, rest, both = map(int, sizes.groups())
    assert compressed + rest == both
    assert both > 2_900
    assert "a log stays readable whatever its length" in refused.stderr
    assert "--payload-store" not in refused.stderr
    assert "--release" not in refused.stderr


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


@pytest.mark.slow
@pytest.mark.usefixtures("small_records")
def test_at_each_record_size_a_prune_is_done_or_names_its_store_unrecorded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch that takes a snapshot adds to the state: what has fitted before it may not do so in it."""
    came_to = set[tuple[bool, bool]]()
    for number, limit in enumerate(range(2_600, 6_600, 100)):
        place = f"{url}-{number}"
        monkeypatch.setattr("coordlog.restore.snapshots.RECORD_BYTES_MAX", limit)
        job = job_of(60)
        job.crash()
        end = job.log.high_watermark()
        more = ("--payload-store", place, "--archive", f"{place}.avro")
        is_done = run(job.log, *PRUNE, *more).exit_code == Exit.DONE
        is_apart = bool(PayloadStore(place, "job").listed())
        came_to.add((is_done, is_apart))
        if is_done:
            assert kinds(job.log) == [Kind.SNAPSHOT]
        else:
            assert job.log.high_watermark() == end
        state = read_job(job.log, "job", lambda _: None).state
        if is_apart:
            assert state.launch[STORE_ATTRIBUTE] == place

    assert came_to == {(False, False), (True, True), (True, False)}


@pytest.mark.usefixtures("small_records")
def test_a_state_that_fits_stays_in_the_log_whole_though_there_is_a_store(url: str) -> None:
    job = job_of(20)
    job.crash()
    assert run(job.log, *PRUNE, "--payload-store", url).exit_code == Exit.DONE

    assert folded(job.log, job.chain).state.projections
    assert not PayloadStore(url, "job").listed()


@pytest.mark.usefixtures("small_records")
def test_a_driver_that_does_not_have_the_store_is_refused_by_its_name(url: str) -> None:
    job = job_of(400)
    job.crash()
    assert run(job.log, *PRUNE, "--payload-store", url).exit_code == Exit.DONE
    end = job.log.high_watermark()

    with pytest.raises(RestoreError, match="looked for in no payload store") as refused:
        job_of(400, job.log)
    assert f"the history names {url!r}" in str(refused.value)
    assert job.log.high_watermark() == end
    assert run(job.log, "history", "job").exit_code == Exit.DONE


@pytest.mark.usefixtures("small_records")
def test_what_a_snapshot_has_put_apart_is_addressed_wherever_that_stands(url: str) -> None:
    """Cut off before the log is shorter: the next driver cleans what former ones have left."""
    job, store = job_of(400), PayloadStore(url, "job")
    job.crash()
    own_snapshot(job.log, url)
    again = job_of(400, job.log, clock=job.clock, payloads=options_of(url))
    end = job.log.high_watermark()
    assert clean_former(job.log, store, epoch=again.runtime.state.epoch, end_offset=end) == 0

    assert [one.use for one in payload_use(job.log, store).files] == [FileUse.ADDRESSED]


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize("is_dropping", [False, True])
def test_parts_of_a_snapshot_go_with_it_if_payloads_are_dropped(
    url: str, *, is_dropping: bool
) -> None:
    """It is of the epoch in which the log had begun: of what that kept nothing else goes."""
    command = (*PRUNE, "--payload-store", url, *(("--drop-payloads",) if is_dropping else ()))
    store, job = PayloadStore(url, "job"), job_of(400)
    job.crash()
    assert run(job.log, *command).exit_code == Exit.DONE
    (first,) = store.listed()
    archived = PayloadAddress.of(b"an archive may address it", first.owner)
    store.put(archived, b"an archive may address it")
    for _ in range(2):
        again = job_of(400, job.log, clock=job.clock, payloads=options_of(url))
        again.crash()
        job.clock = again.clock
        done = run(job.log, *command)
        assert done.exit_code == Exit.DONE, done.output

    worth = [one.use for one in payload_use(job.log, store).files]
    assert worth.count(FileUse.ADDRESSED) == 1
    assert worth.count(FileUse.UNKNOWN) == (1 if is_dropping else 3)
    assert (first.path in {one.path for one in store.listed()}) is not is_dropping
    store.find(archived)
    assert folded(job.log, job.chain, url).state.projections


@pytest.mark.usefixtures("small_records")
def test_no_log_begins_with_a_snapshot_of_which_a_part_is_lost(url: str, tmp_path: Path) -> None:
    job, store = job_of(400), PayloadStore(url, "job")
    job.crash()
    own_snapshot(job.log, url)
    store.remove(store.listed())
    records = job.log.records
    plan = planned(job.log, "job", keep_checkpoints=1)
    with pytest.raises(PayloadLostError, match="it is not there"):
        prune(job.log, "job", plan, tmp_path / "archive.avro", DriverPayloads(options_of(url)).open)

    assert job.log.records == records
    checked = run(job.log, "verify", "job", "--payload-store", url)
    assert f"offset {records[-1].offset}" in checked.stdout
    assert "it is not there" in checked.stdout
    # What there is before it is enough.
    assert folded(job.log, job.chain, url).started_at is None


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize("harm", ["lost", "damaged", "strange"])
def test_a_prune_takes_a_new_snapshot_if_the_newest_lacks_a_part(
    url: str, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    job, store = job_of(400), PayloadStore(url, "job")
    job.crash()
    whole = folded(job.log, job.chain).state
    with monkeypatch.context() as newer:
        if harm == "strange":
            newer.setattr(PayloadAddress, "encode", lambda _self: STRANGE)
        own_snapshot(job.log, url)
    (part,) = store.listed()
    if harm == "lost":
        store.remove([part])
    elif harm == "damaged":
        (Path(store.where) / part.path).write_bytes(part.size_bytes * b"x")
    done = run(job.log, *PRUNE, "--payload-store", url)

    assert done.exit_code == Exit.DONE, done.output
    assert kinds(job.log) == [Kind.SNAPSHOT]
    assert folded(job.log, job.chain, url).state.projections == whole.projections
    # Nothing can be done about the one with which a log begins, and no further prune is to be done.
    store.remove(store.listed())
    again = run(job.log, *PRUNE, "--payload-store", url)
    assert again.exit_code == Exit.DONE, again.output
    assert "it begins there already" in again.stderr


@pytest.mark.usefixtures("small_records")
def test_a_requested_snapshots_large_parts_go_to_the_drivers_store(url: str) -> None:
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
def test_an_unusable_newest_record_does_not_keep_a_prune_from_a_snapshot(
    url: str,
) -> None:
    """A driver that died behind a snapshot which stands in the store whole."""
    stored = PayloadOptions(store=PayloadStore(url, "job"), limit_bytes=64)
    job = job_of(400, payloads=stored, options=RuntimeOptions(snapshot_every=1))
    job.crash()
    assert kinds(job.log)[-1] is Kind.SNAPSHOT
    done = run(job.log, *PRUNE, "--payload-store", url)

    assert done.exit_code == Exit.DONE, done.output
    assert kinds(job.log) == [Kind.SNAPSHOT]


@pytest.mark.usefixtures("small_records")
def test_an_unreadable_address_is_no_beginning_and_no_start(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(400)
    job.crash()
    monkeypatch.setattr(PayloadAddress, "encode", lambda _self: STRANGE)
    own_snapshot(job.log, url)
    records = job.log.records
    plan = planned(job.log, "job", keep_checkpoints=1)

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
    done = run(job.log, *PRUNE, "--payload-store", url)
    assert done.exit_code == Exit.DONE, done.output
    assert kinds(job.log) == [Kind.SNAPSHOT]
