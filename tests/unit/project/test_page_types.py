"""Types of the Python in the pages: a keyword, an attribute or a name that does not exist is found without a run.

The blocks of a page are one module. A fragment may use the names of `PREAMBLE` without a definition.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
BLOCK: Final = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
RUN_BY_OTHERS: Final = {
    "tutorial.md": "its files are run",
    "write-your-own-coordinator.md": "its blocks are run",
    "write-your-own-operator.md": "parts of classes; nearly all of its lines are those of examples/rules.py",
    "write-your-own-source.md": "its blocks are run",
    "write-your-own-sink.md": "its blocks are run",
}
PREAMBLE: Final = """\
from typing import Any
from coordlog import Job, KafkaLog, OperatorSpec, Record, SourceSpec
from pyspark.sql import SparkSession

job: Job
log: KafkaLog
spark: SparkSession
record: Record
operators: list[SourceSpec | OperatorSpec]
servers: str
job_id: str
checkpoint: str
output: str
"""
ALLOWED: Final = ("no-redef", "assignment", "override", "arg-type", "misc", "import-untyped")
"""Codes of errors that are none in a page: its blocks are several programs, with names used again."""


def is_assigned(line: str, program: str) -> bool:
    """Whether a program gives the name of this declaration a value of its own."""
    name, colon, _ = line.partition(":")
    return bool(colon) and re.search(rf"^{name} = ", program, re.MULTILINE) is not None


def checked(folder: Path, programs: dict[str, str]) -> str:
    """Errors of mypy in these modules."""
    for name, program in programs.items():
        module = re.sub(r"\W", "_", f"page_{name}") + ".py"
        lines = [line for line in PREAMBLE.splitlines() if not is_assigned(line, program)]
        (folder / module).write_text("\n".join([*lines, program]), encoding="utf-8")
    settings = ["--config-file=", "--check-untyped-defs", "--ignore-missing-imports"]
    codes = [f"--disable-error-code={code}" for code in ALLOWED]
    command = [sys.executable, "-m", "mypy", *settings, *codes, "--hide-error-context", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert run.stderr == ""
    return "\n".join(line for line in run.stdout.splitlines() if ": error:" in line)


@pytest.mark.slow
@pytest.mark.tier("matrix")
@pytest.mark.timeout(300)
def test_the_python_of_the_pages_uses_names_and_keywords_that_exist(tmp_path: Path) -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    programs = {
        page.name: "\n\n".join(BLOCK.findall(page.read_text("utf-8")))
        for page in pages
        if page.name not in RUN_BY_OTHERS
    }
    wrong = {
        "keyword": 'KafkaLog.for_job("a", no_such_keyword=1)',
        "attribute": "job.no_such_attribute",
        "name": "no_such_name",
    }
    errors = checked(tmp_path, {**programs, **{f"wrong {n}": code for n, code in wrong.items()}})

    found, mistaken = [], set[str]()
    for line in errors.splitlines():
        match = re.search(r"page_wrong_(\w+)\.py", line)
        if match is None:
            found.append(line)
        else:
            mistaken.add(match[1])
    assert found == []
    assert mistaken == set(wrong)
