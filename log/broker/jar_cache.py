"""What this user's cache holds, and its removal: only what this package has put there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordlog.log.broker import limits
from coordlog.log.broker.jar_lock import JarSet
from coordlog.log.local.environment_errors import JarsError
from coordlog.log.local.file_lock import file_lock
from coordlog.log.local.paths import cache_folder

__all__ = ["CacheContent", "CacheEntry", "cache_content", "clear_cache"]

_JARS: Final = "jars"
_LOCK: Final = ".lock"
_OURS: Final = re.compile(
    rf"(?:{'|'.join(re.escape(one.value) for one in JarSet)})-[0-9a-f]+|\.unfinished-.+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One set of jars, or what a fetch that was killed has left."""

    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheContent:
    """What is in the cache.

    Attributes:
        folder: The cache.
        entries: What this package has put there, in order of their names.
        strangers: What somebody else has: it stays.
    """

    folder: Path
    entries: tuple[CacheEntry, ...]
    strangers: tuple[Path, ...]


def cache_content() -> CacheContent:
    """What is there now; an empty one where there is no cache."""
    folder = cache_folder()
    jars = folder / _JARS
    entries: list[CacheEntry] = []
    strangers = [one for one in _inside(folder) if one.name != _JARS]
    for one in _inside(jars):
        if _OURS.fullmatch(one.name) and one.is_dir() and not one.is_symlink():
            entries.append(CacheEntry(path=one, size_bytes=_size_of(one)))
        elif one.name != _LOCK:
            strangers.append(one)
    return CacheContent(folder=folder, entries=tuple(entries), strangers=tuple(strangers))


def clear_cache() -> tuple[CacheEntry, ...]:
    """Remove what this package has put into the cache; returns what has gone.

    Links are removed and not followed. The lock stays: two could each lock one of its name.

    Raises:
        JarsError: Another process has been fetching jars for too long.
    """
    jars = cache_folder() / _JARS
    if not jars.is_dir():
        return ()
    busy = JarsError(
        f"another process has been fetching jars into {jars} for too long",
        "end it, then do the same again",
    )
    with file_lock(jars / _LOCK, limit_s=2 * limits.RESOLVE_LIMIT_S, busy=busy):
        entries = cache_content().entries
        for one in entries:
            shutil.rmtree(one.path)
    return entries


def _inside(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(folder.iterdir())


def _size_of(folder: Path) -> int:
    files = (one for one in folder.rglob("*") if one.is_file() and not one.is_symlink())
    return sum(one.stat().st_size for one in files)
