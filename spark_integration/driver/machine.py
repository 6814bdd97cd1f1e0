"""Identity of this machine and of its run: whether a process number from a file is one of this run.

A host's name proves nothing: two machines may have the same, and it stays when a disk moves to another machine.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Machine"]

_MACHINE_ID: Final = Path("/etc/machine-id")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES: Final = ("pid", "net")
_OF_THE_MACHINE: Final = "pid:[4026531836]"
"""The first PID namespace, by a constant of Linux; a container has another."""
_SYSCTL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One run of a machine, and the processes and ports that are seen in it."""

    host: str
    """Name of the machine, for messages."""
    machine_id: str
    """Identity that survives a restart of the machine; empty if there is none."""
    boot_id: str
    """Identity of the run, another one after each restart; empty if the system has none."""
    namespaces: str
    """PID and network namespace: a container shares the run with its machine, but neither of these."""

    @classmethod
    @functools.cache
    def here(cls) -> Machine:
        """The machine of this process."""
        return cls(
            host=socket.gethostname(),
            machine_id=_text(_MACHINE_ID),
            boot_id=_boot_id(),
            namespaces=" ".join(map(_namespace, _NAMESPACES)),
        )

    def is_same_run(self, other: Machine) -> bool:
        """Whether process numbers and local ports mean the same in both."""
        return (
            bool(self.boot_id)
            and (self.machine_id, self.boot_id) == (other.machine_id, other.boot_id)
            and self.namespaces == other.namespaces
        )

    def has_restarted_as(self, now: Machine) -> bool:
        """Whether `now` is a later run of this machine, so that no process of this run is left.

        Never true in containers: their machine id is often that of an image, which others share.
        """
        return (
            bool(self.machine_id and self.boot_id and now.boot_id)
            and (self.machine_id, self.host) == (now.machine_id, now.host)
            and self.boot_id != now.boot_id
            and all(run.namespaces.startswith(_OF_THE_MACHINE) for run in (self, now))
        )


def _boot_id() -> str:
    if sys.platform == "linux":
        return _text(_BOOT_ID)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SYSCTL_S,
        )
        return answer.stdout.strip()
    return ""


def _namespace(name: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{name}").readlink())
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", errors="replace").strip()
    except OSError:
        return ""
