"""`coordlog tail`, `jobs`, `trigger`, `kill-attempt` and `stop` on a job that runs on Spark and a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordlog.cli.exit_status import Exit
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.schemas.record import Kind
from jobs.ingest_case import LIMIT_S, IngestCase, kind_of
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.clause("J1"),
]

ENDLESS = ["--watch", "--watch-interval", "0.2"]
"""A job that ends by a stop alone, however long the commands take."""
COORDLOG = str(Path(sys.executable).parent / "coordlog")


class LiveCase(IngestCase):
    """An ingestion, and commands in processes of their own."""

    def environment_of_commands(self) -> dict[str, str]:
        home = str(self.folder / "home")
        return {**os.environ, "COORDLOG_HOME": home, "COORDLOG_BOOTSTRAP_SERVERS": self.servers}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [COORDLOG, *arguments],
            env=self.environment_of_commands(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        print(f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [COORDLOG, *arguments],
            env=self.environment_of_commands(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def row(self) -> dict[str, Any]:
        """Its row of `coordlog jobs`."""
        rows = [json.loads(line) for line in self.run("jobs", "--json").stdout.splitlines()]
        (row,) = [row for row in rows if row["job_id"] == self.job_id]
        assert isinstance(row, dict)
        return row


@pytest.fixture
def case(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[LiveCase]:
    made = LiveCase(
        folder=tmp_path,
        servers=broker.bootstrap_servers,
        arguments=["--checkpoint-interval", "0.5"],
        seconds_per_row=0.004,
    )
    yield made
    made.clear()


@pytest.mark.tier("test")
@pytest.mark.timeout(600)
def test_a_running_job_is_followed_killed_in_part_and_stopped(case: LiveCase) -> None:
    case.arguments += ENDLESS
    run = case.start()
    follower = case.follower()
    follower.wait_for(
        kind_of(Kind.CHECKPOINT_COMPLETED), is_over=lambda: run.has_ended, limit_s=LIMIT_S
    )
    tail = case.begin("tail", case.job_id, "--from-offset", "0", "--json")
    try:
        row = case.row()
        assert (row["status"], row["driver"]) == ("progressing", "lives")
        assert row["last_checkpoint"] >= 1
        assert row["driver_pid"] in run.group()
        triggered = case.run("trigger", case.job_id, "--json")
        assert triggered.returncode == Exit.DONE
        assert json.loads(triggered.stdout)["status"] == "completed"
        assert (
            case.run("kill-attempt", case.job_id, "0", "--reason", "test").returncode == Exit.DONE
        )
        follower.wait_for(
            kind_of(Kind.ATTEMPT_STARTED), is_over=lambda: run.has_ended, limit_s=LIMIT_S
        )
        stopped = case.run("stop", case.job_id, "--savepoint", "before-upgrade")
        assert stopped.returncode == Exit.DONE
        assert "savepoint 'before-upgrade'" in stopped.stderr
        assert run.wait(LIMIT_S) == Exit.TERMINATED, "as after SIGTERM"
        shown, told = tail.communicate(timeout=LIMIT_S)
    finally:
        tail.kill()
    assert tail.returncode == Exit.DONE, told
    records = [json.loads(line) for line in shown.splitlines()]
    assert [record["offset"] for record in records] == list(range(len(records)))
    requests = [record["attributes"] for record in records if record["kind"] == "REQUEST"]
    assert [request["command"] for request in requests] == [
        "trigger",
        "kill-attempt",
        "stop",
        "stop",
    ]
    assert case.row()["status"] == "stopped"
    case.check_partial()


@pytest.mark.kill
@pytest.mark.timeout(600)
def test_commands_whose_driver_is_killed_meanwhile_end_with_the_next_step(case: LiveCase) -> None:
    run = case.start()
    follower = case.follower()
    follower.wait_for(
        kind_of(Kind.CHECKPOINT_COMPLETED), is_over=lambda: run.has_ended, limit_s=LIMIT_S
    )
    tail = case.begin("tail", case.job_id, "--forever")
    stop = case.begin("stop", case.job_id, "--timeout", "5")
    try:
        follower.wait_for(kind_of(Kind.REQUEST), is_over=lambda: run.has_ended, limit_s=LIMIT_S)
        run.kill()
        _, told = stop.communicate(timeout=LIMIT_S)
        # The stop may have ended before the kill, or its driver never ends in order.
        assert stop.returncode in (Exit.DONE, Exit.FAILED, Exit.UNREACHABLE), told
        assert told
        refused = case.run("trigger", case.job_id)
        assert refused.returncode == Exit.UNREACHABLE
        assert "no driver of it runs" in refused.stderr
        assert case.row()["status"] in ("stuck", "stopped")
        case.seconds_per_row = 0.0
        case.write_transform()
        case.finish()
        tail.send_signal(signal.SIGINT)
        shown, told = tail.communicate(timeout=LIMIT_S)
    finally:
        tail.kill()
        stop.kill()
    assert tail.returncode == Exit.INTERRUPTED
    assert "JOB_FINISHED" in shown
    assert "epoch 1 begins: a driver on " in told
    assert "Traceback" not in told
    case.check_whole()


@pytest.mark.timeout(600)
def test_a_stop_that_is_killed_itself_has_still_stopped_the_job(case: LiveCase) -> None:
    case.arguments += ENDLESS
    run = case.start()
    follower = case.follower()
    follower.wait_for(
        kind_of(Kind.CHECKPOINT_COMPLETED), is_over=lambda: run.has_ended, limit_s=LIMIT_S
    )
    stop = case.begin("stop", case.job_id)
    follower.wait_for(kind_of(Kind.REQUEST), is_over=lambda: run.has_ended, limit_s=LIMIT_S)
    stop.kill()
    stop.communicate(timeout=LIMIT_S)

    assert run.wait(LIMIT_S) == Exit.TERMINATED
    again = case.run("stop", case.job_id)
    assert (again.returncode, "was stopped before" in again.stderr) == (Exit.DONE, True)
