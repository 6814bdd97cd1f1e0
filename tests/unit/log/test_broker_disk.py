"""A broker that has ended because its disk is full is reported with its disk, not only as one that does not answer."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordlog.log.broker.state import BrokerState, write_state
from coordlog.log.kafka.client import Connection
from coordlog.log.kafka.security import Security
from coordlog.log.local.paths import private_folder
from fakes.driver_files import ENDED_PROCESS

PORT = 29_999


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    state = BrokerState(
        run="r",
        java=ENDED_PROCESS,
        guard=ENDED_PROCESS,
        port=PORT,
        cluster_id="c",
        since=0.0,
        idle_minutes=None,
    )
    write_state(private_folder(tmp_path / "broker"), state)
    return tmp_path / "broker"


def said_of(port: int) -> str:
    connection = Connection(
        topic="job.log",
        bootstrap_servers=f"127.0.0.1:{port}",
        security=Security(),
        connect_timeout_s=1.0,
    )
    return str(connection.unavailable("appending", time.monotonic(), ConnectionRefusedError()))


@pytest.mark.parametrize(("free", "is_named"), [(8_192, True), (1 << 40, False)])
def test_the_full_disk_of_the_shared_broker_is_named_with_its_free_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free: int, *, is_named: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))

    clause = f"; the disk of its folder {folder} has only 8,192 bytes free): check that its broker"

    assert (clause in said_of(PORT)) == is_named
    assert "bytes free" not in said_of(PORT + 1), "of another broker nothing is known"


def test_without_a_shared_broker_only_the_address_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))

    assert "bytes free" not in said_of(PORT)
