"""One run with a broker and a Spark of its own: it asks for nothing outside this machine.

It runs in a network of its own that has the loopback and no way out. There the kernel counts each
packet that any process, Java's too, wants to send elsewhere: a look-up of a name as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from coordlog.log.broker.jars import JarSet, resolve
from coordlog.log.local.paths import cache_folder

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.tier("matrix")]

LIMIT_S = 240.0

INSIDE = """
import fcntl, os, socket, struct, subprocess, sys
from pathlib import Path

def tries():
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, values = (one.split() for one in lines if one.startswith("Ip:"))
    found = int(values[names.index("OutNoRoutes")])
    v6 = Path("/proc/self/net/snmp6")
    for line in v6.read_text().splitlines() if v6.exists() else []:
        if line.startswith("Ip6OutNoRoutes"):
            found += int(line.split()[1])
    return found

loopback = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # up and running
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    fcntl.ioctl(one, 0x8914, loopback)  # SIOCSIFFLAGS

def coordlog(*arguments):
    command = [str(Path(sys.executable).with_name("coordlog")), *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)

try:
    coordlog("ingest", "in", "out", "--transform", "mypkg.clean:flights", "--job-id", "offline")
    coordlog("history", "offline")
    coordlog("config")
finally:
    coordlog("broker", "stop")
print(tries())
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    try:
        one.connect(("192.0.2.1", 53))
    except OSError:
        pass
print(tries())
"""


CLEAN = """
import threading
from .words import SUFFIX

LOCK = threading.Lock()  # what does not pickle

def flights(batch):
    with LOCK:
        return batch.rename_columns([name + SUFFIX for name in batch.schema.names])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rows, and a package of the user's own beside them."""
    made = tmp_path_factory.mktemp("offline")
    for name, text in {
        "in/a.csv": "id\n1\n2\n",
        "mypkg/__init__.py": "",
        "mypkg/words.py": "SUFFIX = '_clean'\n",
        "mypkg/clean.py": CLEAN,
    }.items():
        path = made / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def ran(folder: Path) -> subprocess.CompletedProcess[str]:
    """The run, at its end."""
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a network of one's own cannot be had here: {error}")
    resolve(JarSet.BROKER)  # what is fetched, once, is fetched from outside
    environment = {
        "COORDLOG_CACHE": str(cache_folder()),
        "COORDLOG_HOME": str(folder / "home"),
        "COORDLOG_PARALLELISM": "1",
        "HOME": str(folder),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    if "JAVA_HOME" in os.environ:
        environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
    return subprocess.run(
        [*alone, sys.executable, "-c", INSIDE],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_run_connects_to_nothing_but_this_machine(
    ran: subprocess.CompletedProcess[str],
) -> None:
    """No telemetry, of ours or of what we start."""
    assert ran.returncode == 0, ran.stderr
    ours, with_one_more = map(int, ran.stdout.split())
    assert with_one_more == ours + 1, "the kernel's count counts"
    assert ours == 0, ran.stderr


def test_a_transform_of_a_package_is_found_by_the_workers(
    ran: subprocess.CompletedProcess[str], folder: Path
) -> None:
    assert ran.returncode == 0, ran.stderr
    assert pq.read_table(folder / "out").to_pydict() == {"id_clean": [1, 2]}
