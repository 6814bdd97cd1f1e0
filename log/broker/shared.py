"""The broker that all jobs of a user share if none is named: started when needed, kept on disk.

It belongs to none of its clients: it runs in a session of its own until `coordlog broker stop`, or
until it has had no client for an hour. Its data stay in the user's folder. After a reboot or a kill
the next job starts it on the same data, on another port if the old one has been taken.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordlog.errors import EnvironmentSetupError, OptionError
from coordlog.limits import DESTINATION_RESERVE_BYTES
from coordlog.log.broker import limits
from coordlog.log.broker.folder import LOG_FILE
from coordlog.log.broker.guard import LOCK_FILE
from coordlog.log.broker.process import StartOptions, start_broker, stop_broker
from coordlog.log.broker.state import (
    BrokerState,
    answers,
    read_state,
    running_state,
    touch_state,
)
from coordlog.log.local.environment_errors import BrokerBusyError, BrokerError
from coordlog.log.local.file_lock import file_lock
from coordlog.log.local.paths import home_folder, private_folder
from coordlog.log.local.processes import client_count, is_alive

__all__ = [
    "BrokerAddress",
    "SharedBrokerStatus",
    "StopOutcome",
    "ensure_shared_broker",
    "full_disk",
    "shared_status",
    "start_shared",
    "stop_shared",
]

_logging = logging.getLogger(__name__)

IDLE_VARIABLE: Final = "COORDLOG_BROKER_IDLE_MINUTES"
_FOLDER: Final = "broker"

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """Address of the shared broker.

    Attributes:
        bootstrap_servers: Address for clients.
        folder: Its data, its settings and its log.
        started: Whether this call has started it.
    """

    bootstrap_servers: str
    folder: Path
    started: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBrokerStatus:
    """State of the shared broker.

    Attributes:
        running: Whether its process runs.
        answering: Whether it also answers.
        folder: Its data, its settings and its log; may not exist yet.
        log_path: Its log.
        bootstrap_servers: Address for clients; None if it does not run, as all that follow.
        pid: Its process.
        since: Time of its start, in seconds of the Unix epoch.
        clients: Number of its connections; None also if the system does not report it.
        idle_minutes: Minutes without a client after which it stops; None: never by itself.
    """

    running: bool
    answering: bool
    folder: Path
    log_path: Path
    bootstrap_servers: str | None = None
    pid: int | None = None
    since: float | None = None
    clients: int | None = None
    idle_minutes: float | None = None


class StopOutcome(enum.Enum):
    """Outcome of `stop_shared`."""

    NOT_RUNNING = "not running"
    STOPPED = "stopped"
    KILLED = "killed"
    """It did not stop in time and was killed. Nothing acknowledged is lost by that."""


def ensure_shared_broker(
    *,
    notify: Notify | None = None,
    idle_minutes: float | None = None,
    start_limit_s: float = limits.START_LIMIT_S,
) -> BrokerAddress:
    """The shared broker's address; starts the broker if it does not run. Concurrent calls are safe.

    Args:
        notify: Called with one line when this call has started it, and with some while jars are fetched.
        idle_minutes: Minutes without a client after which it stops, 0: never; default:
            `COORDLOG_BROKER_IDLE_MINUTES`, or 60. Counts for a start only.
        start_limit_s: How long its start may take, in seconds.

    Raises:
        BrokerStartError: The broker did not start; with the end of its log.
        BrokerError: A broker runs and does not answer.
        EnvironmentSetupError: No Java, no jars.
    """
    report = notify or _silent
    idle = _idle_minutes(idle_minutes)
    folder = private_folder(_folder())
    with _locked(folder, start_limit_s):
        running = running_state(folder)
        if running is not None and _answers_in_time(folder, running, start_limit_s):
            touch_state(folder)
            return BrokerAddress(
                bootstrap_servers=running.bootstrap_servers, folder=folder, started=False
            )
        last = read_state(folder)
        options = StartOptions(
            port=None if last is None else last.port,
            settings={},
            follow=False,
            idle_minutes=idle or None,
            idle_check_s=min(limits.IDLE_CHECK_S, idle * 60 / 4) if idle else limits.IDLE_CHECK_S,
            limit_s=start_limit_s,
        )
        state = start_broker(folder, options, progress=report).state
    _logging.info("started a broker at %s, data in %s", state.bootstrap_servers, folder)
    report(
        f"started a Kafka broker at {state.bootstrap_servers}, data in {folder}, "
        "stop it with `coordlog broker stop`"
    )
    return BrokerAddress(bootstrap_servers=state.bootstrap_servers, folder=folder, started=True)


def start_shared(
    *,
    notify: Notify | None = None,
    idle_minutes: float | None = None,
    start_limit_s: float = limits.START_LIMIT_S,
) -> SharedBrokerStatus:
    """As `ensure_shared_broker`, but returns the whole state."""
    ensure_shared_broker(notify=notify, idle_minutes=idle_minutes, start_limit_s=start_limit_s)
    return shared_status()


def stop_shared(*, limit_s: float = limits.STOP_LIMIT_S) -> StopOutcome:
    """Stop the shared broker; its data stay. Clients that are connected lose it.

    Args:
        limit_s: How long it may take to stop, in seconds, before it is killed.

    Raises:
        BrokerBusyError: Another process is starting it.
        BrokerError: The broker does not end even when killed.
    """
    folder = _folder()
    if not folder.is_dir():
        return StopOutcome.NOT_RUNNING
    with _locked(folder, limits.START_LIMIT_S):
        running = running_state(folder)
        if running is None:
            return StopOutcome.NOT_RUNNING
        return StopOutcome.STOPPED if stop_broker(running, limit_s=limit_s) else StopOutcome.KILLED


def shared_status() -> SharedBrokerStatus:
    """State of the shared broker; changes nothing, and waits for no lock."""
    folder = _folder()
    running = running_state(folder)
    if running is None:
        return SharedBrokerStatus(
            running=False, answering=False, folder=folder, log_path=folder / LOG_FILE
        )
    return SharedBrokerStatus(
        running=True,
        clients=client_count(running.java, running.port),  # before our own probe connects
        answering=answers(running.port, running.cluster_id),
        folder=folder,
        log_path=folder / LOG_FILE,
        bootstrap_servers=running.bootstrap_servers,
        pid=running.java.pid,
        since=running.since,
        idle_minutes=running.idle_minutes,
    )


def full_disk(bootstrap_servers: str) -> str:
    """A clause on the disk of the shared broker, if it has the address and its disk is almost full; else empty.

    A broker without disk space ends itself, so that its clients only find no broker.
    """
    with contextlib.suppress(OSError, EnvironmentSetupError):
        folder = _folder()
        state = read_state(folder)
        if state is not None and state.bootstrap_servers == bootstrap_servers:
            free = shutil.disk_usage(folder).free
            if free < DESTINATION_RESERVE_BYTES:
                return f"; the disk of its folder {folder} has only {free:,} bytes free"
    return ""


def _silent(_line: str) -> None:
    """The default of `notify`."""


def _folder() -> Path:
    return home_folder() / _FOLDER


def _locked(folder: Path, start_limit_s: float) -> contextlib.AbstractContextManager[None]:
    # The holder may be fetching jars first, and starting then.
    limit_s = limits.RESOLVE_LIMIT_S + start_limit_s

    def busy(holder: str) -> BrokerBusyError:
        return BrokerBusyError(
            f"{holder} has been starting or stopping the broker in {folder} for more than "
            f"{limit_s:.0f} s",
            "look at `coordlog broker status`, end that process, then do the same again",
        )

    return file_lock(folder / LOCK_FILE, limit_s=limit_s, busy=busy)


def _idle_minutes(argument: float | None) -> float:
    """The first of argument, environment and default; 0: the broker never stops by itself."""
    if argument is not None:
        name, text = "idle_minutes", str(argument)
    else:
        name, text = IDLE_VARIABLE, os.environ.get(IDLE_VARIABLE) or str(limits.IDLE_MINUTES)
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes < float("inf"):
        raise OptionError(name, text, "a number of minutes, or 0 for a broker that stays")
    return minutes


def _answers_in_time(folder: Path, running: BrokerState, limit_s: float) -> bool:
    """True once the broker answers, False if it ends.

    A broker whose starter has died may not be ready yet, or may be ending.
    """
    deadline = time.monotonic() + limit_s
    while not answers(running.port, running.cluster_id):
        if not is_alive(running.java):
            return False
        if time.monotonic() > deadline:
            raise BrokerError(
                f"the Kafka broker at {running.bootstrap_servers} (process {running.java.pid}) "
                f"does not answer within {limit_s:.0f} s",
                f"its log is {folder / LOG_FILE}; stop it with `coordlog broker stop`, it is "
                "started again when it is needed",
            )
        time.sleep(limits.POLL_S)
    return True
