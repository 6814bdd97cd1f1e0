"""Names that stay: folders and files whose entries are on disk when a call returns."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["make_folders", "sync_path"]


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
