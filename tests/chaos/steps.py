"""The named steps of a driver: where it stops itself, and what it notes down for who checks it."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import TypedDict, Unpack

__all__ = ["Note", "Steps", "Told", "read_notes"]


class Told(TypedDict):
    """What a client has asked, and what it was told."""

    name: str
    is_refused: bool
    """Whether the coordinator is asked to refuse."""
    is_stranger: bool
    """Whether it asks without the token."""
    how: str
    """`open` as long as it waits, then `answered`, `refused` or `unanswered`."""
    says: str
    sequence: int | None
    """Of the answer, as the client has it."""


class Note(TypedDict, total=False):
    """One thing that a driver has done; exactly one of these."""

    took_over: str
    """Its `driver_id`, once its epoch is in force."""
    stored: list[int]
    """The sequences of records of its own that the log has acknowledged, or has given back."""
    released: list[int]
    """The sequences of a turn, before any of its effects."""
    publishes: list[str]
    """Final names, before the first of them is given."""
    delivers: int
    """An event's id, before it leaves."""
    answers: int
    """The sequence of an answer, or of a refusal, before its client is told."""
    works: str
    """The name of some work, before it is done."""
    refuses: str
    """Why a task is no attempt, before it is told so."""
    read: int
    """The offset to which it has read, once it has all of it."""
    listens: str
    """The endpoint's address."""
    told: Told
    """A client's: once when it asks, and again when it has heard."""


class Steps:
    """Told each step by the wrapped ports of one driver; stops the process at one of them. Any thread."""

    def __init__(self, notes: Path, pause_at: tuple[str, int] | None) -> None:
        self._pause_at = pause_at
        self._lock = threading.Lock()
        self._count = 0
        self._file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def at(self, step: str) -> None:
        """Stop here, by SIGSTOP, if this is the one: until somebody sends SIGCONT."""
        if self._pause_at is None or self._pause_at[0] != step:
            return
        with self._lock:
            self._count += 1
            is_it = self._count == self._pause_at[1]
        if is_it:
            # Sent to the process, another thread may take it, while this one goes on past the step.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def did(self, **done: Unpack[Note]) -> None:
        """Note one thing: with one `write`, so that it stands whatever becomes of this process."""
        os.write(self._file, (json.dumps(done) + "\n").encode())


def read_notes(path: Path) -> list[Note]:
    """All that a driver has noted, in order."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]  # what stands behind the last end of a line is cut
    return [json.loads(line) for line in lines]
