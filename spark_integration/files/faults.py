"""Faults of files, as opposed to faults of their file system."""

from __future__ import annotations

import lzma
from typing import Final

import pyarrow as pa

from coordlog.errors import SourceError
from coordlog.spark_integration.files.listing import InputFiles

__all__ = ["EmptyFileError", "is_fault_of_file"]

_OF_CONTENT: Final = (pa.ArrowException, ValueError, EOFError, lzma.LZMAError)


class EmptyFileError(SourceError):
    """Files have neither a row nor a schema."""


def is_fault_of_file(error: SourceError, files: InputFiles) -> bool:
    """Whether a file is at fault: its content, or that it is gone, or may not be read, while its source is there.

    Else it is the file system, or the network before it: then all files would fail in turn, and a
    new attempt is what may help.
    """
    cause = error.__cause__
    if not isinstance(cause, OSError):
        return cause is None or isinstance(cause, _OF_CONTENT)
    if isinstance(cause, (FileNotFoundError, PermissionError)):
        return files.is_there()  # credentials may have expired: then no file may be read
    if isinstance(cause, (IsADirectoryError, NotADirectoryError)):
        return True
    # Codecs and Arrow raise an OSError without a number for content that they cannot read. A timeout has none either.
    return type(cause) is OSError and cause.errno is None
