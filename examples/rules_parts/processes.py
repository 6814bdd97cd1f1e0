"""Starts the driver in a session of its own, and kills only processes of that session."""

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
    """A process of the driver; its output goes to a file.

    Args:
        command: Command line without the interpreter.
        tag: Value of `TAG_VARIABLE` for all its processes: only these may be killed.
        output: File to which the output is appended.
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
        """Id of the driver's process, and of its process group."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the driver has ended."""
        return self._process.poll() is not None

    def wait(self, limit_s: float) -> int:
        """Wait for its exit status. Raises subprocess.TimeoutExpired."""
        return self._process.wait(limit_s)

    def kill_worker(self, pid: int) -> None:
        """End one of its Python workers by SIGKILL, after a check of the process.

        Raises:
            WrongProcessError: The process is no Python worker of Spark, or not of this run.
        """
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError as error:
            raise WrongProcessError(f"process {pid} is gone") from error
        if "pyspark" not in command or pid not in self._remaining():
            raise WrongProcessError(f"process {pid} is no Python worker of this run: {command!r}")
        os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """Send SIGKILL to the driver's process group, and to the remaining processes of its session."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_GONE_S)
        deadline = time.monotonic() + _GONE_S
        while self._remaining() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        kill_all(self._remaining())

    def _remaining(self) -> list[int]:
        return [pid for pid in pids_with_tag(self._tag) if _session(pid) == self._process.pid]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
