"""What led to an error, and whether trying again can help."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from coordlog.errors import (
    DestinationMisfitError,
    JobMovedError,
    NoSinkError,
    OutOfSpaceError,
    SinkError,
)

__all__ = [
    "MISFIT",
    "MOVED",
    "NO_SINK",
    "OUT_OF_SPACE",
    "UNFIT_WORKERS",
    "chain_of_causes",
    "final_of",
    "is_of_destination",
    "is_out_of_space",
]

OUT_OF_SPACE: Final = "out of space"
"""Why trying again cannot help, as records and `JobFailedError.final` say it: space does not come back by a restart."""

MOVED: Final = "moved"
"""The same of a job that goes on elsewhere."""

UNFIT_WORKERS: Final = "the workers cannot load the job"
"""The same of a job whose modules cannot be imported by its workers."""

NO_SINK: Final = "no sink"
"""The same of a coordinator that commits and has no sink."""

MISFIT: Final = "misfit"
"""The same of rows that do not fit the schema of their destination: they are the same rows the next time."""

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def final_of(error: BaseException) -> str:
    """Why trying again cannot help; empty where it may."""
    if is_out_of_space(error):
        return OUT_OF_SPACE
    for one in chain_of_causes(error):
        if isinstance(one, JobMovedError):
            return MOVED
        if isinstance(one, NoSinkError):
            return NO_SINK
        if isinstance(one, DestinationMisfitError):
            return MISFIT
    return ""


def is_of_destination(error: BaseException) -> bool:
    """Whether a destination refuses: the split that is read is not at fault, and its rows are not to be skipped."""
    return any(isinstance(one, SinkError) for one in chain_of_causes(error))


def is_out_of_space(error: BaseException) -> bool:
    """Whether a destination, a disk or a quota is full: it, or what led to it, says so."""
    return any(
        isinstance(one, OutOfSpaceError) or (isinstance(one, OSError) and one.errno in _NO_SPACE)
        for one in chain_of_causes(error)
    )


def chain_of_causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it, each once."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
