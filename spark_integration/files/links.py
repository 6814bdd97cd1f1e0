"""Links on the way to a local file, whose real path is relative to the folder of the source that has listed it.

That folder may have been another one than the source has now: several paths of one source may overlap, and a job may
continue with another path.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath

__all__ = ["is_behind_link", "leads_elsewhere"]


def leads_elsewhere(path: str, seen: str, now: str) -> bool:
    """Whether a link on the way to a file has changed since it was listed.

    Args:
        path: Absolute path of the file.
        seen: `ListedFile.real_path` of the listing; empty if there is none.
        now: Likewise, as it is now, relative to a folder of the present source.
    """
    if not seen or not now or seen == now:
        return False
    real, place = os.path.realpath(path), PurePosixPath(path)
    if real == path and path.endswith(f"/{seen}"):
        return False  # no link at all; the most frequent case, and there may be many files
    return all(
        os.path.relpath(real, os.path.realpath(folder)) != seen
        for folder in (place, *place.parents)
    )


def is_behind_link(path: str, seen: str) -> bool:
    """Whether a link leads to a file from the folder that was listed; `seen` as in `leads_elsewhere`."""
    if seen in ("", "."):
        return False  # no local file, or the path of the source itself
    if not path.endswith(f"/{seen}"):
        return True
    folder = path.removesuffix(f"/{seen}") or "/"
    return os.path.relpath(os.path.realpath(path), os.path.realpath(folder)) != seen
