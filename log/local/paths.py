"""Where this user's data and caches are; both can be moved by a variable of the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["CACHE_VARIABLE", "HOME_VARIABLE", "cache_folder", "home_folder", "private_folder"]

HOME_VARIABLE: Final = "COORDLOG_HOME"
CACHE_VARIABLE: Final = "COORDLOG_CACHE"

_PRIVATE: Final = 0o700


def home_folder() -> Path:
    """What must be kept: `COORDLOG_HOME`, else `~/.local/share/coordlog`; it may not exist yet."""
    return _chosen(HOME_VARIABLE, "XDG_DATA_HOME", ".local/share")


def cache_folder() -> Path:
    """What can be fetched again: `COORDLOG_CACHE`, else `~/.cache/coordlog`; may not exist yet."""
    return _chosen(CACHE_VARIABLE, "XDG_CACHE_HOME", ".cache")


def private_folder(path: Path) -> Path:
    """The folder, made when it is missing, open to this user only.

    `COORDLOG_HOME` and `COORDLOG_CACHE` themselves keep the mode that they have if they are there:
    each may be the root of a volume, whose owner is another user and which others may use too.
    """
    is_given = path in _given_folders() and path.is_dir()
    path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    if not is_given:
        path.chmod(_PRIVATE)
    return path


def _given_folders() -> list[Path]:
    given = (os.environ.get(CACHE_VARIABLE), os.environ.get(HOME_VARIABLE))
    return [Path(one).expanduser().absolute() for one in given if one]


def _chosen(variable: str, xdg_variable: str, below_home: str) -> Path:
    own = os.environ.get(variable)
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get(xdg_variable)
    # The XDG specification: a path that is not absolute counts as not set.
    root = Path(shared) if shared and Path(shared).is_absolute() else Path.home() / below_home
    return root / "coordlog"
