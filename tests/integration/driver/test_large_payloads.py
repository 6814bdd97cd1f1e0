"""Large payloads through a whole driver with its threads: a full disk, a store that goes away, what the dead left."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coordlog.api.chain import Chain
from coordlog.errors import PayloadStoreError, PayloadStoreUnreachableError
from coordlog.log import payload_store
from coordlog.log.appender import Patience
from coordlog.log.local.fsync import sync_path
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.payloads.gc import FileUse, payload_use
from coordlog.payloads.offload import PayloadOptions
from coordlog.projections.tables.audit import audit_records
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload_address import PayloadAddress, owner_of
from coordlog.schemas.record import Kind
from coordlog.testing.in_memory import InMemorySurroundings
from coordlog.testing.replay import ReplayError, replay
from fakes.payload_chain import MODEL, Heard, digest, links
from servers.s3_server import S3Server, s3_server, s3_store

__all__ = ["s3_server", "s3_store"]

pytestmark = pytest.mark.slow

WAIT_S = 60.0


def begun(log: MemoryLog, store: PayloadStore, heard: Heard) -> JobDriver:
    source, scorer = links(heard)
    chain = Chain(source=source, operators=[scorer])
    payloads = PayloadOptions(store=store)
    driver = JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id="job",
            parallelism=1,
            is_batch=False,
            payloads=payloads,
            patience=Patience(log_timeout_s=1.0),
            restart_backoff_s=0.01,
            runtime=RuntimeOptions(checkpoint_interval_s=0.05),
        ),
        surroundings=InMemorySurroundings(chain, "job", 1, payloads=payloads),
    )
    driver.start()
    return driver


def one_round(log: MemoryLog, store: PayloadStore) -> Heard:
    """A driver that has been told megabytes, and has stopped with a checkpoint that has them."""
    heard = Heard()
    driver = begun(log, store, heard)
    try:
        assert heard.completed.wait(WAIT_S)
    finally:
        driver.stop(with_checkpoint=True)
    result = driver.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.STOPPED
    return heard


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog("job")


@pytest.fixture
def store(tmp_path: Path) -> PayloadStore:
    return PayloadStore(str(tmp_path), "job")


def test_a_restart_has_all_events_and_cleans_the_dead_drivers_payloads(
    log: MemoryLog, store: PayloadStore
) -> None:
    first = one_round(log, store)
    assert [one.bulk for one in first.reports] == [MODEL[::-1]]
    assert not payload_use(log, store).of(FileUse.LEFT_OVER)
    (started,) = (
        one.record
        for one in audit_records(log.read(0, log.high_watermark()))
        if one.record and one.record.kind is Kind.EPOCH_STARTED
    )
    assert started.attributes["payload_store"] == store.url
    lost = PayloadAddress.of(b"lost", owner_of(0, started.driver_id))
    theirs = PayloadAddress.of(b"theirs", owner_of(0, "of-another-log"))
    store.put(lost, b"lost")
    store.put(theirs, b"theirs")

    second = one_round(log, store)

    assert second.restored == [MODEL + b"of the coordinator"]
    assert [one.restored for one in second.reports] == [digest(MODEL)]
    until = time.monotonic() + WAIT_S
    while any(one.path == lost.path for one in store.listed()):
        assert time.monotonic() < until, "it goes on a worker"
        time.sleep(0.01)
    assert store.get(theirs) == b"theirs"
    assert not payload_use(log, store).missing


def test_a_driver_s_end_does_not_wait_for_all_that_the_dead_have_left(
    log: MemoryLog, store: PayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_round(log, store)
    (started,) = (
        one.record
        for one in audit_records(log.read(0, log.high_watermark()))
        if one.record and one.record.kind is Kind.EPOCH_STARTED
    )
    lost = [PayloadAddress.of(b"%d" % n, owner_of(0, started.driver_id)) for n in range(9)]
    for n, one in enumerate(lost):
        store.put(one, b"%d" % n)
    is_removing, is_ended = threading.Event(), threading.Event()
    threads = list[threading.Thread]()
    real = payload_store._LocalFiles.remove

    def remove(files: payload_store._LocalFiles, path: str) -> None:
        """As of a store that is slow."""
        threads.append(threading.current_thread())
        is_removing.set()
        assert is_ended.wait(WAIT_S)
        real(files, path)

    monkeypatch.setattr(payload_store._LocalFiles, "remove", remove)
    driver = begun(log, store, Heard())
    assert is_removing.wait(WAIT_S)
    driver.end_at_once(by="the test")
    is_ended.set()
    driver.wait(WAIT_S)

    assert [one.daemon for one in threads] == [True], (
        "one file, and no thread that an exit waits for"
    )
    assert not threads[0].is_alive()
    left = {one.path for one in store.listed()}
    assert len([one for one in lost if one.path in left]) == 8


@pytest.mark.clause("K7")
def test_a_replay_of_a_history_with_large_payloads_writes_nothing(
    log: MemoryLog, store: PayloadStore
) -> None:
    one_round(log, store)
    one_round(log, store)
    before = store.listed()
    source, scorer = links(Heard())
    chain, history = Chain(source=source, operators=[scorer]), log

    done = replay(history, chain, payload_store=store)

    assert done.epoch_count == 2
    assert done.record_count > 20
    assert store.listed() == before
    scorer.coordinator.content = MODEL[1:]  # type: ignore[union-attr]
    with pytest.raises(ReplayError, match="EVENT_TO_SUBTASK: the payload"):
        replay(history, chain, payload_store=store)


@pytest.mark.clause("K6")
def test_a_full_disk_ends_the_driver_by_errno_and_the_next_one_continues(
    log: MemoryLog, store: PayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_round(log, store)
    real = sync_path
    before = log.high_watermark()

    def full(_folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(payload_store, "sync_path", full)
    driver = begun(log, store, Heard())
    with pytest.raises(PayloadStoreError, match=r"\[errno 28\] No space left on device; free some"):
        driver.wait(WAIT_S)
    sent = [
        one.record.kind
        for one in audit_records(log.read(0, log.high_watermark()))
        if one.offset >= before and one.record
    ]
    assert Kind.EVENT_TO_SUBTASK not in sent, "what could not be stored is in no record"

    monkeypatch.setattr(payload_store, "sync_path", real)
    third = one_round(log, store)
    assert third.restored == [MODEL + b"of the coordinator"]


def test_a_store_silent_for_the_logs_timeout_ends_the_driver(
    log: MemoryLog, store: PayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_round(log, store)

    def away(_folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(payload_store, "sync_path", away)
    driver = begun(log, store, Heard())
    with pytest.raises(
        PayloadStoreUnreachableError, match="check that it works and can be reached"
    ):
        driver.wait(WAIT_S)


def test_a_store_that_comes_back_in_time_is_not_noticed(
    log: MemoryLog, store: PayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[[Path], None] = sync_path
    failures = iter([True] * 3)

    def shaky(folder: Path) -> None:
        if folder.name.startswith("0-") and next(failures, False):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(folder)

    monkeypatch.setattr(payload_store, "sync_path", shaky)
    heard = one_round(log, store)

    assert [one.bulk for one in heard.reports] == [MODEL[::-1]]
    assert next(failures, None) is None, "it has failed as often as it was to"


@pytest.fixture
def bucket(s3_store: S3Server) -> str:
    return s3_store.new_bucket()


def test_on_an_object_store_a_name_is_written_once_and_a_restart_reads_it(
    log: MemoryLog, s3_store: S3Server, bucket: str
) -> None:
    store = PayloadStore(f"s3://{bucket}/kept", "job")
    address = PayloadAddress.of(MODEL, owner_of(0, "a"))
    store.put(address, MODEL)
    store.put(address, MODEL)
    assert store.get(address) == MODEL
    assert s3_store.keys(bucket) == [f"kept/job/{address.path}"]
    assert [one.path for one in store.listed()] == [address.path]
    assert store.remove(store.listed()) == 1
    assert store.listed() == ()

    one_round(log, store)
    second = one_round(log, store)

    assert second.restored == [MODEL + b"of the coordinator"]
    assert [one.restored for one in second.reports] == [digest(MODEL)]


def test_a_bucket_that_is_not_there_is_said(s3_store: S3Server) -> None:
    store = PayloadStore("s3://no-such-bucket-here/kept", "job")

    with pytest.raises(PayloadStoreError, match=r"s3://no-such-bucket-here/kept/job: keeping"):
        store.put(PayloadAddress.of(b"x", owner_of(0, "a")), b"x")
