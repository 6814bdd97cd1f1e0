"""The benchmarks run to their end; how fast is not checked, because other work shares a machine of tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordlog.log.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.tier("matrix")

ROOT = Path(__file__).parents[3]


def rows_of(benchmark: str, broker: EmbeddedBroker, folder: Path) -> list[dict[str, Any]]:
    """The figures of a short dose of a benchmark."""
    output = folder / "figures.json"
    command = (sys.executable, "-m", benchmark, "--short", "--output", str(output))
    subprocess.run(
        (*command, "--bootstrap-servers", broker.bootstrap_servers),
        cwd=ROOT,
        check=True,
        timeout=240,
        stdout=subprocess.DEVNULL,
    )
    rows: list[dict[str, Any]] = json.loads(output.read_text("utf-8"))["rows"]
    return rows


@pytest.mark.kafka
@pytest.mark.slow
def test_a_short_dose_of_events_and_checkpoints_is_measured(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    rows = rows_of("benchmarks.events", broker, tmp_path)

    names = " ".join(row["name"] for row in rows)
    for figure in ("append", "round trip, p50", "outstanding", "CPU", "events up", "checkpoint"):
        assert figure in names
    assert "inside the cut, p50, 2 subtasks" in names
    assert all(value > 0 for row in rows for value in (*row["ours"], *row["raw"]))


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.slow
def test_a_short_dose_of_small_files_is_measured_beside_spark(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    rows = {row["name"]: row for row in rows_of("benchmarks.files", broker, tmp_path)}

    for mode in ("streaming", "batch"):
        row = rows[f"60 small files, {mode}"]
        assert all(value > 0 for value in (*row["ours"], *row["raw"]))
        assert rows[f"60 small files, {mode}: records"]["ours"][0] < 3
