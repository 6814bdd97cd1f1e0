"""A lock between processes: held by an open file, and released with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

__all__ = ["file_lock", "lock_open", "try_lock"]

_POLL_S: Final = 0.05


def try_lock(path: Path) -> int | None:
    """A file descriptor that holds the lock until it is closed; None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_ours = lock_open(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    if not is_ours:
        os.close(descriptor)
        return None
    return descriptor


def lock_open(descriptor: int) -> bool:
    """Lock an open file until it is closed; False if another holds its lock.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def file_lock(path: Path, *, limit_s: float, busy: Exception) -> Generator[None, None, None]:
    """Hold the lock for the block.

    Args:
        path: The file; created if missing, never removed: else two processes could each lock a file of its name.
        limit_s: How long to wait for another holder.
        busy: Exception that is raised if the holder does not release the lock in time.
    """
    deadline = time.monotonic() + limit_s
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise busy
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(descriptor)
