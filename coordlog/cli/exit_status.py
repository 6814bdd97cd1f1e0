"""Exit statuses of the commands, and the status of each error."""

from __future__ import annotations

import enum
import re

from coordlog.causes import MOVED, NO_SPACE, OUT_OF_SPACE, is_out_of_space
from coordlog.errors import (
    AccessError,
    FencedError,
    JobFailedError,
    LogUnavailableError,
    NoDriverError,
    PayloadStoreUnreachableError,
    PrunedMeanwhileError,
    RestoreError,
    UsageError,
)
from coordlog.log.local.environment_errors import BrokerError

__all__ = ["Exit", "exit_of", "message_of"]

_NO_SPACE_TEXT = re.compile(rf"\[errno (?:{'|'.join(map(str, sorted(NO_SPACE)))})\]", re.IGNORECASE)


class Exit(enum.IntEnum):
    """The exit statuses of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    """The history is incompatible with the job, a live driver holds it, or the broker refuses this user."""
    FENCED = 4
    """Another driver has taken over."""
    UNREACHABLE = 5
    """The log, the payload store or the job's driver did not answer, the broker of this machine did not start, or the
    log was pruned during the reading: the same command may succeed."""
    NO_SPACE = 6
    INTERRUPTED = 130
    TERMINATED = 143


def exit_of(error: BaseException) -> Exit:
    """The status that a command ends with after this error."""
    if is_out_of_space(error):
        return Exit.NO_SPACE
    match error:
        case JobFailedError() if error.final == OUT_OF_SPACE:
            return Exit.NO_SPACE
        case JobFailedError() if error.final == MOVED:
            return Exit.FENCED
        case JobFailedError() if any(map(_NO_SPACE_TEXT.search, error.reasons[:1])):
            return Exit.NO_SPACE  # Spark's own folders are full: Spark reports it as text
        case RestoreError() | AccessError():
            return Exit.REFUSED
        case FencedError():
            return Exit.FENCED
        case (
            LogUnavailableError()
            | PrunedMeanwhileError()
            | PayloadStoreUnreachableError()
            | BrokerError()
            | NoDriverError()
        ):
            return Exit.UNREACHABLE
        case UsageError():
            return Exit.USAGE
        case _:
            return Exit.FAILED


def message_of(error: OSError) -> str:
    """An error of the system in one line, with its file if it has one."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
