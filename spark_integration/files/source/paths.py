"""Paths and URLs of a file source: how they are spelled, and which are refused."""

from __future__ import annotations

import os
from collections.abc import Sequence

from coordlog.errors import OptionError
from coordlog.log.credentials import refuse_credentials
from coordlog.spark_integration.files.listing import has_wildcard, is_local
from coordlog.spark_integration.files.urls import SCHEMES, VERSION_MARK, WEB

__all__ = ["check_paths", "paths_of", "scheme_of"]


def paths_of(also: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """One or several paths as a list of texts."""
    return (
        [os.fspath(also)]
        if isinstance(also, (str, os.PathLike))
        else [os.fspath(path) for path in also]
    )


def check_paths(url: str, others: Sequence[str]) -> None:
    """Check the path and the further ones: a file is known by its name alone, so that all are of one file system."""
    _check_path(url)
    for other in others:
        _check_path(other, "also")
        _check_same_store(other, url)


def _check_same_store(other: str, url: str) -> None:
    schemes = [scheme_of(path) for path in (url, other)]
    if schemes[0] != schemes[1]:
        raise OptionError("also", other, f"of the file system of {url}: {schemes[0]}")


def scheme_of(url: str) -> str:
    """The scheme of a URL: `file` for a path, `s3` for both spellings of S3."""
    if is_local(url) or "://" not in url:
        return "file"
    scheme = url.partition("://")[0].lower()
    return "s3" if scheme == "s3a" else scheme


def _check_path(url: str, option: str = "path") -> None:
    if not url:
        raise OptionError(option, url, "a path, a glob or an fsspec URL")
    refuse_credentials(option, url)
    if is_local(url):
        return
    if VERSION_MARK in url and ("s3://" in url or "s3a://" in url):
        raise OptionError(
            option,
            url,
            f"without {VERSION_MARK!r}: the newest version of an object is read, and no other",
        )
    if "::" in url and url.partition("://")[0] in SCHEMES:
        raise OptionError(
            option,
            url,
            "without '::', which separates two URLs: for such a name pass its folder, or a glob",
        )
    address = url.rpartition("::")[2]
    if address.startswith(WEB) and (address.endswith("/") or has_wildcard(address)):
        raise OptionError(
            option,
            url,
            "the URL of one file, without a query: a web server has no listing of its folders; name each file, "
            "further ones with `also=` (`--also`), and write `*`, `[` and `?` of a name as %2A, %5B and %3F",
        )
