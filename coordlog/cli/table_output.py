"""Output that commands share: the option `--json`, rows and results as JSON, the line below a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import click

from coordlog.amounts import many
from coordlog.cli.console import (
    json_of,
    print_json,
    print_line,
    table_json,
)
from coordlog.projections.tables.audit import Audit
from coordlog.projections.tables.columns import TABLES
from coordlog.projections.tables.payload_json import Json
from coordlog.projections.tables.values import TableRow, values_of

__all__ = [
    "json_option",
    "number_text",
    "print_all",
    "print_result",
    "print_rows",
    "result_option",
    "sum_up",
]


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line, with all fields."
)

result_option = click.option(
    "--json", "as_json", is_flag=True, help="Print what was done as one JSON object."
)


def print_result(sentence: str, facts: Mapping[str, Json], *, as_json: bool) -> None:
    """Report what a command has done: a sentence on the standard error, the facts as JSON on the standard output.

    Args:
        sentence: For a person; printed with `--json` too.
        facts: The same for a program: the job's id and what happened to it as `status` first, then ids and places.
        as_json: Whether `--json` is set; otherwise the standard output stays empty.
    """
    if as_json:
        print_json(dict(facts))
    print_line(sentence, err=True)


def print_all(rows: Iterable[object]) -> None:
    """Print each row as a line of JSON."""
    for row in rows:
        print_json(json_of(row))


def print_rows(table: str, rows: Iterable[TableRow]) -> None:
    """Print each row as a line of JSON, with the columns of `TABLES`."""
    for row in rows:
        print_json(table_json(TABLES[table], values_of(row)))


def sum_up(total: str, parts: Counter[str], audit: Audit | None = None) -> None:
    """Print the line below a table: the total, the count of each part; of an audit also the number of records."""
    counts = ", ".join(f"{parts[name]:,} {name}" for name in sorted(parts))
    line = f"\n{total}{': ' if counts else ''}{counts}."
    if audit is not None:
        void = f", {audit.void_count:,} do not count" if audit.void_count else ""
        line += f" {many(audit.record_count, 'record')}{void}."
    click.echo(line)


def number_text(value: int | None) -> str:
    """The number as text; empty for None."""
    return "" if value is None else str(value)
