"""Names in a file system of fsspec. A folder that cannot be listed is an error: searches of fsspec leave it out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fsspec.utils import glob_translate

__all__ = ["file_info", "files_below", "remote_names_matching"]


# `Any` here and below: fsspec has no types.
def files_below(
    file_system: Any,  # noqa: ANN401
    root: str,
    leaves_out: Callable[[str], bool],
) -> dict[str, Mapping[str, Any]]:
    """Name and `info` of each file below `root`, or of the file `root`, in the order of the names.

    Folders that `leaves_out` names are not listed: perhaps they may not be.

    Raises:
        Exception: A folder cannot be listed; one that is gone is left out.
    """
    walk = _walk(file_system, root, lambda name: not leaves_out(name))
    infos = {name: info for name, info, is_folder in walk if not is_folder}
    if not infos and (info := file_info(file_system, root)) is not None:
        infos[root] = info
    return {name: infos[name] for name in sorted(infos)}


def file_info(file_system: Any, name: str) -> Mapping[str, Any] | None:  # noqa: ANN401
    """`info` of a file; None if there is none of that name, where `isfile` of fsspec is False after any error."""
    try:
        info: Mapping[str, Any] = file_system.info(name)
    except FileNotFoundError:
        return None
    return info if info["type"] == "file" else None


def remote_names_matching(
    file_system: Any,  # noqa: ANN401
    folder: str,
    pattern: str,
    leaves_out: Callable[[str], bool],
) -> list[str]:
    """Files and folders that a glob matches, without those inside a matching folder.

    Args:
        file_system: Of fsspec.
        folder: Part of the pattern before the first wildcard.
        pattern: Glob; `**` stands for any number of folders.
        leaves_out: Whether a folder is left out, with all that is in it.

    Raises:
        OSError: As `files_below`.
    """
    is_match = re.compile(glob_translate(pattern.rstrip("/"))).match
    depth = None if "**" in pattern else pattern.rstrip("/").count("/")

    def is_entered(name: str) -> bool:
        is_above = not is_match(name) and (depth is None or name.count("/") < depth)
        return is_above and not leaves_out(name)

    return [
        name.rstrip("/")
        for name, _, is_folder in _walk(file_system, folder, is_entered)
        if is_match(name.rstrip("/")) and not (is_folder and leaves_out(name.rstrip("/")))
    ]


def _walk(
    file_system: Any,  # noqa: ANN401
    root: str,
    is_entered: Callable[[str], bool],
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Name and `info` of all files and folders below `root`, and whether it is a folder."""
    pending = [root]
    while pending:
        try:
            # One level at a time: fsspec passes `on_error` on to no folder below.
            levels = list(
                file_system.walk(pending.pop(), maxdepth=1, detail=True, on_error="raise")
            )
        except FileNotFoundError:
            continue
        for _, folders, files in levels:
            for info in files.values():
                yield str(info["name"]), info, False
            for info in folders.values():
                name = str(info["name"])
                yield name, info, True
                if is_entered(name.rstrip("/")):
                    pending.append(name)
