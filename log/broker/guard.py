"""The guard of a broker: a small process that starts Java and ends it.

The guard is separate from the process that started the broker, so that no signal to that process, and no Ctrl-C in its
terminal, ends the broker by accident. It has two modes:

* following a process: the broker ends with that process, even if that is killed;
* shared: the broker ends after a time without clients.

The guard ends when Java does. It may run for days, so it imports no large library.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import Timeout

from coordlog.log.broker import limits
from coordlog.log.broker.state import (
    BrokerState,
    touched,
    write_state,
)
from coordlog.log.local.file_lock import lock_on
from coordlog.log.local.processes import Process, client_count, find_process, this_process

__all__ = ["LOCK_FILE", "Orders", "main"]

LOCK_FILE = "lock"
"""Lock file in the broker's folder: its holder may start or stop the broker."""

_PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Options of a guard at its start.

    Attributes:
        run: Random id of this start; the starter waits for a state that has it.
        folder: The broker's folder, in which Java runs.
        command: Command that starts the broker.
        port: Port on which the broker will listen.
        cluster_id: The broker's cluster.
        follow: The process with which the broker ends; None for a shared broker. The guard's
            standard input is then a pipe from that process.
        delete: Whether to remove the folder at the end of the followed process.
        idle_minutes: Minutes without a client after which a shared broker stops; None: never.
        idle_check_s: Seconds between two counts of the clients.
    """

    run: str
    folder: str
    command: tuple[str, ...]
    port: int
    cluster_id: str
    follow: int | None
    delete: bool = False
    idle_minutes: float | None = None
    idle_check_s: float = limits.IDLE_CHECK_S

    def to_json(self) -> str:
        """The orders as an argument of the guard's command line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Orders:
        """Inverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        fields["command"] = tuple(fields["command"])
        return cls(**fields)


def main() -> int:
    """Carry out the orders in the first argument."""
    orders = Orders.from_json(sys.argv[1])
    if orders.follow is None and os.fork() > 0:
        # A shared broker outlives the process that started it. Its guard becomes a child of init, so
        # that no process has to wait for it.
        os._exit(0)
    os.umask(0o077)
    return _Guard(orders).run()


class _Guard:
    """Drives one Java process; single-threaded."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._folder = Path(orders.folder)
        self._ending = False
        self._wake, wake_writer = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_writer, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that it wakes `select`
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_term)

    def run(self) -> int:
        """Start Java and stay as long as it does."""
        with subprocess.Popen(  # noqa: S603, the Java of this machine
            self._orders.command,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            preexec_fn=self._end_with_guard(),  # noqa: PLW1509, there is one thread
        ) as java:
            # The starter waits for this state, so it is written even if Java has ended already.
            process = find_process(java.pid) or Process(pid=java.pid, born="ended at once")
            state = BrokerState(
                run=self._orders.run,
                java=process,
                guard=this_process(),
                port=self._orders.port,
                cluster_id=self._orders.cluster_id,
                since=time.time(),
                idle_minutes=self._orders.idle_minutes,
            )
            try:
                write_state(self._folder, state)
                if self._orders.follow is None:
                    self._watch_clients(java, process)
                else:
                    self._watch_process(java, self._orders.follow)
            finally:
                _end(java)
            return 0

    def _on_term(self, *_: object) -> None:
        self._ending = True

    def _end_with_guard(self) -> Callable[[], None] | None:
        """Function that runs in Java's process before the exec, so that the guard's death sends it a signal."""
        if sys.platform != "linux":
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        number = signal.SIGTERM if self._orders.follow is None else signal.SIGKILL
        guard = os.getpid()

        def request_signal() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, int(number))
            if os.getppid() != guard:  # the guard has died before the request
                os._exit(1)

        return request_signal

    def _pause(self, seconds: float, *, listen: bool) -> bool:
        """Wait for a signal, the end of the time, or the end of standard input; returns whether it was the latter."""
        readable, _, _ = select.select([self._wake, *([0] if listen else [])], [], [], seconds)
        if self._wake in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 1024)
        return 0 in readable and os.read(0, 1) == b""

    def _watch_process(self, java: subprocess.Popen[bytes], followed: int) -> None:
        gone = False
        while java.poll() is None and not self._ending and not gone:
            # The pipe ends at once with the followed process, unless a child has inherited it: so the parent is
            # checked too.
            gone = self._pause(limits.GUARD_CHECK_S, listen=True) or os.getppid() != followed
        if self._orders.delete and java.poll() is None and _is_gone(followed):
            java.kill()
            java.wait()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _watch_clients(self, java: subprocess.Popen[bytes], process: Process) -> None:
        idle_since = time.monotonic()
        last_touch = touched(self._folder)
        while java.poll() is None and not self._ending:
            self._pause(self._orders.idle_check_s, listen=False)
            touch = touched(self._folder)
            if self._has_clients(process) or touch != last_touch:
                idle_since, last_touch = time.monotonic(), touch
            elif self._idle_too_long(idle_since) and self._stop_unless_used(
                java, process, last_touch
            ):
                return

    def _has_clients(self, process: Process) -> bool:
        return client_count(process, self._orders.port) != 0  # None: not known

    def _idle_too_long(self, idle_since: float) -> bool:
        limit = self._orders.idle_minutes
        return limit is not None and time.monotonic() - idle_since >= limit * 60

    def _stop_unless_used(
        self, java: subprocess.Popen[bytes], process: Process, last_touch: int | None
    ) -> bool:
        """Stop Java under the lock, unless a client has used the broker meanwhile.

        A client takes the same lock, and touches the state if the broker runs. So it came before, and the touch is
        seen here; or it comes after, and finds no broker.
        """
        try:
            held = lock_on(self._folder / LOCK_FILE).acquire(blocking=False)
        except Timeout:
            return False
        with held:
            if self._has_clients(process) or touched(self._folder) != last_touch:
                return False
            _end(java)
            return True


def _is_gone(parent: int) -> bool:
    """Whether the parent has died; waits a moment for it.

    A dying process first closes its files, and later gives its children a new parent: its pipe ends before that.
    """
    deadline = time.monotonic() + limits.KILL_LIMIT_S
    while os.getppid() == parent:
        if time.monotonic() > deadline:
            return False
        time.sleep(limits.POLL_S)
    return True


def _end(java: subprocess.Popen[bytes]) -> None:
    """Terminate Java; kill it after `STOP_LIMIT_S`."""
    if java.poll() is None:
        java.terminate()
        try:
            java.wait(limits.STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            java.kill()


if __name__ == "__main__":
    sys.exit(main())
