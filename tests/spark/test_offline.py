"""No telemetry: a run with a broker and a Spark of its own asks for nothing outside this machine.

It runs in a network of its own that has the loopback and no way out. There the kernel counts each
packet that any process, Java's too, wants to send elsewhere: a look-up of a name as well.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coordlog.log.jars import JarSet, resolve
from coordlog.log.user_folders import cache_folder

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

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
    coordlog("ingest", "in", "out", "--parallelism", "1", "--job-id", "offline")
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


def test_a_run_connects_to_nothing_but_this_machine(tmp_path: Path) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a network of one's own cannot be had here: {error}")
    resolve(JarSet.BROKER)  # what is fetched, once, is fetched from outside
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id\n1\n2\n", encoding="utf-8")

    done = subprocess.run(
        [*alone, sys.executable, "-c", INSIDE],
        cwd=tmp_path,
        env={
            "COORDLOG_CACHE": str(cache_folder()),
            "COORDLOG_HOME": str(tmp_path / "home"),
            "HOME": str(tmp_path),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    ours, with_one_more = map(int, done.stdout.split())
    assert with_one_more == ours + 1, "the kernel's count counts"
    assert ours == 0, done.stderr
    assert list((tmp_path / "out").glob("*.parquet"))
