"""What a shell and a report of a fault ask the command for: completions and versions."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from rich.text import Text

from coordlog.cli.console import crop, lasted
from coordlog.cli.main import main
from coordlog.errors import SourceError
from coordlog.log.local.paths import home_folder

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


def test_a_command_that_is_mistyped_is_told_which_one_may_be_meant() -> None:
    mistyped = CliRunner().invoke(main, ["ingst", "in", "out"])
    assert (mistyped.exit_code, mistyped.stdout) == (2, "")
    assert "No such command 'ingst'. Did you mean 'ingest'?" in mistyped.stderr
    unlike = CliRunner().invoke(main, ["xyz"])
    assert "No such command 'xyz'.\n" in unlike.stderr


def test_errors_name_options_as_the_command_does(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text('a,b\n1,"2\n', encoding="utf-8")

    def ingest(*options: str) -> Result:
        return CliRunner().invoke(
            main,
            [
                "ingest",
                str(source),
                str(tmp_path / "out"),
                "--bootstrap-servers",
                "127.0.0.1:1",
                *options,
            ],
        )

    wrong = ingest("--batch-rows", "0", "--delimiter", "ab", "--schema", "id number")
    assert wrong.exit_code == 2
    assert "--schema is 'id number'; it must be a pyarrow schema" in wrong.stderr
    wrong = ingest("--batch-rows", "0", "--delimiter", "ab")
    assert "--batch-rows is 0; it must be at least 1" in wrong.stderr
    assert "--delimiter is 'ab'; it must be one ASCII character" in wrong.stderr
    assert (
        "--quote is set; it is for --format csv"
        in ingest("--quote", "'", "--format", "jsonl").stderr
    )


@pytest.mark.parametrize(
    ("python", "option"),
    [
        ("delimiter=", "--delimiter"),
        ("null_values=", "--null-value"),
        ('on_error="skip"', "--on-error skip"),
        ("schemas='each'", "--schemas each"),
        ("widen=True", "--widen"),
        ("bad_rows=1", "--bad-rows 1"),
        ("allow_non_restored_state=('rejects',)", "--allow-non-restored-state rejects"),
        ("other=", "other="),
        ("month=3", "month=3"),
    ],
)
def test_hints_of_the_library_become_options(
    python: str, option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(_options: object, in_options: Callable[[str], str]) -> int:
        assert in_options(f"see `{python}` ...") == f"see `{option}` ..."
        raise SourceError("a.csv", "it has 3 fields", f"see `{python}`")

    monkeypatch.setattr("coordlog.cli.ingest.run.run_ingest", fail)
    failed = CliRunner().invoke(main, ["ingest", "a.csv", str(tmp_path / "out")])
    assert failed.exit_code == 1
    assert f"see `{option}`" in failed.stderr


@pytest.mark.parametrize(("width", "cells"), [(80, 120), (119, 120), (120, 120), (200, 200)])
def test_a_line_of_a_history_is_bounded_on_any_terminal(width: int, cells: int) -> None:
    out = io.StringIO()
    crop(Console(file=out, force_terminal=True, width=width, color_system=None), Text("x" * 845))
    assert len(out.getvalue().strip()) == cells
    assert out.getvalue().strip().endswith("…")

    plain = io.StringIO()
    crop(Console(file=plain, width=width), Text("x" * 845))
    assert plain.getvalue().strip() == "x" * 845


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        (">/dev/full", 6, "error: No space left on device\n"),
        (">&-", 0, ""),
        ("2>&- >&-", 0, ""),
        ("<&-", 0, ""),
    ],
    ids=["full", "no-output", "no-streams", "no-input"],
)
@pytest.mark.parametrize("arguments", ["--help", "completion bash"], ids=["help", "completion"])
def test_an_output_that_takes_nothing_gives_a_status_and_no_traceback(
    arguments: str, redirection: str, status: int, said: str
) -> None:
    if redirection == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    done = subprocess.run(
        f"coordlog {arguments} {redirection}",
        shell=True,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (status, said)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.25, "250 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "0:01:00"),
        (3_661, "1:01:01"),
        (86_399, "23:59:59"),
        (86_400, "1 d 0:00:00"),
        (95_374_918, "1103 d 21:01:58"),
    ],
)
def test_a_duration_is_shown_in_its_largest_unit(seconds: float, shown: str) -> None:
    assert lasted(0, round(seconds * 1_000_000)) == shown


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry in its list of users."""

    def no_entry(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "COORDLOG_HOME", "COORDLOG_CACHE", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)

    refused = CliRunner().invoke(main, ["config"])
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: HOME is not set, and user ")
    assert "set HOME, or COORDLOG_HOME and COORDLOG_CACHE" in refused.stderr
    monkeypatch.setenv("COORDLOG_HOME", "/data")
    monkeypatch.setenv("COORDLOG_CACHE", "/cache")
    assert CliRunner().invoke(main, ["config"]).exit_code == 0


def test_a_relative_home_is_one_below_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("COORDLOG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "me")
    assert home_folder() == tmp_path / "me" / ".local" / "share" / "coordlog"


def test_an_encoding_that_lacks_a_sign_escapes_it(tmp_path: Path) -> None:
    (tmp_path / "coordlog.toml").write_text(
        'payload-store = "\u00e9\U0001f600"\n', encoding="utf-8"
    )
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    text, lines = (
        subprocess.run(
            ["coordlog", "config", *options],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            check=True,
        ).stdout
        for options in ((), ("--json",))
    )

    assert b"\\xe9\\U0001f600" in text
    rows = [json.loads(line) for line in lines.splitlines()]
    assert "\u00e9\U0001f600" in [row["value"] for row in rows]
