"""The end of a query whose error no retry can mend: its Spark stage is cancelled with the reason."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from coordlog.errors import RequestRefusedError, SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CANCEL_WAIT_S", "end_stage", "is_same_again"]

_log = logging.getLogger(__name__)

CANCEL_WAIT_S: Final = 3.0
"""Seconds that a task with a final failure waits to be cancelled, before Spark counts it as another try."""

_OF_THIS_FILE: Final = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)


def is_same_again(error: BaseException) -> bool:
    """Whether a retry of the task would fail in the same way: the content is at fault, or the read has ended.

    An error of the file system or the network (an OSError with a number, not about a single file) may not
    happen at the next try, nor may an error of another kind.
    """
    if isinstance(error, RequestRefusedError):
        return True
    if not isinstance(error, SourceError) or error.retriable:
        return False
    cause = error.__cause__
    return not isinstance(cause, OSError) or cause.errno is None or isinstance(cause, _OF_THIS_FILE)


def end_stage(spark: SparkSession, stage_id: int, reason: str) -> None:
    """Cancel a stage, and with it the query, whose error shows the reason; no effect on a stage that has ended."""
    context: Any = spark.sparkContext
    context._jsc.sc().cancelStage(stage_id, reason)  # noqa: SLF001, the only call with a reason
    _log.info("stage_id=%d is cancelled: %s", stage_id, reason)
