"""Faults of files, as opposed to faults of their file system."""

from __future__ import annotations

from coordlog.errors import SourceError
from coordlog.spark_integration.files.listing import InputFiles
from coordlog.spark_integration.files.missing import is_of_content

__all__ = ["EmptyFileError", "is_fault_of_file"]


class EmptyFileError(SourceError):
    """Files have neither a row nor a schema."""


def is_fault_of_file(error: SourceError, files: InputFiles) -> bool:
    """Whether a file is at fault: its content, or that it is gone, or may not be read, while its source is there.

    Else it is the file system, or the network before it: then all files would fail in turn, and a
    new attempt is what may help.
    """
    cause = error.__cause__
    if cause is None:
        return True
    if isinstance(cause, (FileNotFoundError, PermissionError)):
        return files.is_there()  # credentials may have expired: then no file may be read
    if isinstance(cause, (IsADirectoryError, NotADirectoryError)):
        return True
    return is_of_content(cause)
