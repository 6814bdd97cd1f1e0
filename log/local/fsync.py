"""Names that stay: folders and files whose entries are on disk when a call returns; and files opened safely."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

__all__ = ["make_folders", "open_plain", "sync_path"]


def open_plain(path: Path) -> io.BufferedReader:
    """Open a plain file to read it. What is judged of it is judged of the open descriptor: a name can be swapped.

    Raises:
        OSError: It cannot be opened, or is a folder, a pipe or a device: reading those may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


def sync_path(path: Path) -> None:
    """Put a file's content, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path, *, mode: int = 0o777) -> None:
    """Make `folder` and what is missing above it, each name on disk."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for one in reversed(missing):
        one.mkdir(exist_ok=True, mode=mode)
        sync_path(one.parent)
