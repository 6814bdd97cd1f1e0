"""The rules example, run as its reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.kill,
    pytest.mark.slow,
]

EXAMPLE = Path(__file__).parents[3] / "examples" / "rules.py"


def test_killing_a_worker_and_the_driver_loses_no_rule_and_no_row() -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert "lost: 0" in lines
    assert sum(line.startswith("KILLED the worker") for line in lines) == 1
    assert sum(line.startswith("KILLED the driver") for line in lines) == 1
    assert any(line.startswith("EXACT: ") for line in lines)
