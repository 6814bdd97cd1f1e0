"""Causes of an error, and whether a retry can help."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from coordlog.errors import (
    DestinationMisfitError,
    InputGoneError,
    JobMovedError,
    NoSinkError,
    OperatorMisfitError,
    OutOfSpaceError,
    SessionLostError,
    SinkError,
    TransformMisfitError,
)

__all__ = [
    "INPUT_GONE",
    "MISFIT",
    "MOVED",
    "NO_SINK",
    "NO_SPACE",
    "OUT_OF_SPACE",
    "SESSION_LOST",
    "UNFIT_WORKERS",
    "chain_of_causes",
    "encodable",
    "final_of",
    "is_of_destination",
    "is_out_of_space",
    "text_of",
]

OUT_OF_SPACE: Final = "out of space"
"""`final` in records and in `JobFailedError` for a full destination, disk or quota, or the limit of a file's size: a
restart frees no space."""

MOVED: Final = "moved"
"""`final` for a job that continues elsewhere."""

UNFIT_WORKERS: Final = "the workers cannot load the job"
"""Value of `final` if the workers cannot import the modules of the job."""

NO_SINK: Final = "no sink"
"""`final` for a coordinator that commits and has no sink."""

MISFIT: Final = "misfit"
"""`final` for rows that no destination or operator takes, and for what is no rows: a retry is the same."""

INPUT_GONE: Final = "input gone"
"""`final` for records that a topic had and never has again: a retry reads from the same offset."""

SESSION_LOST: Final = "session lost"
"""`final` if the Spark session of the driver has ended: a retry has no other."""

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of the operating system for it."""


def final_of(error: BaseException) -> str:
    """Reason why a retry cannot help; empty if it may."""
    if is_out_of_space(error):
        return OUT_OF_SPACE
    for cause in chain_of_causes(error):
        if isinstance(cause, JobMovedError):
            return MOVED
        if isinstance(cause, NoSinkError):
            return NO_SINK
        if isinstance(cause, (DestinationMisfitError, OperatorMisfitError, TransformMisfitError)):
            return MISFIT
        if isinstance(cause, InputGoneError):
            return INPUT_GONE
        if isinstance(cause, SessionLostError):
            return SESSION_LOST
    return ""


def is_of_destination(error: BaseException) -> bool:
    """Whether a destination raised: the split is not at fault then, and its rows must not be skipped."""
    return any(isinstance(cause, SinkError) for cause in chain_of_causes(error))


def is_out_of_space(error: BaseException) -> bool:
    """Whether the error, or one of its causes, is a full destination, disk or quota, or the limit of a file's size."""
    return any(
        isinstance(cause, OutOfSpaceError)
        or (isinstance(cause, OSError) and cause.errno in NO_SPACE)
        for cause in chain_of_causes(error)
    )


def chain_of_causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, newest first, each once."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def text_of(error: BaseException) -> str:
    """Type and text of an error. That of an error of py4j is fetched from the JVM, which may have died."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception as problem:  # noqa: BLE001, of whatever library the error is
        return f"{name}, whose text cannot be read ({type(problem).__name__})"


def encodable(text: str) -> str:
    """`text` with escapes for what UTF-8 has no bytes for: a file's name that is not UTF-8 is such a text in Python."""
    return text.encode(errors="backslashreplace").decode()
