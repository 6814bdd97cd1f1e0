"""Packages that schemes of URLs need."""

from __future__ import annotations

from typing import Final

from coordlog.errors import SourceError

__all__ = ["missing_library"]

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
