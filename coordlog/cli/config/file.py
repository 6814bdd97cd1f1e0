"""`coordlog.toml`: where it is, what may stand in it, and what it sets for which command.

A key at the top is for each command that has the option; one in the table of a command, such as
`[ingest]` or `[broker.start]`, for that command alone, and goes before it. One file counts: the first
that is found. click does the rest: the values are its `default_map`.
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
from coordlog.errors import UsageError
from coordlog.limits import CONFIG_BYTES_MAX
from coordlog.log.local.fsync import open_plain
from coordlog.log.local.paths import home_folder

__all__ = [
    "FILE_NAME",
    "ConfigFile",
    "ConfigFileError",
    "load_config",
    "unknown_variables",
    "variables_set",
]

FILE_NAME: Final = "coordlog.toml"

Commands = Iterable[tuple[CommandPath, click.Command]]


class ConfigFileError(UsageError):
    """`coordlog.toml` cannot be read, or something in it is unknown or wrong: all, not the first."""

    def __init__(self, path: str, problems: tuple[str, ...]) -> None:
        super().__init__(path, problems)
        self.path, self.problems = path, problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.path}: {self.problems[0]}"
        lines = "".join(f"\n  {one}" for one in self.problems)
        return f"{self.path}: {len(self.problems)} problems:{lines}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A file's keys; without a path: none was found, and nothing is set."""

    path: Path | None
    values: Mapping[str, object] = field(default_factory=dict)
    mode: int = 0
    """Mode of the file when it was read."""

    def find(self, option: click.Option, path: CommandPath) -> tuple[str, object] | None:
        """Where the file sets an option, in words, and to what."""
        table = self._table(path)
        name, key = long_name(option), key_of(option, path)
        if path and name in table and not isinstance(table[name], dict):
            return f"[{'.'.join(path)}] {name}", table[name]
        if key in self.values and not isinstance(self.values[key], dict):
            return key, self.values[key]
        return None

    def defaults(
        self, commands: Commands, context: click.Context
    ) -> tuple[dict[str, object], list[str]]:
        """What it sets, as the `default_map` of `coordlog` itself; and what is wrong."""
        made: dict[str, object] = {}
        problems: list[str] = []
        for path, command in commands:
            target = _inner(made, path)
            for option in options_of(command):
                found = self.find(option, path)
                if found is None:
                    continue
                where, value = found
                expected = _misfit(option, value, context)
                if expected is not None:
                    problems.append(_wrong(where, key_of(option, path), value, expected))
                assert option.name is not None, "click names each"
                target[option.name] = _as_text(option, value)
        return made, problems

    def unknown_keys(self, near: Commands, everything: Commands) -> list[str]:
        """A line for each key and table that is nothing's, with the nearest name there is.

        Args:
            near: The commands that are looked at first.
            everything: All; gone through as far as is needed, for that imports them.
        """
        left = {one: value for one, value in _flat(self.values) if one not in _SETTING_PATHS}
        known: set[CommandPath] = set(_SETTING_PATHS)
        tables: set[CommandPath] = set()
        for commands in (near, everything):
            for path, command in commands:
                if not left:
                    return []
                tables.add(path)
                for option in options_of(command):
                    known |= {(key_of(option, path),), (*path, long_name(option))}
                left = {
                    keys: value
                    for keys, value in left.items()
                    if keys not in (tables if isinstance(value, dict) else known)
                }
        return [_unknown(keys, value, known, tables) for keys, value in left.items()]

    def settings(self, besides: Commands) -> tuple[dict[str, str], list[str]]:
        """The settings that it sets and no variable does, as texts by their keys; and what is wrong.

        Args:
            besides: Commands whose own options take what they need.
        """
        own = {key_of(one, path) for path, command in besides for one in options_of(command)}
        made: dict[str, str] = {}
        problems: list[str] = []
        for setting in SETTINGS:
            value = self.values.get(setting.key)
            # A table has the name of a command: `cache` is both.
            if value is None or isinstance(value, dict) or setting.key in own:
                continue
            expected = _misfit_of(setting.kind, value)
            if expected is not None:
                problems.append(_wrong(setting.key, setting.key, value, expected))
            elif not os.environ.get(setting.variable):
                made[setting.key] = str(value)
        return made, problems

    def refuse(self, problems: list[str]) -> None:
        """Raise a ConfigFileError of these, where there are any."""
        if problems:
            raise ConfigFileError(str(self.path), tuple(problems))

    def warnings(self) -> list[str]:
        """What is not wrong, and not right."""
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


_OWN_KINDS: Final = (str, int, float)
"""For a type that is not one of click's."""

_PASSED_OVER: Final = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL)
"""Of a place without a plain file: the next one is tried."""

_SETTING_PATHS: Final[frozenset[CommandPath]] = frozenset((one.key,) for one in SETTINGS)


def load_config(named: Path | None) -> ConfigFile:
    """The file that counts: the one named, else the first that is there.

    Raises:
        ConfigFileError: It cannot be read, or nobody knows who wrote it.
    """
    if named is not None:
        with _told(named), named.open("rb") as file:
            return _parsed(named, file)
    here = Path(FILE_NAME).absolute()
    for path in (here, *_own_places()):
        with _told(path), contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open_plain(path))
            except OSError as error:
                if error.errno in _PASSED_OVER:
                    continue
                raise
            if path == here:
                _refuse_strangers(path, os.fstat(file.fileno()))
            return _parsed(path, file)
    return ConfigFile(path=None)


