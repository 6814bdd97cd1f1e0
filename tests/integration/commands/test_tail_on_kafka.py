"""`coordlog tail` on a real broker that is killed and comes back, and whose topic is deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.kafka import KafkaLog
from driven_history import RECORDED_JOB, recorded_history
from fakes.endpoint_parts import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.clause("K5")]

COORDLOG = str(Path(sys.executable).parent / "coordlog")
RECORDS = recorded_history()
HALF, LIMIT_S = 100, 60.0


@pytest.fixture
def own_broker() -> Iterator[EmbeddedBroker]:
    """A broker that a test may kill."""
    with embedded_broker() as one:
        yield one


class Tail:
    """The command in a process of its own; its lines as they come."""

    def __init__(self, servers: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [COORDLOG, "tail", RECORDED_JOB, "--bootstrap-servers", servers, *arguments],
            env={**os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.offsets: list[int] = []
        self.told: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        streams = ((self.process.stdout, self._record), (self.process.stderr, self.told.append))
        self.threads = [
            threading.Thread(target=lambda s=stream, f=take: [f(line) for line in s], daemon=True)
            for stream, take in streams
        ]
        for thread in self.threads:
            thread.start()

    def _record(self, line: str) -> None:
        self.offsets.append(json.loads(line)["offset"])

    def wait(self) -> int:
        status = self.process.wait(LIMIT_S)
        self.end()
        return status

    def end(self) -> None:
        """End it, and close its streams."""
        self.process.kill()
        for thread in self.threads:
            thread.join(LIMIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        self.process.wait(LIMIT_S)


@pytest.mark.tier("faults")
def test_a_tail_survives_its_broker_and_ends_with_its_topic(own_broker: EmbeddedBroker) -> None:
    servers = own_broker.bootstrap_servers
    log = KafkaLog.for_job(RECORDED_JOB, servers)
    log.create()
    writer = log.writer()
    writer.append(RECORDS[:HALF], timeout_s=LIMIT_S)
    writer.close(timeout_s=1.0)
    tail = Tail(servers, "--from-offset", "0", "--forever", "--json")
    try:
        wait_for(lambda: len(tail.offsets) >= HALF - 10, "the first records", LIMIT_S)
        own_broker.kill()
        wait_for(
            lambda: any("does not answer" in line for line in tail.told), "it is told", LIMIT_S
        )
        own_broker.restart()
        writer = log.writer()
        writer.append(RECORDS[HALF:], timeout_s=LIMIT_S)
        writer.close(timeout_s=1.0)
        wait_for(lambda: len(tail.offsets) >= len(RECORDS), "the other records", LIMIT_S)
        assert tail.offsets == list(range(len(RECORDS)))
        wait_for(lambda: any("answers again" in line for line in tail.told), "it is told", LIMIT_S)
        log.delete()
        assert tail.wait() == Exit.FAILED
    finally:
        tail.end()
        log.close()
    assert f"the log of job {RECORDED_JOB} was deleted" in tail.told[-1]


@pytest.mark.tier("matrix")
def test_many_jobs_are_listed_quickly(own_broker: EmbeddedBroker) -> None:
    servers, names = own_broker.bootstrap_servers, [f"job-{n:02}" for n in range(10)]
    for name in names:
        log = KafkaLog.for_job(name, servers)
        log.create()
        writer = log.writer()
        writer.append(RECORDS, timeout_s=LIMIT_S)
        writer.close(timeout_s=1.0)
        log.close()
    done = CliRunner().invoke(main, ("jobs", "--json", "--bootstrap-servers", servers))

    assert done.exit_code == Exit.DONE, done.output
    assert [json.loads(line)["job_id"] for line in done.stdout.splitlines()] == names
