"""The program of the pages of an own source and an own sink, run as its reader would run it: on Spark."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from jobs.own_pages import program

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.tier("matrix"),
]

ROWS: Final = 1_050
MAIN: Final = f"""

if __name__ == "__main__":
    orders_table("orders.db", rows={ROWS})
    result = copy_orders("orders.db", "copies.db", "staged")
    print(result.status.value)
"""


def test_the_pages_copy_each_row_of_a_table_once(tmp_path: Path) -> None:
    script = tmp_path / "copy_orders.py"
    script.write_text(program() + MAIN, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"COORDLOG_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    subprocess.run(
        [str(Path(sys.executable).parent / "coordlog"), "broker", "stop"],
        env=os.environ | {"COORDLOG_HOME": str(tmp_path / "home")},
        timeout=120,
        check=True,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.split()[-1] == "finished"
    with closing(sqlite3.connect(tmp_path / "copies.db")) as database:
        copies = database.execute("SELECT id, cents FROM copies ORDER BY id").fetchall()
    assert copies == [(n, n * 10) for n in range(1, ROWS + 1)]
