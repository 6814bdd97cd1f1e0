"""A lock between processes: that of `filelock` on an open file, released with the process that holds it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

from filelock import Timeout, UnixFileLock

from coordlog.log.local.paths import of_this_user
from coordlog.log.local.processes import Process, is_alive, this_process

__all__ = ["file_lock", "lock_on"]

_RECORD_BYTES_MAX: Final = 200


def lock_on(path: Path) -> UnixFileLock:
    """The lock of a file, not yet acquired.

    The file is created if missing, and never removed: else two processes could each lock a file of its name.
    A file system without locks raises OSError: a marker instead of a lock would survive a killed holder.
    """
    return UnixFileLock(
        path, mode=0o600, thread_local=False, fallback_to_soft=False, on_acquired=_record_holder
    )


@contextlib.contextmanager
def file_lock(
    path: Path, *, limit_s: float, busy: Callable[[str], Exception]
) -> Generator[None, None, None]:
    """Hold the lock for the block.

    Args:
        path: The file.
        limit_s: How long to wait for another holder.
        busy: Exception to raise if the holder does not release the lock in time; its argument names the holder.

    Raises:
        EnvironmentSetupError: The file is another user's.
    """
    try:
        with of_this_user(path):
            held = lock_on(path).acquire(timeout=limit_s)
    except Timeout:
        raise busy(_holder(path)) from None
    with held:
        yield


def _record_holder(descriptor: int) -> None:
    """Write this process into the lock's file, for the messages of others. A full disk prevents no lock."""
    with contextlib.suppress(OSError):
        process = this_process()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{process.pid} {process.born}".encode(), 0)


def _holder(path: Path) -> str:
    """The process in the lock's file, if it is alive: the file of a killed holder still has its number."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        pid, _, born = file.read(_RECORD_BYTES_MAX).decode("ascii").partition(" ")
        if is_alive(Process(pid=int(pid), born=born)):
            return f"process {pid}"
    return "another process"
