"""Brings `coordlog.toml` to the command that runs, and says of a wrong value where it came from.

The order is click's: option, variable, file (its `default_map`), default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from coordlog.cli.config.file import (
    ConfigFile,
    ConfigFileError,
    load_config,
    unknown_variables,
    variables_set,
)
from coordlog.cli.config.names import (
    CommandPath,
    commands_below,
    long_name,
    options_of,
)
from coordlog.cli.exit_status import Exit
from coordlog.errors import UsageError

__all__ = [
    "Configuration",
    "configuration_of",
    "configure",
    "in_options",
    "name_variable",
    "provenance",
    "read_config",
]

_META: Final = "coordlog.cli.configuration"
_RUNNING: Final = "coordlog.cli.running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The file that counts, and which variables it has set."""

    file: ConfigFile
    applied: frozenset[str] = frozenset()
    """Keys of settings."""

    def source(
        self, option: click.Option, path: CommandPath, source: ParameterSource | None
    ) -> str:
        """Where a value comes from, in words."""
        match source:
            case ParameterSource.COMMANDLINE:
                return "the command line"
            case ParameterSource.ENVIRONMENT:
                return f"the variable {option.envvar}"
            case ParameterSource.DEFAULT_MAP:
                found = self.file.find(option, path)
                assert found is not None, "the map is made of it"
                return f"{self.file.path}: {found[0]}"
            case _:
                return "default"


class _ConfigProblem(click.ClickException):
    """Found before the command's edge is reached."""

    exit_code = int(Exit.USAGE)

    def show(self, file: Any = None) -> None:  # noqa: ANN401, click's own signature
        """As each other error."""
        click.echo(f"error: {self.message}", file=file, err=True)


class _RememberedContext(click.Context):
    """The context of a subcommand: what has been given can be asked for after its end."""

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401, click's own signature
        super().__init__(*given, **named)
        self.meta[_RUNNING] = self


def configuration_of(context: click.Context) -> Configuration:
    """Of the command that runs."""
    found = context.meta[_META]
    assert isinstance(found, Configuration)
    return found


def read_config(context: click.Context, _option: click.Parameter, named: Path | None) -> None:
    """The callback of `--config`: reads the file that counts."""
    if context.resilient_parsing:
        return
    try:
        file = load_config(named)
        own, problems = file.defaults([((), _bare(context.command))], context)
        file.refuse(problems)
    except ConfigFileError as error:
        raise _ConfigProblem(str(error)) from error
    context.default_map = own
    context.meta[_META] = Configuration(file=file)


def configure(context: click.Context, path: CommandPath, command: click.Command) -> None:
    """Give a subcommand what the file sets for it; warn of variables that nothing reads.

    Raises:
        ConfigFileError: A key is unknown, or a value wrong.
    """
    file = configuration_of(context).file
    mine = list(commands_below(command, path, context))
    near = [((), _bare(context.command)), *mine]
    # `coordlog config` shows them all, so all must be right.
    shown = list(_all(context)) if path == ("config",) else near
    unknown = file.unknown_keys(near, _all(context))
    settings, misfits = file.settings(shown)
    defaults, wrong = file.defaults(shown, context)
    file.refuse(unknown + misfits + wrong)
    context.default_map = defaults
    context.with_resource(variables_set(settings))
    context.meta[_META] = Configuration(file=file, applied=frozenset(settings))
    for _, one in mine:
        one.context_class = _RememberedContext
    for warning in [*file.warnings(), *unknown_variables(near, _all(context))]:
        click.echo(f"warning: {warning}", err=True)


def _all(context: click.Context) -> Iterator[tuple[CommandPath, click.Command]]:
    return commands_below(context.command, (), context)


def name_variable(error: click.BadParameter) -> None:
    """Let an error of click name the variable where the value is a variable's."""
    option, context = error.param, error.ctx
    if not isinstance(option, click.Option) or context is None:
        return
    if context.get_parameter_source(option.name) is ParameterSource.ENVIRONMENT:
        error.param_hint = f"{option.envvar} (a variable, for --{long_name(option)})"


def in_options(context: click.Context, message: str) -> str:
    """An error's text with the options of the command that runs in place of the names that Python has for them."""
    running = context.meta.get(_RUNNING)
    if not isinstance(running, click.Context):
        return message
    options: dict[str, str] = {}
    for option in options_of(running.command):
        name = long_name(option)
        options |= {option.name or name: name, name.replace("-", "_"): name}

    def option_of(found: re.Match[str]) -> str:
        name = options.get(found["name"])
        return found[0] if name is None else found["before"] + f"--{name}" + found["after"]

    message = re.sub(r"(?P<before>`)(?P<name>\w+)=(?P<after>`)", option_of, message)
    return re.sub(
        r"(?m)^(?P<before>(?:error: | *))(?P<name>\w+)(?P<after> is )", option_of, message
    )


def provenance(context: click.Context, error: Exception) -> list[str]:
    """A line for each option that the error names and nobody has given on the command line."""
    running = context.meta.get(_RUNNING)
    if not isinstance(error, UsageError) or not isinstance(running, click.Context):
        return []
    path, said = _path_of(running), str(error)
    lines: list[str] = []
    for option in options_of(running.command):
        source = running.get_parameter_source(option.name or "")
        if source not in {ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP}:
            continue
        name = long_name(option)
        # An error of the library has the name that Python knows: job_id.
        if re.search(rf"(?m)^ *(?:--{name}|{name.replace('-', '_')}) is ", said):
            where = configuration_of(context).source(option, path, source)
            lines.append(f"  --{name} comes from {where}")
    return lines


def _path_of(context: click.Context) -> CommandPath:
    names: list[str] = []
    while context.parent is not None:
        names.append(context.info_name or "")
        context = context.parent
    return tuple(reversed(names))


def _bare(command: click.Command) -> click.Command:
    """`coordlog` itself, without what is below it."""
    return click.Command(None, params=command.params)
