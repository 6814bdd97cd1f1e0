"""Names in a file system of fsspec. A folder that cannot be listed is an error: searches of fsspec leave it out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fsspec.utils import glob_translate

__all__ = ["WEB", "files_below", "remote_names_matching"]

WEB: Final = ("http://", "https://")
"""Beginnings of names of a web server."""


# `Any` here and below: fsspec has no types.
def files_below(file_system: Any, root: str) -> dict[str, Mapping[str, Any]]:  # noqa: ANN401
    """Name and `info` of each file below `root`, or of the file `root`, in the order of the names.

    Raises:
        OSError: A folder cannot be listed. One that is gone is left out.
    """
    infos = {name: info for name, info, is_folder in _walk(file_system, root) if not is_folder}
    if not infos and file_system.isfile(root):
        infos[root] = file_system.info(root)
    return {name: infos[name] for name in sorted(infos)}


def remote_names_matching(file_system: Any, folder: str, pattern: str) -> list[str]:  # noqa: ANN401
    """Files and folders that a glob matches, without those inside a matching folder, named as a listing has them.

    Args:
        file_system: Of fsspec.
        folder: Part of the pattern before the first wildcard, with a slash at its end if it is of a web server.
        pattern: Glob; `**` stands for any number of folders.

    Raises:
        OSError: As `files_below`.
    """
    is_match = re.compile(glob_translate(pattern.rstrip("/"))).match
    depth = None if "**" in pattern else pattern.rstrip("/").count("/")

    def is_entered(name: str) -> bool:
        return not is_match(name) and (depth is None or name.count("/") < depth)

    names = (name for name, _, _ in _walk(file_system, folder, is_entered))
    return [name for name in names if is_match(name.rstrip("/"))]


def _walk(
    file_system: Any,  # noqa: ANN401
    root: str,
    is_entered: Callable[[str], bool] = lambda _name: True,
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Name and `info` of all files and folders below `root`, and whether it is a folder.

    Each folder is entered once: the page of a web server may link to itself.
    """
    pending, entered = [root], {root.rstrip("/")}
    while pending:
        folder = pending.pop()
        try:
            # One level at a time: fsspec passes `on_error` on to no folder below.
            levels = list(file_system.walk(folder, maxdepth=1, detail=True, on_error="raise"))
        except FileNotFoundError:
            continue
        for _, folders, files in levels:
            names = ((_name(info), info) for info in files.values())
            yield from ((name, info, False) for name, info in names if not _is_own_page(name))
            for info in folders.values():
                page = _name(info)
                yield page, info, True
                name = page.rstrip("/")
                if name not in entered and is_entered(name):
                    entered.add(name)
                    pending.append(page)


def _name(info: Mapping[str, Any]) -> str:
    """The name, without the dot with which links of Caddy's index begin."""
    name = str(info["name"])
    return name.replace("/./", "/") if name.startswith(WEB) else name


def _is_own_page(name: str) -> bool:
    """Whether it is a folder's page with a query or a fragment, as Apache's index links to itself in another order."""
    page, *query = re.split("[?#]", name, maxsplit=1)
    return bool(query) and page.endswith("/") and name.startswith(WEB)
