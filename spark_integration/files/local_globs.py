"""Local files and folders that a glob matches. A folder that cannot be listed is an error: its files would be lost."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence

from fsspec.utils import glob_translate

__all__ = ["names_matching"]


def names_matching(folder: str, pattern: str, leaves_out: Callable[[str], bool]) -> Iterator[str]:
    """Names that `pattern` matches, in the order of the files in them, without those inside a matching folder.

    Links to folders are followed. Names that begin with `.` or `_` are left out.

    Args:
        folder: Part of the pattern before the first wildcard.
        pattern: An absolute path, which has wildcards; `**` stands for any number of folders.
        leaves_out: Whether a folder is not to be opened.

    Raises:
        OSError: A folder cannot be listed.
        ValueError: `**` is only a part of a name.
    """
    root = folder or "/"
    parts = pattern.removeprefix(folder).strip("/").split("/")
    yield from _in_folder(root, parts, re.compile(glob_translate(pattern)), frozenset(), leaves_out)


def _in_folder(
    folder: str,
    parts: Sequence[str],
    pattern: re.Pattern[str],
    above: frozenset[str],
    leaves_out: Callable[[str], bool],
) -> Iterator[str]:
    """`above` holds the real folders above this one: a link back to one of them is not followed."""
    real = os.path.realpath(folder)
    if real in above or not parts:
        return
    is_of_any_depth = parts[0] == "**"
    rest = parts if is_of_any_depth else parts[1:]
    is_possible = re.compile(glob_translate(parts[0])).match
    try:
        with os.scandir(folder) as scan:
            names = [
                f"{entry.name}/" if entry.is_dir() else entry.name
                for entry in scan
                if not entry.name.startswith((".", "_")) and is_possible(entry.name)
            ]
    except FileNotFoundError:
        if not above:
            raise
        return  # moved away since the folder above was listed
    for name in sorted(names):  # a folder's slash gives the order of whole paths
        path = posixpath.join(folder, name.rstrip("/"))
        if pattern.match(path):
            yield path
        elif name.endswith("/") and not leaves_out(path):
            yield from _in_folder(path, rest, pattern, above | {real}, leaves_out)
