"""Where a job keeps its large payloads, by session, broker and options; and how much a driver holds of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordlog.cli.ingest.options import IngestOptions
from coordlog.cli.ingest.parts import parts_of
from coordlog.errors import OptionError, OptionsError, TooLargeError
from coordlog.limits import PAYLOAD_BYTES_MAX, STORED_PAYLOAD_BYTES_MAX
from coordlog.log.interface import Log
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.payloads import offload as payloads_module
from coordlog.payloads.offload import AttemptPayloads, DriverPayloads, PayloadOptions
from coordlog.schemas.payload_address import address_in
from coordlog.spark_integration.driver import payload_options
from coordlog.spark_integration.driver.payload_options import PayloadChoice


def chosen(
    monkeypatch: pytest.MonkeyPatch, *, is_local: bool, servers: str | None, url: str | None = None
) -> PayloadStore | None:
    monkeypatch.setattr(payload_options, "is_local_session", lambda _spark: is_local)
    log: object = (
        MemoryLog("job") if servers is None else SimpleNamespace(bootstrap_servers=servers)
    )
    choice = PayloadChoice("job", url, PAYLOAD_BYTES_MAX)
    return choice.on(cast("Any", None), cast("Log", log)).store


@pytest.mark.parametrize("servers", ["127.0.0.1:9092", "localhost:1, [::1]:2"])
def test_beside_a_broker_of_this_machine_it_is_a_folder_of_this_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, servers: str
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))

    store = chosen(monkeypatch, is_local=True, servers=servers)

    assert store is not None
    assert store.where == str(tmp_path / "payloads" / "job")
    assert not any(tmp_path.iterdir()), "nothing is made before it is needed"


@pytest.mark.parametrize(
    ("is_local", "servers"),
    [
        (True, "broker.example:9092"),
        (True, "127.0.0.1:1,broker.example:9092"),
        (False, "127.0.0.1:9092"),
        (True, None),
    ],
)
def test_elsewhere_there_is_none_until_it_is_named(
    monkeypatch: pytest.MonkeyPatch, servers: str | None, *, is_local: bool
) -> None:
    assert chosen(monkeypatch, is_local=is_local, servers=servers) is None


def test_a_folder_of_the_driver_s_machine_is_refused_for_tasks_on_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="all machines of the cluster reach"):
        chosen(monkeypatch, is_local=False, servers="b:1", url=str(tmp_path))
    store = chosen(monkeypatch, is_local=False, servers="b:1", url="s3://bucket/kept")
    assert store is not None
    assert store.where == "s3://bucket/kept/job"


@pytest.mark.parametrize("limit", [0, 1_023, PAYLOAD_BYTES_MAX + 1])
def test_a_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(OptionError, match="payload_limit_bytes"):
        PayloadChoice("job", None, limit)


def test_ingest_refuses_what_cannot_be_meant_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(OptionsError) as refused:
        parts_of(
            IngestOptions(
                source=str(tmp_path),
                destination=str(tmp_path / "out"),
                payload_store="s3://key:secret@bucket",
                payload_limit_bytes=PAYLOAD_BYTES_MAX,
            )
        )

    assert "payload_store" in str(refused.value)
    assert "secret" not in str(refused.value)


# --- what a driver holds ----------------------------------------------------------------------------------------------
@pytest.fixture
def options(tmp_path: Path) -> PayloadOptions:
    return PayloadOptions(store=PayloadStore(str(tmp_path), "job"), limit_bytes=1_000)


def test_a_driver_takes_nothing_new_while_too_much_waits_for_the_store(
    options: PayloadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads_module, "PAYLOADS_WAITING_BYTES_MAX", 5_000)
    payloads = DriverPayloads(options)
    payloads.begin(0, "a")
    for n in range(5):
        payloads.seal("it", None, b"%d" % n * 1_001)
    assert payloads.is_full
    held = payloads.take()

    payloads.keep(held)
    assert payloads.is_full, "not before the records that address them are released"
    payloads.release(held)

    assert not payloads.is_full
    assert payloads.take() == ()


def test_the_same_content_twice_is_held_until_both_are_released(options: PayloadOptions) -> None:
    payloads = DriverPayloads(options)
    payloads.begin(0, "a")
    one = payloads.seal("it", None, b"x" * 2_000)
    first = payloads.take()
    assert payloads.seal("it", None, b"x" * 2_000) == one
    second = payloads.take()

    payloads.release(first)
    assert payloads.open(one) == b"x" * 2_000, "held: the store does not have it yet"
    payloads.keep(second)
    payloads.release(second)
    assert payloads.open(one) == b"x" * 2_000


def test_of_what_was_read_only_the_newest_stay_at_hand(
    options: PayloadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads_module, "PAYLOADS_RECENT_BYTES_MAX", 5_000)
    attempt = AttemptPayloads(options, 0, "a")
    sealed = [attempt.store(b"%d" % n * 2_000) for n in range(4)]
    large = attempt.store(b"y" * 10_000)
    assert options.store is not None
    payloads = DriverPayloads(options)
    for one in (*sealed, large):
        payloads.open(one)
    options.store.remove(options.store.listed())

    assert payloads.open(large) == b"y" * 10_000, "the newest, whatever its size"
    with pytest.raises(Exception, match="it is not there"):
        payloads.open(sealed[-1])


def test_what_is_larger_than_the_store_takes_is_refused(
    options: PayloadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads_module, "STORED_PAYLOAD_BYTES_MAX", 5_000)
    payloads = DriverPayloads(options)
    payloads.begin(0, "a")

    assert address_in(payloads.seal("it", None, b"x" * 5_000)) is not None
    with pytest.raises(TooLargeError, match="it is 5001 bytes; the limit is 5000"):
        payloads.seal("it", None, b"x" * 5_001)
    with pytest.raises(TooLargeError, match="the limit is 2000: put the content elsewhere"):
        payloads.seal("it", "coordlog.add_splits@1", b"x" * 2_001, inline_max=2_000)
    assert STORED_PAYLOAD_BYTES_MAX > PAYLOAD_BYTES_MAX
