"""What is refused of a URL before anything opens it, and which package a scheme needs."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from coordlog.errors import OptionError, SourceError

__all__ = ["missing_library", "refuse_credentials"]

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
_SECRET: Final = re.compile(
    r"(secret|password|passwd|token|signature|credential|access.?key|api.?key)|^(sig|key|pwd)$",
    re.IGNORECASE,
)


def refuse_credentials(option: str, url: str) -> None:
    """Raise OptionError, which does not show it, where a URL holds a secret.

    A user's name alone is none, but with HTTP and S3, where it is a token or a key. Paths of splits
    are in the log for good, where everybody who reads it would find the secret.
    """
    for link in url.split("::"):
        if "://" not in link:
            continue
        parts = urlsplit(link)
        user, at, host = parts.netloc.rpartition("@")
        is_secret = ":" in user or (at and parts.scheme in ("http", "https", "s3", "s3a"))
        names = [name for name, _ in parse_qsl(parts.query) if _SECRET.search(name)]
        if not is_secret and not names:
            continue
        where = f" in its parameter {names[0]!r}" if not is_secret else ""
        raise OptionError(
            option,
            f"{parts.scheme}://***@{host}{parts.path}" if is_secret else f"{parts.scheme}://{host}",
            f"a URL without credentials (this one has some{where}): paths are in the log; give "
            "them to fsspec by its environment or configuration (AWS_ACCESS_KEY_ID, FSSPEC_S3_KEY, "
            "~/.config/fsspec), or with `storage_options=`",
        )


def missing_library(url: str, error: Exception) -> SourceError:
    """What is said where the file system of `url` cannot be made."""
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
