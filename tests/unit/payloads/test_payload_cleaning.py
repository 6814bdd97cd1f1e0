"""Which stored payloads may go, by the log; and the commands that look at them."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner, Result

from coordlog.amounts import many
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import PayloadLostError, PayloadStoreUnreachableError, RecordError
from coordlog.export import write_exported
from coordlog.log.file import ExportedLog
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.offline.adopt import adopt, copy_history
from coordlog.offline.fork import find_fork_point, fork_to
from coordlog.offline.prune import planned, prune
from coordlog.payloads.gc import FileUse, clean, clean_former, payload_use
from coordlog.payloads.offload import PayloadOptions
from coordlog.projections.job.state import Phase
from coordlog.projections.snapshot.codec import SNAPSHOT_TYPE
from coordlog.runtime.runtime import RuntimeOptions, to_unstored
from coordlog.schemas.builtin_types import JobSnapshot, SnapshotWanted
from coordlog.schemas.payload_address import PayloadAddress, address_in, addresses_among, owner_of
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import HANDLED, Down, Noted, NotingProvider, chain_of, inside, prefix_of
from histories.one_log import OneLog

T = TypeVar("T")

BIG = 300_000


@pytest.fixture
def store(tmp_path: Path) -> PayloadStore:
    return PayloadStore(str(tmp_path / "payloads"), "job")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def options(store: PayloadStore) -> PayloadOptions:
    return PayloadOptions(store=store)


def driver(
    payloads: PayloadOptions, log: MemoryLog | None = None, **more: object
) -> tuple[HandDrivenJob, FakeAttempt, NotingProvider]:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), payloads=payloads, log=log, **more)  # type: ignore[arg-type]
    (attempt,) = job.register_all()
    return job, attempt, provider


def send(attempt: FakeAttempt, provider: NotingProvider, letter: str) -> None:
    inside(attempt, provider, lambda c: c.gateways[0].send_event(Down(n=1, text=letter * BIG)))


def worth(log: MemoryLog, store: PayloadStore) -> dict[str, list[str]]:
    """By worth, the owners of the files."""
    found: dict[str, list[str]] = {}
    for one in payload_use(log, store).files:
        found.setdefault(one.use.name, []).append(one.kept.owner)
    return found


def test_addressed_payloads_stay_and_those_a_dead_driver_left_are_removed(
    store: PayloadStore, options: PayloadOptions
) -> None:
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    job.is_held = True
    send(attempt, provider, "b")
    job.runtime.turns.take_group()
    job.payloads.keep(job.runtime.turns.group_payloads())
    job.crash()
    assert worth(job.log, store) == {"ADDRESSED": ["0-driver-0"], "IN_FORCE": ["0-driver-0"]}
    assert clean(store, payload_use(job.log, store)) == (), "it may be on its way to the log"

    again, attempt, provider = driver(options, job.log)
    send(attempt, provider, "c")
    assert worth(again.log, store) == {
        "ADDRESSED": ["0-driver-0", "1-driver-1"],
        "LEFT_OVER": ["0-driver-0"],
    }
    assert len(clean(store, payload_use(again.log, store))) == 1

    assert worth(again.log, store) == {"ADDRESSED": ["0-driver-0", "1-driver-1"]}
    for record in again.history(Kind.EVENT_TO_SUBTASK):
        address = address_in(record.payload)
        assert address is not None
        assert len(store.get(address)) > BIG


@pytest.mark.clause("K2")
def test_what_a_fenced_driver_appended_late_is_void_and_so_is_its_payload(
    store: PayloadStore, options: PayloadOptions
) -> None:
    first, attempt, provider = driver(options)
    first.is_held = True
    send(attempt, provider, "a")
    late = first.runtime.turns.take_group()
    first.payloads.keep(first.runtime.turns.group_payloads())

    second, _, _ = driver(options, first.log)
    first.log.writer().append(late, timeout_s=1)

    assert worth(second.log, store) == {"LEFT_OVER": ["0-driver-0"]}
    assert not second.history(Kind.EVENT_TO_SUBTASK)


def test_a_turn_that_is_not_whole_may_yet_count(
    store: PayloadStore, options: PayloadOptions
) -> None:
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    (record,) = job.history(Kind.EVENT_TO_SUBTASK)
    job.crash()
    address = PayloadAddress.of(b"x" * BIG, owner_of(0, "driver-0"))
    store.put(address, b"x" * BIG)
    begun = replace(
        record,
        sequence=job.runtime.state.next_sequence,
        turn_remaining=1,
        payload=address.encode(),
    )
    job.log.store(to_unstored(begun))
    assert worth(job.log, store) == {"ADDRESSED": ["0-driver-0", "0-driver-0"]}

    again, _, _ = driver(options, job.log)
    assert worth(again.log, store)["LEFT_OVER"] == ["0-driver-0"], "the next epoch has cut it off"


@pytest.mark.parametrize(("looks", "removed"), [(-1, 0), (0, 0), (2, 2), (100, 6)])
def test_a_driver_that_ends_leaves_the_rest_of_what_the_dead_have_left(
    options: PayloadOptions, store: PayloadStore, looks: int, removed: int
) -> None:
    """It has ended so many looks after the last record."""
    first, _, _ = driver(options)
    first.crash()
    second, _, _ = driver(options, first.log)
    for n in range(6):
        store.put(PayloadAddress.of(b"%d" % n, owner_of(0, "driver-0")), b"%d" % n)
    end = second.log.high_watermark()
    left = iter(range(end + looks))

    count = clean_former(
        second.log,
        store,
        epoch=1,
        end_offset=end,
        is_over=lambda: next(left, None) is None,
    )

    assert count == removed
    assert len(store.listed()) == 6 - removed


@pytest.mark.parametrize("void_epoch", [None, 0, 1, 9])
def test_a_starting_driver_keeps_its_own_payloads_not_yet_appended(
    store: PayloadStore, options: PayloadOptions, void_epoch: int | None
) -> None:
    """A void record that names an epoch, also a higher one, changes nothing of it."""
    first, _, _ = driver(options)
    first.crash()
    second, attempt, provider = driver(options, first.log)
    (begun, _) = second.history(Kind.EPOCH_STARTED)
    if void_epoch is not None:
        second.log.store(to_unstored(replace(begun, epoch=void_epoch, driver_id="nobody")))
    end = second.log.high_watermark()
    left_over = PayloadAddress.of(b"left over", owner_of(0, "driver-0"))
    store.put(left_over, b"left over")
    second.is_held = True
    send(attempt, provider, "a")
    second.runtime.turns.take_group()
    second.payloads.keep(second.runtime.turns.group_payloads())

    assert clean_former(second.log, store, epoch=1, end_offset=end) == 1

    assert [one.owner for one in store.listed()] == ["1-driver-1"]


@pytest.mark.parametrize("moment", ["after the listing", "after the log's end is known"])
def test_a_live_drivers_new_payloads_are_neither_missing_nor_left_over(
    store: PayloadStore,
    options: PayloadOptions,
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    appends = [lambda: send(attempt, provider, "b")]
    listed, end = store.listed, job.log.high_watermark

    def once(given: T) -> T:
        if appends:
            appends.pop()()
        return given

    if moment == "after the listing":
        monkeypatch.setattr(store, "listed", lambda: once(listed()))
    else:
        monkeypatch.setattr(job.log, "high_watermark", lambda: once(end()))

    use = payload_use(job.log, store)

    assert appends == []
    assert use.missing == ()
    assert use.of(FileUse.LEFT_OVER) == ()


@pytest.mark.may_fail("connection lost")
def test_payloads_stored_after_the_jobs_failure_are_not_left_over(
    store: PayloadStore, options: PayloadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that ends then is still recorded, behind the end up to which the log was read."""
    job, attempt, _ = driver(options, configure=lambda config: replace(config, restarts_max=0))
    attempt.lose()
    assert job.history()[-1].kind is Kind.JOB_FAILED
    address, end = PayloadAddress.of(b"x", owner_of(0, "driver-0")), job.log.high_watermark

    def end_before_it_is_kept() -> int:
        known = end()
        store.put(address, b"x")
        return known

    monkeypatch.setattr(job.log, "high_watermark", end_before_it_is_kept)

    use = payload_use(job.log, store)

    assert [kept.path for kept in store.listed()] == [address.path]
    assert use.of(FileUse.LEFT_OVER) == ()


