"""Names in a file system of fsspec. A folder that cannot be listed is an error: searches of fsspec leave it out.

A folder of a web server is a page, and its names are the links to what is below it, as a browser follows them. fsspec
takes a link such as `httpd.csv` for a whole URL, and `./../` for a folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urljoin

from fsspec.utils import glob_translate

__all__ = ["WEB", "files_below", "remote_names_matching"]

WEB: Final = ("http://", "https://")
"""Beginnings of names of a web server."""
_OF_PAGE: Final = re.compile(r"(?:[^?#]*/)?[?#]")
"""Matches a page with a query or a fragment, as Apache's index links to itself in another order."""


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
            names = _level(file_system, folder)
        except FileNotFoundError:
            continue
        for info, is_folder in names:
            name = str(info["name"])
            yield name, info, is_folder
            stem = name.rstrip("/")
            if is_folder and stem not in entered and is_entered(stem):
                entered.add(stem)
                pending.append(name)


# `Any`: fsspec has no types.
def _level(file_system: Any, folder: str) -> list[tuple[Mapping[str, Any], bool]]:  # noqa: ANN401
    """`info` of the files in a folder, then of its folders, and whether it is one."""
    if folder.startswith(WEB):
        names = _linked_names(file_system, folder) if folder.endswith("/") else []
        return [({"name": name, "size": None}, name.endswith("/")) for name in names]
    # One level at a time: fsspec passes `on_error` on to no folder below.
    levels = list(file_system.walk(folder, maxdepth=1, detail=True, on_error="raise"))
    files = [(info, False) for _, _, each in levels for info in each.values()]
    return files + [(info, True) for _, each, _ in levels for info in each.values()]


# `Any`: fsspec has no types.
def _linked_names(file_system: Any, page: str) -> Sequence[str]:  # noqa: ANN401
    """Names of the files and folders below a page to which it links."""
    links = _Links()
    links.feed(file_system.cat_file(page).decode(errors="replace"))
    names: dict[str, None] = {}
    _, _, here = page.partition("://")
    for link in links.targets:
        scheme, _, there = urljoin(page, link).partition("://")
        below = there.removeprefix(here)
        is_below = f"{scheme}://" in WEB and below not in ("", there)
        if is_below and not _OF_PAGE.match(below):
            names[page + below] = None
    return list(names)


class _Links(HTMLParser):
    """Targets of the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the target of a link."""
        if tag == "a":
            self.targets += [value for name, value in attrs if name == "href" and value]
