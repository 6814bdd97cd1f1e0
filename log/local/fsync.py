"""Durable names: folders and files whose entries are on disk when a call returns; and files opened safely."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["make_folders", "naming", "open_plain", "sync_path"]


def open_plain(path: Path) -> io.BufferedReader:
    """Open a plain file to read it. The open descriptor is checked, not the name, which can be swapped.

    Raises:
        OSError: The file cannot be opened, or is a folder, a pipe or a device: reading those may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Add the file's name to errors of its writes that have none: of a full disk, for example."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync_path(path: Path) -> None:
    """Put a file's content, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path, *, mode: int = 0o777) -> None:
    """Create `folder` and its missing parents, each name on disk."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(exist_ok=True, mode=mode)
        sync_path(path.parent)
