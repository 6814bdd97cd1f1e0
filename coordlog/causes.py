"""What led to an error, and whether it is a want of space."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from coordlog.errors import OutOfSpaceError

__all__ = ["OUT_OF_SPACE", "chain_of_causes", "is_out_of_space"]

OUT_OF_SPACE: Final = "out of space"
"""Why trying again cannot help, as records and `JobFailedError.final` say it: space does not come back by a restart."""

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


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
