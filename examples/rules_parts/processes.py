"""Starts the driver in a session of its own, and kills what it has started, nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from examples.demo_parts.processes import TAG_VARIABLE, WrongProcessError, kill_all, pids_with_tag

__all__ = ["DriverProcess"]

_GONE_S: Final = 15.0
_POLL_S: Final = 0.05


class DriverProcess:
    """One life of the driver; what it says goes to a file.

    Args:
        command: The program's, without the interpreter.
        tag: In the environment of all that it starts: what carries it may be killed.
        output: Appended to.
    """

    def __init__(self, command: Sequence[str], *, tag: str, output: Path) -> None:
        self._tag = tag
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, TAG_VARIABLE: tag},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The driver's, and its process group's."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the driver is gone."""
        return self._process.poll() is not None

    def wait(self, limit_s: float) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        return self._process.wait(limit_s)

    def kill_worker(self, pid: int) -> None:
        """End one of its Python workers by SIGKILL, once it is seen to be one.

        Raises:
            WrongProcessError: It is none of Spark's, or not of this run.
        """
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError as error:
            raise WrongProcessError(f"process {pid} is gone") from error
        if "pyspark" not in command or pid not in self._left():
            raise WrongProcessError(f"process {pid} is no Python worker of this run: {command!r}")
        os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL to the driver's process group, and to whatever of its session is left."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_GONE_S)
        deadline = time.monotonic() + _GONE_S
        while self._left() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        kill_all(self._left())

    def _left(self) -> list[int]:
        return [pid for pid in pids_with_tag(self._tag) if _session(pid) == self._process.pid]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
