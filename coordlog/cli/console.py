"""Output of the commands: a console, tables, times, JSON lines."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NoReturn

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.table import Table
from rich.text import Text

from coordlog.projections.tables.columns import Columns, ColumnType, ListOf
from coordlog.projections.tables.payload_json import Json, on_one_line, printable, to_json

__all__ = [
    "Column",
    "Printable",
    "crop",
    "day_of",
    "is_terminal",
    "iso",
    "json_of",
    "json_text",
    "lasted",
    "new_console",
    "print_json",
    "print_line",
    "print_table",
    "reason_text",
    "table_json",
    "time_of",
]

_WIDE: Final = 10_000
"""Width without a terminal, in characters: output for other programs is never cut."""

_CUT_FROM: Final = 120
"""Least width of a terminal, in characters, at which long lines are cut; on narrower ones they wrap."""

_GAP: Final = 2
"""Spaces between two columns."""

_ROWS_AT_ONCE: Final = 500
"""Rows of a long table that are laid out and printed together."""

_LAST_COLUMN_MIN: Final = 32
"""Least width of the last column, which may be folded."""

_LAST_COLUMN_FOLDED: Final = 8
"""Least width to which the last column is folded if the terminal is too narrow for all columns."""

_REASON_CHARS: Final = 1000
"""Longest first line of a reason that is shown whole, in characters; only long paths make errors longer."""

_MINUTE_S: Final = 60
_DAY_H: Final = 24

_TIMES_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""Range of Python's calendar, the years 1 to 9999."""


class _QuietConsole(Console):
    """Raises BrokenPipeError for a closed pipe, which the command handles; rich would end the process."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise BrokenPipeError: the program that reads the output has ended."""
        raise BrokenPipeError


class Printable(RenderHook):
    """Texts that a console prints, without control sequences of others; its own styles stay.

    Cells of tables are not reached by it: `print_table` prepares them.
    """

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """The same, with printable texts."""
        return [_printable(one) if isinstance(one, Text) else one for one in renderables]


def _printable(text: Text) -> Text:
    if text.plain.replace("\n", "").isprintable():
        return text
    cleaned = text.copy()
    cleaned.plain = printable(text.plain)
    return cleaned


def new_console() -> Console:
    """Console on the standard output. Only on a terminal are texts coloured, and lines cut to its width.

    The variable `NO_COLOR`, if it is not empty, means no colour, and no other style either.
    """
    is_plain = bool(os.environ.get("NO_COLOR"))
    console = _QuietConsole(
        file=sys.stdout,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if is_plain else "auto",
        # `FORCE_COLOR` of other tools does not colour what another program reads.
        force_terminal=None if is_terminal() else False,
    )
    console.push_render_hook(Printable())
    if not console.is_terminal:
        console.width = _WIDE
    return console


def is_terminal() -> bool:
    """Whether the standard output is a terminal."""
    try:
        return sys.stdout.isatty()
    except ValueError:  # closed
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    is_right: bool = False
    """Whether the column has numbers, which are aligned right."""
    rank: int = 0
    """If the terminal is too narrow, the columns of the highest rank are left out first; rank 0 is always shown."""


def print_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]
) -> None:
    """Print rows under their columns' names; the last column takes the remaining width.

    Columns without room on a terminal are left out, and a line below the table names them.
    """
    rows = [
        [_printable(cell) if isinstance(cell, Text) else printable(cell) for cell in row]
        for row in rows
    ]
    widths = [
        max(cell_len(line) for cell in (column.name, *cells) for line in str(cell).split("\n"))
        for column, cells in zip(columns, _columns_of(rows, len(columns)), strict=True)
    ]
    widths[-1] = min(widths[-1], _LAST_COLUMN_MIN)
    shown = list(range(len(columns)))
    for index in sorted(shown, key=lambda i: -columns[i].rank):
        if sum(widths[i] + _GAP for i in shown) <= console.width or not columns[index].rank:
            break
        shown.remove(index)
    width = sum(widths[index] + _GAP for index in shown)
    least = width - max(0, widths[-1] - _LAST_COLUMN_FOLDED)
    for first in range(0, max(len(rows), 1), _ROWS_AT_ONCE):
        table = Table(
            box=None,
            padding=(0, _GAP, 0, 0),
            pad_edge=False,
            header_style="bold",
            show_header=first == 0,
        )
        for index in shown:
            justify: Literal["left", "right"] = "right" if columns[index].is_right else "left"
            is_last = index == len(columns) - 1
            table.add_column(
                columns[index].name,
                width=None if is_last else widths[index],
                justify=justify,
                no_wrap=not is_last,
                overflow="fold",
            )
        for row in rows[first : first + _ROWS_AT_ONCE]:
            table.add_row(*(row[index] for index in shown))
        # Rich would cut numbers to fit them in; a terminal wraps the lines instead.
        console.print(_Wide(table, width) if least > console.width else table, crop=False)
    left_out = [column.name for index, column in enumerate(columns) if index not in shown]
    if left_out:
        note = f"no room for {', '.join(left_out)}: a wider terminal shows them, and --json"
        console.print(note, style="dim")


