"""What led to an error, and whether trying again can help."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from coordlog.errors import JobMovedError, OutOfSpaceError

__all__ = ["MOVED", "OUT_OF_SPACE", "chain_of_causes", "final_of", "is_out_of_space"]

OUT_OF_SPACE: Final = "out of space"
"""Why trying again cannot help, as records and `JobFailedError.final` say it: space does not come back by a restart."""

MOVED: Final = "moved"
"""The same of a job that goes on elsewhere."""

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def final_of(error: BaseException) -> str:
    """Why trying again cannot help; empty where it may."""
    if is_out_of_space(error):
        return OUT_OF_SPACE
    return MOVED if any(isinstance(one, JobMovedError) for one in chain_of_causes(error)) else ""


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
