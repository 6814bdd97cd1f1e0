"""Folders of this user's data and caches; an environment variable can move each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from coordlog.errors import EnvironmentSetupError

__all__ = [
    "CACHE_VARIABLE",
    "HOME_VARIABLE",
    "cache_folder",
    "chosen_folder",
    "home_folder",
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
    """
    is_configured = path in _configured_folders() and path.is_dir()
    path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    if not is_configured:
        path.chmod(_PRIVATE)
    return path


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