@contextlib.contextmanager
def _told(path: Path) -> Generator[None]:
    """Raise what happens while a file is read as ConfigFileError."""
    try:
        yield
    except OSError as error:
        raise ConfigFileError(str(path), (f"it cannot be read: {error.strerror}",)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigFileError(str(path), (f"it is no TOML: {error}",)) from error


def _parsed(path: Path, file: BinaryIO) -> ConfigFile:
    content = file.read(CONFIG_BYTES_MAX + 1)
    if len(content) > CONFIG_BYTES_MAX:
        problem = f"it has more than {CONFIG_BYTES_MAX:,} bytes, the most that is read"
        raise ConfigFileError(str(path), (problem,))
    mode = os.fstat(file.fileno()).st_mode
    return ConfigFile(path=path, values=tomllib.loads(content.decode()), mode=mode)


def _own_places() -> list[Path]:
    shared = os.environ.get("XDG_CONFIG_HOME")
    root = Path(shared) if shared and Path(shared).is_absolute() else Path.home() / ".config"
    return [home_folder() / FILE_NAME, root / "coordlog" / FILE_NAME]


def _refuse_strangers(path: Path, opened: os.stat_result) -> None:
    """A file that lies about may name code to run: in a shared folder anybody may have put it.

    Args:
        path: Its name.
        opened: Status of the open file; another file may have its name by now.
    """
    problem = None
    if opened.st_uid not in {os.geteuid(), 0}:
        problem = f"it belongs to user {opened.st_uid}, not to you"
    elif opened.st_mode & stat.S_IWOTH:
        problem = "everybody may write to it"
    if problem is not None:
        raise ConfigFileError(str(path), (f"{problem}; if you trust it, say --config {FILE_NAME}",))


@contextlib.contextmanager
def variables_set(settings: Mapping[str, str]) -> Generator[None]:
    """Set the variables of settings for the block: the library and what it starts read them."""
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


def unknown_variables(near: Commands, everything: Commands) -> list[str]:
    """A line for each variable with our prefix that nothing reads, with the nearest name."""
    left = {one for one in os.environ if one.startswith(PREFIX)}
    known = {CONFIG_VARIABLE, *(one.variable for one in SETTINGS)}
    for commands in ((), near, everything):
        for path, command in commands:
            known.update(variable_of(key_of(one, path)) for one in options_of(command))
            if left <= known:
                return []
        left -= known
    # Without what they have in common: it would make all of them alike.
    names = {one.removeprefix(PREFIX) for one in known}
    return [
        f"nothing reads the variable {one}{_nearest(one.removeprefix(PREFIX), names, PREFIX)}"
        for one in sorted(left)
    ]


def _flat(
    values: Mapping[str, object], above: CommandPath = ()
) -> Generator[tuple[CommandPath, object]]:
    """Each key with its tables' names before it; an empty table as itself."""
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
        nearest = _nearest(".".join(table), {".".join(one) for one in tables if one})
        return f"[{'.'.join(table)}] is no command{nearest}"
    where = f"[{'.'.join(table)}] " if table else ""
    beside = {one[-1] for one in known if one[:-1] == table}
    nearest = _nearest(name, beside)
    if not nearest and (name,) in known:
        nearest = f"; {name} stands above all tables"
    return f"{where}{name} is no option{nearest}"


def _nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _inner(made: dict[str, object], path: CommandPath) -> dict[str, object]:
    """The map of a command inside the one of `coordlog`; made where it is missing."""
    for name in path:
        below = made.setdefault(name, dict[str, object]())
        assert isinstance(below, dict), "no option has the name of a command"
        made = below
    return made


def _wrong(where: str, key: str, value: object, expected: str) -> str:
    shown = masked(key, repr(value))
    return f"{where} is {shown}; it must be {expected}"


def _misfit(option: click.Option, value: object, context: click.Context) -> str | None:
    """What the option's value must be, where this is none."""
    one = "true or false" if option.is_flag else _kind_of(option.type)[0]
    if option.multiple or option.nargs != 1:
        expected = f"a list, each of it {one}"
        if not isinstance(value, list) or not all(_fits(option, each) for each in value):
            return expected
    else:
        expected = one
        if not _fits(option, value):
            return expected
    try:
        option.type_cast_value(context, _as_text(option, value))
    except click.BadParameter as error:
        return expected if isinstance(option.type, click.Choice) else f"{expected}: {error.message}"
    return None


def _as_text(option: click.Option, value: object) -> object:
    """A value as the option takes it: a type of our own reads what a command line has."""
    if isinstance(value, list):
        return [_as_text(option, one) for one in value]
    is_own = _kind_of(option.type)[1] == _OWN_KINDS
    return str(value) if is_own and isinstance(value, _OWN_KINDS) else value


def _fits(option: click.Option, value: object) -> bool:
    if option.is_flag and isinstance(option.type, click.types.BoolParamType):
        return isinstance(value, bool)
    return _is_of(option.type, value)


def _misfit_of(kind: click.ParamType[Any], value: object) -> str | None:
    if not _is_of(kind, value):
        return _kind_of(kind)[0]
    try:
        kind.convert(value, None, None)
    except click.BadParameter as error:
        return f"{_kind_of(kind)[0]}: {error.message}"
    return None


def _is_of(kind: click.ParamType[Any], value: object) -> bool:
    types = _kind_of(kind)[1]
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _kind_of(kind: click.ParamType[Any]) -> tuple[str, tuple[type, ...]]:
    """What TOML has for a type of click: in words, and as types of Python."""
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
            return f"a {kind.name}", _OWN_KINDS
