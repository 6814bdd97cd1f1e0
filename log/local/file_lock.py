"""A lock between processes: held by an open file, and gone with the process that held it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

__all__ = ["file_lock", "try_lock"]

_POLL_S: Final = 0.05


def try_lock(path: Path) -> int | None:
    """A file descriptor that holds the lock until it is closed; None where another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def file_lock(path: Path, *, limit_s: float, busy: Exception) -> Generator[None, None, None]:
    """Hold the lock for the block.

    Args:
        path: The file; made when missing, never removed, or two could each lock one of its name.
        limit_s: How long to wait for another holder.
        busy: What is raised when it did not let go.
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
