"""Content of this user's cache, and its removal: only files that this package has written."""

from __future__ import annotations

import contextlib
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

__all__ = ["CacheContent", "CacheEntry", "cache_content", "cache_lock", "clear_cache"]

_JARS: Final = "jars"
_LOCK: Final = ".lock"
_OURS: Final = re.compile(
    rf"(?:{'|'.join(re.escape(jar_set.value) for jar_set in JarSet)})-[0-9a-f]+|\.unfinished-.+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One set of jars, or the rest of a fetch that was killed."""

    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheContent:
    """Content of the cache.

    Attributes:
        folder: The cache.
        entries: Entries that this package has written, in order of their names.
        strangers: Entries of others, which stay.
    """

    folder: Path
    entries: tuple[CacheEntry, ...]
    strangers: tuple[Path, ...]


def cache_content() -> CacheContent:
    """The present content; empty if there is no cache."""
    folder = cache_folder()
    jars = folder / _JARS
    entries: list[CacheEntry] = []
    strangers = [path for path in _inside(folder) if path.name != _JARS]
    for path in _inside(jars):
        if _OURS.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            entries.append(CacheEntry(path=path, size_bytes=_size_of(path)))
        elif path.name != _LOCK:
            strangers.append(path)
    return CacheContent(folder=folder, entries=tuple(entries), strangers=tuple(strangers))


def clear_cache() -> tuple[CacheEntry, ...]:
    """Remove this package's entries from the cache; returns the removed entries.

    Links are removed and not followed. The lock stays: else two processes could each lock a file of its name.

    Raises:
        JarsError: Another process has been fetching jars for too long.
    """
    jars = cache_folder() / _JARS
    if not jars.is_dir():
        return ()
    with cache_lock(jars):
        entries = cache_content().entries
        for entry in entries:
            shutil.rmtree(entry.path)
    return entries


def cache_lock(jars: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of the folder of jars; its holder may fetch and remove them."""
    limit_s = 2 * limits.RESOLVE_LIMIT_S

    def busy(holder: str) -> JarsError:
        return JarsError(
            f"{holder} has been fetching jars into {jars} for more than {limit_s:.0f} s",
            "end it, then do the same again",
        )

    return file_lock(jars / _LOCK, limit_s=limit_s, busy=busy)


def _inside(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(folder.iterdir())


def _size_of(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)
