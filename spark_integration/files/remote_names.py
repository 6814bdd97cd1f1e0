"""Names in a file system of fsspec. A folder that cannot be listed is an error: searches of fsspec leave it out.

A folder of a web server is a page, and its names are the links to what is below it, as a browser follows them. fsspec
takes a link such as `httpd.csv` for a whole URL, and `./../` for a folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from fsspec.asyn import sync
from fsspec.utils import glob_translate

from coordlog.errors import SourceError, SourceUnavailableError

__all__ = [
    "WEB",
    "content_of",
    "file_info",
    "files_below",
    "info_of",
    "page_info",
    "remote_names_matching",
]

WEB: Final = ("http://", "https://")
"""Beginnings of names of a web server."""


# `Any` here and below: fsspec has no types.
def files_below(
    file_system: Any,  # noqa: ANN401
    root: str,
    leaves_out: Callable[[str], bool],
) -> dict[str, Mapping[str, Any]]:
    """Name and `info` of each file below `root`, or of the file `root`, in the order of the names.

    Folders that `leaves_out` names are not listed: perhaps they may not be.

    Raises:
        OSError: A folder cannot be listed. One that is gone is left out.
    """
    if root.startswith(WEB) and not root.endswith("/"):
        return {root: {"name": root, "size": None}}
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


def info_of(file_system: Any, name: str) -> Mapping[str, Any]:  # noqa: ANN401
    """`info` of a file.

    Raises:
        OSError: There is none of that name, or the file system refuses.
        SourceUnavailableError: A web server sends a page in place of a file, such as of a login or of a folder.
    """
    info: Mapping[str, Any] = file_system.info(name)
    if name.startswith(WEB) and info.get("mimetype") == "text/html":
        raise _not_as_named(
            name,
            str(info.get("url", name)),
            "HTML, not the file",
            "name a folder with the slash at its end, and files beside folders by a glob, such as `*.csv`",
        )
    return info


def page_info(file_system: Any, name: str) -> Mapping[str, Any]:  # noqa: ANN401
    """`info_of` a page of a web server.

    Raises:
        Exception: The answer, which fsspec hides behind a FileNotFoundError: the server may be busy.
        SourceError: As `info_of`.
    """
    try:
        return info_of(file_system, name)
    except FileNotFoundError as error:
        raise error.__cause__ or error from None


def _not_as_named(name: str, address: str, problem: str, next_step: str) -> SourceError:
    """Error of a page that is not what its name says, with its address, without a query, which may hold a secret."""
    there = urlsplit(address)._replace(query="", fragment="").geturl()
    problem = f"the page at {there} is {problem}"
    error = SourceUnavailableError(
        name, problem, f"look at it in a browser: perhaps it asks for a login; {next_step}"
    )
    error.__cause__ = ConnectionError(there)  # not a fault of the file's
    return error


def remote_names_matching(
    file_system: Any,  # noqa: ANN401
    folder: str,
    pattern: str,
    leaves_out: Callable[[str], bool],
) -> list[str]:
    """Files and folders that a glob matches, without those inside a matching folder, named as a listing has them.

    Args:
        file_system: Of fsspec.
        folder: Part of the pattern before the first wildcard.
        pattern: Glob; `**` stands for any number of folders.
        leaves_out: Whether a folder is left out, with all that is in it.

    Raises:
        OSError: As `files_below`.
    """
    root = f"{folder}/" if folder.startswith(WEB) else folder
    is_match = re.compile(glob_translate(pattern.rstrip("/"))).match
    depth = None if "**" in pattern else pattern.rstrip("/").count("/")

    def is_entered(name: str) -> bool:
        is_above = not is_match(name) and (depth is None or name.count("/") < depth)
        return is_above and not leaves_out(name)

    return [
        name
        for name, _, is_folder in _walk(file_system, root, is_entered)
        if is_match(name.rstrip("/")) and not (is_folder and leaves_out(name.rstrip("/")))
    ]


def _walk(
    file_system: Any,  # noqa: ANN401
    root: str,
    is_entered: Callable[[str], bool],
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
    """Names of the files and folders below a page to which it links.

    A query selects a view of a folder, as in Apache's index in another order, or of a file that is linked without
    it too, as for a download. A page to which the server leads from here may link to what is below itself. One with
    links neither to that nor to the folder above is no index.
    """
    content, address = content_of(file_system, page)
    links = _Links()
    links.feed(content.decode(errors="replace"))
    targets = dict.fromkeys(urldefrag(urljoin(address, link)).url for link in links.targets)
    places = [each.partition("://")[2] for each in (page, address) if each.endswith("/")]
    names: list[str] = []
    for target in targets:
        scheme, _, there = target.partition("://")
        below = next(filter(None, (_below(place, there) for place in places)), "")
        bare, query, _ = target.partition("?")
        is_view = query and (bare.endswith("/") or bare in targets)
        if f"{scheme}://" in WEB and below and not is_view:
            names.append(page + below)
    if not names and unquote(urljoin(address, "..")) not in map(unquote, targets):
        raise _not_as_named(
            page,
            address,
            "no index: it links to nothing below it, and not to the folder above",
            "a folder without files needs a link to the folder above, or `exclude=`, `--exclude NAME`",
        )
    return list(dict.fromkeys(names))


def _below(folder: str, name: str) -> str:
    """The part of `name` below `folder`, as it is written; empty if it is elsewhere.

    Servers write one folder in several ways: `%C3%BC/`, `%c3%bc/`, `ü/`.
    """
    depth = folder.count("/")
    parts = name.split("/")
    is_below = [unquote(part) for part in folder.split("/")[:-1]] == [
        unquote(part) for part in parts[:depth]
    ]
    return "/".join(parts[depth:]) if is_below else ""


def content_of(file_system: Any, page: str) -> tuple[bytes, str]:  # noqa: ANN401
    """Content of a page of a web server, and the address that it came from: the server may lead to another one.

    Raises:
        FileNotFoundError: There is none.
        Exception: The server refuses, or cannot be reached.
    """
    answer: Any = sync(file_system.loop, _answer_of, file_system, page)
    return answer[0], answer[1]


async def _answer_of(file_system: Any, page: str) -> tuple[bytes, str]:  # noqa: ANN401
    session = await file_system.set_session()
    async with session.get(file_system.encode_url(page), **file_system.kwargs) as answer:
        if answer.status == HTTPStatus.NOT_FOUND:
            raise FileNotFoundError(page)
        answer.raise_for_status()
        return await answer.read(), str(answer.url)


class _Links(HTMLParser):
    """Targets of the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the target of a link."""
        if tag == "a":
            self.targets += [value for name, value in attrs if name == "href" and value]
