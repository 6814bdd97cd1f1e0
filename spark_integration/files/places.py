"""Places of sources and sinks, as text that can be compared."""

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
"""End of the name of a published file."""


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
        OptionError: A destination is inside the place that the source reads, or around it.
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
