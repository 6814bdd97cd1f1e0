"""The README's program, as it is typed: without a port, without a broker that runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

README = Path(__file__).parents[3] / "README.md"


@pytest.mark.tier("test")
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.slow
def test_the_program_of_the_readme_runs_as_typed(tmp_path: Path) -> None:
    section = README.read_text(encoding="utf-8").partition("\n## In Python\n")[2]
    program = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert program is not None
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "flights.csv").write_text("flight,dep_time\nA1,517\nA2,NA\nA3,533\n")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COORDLOG_")
    }
    environment["COORDLOG_HOME"] = str(tmp_path / "home")
    script = tmp_path / "program.py"
    script.write_text(program[1] + "print(result)\n", encoding="utf-8")
    try:
        ended = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
    finally:
        stop = [str(Path(sys.executable).with_name("coordlog")), "broker", "stop"]
        subprocess.run(stop, cwd=tmp_path, env=environment, timeout=120, check=False)
    rows: Counter[str] = Counter()
    for path in sorted((tmp_path / "out").glob("*.parquet")):
        rows.update(pq.ParquetFile(path).read().column("flight").to_pylist())
    assert rows == Counter({"A1": 1, "A3": 1})
