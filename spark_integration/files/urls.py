"""Packages that schemes of URLs need."""

from __future__ import annotations

from typing import Final

from coordlog.errors import SourceError

__all__ = ["SCHEMES", "VERSION_MARK", "WEB", "missing_library"]

VERSION_MARK: Final = "?versionId="
"""Text in an object's name after which the library for S3 takes the rest for the version of another object."""

WEB: Final = ("http://", "https://")
"""Beginnings of names of a web server."""

_PACKAGES: Final = {
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "dropbox": "dropboxdrivefs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hf": "huggingface_hub",
    "http": "coordlog[http]",
    "https": "coordlog[http]",
    "s3": "coordlog[s3]",
    "s3a": "coordlog[s3]",
    "sftp": "paramiko",
    "smb": "smbprotocol",
    "ssh": "paramiko",
    "webdav": "webdav4",
}

SCHEMES: Final = frozenset(_PACKAGES)
"""Schemes of stores; in a chain of URLs each of them can only be the last."""


def missing_library(url: str, error: Exception) -> SourceError:
    """Error of a URL whose file system cannot be made."""
    scheme = url.partition("::")[0].partition("://")[0]
    if not isinstance(error, ImportError):
        return SourceError(
            url,
            f"its file system cannot be used: {error}",
            "see the part before `://`, and the options that it needs",
        )
    package = _PACKAGES.get(scheme)
    return SourceError(
        url,
        f"files of {scheme}:// need a package that is not installed here ({error})",
        f"pip install '{package}' for the driver and for the tasks"
        if package is not None
        else "install the package that it names for the driver and for the tasks",
    )
