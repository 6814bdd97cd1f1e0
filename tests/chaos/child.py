"""A process of a round: started from one that has imported all there is to import, stopped and ended by signals."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from chaos.job_parts import Folders
from chaos.steps import Note, Steps, read_notes

__all__ = ["Child", "Ordered", "enter", "wait_until"]

_LOOK_S = 0.005
_PR_SET_PDEATHSIG = 1
_MODULES = [
    *("chaos.driver_process", "chaos.client_process", "chaos.command_process"),
    *(
        "coordlog.cli.commands.run.fork",
        "coordlog.cli.commands.look.checkpoint",
        "coordlog.cli.commands.repair.prune",
        "coordlog.cli.commands.run.skip",
    ),
    *("pyarrow.parquet", "pyarrow.csv", "kafka"),
]


class Ordered(Protocol):
    """What each process is told."""

    @property
    def name(self) -> str:
        """Unlike that of any other process of the round."""
        ...

    @property
    def root(self) -> str:
        """The round's folder."""
        ...

    @property
    def pause_at(self) -> tuple[str, int] | None:
        """The step at which it stops itself, and the how many-th time."""
        ...


class Child:
    """One process, started. It ends with this one, at the latest."""

    def __init__(self, target: Callable[[Ordered], None], orders: Ordered) -> None:
        self.folders = Folders(Path(orders.root))
        self._notes = self.folders.root / f"{orders.name}.notes"
        self._output = self.folders.root / f"{orders.name}.out"
        self._process: BaseProcess = _context().Process(target=target, args=(orders,))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def notes(self) -> list[Note]:
        """What it has noted until now."""
        return read_notes(self._notes)

    @property
    def output(self) -> str:
        """What it has said."""
        return self._output.read_text("utf-8", "replace") if self._output.exists() else ""

    @property
    def error(self) -> str:
        """The one line by which a command would end."""
        lines = [line for line in self.output.splitlines() if line.startswith("error: ")]
        return lines[-1] if lines else ""

    @property
    def is_stopped(self) -> bool:
        """Whether it stands still, by SIGSTOP."""
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{self.pid}/stat").read_text("ascii", "replace")
            return stat.rpartition(")")[2].split()[0] == "T"
        return False

    @property
    def status(self) -> int | None:
        """Its exit status; None while it is there."""
        return self._process.exitcode

    def wait(self, limit_s: float) -> int | None:
        """Its exit status; None where it has not ended within the limit."""
        self._process.join(limit_s)
        return self._process.exitcode

    def signal(self, number: int) -> None:
        """Send it a signal, if it is there."""
        if self._process.is_alive():
            os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self._process.exitcode is not None

    def end(self) -> None:
        """See that it is gone."""
        self.signal(signal.SIGKILL)
        self._process.join()


def _context() -> ForkServerContext:
    """Children are forked from a process that has imported all there is to import: it takes a second."""
    context = multiprocessing.get_context("forkserver")
    tests = str(Path(__file__).parents[1])
    if tests not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        # The server does not look where this process has been told to.
        paths = [tests, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    context.set_forkserver_preload(_MODULES)
    return context


def enter(orders: Ordered) -> Steps:
    """The first thing in a child: where it writes, and where this user's files are."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))  # one that stands still, too
    folders = Folders(Path(orders.root))
    with (folders.root / f"{orders.name}.out").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ["COORDLOG_HOME"] = str(folders.home)
    return Steps(folders.root / f"{orders.name}.notes", orders.pause_at)


def wait_until(is_so: Callable[[], object], limit_s: float, what: str) -> None:
    """Look until it is so.

    Raises:
        TimeoutError: It is not, within the limit.
    """
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        time.sleep(_LOOK_S)