@pytest.mark.may_fail("scripted")
@pytest.mark.clause("A6")
def test_a_result_after_the_end_is_not_stored_nor_missed_at_the_next_start(
    store: PayloadStore, options: PayloadOptions
) -> None:
    """Were it recorded, its file could be listed before its record is there, and behind the end look left over."""
    provider = NotingProvider(projection=HANDLED)
    chain = chain_of(provider)
    job = HandDrivenJob(
        chain, payloads=options, configure=lambda config: replace(config, restarts_max=0)
    )
    job.is_work_held = True
    inside(
        job.register(0),
        provider,
        lambda c: c.context.call_async(lambda: Noted(text="b" * BIG), lambda _result, _error: None),
    )
    job.is_held = True
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    end = job.runtime.turns.take_group()
    job.is_work_held = False
    job.pump()
    job.runtime.acknowledged(job.appender.append(end))
    assert job.history()[-1].kind is Kind.JOB_FAILED
    behind = job.runtime.turns.take_group()
    job.payloads.keep(job.runtime.turns.group_payloads())
    assert worth(job.log, store).get("LEFT_OVER") is None
    clean(store, payload_use(job.log, store))
    if behind:
        job.appender.append(behind)
    job.crash()

    again = HandDrivenJob(chain, payloads=options, log=job.log)
    assert again.runtime.state.phase is Phase.RUNNING


