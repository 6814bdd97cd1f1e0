"""The tables of docs/configuration.md, from the options themselves.

`.venv/bin/python tests/option_table.py --write` renews them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from coordlog.cli.config.names import (
    SETTINGS,
    CommandPath,
    commands_below,
    key_of,
    options_of,
    variable_of,
)
from coordlog.cli.main import main

__all__ = ["DOCS", "every_option", "renewed"]

DOCS: Final = Path(__file__).parents[1] / "docs" / "configuration.md"
_BEGIN: Final = "<!-- the tables below are written by tests/option_table.py -->\n"
_END: Final = "<!-- the tables end here -->\n"


def every_option() -> Iterator[tuple[CommandPath, click.Command, click.Option]]:
    """Each option of each command, with the command and its path."""
    context = click.Context(main, info_name="coordlog")
    for path, command in commands_below(main, (), context):
        for option in options_of(command):
            yield path, command, option


def renewed(text: str) -> str:
    """The page with its tables as they should be."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{_tables()}\n{_END}{after}"


def _tables() -> str:
    lines = ["### Without an option", "", "| key | variable | what |", "| --- | --- | --- |"]
    lines += [f"| `{one.key}` | `{one.variable}` | {_cell(one.summary)} |" for one in SETTINGS]
    commands: dict[str, list[str]] = {}
    helps: dict[str, str] = {}
    for path, _, option in every_option():
        key = key_of(option, path)
        commands.setdefault(key, []).append(f"`{' '.join(path)}`" if path else "all")
        helps.setdefault(key, option.help or "")
    lines += ["", "### Options", "", "| key | variable | commands | what |"]
    lines.append("| --- | --- | --- | --- |")
    for key, paths in commands.items():
        what = _cell(helps[key])
        lines.append(f"| `{key}` | `{variable_of(key)}` | {', '.join(paths)} | {what} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    page = renewed(DOCS.read_text("utf-8"))
    if "--write" in sys.argv[1:]:
        DOCS.write_text(page, "utf-8")
    else:
        print(page)
