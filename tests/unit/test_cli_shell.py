"""What a shell and a report of a fault ask the command for: completions and versions."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordlog.cli.main import main

BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def test_the_versions_are_those_that_are_installed() -> None:
    done = CliRunner().invoke(main, ["--version"])

    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [
            f"coordlog {metadata.version('coordlog')}",
            f"Python {platform.python_version()}",
            f"pyspark {metadata.version('pyspark')}",
            f"kafka-python {metadata.version('kafka-python')}",
        ],
    )


def test_a_package_that_is_not_there_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "pyspark":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)

    assert "pyspark is not installed" in CliRunner().invoke(main, ["--version"]).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["ing"], ["ingest"]),
        (["broker", "sta"], ["start", "status"]),
        (["ingest", "--checkp"], ["--checkpoint-interval"]),
        (["ingest", "--format", ""], ["csv", "jsonl", "parquet", "text"]),
        (["completion", "b"], ["bash"]),
    ],
    ids=" ".join,
)
def test_bash_completes_commands_options_and_values(
    typed: list[str], expected: list[str], tmp_path: Path
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    script = tmp_path / "coordlog.bash"
    done = subprocess.run(
        ["coordlog", "completion", "bash"], env=ENVIRONMENT, capture_output=True, check=True
    )
    script.write_bytes(done.stdout)
    words = " ".join(f"'{one}'" for one in ["coordlog", *typed])
    program = (
        f"source {script}\n"
        f"COMP_WORDS=({words}) COMP_CWORD={len(typed)}\n"
        "_coordlog_completion coordlog\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    # A wrong file of configuration is no reason to complete nothing.
    (tmp_path / "coordlog.toml").write_text("wrong =", encoding="utf-8")
    shown = subprocess.run(
        [bash, "--norc", "-c", program],
        env=ENVIRONMENT,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert (shown.stdout.split(), shown.stderr) == (expected, "")


@pytest.mark.parametrize(
    ("shell", "says"),
    [("zsh", "#compdef coordlog"), ("fish", "function _coordlog_completion;")],
)
def test_the_other_shells_have_a_script_too(shell: str, says: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])

    assert done.exit_code == 0
    assert done.stdout.startswith(says)
    assert "_COORDLOG_COMPLETE" in done.stdout