def test_other_logs_payloads_live_drafts_and_foreign_files_stay(
    store: PayloadStore, options: PayloadOptions
) -> None:
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    other = PayloadAddress.of(b"x", owner_of(0, "another-driver"))
    newer = PayloadAddress.of(b"x", owner_of(7, "not-begun"))
    for one in (other, newer):
        store.put(one, b"x")
    mine = Path(store.where) / "0-driver-0"
    (mine / ".0123-45.part").write_bytes(b"half")
    (mine / "notes.txt").write_bytes(b"mine")

    assert worth(job.log, store) == {
        "ADDRESSED": ["0-driver-0"],
        "IN_FORCE": ["0-driver-0"],
        "FOREIGN": ["0-driver-0"],
        "UNKNOWN": ["0-another-driver", "7-not-begun"],
    }
    again, _, _ = driver(options, job.log)
    clean(store, payload_use(again.log, store))

    assert worth(again.log, store) == {
        "ADDRESSED": ["0-driver-0"],
        "FOREIGN": ["0-driver-0"],
        "UNKNOWN": ["0-another-driver", "7-not-begun"],
    }


def test_nothing_goes_by_a_log_that_knows_none_of_the_epochs(
    store: PayloadStore, options: PayloadOptions, tmp_path: Path
) -> None:
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    job.crash()
    log = MemoryLog("another cluster")
    for number in range(3):
        HandDrivenJob(chain_of(NotingProvider()), log=log, driver_id=f"other-{number}").crash()

    assert worth(log, store) == {"UNKNOWN": ["0-driver-0"]}


