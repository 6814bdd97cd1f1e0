"""What workers cannot import: one line with the module and the next step, before any attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

WAIT_S: Final = 200.0

OPERATOR: Final = """
from coordlog.api.operator import Operator

class Passing(Operator):
    def process(self, batch):
        yield batch
"""

JOB: Final = """
import sys
from pathlib import Path

folder = Path(sys.argv[1])
sys.path.insert(0, str(folder / "lib"))  # of this process alone

import only_here
from coordlog.api.chain import OperatorSpec
from coordlog.errors import JobFailedError
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit
from coordlog.spark_integration import FileSource, Job, local_session

log = MemoryLog("unfit")
job = Job(
    job_id="unfit",
    log=log,
    operators=[
        FileSource(folder / "in"),
        OperatorSpec(operator_id="pass", create_operator=only_here.Passing),
    ],
    parallelism=2,
)
try:
    job.run(local_session(2))
except JobFailedError as error:
    print("error", error)
    print("final", error.final)
found = audit(log.read(0, log.high_watermark()))
print("attempts", len(found.attempts))
print("failures", *[f"{one.scope.value}: {one.reason}" for one in found.failures])
"""

FRAME: Final = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from coordlog.errors import EnvironmentSetupError
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration import FileSource, coordinated

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
log = MemoryLog("reads")
try:
    with coordinated(spark, "reads", FileSource(Path(sys.argv[1]) / "in"), log=log) as reads:
        print("rows", reads.read().count())
except EnvironmentSetupError as error:
    print("error", error)
print("records", log.high_watermark())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("i\n1\n2\n", encoding="utf-8")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_here.py").write_text(OPERATOR, encoding="utf-8")
    return tmp_path


def said(program: str, folder: Path, **environment: str) -> tuple[dict[str, str], str]:
    """The program's lines by their first word, and what went to its error output."""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
        cwd=folder,
    )
    return {
        line.partition(" ")[0]: line.partition(" ")[2] for line in ran.stdout.splitlines()
    }, ran.stderr


def test_a_module_that_workers_lack_fails_the_job_at_once_in_one_line(folder: Path) -> None:
    lines, errors = said(JOB, folder)

    reason = (
        "job unfit needs the module 'only_here', which cannot be imported where tasks run "
        f"(Python {sys.executable} on "
    )
    assert reason in lines["error"]
    assert "ModuleNotFoundError: No module named 'only_here'" in lines["error"]
    assert "`--py-files only_here.py`" in lines["error"]
    assert "PYTHONPATH" in lines["error"]
    assert lines["final"] == "the workers cannot load the job"
    assert lines["attempts"] == "0"
    assert reason in lines["failures"], "the history has it"
    assert "job: " in lines["failures"]
    assert "Traceback" not in errors
    assert "\tat org.apache.spark" not in errors


def test_workers_with_another_python_are_named_before_any_record(folder: Path) -> None:
    bare = folder / "bare-python"
    # A Python that finds what Spark ships, and nothing of this environment.
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)

    lines, _ = said(FRAME, folder, PYSPARK_PYTHON=str(bare))

    assert "format(\"coordlog\") needs the module 'pyarrow'" in lines["error"]
    assert "set PYSPARK_PYTHON to a Python that has it" in lines["error"]
    assert sys.executable in lines["error"]
    assert lines["records"] == "0"


def test_without_pyspark_python_workers_run_this_interpreter(folder: Path) -> None:
    """An environment that is not activated: `python3` on the path is another one."""
    other = folder / "bin"
    other.mkdir()
    (other / "python3").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (other / "python3").chmod(0o755)
    path = f"{other}{os.pathsep}{os.environ['PATH']}"

    lines, _ = said(FRAME, folder, PATH=path, PYSPARK_PYTHON="")

    assert lines["rows"] == "2"
