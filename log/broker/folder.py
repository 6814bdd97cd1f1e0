"""Content of a broker's folder: its settings, its formatted data, its log."""

from __future__ import annotations

import base64
import errno
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from coordlog.log.broker import limits
from coordlog.log.broker.java import find_java
from coordlog.log.broker.state import DATA_FOLDER, HOST
from coordlog.log.local.environment_errors import BrokerStartError
from coordlog.log.local.fsync import naming, sync_path

__all__ = [
    "LOG_FILE",
    "OUTPUT_FILE",
    "SETTINGS_FILE",
    "cluster_id",
    "format_once",
    "full_disk",
    "java_command",
    "last_lines",
    "new_cluster_id",
    "start_failure",
    "write_settings",
]

LOG_FILE: Final = "broker.log"
OUTPUT_FILE: Final = "output.log"
SETTINGS_FILE: Final = "server.properties"
_LOGGING_FILE: Final = "log4j2.properties"
_STATE_BYTES: Final = 64 * 1024
"""Free bytes without which not even the state of a broker can be written, with its name."""

# Paths are relative: Java runs in the folder. So none needs the escapes of this format. No start begins a new file:
# a broker that ends with an error starts its logging once more, and the error would be in the file before.
_LOGGING: Final = f"""\
status=error
appender.f.type=RollingFile
appender.f.name=F
appender.f.fileName={LOG_FILE}
appender.f.filePattern=broker-%i.log
appender.f.layout.type=PatternLayout
appender.f.layout.pattern=%d{{ISO8601}} %p %c{{1}} %m%n
appender.f.policies.type=Policies
appender.f.policies.size.type=SizeBasedTriggeringPolicy
appender.f.policies.size.size=4MB
appender.f.strategy.type=DefaultRolloverStrategy
appender.f.strategy.max=3
rootLogger.level=ERROR
rootLogger.appenderRef.f.ref=F
"""

_SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": DATA_FOLDER,
    "num.partitions": "1",
    "default.replication.factor": "1",
    # One node: with the default of three, groups and transactions would never begin.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A mistyped job must not make a topic, with settings that lose history.
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),  # of the heap; 128 MB by default
    "log.cleaner.threads": "1",
    # After a kill, a broker waits until its former session has run out.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


def java_command(classes: str) -> list[str]:
    """Java, up to the class to run: a small heap, and no work that pays only after minutes."""
    return [
        find_java(),
        f"-Xms{limits.BROKER_HEAP}",
        f"-Xmx{limits.BROKER_HEAP}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",  # rather than live on by halves
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={_LOGGING_FILE}",
        *("-cp", classes),
    ]


def write_settings(folder: Path, ports: tuple[int, int], extra: Mapping[str, str]) -> None:
    """Write the broker's settings for its start: the ports for clients and controller, and more."""
    port, controller_port = ports
    settings = {
        **_SETTINGS,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        **extra,
    }
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    for name, content in ((SETTINGS_FILE, text), (_LOGGING_FILE, _LOGGING)):
        with naming(folder / name):
            (folder / name).write_text(content, "ascii")


def new_cluster_id() -> str:
    """A new unique id of a cluster."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def format_once(folder: Path, java: list[str], wanted_id: str | None = None) -> None:
    """Format the data folder by Kafka's own tool; a formatted folder stays unchanged.

    The tool writes last the file that marks the folder as formatted, so that an interrupted folder is
    formatted again. `wanted_id` is the cluster's id, if the broker is one of several.
    """
    if cluster_id(folder) is not None:
        return
    new_id = wanted_id or new_cluster_id()
    command = [*java, "kafka.tools.StorageTool", "format", "--config", SETTINGS_FILE]
    # Joined by "=", since one in 64 begins with "-".
    command.append(f"--cluster-id={new_id}")
    with (folder / OUTPUT_FILE).open("wb") as output:
        try:
            done = subprocess.run(  # noqa: S603, the Java of this machine
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=limits.FORMAT_LIMIT_S,
                check=False,
            )
            problem = f"ended with code {done.returncode}" if done.returncode != 0 else None
        except subprocess.TimeoutExpired:
            problem = f"took more than {limits.FORMAT_LIMIT_S:.0f} s"
    if problem is not None:
        raise BrokerStartError(
            f"formatting the data folder of a Kafka broker {problem}",
            str(folder / OUTPUT_FILE),
            last_lines(folder),
        )
    _bring_to_disk(folder / DATA_FOLDER)


def _bring_to_disk(folder: Path) -> None:
    """Flush all files of the tool, their names included.

    The tool flushes only the file that marks the folder as formatted: after a power cut within the
    next seconds the others would exist, empty, and the broker would never start again.
    """
    for path in (*folder.rglob("*"), folder, folder.parent):
        sync_path(path)


def cluster_id(folder: Path) -> str | None:
    """The cluster id of a data folder, or None if it is not formatted."""
    try:
        text = (folder / DATA_FOLDER / "meta.properties").read_text("utf-8")
    except OSError:
        return None
    match = re.search(r"^cluster\.id=(\S+)$", text, re.MULTILINE)
    return match[1] if match else None


def last_lines(folder: Path) -> tuple[str, ...]:
    """The last lines of a broker's output and log."""
    lines: list[str] = []
    for name in (OUTPUT_FILE, LOG_FILE):
        try:
            lines += (folder / name).read_text("utf-8", errors="replace").splitlines()
        except OSError:
            continue
    return tuple(line for line in lines if line.strip())[-limits.FAILED_START_LINES :]


def full_disk(folder: Path) -> OSError | None:
    """The error of a write to the folder if its disk has no room, else None."""
    if shutil.disk_usage(folder).free >= _STATE_BYTES:
        return None
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def start_failure(folder: Path, what: str) -> BrokerStartError:
    """The error of a failed start, with the last lines of the broker's output and log; a full disk is its cause."""
    path = folder / LOG_FILE
    shown = path if path.is_file() and path.stat().st_size else folder / OUTPUT_FILE
    cause = full_disk(folder)
    if cause is not None:
        what += f": the disk of {folder} is full; make room, then do the same again"
    failure = BrokerStartError(what, str(shown), last_lines(folder))
    failure.__cause__ = cause
    return failure
