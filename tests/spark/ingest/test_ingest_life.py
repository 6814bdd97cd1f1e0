"""The life of one job as the command line shows it: what each run says, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.schemas.record import Kind, Record
from examples.demo_parts.processes import kill_all, pids_with_tag
from jobs.ingest_case import FILES, LIMIT_S, ROWS, IngestCase, kind_of
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [pytest.mark.any_spark, pytest.mark.kafka, pytest.mark.slow]

STREAMING = ["--checkpoint-interval", "0.5"]
BROKER_END_S = 15.0


@pytest.fixture
def case(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[IngestCase]:
    one = IngestCase(folder=tmp_path, servers=broker.bootstrap_servers, arguments=STREAMING)
    yield one
    one.clear()


def run_command(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The command as a process, which is to be over before Spark starts."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("coordlog")), "ingest", *arguments],
        env={**os.environ, "COORDLOG_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@pytest.mark.parametrize("job_id", ["-x", "a/../b"])
def test_a_job_id_that_is_none_is_wrong_usage_and_says_what_one_is(
    tmp_path: Path, job_id: str
) -> None:
    (tmp_path / "in").mkdir()
    done = run_command(
        str(tmp_path / "in"), str(tmp_path / "out"), f"--job-id={job_id}", home=tmp_path / "home"
    )

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert job_id in line
    assert "at most 100 characters" in line
    assert not (tmp_path / "home").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.kill
def test_one_job_fails_is_stopped_twice_over_finishes_and_is_opened_again(
    case: IngestCase,
) -> None:
    # No space left where a task writes: status 6 at once, and the cause by its number.
    run = case.start(TEST_TRANSFORM_FAILS="space")
    assert run.wait(LIMIT_S) == 6, run.lines
    assert "[Errno 28] No space left on device" in run.lines[-1]
    follower = case.follower()
    follower.catch_up()
    assert sum(one.kind is Kind.ATTEMPT_FAILED for one in follower.records) == 1

    # The next run shows that cause, counts afresh, and goes on; it is slow enough to be stopped.
    case.seconds_per_row = 0.02
    case.write_transform()
    run = case.start("--restarts-max", "1")
    follower = case.follower()
    follower.catch_up()
    begun = len(follower.records)
    follower.wait_for(kind_of(Kind.SPLIT_FINISHED), is_over=lambda: run.has_ended, limit_s=LIMIT_S)
    failed = next(line for line in run.lines if " failed at " in line)
    assert re.search(r"failed at 20\d\d-.*No space left on device", failed)
    assert "it continues, with a fresh count of failures" in run.lines
    assert any(line.startswith("restored by rollback") for line in run.lines)

    # Ctrl-C, and again before the last checkpoint can be whole: at once, and both are recorded.
    run.signal(signal.SIGINT)
    run.wait_for_line("stopping, with a checkpoint", LIMIT_S)
    began_s = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.wait(LIMIT_S) == 130, run.lines
    assert time.monotonic() - began_s < 10
    follower.catch_up()
    stops = [one.reason for one in follower.records[begun:] if _is_stop(one)]
    assert set(stops) == {"stop requested by SIGINT"}
    case.check_partial()

    case.seconds_per_row = 0.0
    case.write_transform()
    case.finish()
    case.check_whole()
    before = follower_count(case)
    again = case.finish()
    assert any(re.search(r"finished at 20\d\d-.*nothing was changed", one) for one in again.lines)
    assert not any("starting Spark" in line for line in again.lines)
    assert follower_count(case) == before

    opened_again(case)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.kill
@pytest.mark.parametrize("whom", ["group", "each process"])
def test_a_sigterm_to_the_whole_group_is_a_stop_in_order(case: IngestCase, whom: str) -> None:
    """As `timeout` sends it; and as systemd does by default, to the JVM and the workers too."""
    case.seconds_per_row = 0.02
    case.write_transform()
    run = case.start()
    run.wait_for_line("a new job", LIMIT_S)
    follower = case.follower()
    follower.wait_for(kind_of(Kind.SPLIT_FINISHED), is_over=lambda: run.has_ended, limit_s=LIMIT_S)
    if whom == "group":
        os.killpg(run.pid, signal.SIGTERM)
    else:
        for pid in run.group():
            with suppress(ProcessLookupError):  # a process may end with one before it
                os.kill(pid, signal.SIGTERM)

    assert run.wait(LIMIT_S) == 143, run.lines
    follower.catch_up()
    assert "stop requested by SIGTERM" in {one.reason for one in follower.records if _is_stop(one)}
    stopped = "stopped after checkpoint" if whom == "group" else "stopped"
    assert any(line.startswith(stopped) for line in run.lines), run.lines
    assert not any("error" in line for line in run.lines), run.lines
    case.check_partial()
    assert pids_with_tag(case.tag) == []


def opened_again(case: IngestCase) -> None:
    """Two new files are read, and what was published stays as it is."""
    published = {path: path.stat().st_mtime_ns for path in case.output.glob("*.parquet")}
    for number in range(FILES, FILES + 2):
        rows = "".join(f"{i},new,{i}\n" for i in range(number * ROWS, (number + 1) * ROWS))
        path = case.source / f"part-{number:02}.csv"
        path.write_text(f"id,name,amount\n{rows}", encoding="utf-8")
    run = case.finish("--again")
    assert any(line.endswith("it is opened again") for line in run.lines)
    assert any(line.startswith(f"  this time    {2 * ROWS:,} rows in ") for line in run.lines)
    assert case.rows_out() == case.rows_in()
    assert all(path.stat().st_mtime_ns == at for path, at in published.items())


def _is_stop(record: Record) -> bool:
    name = record.payload_type or ""
    return record.kind is Kind.FACT and name.startswith("coordlog.stop_requested")


def follower_count(case: IngestCase) -> int:
    follower = case.follower()
    follower.catch_up()
    return len(follower.records)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.kill
def test_after_a_reboot_the_next_command_finds_broker_and_job_and_goes_on(tmp_path: Path) -> None:
    """All that a machine runs dies at once: the shared broker, the driver, its JVM and workers."""
    case = IngestCase(folder=tmp_path, servers="", arguments=STREAMING)
    home = tmp_path / "home"
    try:
        run = case.start(on_shared_broker=True)
        run.wait_for_line("a new job", LIMIT_S)
        servers = shared_servers(home)
        case.servers = servers
        follower = case.follower()
        follower.wait_for(
            kind_of(Kind.CHECKPOINT_COMPLETED), is_over=lambda: run.has_ended, limit_s=LIMIT_S
        )
        for log in case.logs:
            log.close()
        case.logs.clear()
        kill_all(pids_with_tag(case.tag))
        run.clear()
        end_s = time.monotonic() + BROKER_END_S
        while pids_with_tag(case.tag) and time.monotonic() < end_s:
            time.sleep(0.05)
        assert pids_with_tag(case.tag) == []

        last = case.start(on_shared_broker=True)
        assert last.wait(LIMIT_S) == 0, last.lines
        assert any(line.startswith("restored by rollback from checkpoint") for line in last.lines)
        assert case.rows_out() == case.expected
    finally:
        kill_all(pids_with_tag(case.tag))
        case.clear()


def shared_servers(home: Path) -> str:
    """Where the shared broker of that home is."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("coordlog")), "broker", "status"],
        env={**os.environ, "COORDLOG_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    found = re.search(r"127\.0\.0\.1:\d+", done.stdout)
    assert found is not None, done.stdout
    return found[0]
