"""A run's brokers of an older Kafka: `make test-old-broker`, or `--broker VERSION` for pytest.

Every test that asks for an embedded broker gets one of that version. One that needs a ZooKeeper has it: the run has
one, in which each broker has a place of its own.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest import mock

from coordlog.log.broker import folder as broker_folder
from coordlog.log.broker import limits as broker_limits
from coordlog.log.broker import process as broker_process
from coordlog.log.broker.folder import SETTINGS_FILE, cluster_id, new_cluster_id
from coordlog.log.broker.java import find_java
from coordlog.log.broker.process import is_free
from coordlog.log.broker.state import DATA_FOLDER, HOST
from servers.pinned_jars import class_path

__all__ = ["BROKERS", "holds", "older_brokers"]

BROKERS: Final = ("2.7.2", "2.8.0", "2.8.0-kraft", "3.0.0", "3.0.0-kraft")
"""Versions, with a ZooKeeper or (`-kraft`) without one."""

_WITHOUT: Final = "-kraft"
_CONTROLLER: Final = "CONTROLLER:"
_NEW_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_OLD_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"

Write = Callable[[Path, tuple[int, int], Mapping[str, str]], None]
Format = Callable[[Path, list[str], str | None], None]


def holds(name: str, mark: str) -> bool:
    """Whether what the mark `newer_broker` says of a test is so of the brokers of that name."""
    return mark == "without ZooKeeper" and name.endswith(_WITHOUT)


@contextlib.contextmanager
def older_brokers(name: str) -> Iterator[None]:
    """Until the end of the block, each broker that is started is of that version. `name` is one of `BROKERS`."""
    assert name in BROKERS, name
    version = name.removesuffix(_WITHOUT)
    classes = class_path(version)
    with contextlib.ExitStack() as stack:
        instead: dict[str, object] = {"class_path": lambda *_given, **_named: classes}
        if name == version:
            instead |= _with_zookeeper(stack.enter_context(_zookeeper(classes)))
        else:
            instead |= _without_zookeeper()
        for one, other in instead.items():
            stack.enter_context(mock.patch.object(broker_process, one, other))
        yield


def _rewritten(change: Callable[[dict[str, str]], None]) -> Write:
    """Writes a broker's settings as ever, then with a change."""
    as_ever = broker_folder.write_settings

    def write(folder: Path, ports: tuple[int, int], extra: Mapping[str, str]) -> None:
        as_ever(folder, ports, extra)
        path = folder / SETTINGS_FILE
        found = dict(line.split("=", 1) for line in path.read_text("ascii").splitlines())
        change(found)
        path.write_text("".join(f"{key}={value}\n" for key, value in found.items()), "ascii")

    return write


def _without_zookeeper() -> dict[str, Write]:
    def change(settings: dict[str, str]) -> None:
        protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
        settings.setdefault("listener.security.protocol.map", protocols)

    return {"write_settings": _rewritten(change)}


# --- with a ZooKeeper -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _ZooKeeper:
    port: int
    classes: str

    def root_of(self, folder: Path) -> str:
        """Where a broker's own things are; it stays over a restart."""
        file = folder / "zookeeper-root"
        if not file.exists():
            file.write_text(f"/{uuid.uuid4().hex}", "ascii")
        return file.read_text("ascii")

    def run(self, *commands: str) -> None:
        """Say something to it, by its own command line."""
        main = "org.apache.zookeeper.ZooKeeperMain"
        done = subprocess.run(
            [find_java(), "-cp", self.classes, main, "-server", f"{HOST}:{self.port}"],
            input="".join(f"{one}\n" for one in (*commands, "quit")),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=broker_limits.FORMAT_LIMIT_S,
            check=False,
        )
        assert done.stdout.count("Created /") == len(commands), done.stdout


def _with_zookeeper(zookeeper: _ZooKeeper) -> dict[str, Write | Format]:
    def change(settings: dict[str, str]) -> None:
        for key in [one for one in settings if one.startswith(("controller.", "node.id"))]:
            del settings[key]
        del settings["process.roles"]
        for key in ("listeners", "listener.security.protocol.map"):
            kept = [one for one in settings.get(key, "").split(",") if _CONTROLLER not in one]
            settings |= {key: ",".join(kept)} if any(kept) else {}
        if settings.get("authorizer.class.name") == _NEW_AUTHORIZER:
            settings["authorizer.class.name"] = _OLD_AUTHORIZER
        settings |= {"broker.id": "1", "zookeeper.session.timeout.ms": "3000"}

    as_ever = _rewritten(change)

    def write(folder: Path, ports: tuple[int, int], extra: Mapping[str, str]) -> None:
        as_ever(folder, ports, extra)
        with (folder / SETTINGS_FILE).open("a", encoding="ascii") as file:
            file.write(f"zookeeper.connect={HOST}:{zookeeper.port}{zookeeper.root_of(folder)}\n")

    def format_once(folder: Path, _java: list[str], wanted_id: str | None = None) -> None:
        """The cluster's id, in both places in which such a broker looks for it."""
        if cluster_id(folder) is not None:
            return
        root, new_id = zookeeper.root_of(folder), wanted_id or new_cluster_id()
        said = f'{{"version":"1","id":"{new_id}"}}'
        creates = {root: "x", f"{root}/cluster": "x", f"{root}/cluster/id": f"'{said}'"}
        zookeeper.run(*(f"create {path} {value}" for path, value in creates.items()))
        data = folder / DATA_FOLDER
        data.mkdir(exist_ok=True)
        text = f"version=0\nbroker.id=1\ncluster.id={new_id}\n"
        (data / "meta.properties").write_text(text, "ascii")

    return {"write_settings": write, "format_once": format_once}


@contextlib.contextmanager
def _zookeeper(classes: str) -> Iterator[_ZooKeeper]:
    """One for the block."""
    port = next(one for one in reversed(broker_limits.PORTS) if is_free(one))
    with tempfile.TemporaryDirectory(prefix="coordlog-zookeeper-") as folder:
        settings = {
            "dataDir": folder,
            "clientPort": str(port),
            "clientPortAddress": HOST,
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "tickTime": "500",
        }
        file = Path(folder, "zookeeper.properties")
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "ascii")
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        command = [find_java(), "-Xmx128m", "-XX:+UseSerialGC", "-cp", classes, main, str(file)]
        output = subprocess.DEVNULL
        with subprocess.Popen(command, stdin=output, stdout=output, stderr=output) as process:
            try:
                end = time.monotonic() + broker_limits.START_LIMIT_S
                while is_free(port):
                    assert process.poll() is None, "ZooKeeper has ended while it started"
                    assert time.monotonic() < end, "ZooKeeper does not listen"
                    time.sleep(broker_limits.POLL_S)
                yield _ZooKeeper(port=port, classes=classes)
            finally:
                process.kill()
