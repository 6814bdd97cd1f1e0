"""The systemd unit's command as systemd runs it: its line, its environment, its folder, its signal."""

from __future__ import annotations

import configparser
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordlog.cli.exit_status import Exit
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.schemas.record import Kind
from examples.demo_parts.follow import Follower, open_log
from examples.demo_parts.processes import TAG_VARIABLE, kill_all, pids_with_tag
from jobs.ingest_case import LIMIT_S, IngestCase, kind_of
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.kill,
]

UNIT = Path(__file__).resolve().parents[3] / "examples" / "systemd" / "coordlog-ingest.service"
MANY = 500_000
GIVEN = ("HOME", "JAVA_HOME", "LANG", "XDG_CACHE_HOME")
"""What systemd, or the machine's own settings, give a service beside its PATH."""


class Service:
    """The unit, with the places of this test for those of the machine it is written for."""

    def __init__(self, case: IngestCase, job_id: str) -> None:
        parser = configparser.ConfigParser(interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        text = UNIT.read_text(encoding="utf-8")
        home = case.folder / "state"
        home.mkdir()
        for written, here in (
            ("/opt/coordlog/bin/coordlog", Path(sys.executable).with_name("coordlog")),
            ("/srv/flights/in", case.source),
            ("/srv/flights/out", case.output),
            ("/var/lib/coordlog", home),
            ("127.0.0.1:9092", case.servers),
            ("--job-id flights", f"--job-id {job_id}"),
        ):
            assert written in text
            text = text.replace(written, str(here))
        parser.read_string(text)
        self.section, self.tag = parser["Service"], job_id
        name, _, value = self.section["Environment"].partition("=")
        self.environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
            **{one: os.environ[one] for one in GIVEN if one in os.environ},
            name: value,
            TAG_VARIABLE: self.tag,
        }

    def start(self) -> subprocess.Popen[str]:
        """As systemd does: no terminal, the root folder, a group of its own, nothing of ours inherited."""
        return subprocess.Popen(
            shlex.split(self.section["ExecStart"]),
            env=self.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def stop(self, process: subprocess.Popen[str]) -> str:
        """As `systemctl stop` with `KillMode=mixed`; what it said. Raises subprocess.TimeoutExpired."""
        assert self.section["KillMode"] == "mixed"
        process.send_signal(signal.SIGTERM)
        return process.communicate(timeout=float(self.section["TimeoutStopSec"]))[0]

    def is_restarted_after(self, status: int) -> bool:
        """What `Restart=on-failure` makes of an exit status."""
        assert self.section["Restart"] == "on-failure"
        good = {0, *map(int, self.section["SuccessExitStatus"].split())}
        never = set(map(int, self.section["RestartPreventExitStatus"].split()))
        return status not in good | never


@pytest.fixture
def case(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[IngestCase]:
    one = IngestCase(folder=tmp_path, servers=broker.bootstrap_servers, arguments=[])
    yield one
    kill_all(pids_with_tag(one.job_id))
    one.clear()


@pytest.mark.timeout(600)
def test_the_units_command_stops_with_a_checkpoint_and_leaves_no_process(
    case: IngestCase,
) -> None:
    for number in range(4):  # seconds of work, so that the signal comes before the end
        rows = range(number * MANY + 100_000, (number + 1) * MANY + 100_000)
        text = "id,name,amount\n" + "".join(f"{row},n,0\n" for row in rows)
        (case.source / f"many-{number}.csv").write_text(text, encoding="utf-8")
    service = Service(case, case.job_id)
    process = service.start()
    log = open_log(case.job_id, case.servers)
    try:
        follower = Follower(log)
        follower.wait_for(
            kind_of(Kind.ATTEMPT_STARTED),
            is_over=lambda: process.poll() is not None,
            limit_s=LIMIT_S,
        )
        said = service.stop(process)
        until = time.monotonic() + 5
        while pids_with_tag(service.tag) and time.monotonic() < until:
            time.sleep(0.05)
        assert pids_with_tag(service.tag) == [], "systemd has nothing left to kill"
        assert process.returncode == Exit.TERMINATED, said
        assert not service.is_restarted_after(process.returncode)
        assert "run the same command again to continue" in said
        follower.catch_up()
        stops = [one for one in follower.records if one.reason == "stop requested by SIGTERM"]
        assert len(stops) == 1
        kinds = Counter(one.kind for one in follower.records)
        assert kinds[Kind.COMMIT_INTENT] == kinds[Kind.COMMIT_OUTCOME]
        assert not {Kind.ATTEMPT_FAILED, Kind.JOB_FAILED} & set(kinds)
        published = case.rows_out()
        assert not [row for row, count in published.items() if count > 1]
        assert {row for row in published if row[0] < 100_000} <= set(case.expected)
    finally:
        log.close()
    assert service.is_restarted_after(Exit.UNREACHABLE)
    assert service.is_restarted_after(128 + signal.SIGKILL)
