"""The tutorial's files, run in the order of the page in an empty folder; the driver is killed in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from coordlog.schemas.record import Kind
from examples.demo_parts.follow import Follower, nth_of_kind, open_log

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.tier("matrix"),
]

PAGE: Final = Path(__file__).parents[3] / "docs" / "tutorial.md"
BIN: Final = Path(sys.executable).parent
LIMIT_S: Final = 240.0
"""Time limit of each command."""
CHECKPOINTS: Final = 3
"""Completed checkpoints before the kill."""


def files_of_the_page() -> dict[str, str]:
    """The contents of the page's Python files by name, in its order: `NAME.py` in the line before its block."""
    text = PAGE.read_text("utf-8")
    found = re.findall(
        r"`(\w+\.py)`[^`\n]*:\n\n```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    assert len(found) == text.count("```python\n")
    return dict(found)


class Reader:
    """A reader of the page, in a folder of its own with a broker of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "first"
        self.folder.mkdir()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("COORDLOG_")}
        self.environment = {**inherited, "COORDLOG_HOME": str(folder / "home")}
        for name, content in files_of_the_page().items():
            (self.folder / name).write_text(content, encoding="utf-8")

    def begin(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str) -> str:
        """The output of a command that ends well."""
        process = self.begin(*command)
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, output
        return output

    def kill_in_the_middle(self, process: subprocess.Popen[str]) -> None:
        """Kill the driver after some checkpoints of the job `alarms`."""
        status = self.run("coordlog", "broker", "status")
        servers = re.search(r"127\.0\.0\.1:\d+", status)
        assert servers is not None, status
        log = open_log("alarms", servers[0])
        try:
            Follower(log).wait_for(
                nth_of_kind(Kind.CHECKPOINT_COMPLETED, CHECKPOINTS),
                is_over=lambda: process.poll() is not None,
                limit_s=LIMIT_S,
            )
        finally:
            log.close()
            process.kill()
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == -signal.SIGKILL


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.begin("coordlog", "broker", "stop").communicate(timeout=LIMIT_S)


@pytest.mark.timeout(1500)
def test_the_coordinator_of_the_tutorial_survives_the_kill(reader: Reader) -> None:
    reader.run("python", "readings.py")
    reader.run("coordlog", "ingest", "readings/", "plain/", "--job-id", "plain")
    reader.kill_in_the_middle(reader.begin("python", "job.py"))
    reader.run("python", "job.py")

    assert reader.run("python", "check.py").splitlines()[-1] == "60000 60000 1200"
    history = reader.run("coordlog", "history", "alarms").splitlines()
    states = [line for line in history if "COORDINATOR_CHECKPOINTED alarm" in line]
    assert "  [1200, 12]  " in states[-1]
    epochs = reader.run("coordlog", "epochs", "alarms")
    assert "2 epochs: 1 finished, 1 replaced" in epochs
