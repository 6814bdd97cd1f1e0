"""A file that no attempt can read, through the real command line: the job goes on without it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.spark_integration.files.source.source import FileSource
from examples.demo_parts.processes import IngestProcess
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.clause("J2"),
]

FILES, ROWS, BAD = 66, 20, 32
"""More files than a listing samples, so that it does not see the bad one."""
LIMIT_S = 120.0
TO_CONTINUE = "to continue without it: "


class Command:
    """`coordlog ingest` of one folder."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.source, self.folder, self.servers = folder / "it's in", folder, servers
        self.environment = {"COORDLOG_HOME": str(folder / "home")}
        self.runs: list[IngestProcess] = []
        self.source.mkdir()
        for number in range(FILES):
            rows = [f"{row},name {row}" for row in range(number * ROWS, (number + 1) * ROWS)]
            if number == BAD:
                rows[7] += ",one,too,many"
            text = "\n".join(["id,name", *rows, ""])
            (self.source / f"part-{number:02}.csv").write_text(text, encoding="utf-8")

    @property
    def bad(self) -> str:
        """The file's path, which is its split's id."""
        return str(self.source / f"part-{BAD}.csv")

    def ingest(self, out: str, *more: str) -> tuple[int, list[str]]:
        """One run, to its end: status and lines."""
        arguments = [str(self.source), str(self.folder / out), "--parallelism", "2"]
        arguments += ["--bootstrap-servers", self.servers]
        arguments += [] if "--batch" in more else ["--checkpoint-interval", "0.5"]
        run = IngestProcess(
            [*arguments, *more], tag=self.tag, environment=self.environment, show=print
        )
        self.runs.append(run)
        return run.wait(LIMIT_S), run.lines

    tag = f"skip-{secrets.token_hex(4)}"

    def ids_in(self, out: str) -> list[int]:
        """What a reader finds, sorted."""
        found = ds.dataset(self.folder / out, format="parquet", ignore_prefixes=[".", "_"])
        return sorted(found.to_table(columns=["id"])["id"].to_pylist())


@pytest.fixture
def command(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[Command]:
    made = Command(tmp_path, broker.bootstrap_servers)
    assert not str(FileSource(made.source).settle_schema()).count("string: id"), "listed in peace"
    yield made
    for run in made.runs:
        run.clear()


def without(number: int) -> list[int]:
    return [row for row in range(FILES * ROWS) if row // ROWS != number]


@pytest.mark.timeout(600)
def test_the_command_printed_at_the_third_failure_lets_the_job_continue(
    command: Command,
) -> None:
    job = ["--job-id", f"skip-{secrets.token_hex(4)}", "--restarts-max", "2"]
    status, lines = command.ingest("out", *job)
    assert status == 1
    (printed,) = [one.partition(TO_CONTINUE)[2] for one in lines if one.startswith("warning: ")]
    assert printed.startswith("coordlog skip ")

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["/bin/sh", "-c", printed],
        env={**os.environ, **command.environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith(f"skipped split {command.bad!r} of job ")

    status, lines = command.ingest("out", *job)
    assert status == 0, lines
    assert command.ids_in("out") == without(BAD)
    assert any(one.startswith("warning: 1 split was skipped") for one in lines)
    assert f"  {command.bad}: 3 attempts in a row failed at it" in lines


@pytest.mark.timeout(600)
def test_with_on_error_skip_the_first_run_succeeds_and_names_skipped_files(
    command: Command,
) -> None:
    status, lines = command.ingest("out", "--on-error", "skip", "--batch")

    assert status == 0, lines
    assert command.ids_in("out") == without(BAD)
    assert any(one.startswith("warning: 1 split was skipped") for one in lines)
    (named,) = [one for one in lines if one.startswith(f"  {command.bad}: ")]
    assert "has 5 fields where 2 are expected" in named
    assert any("attempts     2 started, 0 lost" in one for one in lines)