@dataclasses.dataclass(frozen=True, slots=True)
class _Wide:
    """A table that is wider than its terminal."""

    table: Table
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table at its own width."""
        return console.render(self.table, options.update(width=self.width, max_width=self.width))


def _columns_of(rows: Sequence[Sequence[str | Text]], count: int) -> list[tuple[str | Text, ...]]:
    return list(zip(*rows, strict=True)) if rows else [()] * count


def reason_text(reason: str | None, *, chars_max: int = _REASON_CHARS) -> str:
    """First line of a reason. Of a long line only the beginning and the end: the end has the next step."""
    text = on_one_line((reason or "").partition("\n")[0], 1 << 30)
    if len(text) <= chars_max:
        return text
    head = chars_max // 3
    return f"{text[:head]} … {text[head + 3 - chars_max :]}"


def time_of(timestamp_us: int | None) -> str:
    """The time of day, UTC, to the millisecond."""
    return "" if timestamp_us is None else f"{_utc(timestamp_us):%H:%M:%S.%f}"[:-3]


def day_of(timestamp_us: int) -> str:
    """The day, UTC."""
    return f"{_utc(timestamp_us):%Y-%m-%d}"


def lasted(began_us: int | None, ended_us: int | None) -> str:
    """Duration for people: `40 ms`, `1.5 s`, `1:02:03`; empty if it has no end yet, or its start is unknown."""
    if began_us is None or ended_us is None:
        return ""
    seconds = (ended_us - began_us) / 1e6
    # Rounded before they are compared: never 1000 ms or 60.0 s.
    if round(seconds, 3) < 1:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < _MINUTE_S:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    hours, minutes = divmod(minutes, _MINUTE_S)
    days, hours = divmod(hours, _DAY_H)
    return f"{days} d {hours}:{minutes:02}:{rest:02}" if days else f"{hours}:{minutes:02}:{rest:02}"


def json_of(row: object) -> Json:
    """A row of an audit as JSON; times in ISO 8601, under names that end in `_at`."""
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        values = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
        return {
            _json_name(name): iso(value) if name.endswith("_us") else json_of(value)
            for name, value in values.items()
        }
    if isinstance(row, enum.Enum):
        return json_of(row.value)
    if isinstance(row, (list, tuple)):
        return [json_of(item) for item in row]
    return to_json(row)


def _json_name(field: str) -> str:
    """Name of a field in JSON: `began_us` becomes `began_at`, and `timestamp_us` becomes `timestamp`."""
    return "timestamp" if field == "timestamp_us" else re.sub("_us$", "_at", field)


def table_json(columns: Columns, values: Mapping[str, object]) -> Json:
    """A row of a table as JSON, with times in ISO 8601."""
    return {name: _column_json(kind, values[name]) for name, kind in columns.items()}


def _column_json(kind: ColumnType | ListOf, value: Any) -> Json:  # noqa: ANN401, of the column's type
    if isinstance(kind, ListOf):
        if isinstance(kind.item, ColumnType):
            return [_column_json(kind.item, item) for item in value]
        return [table_json(kind.item, item) for item in value]
    return iso(value) if kind is ColumnType.TIME else json_of(value)


def iso(timestamp_us: int | None) -> str | None:
    """The time in ISO 8601, UTC, to the microsecond."""
    if timestamp_us is None:
        return None
    if not _TIMES_US[0] <= timestamp_us <= _TIMES_US[1]:
        return f"{timestamp_us} microseconds since 1970"
    return _utc(timestamp_us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line that has texts of records, without their control sequences."""
    click.echo(printable(text), err=err)


def print_json(value: Json) -> None:
    """Print a value on one line, as `json_text`."""
    click.echo(json_text(value))


def json_text(value: Json, *, indent: int | None = None) -> str:
    """The value as JSON; in ASCII if the standard output has no Unicode encoding.

    Characters that are not printable are escaped: JSON itself does this only below U+0020, but a terminal obeys
    U+009B too.
    """
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, indent=indent, ensure_ascii=not is_unicode, allow_nan=False)
    if text.isprintable() or not is_unicode:
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


def crop(console: Console, text: Text) -> None:
    """Print one line. On a terminal it is cut to the width, or to `_CUT_FROM` characters if that is more."""
    text.rstrip()
    if not console.is_terminal:
        console.print(text, soft_wrap=True)
    elif console.width >= _CUT_FROM:
        console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
    else:
        text.truncate(_CUT_FROM, overflow="ellipsis")
        console.print(text, soft_wrap=True)


def _utc(timestamp_us: int) -> dt.datetime:
    """The time, or the nearest in Python's calendar: records are untrusted and may have any number."""
    bounded = min(max(timestamp_us, _TIMES_US[0]), _TIMES_US[1])
    # Added as an integer: a float has too few digits for microseconds.
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=bounded)