# --- a log whose beginning was pruned ---------------------------------------------------------------------------------
def pruned(options: PayloadOptions) -> MemoryLog:
    """A log that begins with a snapshot of epoch 1, which addresses a state of epoch 1, none of epoch 0."""
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    job.crash()
    again, attempt, provider = driver(options, job.log, options=RuntimeOptions(snapshot_every=1))
    again.trigger()
    attempt.ack_checkpoint(1, states={"source": b"s" * BIG})
    for n in range(30):
        attempt.send("source", Down(n=n))
    again.crash()
    at = max(
        one.offset
        for one in again.log.records
        if one.header and not one.header.is_epoch_started and one.record().kind is Kind.SNAPSHOT
    )
    again.log.remove_below(at)
    return again.log


def test_what_only_the_first_snapshot_of_a_pruned_log_addresses_stays(
    store: PayloadStore, options: PayloadOptions
) -> None:
    log = pruned(options)

    assert worth(log, store) == {"UNKNOWN": ["0-driver-0"], "ADDRESSED": ["1-driver-1"]}


def test_two_pruned_logs_in_one_folder_leave_each_others_payloads(
    store: PayloadStore, options: PayloadOptions
) -> None:
    log = pruned(options)
    other = PayloadAddress.of(b"x", owner_of(0, "another-driver"))
    store.put(other, b"x")

    assert clean(store, payload_use(log, store)) == ()
    assert other.path in {one.path for one in store.listed()}


@pytest.mark.parametrize("is_dropping", [False, True])
def test_a_prune_removes_what_is_left_over_while_it_knows_the_epochs(
    store: PayloadStore, options: PayloadOptions, home: Path, *, is_dropping: bool
) -> None:
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    left = PayloadAddress.of(b"left over", owner_of(0, "driver-0"))
    other = PayloadAddress.of(b"x", owner_of(0, "another-driver"))
    for one, data in ((left, b"left over"), (other, b"x")):
        store.put(one, data)
    job.crash()
    again, attempt, provider = driver(options, job.log, options=RuntimeOptions(snapshot_every=1))
    again.trigger()
    attempt.ack_checkpoint(1, states={"source": b"s" * BIG})
    for n in range(30):
        attempt.send("source", Down(n=n))
    again.crash()
    more = ("--payload-store", store.url, *(("--drop-payloads",) if is_dropping else ()))
    done = run(again.log, "prune", "--yes", "--take-over", *more)

    assert done.exit_code == Exit.DONE, done.output
    assert again.log.start_offset() > 0
    assert list((home / "archives" / "job").iterdir())
    assert f"removed {2 if is_dropping else 1} payloads in {store.where}" in done.stderr
    owners = [one.owner for one in store.listed()]
    assert owners.count("0-driver-0") == (0 if is_dropping else 1)
    assert left.path not in {one.path for one in store.listed()}
    assert "0-another-driver" in owners
    assert worth(again.log, store)["ADDRESSED"] == ["1-driver-1"]
    assert payload_use(again.log, store).missing == ()


def test_payloads_of_pruned_epochs_are_removed_by_a_command_alone(
    store: PayloadStore, options: PayloadOptions
) -> None:
    log, copy = pruned(options), MemoryLog("copy")
    copy_history(log, copy, "job")
    another = PayloadAddress.of(b"of a newer log", "7-another")
    store.put(another, b"of a newer log")
    named, drop = ("--payload-store", store.url), ("--clean", "--drop-payloads")

    shown = run(log, "payloads", "--clean", *named).stdout
    assert "1 file of 300,004 bytes of epochs of pruned records: `coordlog payloads job" in shown
    assert "1 file of 14 bytes of drivers that are not in this log, but maybe in another" in shown
    for refused in (
        run(copy, "payloads", *drop, *named),
        run(log, "payloads", "--drop-payloads", *named),
    ):
        assert refused.exit_code == Exit.USAGE
    assert len(store.listed()) == 3

    shown = run(log, "payloads", *drop, *named).stdout
    assert "1 file of 300,004 bytes of epochs of pruned records: removed" in shown
    assert [one.owner for one in store.listed()] == ["1-driver-1", "7-another"]


