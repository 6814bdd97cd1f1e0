"""Applies `coordlog.toml` to the running command, and names the source of a wrong value.

The order is click's: option, variable, file (its `default_map`), default.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
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
from coordlog.errors import EnvironmentSetupError

__all__ = [
    "Configuration",
    "configuration_of",
    "configure",
    "in_options",
    "read_config",
    "variables_named",
]

_META: Final = "coordlog.cli.configuration"
_RUNNING: Final = "coordlog.cli.running"

_NAME_OF_OPTION: Final = re.compile(
    r"(?m)(?P<before>`|^(?:error: )? *)(?P<name>\w+)"
    r"(?:=(?:True|(?P<tuple>\()?(?P<quote>[\"']?)(?P<value>[^\"'`]*)(?P=quote)(?(tuple),\)))(?=`)|(?= is ))"
)
"""Option in Python: `delimiter=`, `on_error="skip"`, `names=('a',)` or `widen=True` in backticks, or its name before
"is" in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The configuration file, and the settings applied from it."""

    file: ConfigFile
    applied: frozenset[str] = frozenset()
    """Keys of the settings whose variables were set from the file."""

    def source(
        self, option: click.Option, path: CommandPath, source: ParameterSource | None
    ) -> str:
        """Source of an option's value, in words."""
        match source:
            case ParameterSource.COMMANDLINE:
                return "the command line"
            case ParameterSource.ENVIRONMENT:
                return f"the variable {option.envvar}"
            case ParameterSource.DEFAULT_MAP:
                entry = self.file.find(option, path)
                assert entry is not None, "the map was made from the file"
                return f"{self.file.path}: {entry[0]}"
            case _:
                return "default"


class _ConfigProblem(click.ClickException):
    """A problem found before `invoke`, which handles other errors, is entered."""

    exit_code = int(Exit.USAGE)

    def show(self, file: Any = None) -> None:  # noqa: ANN401, click's own signature
        """Print the message like that of every error."""
        click.echo(f"error: {self.message}", file=file, err=True)


class _RememberedContext(click.Context):
    """Context of a subcommand that remains accessible after the subcommand's end, for error messages."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401, click's own signature
        super().__init__(*args, **options)
        self.meta[_RUNNING] = self


def configuration_of(context: click.Context) -> Configuration:
    """Configuration of the running command."""
    configuration = context.meta[_META]
    assert isinstance(configuration, Configuration)
    return configuration


def read_config(context: click.Context, _option: click.Parameter, named: Path | None) -> None:
    """Callback of `--config`: reads the configuration file."""
    if context.resilient_parsing:
        return
    try:
        file = load_config(named)
        defaults, problems = file.defaults([((), _bare(context.command))])
        file.refuse(problems)
    except (ConfigFileError, EnvironmentSetupError) as error:
        raise _ConfigProblem(str(error)) from error
    context.default_map = defaults
    context.meta[_META] = Configuration(file=file)


def configure(context: click.Context, path: CommandPath, command: click.Command) -> None:
    """Apply the file's values to a subcommand; warn of unused variables.

    Raises:
        ConfigFileError: A key is unknown, or a value wrong.
    """
    file = configuration_of(context).file
    own = list(commands_below(command, path, context))
    near = [((), _bare(context.command)), *own]
    # `coordlog config` shows the values of all commands, so all must be correct.
    shown = list(_all(context)) if path == ("config",) else near
    unknown = file.unknown_keys(chain(near, _all(context)))
    settings, misfits = file.settings(shown)
    defaults, wrong = file.defaults(shown)
    file.refuse(unknown + misfits + wrong)
    context.default_map = defaults
    context.with_resource(variables_set(settings))
    context.meta[_META] = Configuration(file=file, applied=frozenset(settings))
    for _, subcommand in own:
        subcommand.context_class = _RememberedContext
    for warning in [*file.warnings(), *unknown_variables(chain(near, _all(context)))]:
        click.echo(f"warning: {warning}", err=True)


def _all(context: click.Context) -> Iterator[tuple[CommandPath, click.Command]]:
    return commands_below(context.command, (), context)


@contextmanager
def variables_named() -> Generator[None]:
    """Make an error of click name the variable, if the wrong value comes from a variable."""
    try:
        yield
    except click.BadParameter as error:
        option, context = error.param, error.ctx
        if (
            isinstance(option, click.Option)
            and context is not None
            and context.get_parameter_source(option.name) is ParameterSource.ENVIRONMENT
        ):
            error.param_hint = f"{option.envvar} (a variable, for --{long_name(option)})"
        raise


def in_options(context: click.Context, message: str, *, is_usage: bool) -> str:
    """An error's text with the options of the running command in place of their names in Python.

    Args:
        context: Context of `coordlog` itself.
        message: Text of the error.
        is_usage: Whether a wrong value may be the cause: then a line for each option in the text
            names the source of its value, unless that is the command line.
    """
    running = context.meta.get(_RUNNING)
    if not isinstance(running, click.Context):
        return message
    options = {long_name(option): option for option in options_of(running.command)}
    names = {name.replace("-", "_"): name for name in options}
    names |= {option.name or name: name for name, option in options.items()}

    def option_of(match: re.Match[str]) -> str:
        name = names.get(match["name"])
        if name is None:
            return match[0]
        value = f" {match['value']}" if match["value"] else ""
        return f"{match['before']}--{name}{value}"

    message = _NAME_OF_OPTION.sub(option_of, message)
    for name, option in options.items() if is_usage else ():
        source = running.get_parameter_source(option.name or "")
        if source in {ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP} and re.search(
            rf"(?m)^(?:error: )? *--{name} is ", message
        ):
            origin = configuration_of(context).source(option, _path_of(running), source)
            message += f"\n  --{name} comes from {origin}"
    return message


def _path_of(context: click.Context) -> CommandPath:
    names: list[str] = []
    while context.parent is not None:
        names.append(context.info_name or "")
        context = context.parent
    return tuple(reversed(names))


def _bare(command: click.Command) -> click.Command:
    """`coordlog` itself, without its subcommands."""
    return click.Command(None, params=command.params)
