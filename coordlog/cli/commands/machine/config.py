"""`coordlog config`: value and source of each option."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType

import click

from coordlog.cli.config.names import (
    SETTINGS,
    CommandPath,
    Setting,
    commands_below,
    is_secret,
    key_of,
    masked,
    options_of,
)
from coordlog.cli.config.sources import Configuration, configuration_of
from coordlog.cli.console import Column, new_console, print_json, print_table
from coordlog.log.broker.limits import IDLE_MINUTES
from coordlog.log.local.paths import cache_folder, home_folder
from coordlog.projections.tables.payload_json import Json

__all__ = ["config"]

_COLUMNS = (Column("COMMAND"), Column("KEY"), Column("VALUE"), Column("FROM"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    command: str
    key: str
    value: Json
    source: str


@click.command()
@click.argument("command", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each setting.")
@click.pass_context
def config(context: click.Context, *, command: tuple[str, ...], as_json: bool) -> None:
    """Show each setting with its value and its source; secrets are hidden.

    With COMMAND, such as `ingest` or `broker start`, only its settings are shown.

    The order of precedence is: option, variable, coordlog.toml, default.
    """
    configuration = configuration_of(context)
    rows = [
        row
        for row in _rows(context, configuration)
        if row.command.split()[: len(command)] == [*command]
    ]
    if not rows:
        raise click.BadParameter(f"{' '.join(command)} has no settings", param_hint="COMMAND")
    if as_json:
        for row in rows:
            print_json(
                {"command": row.command, "key": row.key, "value": row.value, "from": row.source}
            )
        return
    click.echo(f"file: {configuration.file.path or 'none was found'}\n")
    cells = [(row.command, row.key, _text(row.value), row.source) for row in rows]
    print_table(new_console(), _COLUMNS, cells)


def _rows(context: click.Context, configuration: Configuration) -> Iterator[_Row]:
    root = context.find_root()
    own: set[str] = set()
    contexts: dict[CommandPath, click.Context] = {(): root}
    rows: list[_Row] = []
    for path, command in commands_below(root.command, (), root):
        if path:
            contexts[path] = _context_of(command, contexts[path[:-1]], path[-1])
        for option in options_of(command):
            own.add(key_of(option, path))
            rows.append(_row(option, path, contexts[path], configuration))
    yield from (
        _setting_row(setting, configuration) for setting in SETTINGS if setting.key not in own
    )
    yield from rows


def _context_of(command: click.Command, parent: click.Context, name: str) -> click.Context:
    """Context of a command line without options and arguments."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    for option in options_of(command):
        # `resilient_parsing` ignores wrong values of variables; here they raise.
        value = option.value_from_envvar(context)
        if value is not None:
            option.type_cast_value(context, value)
    return context


def _row(
    option: click.Option, path: CommandPath, context: click.Context, configuration: Configuration
) -> _Row:
    name = option.name or ""
    key = key_of(option, path)
    value = context.params[name]
    value = _default_of(key) if value is None else value
    origin = context.get_parameter_source(name)
    if not isinstance(value, (bool, int, float, str, tuple, list, NoneType)):
        # Parsed to a type of coordlog's own: shown as it was set.
        variable = option.value_from_envvar(context)
        value = context.lookup_default(name) if variable is None else variable
    source = configuration.source(option, path, origin)
    return _Row(command=" ".join(path), key=key, value=_safe(key, value), source=source)


def _setting_row(setting: Setting, configuration: Configuration) -> _Row:
    value: str | None = os.environ.get(setting.variable) or None
    if value is None:
        value, source = _default_of(setting.key), "default"
    elif setting.key in configuration.applied:
        source = f"{configuration.file.path}: {setting.key}"
    else:
        source = f"the variable {setting.variable}"
    return _Row(command="", key=setting.key, value=_safe(setting.key, value), source=source)


def _default_of(key: str) -> str | None:
    """Default of a setting that has one."""
    match key:
        case "home":
            return str(home_folder())
        case "cache":
            return str(cache_folder())
        case "broker-idle-minutes":
            return str(IDLE_MINUTES)
        case _:
            return None


def _safe(key: str, value: object) -> Json:
    if value is None or isinstance(value, (bool, int, float)):
        return value if value is None or not is_secret(key) else masked(key, str(value))
    if isinstance(value, (tuple, list)):
        return [_safe(key, item) for item in value]
    return masked(key, str(value))


def _text(value: Json) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(map(repr, value)) or "-"
        case _:
            return str(value)
