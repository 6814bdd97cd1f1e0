"""Local files that a listing has twice: under their own names, and through a link to a place in the same listing."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsspec.utils import glob_translate

__all__ = ["LocalRoot", "is_listed_elsewhere"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRoot:
    """A path of a source."""

    fixed: str
    """The path, or the folder before its first wildcard."""
    base: str
    """Folder to which the real paths of its files are relative."""
    glob: str | None
    """The path, if it has a wildcard."""
    after: str
    """Names up to this one are not listed."""
    real: str
    """`fixed` without links."""

    def name_of(self, real_path: str) -> str | None:
        """Name under which a listing has this file without a link below `fixed`, or None if it has none."""
        if real_path == self.real:
            return self.fixed
        below = real_path.removeprefix(f"{self.real.rstrip('/')}/")
        if below == real_path or any(part.startswith((".", "_")) for part in below.split("/")):
            return None
        name = f"{self.fixed.rstrip('/')}/{below}"
        if name <= self.after or (self.glob is not None and not _matches(self.glob, name, below)):
            return None
        return name


def _matches(glob: str, name: str, below: str) -> bool:
    """Whether the glob matches the file, or a folder of `below`, the end of its name."""
    ends = [len(name) - len(below) + place for place, one in enumerate(below) if one == "/"]
    return any(_compiled(glob).match(name[:end]) for end in (*ends, len(name)))


@functools.lru_cache(maxsize=16)
def _compiled(glob: str) -> re.Pattern[str]:
    return re.compile(glob_translate(glob))


def is_listed_elsewhere(
    name: str,
    real_path: str,
    root: LocalRoot,
    roots: Sequence[LocalRoot],
    leaves_out: Callable[[str], bool],
) -> bool:
    """Whether a file that was found below `root` has another name in the listing of `roots`, without a link.

    Args:
        name: Name of the file in the listing.
        real_path: Its path without links, relative to `root.base`; empty if no record can hold its name.
        root: Path of the source that has it.
        roots: All paths of the source.
        leaves_out: Whether a name is left out.
    """
    if not real_path:
        return False
    real = os.path.normpath(os.path.join(root.base, real_path))  # noqa: PTH118, plain paths as in a listing
    for each in roots:
        own = each.name_of(real)
        if own is not None and (own == name or not leaves_out(own)):
            return own != name
    return False