@pytest.mark.parametrize("command", ["payloads", "prune"])
def test_payloads_addressed_only_by_the_archive_stay_after_its_prune(
    store: PayloadStore, options: PayloadOptions, home: Path, tmp_path: Path, command: str
) -> None:
    """It is of the very epoch whose snapshot the log begins with; the rest of that epoch's records is gone."""
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    attempt.ack("source", 0)
    for number in range(1, 6):
        assert job.trigger() == number
        attempt.ack_checkpoint(number)
    job.ask("", SnapshotWanted(why="prune"))
    for number in range(6, 9):
        assert job.trigger() == number
        attempt.ack_checkpoint(number)
    plan = planned(job.log, "job")
    prune(job.log, "job", plan, tmp_path / "archive.avro")
    assert worth(job.log, store) == {"IN_FORCE": ["0-driver-0"]}
    job.crash()
    again, attempt, _ = driver(options, job.log)
    assert worth(again.log, store) == {"UNKNOWN": ["0-driver-0"]}
    again.ask("", SnapshotWanted(why="prune"))
    for number in range(9, 12):
        assert again.trigger() == number
        attempt.ack_checkpoint(number)
    again.crash()

    if command == "payloads":
        done = run(again.log, "payloads", "--payload-store", store.url, "--clean")
    else:
        done = run(again.log, "prune", "--yes", "--take-over", "--payload-store", store.url)
        assert again.log.start_offset() > plan.begins_with.offset  # type: ignore[union-attr]
        assert list((home / "archives" / "job").iterdir())
    assert done.exit_code == Exit.DONE, done.output
    archive = ExportedLog(tmp_path / "archive.avro")
    stored = archive.read(archive.start_offset(), archive.high_watermark())
    (address,) = {one for record in stored for one in addresses_among(record.value or b"")}
    assert len(store.get(address)) > BIG


def test_payloads_of_the_last_driver_before_an_adoption_stay(
    store: PayloadStore, options: PayloadOptions
) -> None:
    job, attempt, provider = driver(options)
    adopted = MemoryLog("adopted")
    adopt(job.log, adopted, "job")
    send(attempt, provider, "a")  # the copy does not have it
    job.crash()
    assert worth(adopted, store) == {"UNKNOWN": ["0-driver-0"]}

    again, _, _ = driver(options, adopted)
    end = again.log.high_watermark()
    assert clean_former(adopted, store, epoch=2, end_offset=end) == 0
    assert worth(job.log, store) == {"ADDRESSED": ["0-driver-0"]}


@pytest.mark.parametrize("is_stored", [False, True], ids=["damaged", "its payload lost"])
def test_nothing_goes_where_that_snapshot_cannot_be_read(
    store: PayloadStore, options: PayloadOptions, *, is_stored: bool
) -> None:
    log = pruned(options if not is_stored else replace(options, limit_bytes=1_000))
    first = log.records[0]
    if is_stored:
        for one in payload_use(log, store).of(FileUse.ADDRESSED):
            if one.size_bytes < BIG:
                store.remove([one])
        with pytest.raises(PayloadLostError):
            payload_use(log, store)
        return
    record = first.record()
    payload = record.payload or b""
    broken = MemoryLog("broken")
    for _ in range(first.offset):
        broken.store(to_unstored(record))
    broken.remove_below(first.offset)
    broken.store(to_unstored(replace(record, payload=payload[:-9] + b"x" * 9)))
    with pytest.raises(RecordError, match="its addresses cannot be read"):
        payload_use(broken, store)


