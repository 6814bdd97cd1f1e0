"""What the commands print with: a console, times, JSON lines."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import sys
from collections.abc import Iterable
from typing import Final, NoReturn

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordlog.projections.payload_json import Json, to_json

__all__ = [
    "crop",
    "day_of",
    "iso",
    "json_of",
    "lasted",
    "new_console",
    "new_table",
    "print_json",
    "time_of",
]

_WIDE: Final = 10_000
"""Columns where there is no terminal: nothing is cut that another program may look for."""

_MINUTE_S: Final = 60


class _QuietConsole(Console):
    """Leaves a closed pipe to the command's edge; rich would end the process itself."""

    def on_broken_pipe(self) -> NoReturn:
        """The reader has gone."""
        raise BrokenPipeError


def new_console() -> Console:
    """A console on the standard output: in colour and cut to its width on a terminal only."""
    console = _QuietConsole(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console


def new_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table without lines; the columns of `right` are numbers."""
    at_right = frozenset(right)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in at_right else "left", overflow="fold")
    return table


def time_of(timestamp_us: int | None) -> str:
    """The time of day, UTC, to the millisecond."""
    return "" if timestamp_us is None else f"{_utc(timestamp_us):%H:%M:%S.%f}"[:-3]


def day_of(timestamp_us: int) -> str:
    """The day, UTC."""
    return f"{_utc(timestamp_us):%Y-%m-%d}"


def lasted(began_us: int, ended_us: int | None) -> str:
    """A duration, for people."""
    if ended_us is None:
        return ""
    seconds = (ended_us - began_us) / 1e6
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    hours, minutes = divmod(minutes, _MINUTE_S)
    return f"{hours}:{minutes:02}:{rest:02}"


def json_of(row: object) -> Json:
    """A row of an audit as JSON; times in ISO 8601, under names without their unit."""
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        values = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
        return {
            name.removesuffix("_us"): iso(value) if name.endswith("_us") else json_of(value)
            for name, value in values.items()
        }
    if isinstance(row, enum.Enum):
        return json_of(row.value)
    if isinstance(row, (list, tuple)):
        return [json_of(one) for one in row]
    return to_json(row)


def iso(timestamp_us: int | None) -> str | None:
    """The time in ISO 8601, UTC, to the microsecond."""
    if timestamp_us is None:
        return None
    return _utc(timestamp_us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def print_json(value: Json) -> None:
    """One line."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def crop(console: Console, text: Text) -> None:
    """Print one line: cut to a terminal's width, whole elsewhere."""
    text.rstrip()
    console.print(text, no_wrap=True, overflow="ellipsis", crop=console.is_terminal)


def _utc(timestamp_us: int) -> dt.datetime:
    # Whole microseconds: a float would lose the last of them.
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=timestamp_us)
