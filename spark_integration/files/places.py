"""Places of sources and sinks, as text that can be compared."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Final

from coordlog.api.chain import Chain
from coordlog.errors import OptionError
from coordlog.spark_integration.files.listing import fixed_part, has_wildcard, is_local

__all__ = ["absolute", "check_apart", "location_of", "locations_of"]

_WILDCARDS: Final = re.compile(r"[*?\]]")
_OURS: Final = ".parquet"
"""End of the name of a published file."""


def absolute(url: str) -> str:
    """The URL, or the absolute path of a local one, spelled alike: files and destinations are known by their paths."""
    if url.startswith(("file://", "local://")):
        scheme, _, path = url.partition("://")
        return f"{scheme}://{absolute(path)}"
    if url.startswith("file:/"):  # as Hadoop and Spark write it
        url = url.removeprefix("file:")
    if "://" in url and not url.startswith("/"):
        return url
    path = os.path.abspath(os.path.expanduser(url))  # noqa: PTH100, PTH111, links are not followed
    return re.sub("^//", "/", path)


def location_of(url: str) -> str:
    """What `url` is, for a history: spelled alike for the same names of files.

    Not where its links lead: a file is known by its path as the source spells it, so that another
    way to the same folder makes other files of them.

    Args:
        url: An absolute local path, or an fsspec URL without credentials.
    """
    if "::" in url and not is_local(url):
        return url
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    if scheme in ("file", "local"):
        return os.path.normpath(rest)
    scheme = scheme.lower()
    return f"{'s3' if scheme == 's3a' else scheme}://{rest.rstrip('/')}"


def locations_of(urls: Sequence[str]) -> Sequence[str]:
    """The places of a source that reads several paths, as `location_of`, each once; the first one first."""
    first, *others = map(location_of, urls)
    return [first, *sorted(set(others) - {first})]


def check_apart(chain: Chain) -> None:
    """Refuse a job that would read its own output.

    Raises:
        OptionError: A destination, or the archive, is inside the place that the source reads, or around it; or a
            link in that place leads to it.
    """
    location = chain.source.location
    archive = chain.source.archive
    destinations = [_folder_of(provider.destination) for provider in chain.coordinators]
    _check_destinations(destinations, archive)
    sources = chain.source.inputs or ([] if location is None else [location])
    for destination in destinations:
        if destination is not None:
            for source in sources:
                _check_apart(source, destination)
    for source in sources:
        if archive is not None and not _is_hidden_below(source, _parts(archive)):
            _check_apart(source, archive, "the archive")


def _is_hidden_below(source: str, place: list[str]) -> bool:
    """Whether a place below the source has a hidden name, so that no listing of the source has its files."""
    fixed = _parts(source if source.startswith("/") and _is_plain(source) else fixed_part(source))
    below = place[len(fixed) :] if place[: len(fixed)] == fixed else []
    return any(name.startswith((".", "_")) for name in below)


def _check_apart(source: str, destination: str, subject: str = "the destination") -> None:
    if _is_overlap(source, _parts(destination)):
        raise OptionError(
            subject,
            destination,
            f"apart from what is read, {source}: neither below it nor above it, or the job reads "
            "its own output; use a folder or a prefix beside it",
        )
    if source.startswith("/") and destination.startswith("/"):
        _check_links(source, destination, subject)


def _folder_of(destination: str | None) -> str | None:
    """Folder or prefix of a destination, of which a Delta table is one too."""
    folder = None if destination is None else destination.removeprefix("delta+")
    return folder.removeprefix("file://") if folder != destination and folder else folder


def _check_destinations(destinations: Sequence[str | None], archive: str | None) -> None:
    """Refuse destinations of one job within one another: a reader of the outer one would get the files of both."""
    every = (*destinations, archive)
    places = [(place, parts) for place in every if place and (parts := _parts(place))]
    for (place, parts), (other, others) in combinations(places, 2):
        shorter = min(len(parts), len(others))
        if parts[:shorter] == others[:shorter]:
            raise OptionError(
                "a destination",
                place,
                f"apart from {other}, another of this job: neither below it nor above it; use a folder or a "
                "prefix beside it",
            )


def _check_links(source: str, destination: str, subject: str) -> None:
    """Refuse a link that the source follows into the destination: no name shows it, and a watch would not end."""
    below, folder = _parts(destination), source if _is_plain(source) else fixed_part(source)
    for link in _links_below(folder):
        target = _parts(link)
        is_above = below[: len(target)] == target
        if not is_above and target[: len(below)] != below:
            continue
        # The name under which the source would find the output.
        output_name = [*_parts(folder), *os.path.relpath(link, folder).split("/")]
        output_name += below[len(target) :] if is_above else []
        if _is_overlap(source, output_name):
            raise OptionError(
                subject,
                destination,
                f"apart from what is read, {source}: the link {link} leads to it, and the job would read "
                "its own output; remove the link, or use another folder",
            )


def _links_below(folder: str) -> Iterator[str]:
    """Paths of the links in a folder and in all folders below it, links to folders included; hidden names are not."""
    pending, seen = [folder], set[str]()
    while pending:
        path = pending.pop()
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        try:
            with os.scandir(path) as scan:
                entries = [entry for entry in scan if not entry.name.startswith((".", "_"))]
        except OSError:
            continue  # a file, or nothing: the listing reports it
        for entry in entries:
            if entry.is_symlink():
                yield os.path.join(path, entry.name)  # noqa: PTH118, plain paths as in a listing
            with suppress(OSError):  # a link to itself
                if entry.is_dir():
                    pending.append(os.path.join(path, entry.name))  # noqa: PTH118, as above


def _is_plain(source: str) -> bool:
    """Whether a local source is one file or folder, and no glob."""
    return not has_wildcard(source) or os.path.lexists(source)


def _is_overlap(source: str, below: list[str]) -> bool:
    """Whether the source reads what is in the folder with the parts `below`, or is in it."""
    if source.startswith("/") and _is_plain(source):
        fixed, pattern = _parts(source), []
    else:
        start = fixed_part(source)
        fixed = _parts(start)
        pattern = source[len(start) :].strip("/").split("/") if start != source else []
    if not fixed or not below:
        return False
    if fixed[: len(below)] == below:
        return True
    return below[: len(fixed)] == fixed and _matches(pattern, below[len(fixed) :])


def _parts(place: str) -> list[str]:
    """Real path, or bucket and prefix, part by part; empty if the kind of place is unknown."""
    if place.startswith("/"):
        return ["/", *(part for part in os.path.realpath(place).split("/") if part)]
    if place.startswith("s3://"):
        return ["s3://", *(part for part in place.removeprefix("s3://").split("/") if part)]
    return []


def _matches(pattern: list[str], destination: list[str]) -> bool:
    """Whether a glob matches the destination, a folder above it, or a file published in it."""
    for number, part in enumerate(pattern):
        if "**" in part or number >= len(destination):
            return _may_be_published(pattern[-1])
        if not fnmatchcase(destination[number], part):
            return False
    return True


def _may_be_published(part: str) -> bool:
    """Whether a glob's last part may be the name of a published file, or of a partition's folder."""
    end = _WILDCARDS.split(part)[-1]
    return "=" in part or _OURS.endswith(end) or end.endswith(_OURS)
