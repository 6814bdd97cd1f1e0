"""Names of options outside the command line, as variable and as key; and settings without an option.

One rule: `--checkpoint-interval` is the key `checkpoint-interval` of `coordlog.toml` and the variable
`COORDLOG_CHECKPOINT_INTERVAL`. An option of a command in a group has the group's name before it:
`coordlog broker start --idle-minutes` is `broker-idle-minutes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from coordlog.log.credentials import without_credentials

__all__ = [
    "CONFIG_VARIABLE",
    "SETTINGS",
    "CommandPath",
    "Setting",
    "commands_below",
    "is_secret",
    "key_of",
    "long_name",
    "masked",
    "name_variables",
    "options_of",
    "variable_of",
]

PREFIX: Final = "COORDLOG_"
CONFIG_VARIABLE: Final = "COORDLOG_CONFIG"

CommandPath = tuple[str, ...]
"""A command's names below `coordlog`: `("broker", "start")`; empty for `coordlog` itself."""

_SECRET: Final = re.compile(r"password|secret|token|credential|storage-option")
HIDDEN: Final = "(hidden)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Setting with a variable and a key but without an option: it is for all commands, or secret."""

    key: str
    summary: str
    kind: click.ParamType[Any] = click.STRING

    @property
    def variable(self) -> str:
        """Name of the setting's variable."""
        return variable_of(self.key)


SETTINGS: Final = (
    Setting(
        key="home",
        summary="Folder of data to keep: the shared broker's data, files of drivers, output.",
    ),
    Setting(key="cache", summary="Folder of files that can be fetched again: jars."),
    Setting(
        key="broker-idle-minutes",
        summary="Minutes without a client after which the shared broker stops; 0: never.",
        kind=click.FloatRange(min=0),
    ),
    Setting(key="ivy-settings", summary="A settings file of Ivy, for a mirror of Maven Central."),
    Setting(key="token", summary="A driver's token, for a client on another machine."),
    Setting(
        key="certificate",
        summary="File with the certificate of a driver, for a client on another machine.",
    ),
    Setting(key="secret-key", summary="The key of payloads' secret fields: 128 hex digits."),
    Setting(
        key="kafka-security-file",
        summary="TOML file with the following settings, without `kafka-`.",
    ),
    Setting(key="kafka-protocol", summary="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
    Setting(key="kafka-sasl-mechanism", summary="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."),
    Setting(key="kafka-sasl-username", summary="User name at the broker."),
    Setting(key="kafka-sasl-password", summary="Password of that user."),
    Setting(
        key="kafka-ssl-cafile",
        summary="File of the authority that signed the broker's certificate.",
    ),
    Setting(key="kafka-ssl-certfile", summary="File of the client's certificate."),
    Setting(key="kafka-ssl-keyfile", summary="File of the client's key."),
    Setting(key="kafka-ssl-key-password", summary="Password of that key."),
    Setting(
        key="kafka-ssl-check-hostname",
        summary="yes or no: whether the certificate must have the broker's host name.",
    ),
)


def variable_of(key: str) -> str:
    """The variable of a key."""
    return PREFIX + key.replace("-", "_").upper()


def long_name(option: click.Option) -> str:
    """An option's name without its dashes."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0]).lstrip("-")


def key_of(option: click.Option, path: CommandPath) -> str:
    """The key of an option, of the command at `path`."""
    return "-".join((*path[:-1], long_name(option)))


def options_of(command: click.Command) -> list[click.Option]:
    """Options with a value for the command, unlike `--version` and `--config`."""
    params = command.params
    return [param for param in params if isinstance(param, click.Option) and param.expose_value]


def commands_below(
    command: click.Command, path: CommandPath, context: click.Context
) -> Iterator[tuple[CommandPath, click.Command]]:
    """The command and those below it, lazily, because a subcommand may be imported for this."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None, "it is in the list"
            yield from commands_below(subcommand, (*path, name), context)


def name_variables(command: click.Command, path: CommandPath, context: click.Context) -> None:
    """Give each option of a command, and of those below it, its variable.

    Not by click's `auto_envvar_prefix`: its names have the command and the parameter in Python.
    """
    for subpath, subcommand in commands_below(command, path, context):
        for option in options_of(subcommand):
            if option.envvar is None:
                option.envvar = variable_of(key_of(option, subpath))


def is_secret(key: str) -> bool:
    """Whether values of that key are never shown."""
    return _SECRET.search(key) is not None


def masked(key: str, text: str) -> str:
    """The text for display: a secret is hidden, an address has no credentials."""
    return HIDDEN if is_secret(key) and text else without_credentials(text, HIDDEN)