@pytest.mark.parametrize("said", [10, 2**40])
def test_a_snapshot_that_makes_much_of_few_bytes_is_not_followed(
    store: PayloadStore, options: PayloadOptions, said: int
) -> None:
    log = pruned(options)
    first = log.records[0]
    record = first.record()
    held = SNAPSHOT_TYPE.decode(record.payload or b"")
    assert isinstance(held, JobSnapshot)
    bomb = replace(held, state=zlib.compress(bytes(50_000_000)), state_bytes=said)
    broken = MemoryLog("broken")
    for _ in range(first.offset):
        broken.store(to_unstored(record))
    broken.remove_below(first.offset)
    broken.store(to_unstored(replace(record, payload=SNAPSHOT_TYPE.encode(bomb))))

    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match="its addresses cannot be read"):
            payload_use(broken, store)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


# --- copies -----------------------------------------------------------------------------------------------------------
class Deleting(OneLog):
    def delete(self, job_id: str) -> None:
        assert job_id == self.job_id


def test_a_copy_loses_no_payload_and_an_adopted_log_only_its_own(
    store: PayloadStore, options: PayloadOptions
) -> None:
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    job.crash()
    copy, adopted = MemoryLog("copy"), MemoryLog("adopted")
    copy_history(job.log, copy, "job")
    adopt(job.log, adopted, "job")
    again, attempt, provider = driver(options, adopted)
    send(attempt, provider, "b")
    again.crash()

    def deleted(log: MemoryLog, *more: str) -> str:
        arguments = ("delete", "job", "--yes", "--take-over", "--payload-store", store.url, *more)
        result = CliRunner().invoke(main, arguments, obj=lambda _servers: Deleting(log))
        assert result.exit_code == Exit.DONE, result.output
        return result.stderr

    assert "stay: it is a copy of topic" in deleted(copy)
    assert "stay: --keep-payloads" in deleted(job.log, "--keep-payloads")
    assert len(store.listed()) == 2
    said = deleted(adopted)
    assert "deleted 1 payloads" in said
    assert (
        f"others of its large payloads stay in {store.where}: 1 of epochs before its adoption"
        in said
    )
    assert [one.owner for one in store.listed()] == ["0-driver-0"]
    assert "deleted 1 payloads" in deleted(job.log)
    assert not store.listed()


@pytest.mark.parametrize("is_all", [False, True])
def test_delete_of_a_pruned_log_names_its_payloads_or_removes_them(
    store: PayloadStore, options: PayloadOptions, *, is_all: bool
) -> None:
    log = pruned(options)
    folder = Path(store.where)
    (folder / "notes").mkdir()
    (folder / "notes" / "of-mine.txt").write_text("mine")
    flags = ("--all-payloads",) if is_all else ()
    arguments = ("delete", "job", "--yes", "--take-over", "--payload-store", store.url, *flags)
    result = CliRunner().invoke(main, arguments, obj=lambda _servers: Deleting(log))

    assert result.exit_code == Exit.DONE, result.output
    said = f"others of its large payloads stay in {store.where}: "
    mine = "1 files that are no payloads (in notes)"
    if is_all:
        assert "deleted 2 payloads" in result.stderr
        assert f"{said}{mine}\n" in result.stderr
    else:
        assert "deleted 1 payloads" in result.stderr
        assert (
            f"{said}1 of epochs that are not in the log, as after a prune (in 0-driver-0); "
            f"--all-payloads would have removed them, and {mine}\n"
        ) in result.stderr
    owners = [one.owner for one in store.listed() if one.owner != "notes"]
    assert owners == ([] if is_all else ["0-driver-0"])
    assert (folder / "notes" / "of-mine.txt").exists()


def test_all_payloads_are_those_of_an_adoption_too_and_never_a_copy_s(
    store: PayloadStore, options: PayloadOptions
) -> None:
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    job.crash()
    copy, adopted = MemoryLog("copy"), MemoryLog("adopted")
    copy_history(job.log, copy, "job")
    adopt(job.log, adopted, "job")
    flags = ("--yes", "--take-over", "--payload-store", store.url, "--all-payloads")
    for log, count in ((copy, 1), (adopted, 0)):
        result = CliRunner().invoke(
            main, ("delete", "job", *flags), obj=lambda _servers, log=log: Deleting(log)
        )
        assert result.exit_code == Exit.DONE, result.output
        assert len(store.listed()) == count
    both = CliRunner().invoke(
        main, ("delete", "job", *flags, "--keep-payloads"), obj=lambda _servers: Deleting(adopted)
    )
    assert both.exit_code == Exit.USAGE


