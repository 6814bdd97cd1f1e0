"""Processes, identified by more than their number, which the system uses again after their end."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Process", "find_process", "is_alive", "send_signal", "wait_until_gone"]

_POLL_S: Final = 0.05
_PROBE_TIMEOUT_S: Final = 2.0

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ENDED_STATES: Final = "ZX"  # ended, and not yet collected by its parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One run of a program on this machine.

    Attributes:
        pid: Its number.
        born: Time of its start. Unique together with the number, over reboots too.
    """

    pid: int
    born: str


def find_process(pid: int) -> Process | None:
    """The process that has this number now; None if there is none, or it has ended."""
    born = _born_linux(pid) if sys.platform == "linux" else _born_elsewhere(pid)
    return None if born is None else Process(pid=pid, born=born)


def is_alive(process: Process) -> bool:
    """Whether it still runs; it may be stopped by a signal."""
    return find_process(process.pid) == process


def send_signal(process: Process, number: int) -> None:
    """Send a signal, unless the process has ended."""
    if is_alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def wait_until_gone(process: Process, limit_s: float) -> bool:
    """Whether it has ended within the limit."""
    deadline = time.monotonic() + limit_s
    while is_alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


@functools.cache
def _boot_id() -> str:
    """The boot's id; empty if there is none, as in some sandboxes: then times of two boots are not distinguished."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _born_linux(pid: int) -> str | None:
    try:
        stat = Path("/proc", str(pid), "stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    # proc(5): the name, in brackets, may hold spaces and brackets; then state (3) … start (22).
    fields = stat.rpartition(")")[2].split()
    if fields[0] in _ENDED_STATES:
        return None
    return f"{_boot_id()}/{fields[19]}"


def _born_elsewhere(pid: int) -> str | None:
    answer = subprocess.run(  # noqa: S603, a fixed program with a number
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PROBE_TIMEOUT_S,
        # Else the time is written by the time zone and the language of each shell.
        env={"TZ": "UTC", "LC_ALL": "C"},
    )
    state, _, started = answer.stdout.strip().partition(" ")
    if answer.returncode != 0 or not state or state[0] in _ENDED_STATES:
        return None
    return started.strip()
