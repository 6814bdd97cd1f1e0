"""What an option is called outside the command line: its variable, its key; and what has no option.

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
    """What is set by a variable or a key, and by no option: it is for all commands, or secret."""

    key: str
    summary: str
    kind: click.ParamType[Any] = click.STRING

    @property
    def variable(self) -> str:
        """By the rule."""
        return variable_of(self.key)


SETTINGS: Final = (
    Setting(
        key="home",
        summary="Data that must be kept: the shared broker's, the drivers' files, output.",
    ),
    Setting(key="cache", summary="What can be fetched again: jars."),
    Setting(
        key="broker-idle-minutes",
        summary="The shared broker stops after so long without a client; 0: never.",
        kind=click.FloatRange(min=0),
    ),
    Setting(key="ivy-settings", summary="A settings file of Ivy, for a mirror of Maven Central."),
    Setting(key="token", summary="A driver's token, for a client on another machine."),
    Setting(key="certificate", summary="A file with the certificate of a job's driver, there too."),
    Setting(key="secret-key", summary="The key of payloads' secret fields: 128 hex digits."),
    Setting(key="kafka-security-file", summary="A TOML file with what follows, without `kafka-`."),
    Setting(key="kafka-protocol", summary="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
    Setting(key="kafka-sasl-mechanism", summary="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."),
    Setting(key="kafka-sasl-username", summary="Who asks."),
    Setting(key="kafka-sasl-password", summary="And the proof of it."),
    Setting(key="kafka-ssl-cafile", summary="The authority that signed the broker's certificate."),
    Setting(key="kafka-ssl-certfile", summary="The client's certificate."),
    Setting(key="kafka-ssl-keyfile", summary="The client's key."),
    Setting(key="kafka-ssl-key-password", summary="The password of that key."),
    Setting(key="kafka-ssl-check-hostname", summary="yes or no."),
)


def variable_of(key: str) -> str:
    """The variable of a key."""
    return PREFIX + key.replace("-", "_").upper()


def long_name(option: click.Option) -> str:
    """An option's name without its dashes."""
    return next((one for one in option.opts if one.startswith("--")), option.opts[0]).lstrip("-")


def key_of(option: click.Option, path: CommandPath) -> str:
    """The key of an option, of the command at `path`."""
    return "-".join((*path[:-1], long_name(option)))


def options_of(command: click.Command) -> list[click.Option]:
    """The options that set something; `--version` and `--config` do not."""
    return [one for one in command.params if isinstance(one, click.Option) and one.expose_value]


def commands_below(
    command: click.Command, path: CommandPath, context: click.Context
) -> Iterator[tuple[CommandPath, click.Command]]:
    """The command and those below it, each when it is asked for: that may be its import."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            one = command.get_command(context, name)
            assert one is not None, "it is in the list"
            yield from commands_below(one, (*path, name), context)


def name_variables(command: click.Command, path: CommandPath, context: click.Context) -> None:
    """Give each option of a command, and of those below it, its variable."""
    for below, one in commands_below(command, path, context):
        for option in options_of(one):
            if option.envvar is None:
                option.envvar = variable_of(key_of(option, below))


def is_secret(key: str) -> bool:
    """Whether a value of that key is never shown."""
    return _SECRET.search(key) is not None


def masked(key: str, text: str) -> str:
    """The text as it may be shown: a secret not at all, an address without its credentials."""
    return HIDDEN if is_secret(key) and text else without_credentials(text, HIDDEN)
