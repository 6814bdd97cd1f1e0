"""State of a broker in its folder, and probes of that broker."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from coordlog.log.broker import limits
from coordlog.log.local.environment_errors import BrokerError
from coordlog.log.local.fsync import naming, sync_path
from coordlog.log.local.paths import of_this_user
from coordlog.log.local.processes import Process, is_alive
from coordlog.log.local.time_limit import limited_time

__all__ = [
    "HOST",
    "BrokerState",
    "answers",
    "is_data_in_use",
    "read_state",
    "running_state",
    "write_state",
]

HOST: Final = "127.0.0.1"

STATE_FILE: Final = "broker.json"
DATA_FOLDER: Final = "data"
_DATA_LOCK: Final = ".lock"
"""Kafka's own lock file in each data folder."""

_METADATA_VERSION: Final = 2  # the first that names the cluster
_ANSWER_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """One start of a broker; it stays in the folder when the broker has ended.

    Attributes:
        run: The start's own name.
        java: The broker's process.
        guard: The process that started and watches it.
        port: Its port on the loopback interface.
        cluster_id: Cluster id that identifies this broker at that port.
        since: Time of the start, in seconds of the Unix epoch.
        idle_minutes: Minutes without a client after which it stops; None: never by itself.
    """

    run: str
    java: Process
    guard: Process
    port: int
    cluster_id: str
    since: float
    idle_minutes: float | None

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"


def write_state(folder: Path, state: BrokerState) -> None:
    """Replace the folder's state in one step; it is on disk when this returns."""
    unfinished = folder / f"{STATE_FILE}.{state.run}"
    with naming(unfinished):
        unfinished.write_text(json.dumps(asdict(state), indent=1), "utf-8")
    sync_path(unfinished)
    unfinished.replace(folder / STATE_FILE)
    sync_path(folder)


def read_state(folder: Path) -> BrokerState | None:
    """The last start in this folder, running or not; None if there is none that can be read.

    Unknown fields of a newer version are ignored.

    Raises:
        BrokerError: The state cannot be read, and a broker of another version uses the folder.
        EnvironmentSetupError: The folder is another user's.
    """
    path = folder / STATE_FILE
    try:
        with of_this_user(path):
            text = path.read_text("utf-8")
        content = json.loads(text)
        for name in ("java", "guard"):
            content[name] = Process(pid=content[name]["pid"], born=content[name]["born"])
        return BrokerState(**{field.name: content[field.name] for field in fields(BrokerState)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        if not is_data_in_use(folder):
            return None  # cut short, and no broker is left
        raise BrokerError(
            f"a broker uses {folder}, and {path} cannot be read: {error!r:.200}",
            "another version of coordlog has probably started it: stop it with that one's "
            "`coordlog broker stop`",
        ) from error


def is_data_in_use(folder: Path) -> bool:
    """Whether a broker holds the lock of the data folder, which it does from its start to its end.

    Java locks a range of the file (POSIX), which is another kind of lock than that of `file_lock`.
    """
    try:
        descriptor = os.open(folder / DATA_FOLDER / _DATA_LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def running_state(folder: Path) -> BrokerState | None:
    """The last start in this folder if its broker's process runs; it need not answer."""
    state = read_state(folder)
    return state if state is not None and is_alive(state.java) else None


def touch_state(folder: Path) -> None:
    """Announce a client to the guard: its count of idle minutes begins again."""
    with contextlib.suppress(OSError):
        os.utime(folder / STATE_FILE)


def touched(folder: Path) -> int | None:
    """A number that changes with each `touch_state`; None if there is no state."""
    try:
        return (folder / STATE_FILE).stat().st_mtime_ns
    except OSError:
        return None


def answers(port: int, cluster_id: str) -> bool:
    """Whether the broker of this cluster answers on the port, and is registered in its metadata.

    One request on a connection of its own: a Kafka client could wait longer.
    """
    # Here, since the guard imports this module and runs for days: the client is large.
    from kafka.protocol.metadata import MetadataRequest, MetadataResponse  # noqa: PLC0415

    request = MetadataRequest[_METADATA_VERSION](topics=[])
    request.with_header(correlation_id=1, client_id="coordlog")
    try:
        with (
            socket.create_connection((HOST, port), limits.PROBE_TIMEOUT_S) as connection,
            limited_time(connection, limits.PROBE_TIMEOUT_S),
            connection.makefile("rb") as stream,
        ):
            connection.sendall(request.encode(framed=True, header=True))
            size = int.from_bytes(stream.read(4), "big")
            if not 0 < size <= _ANSWER_BYTES_MAX:
                return False
            response = MetadataResponse[_METADATA_VERSION].decode(stream.read(size), header=True)
    except (OSError, ValueError, IndexError, struct.error):
        return False  # no broker, or another server whose response is none
    return bool(response.brokers) and response.cluster_id == cluster_id
