"""`coordlog jobs`: what each job does now, told by its log and its driver."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import LogUnavailableError
from coordlog.log.interface import Log
from coordlog.log.memory import MemoryLog
from coordlog.offline.epoch import begin_epoch, read_records
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.record import Kind, Record
from fakes.driver_files import ENDED_PROCESS, write_file
from fakes.endpoint_parts import TOKEN, running
from jobs.file_pipeline import Pipeline

pytestmark = pytest.mark.slow


class SomeLogs:
    """Logs in memory; None for one that cannot be read."""

    where = "memory"

    def __init__(self, **logs: MemoryLog | None) -> None:
        self.logs = logs

    def jobs(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(sorted(self.logs))

    def open(self, job_id: str) -> Log:
        """One of them."""
        log = self.logs[job_id]
        if log is None:
            raise LogUnavailableError(job_id, "reading", 10.0)
        return log


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)


def begun(job_id: str, endpoint: str) -> MemoryLog:
    """A log in which a driver has begun, and nothing more."""
    log = MemoryLog(job_id)
    record = Record(
        epoch=0,
        driver_id="d1",
        sequence=None,
        kind=Kind.EPOCH_STARTED,
        timestamp_us=1_700_000_000_000_000,
        job_id=job_id,
        attributes={
            "endpoint": endpoint,
            "host": "m1",
            "mode": "batch",
            "parallelism": "1",
            "operators": "[]",
            "cluster_id": log.identity.cluster_id,
            "topic_id": log.identity.topic_id,
        },
    )
    log.store(to_unstored(record))
    return log


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """So that a stop comes before the end."""
    time.sleep(0.01)
    return batch


def driven(folder: Path, *, is_stopped: bool) -> MemoryLog:
    """A job of files that has finished, or was stopped."""
    folder.mkdir()
    pipeline = Pipeline(folder, is_batch=True, transform=slowly)
    driver = pipeline.begin()
    if is_stopped:
        driver.stop(with_checkpoint=False)
    driver.wait()
    return pipeline.log


def rows(logs: SomeLogs, *arguments: str) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(main, ["jobs", "--json", *arguments], obj=lambda _servers: logs)
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["job_id"]: one for one in found}


def test_each_job_has_its_state_by_its_log_and_its_driver(tmp_path: Path) -> None:
    finished, stopped = (
        driven(tmp_path / name, is_stopped=name == "stopped") for name in ("finished", "stopped")
    )
    job_id = next(iter(finished.read(0, 1))).record().job_id
    with running() as (endpoint, _):
        write_file(endpoint.address, TOKEN)
        write_file("ws://127.0.0.1:1", TOKEN, job_id="killed", process=ENDED_PROCESS)
        found = rows(
            SomeLogs(
                ingest=begun("ingest", endpoint.address),
                killed=begun("killed", "ws://127.0.0.1:1"),
                elsewhere=begun("elsewhere", "ws://127.0.0.1:1"),
                copied=begun("ingest", endpoint.address),
                new=MemoryLog("new"),
                broken=None,
            )
        )
    assert {name: row["status"] for name, row in found.items()} == {
        "broken": "unreadable",
        "copied": "copy",
        "elsewhere": "stuck",
        "ingest": "stuck",
        "killed": "stuck",
        "new": "new",
    }
    drivers = {name: found[name]["driver"] for name in ("elsewhere", "ingest", "killed")}
    assert drivers == {"elsewhere": "unknown", "ingest": "lives", "killed": "gone"}
    assert found["killed"]["driver_reason"] == f"its process {ENDED_PROCESS.pid} has ended"
    assert found["killed"]["reason"].startswith("no driver answers")
    assert "it ran on m1" in found["elsewhere"]["driver_reason"]
    assert found["ingest"]["last_record_at"] == "2023-11-14T22:13:20.000000Z"
    done = rows(SomeLogs(**{job_id: finished}))[job_id]
    assert (done["status"], done["splits_finished"], done["failures"]) == (
        "finished",
        done["splits_known"],
        0,
    )
    assert done["rows"] > 0
    assert rows(SomeLogs(**{job_id: stopped}))[job_id]["status"] == "stopped"
    begin_epoch(stopped, read_records(stopped), lambda _state: [], command="skip")
    assert rows(SomeLogs(**{job_id: stopped}))[job_id]["status"] == "stopped"


def test_a_table_shows_age_splits_rows_and_the_last_failure() -> None:
    logs = SomeLogs(ingest=begun("ingest", "ws://127.0.0.1:1"))
    done = CliRunner().invoke(main, ["jobs"], obj=lambda _servers: logs)

    head, line, _, why = done.stdout.splitlines()
    assert head.split() == [
        *("JOB", "STATUS", "CHECKPOINT", "ROWS", "SPLITS", "FAILURES", "LAST", "RECORD", "DRIVER")
    ]
    assert line.startswith("ingest  stuck ")
    assert line.endswith(" m1 not reached")
    assert " ago " in line
    assert " 0/0 " in line
    assert why.startswith("ingest stuck for ")
    names = CliRunner().invoke(main, ["jobs", "--names"], obj=lambda _servers: logs)
    assert names.stdout == "ingest\n"


def test_names_and_fields_are_not_asked_for_together() -> None:
    refused = CliRunner().invoke(
        main, ["jobs", "--names", "--json"], obj=lambda _servers: SomeLogs()
    )

    assert refused.exit_code == Exit.USAGE
    assert "pass either --json or --names" in refused.stderr
