"""Processes, identified by more than their number, which the system uses again after their end."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

__all__ = [
    "Process",
    "client_count",
    "find_process",
    "is_alive",
    "listener",
    "send_signal",
    "this_process",
    "user_name",
    "wait_until_gone",
]

_POLL_S: Final = 0.05

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
    """The process that has this number now; None if there is none, or it has ended.

    Raises:
        OSError: The system does not report it, as to a process with too many open files.
    """
    born = _born_linux(pid) if sys.platform == "linux" else _born_elsewhere(pid)
    return None if born is None else Process(pid=pid, born=born)


def this_process() -> Process:
    """The process that runs this."""
    process = find_process(os.getpid())
    assert process is not None
    return process


def user_name() -> str:
    """Name of the user of this process in the operating system, or its number if it has no name."""
    try:
        return psutil.Process().username()
    except (psutil.Error, OSError, KeyError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


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


def client_count(process: Process, port: int) -> int | None:
    """Number of connections to the port on which a process listens; None if the system does not report it.

    A connection of the process to itself counts: a broker keeps one for ten minutes after it ended a transaction.
    """
    try:
        connections = psutil.Process(process.pid).net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    return sum(
        _is_at(connection.laddr, port)
        for connection in connections
        if connection.status == psutil.CONN_ESTABLISHED
    )


def listener(port: int) -> str:
    """The process that listens on a local port, for messages; `another process` if the system does not report it."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            is_listening = connection.status == psutil.CONN_LISTEN
            if is_listening and _is_at(connection.laddr, port) and connection.pid is not None:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "another process"


def _is_at(address: tuple[object, ...], port: int) -> bool:
    """Whether an address, which is empty if a socket has none, is at the port."""
    return address[1:] == (port,)


@functools.cache
def _boot_id() -> str:
    """The boot's id; empty if there is none, as in some sandboxes: then times of two boots are not distinguished."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _born_linux(pid: int) -> str | None:
    # Not the time of psutil: it adds the time of the boot, which moves when the clock is set, so that a living
    # process would seem to be another one.
    try:
        stat = Path("/proc", str(pid), "stat").read_text("ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # no other error shows that there is none
        return None
    # proc(5): the name, in brackets, may hold spaces and brackets; then state (3) … start (22).
    fields = stat.rpartition(")")[2].split()
    if fields[0] in _ENDED_STATES:
        return None
    return f"{_boot_id()}/{fields[19]}"


def _born_elsewhere(pid: int) -> str | None:
    # A later change of the clock changes this time. Not tried.
    try:
        process = psutil.Process(pid)
        is_over = process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
        return None if is_over else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None
