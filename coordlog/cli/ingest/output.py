"""Where the output of Spark, its workers and libraries goes: into a file, shown if asked for."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from coordlog.log.local.paths import home_folder, private_folder

__all__ = ["Followed", "output_file", "redirected"]

_KEPT: Final = 20
"""Files of earlier runs of a job that stay."""

_LOOK_S: Final = 0.2
"""Pause between two looks at files that are followed."""

_END_S: Final = 2.0


def output_file(job_id: str) -> Path:
    """A new file for the output of one run of a job; the oldest of many are deleted."""
    folder = private_folder(home_folder())
    for name in ("jobs", job_id, "output"):
        folder = private_folder(folder / name)
    for old in sorted(folder.glob("*.log"))[: -_KEPT + 1]:
        old.unlink(missing_ok=True)
    now = datetime.now(UTC)
    return folder / f"{now:%Y%m%dT%H%M%S}-{os.getpid()}.log"


@contextmanager
def redirected(path: Path) -> Iterator[IO[str]]:
    """Send this process's output to a file; what the block is given is the former output.

    Child processes inherit it: this is done before Spark starts its JVM. All is put back at the
    end, so that a last message reaches the terminal.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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
        former = os.fdopen(os.dup(saved[0]), "w", encoding=sys.stdout.encoding)
        try:
            yield former
        finally:
            # A thread that writes to a reader that does not read holds the file.
            closing = threading.Thread(target=former.close, daemon=True)
            closing.start()
            closing.join(_END_S)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), saved, strict=True):
            os.dup2(old, number)
            os.close(old)


class Followed:
    """Shows what is added to some files, line by line; `close` shows the rest."""

    def __init__(self, paths: Sequence[Path], show: Callable[[str], None]) -> None:
        self._show = show
        self._places = {path: _size(path) for path in paths}
        self._rests = dict.fromkeys(paths, b"")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordlog-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._ended.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()
        self._look()

    def _look(self) -> None:
        for path, place in self._places.items():
            if _size(path) <= place:
                continue
            with path.open("rb") as file:
                file.seek(place)
                new = file.read()
            self._places[path] = place + len(new)
            *lines, self._rests[path] = (self._rests[path] + new).split(b"\n")
            for line in lines:
                self._show(line.decode("utf-8", "replace"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
