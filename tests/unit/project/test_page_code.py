"""The code in the pages: each command line has options that exist, each import a name that exists."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from coordlog.cli.main import main

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND: Final = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?coordlog (.+)$")


def blocks(page: Path, language: str) -> list[str]:
    fences = re.findall(r"^```(.*?)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [code for name, code in fences if name == language]


def command_lines(page: Path) -> Iterator[list[str]]:
    """The arguments of each `coordlog` command in blocks, and in the prose, which may leave out a value."""
    for block in blocks(page, ""):
        for line in block.replace("\\\n", " ").splitlines():
            if match := COMMAND.match(line):
                yield shlex.split(re.split(r" [|>] ?| && ", match[1])[0], comments=True)
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for match in re.finditer(r"`coordlog ([^`\n]+)`", prose):
        words = shlex.split(match[1].replace("…", "").replace("...", ""), comments=True)
        yield [*words, "1"] if words[1:] and words[-1].startswith("--") else words


def error_of(arguments: list[str]) -> str | None:
    """The message about an unknown command or option, or None. `--help`: nothing runs."""
    result = CliRunner().invoke(main, [*arguments, "--help"])
    return None if result.exit_code == 0 else result.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_a_page_have_options_that_exist(page: Path) -> None:
    errors = [(shlex.join(words), error_of(words)) for words in command_lines(page)]

    assert [(line, error) for line, error in errors if error] == []


@pytest.mark.parametrize(
    "line", ["splitz JOB", "splits JOB --no-such-option", "ingest A B --jobb x"]
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    assert error_of(shlex.split(line))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_that_a_page_imports_exist(page: Path) -> None:
    for program in blocks(page, "python"):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coordlog"):
                module = importlib.import_module(node.module or "")
                missing = [name.name for name in node.names if not hasattr(module, name.name)]
                assert missing == [], f"{page.name}: {node.module} has no {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_toml_in_a_page_can_be_read(page: Path) -> None:
    for block in blocks(page, "toml"):
        tomllib.loads(block)
