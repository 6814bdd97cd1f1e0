"""The benchmarks run to their end; how fast is not checked, because other work shares a machine of tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coordlog.log.broker.embedded import EmbeddedBroker

ROOT = Path(__file__).parents[2]


@pytest.mark.kafka
@pytest.mark.slow
def test_a_short_dose_of_events_and_checkpoints_is_measured(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    output = tmp_path / "events.json"
    command = (sys.executable, "-m", "benchmarks.events", "--short", "--output", str(output))

    subprocess.run(
        (*command, "--bootstrap-servers", broker.bootstrap_servers),
        cwd=ROOT,
        check=True,
        timeout=240,
        stdout=subprocess.DEVNULL,
    )

    rows = json.loads(output.read_text("utf-8"))["rows"]
    names = " ".join(row["name"] for row in rows)
    for figure in ("append", "round trip, p50", "outstanding", "CPU", "events up", "checkpoint"):
        assert figure in names
    assert "inside the cut, p50, 2 subtasks" in names
    assert all(value > 0 for row in rows for value in (*row["ours"], *row["raw"]))
