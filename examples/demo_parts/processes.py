"""Starts `coordlog ingest` in a session of its own, and kills only processes of that session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

__all__ = ["TAG_VARIABLE", "IngestProcess", "WrongProcessError", "kill_all", "pids_with_tag"]

TAG_VARIABLE: Final = "DEMO_TAG"
"""Environment variable of all processes that the demo starts: only these may be killed."""

_GONE_S: Final = 15.0
_POLL_S: Final = 0.05


class WrongProcessError(Exception):
    """A process is not the expected one, and was not killed."""


class IngestProcess:
    """A run of `coordlog ingest`; `show` gets each line of its output at once."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        tag: str,
        environment: dict[str, str],
        show: Callable[[str], None],
    ) -> None:
        self._process = subprocess.Popen(
            [str(Path(sys.executable).with_name("coordlog")), "ingest", *arguments],
            env={**os.environ, **environment, TAG_VARIABLE: tag},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._tag, self._show = tag, show
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the driver."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the driver has ended."""
        return self._process.poll() is not None

    def wait(self, limit_s: float) -> int:
        """Wait for its exit status. Raises subprocess.TimeoutExpired."""
        status = self._process.wait(limit_s)
        self._reader.join(_GONE_S)
        return status

    def kill(self) -> float:
        """End the driver by SIGKILL; returns the seconds until all its processes have ended."""
        began_s = time.monotonic()
        self._process.kill()
        self._process.wait(_GONE_S)
        while self.group() and time.monotonic() - began_s < _GONE_S:
            time.sleep(_POLL_S)
        self.clear()
        return time.monotonic() - began_s

    def kill_worker(self, pid: int) -> None:
        """End one of its Python workers by SIGKILL, after a check of the process.

        Raises:
            WrongProcessError: The process is no Python worker of Spark, or not of this run.
        """
        command = _read_proc(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
        if "pyspark" not in command or "daemon" not in command:
            raise WrongProcessError(f"process {pid} is no Python worker of Spark's: {command!r}")
        if pid not in self.group():
            raise WrongProcessError(f"process {pid} was not started by this run: {command!r}")
        os.kill(pid, signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the driver, as a terminal or an operator would."""
        self._process.send_signal(number)

    def wait_for_line(self, text: str, limit_s: float) -> str:
        """Wait for a line with this text; returns the first. Raises TimeoutError."""
        deadline = time.monotonic() + limit_s
        while True:
            is_last_pass = self.has_ended or time.monotonic() > deadline
            for line in list(self.lines):
                if text in line:
                    return line
            if is_last_pass:
                raise TimeoutError(f"no line with {text!r} came; there were {self.lines}")
            time.sleep(_POLL_S)

    def clear(self) -> None:
        """End the remaining processes of its session."""
        kill_all(self.group())
        self._process.wait(_GONE_S)
        self._reader.join(_GONE_S)

    def group(self) -> list[int]:
        """Ids of the remaining processes of the driver's session, with the tag."""
        return [pid for pid in pids_with_tag(self._tag) if _session(pid) == self._process.pid]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))
                self._show(self.lines[-1])


def kill_all(pids: Iterable[int]) -> None:
    """Send SIGKILL to each process that has not ended meanwhile."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pids_with_tag(tag: str) -> list[int]:
    """Ids of the live processes with the tag in their environment, sorted."""
    entry = f"{TAG_VARIABLE}={tag}".encode()
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return sorted(pid for pid in pids if entry in _read_proc(pid, "environ").split(b"\0"))


def _read_proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
