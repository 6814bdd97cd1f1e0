"""Errors of files that cannot be opened, read or listed: whether a file is at fault, or its file system."""

from __future__ import annotations

import errno
import lzma
import os
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from coordlog.errors import SourceError, SourceUnavailableError
from coordlog.spark_integration.files.urls import WEB

if TYPE_CHECKING:
    from coordlog.spark_integration.files.listing import SeenFile

__all__ = [
    "cause_of",
    "gone",
    "is_mounted",
    "is_of_content",
    "not_to_be_listed",
    "read_error",
    "unreadable",
]

_OF_CONTENT: Final = (pa.ArrowException, ValueError, EOFError, lzma.LZMAError)

_OF_WEB_FILES: Final = (401, 403, 404, 410)
"""Answers of a web server about one file: it may not be read, or is gone."""


def cause_of(seen: SeenFile, error: Exception) -> Exception:
    """The cause of an error in opening a listed file: a FileNotFoundError only if the file itself is missing.

    fsspec has one for each failed request of a web server. A folder in which nothing is mounted any more is empty.
    """
    if not isinstance(error, FileNotFoundError):
        return error
    origin = error.__cause__
    if seen.path.startswith(WEB):
        is_of_file = getattr(origin, "status", None) in _OF_WEB_FILES
        return origin if isinstance(origin, Exception) and not is_of_file else error
    if " file " in seen.mark:
        folder = _present_folder(seen.path)
        if not is_mounted(folder, seen) and not os.listdir(folder):  # noqa: PTH208, plain paths as in a listing
            problem = "its folder is empty and on another file system than the file was"
            return OSError(errno.ENODEV, problem, folder)
    return error


def is_of_content(error: BaseException) -> bool:
    """Whether an error in reading a file is one of its content, and not of its file system or the network."""
    if not isinstance(error, OSError):
        return isinstance(error, _OF_CONTENT)
    # Codecs and Arrow raise an OSError without a number for content that they cannot read. A timeout has none either.
    return type(error) is OSError and error.errno is None


def read_error(path: str, problem: str, next_step: str, error: Exception) -> SourceError:
    """Error of a file that was opened and cannot be read: another try helps only if its content is not at fault."""
    kind = SourceError if is_of_content(error) else SourceUnavailableError
    return kind(path, f"{problem}: {str(error) or type(error).__name__}", next_step)


def _present_folder(path: str) -> str:
    """The nearest folder above a local path that exists."""
    folder = os.path.dirname(path)  # noqa: PTH120, plain paths as in a listing
    while not os.path.isdir(folder):  # noqa: PTH112
        folder = os.path.dirname(folder)  # noqa: PTH120
    return folder


def is_mounted(folder: str, seen: SeenFile) -> bool:
    """Whether a folder is on the file system on which the file was."""
    device = seen.mark.rpartition(" file ")[2].partition(":")[0]
    return str(os.stat(folder).st_dev) == device  # noqa: PTH116, as above


def gone(seen: SeenFile, error: Exception) -> SourceError:
    """Error of a listed file that cannot be opened."""
    error = cause_of(seen, error)
    if not isinstance(error, FileNotFoundError):
        return unreadable(seen.path, error)
    size = "" if seen.size_bytes < 0 else f" with {seen.size_bytes} bytes"
    return SourceError(
        seen.path,
        f"it has vanished: it was there{size} when the source was listed",
        "put it back as it was; the job has to read its rows",
    )


def unreadable(path: str, error: Exception) -> SourceError:
    """Error of a file or a folder that cannot be read."""
    if not isinstance(error, OSError):
        return SourceUnavailableError(
            path,
            f"it cannot be read: {type(error).__name__}: {error}",
            "check that the file system can be reached and the job and its tasks may read it",
        )
    steps: dict[type[OSError], str] = {
        FileNotFoundError: "put it back, or use a path that exists",
        IsADirectoryError: "name its files, or the folder above it",
        PermissionError: "allow the user that runs the job and its tasks to read it",
    }
    next_step = steps.get(type(error), "check that the file system works and the file is whole")
    number = f"[errno {error.errno}] " if error.errno is not None else ""
    where = error.filename if isinstance(error.filename, str) else path
    problem = f"it cannot be read: {number}{error.strerror or str(error) or type(error).__name__}"
    return SourceUnavailableError(where, problem, next_step)


def not_to_be_listed(path: str) -> SourceError:
    """Error of a local path that is neither a file nor a folder, or does not exist."""
    if os.path.lexists(path):
        problem = "it is neither a file nor a folder"
        return SourceError(path, problem, "remove it, or put a file or a folder in its place")
    return SourceUnavailableError(path, "it does not exist", "use a path that does")
