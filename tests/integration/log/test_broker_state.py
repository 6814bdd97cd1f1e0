"""What a broker's folder says of its broker, to versions that wrote it and to others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from coordlog.log.broker import limits
from coordlog.log.broker.guard import LOCK_FILE
from coordlog.log.broker.shared import StopOutcome, ensure_shared_broker, shared_status, stop_shared
from coordlog.log.broker.state import (
    STATE_FILE,
    BrokerState,
    is_data_in_use,
    read_state,
    write_state,
)
from coordlog.log.local.environment_errors import BrokerBusyError, BrokerError
from coordlog.log.local.file_lock import lock_on
from coordlog.log.local.processes import this_process

_LOCKING = """\
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(descriptor, fcntl.LOCK_EX)  # as Java's FileChannel does
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    (tmp_path / "broker" / "data").mkdir(parents=True)
    return tmp_path / "broker"


@contextmanager
def broker_uses(folder: Path) -> Iterator[None]:
    """A process holds the lock of the data folder, as a broker does."""
    with subprocess.Popen(
        [sys.executable, "-c", _LOCKING, str(folder / "data" / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.communicate("")


def written(folder: Path) -> BrokerState:
    process = this_process()
    state = BrokerState(
        run="r1",
        java=process,
        guard=replace(process, pid=process.pid + 1),
        port=41_000,
        cluster_id="c",
        since=1.5,
        idle_minutes=None,
    )
    write_state(folder, state)
    return state


def test_fields_of_a_newer_version_are_passed_over(folder: Path) -> None:
    """The broker would else be one that nobody knows of, and would be started over."""
    state = written(folder)
    path = folder / STATE_FILE
    says = json.loads(path.read_text())
    says["of_a_newer_version"] = 1
    says["java"]["of_a_newer_version"] = 2
    path.write_text(json.dumps(says))

    assert read_state(folder) == state
    assert shared_status().running


@pytest.mark.parametrize("text", ["", '{"run": "r1"', '{"run": "r1"}', "[]"])
def test_a_state_that_cannot_be_read_hides_no_broker(folder: Path, text: str) -> None:
    written(folder)
    (folder / STATE_FILE).write_text(text)
    with broker_uses(folder):
        assert is_data_in_use(folder)
        for ask in (shared_status, stop_shared, ensure_shared_broker):
            with pytest.raises(BrokerError, match=r"a broker uses .*another version of coordlog"):
                ask()
    assert (folder / STATE_FILE).read_text() == text

    assert not is_data_in_use(folder)
    assert read_state(folder) is None, "cut short by a power cut, with the broker"
    assert stop_shared() is StopOutcome.NOT_RUNNING
    (folder / STATE_FILE).unlink()
    assert read_state(folder) is None


def test_a_command_that_waits_for_another_in_vain_names_its_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESOLVE_LIMIT_S", 0.0)
    monkeypatch.setattr(limits, "START_LIMIT_S", 0.0)
    with (
        lock_on(folder / LOCK_FILE),
        pytest.raises(
            BrokerBusyError,
            match=f"^process {os.getpid()} has been starting or stopping the broker in {folder} "
            "for more than 0 s; look at `coordlog broker status`",
        ),
    ):
        stop_shared()
