"""A single-node Kafka broker as a process: its start, its ports, its end."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coordlog.log.broker import limits
from coordlog.log.broker.folder import (
    OUTPUT_FILE,
    SETTINGS_FILE,
    cluster_id,
    format_once,
    full_disk,
    java_command,
    start_failure,
    write_settings,
)
from coordlog.log.broker.guard import Orders
from coordlog.log.broker.jars import JarSet, class_path
from coordlog.log.broker.state import HOST, BrokerState, answers, read_state
from coordlog.log.local.environment_errors import BrokerError, BrokerStartError
from coordlog.log.local.paths import private_folder
from coordlog.log.local.processes import is_alive, listener, send_signal, wait_until_gone

__all__ = [
    "StartOptions",
    "StartedBroker",
    "end_guard",
    "is_free",
    "kill_broker",
    "start_broker",
    "stop_broker",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """How a broker is started.

    Attributes:
        port: Port to listen on, if it is free; None for any.
        port_is_fixed: Whether another port is an error.
        settings: Settings of the broker, which override our own.
        follow: Whether the broker ends with this process, or is shared.
        delete: Remove the folder if this process dies.
        idle_minutes: Minutes without a client after which a shared broker stops; None: never.
        idle_check_s: How often the guard counts clients.
        limit_s: How long a start may take.
        cluster_id: Id of the cluster, if the broker is one of several; None for a single broker.
    """

    port: int | None = None
    port_is_fixed: bool = False
    settings: Mapping[str, str]
    follow: bool
    delete: bool = False
    idle_minutes: float | None = None
    idle_check_s: float = limits.IDLE_CHECK_S
    limit_s: float = limits.START_LIMIT_S
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedBroker:
    """A broker that has answered.

    Attributes:
        state: The broker's state, with its address.
        guard: The guard, if it is this process's child: close its input and wait for it.
    """

    state: BrokerState
    guard: subprocess.Popen[bytes] | None


def start_broker(
    folder: Path, options: StartOptions, *, progress: Callable[[str], None] | None = None
) -> StartedBroker:
    """Start a broker on a folder, and return when it answers.

    The caller holds the folder's lock, and has checked that no broker runs there. The broker has the
    data of earlier brokers of the folder.

    Raises:
        BrokerStartError: The broker ended, or did not answer in time.
        BrokerError: The port is fixed and taken.
        EnvironmentSetupError: No Java, no jars.
    """
    private_folder(folder)
    classes = class_path(JarSet.BROKER, progress=progress)
    java = java_command(classes)
    deadline = time.monotonic() + options.limit_s
    for tries_left in reversed(range(limits.START_TRIES)):
        ports = _choose_ports(options)
        write_settings(folder, ports, options.settings)
        format_once(folder, java, options.cluster_id)
        try:
            return _start_once(folder, java, ports[0], options, deadline)
        except BrokerStartError as error:
            # Between our check and its start another process may have taken a port, and may have left it by now.
            if tries_left == 0 or not (error.lost_a_port or not all(map(is_free, ports))):
                raise
    raise AssertionError("the last try raises")


def stop_broker(state: BrokerState, *, limit_s: float = limits.STOP_LIMIT_S) -> bool:
    """End a broker and its guard: True if it ended in order, False if it had to be killed.

    Raises:
        BrokerError: The broker does not end even when killed.
    """
    send_signal(state.java, signal.SIGTERM)
    by_itself = wait_until_gone(state.java, limit_s)
    if not by_itself:
        kill_broker(state)
    # The guard ends by itself after Java; a guard that does not has no use.
    if not wait_until_gone(state.guard, limits.KILL_LIMIT_S):
        send_signal(state.guard, signal.SIGKILL)
    return by_itself


def kill_broker(state: BrokerState) -> None:
    """End a broker as a power cut would, except that the system's memory stays."""
    send_signal(state.java, signal.SIGKILL)
    if not wait_until_gone(state.java, limits.KILL_LIMIT_S):
        raise BrokerError(
            f"the broker's process {state.java.pid} does not end, although it was killed",
            "it probably waits for a disk: see to that",
        )


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback interface now."""
    with socket.socket() as probe:
        # As the broker does: remains of earlier connections are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _choose_ports(options: StartOptions) -> tuple[int, int]:
    """The ports for clients, and for the controller in the same process."""
    free = _free_ports()
    port = options.port
    if port is None or not is_free(port):
        if port is not None and options.port_is_fixed:
            raise BrokerError(
                f"port {port} of {HOST} is taken by {listener(port)}",
                "end that one, or choose another port",
            )
        port = next(free)
    return port, next(other for other in free if other != port)


def _free_ports() -> Iterator[int]:
    candidates = list(limits.PORTS)
    random.SystemRandom().shuffle(candidates)
    for port in candidates:
        if is_free(port):
            yield port
    raise BrokerError(
        f"no port from {limits.PORTS.start} to {limits.PORTS.stop - 1} is free on {HOST}",
        "end some of the processes that listen there",
    )


def _start_once(
    folder: Path, java: list[str], port: int, options: StartOptions, deadline: float
) -> StartedBroker:
    cluster = cluster_id(folder)
    assert cluster is not None, "it has been formatted"
    orders = Orders(
        run=uuid.uuid4().hex,
        folder=str(folder),
        command=(*java, "kafka.Kafka", SETTINGS_FILE),
        port=port,
        cluster_id=cluster,
        follow=os.getpid() if options.follow else None,
        delete=options.delete,
        idle_minutes=options.idle_minutes,
        idle_check_s=options.idle_check_s,
    )
    guard = _start_guard(folder, orders)
    state: BrokerState | None = None
    try:
        state = _wait_for_java(folder, orders.run, guard)
        _wait_for_answer(folder, state, options.limit_s, deadline)
    except BaseException:
        _abandon(guard, state)
        raise
    if not options.follow:
        guard.wait(limits.GUARD_START_LIMIT_S)  # the child that has forked the guard
    return StartedBroker(state=state, guard=guard if options.follow else None)


def _start_guard(folder: Path, orders: Orders) -> subprocess.Popen[bytes]:
    # So that the guard imports this package from the same place.
    package_root = str(Path(sys.modules["coordlog"].__file__ or "").absolute().parents[1])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with (folder / OUTPUT_FILE).open("wb") as output:
        return subprocess.Popen(  # noqa: S603, this interpreter and a module of ours
            [sys.executable, "-P", "-m", "coordlog.log.broker.guard", orders.to_json()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE if orders.follow is not None else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in our terminal is not meant for it
        )


def _wait_for_java(folder: Path, run: str, guard: subprocess.Popen[bytes]) -> BrokerState:
    """Wait until the guard has written the broker's process to the state."""
    deadline = time.monotonic() + limits.GUARD_START_LIMIT_S
    while True:
        code = guard.poll()
        state = read_state(folder)
        if state is not None and state.run == run:
            return state
        # A child that has forked the guard of a shared broker ends with 0, and soon. On a full disk the guard ends
        # without a state, and is no child of this process.
        is_over = code not in {None, 0} or time.monotonic() > deadline
        if is_over or full_disk(folder) is not None:
            raise start_failure(folder, "Java could not be started for a Kafka broker")
        time.sleep(limits.POLL_S)


def _wait_for_answer(folder: Path, state: BrokerState, limit_s: float, deadline: float) -> None:
    while not answers(state.port, state.cluster_id):
        if not is_alive(state.java):
            raise start_failure(folder, "the Kafka broker ended while it started")
        if time.monotonic() > deadline:
            raise start_failure(folder, f"the Kafka broker did not answer within {limit_s:.0f} s")
        time.sleep(limits.POLL_S)


def _abandon(guard: subprocess.Popen[bytes], state: BrokerState | None) -> None:
    """End all processes of a failed start."""
    if state is not None:
        send_signal(state.java, signal.SIGKILL)
        send_signal(state.guard, signal.SIGTERM)
    end_guard(guard)


def end_guard(guard: subprocess.Popen[bytes]) -> None:
    """Make a guard that is our child end its broker, and wait for it."""
    if guard.stdin is not None:
        guard.stdin.close()
    try:
        guard.wait(limits.STOP_LIMIT_S + limits.KILL_LIMIT_S)
    except subprocess.TimeoutExpired:
        guard.kill()  # and Java with it, where the system can do that
        guard.wait()
