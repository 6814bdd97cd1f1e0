"""Folders of this user's data and caches; an environment variable can move each."""

from __future__ import annotations

import os
import pwd
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from coordlog.errors import EnvironmentSetupError

__all__ = [
    "CACHE_VARIABLE",
    "HOME_VARIABLE",
    "cache_folder",
    "chosen_folder",
    "home_folder",
    "of_this_user",
    "private_folder",
]

HOME_VARIABLE: Final = "COORDLOG_HOME"
CACHE_VARIABLE: Final = "COORDLOG_CACHE"

_PRIVATE: Final = 0o700


def home_folder() -> Path:
    """Folder of data to keep: `COORDLOG_HOME`, else `~/.local/share/coordlog`; it may not exist yet.

    Raises:
        EnvironmentSetupError: The user has no home folder, and no variable names one.
    """
    return _chosen(HOME_VARIABLE, "XDG_DATA_HOME", ".local/share")


def cache_folder() -> Path:
    """Folder of data that can be fetched again: `COORDLOG_CACHE`, else `~/.cache/coordlog`; may not exist yet.

    Raises:
        EnvironmentSetupError: As `home_folder`.
    """
    return _chosen(CACHE_VARIABLE, "XDG_CACHE_HOME", ".cache")


def private_folder(path: Path) -> Path:
    """The folder, created if it is missing, open to this user only.

    `COORDLOG_HOME` and `COORDLOG_CACHE` themselves keep their mode if they exist: each may be the
    root of a volume, whose owner is another user and which others may use too.

    Raises:
        EnvironmentSetupError: It is another user's, or this user may not create it.
    """
    with of_this_user(path):
        is_configured = path in _configured_folders() and path.is_dir()
        path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        if not is_configured:
            path.chmod(_PRIVATE)
    return path


@contextmanager
def of_this_user(path: Path) -> Generator[None]:
    """Name the owner if the system refuses this user a file or folder of coordlog's own.

    Raises:
        EnvironmentSetupError: The system refuses it.
    """
    try:
        yield
    except PermissionError as error:
        place, owner = _owner(path)
        user = _user_name(os.geteuid())
        raise EnvironmentSetupError(
            f"{path}: {error.strerror}; {place} belongs to user {owner}, and this process runs as user {user}",
            f"run as user {owner}, or {_remedy(path, user)}",
        ) from error


def _owner(path: Path) -> tuple[Path, str]:
    """The nearest existing path that this user can see, and the name of its owner."""
    for place in (path, *path.parents):
        with suppress(OSError):
            return place, _user_name(place.stat().st_uid)
    return path, "(unknown)"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # as in a container, whose users have no names
        return str(uid)


def _remedy(path: Path, user: str) -> str:
    for variable, folder in ((CACHE_VARIABLE, cache_folder), (HOME_VARIABLE, home_folder)):
        with suppress(EnvironmentSetupError):
            if path.is_relative_to(folder()):
                return f"set {variable} to a folder of user {user}"
    return f"give user {user} the right to use it"


def _configured_folders() -> list[Path]:
    folders = (os.environ.get(CACHE_VARIABLE), os.environ.get(HOME_VARIABLE))
    return [Path(folder).expanduser().absolute() for folder in folders if folder]


def _chosen(variable: str, xdg_variable: str, below_home: str) -> Path:
    own = os.environ.get(variable)
    return _expanded(own) if own else chosen_folder(xdg_variable, below_home)


def chosen_folder(xdg_variable: str, below_home: str) -> Path:
    """Folder of coordlog in the one that a variable of the XDG specification names, else below the user's home.

    Raises:
        EnvironmentSetupError: It is below the user's home, and the user has none.
    """
    shared = os.environ.get(xdg_variable)
    # The XDG specification: a path that is not absolute counts as not set.
    is_set = shared and Path(shared).is_absolute()
    return (Path(shared or "") if is_set else _expanded("~") / below_home) / "coordlog"


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise EnvironmentSetupError(
            f"HOME is not set, and user {os.geteuid()} has no home folder",
            f"set HOME, or {HOME_VARIABLE} and {CACHE_VARIABLE} to absolute paths",
        ) from error
