"""A small disk of the brokers' own, in a file: it can be full, and it can be cut back to what had been flushed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["NoDiskError", "SmallDisk"]

_BYTES = 256 * 1024 * 1024
_LIMIT_S = 60.0


class NoDiskError(Exception):
    """This machine, or this user, cannot mount one; the text says why."""


class SmallDisk:
    """An ext4 file system in a file, mounted by a loop device at `root`/`name`. `close` always, last.

    What the file holds is what the file system has sent to its device: what a program has written
    and not flushed is in memory only, until the system gets round to it some seconds later.

    Raises:
        NoDiskError: It cannot be mounted.
    """

    def __init__(self, root: Path, name: str = "disk") -> None:
        self._root, self._name, self._count = root, name, 0
        self.path = root / name
        self.path.mkdir()
        self._image = root / f"{name}-0.img"
        with self._image.open("wb") as file:
            file.truncate(_BYTES)
        # No blocks for root alone: it is root that fills it.
        _run("mkfs.ext4", "-q", "-m", "0", "-F", str(self._image))
        self._mount()

    def fill(self) -> None:
        """Leave no block free."""
        with (self.path / "filler").open("wb", buffering=0) as file:
            size = 0
            while (left := os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize) > 0:
                try:
                    os.posix_fallocate(file.fileno(), size, max(4096, left))
                except OSError:
                    break
                size += max(4096, left)
            piece = bytes(4096)
            with contextlib.suppress(OSError):
                while True:
                    file.seek(0, os.SEEK_END)
                    file.write(piece)

    @property
    def is_full(self) -> bool:
        """Whether no block is left."""
        return os.statvfs(self.path).f_bavail == 0

    def free(self) -> None:
        """As before `fill`."""
        (self.path / "filler").unlink(missing_ok=True)

    def copy(self) -> Path:
        """What would be on the disk if the machine lost its power now. Nothing may be writing."""
        self._count += 1
        copied = self._root / f"{self._name}-{self._count}.img"
        _run("cp", "--sparse=always", str(self._image), str(copied))
        return copied

    def put_in_place(self, copied: Path) -> None:
        """The copy from now on; whoever wrote to this one is gone."""
        self._unmount()
        self._image.unlink()
        self._image = copied
        self._mount()

    def close(self) -> None:
        """Nothing stays."""
        self._unmount()
        self._image.unlink(missing_ok=True)

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def _unmount(self) -> None:
        with contextlib.suppress(NoDiskError):
            _run("umount", "-l", str(self.path))


def _run(program: str, *arguments: str) -> None:
    if os.geteuid() != 0:
        raise NoDiskError("only root may mount one")
    # They stand where not every user's PATH leads.
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise NoDiskError(f"there is no {program}")
    done = subprocess.run(
        [found, *arguments], capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise NoDiskError(f"{program}: {done.stderr.strip()}")
