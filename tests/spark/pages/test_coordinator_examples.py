"""The examples of ready-made coordinators, run as their reader would run them: real Spark, a killed worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.kafka_source,
    pytest.mark.slow,
    pytest.mark.tier("matrix"),
]

EXAMPLES = Path(__file__).parents[3] / "examples"


def ran(name: str) -> list[str]:
    """The lines of an example's output; it has ended well."""
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()


def test_the_history_has_the_version_of_rules_for_each_flight() -> None:
    lines = ran("rule_versions.py")
    assert sum(line.startswith("KILLED the worker") for line in lines) == 1
    assert lines[-1].startswith("EXACT: ")


def test_a_quota_is_exact_over_the_kill_of_a_worker() -> None:
    lines = ran("quota.py")
    assert sum(line.startswith("KILLED the worker") for line in lines) == 1
    assert "7,777 flights, 7,777 different ones" in lines
    assert lines[-1].startswith("EXACT: ")


def test_rounds_over_all_subtasks_are_those_of_one_process() -> None:
    lines = ran("kmeans.py")
    assert sum(line.startswith("KILLED the worker") for line in lines) == 1
    assert lines[-1].startswith("EXACT: ")


def test_event_times_stay_within_the_drift() -> None:
    lines = ran("watermarks.py")
    assert lines[-1].startswith("EXACT: ")


def test_a_statistic_of_all_subtasks_comes_back_to_them() -> None:
    lines = ran("statistics_of_delays.py")
    assert lines[-1].startswith("RIGHT: ")


def test_a_schema_changes_once_between_the_files_of_two_checkpoints() -> None:
    lines = ran("schema_change.py")
    assert sum(line.startswith("the table has the schema") for line in lines) == 2
    assert sum(line.startswith("KILLED the worker") for line in lines) == 1
    assert lines[-1].startswith("EXACT: ")
