"""Batches into tables with commits of their own: Delta's transactions, Iceberg's staged snapshots."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("table_script.py")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.any_spark
@pytest.mark.clause("H3")
@pytest.mark.clause("K2")
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_is_in_a_table_once_whatever_driver_stands_still_where(
    tmp_path: Path, kind: str
) -> None:
    """In a process of its own: the first session of a JVM decides on the jars."""
    command = [sys.executable, str(SCRIPT), str(tmp_path), kind]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
