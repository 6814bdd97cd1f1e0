"""`Job.run` is stopped where people run it: in a script, by `spark-submit`, in a notebook."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.kafka import KafkaLog
from coordlog.schemas.record import Kind, Record
from examples.demo_parts.follow import Follower, open_log
from jobs.ingest_case import LIMIT_S, kind_of
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.kill,
]

FILES, ROWS = 12, 20
ALL_ROWS = list(range(FILES * ROWS))

PROGRAM = """
import os
import time

from coordlog.spark_integration import FileSource, Job, KafkaLog, ParquetSink, local_session


def slowly(batch):
    time.sleep(float(os.environ["TEST_SECONDS"]))
    return batch


def run(spark):
    log = KafkaLog.for_job(os.environ["TEST_JOB"], os.environ["TEST_SERVERS"])
    log.create()
    try:
        return Job(
            job_id=os.environ["TEST_JOB"],
            log=log,
            source=FileSource(os.environ["TEST_FOLDER"] + "/in", batch_rows=5),
            transform=slowly,
            sink=ParquetSink(os.environ["TEST_FOLDER"] + "/out"),
            parallelism=2,
            checkpoint_interval_s=0.5,
        ).run(spark)
    finally:
        log.close()
"""


@dataclass(kw_only=True)
class Case:
    """One job, and what its history says."""

    folder: Path
    servers: str
    job_id: str = field(default_factory=lambda: f"stop-{secrets.token_hex(4)}")
    logs: list[KafkaLog] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir()
        for number in range(FILES):
            rows = range(number * ROWS, (number + 1) * ROWS)
            text = "a\n" + "".join(f"{row}\n" for row in rows)
            (self.folder / "in" / f"{number:02}.csv").write_text(text, encoding="utf-8")

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "COORDLOG_HOME": str(self.folder / "home"),
            "TEST_FOLDER": str(self.folder),
            "TEST_JOB": self.job_id,
            "TEST_SERVERS": self.servers,
            "TEST_SECONDS": "0.2",
            "PYSPARK_PYTHON": sys.executable,
        }

    def follower(self) -> Follower:
        self.logs.append(open_log(self.job_id, self.servers))
        return Follower(self.logs[-1])

    def committed(self) -> list[int]:
        return sorted(pq.read_table(self.folder / "out").column("a").to_pylist())


@pytest.fixture
def case(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[Case]:
    one = Case(folder=tmp_path, servers=broker.bootstrap_servers)
    yield one
    for log in one.logs:
        log.close()


def check_stopped_with_a_checkpoint(records: list[Record], by: str) -> None:
    """After the request the log has a whole checkpoint with its commits, and no failure."""
    asked = [
        n
        for n, one in enumerate(records)
        if one.kind is Kind.FACT and (one.payload_type or "").startswith("coordlog.stop_requested")
    ]
    assert len(asked) == 1, [one.reason for one in records[-20:]]
    assert records[asked[0]].reason == f"stop requested by {by}"
    after = [one.kind for one in records[asked[0] :]]
    assert Kind.CHECKPOINT_COMPLETED in after
    # Of all: the outcome of an intent before the request may stand behind it.
    all_of = [one.kind for one in records]
    assert all_of.count(Kind.COMMIT_INTENT) == all_of.count(Kind.COMMIT_OUTCOME) > 0
    assert not {Kind.ATTEMPT_FAILED, Kind.GLOBAL_FAILURE, Kind.JOB_FAILED} & set(after)


def started(case: Case, command: list[str]) -> subprocess.Popen[str]:
    program = case.folder / "job.py"
    main = "\n\nif __name__ == '__main__':\n    print(run(local_session(2)).status)\n"
    program.write_text(PROGRAM + main, encoding="utf-8")
    return subprocess.Popen(
        [*command, str(program)],
        env=case.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("command", "number", "by", "status"),
    [
        ("python", signal.SIGINT, "SIGINT", -signal.SIGINT),
        ("python", signal.SIGTERM, "SIGTERM", 143),
        ("spark-submit", signal.SIGTERM, "SIGTERM", 143),
    ],
)
def test_a_signal_stops_a_script_with_a_checkpoint(
    case: Case, command: str, number: signal.Signals, by: str, status: int
) -> None:
    """Ctrl-C reaches the whole group, as from a terminal; SIGTERM the process that was started."""
    process = started(case, [str(Path(sys.executable).with_name(command))])
    try:
        follower = case.follower()
        follower.wait_for(
            kind_of(Kind.CHECKPOINT_COMPLETED),
            is_over=lambda: process.poll() is not None,
            limit_s=LIMIT_S,
        )
        if number is signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == status, output
    assert "stopped with checkpoint" in output
    assert "run it again to continue" in output
    follower.catch_up()
    check_stopped_with_a_checkpoint(follower.records, by)
    assert set(case.committed()) <= set(ALL_ROWS)


@pytest.mark.timeout(600)
def test_a_notebooks_interrupt_stops_the_job_and_its_cell_may_run_again(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    cells = [
        PROGRAM,
        "spark = local_session(2)",
        "try:\n    run(spark)\nexcept KeyboardInterrupt:\n    print('interrupted')",
        "os.environ['TEST_SECONDS'] = '0'\nprint(run(spark).status)",
        "spark.stop()",
    ]
    made = [nbformat.v4.new_code_cell(one) for one in cells]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=made)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=int(LIMIT_S), kernel_name="python3")
    follower = case.follower()
    ended = threading.Event()

    def interrupt() -> None:
        follower.wait_for(kind_of(Kind.CHECKPOINT_COMPLETED), is_over=ended.is_set, limit_s=LIMIT_S)
        kernel: Any = client.km  # the asynchronous one, whatever its type says
        asyncio.run(kernel.interrupt_kernel())

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        client.execute()
    finally:
        ended.set()
        interrupter.join()
    said = ["".join(one.get("text", "") for one in cell.outputs) for cell in notebook.cells]
    assert "interrupted" in said[2]
    assert "stopped with checkpoint" in said[2]
    assert "JobStatus.FINISHED" in said[3]
    assert case.committed() == ALL_ROWS
    stopped = next(
        n for n, one in enumerate(follower.records) if one.kind is Kind.CHECKPOINT_COMPLETED
    )
    follower.catch_up()
    first = [one for one in follower.records if one.epoch == follower.records[stopped].epoch]
    check_stopped_with_a_checkpoint(first, "SIGINT")
