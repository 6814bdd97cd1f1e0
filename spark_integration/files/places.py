"""Where a source reads and a sink writes, as text that can be compared."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from typing import Final

from coordlog.api.chain import Chain
from coordlog.errors import OptionError
from coordlog.spark_integration.files.listing import fixed_part, has_wildcard

__all__ = ["check_apart", "location_of"]

_WILDCARDS: Final = re.compile(r"[*?\]]")
_OURS: Final = ".parquet"
"""How the name of a published file ends."""


def location_of(url: str) -> str:
    """What `url` is, for a history: spelled alike for the same names of files.

    Not where its links lead: a file is known by its path as the source spells it, so that another
    way to the same folder makes other files of them.

    Args:
        url: An absolute local path, or an fsspec URL without credentials.
    """
    if "::" in url:
        return url
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    if scheme in ("file", "local"):
        return os.path.normpath(rest)
    scheme = scheme.lower()
    return f"{'s3' if scheme == 's3a' else scheme}://{rest.rstrip('/')}"


def check_apart(chain: Chain) -> None:
    """Refuse a job that would read its own output.

    Raises:
        OptionError: What a link writes stands in what the source reads, or around it.
    """
    source = chain.source.location
    for provider in chain.coordinators:
        destination = provider.destination
        if source is None or destination is None or not _is_overlap(source, destination):
            continue
        raise OptionError(
            "the destination",
            destination,
            f"apart from what is read, {source}: neither below it nor above it, or the job reads "
            "its own output; give a folder or a prefix beside it",
        )


def _is_overlap(source: str, destination: str) -> bool:
    below = _parts(destination)
    if source.startswith("/") and (not has_wildcard(source) or os.path.lexists(source)):
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
    """Its real path, or bucket and prefix, part by part; empty where nobody knows what it is."""
    if place.startswith("/"):
        return ["/", *(one for one in os.path.realpath(place).split("/") if one)]
    if place.startswith("s3://"):
        return ["s3://", *(one for one in place.removeprefix("s3://").split("/") if one)]
    return []


def _matches(pattern: list[str], destination: list[str]) -> bool:
    """Whether a glob finds a folder above the destination, it, or what is published in it."""
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
