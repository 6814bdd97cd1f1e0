"""The end of forked copies of this process that return from a user's code into coordlog's."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

__all__ = ["COPY_STATUS", "ForkGuard"]

COPY_STATUS: Final = 70
"""Exit status of a copy; that of an internal error in `sysexits.h`."""
_STDERR: Final = 2
_MESSAGE: Final = (
    b"coordlog: the copy %d of process %d, which a fork in a user's code has made, ends at once: it must not return. "
    b"End it with os._exit, or start processes with `subprocess` or `multiprocessing`.\n"
)


class ForkGuard:
    """Ends each copy of the process that has created this object.

    A copy has the connections and open files of the original but none of its threads: if it continued, both would write
    to the same files, and the copy would hold ports and connections long after the end of the original.
    """

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def end_copy(self) -> None:
        """Return in the original; end a copy without any cleaning, which would be one of the original's files."""
        pid = os.getpid()
        if pid == self._pid:
            return
        with suppress(OSError):
            os.write(_STDERR, _MESSAGE % (pid, self._pid))
        os._exit(COPY_STATUS)
