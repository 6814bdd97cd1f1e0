"""Locks between processes: who holds one, when it is free again, and what a wait for it says."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import Timeout

from coordlog.log.local.environment_errors import JarsError
from coordlog.log.local.file_lock import file_lock, lock_on

_HOLDING = """\
import os, sys
from pathlib import Path
from coordlog.log.local.file_lock import lock_on
with lock_on(Path(sys.argv[1])):
    child = os.fork() if "fork" in sys.argv else None
    if child == 0:
        os.close(1)
    else:
        print(child, flush=True)
    sys.stdin.read()
    if child == 0:
        os._exit(0)
"""


@contextmanager
def holder(path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds the lock, with its first line."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDING, str(path), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline()
        process.kill()


def busy(holder: str) -> Exception:
    return JarsError(f"{holder} has it", "wait")


def test_a_lock_is_held_by_one_and_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    with file_lock(path, limit_s=1, busy=busy):
        with pytest.raises(Timeout):
            lock_on(path).acquire(blocking=False)
        with (
            pytest.raises(JarsError, match=f"^process {os.getpid()} has it"),
            file_lock(path, limit_s=0, busy=busy),
        ):
            pass
    with file_lock(path, limit_s=0, busy=busy):
        assert path.is_file(), "never removed"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.kill
def test_a_wait_names_the_holder_and_a_killed_holder_has_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as (process, _):
        with (
            pytest.raises(JarsError, match=f"^process {process.pid} has it"),
            file_lock(path, limit_s=0.1, busy=busy),
        ):
            pass
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)

        with file_lock(path, limit_s=0, busy=busy):
            assert path.read_text("ascii").startswith(f"{os.getpid()} ")


@pytest.mark.kill
def test_a_child_forked_by_a_killed_holder_does_not_keep_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path, "fork") as (process, child):
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
        os.kill(int(child), 0)  # is alive

        # It may not have run yet since the fork.
        with file_lock(path, limit_s=30, busy=busy):
            pass
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize("content", ["", "x", "1", "-5 a", "99999999999999999999 b", "\u00e9 1"])
def test_a_file_of_anything_else_names_no_process(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lock"
    with lock_on(path):
        path.write_text(content, "utf-8")
        with (
            pytest.raises(JarsError, match=r"^another process has it"),
            file_lock(path, limit_s=0, busy=busy),
        ):
            pass


def test_a_full_disk_prevents_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step on a full disk is `coordlog cache clear`, which takes the lock."""

    def full(_descriptor: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with file_lock(tmp_path / "lock", limit_s=0, busy=busy):
        pass


def test_a_file_system_without_locks_is_an_error_and_not_a_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker would stay when its writer is killed."""

    def without_locks(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", without_locks)
    with (
        pytest.raises(OSError, match="not implemented"),
        file_lock(tmp_path / "lock", limit_s=0, busy=busy),
    ):
        pass
