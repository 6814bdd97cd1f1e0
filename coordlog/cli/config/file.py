"""`coordlog.toml`: its places, its keys, and the values of each command's options.

A key at the top is for each command that has the option. A key in the table of a command, such as
`[ingest]` or `[broker.start]`, is for that command alone, and has precedence. Only the first existing
file is read. Its values become the `default_map` of click.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import stat
import tomllib
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from coordlog.cli.config.names import (
    CONFIG_VARIABLE,
    PREFIX,
    SETTINGS,
    CommandPath,
    is_secret,
    key_of,
    long_name,
    masked,
    options_of,
    variable_of,
)
from coordlog.errors import EnvironmentSetupError, UsageError
from coordlog.limits import CONFIG_BYTES_MAX
from coordlog.log.local.fsync import open_plain
from coordlog.log.local.paths import chosen_folder, home_folder, of_this_user

__all__ = [
    "FILE_NAME",
    "ConfigFile",
    "ConfigFileError",
    "load_config",
    "unknown_variables",
    "variables_set",
]

FILE_NAME: Final = "coordlog.toml"

_PARTS_MAX: Final = 8
"""Parts of a key, as in `broker.start.port`; without a bound a hostile file would use up the stack."""

Commands = Iterable[tuple[CommandPath, click.Command]]


class ConfigFileError(UsageError):
    """`coordlog.toml` cannot be read, or has unknown keys or wrong values; the message has all of them."""

    def __init__(self, path: str, problems: tuple[str, ...]) -> None:
        super().__init__(path, problems)
        self.path, self.problems = path, problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.path}: {self.problems[0]}"
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return f"{self.path}: {len(self.problems)} problems:{lines}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """Content of the file."""

    path: Path | None
    """Path of the file, or None if there is none."""
    values: Mapping[str, object] = field(default_factory=dict)
    mode: int = 0
    """Mode of the file when it was read."""

    def find(self, option: click.Option, path: CommandPath) -> tuple[str, object] | None:
        """Place of an option in the file, in words, and its value; None if it is not set."""
        table = self._table(path)
        name, key = long_name(option), key_of(option, path)
        if path and name in table and not isinstance(table[name], dict):
            return f"[{'.'.join(path)}] {name}", table[name]
        if key in self.values and not isinstance(self.values[key], dict):
            return key, self.values[key]
        return None

    def defaults(self, commands: Commands) -> tuple[dict[str, object], list[str]]:
        """Values of options, as the `default_map` of `coordlog` itself; and a line for each wrong value."""
        default_map: dict[str, Any] = {}
        problems: list[str] = []
        for path, command in commands:
            target = default_map
            for name in path:
                target = target.setdefault(name, {})
            for option in options_of(command):
                entry = self.find(option, path)
                if entry is not None:
                    is_list = option.multiple or option.nargs != 1
                    problems += _misfit(*entry, option.type, is_list=is_list)
                    target[option.name] = entry[1]
        return default_map, problems

    def unknown_keys(self, commands: Commands) -> list[str]:
        """A line for each unknown key and table, with the nearest known name.

        Args:
            commands: All commands; read only as far as needed, because reading imports them.
        """
        known: set[CommandPath] = {(setting.key,) for setting in SETTINGS}
        tables: set[CommandPath] = set()
        unknown = dict(_flat(self.values))
        for path, command in commands:
            tables.add(path)
            for option in options_of(command):
                known |= {(key_of(option, path),), (*path, long_name(option))}
            unknown = {
                keys: value
                for keys, value in unknown.items()
                if keys not in (tables if isinstance(value, dict) else known)
            }
            if not unknown:
                return []
        return [_unknown(keys, value, known, tables) for keys, value in unknown.items()]

    def settings(self, besides: Commands) -> tuple[dict[str, str], list[str]]:
        """Settings of the file that no variable sets, as texts by key; and a line for each wrong value.

        Args:
            besides: Commands; a key of an option of theirs is no setting.
        """
        own = {key_of(option, path) for path, command in besides for option in options_of(command)}
        values: dict[str, str] = {}
        problems: list[str] = []
        for setting in SETTINGS:
            key, value = setting.key, self.values.get(setting.key)
            # A table has the name of a command: `cache` is both.
            if value is not None and not isinstance(value, dict) and key not in own:
                problems += _misfit(key, value, setting.kind)
                if not os.environ.get(setting.variable):
                    values[key] = str(value)
        return values, problems

    def refuse(self, problems: list[str]) -> None:
        """Raise a ConfigFileError of these problems, if there are any."""
        if problems:
            raise ConfigFileError(str(self.path), tuple(problems))

    def warnings(self) -> list[str]:
        """Warnings about a file that can be used."""
        if self.path is None or not any(is_secret(keys[-1]) for keys, _ in _flat(self.values)):
            return []
        if self.mode & (stat.S_IRWXG | stat.S_IRWXO):
            return [f"{self.path} holds a secret and is open to others: chmod 600 {self.path}"]
        return []

    def _table(self, path: CommandPath) -> Mapping[str, object]:
        table: object = self.values
        for name in path:
            table = table.get(name) if isinstance(table, dict) else None
        return table if isinstance(table, dict) else {}


_SKIPPED_ERRORS: Final = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL)
"""Errors of a place without a plain file: the next place is tried."""


def load_config(named: Path | None) -> ConfigFile:
    """The file `named` by the user, else the first file that exists.

    Raises:
        ConfigFileError: The file cannot be read, or other users may have written it.
        EnvironmentSetupError: Another user owns it, or its folder, and this user may not read it.
    """
    if named is not None:
        with _as_config_error(named), named.open("rb") as file:
            return _parsed(named, file)
    here = Path(FILE_NAME).absolute()
    for path in (here, *_own_places()):
        with _as_config_error(path), contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open_plain(path))
            except OSError as error:
                if error.errno in _SKIPPED_ERRORS:
                    continue
                raise
            if path == here:
                _refuse_strangers(path, os.fstat(file.fileno()))
            return _parsed(path, file)
    return ConfigFile(path=None)


@contextlib.contextmanager
def _as_config_error(path: Path) -> Generator[None]:
    """Raise errors of reading a file as ConfigFileError, or EnvironmentSetupError if it is another user's."""
    try:
        with of_this_user(path):
            yield
    except OSError as error:
        raise ConfigFileError(str(path), (f"it cannot be read: {error.strerror}",)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigFileError(str(path), (f"it is no TOML: {error}",)) from error


def _parsed(path: Path, file: BinaryIO) -> ConfigFile:
    content = file.read(CONFIG_BYTES_MAX + 1)
    if len(content) > CONFIG_BYTES_MAX:
        problem = f"it has more than {CONFIG_BYTES_MAX:,} bytes, the limit"
        raise ConfigFileError(str(path), (problem,))
    mode = os.fstat(file.fileno()).st_mode
    values = tomllib.loads(content.decode())
    _check_depth(path, values)
    return ConfigFile(path=path, values=values, mode=mode)


def _check_depth(path: Path, values: Mapping[str, object]) -> None:
    tables: list[Mapping[str, object]] = [values]
    for _ in range(_PARTS_MAX):
        tables = [value for table in tables for value in table.values() if isinstance(value, dict)]
    if tables:
        problem = f"a key has more than {_PARTS_MAX} parts; one of an option has at most 3"
        raise ConfigFileError(str(path), (problem,))


def _own_places() -> list[Path]:
    places: list[Path] = []
    for folder in (home_folder, lambda: chosen_folder("XDG_CONFIG_HOME", ".config")):
        with contextlib.suppress(EnvironmentSetupError):  # there may be no home folder
            places.append(folder() / FILE_NAME)
    return places


def _refuse_strangers(path: Path, opened: os.stat_result) -> None:
    """Refuse a file that other users may have put into a shared folder: it may name code to run.

    Args:
        path: Path of the file.
        opened: Status of the open file, because another file may have this path by now.
    """
    problem = None
    if opened.st_uid not in {os.geteuid(), 0}:
        problem = f"it belongs to user {opened.st_uid}, not to you"
    elif opened.st_mode & stat.S_IWOTH:
        problem = "every user may write to it"
    if problem is not None:
        raise ConfigFileError(
            str(path), (f"{problem}; if you trust it, pass --config {FILE_NAME}",)
        )


@contextlib.contextmanager
def variables_set(settings: Mapping[str, str]) -> Generator[None]:
    """Set the variables of settings for the block: the library and its child processes read them."""
    variables = {variable_of(key): value for key, value in settings.items()}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def unknown_variables(commands: Commands) -> list[str]:
    """A line for each unused variable with coordlog's prefix, with the nearest known name.

    Args:
        commands: All commands; read only as far as needed, because reading imports them.
    """
    known = {CONFIG_VARIABLE, *(setting.variable for setting in SETTINGS)}
    unknown = {name for name in os.environ if name.startswith(PREFIX)} - known
    for path, command in commands:
        if not unknown:
            return []
        variables = {variable_of(key_of(option, path)) for option in options_of(command)}
        known |= variables
        unknown -= variables
    # Compared without the prefix, which would make all names similar.
    names = {name.removeprefix(PREFIX) for name in known}
    return [
        f"nothing reads the variable {name}{_nearest(name.removeprefix(PREFIX), names, PREFIX)}"
        for name in sorted(unknown)
    ]


def _flat(
    values: Mapping[str, object], above: CommandPath = ()
) -> Generator[tuple[CommandPath, object]]:
    """Path and value of each key, and of each empty table."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, (*above, name))
        else:
            yield (*above, name), value


def _unknown(
    keys: CommandPath, value: object, known: set[CommandPath], tables: set[CommandPath]
) -> str:
    table, name = (keys, "") if isinstance(value, dict) else (keys[:-1], keys[-1])
    if table and table not in tables:
        nearest = _nearest(".".join(table), {".".join(path) for path in tables if path})
        return f"[{'.'.join(table)}] is no command{nearest}"
    where = f"[{'.'.join(table)}] " if table else ""
    siblings = {path[-1] for path in known if path[:-1] == table}
    nearest = _nearest(name, siblings)
    if not nearest and (name,) in known:
        nearest = f"; {name} belongs above all tables"
    return f"{where}{name} is no option{nearest}"


def _nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _misfit(
    where: str, value: object, kind: click.ParamType[Any], *, is_list: bool = False
) -> list[str]:
    """Line about a value that is not of that kind, in a list because a correct value has none."""
    expected, types = _kind_of(kind)
    items = value if is_list and isinstance(value, list) else [value]
    if is_list:
        expected = f"a list, each item {expected}"
    is_right = isinstance(value, list) or not is_list
    # TOML has no numbers that are switches; in Python `True` is one.
    if is_right and all(
        isinstance(item, types) and isinstance(item, bool) is (types == (bool,)) for item in items
    ):
        try:
            for item in items:
                kind.convert(item, None, None)
        except click.BadParameter as error:
            if not isinstance(kind, click.Choice):
                expected = f"{expected}: {error.message}"
        else:
            return []
    key = where.rpartition(" ")[2]
    return [f"{where} is {masked(key, repr(value))}; it must be {expected}"]


def _kind_of(kind: click.ParamType[Any]) -> tuple[str, tuple[type, ...]]:
    """TOML type for a type of click: in words, and as types of Python."""
    match kind:
        case click.types.BoolParamType():
            return "true or false", (bool,)
        case click.types.IntParamType():
            return "a whole number", (int,)
        case click.types.FloatParamType():
            return "a number", (int, float)
        case click.Choice():
            return f"one of {', '.join(map(str, kind.choices))}", (str,)
        case click.types.StringParamType() | click.Path() | click.File():
            return "a string", (str,)
        case _:
            return f"a {kind.name}", (str, int, float)  # coordlog's own types read texts