def test_payloads_left_by_a_cut_off_deletion_are_removed_by_a_command(
    store: PayloadStore, options: PayloadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    job.crash()
    (Path(store.where) / "notes").mkdir()
    (Path(store.where) / "notes" / "of-mine.txt").write_text("mine")
    deleting = Deleting(job.log)

    def delete(*more: str) -> Result:
        arguments = ("delete", "job", "--take-over", *more)
        return CliRunner().invoke(main, arguments, obj=lambda _servers: deleting)

    def refuse(store: PayloadStore, _doomed: object) -> int:
        raise PayloadStoreUnreachableError(store.where, "removing a", "503 Slow Down", "try again")

    named = ("--payload-store", store.url)
    with monkeypatch.context() as cut_off:
        cut_off.setattr(PayloadStore, "remove", refuse)
        failed = delete("--yes", *named)
    assert failed.exit_code not in (Exit.DONE, Exit.USAGE)
    assert f"`coordlog delete job --all-payloads --payload-store {store.url}`" in failed.stderr

    monkeypatch.setattr(deleting, "jobs", lambda: ())
    assert "there is no job 'job'" in delete("--yes", *named).stderr
    assert "there is no job 'job'" in delete("--yes", "--all-payloads").stderr, "of which store?"
    assert delete("--all-payloads", *named).exit_code != Exit.DONE, "not confirmed"
    assert len(store.listed()) == 2
    assert "deleted 1 payloads" in delete("--yes", "--all-payloads", *named).stderr
    assert [kept.path for kept in store.listed()] == ["notes/of-mine.txt"]


def test_a_job_that_has_begun_from_another_one_has_payloads_of_its_own(
    store: PayloadStore, options: PayloadOptions
) -> None:
    job, attempt, _ = driver(options)
    job.trigger()
    attempt.ack_checkpoint(1, states={"source": b"s" * BIG})
    job.crash()
    begun, half = MemoryLog("begun"), MemoryLog("half")
    copy_history(job.log, half, "job")
    beginning = find_fork_point(job.log, "job", "1")
    fork_to(job.log, begun, beginning, job_id="trial", payload_store=store)
    trial = PayloadStore(store.url, "trial")

    assert worth(begun, trial) == {"ADDRESSED": ["0-driver-0"]}
    for log in (begun, half):
        use = payload_use(log, trial)
        assert (use.copy_of, use.shared) == ("", frozenset())


def test_a_copy_is_known_by_the_snapshot_that_a_pruned_log_begins_with(
    store: PayloadStore, options: PayloadOptions
) -> None:
    log, copy = pruned(options), MemoryLog("copy")
    copy_history(log, copy, "job")

    assert payload_use(log, store).copy_of == ""
    assert payload_use(copy, store).copy_of.startswith(f"topic {log.identity.topic_id} of cluster")


# --- the commands -----------------------------------------------------------------------------------------------------
def run(log: MemoryLog, command: str, *more: str) -> Result:
    return CliRunner().invoke(main, (command, "job", *more), obj=lambda _servers: OneLog(log))


@pytest.fixture
def two_epochs(options: PayloadOptions) -> HandDrivenJob:
    """A job with a payload that is addressed, and one that its first driver could not append any more."""
    job, attempt, provider = driver(options)
    send(attempt, provider, "a")
    job.is_held = True
    send(attempt, provider, "b")
    job.runtime.turns.take_group()
    job.payloads.keep(job.runtime.turns.group_payloads())
    job.crash()
    return driver(options, job.log)[0]


def test_the_command_says_what_is_there_and_cleans_when_told_to(
    two_epochs: HandDrivenJob, store: PayloadStore, tmp_path: Path
) -> None:
    named = ("--payload-store", store.url)
    shown = run(two_epochs.log, "payloads", *named)
    assert shown.exit_code == Exit.DONE, shown.output
    assert "1 file of 300,004 bytes addressed by records" in shown.stdout
    assert (
        "1 file of 300,004 bytes left over: `coordlog payloads job --clean` removes them"
        in shown.stdout
    )
    assert len(store.listed()) == 2

    path = tmp_path / "job.avro"
    write_exported(two_epochs.log, "job", path)
    assert CliRunner().invoke(main, ("payloads", str(path), *named)).stdout == shown.stdout
    made = json.loads(run(two_epochs.log, "payloads", "--clean", "--json", *named).stdout)
    assert sorted(one["use"] for one in made["files"]) == ["addressed", "left_over"]
    assert len(made["removed"]) == 1
    assert len(store.listed()) == 1


def test_the_command_counts_the_records_of_a_pruned_log(
    store: PayloadStore, options: PayloadOptions
) -> None:
    log = pruned(options)
    count = len(log.records)
    assert count < log.high_watermark()
    shown = run(log, "payloads", "--payload-store", store.url)
    assert f"compared with {many(count, 'record')}:" in shown.stdout


def test_the_command_asks_for_the_store_where_the_history_names_none(
    two_epochs: HandDrivenJob,
) -> None:
    job, _, _ = driver(PayloadOptions())
    result = run(job.log, "payloads")

    assert result.exit_code == Exit.USAGE
    assert "--payload-store" in result.stderr
    assert run(two_epochs.log, "payloads").exit_code == Exit.DONE


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_verify_reads_every_stored_payload_and_names_faults_by_record(
    two_epochs: HandDrivenJob, store: PayloadStore, harm: str
) -> None:
    named = ("--payload-store", store.url)
    good = run(two_epochs.log, "verify", *named)
    assert good.exit_code == Exit.DONE, good.output
    assert "1 stored payload of 300,004 bytes" in good.stdout

    (record,) = two_epochs.history(Kind.EVENT_TO_SUBTASK)
    address = address_in(record.payload)
    assert address is not None
    path = Path(store.where) / address.path
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(b"y" * address.length)
    bad = run(two_epochs.log, "verify", *named)

    at = next(
        one.offset
        for one in two_epochs.log.records
        if address.encode() in (one.value or b"") and one.header
    )
    assert bad.exit_code == Exit.FAILED
    assert f"offset {at}: the stored payload {address.path} of 300004 bytes" in bad.stdout
    assert f"looked for in {store.where}" in bad.stdout
    said = run(two_epochs.log, "payloads", *named)
    assert (f"missing: {address.path}" in said.stdout) is (harm == "missing")
    assert said.exit_code == (Exit.FAILED if harm == "missing" else Exit.DONE)


def test_readers_of_a_history_need_no_store(two_epochs: HandDrivenJob, store: PayloadStore) -> None:
    store.remove(store.listed())
    whole = prefix_of(two_epochs.log, two_epochs.log.high_watermark())
    for command in ("history", "state", "attempts", "splits", "checkpoints"):
        result = run(whole, command)
        assert result.exit_code == Exit.DONE, result.output
    lines = run(whole, "history", "--kind", "EVENT_TO_SUBTASK").stdout
    assert "(300004 bytes in the payload store)" in lines
    records = run(whole, "history", "--kind", "EVENT_TO_SUBTASK", "--json").stdout
    (record,) = map(json.loads, records.splitlines())
    assert record["payload_stored"].startswith("coordlog-payload:1:300004:0-driver-0/")
    assert "payload_hex" not in record
