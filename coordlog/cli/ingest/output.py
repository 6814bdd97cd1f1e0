"""Redirects the output of Spark, its workers and libraries to a file; `--verbose` shows its lines."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from filelock import lock_descriptor

from coordlog.log.local.fsync import open_plain
from coordlog.log.local.paths import home_folder, private_folder

__all__ = ["Followed", "output_file", "redirected"]

_KEPT: Final = 20
"""Number of output files kept for each job, without those of processes that run."""

_POLL_S: Final = 0.2
"""Seconds between two reads of the followed files."""

_END_S: Final = 2.0
"""Longest wait for the end of a thread, in seconds."""


def output_file(job_id: str) -> Path:
    """Path for the output of one run of a job. Deletes the oldest files, so that few remain.

    The file of a run that has not ended stays: a job runs for months, and each start beside it that is refused has
    a file too.
    """
    folder = private_folder(home_folder())
    for name in ("jobs", job_id, "output"):
        folder = private_folder(folder / name)
    for old in sorted(folder.glob("*.log"))[: -_KEPT + 1]:
        if not _is_written(old):
            old.unlink(missing_ok=True)
    now = datetime.now(UTC)
    return folder / f"{now:%Y%m%dT%H%M%S}-{os.getpid()}.log"


def _is_written(path: Path) -> bool:
    """Whether a process holds the lock that `redirected` took; False if the file system has no locks."""
    with suppress(OSError), open_plain(path) as file:
        return not lock_descriptor(file.fileno(), blocking=False)
    return False


@contextmanager
def redirected(path: Path) -> Iterator[IO[str]]:
    """Redirect this process's standard output and error to a file; yields the original output.

    The file is locked until this process and its children have closed it. Child processes inherit the
    file, so call this before Spark's JVM starts. The original output is restored at the end, so that a
    last message reaches the terminal.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with suppress(OSError):  # a file system without locks
        lock_descriptor(file, blocking=False)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("coordlog")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        original = os.fdopen(os.dup(saved[0]), "w", encoding=sys.stdout.encoding)
        try:
            yield original
        finally:
            # If the reader has stopped reading, another thread may be blocked in a write to this file;
            # `close` would then wait for that thread.
            closing = threading.Thread(target=original.close, daemon=True)
            closing.start()
            closing.join(_END_S)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copied in zip((1, 2), saved, strict=True):
            os.dup2(copied, descriptor)
            os.close(copied)


class Followed:
    """Follows files and shows their new lines, up to the call of `close`."""

    def __init__(self, paths: Sequence[Path], show: Callable[[str], None]) -> None:
        self._show = show
        self._offsets = {path: _size(path) for path in paths}
        self._unfinished = dict.fromkeys(paths, b"")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordlog-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show the lines that are new until now, and stop."""
        self._ended.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._ended.wait(_POLL_S):
            self._show_new_lines()
        self._show_new_lines()

    def _show_new_lines(self) -> None:
        for path, offset in self._offsets.items():
            if _size(path) <= offset:
                continue
            with path.open("rb") as file:
                file.seek(offset)
                new = file.read()
            self._offsets[path] = offset + len(new)
            *lines, self._unfinished[path] = (self._unfinished[path] + new).split(b"\n")
            for line in lines:
                self._show(line.decode("utf-8", "replace"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
